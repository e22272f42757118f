"""A DecodingConfig from a user's options, checked once, before decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ..config import (
    ALL,
    COMMON_FLAGS,
    METHOD_FLAGS,
    RULE_FLAGS,
    RULE_OPTIONS,
    SEARCH_OPTIONS,
    TEXT_RULES,
    DecodingConfig,
    check_values,
    flag,
)
from ..errors import UsageError, excludes, name_error, needs, option_error
from ..records import is_report
from ..registry import DECODINGS, METHODS, STOCK_DECODINGS, own_decoding, readers
from .stock import OTHER_SEARCH

#: Flags that ``--decoding auto`` passes to the checkpoint's own method.
FLAGS_OF_AUTO = ("block_size", *COMMON_FLAGS)

#: With a beam ``block_size`` is how many of its steps a draft has, and this is its default.
BEAM_DEPTH = 8
#: Options of a method that has a beam if ``beam`` is above 1, which it then does not read.
NOT_OF_BEAM = (
    "adaptive_block",
    "draft_tree",
    "draft_confidence",
    "accept_topk",
    "accept_margin",
    "sampling",
)


def configure(*sources: Any, **options: Any) -> DecodingConfig:
    """Collect the options of decoding; the first source that has one wins.

    Args:
        sources: objects whose attributes are options, for example the arguments of one hub call
            and then the task's configuration. None means not given. If a source names another
            method than a later source, the later one's method flags are ignored.
        options: options by name, before those of the sources.

    Raises:
        UsageError: an option is unknown or wrong, or does not belong to the method.
    """
    for name in options:
        if name not in ALL:
            raise name_error("configure()", name, ALL)
    given: dict[str, Any] = {}
    for source in (SimpleNamespace(**options), *sources):
        values = {name: getattr(source, name, None) for name in ALL}
        named = given.get("decoding")
        if named not in (None, values["decoding"]):
            kept = (*SEARCH_OPTIONS, *RULE_OPTIONS)
            kept += () if named in STOCK_DECODINGS else COMMON_FLAGS
            values = {name: values[name] for name in kept}
        given = {name: v for name, v in values.items() if v is not None} | given
    given = {n: v for n, v in given.items() if v is not False or ALL[n].kind is not bool}
    return _checked(given)


def _checked(given: dict[str, Any]) -> DecodingConfig:
    """Check options that were given, and add the method's defaults; see ``configure``."""
    decoding = given.get("decoding", "auto")
    if decoding not in DECODINGS:
        raise option_error("--decoding", decoding, ", ".join(DECODINGS))
    _check_belong_to(decoding, given)
    if _draws_outputs(decoding, given):
        del given["beam"]
    check_values({name: value for name, value in given.items() if name != "decoding"})
    for name in ("stats_file", "trace_file"):
        if name in given and not is_report(given[name]):
            raise option_error(
                flag(name), given[name], "a new file, or an earlier report; this holds other data"
            )
    if decoding in STOCK_DECODINGS:
        return DecodingConfig(**given, given=frozenset(given))
    _check_needs(decoding, given)
    method = METHODS[decoding]
    usual = dict(method.defaults)
    if "latency_budget_ms" in given:
        del usual["beam"]  # then fairseq's search is a candidate
    elif method.beams and given.get("beam", 1) > 1:
        _check_of_beam(decoding, given)
        if "block_size" in method.reads:
            usual["block_size"] = BEAM_DEPTH
    if "draft_confidence" in method.reads and "draft_tree" in given:
        usual["draft_confidence"] = 0.0  # what a tree holds besides the best is unlikely
    return DecodingConfig(**{**usual, **given}, given=frozenset(given))


def _draws_outputs(decoding: str, given: Mapping[str, Any]) -> bool:
    """Return whether a beam is fairseq's way to ask for several draws: it equals ``nbest``."""
    samples = decoding in METHODS and METHODS[decoding].samples and given.get("sampling")
    return bool(samples) and given.get("beam") == given.get("nbest", 1)


def for_models(config: DecodingConfig, models: Sequence[Any]) -> DecodingConfig:
    """Return what ``--decoding auto`` means for these models; another config as it is.

    Raises:
        UsageError: an option does not belong to the models' own method; or they have none, and
            fairseq's own search would ignore an option.
    """
    if config.decoding != "auto":
        return config
    own = own_decoding(models)
    if own is not None:
        return as_method(config, own)
    check_auto({name: getattr(config, name) for name in FLAGS_OF_AUTO if config.is_given(name)})
    return config


def as_method(config: DecodingConfig, decoding: str) -> DecodingConfig:
    """Return the options that a config of ``--decoding auto`` was given as a method's.

    Raises:
        UsageError: an option does not belong to the method.
    """
    given = {name: getattr(config, name) for name in ALL if config.is_given(name)}
    return _checked(given | {"decoding": decoding})


def native_decoding(options: Mapping[str, Any], models: Sequence[Any]) -> Any:
    """Return the decoding of options, by native passes where that is possible.

    Fairseq's own search, of ``beam``, and of ``auto`` for models that have no method of their own,
    is ``multiword_beam`` with its tokens and scores; if it samples, it is ``greedy``, whose draws
    have its distribution. A rule that fairseq's search alone has keeps it as it is.
    """
    decoding, plain = options.get("decoding"), own_decoding(models) is None
    stock = decoding == "beam" or (decoding == "auto" and plain)
    samples = ("sampling", "sampling_topk", "sampling_topp") if options.get("sampling") else ()
    own = {*OTHER_SEARCH, "audit"} - {*samples}  # an audit is refused by the name that was given
    if not stock or any(options.get(name) not in (None, ALL[name].default) for name in own):
        return decoding
    if samples and not plain:  # which is refused by its name
        return decoding
    return "greedy" if samples else "multiword_beam"


def as_trained(config: DecodingConfig, drafts: Any) -> DecodingConfig:
    """Return a config with the block size of a drafter's training, unless the user chose another.

    Args:
        config: the options.
        drafts: the model or the heads that draft; with a ``block_size``, if it was trained for one.
    """
    trained = getattr(drafts, "block_size", None)
    if not METHODS[config.decoding].trained_block or trained is None:
        return config
    return config if config.is_given("block_size") else replace(config, block_size=trained)


def _check_belong_to(decoding: str, given: Mapping[str, Any]) -> None:
    """Refuse options that the chosen method would ignore."""
    if decoding in STOCK_DECODINGS:
        belong: tuple[str, ...] = FLAGS_OF_AUTO if decoding == "auto" else ()
    else:
        belong = (*METHODS[decoding].reads, *COMMON_FLAGS)
    for name in (*METHOD_FLAGS, *COMMON_FLAGS):
        if name in given and name not in belong:
            raise UsageError(
                f"{flag(name)}: got {given[name]!r}, which --decoding {decoding} does not use; "
                f"allowed with --decoding {', '.join(readers(name))}"
            )


def _check_of_beam(decoding: str, given: Mapping[str, Any]) -> None:
    """Refuse options that a method does not read if it has a beam."""
    for name in NOT_OF_BEAM:
        if given.get(name) not in (None, False):
            allowed = f"nothing with --decoding {decoding} --beam {given['beam']}; or --beam 1"
            raise option_error(flag(name), given[name], allowed)


def _check_needs(decoding: str, given: Mapping[str, Any]) -> None:
    """Refuse missing options that a method needs, and options that need others."""
    method = METHODS[decoding]
    has_window = "jacobi_window" in method.reads
    if "adaptive_block" in given and has_window and given.get("jacobi_window") != "sliding":
        raise needs("--adaptive-block", True, f"--decoding {decoding} --jacobi-window sliding")
    loosens = "accept_margin" in given and method.default("accept_topk") == 1
    if loosens and given.get("accept_topk", 1) == 1:
        raise needs("--accept-margin", given["accept_margin"], "--accept-topk, from 2 up")
    if given.get("min_block", 1) > 1:
        if "draft_tree" in given:
            raise excludes("--draft-tree", given["draft_tree"], "--min-block")
        for name in TEXT_RULES:
            if (rule := given.get(name, ALL[name].default)) != ALL[name].default:
                raise excludes(flag(name), rule, "--min-block, which writes what is drafted")
    if method.helper is not None and method.needs_drafter and not given.get("drafter_path"):
        raise needs("--decoding", decoding, f"--drafter-path with {method.helper.wanted}")
    if given.get("audit") and not method.audited:
        others = ", ".join(name for name, method in METHODS.items() if method.audited)
        raise needs("--audit", True, f"a --decoding that verifies: {others}; {decoding} does not")


def check_auto(given: Mapping[str, Any]) -> None:
    """Refuse options that ``--decoding auto`` would ignore with a model without its own method."""
    for name, value in given.items():
        if value not in (None, False):
            raise needs(
                flag(name),
                value,
                f"a --decoding that reads it ({', '.join(readers(name))}); with auto fairseq's own "
                "search decodes this model",
            )


_SAMPLERS = [name for name, method in METHODS.items() if method.samples]

# fairseq's generation options that a greedy method does not support, and their default values.
_REFUSED = {
    "nbest": (1, "one output per sentence (--nbest 1)"),
    "sampling": (False, f"no sampling, or --decoding {', '.join(_SAMPLERS)}"),
    "constraints": (None, "no constraints"),
    "lm_path": (None, "no language model"),
    "no_repeat_ngram_size": (0, "0"),
    "print_alignment": (None, "no alignment but of fairseq's generators"),
    "replace_unk": (None, "no --replace-unk but of fairseq's commands"),
    "match_source_len": (False, "no --match-source-len"),
    "diverse_beam_groups": (-1, "no diverse beam search"),
    "diverse_beam_strength": (0.5, "no diverse beam search"),
    "diversity_rate": (-1.0, "no diverse beam search"),
    "retain_dropout": (False, "no dropout while decoding"),
    "score_reference": (False, "no scoring of references"),
}


def check_search(config: DecodingConfig) -> None:
    """Refuse options of fairseq's search that a method does not support."""
    method = METHODS[config.decoding]
    for name, (idle, allowed) in _REFUSED.items():
        value = getattr(config, name)
        off = not value or (isinstance(value, (int, float)) and value < 0)
        lists = method.reads_beam(config) and config.latency_budget_ms is None
        draws = method.samples and config.sampling
        can = {
            "nbest": lists or draws,
            "sampling": method.samples,
            "no_repeat_ngram_size": method.audited or method.reads_beam(config),
        }
        if can.get(name, False):
            continue
        if not off and value != idle:
            raise cannot_honour(config, name, value, allowed)
    if not method.keeps_rules:
        check_rules(config)
    if method.reads_beam(config):
        _check_nbest(config)
    if config.sampling:
        _check_sampling(config)
    _check_of_sampling(config)
    if not method.reads_beam(config) and config.is_given("beam") and config.beam != 1:
        beams = ", ".join(name for name, method in METHODS.items() if "beam" in method.reads)
        needed = f"--decoding beam or another that reads it ({beams})"
        raise needs("--beam", config.beam, f"{needed}; {method.name} is greedy search")


#: Options of fairseq's search that print or load something: only its commands do that.
OF_COMMANDS = ("score_reference", "replace_unk", "lm_path", "retain_dropout", "constraints")


def check_stock(config: DecodingConfig) -> None:
    """Refuse what fairseq's own search cannot do, or would ignore, where Python builds it.

    Raises:
        UsageError: an option is one of fairseq's commands alone, or does not fit another.
    """
    _check_nbest(config)
    for name in OF_COMMANDS:
        if getattr(config, name):
            raise UsageError(f"{flag(name)} is for fairseq-generate and fairseq-interactive alone")
    check_rules(config)
    if config.print_alignment not in (None, False, "", "hard", "soft"):
        raise option_error("--print-alignment", config.print_alignment, "hard, soft")
    if config.sampling and config.nbest != config.beam:
        raise UsageError("--sampling by fairseq's search needs --beam 1, or N with --nbest N")
    _check_of_sampling(config)
    if config.seed is not None:
        others = f"--decoding {' or '.join(_SAMPLERS)}; fairseq's search draws by torch's seed"
        raise needs("--seed", config.seed, others)
    groups = config.diverse_beam_groups
    if groups > 0 and config.beam % groups:
        allowed = f"a divisor of --beam ({config.beam})"
        raise option_error("--diverse-beam-groups", groups, allowed)
    kinds = {
        "sampling": config.sampling,
        "diverse_beam_groups": groups > 0,
        "match_source_len": config.match_source_len,
        "diversity_rate": config.diversity_rate > 0,
    }
    chosen = [flag(name) for name, on in kinds.items() if on]
    if len(chosen) > 1:
        raise excludes(chosen[0], True, chosen[1])
    if config.is_given("diverse_beam_strength") and groups <= 0:
        strength = config.diverse_beam_strength
        raise needs("--diverse-beam-strength", strength, "--diverse-beam-groups")


def check_rules(config: DecodingConfig) -> None:
    """Refuse rules where fairseq's own search decodes, or a method that has them not.

    Raises:
        UsageError: one is given.
    """
    for name in RULE_FLAGS:
        if (value := getattr(config, name)) != ALL[name].default:
            others = ", ".join(readers(name))
            raise needs(flag(name), value, f"a --decoding that reads it ({others})")


def _check_nbest(config: DecodingConfig) -> None:
    """Refuse more outputs than a beam has."""
    if config.nbest > config.beam:
        allowed = f"a whole number from 1 to --beam ({config.beam})"
        raise option_error("--nbest", config.nbest, allowed)


def cannot_honour(config: DecodingConfig, name: str, value: object, allowed: str) -> UsageError:
    """Return the error for a setting of fairseq's search that a method does not support."""
    return UsageError(
        f"{flag(name)}: got {value!r}, which --decoding {config.decoding} cannot honour; "
        f"allowed: {allowed}, or --decoding beam"
    )


def _check_of_sampling(config: DecodingConfig) -> None:
    """Refuse options of sampling without it."""
    for name in ("sampling_topk", "sampling_topp", "seed"):
        value = getattr(config, name)
        if value is not None and value >= 0 and not config.sampling:
            raise needs(flag(name), value, "--sampling")


def _check_sampling(config: DecodingConfig) -> None:
    """Refuse options that contradict sampling."""
    for name, idle, why in (
        ("accept_topk", 1, "whose outputs have the verifier's distribution"),
        ("audit", False, "whose outputs are not greedy's"),
        ("accept_distance", None, "whose outputs have the verifier's distribution"),
        ("min_block", 1, "whose outputs have the verifier's distribution"),
    ):
        given, reads = getattr(config, name), METHODS[config.decoding].reads
        if given != idle and name in (*reads, "audit"):
            raise excludes(flag(name), given, f"--sampling, {why}")
