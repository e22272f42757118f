"""Fonts for tokens of any script in pictures, and the characters that the machine lacks.

matplotlib draws with DejaVu Sans, which has Latin, Greek, Cyrillic, Arabic and Hebrew, but neither
Chinese, Japanese and Korean nor Indian scripts. It draws each character with the first of several
families that has it; this module lists the families.
"""

import contextlib
import functools
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import matplotlib
from matplotlib import font_manager

from ...output import printable

#: matplotlib's own font, which comes with it.
USUAL = "DejaVu Sans"

#: Has a box with a number for every character.
LAST_RESORT = "Last Resort"

#: How many missing characters a warning names.
NAMED = 8


@dataclass(frozen=True)
class Fonts:
    """The fonts of some texts."""

    families: list[str]  # names of font families, in order of preference
    # characters that no font of the machine has, in the order of their code points
    missing: list[str]


def choose(texts: Iterable[str]) -> Fonts:
    """Find fonts for texts: the usual one, and as few others as possible for what it lacks."""
    lacking = {c for text in texts for c in printable(text) if not _is_unseen(c)}
    families = [USUAL]
    lacking -= _characters(font_manager.findfont(USUAL))
    candidates = _others() if lacking else {}
    while lacking:
        # At a tie the first by name, so that pictures are reproducible.
        best = max(sorted(candidates), key=lambda f: len(candidates[f] & lacking), default="")
        found = candidates.get(best, frozenset()) & lacking
        if not found:
            break
        families.append(best)
        lacking -= found
    return Fonts(families, sorted(lacking))


def warning(missing: list[str]) -> str:
    """Return a line that names characters drawn as boxes, and packages with fonts."""
    named = ", ".join(_named(character) for character in missing[:NAMED])
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return (
        f"no font of this machine has {named}{more}; there the picture has boxes "
        "(Debian: apt install fonts-noto-cjk fonts-noto-core, or the small fonts-droid-fallback)"
    )


@contextlib.contextmanager
def drawing(texts: Iterable[str]) -> Iterator[None]:
    """Make matplotlib draw texts literally, and with the right fonts.

    Characters without a font become boxes; the command warns of them (``warning``).
    """
    settings = {
        "font.family": choose(texts).families,
        "text.parse_math": False,  # a $ in a token is a $
    }
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _is_unseen(character: str) -> bool:
    """Return whether a character has no shape: joiners, selectors, spaces."""
    return unicodedata.category(character) in ("Cf", "Zs") or "\ufe00" <= character <= "\ufe0f"


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
        if entry.style == "normal" and not entry.name.startswith((LAST_RESORT, "cm", "STIX")):
            with contextlib.suppress(RuntimeError, OSError):
                has = families.get(entry.name, frozenset())
                families[entry.name] = has | _characters(entry.fname)
    return families


@functools.cache
def _characters(path: str) -> frozenset[str]:
    """Return the characters that a font file has."""
    return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
