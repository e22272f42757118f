"""Copies of modules in other dtypes, and the form of weights in passes."""

import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ...errors import option_error
from .watch import Watch
from .weights import Form, best_form

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# Copies of models in other dtypes; a model's copies live as long as the model.
_COPIES: WeakKeyDictionary[nn.Module, dict[torch.dtype, tuple[Watch, Any]]] = WeakKeyDictionary()


def model_in(dtype: str | None, model: Any) -> Any:
    """Return a module in a dtype of an Engine: the module itself, or its copy, made once.

    The copy of a module that has changed gets its weights.
    """
    if dtype is None:
        return model
    wanted = DTYPES.get(dtype, torch.float32)
    if next(model.parameters()).dtype == wanted:
        return model
    copies = _COPIES.setdefault(model, {})
    if wanted not in copies:
        copies[wanted] = Watch(model), copy.deepcopy(model).to(wanted)
        copies[wanted][1].eval()  # the model may be in training and decode between updates
    watch, own = copies[wanted]
    if watch.changed():
        # fairseq's own load_state_dict upgrades checkpoints and needs their options.
        nn.Module.load_state_dict(own, model.state_dict())
    return own


def form_of(
    asked: str | None, dtype: torch.dtype, device: torch.device, lasting: bool, count: int
) -> Form:
    """Return the form of a decoder's weights; see ``weights.join``.

    Args:
        asked: the dtype of an Engine.
        dtype: of the weights.
        device: of the weights.
        lasting: whether the weights do not change.
        count: the number of parameters that a pass reads.

    Raises:
        UsageError: int8 on a device that has no kernels for it.
    """
    if asked == "int4":
        allowed = "where passes are torch's, fp32, bf16 or int8; native passes take int4, too"
        raise option_error("--drafter-dtype", "int4", allowed)
    if asked != "int8":
        return best_form(dtype, device, lasting, count)
    if device.type != "cpu":
        raise option_error(
            "--engine-dtype or --drafter-dtype",
            "int8",
            f"fp32, bf16 or fp16 on {device.type}; int8 on the CPU",
        )
    return "int8"
