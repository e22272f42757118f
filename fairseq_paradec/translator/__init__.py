"""Text in and out: model folders, foreign models, corpora; ``Translator`` is imported on demand."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import ``Translator`` or ``Translation``, which takes seconds to load."""
    if name not in ("Translation", "Translator"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import translator

    return getattr(translator, name)
