"""Checks that the checkpoint of ``--drafter-path`` fits the models of ``--path``."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..errors import option_error
from ..model.model import Model
from ..model_checks import BLOCK_NAT, TRANSFORMER, attends_locally, has_heads, is_block_nat
from ..model_facts import is_heads, is_module, is_prepared
from ..registry import ANY, HEADS, METHODS
from ..target_order import TargetOrder, order_of

log = logging.getLogger(__name__)

# Whether encoders are the same, by drafter and verifier.
_SAME: WeakKeyDictionary[Any, WeakKeyDictionary[Any, bool]] = WeakKeyDictionary()


#: What a method's drafter has to be, in words, by the kind of its checkpoint.
WANTED = {
    BLOCK_NAT: "a checkpoint of --arch block_nat",
    HEADS: "a checkpoint of --arch blockwise_transformer, with --decoding blockwise",
    TRANSFORMER: "one Transformer for text that writes a word per step, from left to right, as of "
    "--arch shallow_decoder or transformer",
}


def kind_of(drafter: Any) -> str | None:
    """Return the kind of a drafter or heads, a key of ``WANTED``; None: no method drafts by it."""
    if is_heads(drafter) or has_heads([drafter]):
        return HEADS
    if is_block_nat([drafter]):
        return BLOCK_NAT
    plain = order_of(drafter) == TargetOrder() and not attends_locally(drafter)
    return TRANSFORMER if plain else None


def check_kind(path: str, kind: str, held: str | None, name: str) -> None:
    """Refuse a drafter of another kind than a method takes.

    Args:
        path: its file.
        kind: that the method takes, a key of ``WANTED``, or ``ANY``.
        held: that it is of, as ``kind_of`` returns it.
        name: of the drafter's class.
    """
    if held == kind or (kind == ANY and held is not None):
        return
    users = [name for name, method in METHODS.items() if held and method.drafter == held]
    instead = f": use --decoding {' or '.join(users)}" if users else ""
    wanted = WANTED[TRANSFORMER if kind == ANY else kind]
    raise option_error("--drafter-path", path, f"{wanted}; this holds a {name}{instead}")


def check_languages(path: str, trained: Sequence[str | None], wanted: Sequence[str | None]) -> None:
    """Refuse a drafter of other languages than the verifier's; None: they are not known."""
    if any(a and b and a != b for a, b in zip(trained, wanted, strict=True)):
        allowed = f"a drafter for {wanted[0]}-{wanted[1]}; this was trained for "
        raise option_error("--drafter-path", path, f"{allowed}{trained[0]}-{trained[1]}")


def check_positions(path: str, positions: int, needed: int) -> None:
    """Refuse a drafter that takes shorter sources than the verifier."""
    if positions < needed:
        allowed = f"a drafter that takes {needed} source tokens, as the verifier does; this takes "
        raise option_error("--drafter-path", path, f"{allowed}{positions}")


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


def move_to(models: Sequence[Any], helper: Any) -> None:
    """Give a drafter or heads the dtype and device of the models, if they are torch's."""
    if not is_module(helper):
        return
    weight = next(helper.parameters())
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
    (sizes, own), (others, theirs) = map(_encoder_of, (drafter, model))
    same = sizes == others and same_weights(own, theirs)
    if is_prepared(model) and is_prepared(drafter):
        known[model] = same
    return same


def _encoder_of(model: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return what an encoder computes with its weights, and these; None for those packed alone."""
    if isinstance(model, Model):
        layers, shapes = model.architecture.encoder, model.architecture.shapes()
        sizes = None if layers is None else replace(layers, most=0)
        names = [name for name in shapes if name.startswith("encoder.")]
        return sizes, {name: model.weights.get(name) for name in names}
    encoder = model.encoder
    heads = [layer.self_attn.num_heads for layer in encoder.layers]
    return (heads, encoder.embed_scale), encoder.state_dict()


def same_weights(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two sets of weights, arrays or tensors, are the same, by name.

    The tolerance admits copies in other precisions. Where one has no numbers, as they are packed
    alone, the other weights (biases, norms, embeddings) decide.
    """
    return own.keys() == other.keys() and all(_close(own[name], other[name]) for name in own)


def _close(weight: Any, other: Any) -> bool:
    """Return whether two weights are the same, or one is not here."""
    if weight is None or other is None:
        return True
    if weight.shape != other.shape:
        return False
    first, second = _array(weight), _array(other)
    return first.ctypes.data == second.ctypes.data or np.allclose(
        first, second, rtol=1e-2, atol=1e-3
    )


def _array(weight: Any) -> np.ndarray:
    """Return a weight in fp32 as an array."""
    if isinstance(weight, np.ndarray):
        return weight
    array: np.ndarray = weight.detach().float().cpu().numpy()
    return array


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
