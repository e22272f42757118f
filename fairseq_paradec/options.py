"""DecodingConfig: what the user asked for, checked once before anything is decoded."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from .decoding.trace import is_report
from .errors import UsageError, option_error

# Which flags each method reads. Giving one to another method is an error, never ignored.
FLAGS_OF_METHOD: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "pj": ("jacobi_init", "jacobi_stop", "jacobi_length"),
    "pgj": ("block_size", "adaptive_block", "jacobi_init", "jacobi_stop", "jacobi_window"),
    "hgj": (
        "block_size", "adaptive_block", "jacobi_init", "jacobi_stop", "jacobi_window",
        "hybrid_length",
    ),
    "gad": ("drafter_path", "block_size", "adaptive_block", "drafter_shortlist"),
    "gad_pp": (
        "drafter_path", "block_size", "adaptive_block", "drafter_shortlist", "accept_topk",
        "accept_margin",
    ),
    "nat": ("block_size",),
    "blockwise": (
        "drafter_path", "block_size", "adaptive_block", "drafter_shortlist", "accept_topk",
        "accept_distance", "min_block",
    ),
    "multiword_beam": ("deduplicate_ngrams",),
    "double_token_beam": ("deduplicate_ngrams",),
    "auto_fast": ("drafter_path", "speed_profile", "latency_budget_ms"),
}  # fmt: skip
# Methods that search with fairseq's --beam; all others are greedy.
BEAM_DECODINGS = ("multiword_beam", "double_token_beam")
# Methods whose output is no greedy search's, so that there is nothing to audit it by.
UNAUDITED = ("nat", *BEAM_DECODINGS)
# Methods whose block size is by default that of their drafter's training.
TRAINED_BLOCKS = ("gad", "gad_pp", "nat", "blockwise")
# Decoded by fairseq's own search, untouched.
STOCK_DECODINGS = ("auto", "beam")
# A method's defaults, where they are not DecodingConfig's.
DEFAULTS_OF_METHOD: dict[str, dict[str, Any]] = {"blockwise": {"accept_topk": 1}}
DECODINGS = (*STOCK_DECODINGS, *FLAGS_OF_METHOD)
METHOD_FLAGS = tuple(dict.fromkeys(f for flags in FLAGS_OF_METHOD.values() for f in flags))
REPORT_FLAGS = ("audit", "stats_file", "trace_file")
# How a method's passes are computed; for all methods of this package.
ENGINE_FLAGS = ("compile", "engine_dtype")
# Flags of this package's methods, whichever it is.
COMMON_FLAGS = (*REPORT_FLAGS, *ENGINE_FLAGS)
# Flags for the checkpoint's own way, where it has one that reads them.
FLAGS_OF_AUTO = ("block_size", *COMMON_FLAGS)
# False where nobody asked for them.
SWITCHES = ("adaptive_block", "compile", "audit")

CHOICES: dict[str, tuple[str, ...]] = {
    "jacobi_init": ("pad", "bos", "source-copy", "ngram"),
    "jacobi_stop": ("prefix", "unchanged"),
    "jacobi_length": ("grow", "oracle"),
    "jacobi_window": ("block", "sliding"),
    "engine_dtype": ("fp32", "bf16", "fp16", "int8"),
}


@dataclass(frozen=True)
class DecodingConfig:
    """How to decode.

    Attributes:
        decoding: the method's name, ``--decoding``.
        block_size: tokens proposed per pass and row; with a drafter, by default as it was trained.
        drafter_path: the drafter's checkpoint.
        accept_topk: beta, of GAD++ and blockwise decoding: fewer tokens than this may score higher
            than a drafted one.
        accept_margin: tau, of GAD++: how far below the best a drafted one may be, natural log.
        accept_distance: epsilon, of blockwise decoding: how far a drafted number may be from the
            verifier's; None: tokens are no numbers, and must be equal.
        min_block: l, of blockwise decoding: how many tokens a step writes at least.
        jacobi_window: ``block`` or ``sliding``.
        jacobi_init: the first guess for a position: ``pad``, ``bos``, ``source-copy``, ``ngram``.
        jacobi_length: of ``pj``'s one block: ``grow`` or ``oracle``.
        jacobi_stop: when a block is done: ``prefix`` or ``unchanged``.
        hybrid_length: positions that ``hgj`` decodes in blocks; None means all.
        adaptive_block: draft as many tokens as a row's recent passes accepted, and a few more, at
            most ``block_size``.
        drafter_shortlist: draft only tokens among so many first ones of the dictionary.
        speed_profile: of ``auto_fast``: a file with what it measured before, and is to keep.
        latency_budget_ms: of ``auto_fast``: milliseconds that a sentence may take.
        deduplicate_ngrams: drop immediate repetitions of up to so many tokens from the outputs.
        compile: run the passes as torch.compile makes them.
        engine_dtype: of the weights in this package's passes; None: the model's own.
        audit: compare every output with fairseq's own beam-1 search.
        stats_file: where to write one JSON line per sentence, or None.
        trace_file: the same with every pass in it, or None.
    """

    decoding: str = "auto"
    block_size: int = 5
    drafter_path: str | None = None
    accept_topk: int = 3
    accept_margin: float = 1.0
    accept_distance: int | None = None
    min_block: int = 1
    jacobi_window: str = "block"
    jacobi_init: str = "pad"
    jacobi_length: str = "grow"
    jacobi_stop: str = "prefix"
    hybrid_length: int | None = None
    adaptive_block: bool = False
    drafter_shortlist: int | None = None
    speed_profile: str | None = None
    latency_budget_ms: float | None = None
    deduplicate_ngrams: int | None = None
    compile: bool = False
    engine_dtype: str | None = None
    audit: bool = False
    stats_file: str | None = None
    trace_file: str | None = None

    @classmethod
    def from_options(cls, *sources: Any) -> DecodingConfig:
        """Collect the plugin's options; the first source that has one wins.

        Args:
            sources: objects whose attributes are options, for example the arguments of one hub
                call and then the task's configuration. None means not given. A source that names
                another method than a later one makes that one's method flags void.

        Raises:
            UsageError: an option is wrong, or does not belong to the method.
        """
        given: dict[str, Any] = {}
        for source in sources:
            options = {f.name: getattr(source, f.name, None) for f in fields(cls)}
            named = given.get("decoding")
            if named not in (None, options["decoding"]):
                kept = () if named in STOCK_DECODINGS else COMMON_FLAGS
                options = {name: options[name] for name in kept}
            given = {name: v for name, v in options.items() if v is not None} | given
        given = {n: v for n, v in given.items() if v is not False or n not in SWITCHES}
        _check_given(given)
        return cls(**DEFAULTS_OF_METHOD.get(given.get("decoding", "auto"), {}) | given)

    def method_flags(self) -> dict[str, Any]:
        """Return what the method's own flags stand at."""
        return {name: getattr(self, name) for name in FLAGS_OF_METHOD.get(self.decoding, ())}


def flag(name: str) -> str:
    """Turn an option's name into the flag that a user types."""
    return "--" + name.replace("_", "-")


def _check_given(given: dict[str, Any]) -> None:
    """Check the options that were given, alone and together."""
    decoding = given.get("decoding", "auto")
    known = (*STOCK_DECODINGS, *FLAGS_OF_METHOD)  # read now: a method may have been added
    if decoding not in known:
        raise option_error("--decoding", decoding, ", ".join(known))
    _check_belong_to(decoding, given)
    for name, allowed in CHOICES.items():
        if name in given and given[name] not in allowed:
            raise option_error(flag(name), given[name], ", ".join(allowed))
    numbers = (
        "block_size", "hybrid_length", "accept_topk", "deduplicate_ngrams", "min_block",
        "drafter_shortlist",
    )  # fmt: skip
    for name, least in (*((number, 1) for number in numbers), ("accept_distance", 0)):
        value = given.get(name)
        if value is not None and (type(value) is not int or value < least):
            raise option_error(flag(name), value, f"a whole number from {least} up")
    if given.get("accept_topk", 1) > 1 and "accept_distance" in given:
        raise option_error(
            "--accept-distance", given["accept_distance"], "it without --accept-topk"
        )
    margin = given.get("accept_margin", 0.0)
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not margin >= 0:
        raise option_error("--accept-margin", margin, "a number from 0 up (natural log)")
    budget = given.get("latency_budget_ms", 1.0)
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0:
        raise option_error("--latency-budget-ms", budget, "a number above 0 (milliseconds)")
    if "adaptive_block" in given and decoding in ("pgj", "hgj"):
        if given.get("jacobi_window") != "sliding":
            raise option_error(
                "--adaptive-block", True, f"it with --decoding {decoding} --jacobi-window sliding"
            )
    if decoding in ("gad", "gad_pp") and not given.get("drafter_path"):
        raise option_error(
            "--drafter-path",
            given.get("drafter_path"),
            f"a checkpoint of --arch block_nat, which --decoding {decoding} needs",
        )
    if given.get("latency_budget_ms"):
        for name, why in (("audit", "judge"), ("trace_file", "trace")):
            if given.get(name):
                raise option_error(
                    flag(name), given[name],
                    f"it without --latency-budget-ms, whose decoders it may not be able to {why}",
                )  # fmt: skip
    if decoding in UNAUDITED and given.get("audit"):
        raise option_error(
            "--audit", True, f"it with a --decoding that verifies; {decoding} does not"
        )
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
    for name in ("stats_file", "trace_file"):
        if name in given:
            _check_writable(flag(name), given[name])
    if "speed_profile" in given:
        _check_folder("--speed-profile", given["speed_profile"])
    paths = [os.path.abspath(given[n]) for n in ("stats_file", "trace_file") if n in given]
    if len(paths) == 2 and paths[0] == paths[1]:
        raise option_error("--trace-file", given["trace_file"], "another file than --stats-file's")


def _check_belong_to(decoding: str, given: dict[str, Any]) -> None:
    """Refuse options that the chosen method would ignore."""
    belong = (*FLAGS_OF_METHOD.get(decoding, ()), *COMMON_FLAGS)
    if decoding in STOCK_DECODINGS:
        belong = FLAGS_OF_AUTO if decoding == "auto" else ()
    for name in (*METHOD_FLAGS, *COMMON_FLAGS):
        if name in given and name not in belong:
            users = [m for m, names in FLAGS_OF_METHOD.items() if name in (*names, *COMMON_FLAGS)]
            raise UsageError(
                f"{flag(name)}: got {given[name]!r}, which --decoding {decoding} does not use; "
                f"allowed with --decoding {', '.join(users)}"
            )


def _check_writable(name: str, path: str) -> None:
    """Find out before decoding, not after, that a report cannot be written."""
    _check_folder(name, path)
    if not is_report(path):
        raise option_error(name, path, "a new file, or an earlier report; this holds other data")


def _check_folder(name: str, path: str) -> None:
    """Refuse a path at which no file can be written."""
    folder = os.path.dirname(os.path.abspath(path))
    if path == "" or os.path.isdir(path):
        raise option_error(name, path, "a file, not a folder or nothing")
    if not os.path.isdir(folder):
        raise option_error(name, path, f"a file in a folder that exists; {folder} does not")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise option_error(name, path, "a file that may be written")


# fairseq's generation options that a greedy method cannot honour, and their idle values.
_REFUSED = {
    "nbest": (1, "one output per sentence (--nbest 1)"),
    "sampling": (False, "no sampling"),
    "constraints": (None, "no constraints"),
    "lm_path": (None, "no language model"),
    "no_repeat_ngram_size": (0, "0"),
    "print_alignment": (None, "no alignment"),
    "replace_unk": (None, "no --replace-unk, which needs an alignment"),
    "match_source_len": (False, "no --match-source-len"),
    "diverse_beam_groups": (-1, "no diverse beam search"),
    "diversity_rate": (-1.0, "no diverse beam search"),
    "retain_dropout": (False, "no dropout while decoding"),
    "score_reference": (False, "no scoring of references"),
    "prefix_allowed_tokens_fn": (None, "no prefix_allowed_tokens_fn"),
    "lm_model": (None, "no language model"),
    "seq_gen_cls": (None, "no generator class of your own"),
}


def check_fairseq_options(config: DecodingConfig, options: dict[str, Any]) -> None:
    """Refuse what fairseq's search can do and a greedy method cannot.

    Args:
        config: how to decode.
        options: fairseq's generation options by name.

    Raises:
        UsageError: one of them is set.
    """
    decoding = config.decoding
    for name, (idle, allowed) in _REFUSED.items():
        value = options.get(name)
        off = not value or (isinstance(value, (int, float)) and value < 0)
        if name == "nbest" and decoding in BEAM_DECODINGS:
            continue
        if not off and value != idle:
            raise UsageError(
                f"{flag(name)}: got {value!r}, which --decoding {decoding} cannot honour; "
                f"allowed: {allowed}, or --decoding beam"
            )
    # fairseq's default is 5, so a 5 may mean that nothing was said.
    beam = options.get("beam")
    if decoding in BEAM_DECODINGS or config.latency_budget_ms is not None:
        if beam is not None and beam < 1:
            raise option_error("--beam", beam, "a whole number from 1 up")
    elif beam not in (None, 1, 5):
        allowed = f"1 with --decoding {decoding}, which is greedy"
        if decoding == "auto_fast":
            allowed += ", or a --latency-budget-ms"
        raise option_error("--beam", beam, allowed)
    temperature = options.get("temperature")
    if temperature is not None and not temperature > 0:
        raise option_error("--temperature", temperature, "a number above 0")
