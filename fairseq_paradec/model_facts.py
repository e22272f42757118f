"""What methods ask a model: this package's ``Model`` and fairseq's modules answer alike.

Most of it both have under the same names (``max_decoder_positions``, ``target_order``, ``masks``,
``shares_encoder``, ``eval``). Here is the rest, and all that only torch's modules say in another
way.
"""

from typing import Any


def is_module(model: Any) -> bool:
    """Return whether a model, a drafter or heads are a module of torch's."""
    return hasattr(model, "named_parameters")


def class_of(model: Any) -> str:
    """Return a model's class for messages; of a ``Model`` its kind."""
    architecture = getattr(model, "architecture", None)
    return type(model).__name__ if architecture is None else str(architecture.kind)


def device_of(model: Any) -> str:
    """Return the name of the device that a model is on: ``cpu``, ``cuda:0``."""
    return str(next(model.parameters()).device) if is_module(model) else "cpu"


def dictionaries_of(model: Any) -> tuple[Any, Any]:
    """Return a model's target dictionary, and its source dictionary."""
    if is_module(model):
        return model.decoder.dictionary, model.encoder.dictionary
    return model.target, model.source


def heads_of(drafter: Any) -> Any:
    """Return a model's prediction heads; or what is given, if it has none or is heads itself."""
    heads = getattr(drafter, "block_heads", None)
    return drafter if heads is None else heads


def is_heads(drafter: Any) -> bool:
    """Return whether a drafter is prediction heads alone."""
    return bool(getattr(drafter, "is_heads", not hasattr(drafter, "decoder")))


def is_prepared(model: Any) -> bool:
    """Return whether a model is prepared for inference, so that its weights change no more."""
    return bool(getattr(model, "_is_generation_fast", False)) if is_module(model) else model.lasts
