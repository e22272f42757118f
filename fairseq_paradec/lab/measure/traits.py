"""What measuring commands know of a method beyond its entry in the registry, with defaults.

A method that is not named here counts as one whose passes score what they read, of sizes that are
not known, and whose default settings preset ``lossless`` measures if they promise greedy's output.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...config import OPTIONS
from ...model_checks import BLOCK_NAT, TRANSFORMER
from ...registry import HEADS, METHODS
from ..analysis import decoding_flops as flops
from ..analysis.decoding_flops import Count, Decoded

Settings = list[dict[str, Any]]
Rows = dict[str, dict[str, Any]]

#: Names of drafters' checkpoints in a demo's folder, and of flags, by the kind of drafter.
DRAFTERS = {BLOCK_NAT: "drafter", HEADS: "heads", TRANSFORMER: "assistant"}

BLOCK_SIZES = (3, 5, 8)
DRAFTED_BLOCK_SIZES = (1, 3, 5, 8, 12, 25)


@dataclass(frozen=True)
class Traits:
    """What is known of one method."""

    # counts a record's operations (``lab/analysis/decoding_flops.py``); None: they are not counted
    flops: Callable[[Decoded], Count] | None = flops.verifying
    # returns, for a block size, ``chunk``, the positions that a pass scores, and of a drafter
    # ``masks`` of its pass, or ``steps``, its passes of one token; None: passes differ, or this is
    # not known
    pass_size: Callable[[int], dict[str, int]] | None = None
    # its settings in preset ``lossless``, without ``decoding`` and ``drafter_path``, for whether
    # source and target share a dictionary, and the block size of the drafter's training (0 without
    # one); None: none
    exact: Callable[[bool, int], Settings] | None = None
    # its rows in ``paradec demo``, by label, for a block size: options without ``decoding`` and
    # ``drafter_path``; None: none
    demo: Callable[[int], Rows] | None = None
    counts_trees: bool = True  # whether ``flops`` counts drafts of trees


def traits(name: str) -> Traits:
    """Return what is known of a method."""
    if name in _TRAITS:
        return _TRAITS[name]
    return Traits(exact=_defaults) if METHODS[name].is_lossless_by_default else Traits()


def drafting(*kinds: str | None) -> list[str]:
    """Return the lossless methods for which a model drafts; only those of some kinds, if given."""
    return [
        one.name
        for one in METHODS.values()
        if "drafter_dtype" in one.reads and one.is_lossless_by_default
        if not kinds or one.drafter in kinds
    ]


# ---- settings of preset `lossless` --------------------------------------------------------------


def _defaults(joined: bool, block: int) -> Settings:
    """Return the default settings only."""
    return [{}]


def _first_guesses(joined: bool) -> list[str]:
    """Return the values of ``--jacobi-init``; ``source-copy`` needs a joined dictionary."""
    return [one for one in OPTIONS["jacobi_init"].choices if joined or one != "source-copy"]


#: The paper's own setting: equation 5, and a known length.
_EQUATION_5 = {"jacobi_stop": "unchanged", "jacobi_length": "oracle"}


def _one_block(joined: bool, block: int) -> Settings:
    """Return the settings of ``pj``."""
    variants: Settings = [{}, {"jacobi_stop": "unchanged"}, {"jacobi_length": "oracle"}]
    variants.append(_EQUATION_5)
    return [{"jacobi_init": init} | more for init in _first_guesses(joined) for more in variants]


def _blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``pgj``."""
    variants: Settings = [{}, {"jacobi_stop": "unchanged"}, _EQUATION_5]
    return [
        {"jacobi_init": init, "block_size": size} | more
        for init in _first_guesses(joined)
        for size in BLOCK_SIZES
        for more in variants
    ]


def _windows(joined: bool, block: int) -> Settings:
    """Return the settings of ``hgj``."""
    variants: Settings = [{"block_size": size, "jacobi_window": "sliding"} for size in BLOCK_SIZES]
    variants.append({"block_size": BLOCK_SIZES[-1], "hybrid_length": 10})
    return [{"jacobi_init": init} | more for init in _first_guesses(joined) for more in variants]


def _drafted_blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``gad``."""
    return [{"block_size": size} for size in DRAFTED_BLOCK_SIZES]


def _assisted_blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``assisted``."""
    blocks: Settings = [{"block_size": size} for size in (1, *BLOCK_SIZES)]
    trees: Settings = [{"block_size": 8, "draft_tree": nodes} for nodes in (1, 8, 32)]
    return [*blocks, {"adaptive_block": True}, {"draft_confidence": 0.0}, *trees]


def _long_blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``self_draft``."""
    return [{"block_size": 4}, {}, {"block_size": 32}, {"adaptive_block": True}]


def _trained_blocks(joined: bool, block: int) -> Settings:
    """Return the settings of ``blockwise``: every block size with heads."""
    return [{"block_size": size} for size in range(1, block + 1)]


# ---- rows of `paradec demo` ---------------------------------------------------------------------


def _row(label: str) -> Callable[[int], Rows]:
    """Return the row of a method with its default settings."""
    return lambda block: {label: {}}


def _block_rows(block: int) -> Rows:
    """Return the row of ``pgj``."""
    return {f"pgj block {block}": {"block_size": block}}


def _window_rows(block: int) -> Rows:
    """Return the rows of ``hgj``."""
    size = {"block_size": block}
    sliding = size | {"jacobi_window": "sliding"}
    return {f"hgj block {block}": size, f"hgj sliding {block}": sliding}


# ---- sizes of passes ----------------------------------------------------------------------------


def _one_token(block: int) -> dict[str, int]:
    """Return the size of a pass that scores the next token only."""
    return {"chunk": 1}


def _block(block: int) -> dict[str, int]:
    """Return the size of a pass that scores a block."""
    return {"chunk": block}


def _draft_and_bonus(block: int) -> dict[str, int]:
    """Return the size of a pass that scores a draft and the token after it."""
    return {"chunk": block + 1, "masks": block}


def _steps_and_bonus(block: int) -> dict[str, int]:
    """As ``_draft_and_bonus``, of a draft that was made token by token."""
    return {"chunk": block + 1, "steps": block}


_TRAITS = {
    "greedy": Traits(pass_size=_one_token, exact=_defaults),
    "pj": Traits(exact=_one_block, demo=_row("pj")),
    "pgj": Traits(pass_size=_block, exact=_blocks, demo=_block_rows),
    "hgj": Traits(pass_size=_block, exact=_windows, demo=_window_rows),
    "gad": Traits(flops.drafting, _draft_and_bonus, _drafted_blocks, _row("gad")),
    "gad_pp": Traits(flops.drafting, _draft_and_bonus, demo=_row("gad_pp top-3, 1.0")),
    "assisted": Traits(
        flops.assisting, _steps_and_bonus, _assisted_blocks, _row("assisted"), False
    ),
    "self_draft": Traits(None, exact=_long_blocks, demo=_row("self_draft")),
    "nat": Traits(flops.filling),
    "blockwise": Traits(flops.looking_ahead, exact=_trained_blocks, demo=_row("blockwise")),
    "multiword_beam": Traits(flops.searching),
    "double_token_beam": Traits(flops.searching),
    "auto_fast": Traits(None),
}
