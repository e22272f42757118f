"""Checks that the checkpoint of ``--drafter-path`` fits the models of ``--path``."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..errors import option_error

log = logging.getLogger(__name__)

# Whether encoders are the same, by drafter and verifier.
_SAME: WeakKeyDictionary[Any, WeakKeyDictionary[Any, bool]] = WeakKeyDictionary()


def check_block_size(block_size: int, most: int, why: str) -> None:
    """Refuse a block size above a drafter's limit; ``why`` explains the limit."""
    if block_size > most:
        raise option_error("--block-size", block_size, f"at most {most}, {why}")


def warn_long_block(block_size: int, trained: int) -> None:
    """Say that a block is longer than the drafter has ever seen one."""
    if block_size > trained:
        log.warning(
            "--block-size %d: the drafter was trained with %d; what it predicts behind that is a "
            "guess",
            block_size,
            trained,
        )


def move_to(models: Sequence[Any], helper: Any, weight: torch.Tensor) -> None:
    """Give a drafter the dtype and device of the models."""
    like = models[0].decoder.embed_tokens.weight
    if (weight.dtype, weight.device) != (like.dtype, like.device):
        helper.to(dtype=like.dtype, device=like.device)


def same_encoder(model: Any, drafter: Any) -> bool:
    """Return whether the encoders of two models compute the same.

    The answer is kept for models that are prepared for inference: each call of fairseq's hub asks.
    """
    known = _SAME.setdefault(drafter, WeakKeyDictionary())
    if model in known:
        return known[model]
    heads = [[layer.self_attn.num_heads for layer in m.encoder.layers] for m in (model, drafter)]
    same = heads[0] == heads[1] and model.encoder.embed_scale == drafter.encoder.embed_scale
    same = same and same_weights(drafter.encoder.state_dict(), model.encoder.state_dict())
    if all(getattr(either, "_is_generation_fast", False) for either in (model, drafter)):
        known[model] = same
    return same


def same_weights(own: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Return whether two sets of weights are the same, by name.

    The tolerance admits copies in other precisions. Where one has no numbers, as they are packed
    alone, the other weights (biases, norms, embeddings) decide.
    """
    return own.keys() == other.keys() and all(
        own[k].shape == other[k].shape and _close(own[k], other[k]) for k in own
    )


def _close(weight: torch.Tensor, other: torch.Tensor) -> bool:
    if weight.is_meta or other.is_meta or weight.data_ptr() == other.data_ptr():
        return True
    return torch.allclose(weight.float().cpu(), other.float().cpu(), rtol=1e-2, atol=1e-3)


def check_shared_encoder(models: Sequence[Any], drafter: Any, path: str | None) -> None:
    """Refuse a drafter that was trained on another encoder than the verifier's.

    The drafter's checkpoint holds a copy of the encoder.
    """
    if len(models) > 1:
        raise option_error(
            "--path",
            f"{len(models)} models",
            f"one, the verifier on whose encoder --drafter-path {path} was trained",
        )
    if not same_encoder(models[0], drafter):
        raise option_error(
            "--drafter-path",
            path,
            "a drafter that was trained on this verifier's encoder (--share-verifier-encoder, "
            "--encoder-from), or on one of its own",
        )
