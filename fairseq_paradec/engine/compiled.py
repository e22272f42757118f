"""Passes compiled by torch.compile: one per bucket of shapes, cached on disk."""

from __future__ import annotations

import functools
import logging
import os
import time
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# Chunks are padded to one of these lengths; longer ones run uncompiled.
CHUNKS = (1, 4, 8, 12, 16, 24, 32, 48, 64)
# Sources are padded to this many tokens, or to a power of two times as many.
SOURCE = 16


@functools.cache
def warn_plain(form: str, which: str) -> None:
    """Warn once that passes over weights in this form are not compiled.

    Args:
        form: of the weights; see weights.join.
        which: the passes, in words.
    """
    logger.warning(
        "--compile: %s run plain, for their weights are %s",
        which,
        "in int8" if form == "int8" else "laid out by oneDNN",
    )


def chunk_bucket(width: int) -> int | None:
    """Return the length that a chunk is padded to; None if it is longer than every bucket."""
    return next((size for size in CHUNKS if size >= width), None)


def source_bucket(length: int) -> int:
    """Return the length that a source is padded to."""
    size = SOURCE
    while size < length:
        size *= 2
    return size


@dataclass
class Compiling:
    """The state of an engine's compilation.

    Attributes:
        seconds: the time spent on it.
        failed: whether compilation failed; all passes then run uncompiled.
    """

    seconds: float = 0.0
    failed: bool = False


class Compiled:
    """Compiled copies of a function of tensors, one per key, compiled at the first call.

    The caller's key identifies shapes, strides and other conditions of the arguments. torch's own
    guards are off, because they take longer than a small model's arithmetic. Compiled code is
    cached in ``TORCHINDUCTOR_CACHE_DIR``, by default a folder of this package in the user's cache;
    later runs load it in half a second per bucket. If compilation fails (for example without a C++
    compiler), one warning is logged and everything runs uncompiled.

    Args:
        name: the function's name in the log.
        function: takes tensors (or None); a method or a plain function.
        compiling: records the time of compilation, and whether it failed.
    """

    def __init__(self, name: str, function: Callable[..., Any], compiling: Compiling) -> None:
        self.name = name
        self.function = function
        self.compiling = compiling
        self._compiled: dict[tuple[Hashable, ...], Callable[..., Any]] = {}

    @property
    def works(self) -> bool:
        """Whether something was compiled."""
        return bool(self._compiled)

    def __call__(self, key: tuple[Hashable, ...], *args: Tensor | None) -> Any:
        """Run the function.

        Args:
            key: of the bucket; calls with the same key have arguments of the same shapes and
                strides.
            args: of the function; batches of more than one row may differ in their first dimension.
        """
        key = (*key, torch.get_num_threads())
        run = self._compiled.get(key)
        if run is not None:
            return run(*args)
        if self.compiling.failed:
            return self.function(*args)
        begin = time.perf_counter()
        run = self._compile(key)
        try:
            run(*args)
        except Exception as error:  # inductor, the C++ compiler and triton raise different types
            self.compiling.failed = True
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            logger.warning("--compile: passes run plain, for compiling failed: %s", reason)
            return self.function(*args)
        self._compiled[key] = run
        seconds = time.perf_counter() - begin
        self.compiling.seconds += seconds
        logger.info("--compile: %s %s compiled or loaded in %.1f s", self.name, key, seconds)
        return run(*args)

    def _compile(self, key: tuple[Hashable, ...]) -> Callable[..., Any]:
        """Return a copy of the function that is compiled at its first call."""
        use_cache_folder()
        function = self.function
        bound = getattr(function, "__self__", None)
        plain: Any = getattr(function, "__func__", function)
        # torch caches compiled code by code object, so each bucket has its own code object.
        code = plain.__code__.replace(co_name=f"{plain.__name__}_{abs(hash(key))}")
        own: Any = types.FunctionType(
            code, plain.__globals__, code.co_name, plain.__defaults__, plain.__closure__
        )
        own = own if bound is None else types.MethodType(own, bound)
        options: dict[str, Any] = {"guard_filter_fn": lambda guards: [False] * len(guards)}
        if "cuda" in key:
            options["triton.cudagraphs"] = True
        else:
            # The code between kernels is C++ too, without checks of sizes and alignment.
            options |= {"cpp_wrapper": True, "size_asserts": False, "alignment_asserts": False}
        return torch.compile(own, fullgraph=True, dynamic=False, options=options)


def use_cache_folder() -> None:
    """Set torch's folder of compiled code to the user's cache; the default is in /tmp."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(home) / "fairseq_paradec"))
