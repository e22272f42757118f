"""The kinds of ``paradec benchmark``: which flags each takes, and their defaults.

This file imports neither torch nor fairseq: the command's parser needs it.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cli import arguments
from ...config import flag as flag_of
from ...errors import excludes
from ..settings import flag, position
from . import CTRANSLATE2, DTYPES, PEERS

if TYPE_CHECKING:
    from .specs import Spec, Sweeps

TIMES, LOSSLESS, ACCEPTANCE, QUALITY, DRAFTS = (
    "times",
    "lossless",
    "acceptance",
    "quality",
    "drafts",
)

#: fairseq's limits and penalties: all decoders of a comparison share them.
LIMITS = ("max_len_a", "max_len_b", "min_len", "unkpen", "temperature", "no_repeat_ngram_size")

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


number, numbers = arguments.whole_number, arguments.whole_numbers


def names(text: str) -> list[str]:
    """Read an argument that is a list of names with commas between them."""
    return text.split(",")


def peers(text: str) -> tuple[str, ...]:
    """Read an argument that is a list of engines with commas between them."""
    engines = tuple(dict.fromkeys(text.split(",")))
    if not set(engines) <= set(PEERS):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {', '.join(PEERS)}, or both")
    return engines


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What ``paradec benchmark`` compares; a preset without a flag has None for it."""

    argv: Sequence[str]  # the words after ``paradec``
    flags: Sequence[str]  # of fairseq-generate
    data: str = position("DATA", "fairseq data folder; of drafts a text", nargs="?")
    preset: str = flag("what is compared", TIMES, choices=[*PRESETS])
    path: Sequence[str] = flag(
        "checkpoint whose greedy output is the yardstick, or an ensemble's with ':' between them; "
        "for acceptance and quality it may be repeated",
        action="append",
    )
    decoder: Sequence["Spec"] = flag(
        "[LABEL=]DECODING and flags of fairseq-generate in one word, for example 'hgj --block-size "
        "8' or 'student=beam --path other.pt --beam 4'; may be given often (default: "
        f"{', '.join(map(repr, DEFAULT_DECODERS))}; acceptance: gad, gad_pp; lossless: all that "
        "need no drafter; drafts: greedy, self_draft)",
        action="append",
        metavar="SPEC",
    )
    sweep: "Sweeps" = flag(
        "several values of an option, such as block-size=4,8: each decoder that reads it has all; "
        "may be repeated, for every combination",
        action="append",
        metavar="OPTION=A,B",
    )
    subset: Sequence[str] = flag(
        "of DATA, with commas (default: test; acceptance: valid)", type=names
    )
    reference: Sequence[Path] = flag(
        "plain text, one for each subset (default: DATA/raw/SUBSET.LANG if it is there; "
        "acceptance: no quality of texts)",
        type=Path,
        action="append",
    )
    sentences: int | None = flag("so many, from short to long (default: all)", type=number)
    timed: int | None = flag("of them for latency (default: 200)", type=number)
    rounds: int = flag("timed rounds (default: 5; drafts: none)", type=number)
    batch_sizes: Sequence[int] = flag(
        "throughput sweep; it ends early where no decoder gains (default: 4,16,64,256); lossless: "
        "of the compared outputs (1,64); acceptance: (1)",
        type=numbers,
    )
    threads: Sequence[int] = flag(
        "CPU threads; more than one number: latency with each, all else with the first (default: "
        "1; acceptance: as the process begins)",
        type=numbers,
    )
    dtype: str = flag("of all decoders (default: fp32)", choices=DTYPES)
    device: str = flag("(default: cpu)", choices=("cpu", "cuda"))
    max_len_a: float | None = flag("fairseq's, for all decoders", type=arguments.positive)
    max_len_b: int | None = flag("fairseq's, for all decoders", type=number)
    min_len: int | None = flag("fairseq's, for all decoders", type=number)
    unkpen: float | None = flag("fairseq's, for all decoders", type=float)
    temperature: float | None = flag("fairseq's, for all decoders", type=arguments.positive)
    no_repeat_ngram_size: int | None = flag("fairseq's, for all decoders", type=number)
    peers: Sequence[str] = flag(
        f"other engines on the same checkpoint, too: {', '.join(PEERS)}, or both with a comma "
        f"(without LIST: {CTRANSLATE2}, which is for --device cpu)",
        nargs="?",
        type=peers,
        const=(CTRANSLATE2,),
        metavar="LIST",
    )
    busy: bool = flag("measure on a busy machine too", action="store_true")
    smoke: bool = flag(
        f"a try-out of acceptance and quality: {SMOKE_SENTENCES} sentences, or one test set, and "
        "the first setting of each",
        action="store_true",
    )
    title: str | None = flag("heading of the result, on pages")
    out: Path | None = flag("FILE.json; of times FILE.md and FILE.png go beside it", type=Path)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that are given."""
        values = {name: getattr(self, name) for name in LIMITS}
        return {name: value for name, value in values.items() if value is not None}


def given_or_default(preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Comparison: flags as they are given, or the preset's defaults.

    Args:
        preset: one of PRESETS.
        given: every flag of the command; None: it is not given.

    Raises:
        UsageError: a flag is given that the preset does not take.
    """
    known = {"argv": [], "preset": preset, "data": None, "path": None, **PRESETS[preset]}
    own = {name: given.get(name) for name in Comparison.__dataclass_fields__}
    for name, value in own.items():
        if name not in known and value not in (None, []):
            switch = value is True or isinstance(value, list | tuple)
            word = flag_of(name) if name != "flags" else "--"
            raise excludes(word, True if switch else value, f"--preset {preset}")
    return {name: known.get(name) if value is None else value for name, value in own.items()}
