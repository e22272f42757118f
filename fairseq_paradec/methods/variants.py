"""Settings of the methods: those of ``paradec lossless``, and the candidates of auto_fast.

Each function returns options of its method, without ``decoding`` and ``drafter_path``.
"""

from __future__ import annotations

from typing import Any

from ..options import OPTIONS

Settings = list[dict[str, Any]]

BLOCK_SIZES = (3, 5, 8)
DRAFTED_BLOCK_SIZES = (1, 3, 5, 8, 12, 25)
# Words in a drafter's shortlist; it saves little for a vocabulary under twice this.
SHORTLIST = 2000


# ---- settings of `paradec lossless` -------------------------------------------------------------


def defaults(joined: bool, block: int) -> Settings:
    """Return the default settings only.

    Args:
        joined: source and target share a dictionary.
        block: the block size of the drafter's training; 0 without a drafter.
    """
    return [{}]


def first_guesses(joined: bool) -> list[str]:
    """Return the values of ``--jacobi-init``; ``source-copy`` needs a joined dictionary."""
    return [one for one in OPTIONS["jacobi_init"].choices if joined or one != "source-copy"]


def one_block(joined: bool, block: int) -> Settings:
    """Return the settings of ``pj``; see ``defaults``."""
    variants: Settings = [{}, {"jacobi_stop": "unchanged"}, {"jacobi_length": "oracle"}]
    return [{"jacobi_init": init} | more for init in first_guesses(joined) for more in variants]


def blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``pgj``; see ``defaults``."""
    variants: Settings = [{}, {"jacobi_stop": "unchanged"}]
    return [
        {"jacobi_init": init, "block_size": size} | more
        for init in first_guesses(joined)
        for size in BLOCK_SIZES
        for more in variants
    ]


def windows(joined: bool, block: int) -> Settings:
    """Return the settings of ``hgj``; see ``defaults``."""
    variants: Settings = [{"block_size": size, "jacobi_window": "sliding"} for size in BLOCK_SIZES]
    variants.append({"block_size": BLOCK_SIZES[-1], "hybrid_length": 10})
    return [{"jacobi_init": init} | more for init in first_guesses(joined) for more in variants]


def drafted_blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``gad``; see ``defaults``."""
    return [{"block_size": size} for size in DRAFTED_BLOCK_SIZES]


def assisted_blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``assisted``; see ``defaults``."""
    blocks: Settings = [{"block_size": size} for size in (1, *BLOCK_SIZES)]
    trees: Settings = [{"block_size": 8, "draft_tree": nodes} for nodes in (1, 8, 32)]
    return [*blocks, {"adaptive_block": True}, {"draft_confidence": 0.0}, *trees]


def long_blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``self_draft``; see ``defaults``."""
    return [{"block_size": 4}, {}, {"block_size": 32}, {"adaptive_block": True}]


def trained_blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``blockwise``: every block size with heads; see ``defaults``."""
    return [{"block_size": size} for size in range(1, block + 1)]


# ---- candidates of auto_fast --------------------------------------------------------------------


def plain(block: int, vocabulary: int) -> Settings:
    """Return the default settings only.

    Args:
        block: the block size of the drafter's training; 0 without a drafter.
        vocabulary: the target dictionary's size.
    """
    return [{}]


def sliding_windows(block: int, vocabulary: int) -> Settings:
    """Return the candidates of ``hgj``; see ``plain``."""
    sliding = {"jacobi_window": "sliding"}
    blocks: Settings = [
        {"block_size": 3}, {"block_size": 5}, {"block_size": 5, "adaptive_block": True},
    ]  # fmt: skip
    return [block | sliding for block in blocks]


def drafts(block: int, vocabulary: int) -> Settings:
    """Return the candidates of a lossless method with a drafter; see ``plain``."""
    whole = {"block_size": block}
    settings: Settings = [whole]
    if 2 <= block // 2 < block:
        settings.append({"block_size": block // 2})
    settings.append(whole | {"adaptive_block": True})
    if vocabulary > 2 * SHORTLIST:
        settings.append(whole | {"adaptive_block": True, "drafter_shortlist": SHORTLIST})
    return settings


def assists(block: int, vocabulary: int) -> Settings:
    """Return the candidates of ``assisted``; see ``plain``."""
    sizes: Settings = [{"block_size": size} for size in (4, 8)]
    if vocabulary > 2 * SHORTLIST:
        sizes.append({"drafter_shortlist": SHORTLIST})
    return sizes


def relaxed_drafts(block: int, vocabulary: int) -> Settings:
    """Return the candidates of ``gad_pp``, a stricter and a faster one; see ``plain``."""
    rules = ((3, 1.0), (5, 3.0))
    return [{"block_size": block, "accept_topk": k, "accept_margin": tau} for k, tau in rules]
