"""A DecodingConfig from a user's options, checked before decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError, option_error
from ..options import (
    COMMON_FLAGS,
    METHOD_FLAGS,
    OPTIONS,
    SWITCHES,
    DecodingConfig,
    check_values,
    flag,
)
from ..records import is_report
from .registry import DECODINGS, METHODS, STOCK_DECODINGS, readers

#: Flags that ``--decoding auto`` passes to the checkpoint's own method.
FLAGS_OF_AUTO = ("block_size", *COMMON_FLAGS)


def configure(*sources: Any) -> DecodingConfig:
    """Collect the plugin's options; the first source that has one wins.

    Args:
        sources: objects whose attributes are options, for example the arguments of one hub call
            and then the task's configuration. None means not given. If a source names another
            method than a later source, the later one's method flags are ignored.

    Raises:
        UsageError: an option is wrong, or does not belong to the method.
    """
    given: dict[str, Any] = {}
    for source in sources:
        options = {name: getattr(source, name, None) for name in OPTIONS}
        named = given.get("decoding")
        if named not in (None, options["decoding"]):
            kept = () if named in STOCK_DECODINGS else COMMON_FLAGS
            options = {name: options[name] for name in kept}
        given = {name: v for name, v in options.items() if v is not None} | given
    given = {n: v for n, v in given.items() if v is not False or n not in SWITCHES}
    decoding = given.get("decoding", "auto")
    if decoding not in DECODINGS:
        raise option_error("--decoding", decoding, ", ".join(DECODINGS))
    _check_belong_to(decoding, given)
    check_values({name: value for name, value in given.items() if name != "decoding"})
    for name in ("stats_file", "trace_file"):
        if name in given and not is_report(given[name]):
            raise option_error(
                flag(name), given[name], "a new file, or an earlier report; this holds other data"
            )
    if decoding in STOCK_DECODINGS:
        return DecodingConfig(**given)
    _check_needs(decoding, given)
    method = METHODS[decoding]
    if "draft_confidence" in method.reads and "draft_tree" in given:
        given.setdefault("draft_confidence", 0.0)  # what a tree holds besides the best is unlikely
    return DecodingConfig(**{**method.defaults, **given})


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


def _check_needs(decoding: str, given: Mapping[str, Any]) -> None:
    """Refuse missing options that a method needs, and options that need others."""
    method = METHODS[decoding]
    has_window = "jacobi_window" in method.reads
    if "adaptive_block" in given and has_window and given.get("jacobi_window") != "sliding":
        raise option_error(
            "--adaptive-block", True, f"it with --decoding {decoding} --jacobi-window sliding"
        )
    loosens = "accept_margin" in given and method.default("accept_topk") == 1
    if loosens and given.get("accept_topk", 1) == 1:
        raise option_error(
            "--accept-margin", given["accept_margin"], "it with --accept-topk, from 2 up"
        )
    if given.get("min_block", 1) > 1 and "draft_tree" in given:
        raise option_error("--draft-tree", given["draft_tree"], "it without --min-block")
    for name, wanted in method.needs.items():
        if not given.get(name):
            raise option_error(
                flag(name), given.get(name), f"{wanted}, which --decoding {decoding} needs"
            )
    if given.get("audit") and not method.audited:
        others = ", ".join(name for name, one in METHODS.items() if one.audited)
        raise option_error(
            "--audit", True, f"it with a --decoding that verifies: {others}; {decoding} does not"
        )


def check_auto(given: Mapping[str, Any]) -> None:
    """Refuse options that ``--decoding auto`` would ignore with a model without its own method.

    Args:
        given: the value of each of ``FLAGS_OF_AUTO``.

    Raises:
        UsageError: one of them is set.
    """
    for name, value in given.items():
        if value not in (None, False):
            raise option_error(
                flag(name), value,
                "nothing with --decoding auto and this model, which fairseq's own search decodes; "
                "or a method that reads it: " + ", ".join(readers(name)),
            )  # fmt: skip


_SAMPLERS = [name for name, method in METHODS.items() if method.samples]

# fairseq's generation options that a greedy method does not support, and their default values.
_REFUSED = {
    "nbest": (1, "one output per sentence (--nbest 1)"),
    "sampling": (False, f"no sampling, or --decoding {', '.join(_SAMPLERS)}"),
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


def check_fairseq_options(config: DecodingConfig, options: Mapping[str, Any]) -> None:
    """Refuse options of fairseq's search that a method does not support.

    Args:
        config: the options of decoding.
        options: fairseq's generation options by name.

    Raises:
        UsageError: one of them is set.
    """
    method = METHODS[config.decoding]
    for name, (idle, allowed) in _REFUSED.items():
        value = options.get(name)
        off = not value or (isinstance(value, (int, float)) and value < 0)
        if (name == "nbest" and method.beam) or (name == "sampling" and method.samples):
            continue
        if not off and value != idle:
            raise UsageError(
                f"{flag(name)}: got {value!r}, which --decoding {method.name} cannot honour; "
                f"allowed: {allowed}, or --decoding beam"
            )
    if options.get("sampling"):
        _check_sampling(config)
    # fairseq's default is 5, so a beam of 5 may mean that --beam was not given.
    beam = options.get("beam")
    if method.reads_beam(config):
        if beam is not None and beam < 1:
            raise option_error("--beam", beam, "a whole number from 1 up")
    elif beam not in (None, 1, 5):
        allowed = f"1 with --decoding {method.name}, which is greedy"
        if method.beam_with is not None:
            allowed += f", or a {flag(method.beam_with)}"
        raise option_error("--beam", beam, allowed)
    temperature = options.get("temperature")
    if temperature is not None and not temperature > 0:
        raise option_error("--temperature", temperature, "a number above 0")


def _check_sampling(config: DecodingConfig) -> None:
    """Refuse options that contradict sampling."""
    for name, idle, why in (
        ("accept_topk", 1, "whose outputs have the verifier's distribution"),
        ("audit", False, "whose outputs are not greedy's"),
        ("draft_tree", None, "whose drafts are drawn, one for each sentence"),
    ):
        given = getattr(config, name)
        if given != idle:
            raise option_error(flag(name), given, f"it without --sampling, {why}")
