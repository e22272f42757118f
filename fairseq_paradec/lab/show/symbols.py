"""Tokens and flags as text that a terminal, a page and a picture can show."""

import unicodedata
from collections.abc import Iterable
from typing import Any

from ...config import flag
from ...output import printable


def typed(flags: dict[str, Any]) -> list[str]:
    """Return a record's flags as typed, without those that are off."""
    return [
        printable(f"{flag(name)}{'' if value is True else f' {value}'}")
        for name, value in flags.items()
        if value is not None and value is not False
    ]


def is_rtl(tokens: Iterable[str]) -> bool:
    """Return whether a text runs from right to left, by its first letter with a direction."""
    kinds = (unicodedata.bidirectional(c) for token in tokens for c in token)
    return next((kind for kind in kinds if kind in ("L", "R", "AL")), "L") != "L"


def display_width(text: str) -> int:
    """Return the width of a text in columns of a terminal."""
    unseen = sum(unicodedata.category(c) in ("Mn", "Me", "Cf") for c in text)
    return len(text) - unseen + wide_letters(text)


def wide_letters(text: str) -> int:
    """Return the number of letters that are two columns wide, such as Chinese ones."""
    return sum(
        unicodedata.east_asian_width(c) in ("W", "F")
        and unicodedata.category(c) not in ("Mn", "Me", "Cf")
        for c in text
    )
