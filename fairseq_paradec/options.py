"""Every flag of the plugin, once: its type, default, help, range and group.

``DecodingConfig`` is the table; ``OPTIONS`` reads it. What fairseq's commands offer, what is
checked and what the docs list is made from it, and from what each method reads
(``methods/registry.py``).
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import option_error

# Who reads an option: methods that name it, every method's engine, or every method's reports.
METHOD, ENGINE, REPORT = "method", "engine", "report"


def flag(name: str) -> str:
    """Turn an option's name into the flag that a user types."""
    return "--" + name.replace("_", "-")


def _option(default: Any, help_text: str, group: str = METHOD, **more: Any) -> Any:
    """Make a field of the table; ``more`` is the rest of an Option."""
    return field(default=default, metadata={"help": help_text, "group": group, **more})


@dataclass(frozen=True)
class DecodingConfig:
    """How to decode: what the user asked for, or the defaults.

    ``methods/configure.py`` makes one from a command's options, and checks it.
    """

    decoding: str = _option("auto", "how to decode", group="")
    block_size: int = _option(
        5,
        "tokens proposed per pass and sentence; of heads, the Transformer's own next token is one "
        "of them; with an adaptive block, the most",
        least=1,
    )
    drafter_path: str | None = _option(
        None,
        "the checkpoint that drafts: a model of --arch block_nat, or heads that were trained on "
        "the model of --path, if these are not in it",
    )
    accept_topk: int = _option(
        3, "beta: accept only drafted tokens among the verifier's top beta (5 is faster)", least=1
    )
    accept_margin: float = _option(
        1.0,
        "tau: accept only drafted tokens whose log-probability (natural) is at most this far below "
        "the best one's (3.0 is faster)",
        least=0.0,
        unit="natural log",
    )
    accept_distance: int | None = _option(
        None,
        "epsilon: accept a drafted number that is at most this far from the verifier's; for "
        "dictionaries of whole numbers, as of pixels",
        least=0,
        absent="it must be the same",
    )
    min_block: int = _option(
        1,
        "l: write at least so many tokens a step, whatever the verifier says of them; costs much "
        "quality",
        least=1,
    )
    jacobi_window: str = _option(
        "block",
        "what follows a pass. block (the paper's): stay until the block is done; sliding: move on "
        "by what became final, so that each pass predicts a whole block",
        choices=("block", "sliding"),
    )
    jacobi_init: str = _option(
        "pad",
        "the first guess for a position. pad: <pad>, which is always wrong; bos: the decoder's "
        "start symbol; source-copy: the source token there (needs a joined dictionary); ngram: "
        "what followed the token before it in earlier passes",
        choices=("pad", "bos", "source-copy", "ngram"),
    )
    jacobi_length: str = _option(
        "grow",
        "length of the block. grow: the source's length, doubled until the sentence ends; oracle: "
        "greedy's own output length, found outside the timer (the paper's ideal)",
        choices=("grow", "oracle"),
    )
    jacobi_stop: str = _option(
        "prefix",
        "when a block is done. prefix: all of it is final; unchanged: a pass changed none of its "
        "tokens (the paper's equation 5, for its counts)",
        choices=("prefix", "unchanged"),
    )
    hybrid_length: int | None = _option(
        None,
        "decode this many positions in blocks and the rest one by one",
        least=1,
        absent="all in blocks",
    )
    adaptive_block: bool = _option(
        False,
        "let a sentence's block be as long as its last pass accepted, and two tokens longer; with "
        "Jacobi decoding, of a sliding window",
    )
    drafter_shortlist: int | None = _option(
        None,
        "draft only tokens among so many first ones of the dictionary, which fairseq-preprocess "
        "sorts by frequency; cheaper drafts, verified as ever",
        least=1,
        absent="all",
    )
    speed_profile: str | None = _option(
        None,
        "a JSON file with what earlier runs measured on this machine; what is measured now is "
        "added",
        absent="measure anew in each run",
    )
    latency_budget_ms: float | None = _option(
        None,
        "take the decoder of the best quality whose sentences take at most so many milliseconds, "
        "fairseq's beam search and decoders that accept more among them",
        above=0.0,
        unit="milliseconds",
        absent="the fastest with greedy's output",
    )
    deduplicate_ngrams: int | None = _option(
        None,
        "drop immediate repetitions of up to this many tokens from the outputs; words written in "
        "one step do not know of each other",
        least=1,
        absent="none",
    )
    compile: bool = _option(
        False,
        "compile this plugin's passes for this machine (torch.compile; the first run of a model "
        "takes a minute or two longer, later ones find it on the disk)",
        ENGINE,
    )
    engine: str = _option(
        "torch",
        "what computes this plugin's passes: torch, or native, this plugin's own library for CPUs, "
        "which a C++ compiler builds when it is first used",
        ENGINE,
        choices=("torch", "native"),
    )
    engine_dtype: str | None = _option(
        None,
        "dtype of the weights in this plugin's passes; int8 is dynamic quantisation, on the CPU. "
        "Below fp32 the output is no longer greedy's to the last token: --audit says how often",
        ENGINE,
        choices=("fp32", "bf16", "fp16", "int8"),
        absent="the model's own",
    )
    audit: bool = _option(
        False,
        "compare every output with fairseq's own beam-1 search and report where they part",
        REPORT,
    )
    stats_file: str | None = _option(
        None, "write one JSON line per decoded sentence here: passes, tokens, scores", REPORT
    )
    trace_file: str | None = _option(
        None,
        "write one JSON line per decoded sentence here, with every pass: draft, verdict, the "
        "verifier's tokens, their log-probabilities and the runners-up",
        REPORT,
    )


@dataclass(frozen=True)
class Option:
    """One flag.

    Attributes:
        name: as a Python name.
        kind: ``int``, ``float``, ``str`` or ``bool``; a bool is a switch, False by default.
        default: None where nothing is asked for.
        help: what it does.
        group: ``METHOD``, ``ENGINE`` or ``REPORT``.
        choices: all that is allowed, if that is a list.
        least: the smallest allowed number.
        above: all allowed numbers are above this.
        unit: of a number.
        absent: what a default of None means.
    """

    name: str
    kind: type
    default: Any
    help: str
    group: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    unit: str = ""
    absent: str = ""

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        if self.choices:
            return ", ".join(self.choices)
        number = "a whole number" if self.kind is int else "a number"
        unit = f" ({self.unit})" if self.unit else ""
        if self.above is not None:
            return f"{number} above {self.above:g}{unit}"
        return f"{number} from {self.least:g} up{unit}" if self.least is not None else ""

    def check(self, value: Any) -> None:
        """Check a value that was given.

        Raises:
            UsageError: it is none of the choices, or out of range.
        """
        right = True
        if self.choices:
            right = value in self.choices
        elif self.kind in (int, float):
            kinds = (int,) if self.kind is int else (int, float)
            right = type(value) in kinds
            right = right and (self.least is None or value >= self.least)
            right = right and (self.above is None or value > self.above)
        if not right:
            raise option_error(flag(self.name), value, self.allowed)


def _read_table() -> dict[str, Option]:
    """Return the options by name, as ``DecodingConfig`` has them."""
    found = {}
    for name, hint in typing.get_type_hints(DecodingConfig).items():
        given = next(one for one in fields(DecodingConfig) if one.name == name)
        kinds = [t for t in typing.get_args(hint) or (hint,) if t is not types.NoneType]
        found[name] = Option(name, kinds[0], given.default, **given.metadata)
    return found


#: Every option by name; ``decoding`` itself comes first.
OPTIONS = _read_table()
METHOD_FLAGS = tuple(name for name, one in OPTIONS.items() if one.group == METHOD)
ENGINE_FLAGS = tuple(name for name, one in OPTIONS.items() if one.group == ENGINE)
REPORT_FLAGS = tuple(name for name, one in OPTIONS.items() if one.group == REPORT)
#: Flags of every method.
COMMON_FLAGS = (*REPORT_FLAGS, *ENGINE_FLAGS)
#: False where nobody asked for them.
SWITCHES = tuple(name for name, one in OPTIONS.items() if one.kind is bool)


def check_values(given: Mapping[str, Any]) -> None:
    """Check what was given for each option, and which options go together.

    Raises:
        UsageError: a value is wrong, contradicts another one, or names no file that can be written.
    """
    for name, value in given.items():
        OPTIONS[name].check(value)
    if given.get("engine") == "native":
        for name, others in (("compile", (True,)), ("engine_dtype", ("fp16",))):
            if given.get(name) in others:
                raise option_error(flag(name), given[name], "it without --engine native")
    if given.get("accept_topk", 1) > 1 and "accept_distance" in given:
        raise option_error(
            "--accept-distance", given["accept_distance"], "it without --accept-topk"
        )
    if given.get("latency_budget_ms"):
        for name, why in (("audit", "judge"), ("trace_file", "trace")):
            if given.get(name):
                raise option_error(
                    flag(name), given[name],
                    f"it without --latency-budget-ms, whose decoders it may not be able to {why}",
                )  # fmt: skip
    if given.get("jacobi_window") == "sliding" and given.get("jacobi_stop") == "unchanged":
        raise option_error(
            "--jacobi-stop",
            "unchanged",
            "prefix with --jacobi-window sliding, which commits tokens after every pass",
        )
    if given.get("deduplicate_ngrams") and "trace_file" in given:
        raise option_error(
            "--deduplicate-ngrams", given["deduplicate_ngrams"],
            "it without --trace-file, which shows what the model wrote",
        )  # fmt: skip
    for name in ("stats_file", "trace_file", "speed_profile"):
        if name in given:
            _check_folder(flag(name), given[name])
    paths = [os.path.abspath(given[n]) for n in ("stats_file", "trace_file") if n in given]
    if len(paths) == 2 and paths[0] == paths[1]:
        raise option_error("--trace-file", given["trace_file"], "another file than --stats-file's")


def _check_folder(name: str, path: str) -> None:
    """Refuse a path at which no file can be written; found out before decoding, not after."""
    folder = os.path.dirname(os.path.abspath(path))
    if path == "" or os.path.isdir(path):
        raise option_error(name, path, "a file, not a folder or nothing")
    if not os.path.isdir(folder):
        raise option_error(name, path, f"a file in a folder that exists; {folder} does not")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise option_error(name, path, "a file that may be written")
