"""What transformers' generate would do to a model's outputs: read, or named in the log."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import option_error
from .files import read_json

logger = logging.getLogger(__name__)

#: Settings of generate that change greedy's output and are not read, and what does nothing.
_UNREAD: Mapping[str, Sequence[Any]] = {
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "repetition_penalty": (None, 1),
    "encoder_repetition_penalty": (None, 1),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "guidance_scale": (None, 1),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None, []),
    "force_words_ids": (None, []),
    "exponential_decay_length_penalty": (None,),
}


def left_out(file: Path, config: Mapping[str, Any]) -> int | None:
    """Return the word that the softmax leaves out; None: none. Warn of settings that are not read.

    Args:
        file: config.json; generation_config.json may lie beside it.
        config: what it holds.

    Raises:
        UsageError: words are forbidden.
    """
    named = file.with_name("generation_config.json")
    given = {**config, **(read_json(named) if named.is_file() else {})}
    pad = config.get("pad_token_id")
    forbidden = given.get("bad_words_ids")
    if forbidden not in (None, [[pad]]):
        allowed = f"{[[pad]]} or none: other words are not forbidden here"
        raise option_error(f"{file}: bad_words_ids", forbidden, allowed)
    for key, neutral in _UNREAD.items():
        if given.get(key) not in neutral:
            logger.warning(
                "%s: %s is %r and not read: generate gives the same outputs without it",
                file.parent,
                key,
                given[key],
            )
    return pad if forbidden and given.get("renormalize_logits") else None
