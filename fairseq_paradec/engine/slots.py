"""Slots of a cache: whether they fit into memory, and which of them a tree's path moves."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import option_error

#: Where Linux says how much memory is free, and bytes below which nobody asks.
_MEMORY, _SMALL = Path("/proc/meminfo"), 2**27


def check_memory(needed: int, rows: int) -> None:
    """Refuse a cache of so many bytes that does not fit in the memory that is free.

    Raises:
        UsageError: it does not fit. Without this the system would end the process.
    """
    if needed < _SMALL:
        return
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return  # this system does not say
    if needed > 1024 * free:
        raise option_error(
            "--batch-size",
            f"{rows} rows, whose cache takes {needed / 1e9:.1f} GB",
            f"fewer rows (also --max-tokens, --beam): {free * 1024 / 1e9:.1f} GB are free",
        )


def moves(
    starts: Sequence[int], paths: Sequence[Sequence[int]], capacity: int
) -> list[tuple[int, int, int]]:
    """Return what ``gather`` moves: a row, the slot to move to, and the slot to move from."""
    copies = []
    for row, (start, path) in enumerate(zip(starts, paths, strict=True)):
        assert list(path) == sorted(set(path)), "a path's slots ascend"
        assert not path or start <= path[0] <= path[-1] < capacity, "no slots of a tree"
        copies += [(row, to, of) for to, of in enumerate(path, start) if to != of]
    return copies
