"""Which settings ``paradec lossless`` measures, from the registry of methods."""

from __future__ import annotations

from typing import Any

from ..methods.registry import METHODS

# Every method that drafts by no trained model, together.
UNTRAINED = "jacobi"


def kinds() -> dict[str, list[str]]:
    """Return what may be measured: the methods of each ``--decoding`` of this command."""
    measured = [one for one in METHODS.values() if one.exact_variants is not None]
    untrained = [one.name for one in measured if one.drafter is None]
    return {UNTRAINED: untrained} | {one.name: [one.name] for one in measured if one.drafter}


def variants(
    joined: bool, kind: str = UNTRAINED, drafter: str | None = None, block: int = 0
) -> list[dict[str, Any]]:
    """List the settings of methods whose exactness is measured.

    Args:
        joined: source and target share a dictionary; ``source-copy`` needs that.
        kind: one of ``kinds``.
        drafter: what drafts, if that is not in the model.
        block: the block size that the drafter was trained with.
    """
    common = {} if drafter is None else {"drafter_path": drafter}
    return [
        {"decoding": name, **common, **options}
        for name, settings in ((name, METHODS[name].exact_variants) for name in kinds()[kind])
        for options in (settings(joined, block) if settings else [])
    ]
