"""Tiny random fairseq models, tasks and batches for the tests: no data folder, no training.

The models go through fairseq's own architectures, so every variant is one that a stock checkpoint
can have. They are untrained, but their weights are spread so that greedy's outputs vary: different
tokens, `</s>` at different steps (also at the first), sometimes only at the length limit.
"""

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModelBase
from omegaconf import OmegaConf

from fairseq_paradec.plugin.models.block_nat import BlockNatModel
from fairseq_paradec.plugin.models.blockwise_transformer import BlockwiseTransformer
from fairseq_paradec.plugin.models.reordered_transformer import ReorderedTransformer
from fairseq_paradec.plugin.tasks.flags import ParallelTranslationConfig
from fairseq_paradec.plugin.tasks.translation import ParallelTranslationTask
from support.commands import DEMO

#: The shipped drafter of the demo's checkpoint.
DEMO_DRAFTER = DEMO / "drafter.pt"

#: Number of tokens, special symbols included, of the dictionaries made here.
VOCABULARY = 40
SOURCE_VOCABULARY = 33

#: Decoder positions of every tiny model: small, so that tests reach the model's own limit.
MAX_POSITIONS = 24

PRENORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}
CUT: Mapping[str, Any] = {"adaptive_softmax_cutoff": [20], "adaptive_softmax_factor": 2.0}

#: name -> (fairseq architecture, options that differ from the tiny default). No variant has
#: tie_adaptive_weights: fairseq cannot build such a translation model (it would need adaptive
#: input, which only language models have).
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "default": ("transformer", {}),
    "prenorm": ("transformer", PRENORM),
    "no_final_norm": ("transformer", {**PRENORM, "no_decoder_final_norm": True}),
    "learned_positions": ("transformer", LEARNED),
    "no_positions": ("transformer", {"no_token_positional_embeddings": True}),
    "share_all": ("transformer", {"share_all_embeddings": True}),
    "share_decoder": ("transformer", {"share_decoder_input_output_embed": True}),
    "separate": ("transformer", {"separate_dictionaries": True}),
    "output_dim": ("transformer", {"decoder_output_dim": 12}),
    "other_dims": (
        "transformer",
        {
            "encoder_embed_dim": 24,
            "encoder_ffn_embed_dim": 40,
            "decoder_embed_dim": 16,
            "decoder_attention_heads": 4,
            "encoder_layers": 1,
            "decoder_layers": 3,
        },
    ),
    "adaptive_softmax": ("transformer", CUT | {"adaptive_softmax_cutoff": [12, 24]}),
    "adaptive_output_dim": ("transformer", CUT | {"decoder_output_dim": 12}),
    "layernorm_embedding": ("transformer", {"layernorm_embedding": True}),
    "no_scale": ("transformer", {"no_scale_embedding": True}),
    "layerdrop": ("transformer", {"encoder_layerdrop": 0.3, "decoder_layerdrop": 0.3}),
    "gelu": ("transformer", {"activation_fn": "gelu"}),
    "quant_noise": ("transformer", {"quant_noise_pq": 0.2, "quant_noise_pq_block_size": 8}),
    "align": ("transformer_align", {"alignment_heads": 1, "alignment_layer": 1}),
    "bart": ("bart_base", {}),
    "mbart": ("mbart_base", PRENORM),
}

#: Seeds whose models are the most telling: outputs of many lengths, one token and the limit too.
SEEDS: Mapping[str, int] = {
    "default": 16,
    "prenorm": 6,
    "no_final_norm": 5,
    "learned_positions": 10,
    "no_positions": 1,
    "share_all": 4,
    "share_decoder": 3,
    "separate": 10,
    "output_dim": 4,
    "other_dims": 8,
    "adaptive_softmax": 5,
    "adaptive_output_dim": 0,
    "layernorm_embedding": 11,
    "no_scale": 13,
    "layerdrop": 3,
    "gelu": 9,
    "quant_noise": 18,
    "align": 3,
    "bart": 19,
    "mbart": 6,
}

#: Variants whose embedding is also the output projection: training moves their `<pad>` vector away
#: from zero, so these models get one that is not zero.
TIED = ("share_all", "share_decoder", "bart", "mbart")

#: Sizes of tiny drafters and reordered models.
SMALL: Mapping[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 32,
    "decoder_attention_heads": 2,
    "max_source_positions": 64,
}

#: How far the decoder's weights are spread: sharp attention and strong branches make the next
#: token depend on position, source and ALL the tokens before.
GAINS: Mapping[str, float] = {
    "self_attn.q_proj": 2.0,
    "self_attn.k_proj": 2.0,
    "self_attn.v_proj": 2.0,
    "encoder_attn.q_proj": 2.0,
    "encoder_attn.k_proj": 2.0,
    "fc1": 2.0,
    "fc2": 3.0,
}


def dictionary(size: int = VOCABULARY) -> Dictionary:
    """A dictionary of `size` tokens, fairseq's four special symbols among them."""
    words = Dictionary()
    for number in range(size - len(words)):
        words.add_symbol(f"w{number}")
    return words


def tiny_task(separate_dictionaries: bool = False, size: int = VOCABULARY) -> Any:
    """A translation task with small dictionaries and no data: shared ones, or of two sizes."""
    target = dictionary(size)
    source = dictionary(SOURCE_VOCABULARY) if separate_dictionaries else target
    return ParallelTranslationTask(ParallelTranslationConfig(), source, target)


def task_for(variant: str) -> Any:
    """The task that `variant` is built for: separate dictionaries where the variant asks."""
    return tiny_task(bool(VARIANTS[variant][1].get("separate_dictionaries")))


def tiny_model(
    task: Any, variant: str = "default", dtype: Any = torch.float64, seed: int = 0, **options: Any
) -> TransformerModelBase:
    """A tiny random model of one of VARIANTS, in evaluation mode."""
    architecture, changes = VARIANTS[variant]
    settings: dict[str, Any] = {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 32,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "max_source_positions": 64,
        "max_target_positions": MAX_POSITIONS,
    }
    settings |= {**changes, **options}
    settings.pop("separate_dictionaries", None)
    args = argparse.Namespace(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEEDS[variant] + 1000 * seed)
        ARCH_CONFIG_REGISTRY[architecture](args)
        model = ARCH_MODEL_REGISTRY[architecture].build_model(args, task)
        _spread(model, variant, task.target_dictionary)
    model.flags = args  # as they stand in a checkpoint
    return model.to(dtype).eval()


@torch.no_grad()
def _spread(model: TransformerModelBase, variant: str, words: Dictionary) -> None:
    """Spread the weights so that greedy's choice depends on source, prefix and position."""
    decoder = model.decoder
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias, std=0.1)
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight, mean=1.0, std=0.2)
            torch.nn.init.normal_(module.bias, std=0.05)
    for name, linear in decoder.layers.named_modules():
        if isinstance(linear, torch.nn.Linear):
            gain = GAINS.get(name.split(".", 1)[1], 1.0)
            torch.nn.init.normal_(linear.weight, std=gain * linear.weight.size(1) ** -0.5)
            # The mean of what comes in (relu) would be the same offset everywhere.
            linear.weight.sub_(linear.weight.mean(dim=1, keepdim=True))
    if variant in ("bart", "mbart"):  # BART's init (std 0.02) makes every output the same
        for tokens in {model.encoder.embed_tokens, decoder.embed_tokens}:
            torch.nn.init.normal_(tokens.weight, std=0.5)
        torch.nn.init.normal_(decoder.embed_positions.weight, std=0.5)
    adaptive, pad = decoder.adaptive_softmax, words.pad()
    projection = (adaptive.head if adaptive is not None else decoder.output_projection).weight
    projection.mul_(3.0)
    projection[words.eos()] *= 2.5
    if variant in TIED:
        torch.nn.init.normal_(projection[pad : pad + 1], std=0.5)


#: The tiny drafters' and heads' block sizes in training: what --block-size is by default.
DRAFTER_BLOCK_SIZE, HEADS_BLOCK_SIZE = 6, 4

#: More than the verifiers', so that a block may reach beyond every limit of theirs.
DRAFTER_POSITIONS = 64


def tiny_drafter(
    task: Any,
    attention: str = "prefix_causal",
    dtype: Any = torch.float64,
    seed: int = 0,
    verifier: TransformerModelBase | None = None,
    **options: Any,
) -> BlockNatModel:
    """A tiny random model of --arch block_nat in evaluation mode, its weights spread.

    With a verifier it has that one's encoder, as --share-verifier-encoder does.
    """
    settings: dict[str, Any] = {
        **SMALL,
        "max_target_positions": DRAFTER_POSITIONS,
        "drafter_attention": attention,
        "drafter_block_size": DRAFTER_BLOCK_SIZE,
    }
    if verifier is not None:
        plain = (bool, int, float, str, type(None))
        found = {k: v for k, v in vars(verifier.flags).items() if isinstance(v, plain)}
        settings = {k: v for k, v in settings.items() if not k.startswith("encoder_")}
        settings |= {"encoder_settings": found, "share_verifier_encoder": True}
        settings |= {"encoder_from": "the verifier", "encoder_copied": True}
    args = argparse.Namespace(**settings | options)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        ARCH_CONFIG_REGISTRY["block_nat"](args)
        model = ARCH_MODEL_REGISTRY["block_nat"].build_model(args, task)
        for module in (model.decoder, *([model.encoder] if verifier is None else [])):
            module.embed_tokens.weight.normal_()
            if isinstance(module.embed_positions, torch.nn.Embedding):
                module.embed_positions.weight.normal_()
        model.decoder.mask_vector.normal_()
        model.decoder.output_projection.weight.normal_(std=0.25)
        _spread(model, "default", task.target_dictionary)
    if verifier is not None:
        model.encoder.load_state_dict(verifier.encoder.state_dict())
    if dtype == torch.float64:
        exact_gelu(model)
    model.flags = args
    return model.to(dtype).eval()


def tiny_reordered(
    task: Any,
    arch: str = "ibdecoder_tiny",
    dtype: Any = torch.float64,
    seed: int = 0,
    **options: Any,
) -> ReorderedTransformer:
    """A tiny random reordered Transformer in evaluation mode, its weights spread.

    It is the task's model from then on: the task writes targets in its order."""
    settings = {**SMALL, "max_target_positions": MAX_POSITIONS, "arch": arch}
    args = argparse.Namespace(**settings | options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.build_model(args)
        _spread(model, "default", task.target_dictionary)
        places = model.decoder.embed_positions
        if places is not None:
            for vectors in places.parameters():
                torch.nn.init.normal_(vectors, std=0.7)
    model.flags = args
    return model.to(dtype).eval()


def tiny_blockwise(
    task: Any, variant: str = "default", dtype: Any = torch.float64, seed: int = 0, **options: Any
) -> BlockwiseTransformer:
    """`tiny_model` with random heads on it, as --arch blockwise_transformer with --base-path is."""
    base = tiny_model(task, variant, dtype, seed)
    settings = dict(vars(base.flags))
    settings |= {"block_size": HEADS_BLOCK_SIZE, "base_path": "the base", "base_copied": True}
    args = argparse.Namespace(**settings | options)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        ARCH_CONFIG_REGISTRY["blockwise_transformer"](args)
        model = ARCH_MODEL_REGISTRY["blockwise_transformer"].build_model(args, task)
        heads = model.block_heads
        for weight in (heads.inner.weight, heads.inner.bias, heads.outer, heads.bias):
            weight.normal_(std=0.4)
    missing, unexpected = model.load_state_dict(base.state_dict(), strict=False)
    assert all("heads" in name for name in missing) and not unexpected
    model.flags = args
    return model.to(dtype).eval()


def lend_heads(task: Any, base: torch.nn.Module, heads: torch.nn.Module) -> str:
    """Let `task` have these heads loaded for this base: what --drafter-path is to blockwise."""
    path = f"heads {id(heads)} in memory"
    task.drafters.heads.setdefault(base, {})[path] = heads
    return path


def exact_gelu(model: TransformerModelBase) -> None:
    """Put torch's GELU in the place of fairseq's, which rounds to float32 whatever comes in."""
    for layer in (*model.encoder.layers, *model.decoder.layers):
        if layer.activation_fn is utils.get_activation_fn("gelu"):
            layer.activation_fn = torch.nn.functional.gelu


def lend(task: Any, model: torch.nn.Module, drafter: torch.nn.Module) -> str:
    """Let `task` have this drafter loaded, for decoding with `model`: what --drafter-path is."""
    path = f"drafter {id(drafter)} in memory"
    like = next(model.parameters())
    task.drafters.models[path, like.dtype, like.device] = drafter
    return path


def save_drafter(
    task: Any,
    model: Any,
    path: Path,
    arch: str = "block_nat",
    weights: Mapping[str, torch.Tensor] | None = None,
    **languages: str,
) -> str:
    """Write a model, or some weights of it, to a checkpoint as fairseq-train does."""
    cfg = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    options = asdict(task.cfg) if is_dataclass(task.cfg) else OmegaConf.to_container(task.cfg)
    cfg["task"] = {**options, "_name": "translation", **languages}
    named = {"arch": arch, "task": "translation"}
    cfg["model"] = argparse.Namespace(**vars(model.flags) | named)
    state = {"args": None, "cfg": cfg, "model": weights or model.state_dict()}
    history = {"criterion_name": "X", "lr_scheduler_state": {}, "num_updates": 1}
    torch.save(state | {"optimizer_history": [history], "extra_state": {}}, path)
    return str(path)


@functools.cache
def built(
    variant: str, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[ParallelTranslationTask, TransformerModelBase]:
    """`task_for(variant)` and its `tiny_model`, built once: leave both as they are."""
    task = task_for(variant)
    return task, settled(tiny_model(task, variant, dtype, seed))


def sources(task: Any, lengths: Sequence[int], seed: int = 0) -> list[torch.Tensor]:
    """Random source sentences of these lengths, `</s>` counted; `<unk>` may occur."""
    words = task.source_dictionary
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        row = torch.randint(words.unk(), len(words), (length,), generator=generator)
        row[-1] = words.eos()
        rows.append(row)
    return rows


def collate(task: Any, rows: Sequence[torch.Tensor], left_pad: bool = True) -> dict[str, Any]:
    """The batch that fairseq's own dataset makes of these sources: longest first, padded left."""
    lengths = [len(row) for row in rows]
    dataset = LanguagePairDataset(
        rows, lengths, task.source_dictionary, left_pad_source=left_pad, shuffle=False
    )
    sample: dict[str, Any] = dataset.collater([dataset[i] for i in range(len(rows))])
    return sample


def batch(task: Any, lengths: Sequence[int], seed: int = 0, left_pad: bool = True) -> Any:
    """A fairseq batch of random sources (see `sources` and `collate`)."""
    return collate(task, sources(task, lengths, seed), left_pad)


def source_rows(sample: Mapping[str, Any], pad: int = 1) -> list[list[int]]:
    """The batch's sources without their padding, in the batch's order."""
    rows: list[list[int]] = sample["net_input"]["src_tokens"].tolist()
    return [[token for token in row if token != pad] for row in rows]


@functools.cache
def demo(
    dtype: torch.dtype = torch.float32,
) -> tuple[ParallelTranslationTask, TransformerModelBase, list[torch.Tensor]]:
    """The demo's task, its trained model, and its test sentences: leave them as they are."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(DEMO / "model.pt")], arg_overrides={"data": str(DEMO)}
    )
    task.load_dataset("test")
    dataset = task.dataset("test")
    model = settled(models[0].to(dtype).eval())
    return task, model, [dataset[i]["source"] for i in range(len(dataset))]


def settled(model: TransformerModelBase) -> TransformerModelBase:
    """The model with its causal mask made: no test's inference mode shall own what others use."""
    model.decoder.buffered_future_mask(torch.zeros(256, 1, 1, dtype=next(model.parameters()).dtype))
    return model


#: For `Limits.banned`: no word twice in a row, nor with one between, and some never.
BANNED = (
    *((word,) for word in range(5, 40, 7)),
    *((word, word) for word in range(4, 40)),
    *((word, other, word) for word in range(4, 40) for other in range(4, 40)),
)


@dataclass(frozen=True)
class Limits:
    """fairseq's limits, for our flags, for its own generator and for the references."""

    max_len_a: float = 0.0
    max_len_b: int = 16
    min_len: int = 1
    unkpen: float = 0.0
    temperature: float = 1.0
    lenpen: float = 1.0
    unnormalized: bool = False
    suppressed: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    banned: tuple[tuple[int, ...], ...] = ()  # sequences of words of `dictionary`

    def flags(self, words: Any = None) -> dict[str, Any]:
        flags = {name: value for name, value in asdict(self).items() if name != "suppressed"}
        known = dictionary() if words is None else words
        lines = [
            " ".join(known[token] for token in tokens)
            for tokens in flags.pop("banned")
            if max(tokens) < len(known)
        ]
        return flags | {"suppress_sequences": "\n".join(lines) or None}

    def stock(self) -> dict[str, Any]:
        """As arguments of fairseq's SequenceGenerator."""
        return {
            "max_len_a": self.max_len_a,
            "max_len_b": self.max_len_b,
            "min_len": self.min_len,
            "unk_penalty": self.unkpen,
            "temperature": self.temperature,
            "len_penalty": self.lenpen,
            "normalize_scores": not self.unnormalized,
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
        } | self.texts()

    def texts(self) -> dict[str, Any]:
        """Rules that fairseq has not, if there are some, for `reference.greedy.fairseqs_search`."""
        rules = {"repetition_penalty": self.repetition_penalty, "banned": self.banned}
        return rules if (self.repetition_penalty, self.banned) != (1.0, ()) else {}

    def reference(self) -> dict[str, Any]:
        """As arguments of `reference.greedy.rules_for`."""
        kept = ("max_len_a", "max_len_b", "min_len", "unk_penalty", "temperature")
        kept += ("no_repeat_ngram_size",)
        found = {name: value for name, value in self.stock().items() if name in kept}
        return found | self.texts() | {"suppressed": self.suppressed}


def decode(
    task: Any,
    models: Sequence[TransformerModelBase],
    sample: dict[str, Any],
    limits: Limits,
    prefix_tokens: torch.Tensor | None = None,
    **flags: Any,
) -> list[dict[str, Any]]:
    """The best hypothesis of each row by the method under test, as fairseq-generate drives it."""
    args = argparse.Namespace(**limits.flags() | flags)
    generator = task.build_generator(list(models), args)
    hypos = task.inference_step(generator, list(models), sample, prefix_tokens=prefix_tokens)
    assert len(hypos) == len(sample["net_input"]["src_tokens"])
    return [row[0] for row in hypos]
