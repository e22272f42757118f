"""What measuring commands know of a method beyond its entry in the registry, with defaults.

A method that is not named here counts as one whose passes score what they read, of sizes that are
not known, and whose default settings preset ``lossless`` measures if they promise greedy's output.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ...config import OPTIONS
from ...model_checks import BLOCK_NAT, TRANSFORMER
from ...registry import HEADS, METHODS
from ..analysis import decoding_flops as flops
from ..analysis.decoding_flops import Count, Decoded

#: Options by name, of each setting.
Settings = Sequence[Mapping[str, Any]]

#: Names of drafters' checkpoints in a demo's folder, and of flags, by the kind of drafter.
DRAFTERS = {BLOCK_NAT: "drafter", HEADS: "heads", TRANSFORMER: "assistant"}


@dataclass(frozen=True)
class Traits:
    """What is known of one method."""

    # counts a record's operations (``lab/analysis/decoding_flops.py``); None: they are not counted
    flops: Callable[[Decoded], Count] | None = flops.verifying
    # returns, for a block size, ``chunk``, the positions that a pass scores, and of a drafter
    # ``masks`` of its pass, or ``steps``, its passes of one token; None: passes differ, or this is
    # not known
    pass_size: Callable[[int], dict[str, int]] | None = None
    # its settings in preset ``lossless``, without ``decoding`` and ``drafter_path``; None: none
    exact: Settings | None = None
    # whether it has these settings with every block size up to that of its drafter's training
    trained_blocks: bool = False
    # its rows in ``paradec demo``: options without ``decoding`` and ``drafter_path``, by label;
    # None: none
    demo: Mapping[str, Mapping[str, Any]] | None = None
    counts_trees: bool = True  # whether ``flops`` counts drafts of trees


def traits(name: str) -> Traits:
    """Return what is known of a method."""
    if name in _TRAITS:
        return _TRAITS[name]
    return Traits(exact=DEFAULTS) if METHODS[name].is_lossless_by_default else Traits()


def drafting(*kinds: str | None) -> list[str]:
    """Return the lossless methods for which a model drafts; only those of some kinds, if given."""
    return [
        method.name
        for method in METHODS.values()
        if "drafter_dtype" in method.reads and method.is_lossless_by_default
        if not kinds or method.drafter in kinds
    ]


# ---- settings of preset `lossless` --------------------------------------------------------------


def combined(*parts: Settings) -> Settings:
    """Return every combination of a setting of each part."""
    return [
        {name: value for part in chosen for name, value in part.items()}
        for chosen in product(*parts)
    ]


def blocks(*sizes: int) -> Settings:
    """Return a setting for each block size."""
    return [{"block_size": size} for size in sizes]


#: The default settings alone.
DEFAULTS: Settings = [{}]
_SIZES = (3, 5, 8)
#: Of source and target with a dictionary each, ``source-copy`` is left out.
_FIRST_GUESSES: Settings = [{"jacobi_init": init} for init in OPTIONS["jacobi_init"].choices]
_UNCHANGED, _ORACLE = {"jacobi_stop": "unchanged"}, {"jacobi_length": "oracle"}
#: The paper's own setting: equation 5, and a known length.
_EQUATION_5 = _UNCHANGED | _ORACLE
_WINDOWS: Settings = [
    *combined(blocks(*_SIZES), [{"jacobi_window": "sliding"}]),
    {"block_size": _SIZES[-1], "hybrid_length": 10},
]
_ASSISTED: Settings = [
    *blocks(1, *_SIZES),
    {"adaptive_block": True},
    {"draft_confidence": 0.0},
    *({"block_size": 8, "draft_tree": nodes} for nodes in (1, 8, 32)),
]
_SELF_DRAFT: Settings = [{"block_size": 4}, {}, {"block_size": 32}, {"adaptive_block": True}]

# ---- the methods --------------------------------------------------------------------------------

_TRAITS = {
    "greedy": Traits(pass_size=lambda block: {"chunk": 1}, exact=DEFAULTS),
    "pj": Traits(
        exact=combined(_FIRST_GUESSES, [{}, _UNCHANGED, _ORACLE, _EQUATION_5]),
        demo={"pj": {}},
    ),
    "pgj": Traits(
        pass_size=lambda block: {"chunk": block},
        exact=combined(_FIRST_GUESSES, blocks(*_SIZES), [{}, _UNCHANGED, _EQUATION_5]),
        demo={"pgj block 5": {"block_size": 5}},
    ),
    "hgj": Traits(
        pass_size=lambda block: {"chunk": block},
        exact=combined(_FIRST_GUESSES, _WINDOWS),
        demo={
            "hgj block 5": {"block_size": 5},
            "hgj sliding 5": {"block_size": 5, "jacobi_window": "sliding"},
        },
    ),
    "gad": Traits(
        flops.drafting,
        pass_size=lambda block: {"chunk": block + 1, "masks": block},
        exact=blocks(1, *_SIZES, 12, 25),
        demo={"gad": {}},
    ),
    "gad_pp": Traits(
        flops.drafting,
        pass_size=lambda block: {"chunk": block + 1, "masks": block},
        demo={"gad_pp top-3, 1.0": {}},
    ),
    "assisted": Traits(
        flops.assisting,
        pass_size=lambda block: {"chunk": block + 1, "steps": block},
        exact=_ASSISTED,
        demo={"assisted": {}},
        counts_trees=False,
    ),
    "self_draft": Traits(None, exact=_SELF_DRAFT, demo={"self_draft": {}}),
    "nat": Traits(flops.filling),
    "blockwise": Traits(
        flops.looking_ahead, exact=DEFAULTS, trained_blocks=True, demo={"blockwise": {}}
    ),
    "multiword_beam": Traits(flops.searching),
    "double_token_beam": Traits(flops.searching),
    "auto_fast": Traits(None),
}
