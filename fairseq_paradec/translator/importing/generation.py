"""Settings of transformers' generate that change a model's outputs: read, or named in the log."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...config import LARGEST
from ...errors import option_error
from .files import read_json, whole_number

logger = logging.getLogger(__name__)

#: Settings of generate that change greedy's output and are not read, and what does nothing.
_UNREAD: Mapping[str, Sequence[Any]] = {
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1),
    "guidance_scale": (None, 1),
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
    penalty = 1 if given.get("repetition_penalty") is None else given["repetition_penalty"]
    if type(penalty) not in (int, float) or not 0 < penalty <= LARGEST:
        raise option_error(f"{file}: repetition_penalty", penalty, "a number above 0")
    return {
        "min_len": least,
        "no_repeat_ngram_size": ngram,
        **({"repetition_penalty": float(penalty)} if penalty != 1 else {}),
        "rules_of": "transformers",
        "rules_renormalised": bool(given.get("renormalize_logits")),
    }


def forbidden_of(
    file: Path, config: Mapping[str, Any], given: Mapping[str, Any], count: int
) -> list[list[int]]:
    """Return sequences of words that are not written, but for the padding symbol.

    Args:
        file: of the settings.
        config: what config.json holds.
        given: the settings.
        count: of words in the target vocabulary.

    Raises:
        UsageError: a value holds no lists of words' numbers.
    """
    sequences = given.get("bad_words_ids") or []
    some = given.get("suppress_tokens") or []
    for name, value in (("bad_words_ids", sequences), ("suppress_tokens", [some])):
        words = [word for each in _lists(value) for word in each]
        right = _lists(value) == value and (value is not sequences or all(value))
        if not right or not all(type(word) is int and 0 <= word < count for word in words):
            allowed = f"lists of words' numbers, below {count}"
            raise option_error(f"{file}: {name}", given.get(name), allowed)
    unread = [[config.get("pad_token_id")], [given.get("eos_token_id", config.get("eos_token_id"))]]
    return [each for each in sequences if each not in unread] + [[word] for word in some]


def _lists(value: Any) -> list[list[Any]]:
    """Return the lists that a list holds; none of anything else."""
    return [each for each in value if isinstance(each, list)] if isinstance(value, list) else []


def left_out(
    file: Path, config: Mapping[str, Any], given: Mapping[str, Any], *unread: str
) -> int | None:
    """Return the word that the softmax leaves out; None: none. Warn of settings that are not read.

    A penalty is of probabilities with that word, and the rules leave it out behind it.

    Args:
        file: of the settings.
        config: what config.json holds.
        given: the settings.
        unread: others that are not, of this family.
    """
    pad = config.get("pad_token_id")
    forbidden = [pad] in _lists(given.get("bad_words_ids"))
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
    penalised = given.get("repetition_penalty") not in (None, 1)
    return pad if forbidden and given.get("renormalize_logits") and not penalised else None
