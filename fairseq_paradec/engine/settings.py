"""Engine: what computes passes, and in which dtype."""

import copy
import re
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..errors import option_error
from .torch.watch import Watch
from .torch.weights import Form, best_form

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# Names of dtypes; only tests use fp64.
_NAMES = {dtype: name for name, dtype in DTYPES.items()} | {torch.float64: "fp64"}

# Copies of models in other dtypes; a model's copies live as long as the model.
_COPIES: WeakKeyDictionary[nn.Module, dict[torch.dtype, tuple[Watch, Any]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Engine:
    """The settings of a scorer's passes.

    Attributes:
        dtype: ``fp32``, ``bf16``, ``fp16``, ``int8`` or ``int4``; None: the model's own. With
            ``int8`` the weights of linear maps are 8-bit integers, with ``int4`` of 4 bits (for
            native drafts), and all else is fp32.
        kind: ``torch``, ``native``, or ``auto``: native where it knows the model.
    """

    dtype: str | None = None
    kind: str = "torch"

    def model(self, model: Any) -> Any:
        """Return the model in this dtype: the model itself, or its copy, made once.

        The copy of a model that has changed gets its weights.
        """
        if self.dtype is None:
            return model
        wanted = DTYPES.get(self.dtype, torch.float32)
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

    def dtype_of(self, model: Any) -> str:
        """Return the name of the dtype in which the passes of a model are computed."""
        return self.dtype or _NAMES[next(model.parameters()).dtype]

    def form(self, dtype: torch.dtype, device: torch.device, lasting: bool, count: int) -> Form:
        """Return the form of a decoder's weights; see ``weights.join``.

        Args:
            dtype: of the weights.
            device: of the weights.
            lasting: whether the weights do not change.
            count: the number of parameters that a pass reads.

        Raises:
            UsageError: int8 on a device that has no kernels for it.
        """
        if self.dtype == "int4":
            allowed = "where passes are torch's, fp32, bf16 or int8; native passes take int4, too"
            raise option_error("--drafter-dtype", "int4", allowed)
        if self.dtype != "int8":
            return best_form(dtype, device, lasting, count)
        if device.type != "cpu":
            raise option_error(
                "--engine-dtype or --drafter-dtype",
                "int8",
                f"fp32, bf16 or fp16 on {device.type}; int8 on the CPU",
            )
        return "int8"


def usable_device(device: str | torch.device) -> torch.device:
    """Return a device that models can be on.

    Raises:
        UsageError: there is none of this name, or torch finds none here.
    """
    there = {"cpu": 1, "cuda": torch.cuda.device_count()}
    parts = re.fullmatch(r"(cpu|cuda)(?::(0|[1-9][0-9]{0,8}))?", str(device))
    if parts is None:
        raise option_error("--device", str(device), "cpu or cuda, or one of several as cuda:1")
    if int(parts[2] or 0) >= there[parts[1]]:
        many = f"; torch finds {there['cuda']} CUDA devices" if there["cuda"] else ""
        allowed = f"a device that is there{many}" if many else "cpu: torch finds no CUDA device"
        raise option_error("--device", str(device), allowed)
    return torch.device(device)
