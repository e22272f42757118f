"""Settings of transformers' generate that change a model's outputs: read, or named in the log."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import option_error
from .files import read_json, whole_number

logger = logging.getLogger(__name__)

#: Settings of generate that change greedy's output and are not read, and what does nothing.
_UNREAD: Mapping[str, Sequence[Any]] = {
    "encoder_no_repeat_ngram_size": (None, 0),
    "repetition_penalty": (None, 1),
    "encoder_repetition_penalty": (None, 1),
    "guidance_scale": (None, 1),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None, []),
    "force_words_ids": (None, []),
    "exponential_decay_length_penalty": (None,),
}


def settings_of(file: Path, config: Mapping[str, Any]) -> tuple[Path, Mapping[str, Any]]:
    """Return settings of generate, and their file.

    Those of config.json hold only where there is no generation_config.json.

    Args:
        file: config.json.
        config: what it holds.
    """
    named = file.with_name("generation_config.json")
    return (named, read_json(named)) if named.is_file() else (file, config)


def search_of(file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fairseq's options of the search.

    In ``min_length`` generate counts the decoder's first input, too, and does not read it beside
    ``min_new_tokens``.

    Args:
        file: of the settings.
        given: the settings.

    Raises:
        UsageError: a value is no whole number, or forbids all that is written.
    """

    def number(name: str) -> int:
        return whole_number(file, given, name) if given.get(name) else 0

    ngram, least = number("no_repeat_ngram_size"), number("min_new_tokens")
    if given.get("min_new_tokens") is None:
        least = max(number("min_length") - 1, 0)
    if ngram == 1:
        allowed = "0, or from 2 up: in generate no output would end"
        raise option_error(f"{file}: no_repeat_ngram_size", ngram, allowed)
    return {"min_len": least, "no_repeat_ngram_size": ngram}


def left_out(
    file: Path, config: Mapping[str, Any], given: Mapping[str, Any], *unread: str
) -> int | None:
    """Return the word that the softmax leaves out; None: none. Warn of settings that are not read.

    Args:
        file: of the settings.
        config: what config.json holds.
        given: the settings.
        unread: others that are not, of this family.

    Raises:
        UsageError: words are forbidden.
    """
    pad = config.get("pad_token_id")
    forbidden = given.get("bad_words_ids")
    if forbidden not in (None, [[pad]]):
        allowed = f"{[[pad]]} or none: other words are not forbidden here"
        raise option_error(f"{file}: bad_words_ids", forbidden, allowed)
    end = config.get("eos_token_id", given.get("eos_token_id"))
    neutrals = {**_UNREAD, "eos_token_id": (None, end, [end]), **dict.fromkeys(unread, (None,))}
    for key, neutral in neutrals.items():
        if given.get(key) not in neutral:
            logger.warning(
                "%s: %s is %r and not read: generate gives the same outputs without it",
                file.parent,
                key,
                given[key],
            )
    return pad if forbidden and given.get("renormalize_logits") else None
