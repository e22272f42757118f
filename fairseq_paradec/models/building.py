"""Building of models: sizes, and settings or weights of another Transformer."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerEncoder,
    TransformerEncoderBase,
)

from ..compat.loading import load_beside, named
from ..errors import option_error

#: Layers, dimension, feed-forward dimension, heads; by the suffix of an architecture.
SIZES = {
    "_tiny": (4, 128, 256, 4),
    "_iwslt": (6, 512, 1024, 4),
    "": (6, 512, 2048, 8),
    "_big": (6, 1024, 4096, 16),
}


def named_sizes(suffix: str) -> dict[str, int]:
    """Return fairseq's options of a size, for encoder and decoder."""
    names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    pairs = list(zip(names, SIZES[suffix], strict=True))
    return {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in pairs}


def set_sizes(args: Any, suffix: str) -> None:
    """Set an architecture's sizes that no flag gives."""
    for name, size in named_sizes(suffix).items():
        setattr(args, name, getattr(args, name, size))


def transformer_settings(path: str, flag: str) -> dict[str, Any]:
    """Read the settings of a checkpoint's Transformer.

    Args:
        path: the checkpoint.
        flag: the flag that names it, for errors.

    Raises:
        UsageError: it is no checkpoint of a Transformer.
    """
    with named(flag):
        cfg = checkpoint_utils.load_checkpoint_to_cpu(path)["cfg"]["model"]
    settings = dict(vars(cfg) if isinstance(cfg, Namespace) else cfg)
    is_drafter = "drafter_block_size" in settings
    if is_drafter or "encoder_layers" not in settings or "decoder_layers" not in settings:
        raise option_error(flag, path, "a checkpoint of fairseq's Transformer, not a drafter's")
    # The settings that build a model, without paths of the training machine. "attention_" includes
    # the image Transformer's.
    own = {field.name for field in fields(TransformerConfig)} - {"_name"}
    plain = (bool, int, float, str, type(None))
    return {
        key: value
        for key, value in settings.items()
        if (key in own or key.startswith(("encoder_", "decoder_", "attention_", "quant_noise_")))
        and isinstance(value, plain)
        and not key.endswith("_path")
    }


def copy_encoder(model: Any, path: str, task: Any) -> Any:
    """Copy the encoder of a checkpoint, and its target embedding if the sizes agree.

    Args:
        model: a new Transformer.
        path: the checkpoint of another one.
        task: the task with the dictionaries of both.

    Returns:
        The checkpoint's model.

    Raises:
        UsageError: the checkpoint is missing, or its encoder does not fit.
    """
    other, _ = load_beside(path, "--encoder-from", task)
    if type(other.encoder) not in (TransformerEncoder, TransformerEncoderBase):
        kind = type(other.encoder).__name__
        raise option_error(
            "--encoder-from", path,
            f"a checkpoint with fairseq's Transformer encoder; this has a {kind}",
        )  # fmt: skip
    if _settings(model.encoder) != _settings(other.encoder):
        raise option_error(
            "--encoder-from", path,
            "an encoder with the same heads, activation, norms and scale of embeddings",
        )  # fmt: skip
    try:
        model.encoder.load_state_dict(other.encoder.state_dict())
    except RuntimeError as error:
        raise option_error(
            "--encoder-from", path, f"an encoder of the same size ({str(error).splitlines()[-1]})"
        ) from error
    own, table = model.decoder.embed_tokens.weight, other.decoder.embed_tokens.weight
    if own.shape == table.shape and own is not model.encoder.embed_tokens.weight:
        own.data.copy_(table)
    return other


def _settings(encoder: Any) -> list[Any]:
    """Return an encoder's settings that the shapes of its weights do not show."""
    layers = [(i.self_attn.num_heads, i.activation_fn, i.normalize_before) for i in encoder.layers]
    return [encoder.embed_scale, *layers]
