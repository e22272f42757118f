"""What ``paradec --version`` prints: versions, the engine, and where its library lies."""

import platform
from importlib import metadata

from .. import __version__
from ..engine.native import library
from ..extras import is_installed


def lines() -> list[str]:
    """Return the lines; the library is loaded, or built, as a decoder would do it."""
    try:
        path = library.path()
        instructions = path.name.rsplit("-", 2)[0]
        engine = [f"engine: native, instruction set {instructions}", f"library: {path}"]
    except library.NativeUnavailable as error:
        other = "torch" if is_installed("fairseq") else "none without fairseq_paradec[fairseq]"
        engine = [f"engine: {other}; the native one is unavailable: {error}"]
    others = f"Python {platform.python_version()}, torch {_version('torch')}"
    return [f"paradec {__version__}", *engine, others]


def _version(package: str) -> str:
    """Return a package's version, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
