"""Settings of the methods that auto_fast tries.

Each function returns options of its method, without ``decoding`` and ``drafter_path``.
"""

from __future__ import annotations

from typing import Any

Settings = list[dict[str, Any]]

# Words in a drafter's shortlist; it saves little for a vocabulary under twice this.
SHORTLIST = 2000


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
