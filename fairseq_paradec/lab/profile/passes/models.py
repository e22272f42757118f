"""The model whose passes are measured: a checkpoint, or random weights of a known size."""

import argparse
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from ....decoding.provenance import NATIVE, TORCH
from ....engine.settings import Engine
from ....errors import option_error
from ....files import check_inputs
from ....model_checks import BLOCK_NAT, TRANSFORMER, is_block_nat
from ....plugin.models.heads import BlockHeads
from ....plugin.tasks import loading
from ....plugin.tasks.flags import ParallelTranslationConfig
from ....plugin.tasks.translation import ParallelTranslationTask
from ....registry import ANY, HEADS
from ..asked import SizedModel

# --arch-size: layers of encoder and of decoder, width, feed-forward width, heads.
SIZES = {
    "tiny": (4, 128, 256, 4),
    "small": (6, 256, 1024, 4),
    "base": (6, 512, 2048, 8),
    "big": (6, 1024, 4096, 16),
    "nllb-600m": (12, 1024, 4096, 16),
    "nllb-3.3b": (24, 2048, 8192, 16),
}
#: Sizes whose layers are one, repeated: torch's copy of all would be 13 GB. Packed ones are copies.
REPEATED = ("nllb-3.3b",)
# Of --vocabulary: fairseq's special tokens, and two words.
LEAST_WORDS = 6
#: Kinds of drafters that random weights have.
DRAFTERS = (BLOCK_NAT, TRANSFORMER, HEADS)
# The dtype in which native drafters and heads are measured.
DRAFTS = "int8"
HEAD_WIDTH = 32  # of a drafter of --drafter-width
# --engines: fp32 is not spelled.
ENGINES = (NATIVE, "native-bf16", "native-int8", TORCH, "torch-bf16", "torch-fp16", "torch-int8")


class Pair(NamedTuple):
    """What is measured."""

    task: Any  # with dictionaries
    model: Any  # a Transformer, the verifier
    helpers: Mapping[str | None, Any]  # what drafts, by kind: some of DRAFTERS
    args: Any = None  # the model's options, of random weights; else None

    def helper(self, kind: str | None) -> Any:
        """Return what drafts for a method with drafters of a kind; the model, for None."""
        return self.model if kind is None else self.helpers.get(kind)


def check_model(args: SizedModel) -> None:
    """Refuse a model and engines that do not go together, and files that are not there."""
    if (args.path is None) == (args.arch_size is None):
        raise option_error("--path", args.path, "one of --path and --arch-size")
    if args.path is not None:
        if args.data is None:
            raise option_error("DATA", None, "a folder made by fairseq-preprocess, with --path")
        check_inputs(args.data, args.path)
    if args.arch_size is not None and (args.data or args.drafter_path):
        given = args.data or args.drafter_path
        raise option_error("DATA, --drafter-path", given, "none with --arch-size")
    if args.arch_size is not None and args.num_words < LEAST_WORDS:
        allowed = f"{LEAST_WORDS} or more: 4 tokens are special ones"
        raise option_error("--vocabulary", args.vocabulary, allowed)
    for name in args.engines:
        parse_engine(name)


def make_pair(args: SizedModel, block_size: int, kinds: Collection[str | None] = DRAFTERS) -> Pair:
    """Load the checkpoint, or make random weights; see ``load_pair`` and ``random_pair``."""
    if args.path is not None and args.data is not None:
        return load_pair(args.data, args.path, args.drafter_path)
    assert args.arch_size is not None  # see check_model
    drafter = args.drafter_width, args.drafter_layers, args.drafter_size
    return random_pair(args.arch_size, args.num_words, block_size, kinds, *drafter)


def random_pair(
    size: str,
    vocabulary: int,
    block_size: int,
    kinds: Collection[str | None] = DRAFTERS,
    drafter_width: int | None = None,
    drafter_layers: int = 1,
    drafter_size: str | None = None,
) -> Pair:
    """Build a Transformer with random weights, and helpers of it.

    The drafters are as ``block_nat_fast`` and ``shallow_decoder`` make them. The vector of ``</s>``
    is zero: other tokens score higher, so an output ends at the length limit.

    Args:
        size: a key of SIZES.
        vocabulary: tokens, fairseq's special ones among them.
        block_size: how many tokens the heads draft; they are of ``--head-layer per_head``.
        kinds: which of DRAFTERS are built.
        drafter_width: of the shallow decoder that drafts token by token, in heads of 32 with a
            feed-forward layer of twice the width; None: the model's sizes.
        drafter_layers: of that decoder.
        drafter_size: a key of SIZES: a Transformer with an encoder of its own drafts instead.
    """
    words = Dictionary()
    for number in range(vocabulary - len(words)):
        words.add_symbol(f"w{number}")
    task = ParallelTranslationTask(ParallelTranslationConfig(), words, words)
    _, width, inner, _ = SIZES[size]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model, args = _transformer(size, task)
        given = {
            "encoder_from": "the verifier",
            "encoder_copied": True,
            "encoder_settings": dict(vars(args)),
            "max_source_positions": 1024,
            "max_target_positions": 1024,
            "drafter_block_size": 1,  # any block is filled as it is
        }
        made: dict[str | None, Any] = {}
        if BLOCK_NAT in kinds:
            made[BLOCK_NAT] = _build("block_nat_fast", given, task)[0]
        if TRANSFORMER in kinds and drafter_size is None:
            shape = {} if drafter_width is None else _narrow(drafter_width)
            shape["decoder_layers"] = drafter_layers
            made[TRANSFORMER] = _build("shallow_decoder", given | shape, task)[0]
        for drafter in made.values():  # one copy in memory: those of a large model are gigabytes
            pairs = zip(drafter.encoder.parameters(), model.encoder.parameters(), strict=True)
            for own, of in pairs:
                own.data = of.data
        if TRANSFORMER in kinds and drafter_size is not None:
            made[TRANSFORMER] = _transformer(drafter_size, task)[0]
        if HEADS in kinds:
            made[HEADS] = BlockHeads(block_size + 1, width, inner, "per_head", False, "relu").eval()
    return Pair(task, model, made, args)


def _transformer(size: str, task: Any) -> tuple[Any, argparse.Namespace]:
    """Build a Transformer of a size; return it, and all of fairseq's options."""
    layers, width, inner, heads = SIZES[size]
    settings: dict[str, Any] = {"share_all_embeddings": True}
    settings |= {"max_source_positions": 1024, "max_target_positions": 1024}
    for side in ("encoder", "decoder"):
        settings |= {f"{side}_layers": 1 if size in REPEATED else layers}
        settings |= {f"{side}_embed_dim": width, f"{side}_attention_heads": heads}
        settings |= {f"{side}_ffn_embed_dim": inner}
    model, args = _build("transformer", settings, task)
    if size in REPEATED:
        for side in (model.encoder, model.decoder):
            side.layers.extend([side.layers[0]] * (layers - 1))
            side.num_layers = layers
    with torch.no_grad():
        model.decoder.embed_tokens.weight[task.target_dictionary.eos()] = 0.0
    return model, args


def _narrow(width: int) -> dict[str, int]:
    """Return the options of a decoder of another width than the verifier's.

    Raises:
        UsageError: it is no multiple of the heads' width.
    """
    if width % HEAD_WIDTH:
        raise option_error("--drafter-width", width, f"a multiple of {HEAD_WIDTH}")
    return {
        "decoder_embed_dim": width,
        "decoder_ffn_embed_dim": 2 * width,
        "decoder_attention_heads": width // HEAD_WIDTH,
    }


def _build(arch: str, settings: Mapping[str, Any], task: Any) -> tuple[Any, argparse.Namespace]:
    """Build a model of an architecture for inference; return it, and all of fairseq's options."""
    args = argparse.Namespace(**settings)
    ARCH_CONFIG_REGISTRY[arch](args)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    model.make_generation_fast_()
    return model, args


def load_pair(data: str, path: str, drafter_path: str | None) -> Pair:
    """Load a checkpoint, and a drafter or heads that fit it.

    Raises:
        UsageError: it is an ensemble, or the drafter does not fit.
    """
    models, task = loading.load(data, path)
    if len(models) > 1:
        raise option_error("--path", path, "one checkpoint")
    helpers: dict[str | None, Any] = {}
    if (heads := getattr(models[0], "block_heads", None)) is not None:
        helpers[HEADS] = heads
    if drafter_path is not None:
        helper = task.drafters.load(drafter_path, ANY, models)
        if isinstance(helper, BlockHeads):
            helpers[HEADS] = helper
        else:
            helpers[BLOCK_NAT if is_block_nat([helper]) else TRANSFORMER] = helper
    return Pair(task, models[0], helpers)


def parse_engine(text: str) -> Engine:
    """Read an engine: one of ENGINES."""
    if text not in ENGINES:
        raise option_error("--engines", text, ", ".join(ENGINES))
    kind, _, dtype = text.partition("-")
    return Engine(dtype or None, kind)


def sizes(model: Any) -> str:
    """Describe a model, for example ``4+4 layers, d=128, ffn 256, 4 heads``; None: ``none``."""
    if model is None:
        return "none"
    encoder, decoder = model.encoder, model.decoder
    first = decoder.layers[0]
    return (
        f"{len(encoder.layers)}+{len(decoder.layers)} layers, d={decoder.embed_dim}, "
        f"ffn {first.fc1.out_features}, {first.self_attn.num_heads} heads"
    )
