"""Settings of the methods: those whose exactness is counted, and those that auto_fast compares.

Each function returns options of its method, without ``decoding`` and ``drafter_path``.
"""

from __future__ import annotations

from typing import Any

from ..options import OPTIONS

Settings = list[dict[str, Any]]

BLOCK_SIZES = (3, 5, 8)
DRAFTED_BLOCK_SIZES = (1, 3, 5, 8, 12, 25)
# A drafter's logits over fewer words than twice this are cheap anyway.
SHORTLIST = 2000


# ---- whose exactness `paradec lossless` counts --------------------------------------------------


def defaults(joined: bool, block: int) -> Settings:
    """Return the defaults alone.

    Args:
        joined: source and target share a dictionary.
        block: the block size that the drafter was trained with; 0 without one.
    """
    return [{}]


def first_guesses(joined: bool) -> list[str]:
    """Return the values of ``--jacobi-init``; ``source-copy`` needs a joined dictionary."""
    return [one for one in OPTIONS["jacobi_init"].choices if joined or one != "source-copy"]


def one_block(joined: bool, block: int) -> Settings:
    """Return ``pj``'s; see ``defaults``."""
    ways: Settings = [{}, {"jacobi_stop": "unchanged"}, {"jacobi_length": "oracle"}]
    return [{"jacobi_init": init} | way for init in first_guesses(joined) for way in ways]


def blocks(joined: bool, block: int) -> Settings:
    """Return ``pgj``'s; see ``defaults``."""
    ways: Settings = [{}, {"jacobi_stop": "unchanged"}]
    return [
        {"jacobi_init": init, "block_size": size} | way
        for init in first_guesses(joined)
        for size in BLOCK_SIZES
        for way in ways
    ]


def windows(joined: bool, block: int) -> Settings:
    """Return ``hgj``'s; see ``defaults``."""
    ways: Settings = [{"block_size": size, "jacobi_window": "sliding"} for size in BLOCK_SIZES]
    ways.append({"block_size": BLOCK_SIZES[-1], "hybrid_length": 10})
    return [{"jacobi_init": init} | way for init in first_guesses(joined) for way in ways]


def drafted_blocks(joined: bool, block: int) -> Settings:
    """Return ``gad``'s; see ``defaults``."""
    return [{"block_size": size} for size in DRAFTED_BLOCK_SIZES]


def trained_blocks(joined: bool, block: int) -> Settings:
    """Return ``blockwise``'s: every block size there are heads for; see ``defaults``."""
    return [{"block_size": size} for size in range(1, block + 1)]


# ---- what auto_fast compares --------------------------------------------------------------------


def plain(block: int, vocabulary: int) -> Settings:
    """Return the defaults alone.

    Args:
        block: the block size that the drafter was trained with; 0 without one.
        vocabulary: the target dictionary's size.
    """
    return [{}]


def sliding_windows(block: int, vocabulary: int) -> Settings:
    """Return ``hgj``'s; see ``plain``."""
    sliding = {"jacobi_window": "sliding"}
    blocks: Settings = [
        {"block_size": 3}, {"block_size": 5}, {"block_size": 5, "adaptive_block": True},
    ]  # fmt: skip
    return [block | sliding for block in blocks]


def drafts(block: int, vocabulary: int) -> Settings:
    """Return those of a method with a drafter that keeps greedy's output; see ``plain``."""
    whole = {"block_size": block}
    found: Settings = [whole]
    if 2 <= block // 2 < block:
        found.append({"block_size": block // 2})
    found.append(whole | {"adaptive_block": True})
    if vocabulary > 2 * SHORTLIST:
        found.append(whole | {"adaptive_block": True, "drafter_shortlist": SHORTLIST})
    return found


def relaxed_drafts(block: int, vocabulary: int) -> Settings:
    """Return ``gad_pp``'s, for quality and for speed; see ``plain``."""
    rules = ((3, 1.0), (5, 3.0))
    return [{"block_size": block, "accept_topk": k, "accept_margin": tau} for k, tau in rules]
