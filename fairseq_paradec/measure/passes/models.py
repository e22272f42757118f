"""The model whose passes are measured: a checkpoint, or random weights of a known size."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from ...analysis.pass_costs import PLAIN
from ...decoding.engine.settings import Engine
from ...errors import option_error
from ...methods.registry import BLOCK_NAT
from ...tasks.flags import ParallelTranslationConfig
from ...tasks.translation import ParallelTranslationTask
from .. import loading

# --arch-size: layers of encoder and of decoder, width, feed-forward width, heads.
SIZES = {"tiny": (4, 128, 256, 4), "base": (6, 512, 2048, 8)}
ENGINE_DTYPES = ("fp32", "bf16", "fp16", "int8")


class Pair(NamedTuple):
    """What is measured.

    Attributes:
        task: with dictionaries.
        model: a Transformer, the verifier.
        drafter: a BlockNatModel, or None.
    """

    task: Any
    model: Any
    drafter: Any


def random_pair(size: str, vocabulary: int) -> Pair:
    """Build a Transformer with random weights, and a drafter as ``block_nat_fast`` makes it.

    Args:
        size: a key of SIZES.
        vocabulary: tokens, fairseq's special ones among them.
    """
    words = Dictionary()
    for number in range(vocabulary - len(words)):
        words.add_symbol(f"w{number}")
    task = ParallelTranslationTask(ParallelTranslationConfig(), words, words)
    layers, width, inner, heads = SIZES[size]
    settings: dict[str, Any] = {"share_all_embeddings": True}
    settings |= {"max_source_positions": 1024, "max_target_positions": 1024}
    for side in ("encoder", "decoder"):
        settings |= {f"{side}_layers": layers, f"{side}_embed_dim": width}
        settings |= {f"{side}_ffn_embed_dim": inner, f"{side}_attention_heads": heads}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        args = argparse.Namespace(**settings)
        model = _build("transformer", args, task)
        drafter_args = argparse.Namespace(
            encoder_from="the verifier",
            encoder_copied=True,
            encoder_settings=dict(vars(args)),
            max_source_positions=1024,
            max_target_positions=1024,
        )
        drafter = _build("block_nat_fast", drafter_args, task)
    drafter.encoder.load_state_dict(model.encoder.state_dict())
    return Pair(task, model, drafter)


def _build(arch: str, args: argparse.Namespace, task: Any) -> Any:
    """Build a model of an architecture for inference."""
    ARCH_CONFIG_REGISTRY[arch](args)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    model.make_generation_fast_()
    return model


def load_pair(data: str, path: str, drafter_path: str | None) -> Pair:
    """Load a checkpoint, and a drafter that fits it.

    Raises:
        UsageError: it is an ensemble, or the drafter does not fit.
    """
    models, task = loading.load(data, path)
    if len(models) > 1:
        raise option_error("--path", path, "one checkpoint")
    drafter = None
    if drafter_path is not None:
        drafter = task.drafters.load(drafter_path, BLOCK_NAT, models)
    return Pair(task, models[0], drafter)


def parse_engine(text: str) -> Engine:
    """Read an engine: a dtype, and ``:compile`` behind it if it is to be compiled.

    Raises:
        UsageError: there is none of this name.
    """
    dtype, sign, rest = text.partition(":")
    if dtype not in ENGINE_DTYPES or (sign and rest != "compile"):
        allowed = f"{', '.join(ENGINE_DTYPES)}, or one of them with :compile behind it"
        raise option_error("--engines", text, allowed)
    return Engine(dtype=None if dtype == PLAIN else dtype, compile=bool(sign))


def sizes(model: Any) -> str:
    """Describe a model, for example ``4+4 layers, d=128, ffn 256, 4 heads``."""
    encoder, decoder = model.encoder, model.decoder
    first = decoder.layers[0]
    return (
        f"{len(encoder.layers)}+{len(decoder.layers)} layers, d={decoder.embed_dim}, "
        f"ffn {first.fc1.out_features}, {first.self_attn.num_heads} heads"
    )
