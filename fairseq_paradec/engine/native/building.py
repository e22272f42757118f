"""The native library is built: for every instruction set in a wheel, or for this CPU.

setup.py runs this file, which imports the standard library only.
"""

import concurrent.futures
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "csrc"
FLAGS = (
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-std=c++17",
)
WIDE = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma")
DOTS = ("-mavx512vnni", "-mavx512bf16")
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma")
#: Instruction sets, the best first: name, the compiler's flags, what /proc/cpuinfo must list.
TARGETS: tuple[tuple[str, tuple[str, ...], frozenset[str]], ...] = (
    (
        "avx512-amx",
        (*WIDE, *DOTS, "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
        frozenset((*AVX512, "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")),
    ),
    ("avx512-bf16-vnni", (*WIDE, *DOTS), frozenset((*AVX512, "avx512_vnni", "avx512_bf16"))),
    ("avx512-vnni", (*WIDE, "-mavx512vnni"), frozenset((*AVX512, "avx512_vnni"))),
    ("avx512", WIDE, frozenset(AVX512)),
    ("avx2", ("-mavx2", "-mfma"), frozenset(("avx2", "fma"))),
    ("plain", (), frozenset()),
)


class NativeUnavailable(Exception):
    """The library cannot be built or loaded here; the message says why."""


def targets() -> Iterator[tuple[str, tuple[str, ...], frozenset[str]]]:
    """Yield the instruction sets of this kind of machine; see ``TARGETS``."""
    for target in TARGETS:
        if not target[2] or platform.machine() in ("x86_64", "AMD64"):
            yield target


def usable() -> list[tuple[str, tuple[str, ...]]]:
    """Return the instruction sets that this CPU has, the best first, and the compiler's flags."""
    has: set[str] = set()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                has = set(line.split(":", 1)[1].split())
                break
    except OSError:
        pass
    return [(name, flags) for name, flags, needs in targets() if needs <= has]


def build_all(folder: Path) -> None:
    """Build the library for every instruction set of this kind of machine.

    A compiler may not know the newest sets. What was built of these sources before stays, what was
    built of others goes.

    Raises:
        NativeUnavailable: none can be built.
    """
    _remove_old(folder)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        tried = [pool.submit(_built, name, flags, folder) for name, flags, _ in targets()]
    failed = [error for build in tried if (error := build.exception()) is not None]
    if len(failed) == len(tried):
        raise failed[0]


def build_for_this_cpu(folder: Path) -> None:
    """Build the library for the best instruction set of this CPU that the compiler knows.

    What was built of these sources before stays, what was built of others goes.

    Raises:
        NativeUnavailable: none can be built.
    """
    _remove_old(folder)
    failed: list[NativeUnavailable] = []
    for name, flags in usable():
        try:
            _built(name, flags, folder)
            return
        except NativeUnavailable as error:
            failed.append(error)
    raise failed[0]


def _remove_old(folder: Path) -> None:
    """Remove libraries of other sources and flags from a folder."""
    starts = tuple(start_of(name, flags) for name, flags, _ in targets())
    for old in folder.glob("*.so"):
        if not old.name.startswith(starts):
            old.unlink()


def _built(name: str, flags: tuple[str, ...], folder: Path) -> Path:
    """Return the library for an instruction set in a folder, built unless it is there."""
    there = sorted(folder.glob(f"{start_of(name, flags)}*.so"))
    return there[0] if there else build(name, flags, folder)


def build(name: str, flags: tuple[str, ...], folder: Path | None) -> Path:
    """Build the library for an instruction set; return its path in the folder.

    Its name says what it was built from, and what it contains.

    Raises:
        NativeUnavailable: there is no compiler or no folder, or the compiler fails.
    """
    if folder is None:
        raise NativeUnavailable("no home folder to keep it in (XDG_CACHE_HOME)")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise NativeUnavailable("no C++ compiler (c++, g++)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = Path(temporary) / "library.so"
            source = str(SOURCES / "native.cpp")
            command = [*compiler.split(), *FLAGS, *flags, source, "-o", str(made)]
            subprocess.run(
                command, check=True, capture_output=True, encoding="utf-8", errors="replace"
            )
            built = folder / f"{start_of(name, flags)}{hash_of(made.read_bytes())}.so"
            made.replace(built)
    except (OSError, subprocess.CalledProcessError) as error:
        said = f"{getattr(error, 'stderr', None) or ''}\n{error}".strip()
        raise NativeUnavailable(f"{compiler}: {said.splitlines()[0]}") from error
    return built


def start_of(name: str, flags: tuple[str, ...]) -> str:
    """Return how the names of an instruction set's libraries begin: sources and flags are in it."""
    content = " ".join((*FLAGS, *flags)).encode()
    for path in sorted(SOURCES.iterdir()):
        content += path.read_bytes()
    return f"{name}-{hash_of(content)}-"


def hash_of(content: bytes) -> str:
    """Return a short checksum, for the name of a library."""
    return hashlib.sha256(content).hexdigest()[:16]
