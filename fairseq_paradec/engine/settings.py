"""Engine: what computes passes, and in which dtype."""

import re
from dataclasses import dataclass
from typing import Any

from ..errors import option_error
from ..model.model import Model

#: Names of torch's dtypes; only tests use fp64.
_NAMES = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float64": "fp64",
}


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

    def dtype_of(self, model: Any) -> str:
        """Return the name of the dtype in which the passes of a model are computed."""
        if self.dtype is not None or isinstance(model, Model):
            return self.dtype or "fp32"
        return _NAMES[str(next(model.parameters()).dtype)]


def usable_device(device: Any) -> str:
    """Return the name of a device that models can be on.

    Raises:
        UsageError: there is none of this name, or torch finds none here.
    """
    if device == "cpu":
        return "cpu"
    import torch

    there = {"cpu": 1, "cuda": torch.cuda.device_count()}
    parts = re.fullmatch(r"(cpu|cuda)(?::(0|[1-9][0-9]{0,8}))?", str(device))
    if parts is None:
        raise option_error("--device", str(device), "cpu or cuda, or one of several as cuda:1")
    if int(parts[2] or 0) >= there[parts[1]]:
        many = f"; torch finds {there['cuda']} CUDA devices" if there["cuda"] else ""
        allowed = f"a device that is there{many}" if many else "cpu: torch finds no CUDA device"
        raise option_error("--device", str(device), allowed)
    return str(device)
