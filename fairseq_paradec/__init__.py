"""Parallel decoding of translations as a fairseq plugin.

The import needs neither torch nor fairseq. As soon as fairseq is imported, before or after this
package, the fixes of ``compat`` are applied, and fairseq's task ``translation`` is replaced by the
plugin's, so that the plugin's flags work in every fairseq command without ``--task``. fairseq
imports this package for ``--user-dir fairseq_paradec``.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from . import extras
from .arrival import uncollected, when_fairseq_is_there
from .forks import computing

if TYPE_CHECKING:
    from .batch import Batch, Hooks
    from .config import DecodingConfig
    from .decoding.loop import Drafter, Proposal, Verdict
    from .engine.scorers import Scorer
    from .engine.settings import Engine
    from .errors import UsageError
    from .methods.base import Decoder, ParallelDecoder
    from .methods.build import build_decoder
    from .methods.configure import configure
    from .registry import Method
    from .row import Row
    from .token_rules import TokenRules
    from .translator.translator import Translator

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Decoder",
    "DecodingConfig",
    "Drafter",
    "Engine",
    "Hooks",
    "Method",
    "ParallelDecoder",
    "Proposal",
    "Row",
    "Scorer",
    "TokenRules",
    "Translator",
    "UsageError",
    "Verdict",
    "build_decoder",
    "configure",
    "load",
    "register",
]

# Public names by module, imported when they are asked for.
_PUBLIC = {
    "Batch": "batch",
    "Hooks": "batch",
    "DecodingConfig": "config",
    "Method": "registry",
    "UsageError": "errors",
    "Decoder": "methods.base",
    "Drafter": "decoding.loop",
    "Engine": "engine.settings",
    "ParallelDecoder": "methods.base",
    "Proposal": "decoding.loop",
    "Row": "row",
    "Scorer": "engine.scorers",
    "TokenRules": "token_rules",
    "Translator": "translator.translator",
    "Verdict": "decoding.loop",
    "build_decoder": "methods.build",
    "configure": "methods.configure",
}


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)


def register(method: "Method | None" = None) -> None:
    """Register tasks, models and criterions with fairseq, with the fixes; idempotent.

    Args:
        method: a ``--decoding`` of your own, which all commands and checks know from then on.

    Raises:
        UsageError: fairseq is not installed.
        ValueError: a method of this name is there.
    """
    with extras.named():
        import fairseq  # noqa: F401  (whose import does it: see the end)

    if method is not None:
        from . import registry

        registry.register(method)


def _register() -> None:
    """Apply the fixes, which come first, and import what registers itself."""
    import fairseq  # noqa: F401  (another thread may be importing it)

    with uncollected():
        from .plugin import compat

        compat.apply()
        from .images import image_transformer, super_resolution  # noqa: F401
        from .plugin import encoders, models, tasks  # noqa: F401
        from .training import criterions  # noqa: F401


@computing()
def load(
    folder: str | os.PathLike[str],
    device: str = "cpu",
    source: str | None = None,
    target: str | None = None,
) -> "Translator":
    """Load a model folder: ``load(folder).translate(["A dog runs."])``.

    Args:
        folder: a folder that ``paradec pack`` or ``paradec import`` made, or the name of a model on
            Hugging Face's hub, such as ``Helsinki-NLP/opus-mt-en-de``.
        device: ``cpu`` or ``cuda``.
        source: the source language of a model of the hub that has several.
        target: its target language.

    Raises:
        UsageError: it is no model folder, or its files do not fit each other; or a model of the hub
            cannot be fetched.
    """
    from .errors import option_error

    if not isinstance(folder, (str, os.PathLike)):
        raise option_error("load()", folder, "the path of a model folder")
    with uncollected():
        from .translator.hub import folder_of
        from .translator.translator import Translator

        return Translator(folder_of(folder, source, target, "load()"), device=device)


when_fairseq_is_there(_register)
