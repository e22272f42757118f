"""Tokens and flags as text that a terminal, a page and a picture can show."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any


def typed(flags: dict[str, Any]) -> list[str]:
    """Return a record's flags as typed, without those that are off.

    Args:
        flags: values by the option's name.
    """
    return [
        printable(f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}")
        for name, value in flags.items()
        if value is not None and value is not False
    ]


def is_rtl(tokens: Iterable[str]) -> bool:
    """Return whether a text runs from right to left, by its first letter with a direction."""
    kinds = (unicodedata.bidirectional(c) for token in tokens for c in token)
    return next((kind for kind in kinds if kind in ("L", "R", "AL")), "L") != "L"


def printable(token: str) -> str:
    r"""Return a token with controls of terminals and of text direction escaped, as ``\x1b``."""
    return "".join(_escaped(c) if _is_control(c) else c for c in token)


def _is_control(character: str) -> bool:
    """Return whether a character is a control, a surrogate, a line's end, or sets the direction."""
    turns = unicodedata.bidirectional(character) in (
        *("LRE", "RLE", "PDF", "LRO", "RLO"),
        *("LRI", "RLI", "FSI", "PDI"),
    )
    # non-characters such as U+FFFE, which XML forbids
    never = ord(character) & 0xFFFE == 0xFFFE or "\ufdd0" <= character <= "\ufdef"
    return turns or never or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def display_width(text: str) -> int:
    """Return the width of a text in columns of a terminal."""
    return sum(
        0
        if unicodedata.category(c) in ("Mn", "Me", "Cf")
        else 2
        if unicodedata.east_asian_width(c) in ("W", "F")
        else 1
        for c in text
    )
