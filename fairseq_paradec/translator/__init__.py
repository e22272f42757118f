"""Text in and out: model folders, foreign models, corpora; ``Translator`` is imported on demand."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Import ``Translator``, which takes seconds to load."""
    if name != "Translator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .translator import Translator

    return Translator
