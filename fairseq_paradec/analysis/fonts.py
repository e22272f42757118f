"""Fonts for tokens of any script in pictures, and what no font of the machine can draw.

matplotlib draws with DejaVu Sans, which has Latin, Greek, Cyrillic, Arabic and Hebrew, but neither
Chinese, Japanese and Korean nor Indian scripts. It takes each character from the first family of a
list that has it; this module makes the list.
"""

from __future__ import annotations

import contextlib
import functools
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import matplotlib
from matplotlib import font_manager

from .symbols import printable

#: matplotlib's own font, which comes with it.
USUAL = "DejaVu Sans"

#: Has a box with a number for every character there is.
LAST_RESORT = "Last Resort"

#: How many missing characters a warning names.
NAMED = 8


@dataclass(frozen=True)
class Fonts:
    """What to draw some texts with.

    Attributes:
        families: their names, in the order in which they are asked for a character.
        missing: characters that no font of the machine has, in the order of their code points.
    """

    families: list[str]
    missing: list[str]


def choose(texts: Iterable[str]) -> Fonts:
    """Find fonts for texts: the usual one, and others for what it lacks, as few as possible.

    Args:
        texts: what is to be drawn; controls are spelled out.
    """
    lacking = {c for text in texts for c in printable(text) if not _is_unseen(c)}
    families = [USUAL]
    lacking -= _characters(font_manager.findfont(USUAL))
    candidates = _others() if lacking else {}
    while lacking:
        # Of several that have as much, the first by name, so that a picture is always the same.
        best = max(sorted(candidates), key=lambda f: len(candidates[f] & lacking), default="")
        found = candidates.get(best, frozenset()) & lacking
        if not found:
            break
        families.append(best)
        lacking -= found
    return Fonts(families, sorted(lacking))


def warning(missing: list[str]) -> str:
    """Say in one line which characters are drawn as boxes, and what would help.

    Args:
        missing: as ``choose`` found them; at least one.
    """
    named = ", ".join(_named(character) for character in missing[:NAMED])
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return (
        f"no font of this machine has {named}{more}; there the picture has boxes "
        "(Debian: apt install fonts-noto-cjk fonts-noto-core, or the small fonts-droid-fallback)"
    )


@contextlib.contextmanager
def drawing(texts: Iterable[str]) -> Iterator[None]:
    """Let matplotlib draw texts as they are, with the right fonts; the same bytes each time.

    What no font has becomes a box, silently: that is for the command to say (``warning``).

    Args:
        texts: whatever is drawn inside.
    """
    settings = {
        "font.family": choose(texts).families,
        "text.parse_math": False,  # a $ in a token is a $
        "svg.hashsalt": "fairseq_paradec",
    }
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _is_unseen(character: str) -> bool:
    """Say whether a character has no shape of its own: joiners, selectors, spaces."""
    return unicodedata.category(character) in ("Cf", "Zs") or "\ufe00" <= character <= "\ufe0f"


def _named(character: str) -> str:
    """Return a character with its number; those that say nothing by themselves, the number only."""
    number = f"U+{ord(character):04X}"
    known = unicodedata.category(character)[0] in "LNPS"
    return f"{character} ({number})" if known else number


@functools.cache
def _others() -> dict[str, frozenset[str]]:
    """Return the machine's font families with the characters that each has.

    matplotlib keeps a list of fonts from one day to the next; those installed since are added.
    """
    manager = font_manager.fontManager
    known = {entry.fname for entry in manager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        with contextlib.suppress(RuntimeError, OSError, ValueError, KeyError, AttributeError):
            manager.addfont(path)  # a damaged file, or a kind that it cannot read
    families: dict[str, frozenset[str]] = {}
    for entry in manager.ttflist:
        if entry.style == "normal" and not entry.name.startswith((LAST_RESORT, "cm", "STIX")):
            with contextlib.suppress(RuntimeError, OSError):
                has = families.get(entry.name, frozenset())
                families[entry.name] = has | _characters(entry.fname)
    return families


@functools.cache
def _characters(path: str) -> frozenset[str]:
    """Return the characters that a font file has."""
    return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
