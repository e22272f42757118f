"""Passes as torch.compile makes them: one for each bucket of shapes, kept on the disk."""

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

# Chunks are filled up to one of these lengths; longer ones run plain.
CHUNKS = (1, 4, 8, 12, 16, 24, 32, 48, 64)
# Sources are filled up to this many tokens, or to twice as many, and so on.
SOURCE = 16


@functools.cache
def warn_plain(form: str, which: str) -> None:
    """Say, once, that weights in this form are not compiled.

    Args:
        form: of the weights; see weights.join.
        which: passes are meant.
    """
    logger.warning(
        "--compile: %s run plain, for their weights are %s", which,
        "in int8" if form == "int8" else "laid out by oneDNN",
    )  # fmt: skip


def chunk_bucket(width: int) -> int | None:
    """Return the length that a chunk is filled up to; None if it is too long for any."""
    return next((size for size in CHUNKS if size >= width), None)


def source_bucket(length: int) -> int:
    """Return the length that a source is filled up to."""
    size = SOURCE
    while size < length:
        size *= 2
    return size


@dataclass
class Compiling:
    """What compiling has come to, for whoever built an engine.

    Attributes:
        seconds: spent on it.
        failed: whether it cannot be done here; all runs plain then.
    """

    seconds: float = 0.0
    failed: bool = False


class Compiled:
    """Compiled copies of a function of tensors, made as they are needed.

    Whoever calls it says by a key in which shapes, strides and circumstances its arguments come;
    torch checks nothing more, for its checks would take longer than a small model's arithmetic.
    What is compiled is kept in ``TORCHINDUCTOR_CACHE_DIR``, by default a folder of this package in
    the user's cache, so that later runs only load it: half a second a bucket. If compiling fails
    (no C++ compiler, say), a warning says so, once, and everything runs plain.

    Args:
        name: of what is compiled, for the log.
        function: takes tensors (or None); a method or a plain function.
        compiling: notes how long compiling takes, and whether it fails.
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
            key: of the bucket; calls with one key have arguments of the same kind.
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
        except Exception as error:  # of many kinds: what compiles is a tower of tools
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
        """Return a function that is compiled at its first call."""
        use_cache_folder()
        function = self.function
        bound = getattr(function, "__self__", None)
        plain: Any = getattr(function, "__func__", function)
        # torch keeps what it compiled by code object, so each bucket has one of its own.
        code = plain.__code__.replace(co_name=f"{plain.__name__}_{abs(hash(key))}")
        own: Any = types.FunctionType(
            code, plain.__globals__, code.co_name, plain.__defaults__, plain.__closure__
        )
        own = own if bound is None else types.MethodType(own, bound)
        options: dict[str, Any] = {"guard_filter_fn": lambda guards: [False] * len(guards)}
        if "cuda" in key:
            options["triton.cudagraphs"] = True
        else:
            # The calls between the kernels in C++, too, and no checks in each.
            options |= {"cpp_wrapper": True, "size_asserts": False, "alignment_asserts": False}
        return torch.compile(own, fullgraph=True, dynamic=False, options=options)


def use_cache_folder() -> None:
    """Let torch keep what it compiles in the user's cache, not where it is cleared away."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(home) / "fairseq_paradec"))
