"""Which settings ``paradec lossless`` measures, from the registry of methods."""

from typing import Any

from ...registry import METHODS
from .traits import traits

# The methods without drafts in a dtype of their own, as one kind.
UNTRAINED = "jacobi"


def kinds() -> dict[str, list[str]]:
    """Return the methods of each ``--decoding`` of this command."""
    measured = [one for one in METHODS.values() if traits(one.name).exact is not None]
    drafting = [one.name for one in measured if "drafter_dtype" in one.reads]
    plain = [one.name for one in measured if one.name not in drafting]
    return {UNTRAINED: plain} | {name: [name] for name in drafting}


def variants(
    joined: bool, kind: str = UNTRAINED, drafter: str | None = None, block: int = 0
) -> list[dict[str, Any]]:
    """List the settings of methods whose exactness is measured.

    Args:
        joined: source and target share a dictionary; ``source-copy`` needs that.
        kind: one of ``kinds``.
        drafter: the drafter's checkpoint, if the model has no heads.
        block: the block size of the drafter's training.
    """
    common = {} if drafter is None else {"drafter_path": drafter}
    return [
        {"decoding": name, **common, **options}
        for name, settings in ((name, traits(name).exact) for name in kinds()[kind])
        for options in (settings(joined, block) if settings else [])
    ]
