"""Fonts for texts of any script in a PNG, and the characters that the machine lacks.

matplotlib draws with DejaVu Sans, which has Latin, Greek, Cyrillic, Arabic and Hebrew, but neither
Chinese, Japanese and Korean nor Indian scripts. It draws each character with the first of several
families that has it; this module lists the families.
"""

import contextlib
import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib import font_manager
from matplotlib.text import Text

#: matplotlib's own font, which comes with it.
USUAL = "DejaVu Sans"

#: Families that have a box with a number for every character, or formulas.
UNFIT = ("Last Resort", "cm", "STIX")

#: How many missing characters a warning names.
NAMED = 8


def fit(figure: Any) -> list[str]:
    """Give all texts of a figure fonts that have their characters; return those that none has."""
    texts = figure.findobj(Text)
    families, missing = choose(text.get_text() for text in texts)
    if len(families) > 1:
        for text in texts:
            text.set_fontfamily(families)
    return missing


def choose(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Find fonts: the usual one, and as few others as possible for what it lacks.

    Returns:
        The families in order of preference, and the characters that no font has, in order.
    """
    lacking = {c for text in texts for c in text if not _is_unseen(c)}
    lacking -= _characters(font_manager.findfont(USUAL))
    families = [USUAL]
    candidates = _others() if lacking else {}
    while lacking:
        # At a tie the first by name, so that pictures are reproducible.
        best = max(sorted(candidates), key=lambda f: len(candidates[f] & lacking), default="")
        if not candidates.get(best, frozenset()) & lacking:
            break
        families.append(best)
        lacking -= candidates[best]
    return families, sorted(lacking)


def warning(missing: Sequence[str]) -> str:
    """Return a line that names characters drawn as boxes, and packages with fonts."""
    named = ", ".join(map(_named, missing[:NAMED]))
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return (
        f"no font of this machine has {named}{more}; there the picture has boxes "
        "(Debian: apt install fonts-noto-cjk fonts-noto-core, or the small fonts-droid-fallback; "
        "an .svg needs none)"
    )


def _is_unseen(character: str) -> bool:
    """Return whether a character has no shape: line ends, joiners, selectors, spaces."""
    return (
        unicodedata.category(character) in ("Cc", "Cf", "Zs") or "\ufe00" <= character <= "\ufe0f"
    )


def _named(character: str) -> str:
    """Return a character with its number; for unassigned and combining ones, the number alone."""
    number = f"U+{ord(character):04X}"
    known = unicodedata.category(character)[0] in "LNPS"
    return f"{character} ({number})" if known else number


@functools.cache
def _others() -> dict[str, frozenset[str]]:
    """Return the machine's font families with the characters that each has.

    matplotlib caches its list of fonts; newly installed ones are added here.
    """
    manager = font_manager.fontManager
    known = {entry.fname for entry in manager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        with contextlib.suppress(RuntimeError, OSError, ValueError, KeyError, AttributeError):
            manager.addfont(path)  # fails for damaged files and unknown kinds
    families: dict[str, frozenset[str]] = {}
    for entry in manager.ttflist:
        if entry.style == "normal" and not entry.name.startswith(UNFIT):
            with contextlib.suppress(RuntimeError, OSError):
                has = families.get(entry.name, frozenset())
                families[entry.name] = has | _characters(entry.fname)
    return families


@functools.cache
def _characters(path: str) -> frozenset[str]:
    """Return the characters that a font file has."""
    return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
