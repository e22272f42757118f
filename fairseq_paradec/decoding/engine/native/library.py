"""The library of native passes: built from ``csrc/`` for this CPU, loaded once."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[3] / "csrc"
FLAGS = (
    "-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-fopenmp",
    "-fvisibility=hidden", "-std=c++17",
)  # fmt: skip
#: Instruction sets, the best first: name, the compiler's flags, what /proc/cpuinfo must list.
TARGETS: tuple[tuple[str, tuple[str, ...], frozenset[str]], ...] = (
    (
        "avx512-bf16-vnni",
        ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mavx512vnni",
         "-mavx512bf16"),
        frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16")),
    ),
    (
        "avx512",
        ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
        frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    ),
    ("avx2", ("-mavx2", "-mfma"), frozenset(("avx2", "fma"))),
    ("plain", (), frozenset()),
)  # fmt: skip


class NativeUnavailable(Exception):
    """The library cannot be built or loaded here; the message says why."""


class Chunk(ctypes.Structure):
    """The tokens of a pass; see ``Chunk`` in csrc/stack.h."""

    _fields_ = [
        ("rows", c_int), ("width", c_int), ("tokens", c_void_p), ("begins", c_void_p),
        ("counts", c_void_p), ("starts", c_void_p), ("own_rows", c_void_p),
        ("source_rows", c_void_p), ("seen", c_void_p), ("seen_rows", c_int), ("mask", c_void_p),
        ("slots", c_int),
    ]  # fmt: skip


class Store(ctypes.Structure):
    """Keys and values; see ``Store`` in csrc/stack.h."""

    _fields_ = [
        ("keys", c_void_p), ("values", c_void_p), ("rows", c_int), ("slots", c_int),
        ("lengths", c_void_p),
    ]  # fmt: skip


class Rules(ctypes.Structure):
    """Limits on all choices; see ``Rules`` in csrc/choose.h."""

    _fields_ = [
        ("pad", c_int64), ("unknown", c_int64), ("end", c_int64), ("unknown_penalty", c_float),
        ("temperature", c_float), ("suppressed", c_void_p), ("num_suppressed", c_int),
    ]  # fmt: skip


class Choices(ctypes.Structure):
    """Limits on each choice, and what is chosen; see ``Choices`` in csrc/choose.h."""

    _fields_ = [
        ("limits", c_void_p), ("forced", c_void_p), ("drafted", c_void_p), ("best", c_void_p),
        ("score", c_void_p), ("drafted_score", c_void_p), ("drafted_rank", c_void_p),
        ("normalised", c_int),
    ]  # fmt: skip


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "paradec_lanes": (c_int, []),
    "paradec_stack_new": (c_void_p, [c_int, c_int, c_int, c_float, c_int]),
    "paradec_stack_free": (None, [c_void_p]),
    "paradec_stack_tables": (
        c_int, [c_void_p, c_void_p, c_int, c_float, c_void_p, c_int]
    ),
    "paradec_stack_layer": (None, [c_void_p, c_int, c_int, c_int]),
    "paradec_stack_map": (
        c_int, [c_void_p, c_int, c_int, c_void_p, c_void_p, c_int, c_int, c_int]
    ),
    "paradec_stack_norm": (c_int, [c_void_p, c_int, c_int, c_void_p, c_void_p, c_float]),
    "paradec_map_new": (c_void_p, [c_void_p, c_void_p, c_int, c_int, c_int]),
    "paradec_map_free": (None, [c_void_p]),
    "paradec_workspace_new": (c_void_p, []),
    "paradec_workspace_free": (None, [c_void_p]),
    "paradec_map": (c_int, [c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p]),
    "paradec_pass": (
        c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]
    ),
    "paradec_source": (
        c_int,
        [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p, c_void_p],
    ),
    "paradec_choose": (
        c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p]
    ),
}  # fmt: skip


@functools.cache
def library() -> Any:
    """Return the library for this CPU; it is built when it is first needed.

    Raises:
        NativeUnavailable: there is no compiler, or what it made does not load.
    """
    name, flags = target()
    try:
        found = ctypes.CDLL(str(_build(name, flags)))
        for function, (result, arguments) in _SIGNATURES.items():
            getattr(found, function).restype = result
            getattr(found, function).argtypes = arguments
    except (OSError, AttributeError, subprocess.CalledProcessError) as error:
        raise NativeUnavailable(str(error).splitlines()[0]) from error
    return found


def target() -> tuple[str, tuple[str, ...]]:
    """Return the best instruction set that this CPU has, and the compiler's flags for it."""
    has: set[str] = set()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                has = set(line.split(":", 1)[1].split())
                break
    except OSError:
        pass
    return next((name, flags) for name, flags, needs in TARGETS if needs <= has)


def _build(name: str, flags: tuple[str, ...]) -> Path:
    """Compile the sources, unless the same ones were compiled before; return the library's path."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise NativeUnavailable("no C++ compiler (c++, g++)")
    digest = hashlib.sha256(" ".join((compiler, *FLAGS, *flags)).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "fairseq_paradec" / "native"
    built = folder / f"{name}-{digest.hexdigest()[:16]}.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = Path(temporary) / "library.so"
            command = [compiler, *FLAGS, *flags, str(SOURCES / "native.cpp"), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True)
            made.rename(built)
    return built
