"""Start training from the encoder of another Transformer (``--encoder-from``)."""

from __future__ import annotations

from typing import Any

from fairseq.models.transformer import TransformerEncoder, TransformerEncoderBase

from ..checkpoint_errors import load_beside
from ..errors import option_error


def copy_encoder(model: Any, path: str, task: Any) -> Any:
    """Copy the encoder of a checkpoint, and its target embedding where the sizes agree.

    Args:
        model: a new Transformer.
        path: the checkpoint of another one.
        task: with the dictionaries of both.

    Returns:
        The other model.

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
    """Return what an encoder does with its weights, as far as their shapes do not tell."""
    layers = [(i.self_attn.num_heads, i.activation_fn, i.normalize_before) for i in encoder.layers]
    return [encoder.embed_scale, *layers]
