"""What ``paradec --version`` prints: versions, the engine, and where its library lies."""

import platform

from .. import __version__
from ..engine.native import library


def lines() -> list[str]:
    """Return the lines; the library is loaded, or built, as a decoder would do it."""
    import torch

    try:
        path = library.path()
        instructions = path.name.rsplit("-", 2)[0]
        engine = [f"engine: native, instruction set {instructions}", f"library: {path}"]
    except library.NativeUnavailable as error:
        engine = [f"engine: torch; the native one is unavailable: {error}"]
    others = f"Python {platform.python_version()}, torch {torch.__version__}"
    return [f"paradec {__version__}", *engine, others]
