"""A fix of fairseq's activation functions."""

from typing import Any

import torch.nn.functional as F
from fairseq import utils

from .patching import Function, around


def make_swish_a_function() -> None:
    """Let ``--activation-fn swish`` compute.

    Fault: fairseq 0.12 returns the class ``torch.nn.SiLU`` in place of a function, so that a layer
    makes a module of its states.
    """

    @around(utils, "get_activation_fn")
    def get_activation_fn(original: Function, activation: str) -> Any:
        return F.silu if activation == "swish" else original(activation)
