"""A fix of fairseq's activation functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from fairseq import utils

from .patching import wrap_once


def make_swish_a_function() -> None:
    """Let ``--activation-fn swish`` compute.

    Fault: fairseq 0.12 returns the class ``torch.nn.SiLU`` in place of a function, so that a layer
    makes a module of its states.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_activation_fn(activation: str) -> Any:
            return F.silu if activation == "swish" else original(activation)

        return get_activation_fn

    wrap_once(utils, "get_activation_fn", wrap)
