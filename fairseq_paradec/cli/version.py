"""What ``paradec --version`` prints: versions, the engine, and where its library lies."""

import platform
from importlib import metadata

from .. import __version__
from ..engine.native import library
from ..extras import is_installed


def lines() -> list[str]:
    """Return the lines; the library is loaded, or built, as a decoder would do it."""
    engine = [f"{name}: {text}" for name, text in engine_of_here().items()]
    others = f"Python {platform.python_version()}, torch {_version('torch')}"
    return [f"paradec {__version__}", *engine, others]


def engine_of_here() -> dict[str, str]:
    """Return what computes passes on this machine: names and texts."""
    try:
        path = library.path()
    except library.NativeUnavailable as error:
        other = "torch" if is_installed("fairseq") else "none without fairseq_paradec[fairseq]"
        return {"engine": f"{other}; the native one is unavailable: {error}"}
    instructions = path.name.rsplit("-", 2)[0]
    return {"engine": f"native, instruction set {instructions}", "library": str(path)}


def _version(package: str) -> str:
    """Return a package's version, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
