"""Splitting a text into sentences: by sentencex, which knows many languages, or by a plain rule."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from typing import Any

from .markup import has_words

#: Words of a sentence, after which it is cut: models know no longer ones.
MOST_WORDS = 120

#: What ends a sentence, with quotes and brackets behind it, and the space before the next one.
_END = re.compile(r"[.!?…]+[\"'’”»)\]]*\s+|[。！？]+[」』”）]*\s*")
#: A full stop behind these ends no sentence, nor behind one letter.
_SHORT = frozenset(
    "mr mrs ms dr prof st no vs etc e.g i.e cf al fig vol approx dept inc ltd co jr sr "
    "z.b d.h u.a bzw ca nr hr fr str usw evtl ggf vgl m mme mlle".split()
)
#: A long sentence is best cut behind these.
_PAUSES = re.compile(r"(?<=[;:,])\s+|(?<=[，、；])\s*")


def split(text: str, language: str) -> list[str]:
    """Split a text into sentences, each with the space behind it; joined they are the text.

    For a language that is not known English's rules hold.
    """
    known = _sentencex()
    parts = _plainly(text) if known is None else list(known.segment(language, text))
    if "".join(parts) != text:
        parts = _plainly(text)
    return [piece for part in parts for piece in _cut(part)]


def has_several(text: str, language: str) -> bool:
    """Return whether a line has more than a sentence."""
    inside = _END.search(text.strip())  # most have nothing that could end one
    return inside is not None and sum(map(has_words, split(text, language))) > 1


@cache
def _sentencex() -> Any:
    """Return the package; None: it is not installed."""
    try:
        import sentencex
    except ModuleNotFoundError:
        return None
    return sentencex


def _plainly(text: str) -> list[str]:
    """Split behind ends that no small letter follows, and that are no abbreviation's."""
    parts, first = [], 0
    for match in _END.finditer(text):
        end = match.end()
        words = text[max(first, match.start() - 30) : match.start()].split()
        last = words[-1].lstrip("\"'(“„«") if words else ""
        short = match[0][0] == "." and (last.lower() in _SHORT or len(last) == 1 or last.isdigit())
        if not short and not text[end : end + 1].islower():
            parts.append(text[first:end])
            first = end
    return [*parts, text[first:]] if first < len(text) else parts


def _cut(sentence: str) -> Iterator[str]:
    """Cut a sentence of too many words, behind a pause if there is one."""
    words = [match.span() for match in re.finditer(r"\S+\s*", sentence)]
    first, begin = 0, 0
    while len(words) - first > MOST_WORDS:
        latest, earliest = words[first + MOST_WORDS - 1][1], words[first + MOST_WORDS // 2][0]
        pauses = [pause.end() for pause in _PAUSES.finditer(sentence, earliest, latest)]
        at = pauses[-1] if pauses else latest
        yield sentence[begin:at]
        begin = at
        first = bisect_left(words, (at, 0))
    yield sentence[begin:]
