"""The kinds of ``paradec benchmark``: which flags each takes, and their defaults.

This file imports neither torch nor fairseq: the command's parser needs it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import excludes

if TYPE_CHECKING:
    from .specs import Spec, Sweeps

TIMES, DEMO, LOSSLESS, ACCEPTANCE, QUALITY, DRAFTS = (
    "times",
    "demo",
    "lossless",
    "acceptance",
    "quality",
    "drafts",
)

#: fairseq's limits and penalties: all decoders of a comparison share them.
LIMITS = ("max_len_a", "max_len_b", "min_len", "unkpen", "temperature")

#: The folder of ``paradec demo``, in a checkout.
DEMO_DATA = Path(__file__).resolve().parents[3] / "data-bin" / "demo-small.en-de"

#: Decoders of ``times`` besides those that are always there.
DEFAULT_DECODERS = ("pgj --block-size 5", "hgj --jacobi-window sliding --block-size 5")

#: Sentences of a try-out.
SMOKE_SENTENCES = 8

_WHERE: Mapping[str, Any] = {"dtype": "fp32", "device": "cpu"}
_COUNTED: Mapping[str, Any] = {
    "sentences": None,
    "reference": [],
    "title": None,
    "out": None,
    "sweep": [],
}

#: By preset, its flags with their defaults; others are refused.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    TIMES: {
        **_COUNTED,
        **_WHERE,
        **dict.fromkeys(LIMITS),
        "decoder": DEFAULT_DECODERS,
        "subset": ["test"],
        "timed": 200,
        "rounds": 5,
        "batch_sizes": [4, 16, 64, 256],
        "threads": [1],
        "peers": (),
        "busy": False,
    },
    DEMO: {
        "path": None,
        "decoder": [],
        "sweep": ["block-size=5"],
        "sentences": 100,
        "rounds": 1,
        "threads": [1],
        "text": None,
    },
    LOSSLESS: {
        **_COUNTED,
        **_WHERE,
        "decoder": [],
        "subset": ["test"],
        "batch_sizes": [1, 64],
        "threads": [1],
    },
    ACCEPTANCE: {
        **_COUNTED,
        **_WHERE,
        **dict.fromkeys(LIMITS),
        "decoder": ["gad", "gad_pp"],
        "subset": ["valid"],
        "batch_sizes": [1],
        "threads": [],
        "smoke": False,
        "title": "Acceptance",
    },
    QUALITY: {
        "reference": [],
        "sweep": [],
        "subset": None,
        "smoke": False,
        "title": "Quality",
        "out": None,
        "flags": [],
    },
    DRAFTS: {
        "decoder": ["greedy", "self_draft"],
        "sentences": None,
        "rounds": 0,
        "threads": [1],
        "title": "Earlier translations as drafts",
        "out": None,
        "busy": False,
    },
}


@dataclass(frozen=True)
class Comparison:
    """What ``paradec benchmark`` compares; a preset without a flag has None for it."""

    argv: Sequence[str]  # the words after ``paradec``
    preset: str  # one of PRESETS
    data: str  # fairseq's data folder; of ``drafts`` a text
    path: Sequence[str]  # checkpoints, each perhaps an ensemble's with ``:`` between them
    decoder: Sequence["Spec"]
    sweep: "Sweeps"  # values of options of the decoders
    subset: Sequence[str]  # of the data
    reference: Sequence[Path]  # plain text, one file for each subset; none: that of the data
    sentences: int | None  # how many; None: all
    timed: int | None  # of them, for latency; None: all
    rounds: int  # so many, interleaved
    batch_sizes: Sequence[int]  # sentences
    # of the CPU; the first is for all but latency; none: as the process begins
    threads: Sequence[int]
    dtype: str  # of all decoders
    device: str  # ``cpu`` or ``cuda``
    limits: Mapping[str, Any]  # those of LIMITS that are given
    peers: Sequence[str]  # other engines
    busy: bool  # also while others use the machine
    smoke: bool  # whether only few sentences, and one setting of each decoder, are measured
    flags: Sequence[str]  # of fairseq-generate
    text: str | None  # of the demo: a sentence to translate as well
    title: str | None  # of the result; None: made of what is measured
    out: Path | None  # the JSON file to write; None: none


def given_or_default(preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Comparison: flags as they are given, or the preset's defaults.

    Args:
        preset: one of PRESETS.
        given: every flag of the command; None: it is not given.

    Raises:
        UsageError: a flag is given that the preset does not take.
    """
    known = {"argv": [], "preset": preset, "data": None, "path": None, **PRESETS[preset]}
    own = {name: given.get(name) for name in (*Comparison.__dataclass_fields__, *LIMITS)}
    for name, value in own.items():
        if name not in known and value not in (None, []):
            switch = value is True or isinstance(value, list | tuple)
            flag = "--" + name.replace("_", "-") if name != "flags" else "--"
            raise excludes(flag, True if switch else value, f"--preset {preset}")
    values = {name: known.get(name) if value is None else value for name, value in own.items()}
    limits = {name: values.pop(name) for name in LIMITS}
    return values | {"limits": {name: n for name, n in limits.items() if n is not None}}
