"""Which models a method can decode: the checks that registry entries name.

This folder imports no models, so a kind of model is recognised by an attribute: ``masks`` and
``block_size`` of a block_nat model, ``block_heads`` of a Transformer with heads, ``target_order``
of a model with another target order, ``image_sizes`` of a model with local attention. A ``Model``
has them all but the last; those that it does not need are None.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .errors import excludes, option_error
from .model_facts import class_of, device_of


def is_block_nat(models: Sequence[Any]) -> bool:
    """Return whether the first model is a block_nat model."""
    return hasattr(models[0], "masks") and models[0].block_size is not None


def has_heads(models: Sequence[Any]) -> bool:
    """Return whether there is one model, and it has heads."""
    return len(models) == 1 and getattr(models[0], "block_heads", None) is not None


def writes_steps(models: Sequence[Any]) -> bool:
    """Return whether the first model has a target order, but not that of double_token."""
    order = getattr(models[0], "target_order", None)
    return order is not None and not order.double_token


def writes_pairs(models: Sequence[Any]) -> bool:
    """Return whether the first model is a double_token model."""
    order = getattr(models[0], "target_order", None)
    return order is not None and order.double_token


def attends_locally(model: Any) -> bool:
    """Return whether a model has local attention: a Transformer of images."""
    return hasattr(model, "image_sizes")


def drafts_for_itself(dtype: str | None, halves: bool, model: Any) -> bool:
    """Return whether a model can draft in fewer bits than its passes have: see ``self_draft``.

    Args:
        dtype: ``--engine-dtype``.
        halves: whether the engine has fewer bits than 8.
        model: the model, or the first of an ensemble.
    """
    if device_of(model) != "cpu" or attends_locally(model):
        return False
    return dtype != "int8" or (halves and not getattr(model, "is_packed_only", False))


def any_transformer(decoding: str, models: Sequence[Any], drafter_path: str | None) -> None:
    """Accept every model; the engine refuses layers that it does not support."""


def global_attention(decoding: str, models: Sequence[Any], drafter_path: str | None) -> None:
    """Refuse models with local attention."""
    if attends_locally(models[0]):
        raise option_error(
            "--decoding",
            decoding,
            f"any other with a {class_of(models[0])}, whose attention is local",
        )


def pairs_only(decoding: str, models: Sequence[Any], drafter_path: str | None) -> None:
    """Refuse all models but double_token ones."""
    global_attention(decoding, models, drafter_path)
    if not writes_pairs(models):
        raise option_error(
            "--path",
            f"a model of the kind {class_of(models[0])}",
            f"a model of --arch double_token, with --decoding {decoding}",
        )


def one_block_nat(decoding: str, models: Sequence[Any], drafter_path: str | None) -> None:
    """Refuse all but one block_nat model."""
    if len(models) > 1 or not is_block_nat(models):
        name = class_of(models[0])
        given = name if len(models) == 1 else f"{len(models)} models"
        raise option_error("--path", given, f"one model of --arch block_nat, with {decoding}")


def one_set_of_heads(decoding: str, models: Sequence[Any], drafter_path: str | None) -> None:
    """Refuse models without heads, or with two sets of heads."""
    if len(models) > 1:
        raise option_error(
            "--path",
            f"{len(models)} models",
            f"one, with --decoding {decoding}: heads read its states",
        )
    if has_heads(models) and drafter_path is not None:
        raise excludes(
            "--drafter-path",
            drafter_path,
            "a model with heads of its own (--arch "
            "blockwise_transformer, blockwise_image_transformer); --path may be the heads' base",
        )
    if not has_heads(models) and drafter_path is None:
        raise option_error(
            "--path",
            f"a model of the kind {class_of(models[0])}",
            "a model of --arch blockwise_transformer (of images: blockwise_image_transformer) with "
            f"--decoding {decoding}; or --drafter-path with heads that were trained on it",
        )


#: Kinds of checkpoints: of ``--path``, and of ``--drafter-path``.
TRANSFORMER, BLOCK_NAT = "transformer", "block_nat"


class Verifier(NamedTuple):
    """Which models of ``--path`` a method decodes."""

    words: str = "any Transformer"  # which, in words, for the docs
    # raises an error for others; called with decoding, models and ``--drafter-path``
    accepts: Callable[[str, Sequence[Any], str | None], None] = any_transformer
    # whether ``--decoding auto`` decodes these models with this method
    owns: Callable[[Sequence[Any]], bool] = lambda models: False
    # why no other method can decode the Transformers that it owns; None: others can
    alone: str | None = None
    kind: str = TRANSFORMER  # the kind of checkpoint


_OTHER_ORDER = "it writes its target in another order"
ANY_TRANSFORMER = Verifier()
GLOBAL_TRANSFORMER = Verifier("any Transformer without local attention", global_attention)
ONE_BLOCK_NAT = Verifier(
    "one model of --arch block_nat", one_block_nat, is_block_nat, kind=BLOCK_NAT
)
WITH_HEADS = Verifier(
    "one Transformer with heads, in it (--arch blockwise_transformer, "
    "blockwise_image_transformer) or beside it",
    one_set_of_heads,
    has_heads,
)
WRITES_STEPS = Verifier(
    "--arch ibdecoder, ibdecoder_sa, imdecoder, sa_transformer, transformer_r2l, "
    "transformer_both_ends; any Transformer without local attention",
    global_attention,
    writes_steps,
    _OTHER_ORDER,
)
WRITES_PAIRS = Verifier("--arch double_token", pairs_only, writes_pairs, _OTHER_ORDER)
