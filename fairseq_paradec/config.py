"""The table of the plugin's flags: type, default, help, range and group of each.

``DecodingConfig`` is the table; ``OPTIONS`` reads it. The flags of fairseq's commands, the checks
and the docs are made from it and from the options that each method reads (``registry.py``).
"""

import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import excludes, option_error

#: The dtypes that drafts can have.
DRAFTER_DTYPES = ("fp32", "bf16", "int8", "int4")
#: No number of an option is larger: C++ counts with 32 bits.
LARGEST = (1 << 31) - 1

# Groups of options: read by methods that name them, by every method's engine, by its reports; rules
# of the search that fairseq's has not, and what they mean, which is no flag; and those of fairseq's
# search, which are fairseq's own flags.
METHOD, ENGINE, REPORT = "method", "engine", "report"
RULE, MEANING, SEARCH = "rule", "meaning", "search"


def flag(name: str) -> str:
    """Return the flag of an option: ``block_size`` -> ``--block-size``."""
    return "--" + name.replace("_", "-")


def _option(default: Any, help_text: str, group: str = METHOD, **more: Any) -> Any:
    """Make a field of the table; ``more`` is the rest of an Option."""
    return field(default=default, metadata={"help": help_text, "group": group, **more})


@dataclass(frozen=True)
class DecodingConfig:
    """The options of decoding: the user's, or the defaults.

    ``methods/configure.py`` makes one from a command's options or Python's keywords, checks it, and
    gives it the method's own defaults.

    Raises:
        UsageError: a value has another type than its option, or is out of range.
    """

    decoding: str = _option("auto", "how to decode", group="")
    block_size: int = _option(
        5,
        "tokens proposed per pass and sentence; for heads this includes the Transformer's own next "
        "token; with an adaptive block, the largest number; with a beam, steps of a draft, by "
        "default as many as pay",
        least=1,
    )
    drafter_path: str | None = _option(
        None,
        "the drafter's checkpoint: a model of --arch block_nat; for assisted any Transformer with "
        "the same dictionaries; for blockwise heads that were trained on the model of --path, "
        "unless that model has its own heads",
    )
    draft_confidence: float = _option(
        0.0,
        "end a draft once the drafter's probability of the whole draft is below this; 0: never, "
        "the default with --draft-tree",
        least=0.0,
        most=1.0,
    )
    draft_tree: int | None = _option(
        None,
        "draft a tree of at most this many tokens: several continuations, the likeliest by the "
        "drafter's own probabilities, in one verifying pass (24 suits single sentences)",
        least=1,
        absent="one continuation",
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
        endless=True,
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
        "l: write at least this many tokens per step, even if the verifier rejects them; costs "
        "much quality",
        least=1,
    )
    jacobi_window: str = _option(
        "block",
        "when the block moves. block (the paper's): when all of it is done; sliding: after every "
        "pass, by the tokens that became final, so that each pass predicts a whole block",
        choices=("block", "sliding"),
    )
    jacobi_init: str = _option(
        "pad",
        "the first guess for a position. pad: <pad>, which is always wrong; bos: the decoder's "
        "start symbol; source-copy: the source token at this position (needs a joined dictionary); "
        "ngram: the token that followed the previous token in earlier passes",
        choices=("pad", "bos", "source-copy", "ngram"),
    )
    jacobi_length: str = _option(
        "grow",
        "what is known of the target's length. grow: nothing; pj's block is as long as the source, "
        "and doubled until the sentence ends; oracle: greedy's own output length, found outside "
        "the timer (the paper's ideal)",
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
        "decode this many positions in blocks and the later ones one by one",
        least=1,
        absent="all in blocks",
    )
    adaptive_block: bool = _option(
        False,
        "set a sentence's block size to the tokens that its last pass accepted, plus two; for "
        "Jacobi decoding only with a sliding window",
    )
    drafter_shortlist: int | None = _option(
        None,
        "draft only from this many first tokens of the dictionary, which fairseq-preprocess sorts "
        "by frequency; drafts are cheaper, and verification is the same",
        least=1,
        absent="all",
    )
    drafter_dtype: str | None = _option(
        None,
        "dtype of the weights in a drafter's passes and in heads. Drafts differ by rounding; an "
        "exact decoder's output does not",
        choices=DRAFTER_DTYPES,
        absent="where passes are native int8, of assisted, and of self_draft for int8, int4; else "
        "that of the verifier",
    )
    speed_profile: str | None = _option(
        None,
        "a JSON file with the measurements of earlier runs on this machine; new measurements are "
        "added",
        absent="measure in each run",
    )
    latency_budget_ms: float | None = _option(
        None,
        "use the decoder of the best quality that takes at most this many milliseconds per "
        "sentence; fairseq's beam search and relaxed decoders are candidates too",
        above=0.0,
        unit="milliseconds",
        absent="the fastest with greedy's output",
    )
    deduplicate_ngrams: int | None = _option(
        None,
        "drop immediate repetitions of up to this many tokens from the outputs; words of one step "
        "are predicted independently and may repeat",
        least=1,
        absent="none",
    )
    length_formula: str = _option(
        "fairseq",
        "what a beam's scores are divided by. fairseq: length**lenpen; google: "
        "((5 + length) / 6)**lenpen (Wu et al. 2016), as IBDecoder's authors",
        choices=("fairseq", "google"),
    )
    beam_stop: str = _option(
        "full",
        "when a sentence's search ends. full: --beam hypotheses are finished, as in fairseq; "
        "settled: and no live one can still rank among the best of them, as IBDecoder's authors",
        choices=("full", "settled"),
    )
    engine: str = _option(
        "auto",
        "what computes this plugin's passes: native, this plugin's own library for CPUs; torch; or "
        "auto, native where it knows the model and torch elsewhere",
        ENGINE,
        choices=("auto", "native", "torch"),
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
        "compare every output with fairseq's own search, of beam 1 or the decoder's, and report "
        "where they differ",
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
    beam: int = _option(
        5, "hypotheses of --decoding beam, or of a decoder that reads it", SEARCH, least=1
    )
    nbest: int = _option(1, "hypotheses in the output", SEARCH, least=1)
    max_len_a: float = _option(
        0.0, "an output has at most A * source tokens + B tokens", SEARCH, least=0.0
    )
    max_len_b: int = _option(200, "see --max-len-a", SEARCH, least=0)
    min_len: int = _option(1, "tokens of an output, at least", SEARCH, least=0)
    unnormalized: bool = _option(False, "rank by scores that no length divides", SEARCH)
    lenpen: float = _option(
        1.0, "exponent of the length in a beam's scores", SEARCH, least=-10.0, most=10.0
    )
    unkpen: float = _option(0.0, "subtracted from the score of <unk>", SEARCH, endless=True)
    temperature: float = _option(1.0, "divisor of the logits", SEARCH, least=1e-6)
    sampling: bool = _option(False, "draw outputs instead of searching", SEARCH)
    sampling_topk: int = _option(
        -1, "draw from this many of the likeliest tokens; -1: from all", SEARCH, least=-1
    )
    sampling_topp: float = _option(
        -1.0,
        "draw from the fewest tokens, the likeliest first, that have this probability together; "
        "-1: from all",
        SEARCH,
        least=-1.0,
        most=1.0,
    )
    seed: int | None = _option(
        None,
        "with --sampling: the same seed draws the same, whatever the batches are",
        SEARCH,
        least=0,
        absent="other draws each time",
    )
    match_source_len: bool = _option(False, "outputs as long as sources", SEARCH)
    no_repeat_ngram_size: int = _option(0, "n-grams that occur once at most", SEARCH, least=0)
    repetition_penalty: float = _option(
        1.0,
        "theta: multiply the log-probability of each token that the output has already by this; "
        "above 1 loops become rare",
        RULE,
        above=0.0,
    )
    suppress_sequences: str | None = _option(
        None,
        "tokens of the target dictionary that are never written one behind the other, with spaces "
        "between them; line ends part several such sequences",
        RULE,
        absent="none",
    )
    rules_of: str = _option(
        "fairseq",
        "whose the penalty is: of log-probabilities; with transformers of greedy's logits, with "
        "ctranslate2 of all logits",
        MEANING,
        choices=("fairseq", "transformers", "ctranslate2"),
    )
    rules_first: str | None = _option(
        None, "a token that n-grams, penalty and sequences read before all others", MEANING
    )
    rules_renormalised: bool = _option(False, "log-probabilities are of allowed tokens", MEANING)
    diverse_beam_groups: int = _option(-1, "groups of a diverse beam", SEARCH, least=-1)
    diverse_beam_strength: float = _option(0.5, "strength of its diversity", SEARCH)
    diversity_rate: float = _option(-1.0, "rate of diverse siblings", SEARCH)
    constraints: Any = _option(None, "words that outputs must have", SEARCH)
    print_alignment: Any = _option(None, "alignments", SEARCH)
    replace_unk: Any = _option(None, "replacements of <unk>", SEARCH)
    lm_path: Any = _option(None, "a language model", SEARCH)
    retain_iter_history: bool = _option(False, "keep each pass's tokens", SEARCH)
    retain_dropout: bool = _option(False, "dropout while decoding", SEARCH)
    score_reference: bool = _option(False, "score references", SEARCH)
    #: Which options the user gave; None: those with another value than the default.
    given: frozenset[str] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, option in ALL.items():
            value = getattr(self, name)
            if value is not None and value != option.default:
                option.check(value)

    def is_given(self, name: str) -> bool:
        """Return whether the user chose an option's value, rather than the defaults."""
        if self.given is not None:
            return name in self.given
        return bool(getattr(self, name) != ALL[name].default)


@dataclass(frozen=True)
class Option:
    """One flag."""

    name: str  # its Python name
    # ``int``, ``float``, ``str`` or ``bool``, a switch, False by default; ``object``: any
    kind: type
    default: Any  # its default; None: see ``absent``
    help: str  # one or two lines for ``--help`` and the docs
    group: str  # ``METHOD``, ``ENGINE``, ``REPORT`` or ``SEARCH``
    choices: tuple[str, ...] = ()  # the allowed values, if they are a list
    least: float | None = None  # the smallest allowed number
    most: float | None = None  # the largest allowed number
    above: float | None = None  # allowed numbers are greater than this
    unit: str = ""  # the unit of a number
    endless: bool = False  # whether infinity is allowed, too
    absent: str = ""  # the meaning of a default of None, in words

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return ", ".join(self.choices)
        if self.kind is bool:
            return "True or False"
        if self.kind is str:
            return "a text"
        number = "a whole number" if self.kind is int else "a number"
        unit = f" ({self.unit})" if self.unit else ""
        if self.above is not None:
            return f"{number} above {self.above:g}{unit}"
        if self.most is not None:
            return f"{number} from {self.least:g} to {self.most:g}{unit}"
        return f"{number} from {self.least:g} up{unit}" if self.least is not None else number

    def check(self, value: Any) -> None:
        """Check a given value.

        Raises:
            UsageError: the value is not among the choices, of another type, or out of range.
        """
        right = True
        if self.choices:
            right = value in self.choices
        elif self.kind in (int, float):
            kinds = (int,) if self.kind is int else (int, float)
            right = type(value) in kinds
            ends = right and not (self.endless and value == math.inf)
            if ends and type(value) is float and not math.isfinite(value):
                raise option_error(flag(self.name), value, f"{self.allowed}, and finite")
            right = right and (self.least is None or value >= self.least)
            right = right and (self.most is None or value <= self.most)
            right = right and (self.above is None or value > self.above)
            if right and ends and abs(value) > LARGEST:
                raise option_error(flag(self.name), value, f"{LARGEST} at most")
        elif self.kind in (str, bool):
            right = isinstance(value, self.kind)
        if not right:
            raise option_error(flag(self.name), value, self.allowed)


def _read_table() -> dict[str, Option]:
    """Return the options of ``DecodingConfig`` by name."""
    options = {}
    hints = typing.get_type_hints(DecodingConfig)
    for option_field in fields(DecodingConfig):
        if option_field.metadata:
            hint = hints[option_field.name]
            kinds = [t for t in typing.get_args(hint) or (hint,) if t is not types.NoneType]
            kind = object if kinds[0] is Any else kinds[0]
            options[option_field.name] = Option(
                option_field.name, kind, option_field.default, **option_field.metadata
            )
    return options


#: Every option by name; ``decoding`` itself comes first.
ALL = _read_table()
#: The plugin's own options, and those that fairseq's search has too.
OPTIONS = {name: option for name, option in ALL.items() if option.group not in (MEANING, SEARCH)}
SEARCH_OPTIONS = tuple(name for name, option in ALL.items() if option.group == SEARCH)
METHOD_FLAGS = tuple(name for name, option in OPTIONS.items() if option.group == METHOD)
ENGINE_FLAGS = tuple(name for name, option in OPTIONS.items() if option.group == ENGINE)
#: Rules of the search that are flags of the plugin.
RULE_FLAGS = tuple(name for name, option in OPTIONS.items() if option.group == RULE)
#: These, and what they mean.
RULE_OPTIONS = tuple(name for name, option in ALL.items() if option.group in (RULE, MEANING))
#: Rules that read what is written.
TEXT_RULES = ("no_repeat_ngram_size", *RULE_FLAGS)
REPORT_FLAGS = tuple(name for name, option in OPTIONS.items() if option.group == REPORT)
#: Flags of every method.
COMMON_FLAGS = (*REPORT_FLAGS, *ENGINE_FLAGS)
#: Switches, False by default.
SWITCHES = tuple(name for name, option in OPTIONS.items() if option.kind is bool)


def check_values(given: Mapping[str, Any]) -> None:
    """Check the given values, and that they do not contradict each other.

    Raises:
        UsageError: a value is wrong, contradicts another, or names a file that cannot be written.
    """
    for name, value in given.items():
        ALL[name].check(value)
    if given.get("engine") == "native" and given.get("engine_dtype") == "fp16":
        raise option_error("--engine-dtype", "fp16", "fp32, bf16 or int8 with --engine native")
    for name, plain in (("lenpen", 1.0), ("length_formula", "fairseq")):
        if given.get("unnormalized") and given.get(name, plain) != plain:
            others = "--unnormalized, by which no length divides"
            raise excludes(flag(name), given[name], others)
    if given.get("beam_stop") == "settled":
        for name, least in (("unkpen", 0), ("repetition_penalty", 1)):
            if given.get(name, least) < least:
                raise excludes(
                    "--beam-stop", "settled", f"{flag(name)} below {least}, by which scores grow"
                )
    if given.get("accept_topk", 1) > 1 and "accept_distance" in given:
        raise excludes("--accept-distance", given["accept_distance"], "--accept-topk")
    if given.get("latency_budget_ms"):
        does = {"audit": "judge", "trace_file": "trace"} | dict.fromkeys(RULE_FLAGS, "honour")
        for name, why in does.items():
            if given.get(name, ALL[name].default) != ALL[name].default:
                raise excludes(
                    flag(name),
                    given[name],
                    f"--latency-budget-ms, whose decoders it may not be able to {why}",
                )
    for name in RULE_FLAGS:
        if given.get("audit") and given.get(name, ALL[name].default) != ALL[name].default:
            raise excludes("--audit", True, f"{flag(name)}, which fairseq's search has not")
    if given.get("jacobi_window") == "sliding" and given.get("jacobi_stop") == "unchanged":
        raise option_error(
            "--jacobi-stop",
            "unchanged",
            "prefix with --jacobi-window sliding, which commits tokens after every pass",
        )
    if given.get("deduplicate_ngrams") and "trace_file" in given:
        raise excludes(
            "--deduplicate-ngrams",
            given["deduplicate_ngrams"],
            "--trace-file, which shows what the model wrote",
        )
    for name in ("stats_file", "trace_file", "speed_profile"):
        if name in given:
            _check_folder(flag(name), given[name])
    paths = [os.path.abspath(given[n]) for n in ("stats_file", "trace_file") if n in given]
    if len(paths) == 2 and paths[0] == paths[1]:
        raise option_error("--trace-file", given["trace_file"], "another file than --stats-file's")


def _check_folder(name: str, path: str) -> None:
    """Refuse a path where no file can be written, before decoding starts."""
    folder = os.path.dirname(os.path.abspath(path))
    if path == "" or os.path.isdir(path):
        raise option_error(name, path, "a file, not a folder or nothing")
    if not os.path.isdir(folder):
        raise option_error(name, path, f"a file in a folder that exists; {folder} does not")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise option_error(name, path, "a file that may be written")
