"""Write the translated messages of *.po files as lines ENGLISH TAB OTHER, without their markup.

Messages that are fuzzy, obsolete, untranslated, plural or the same in both languages are left out.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ....errors import option_error

# Inline mark-up of reStructuredText. One expression, so that the contents of a mark-up (``*args``)
# are not searched again.
MARKUP = re.compile(
    r"""
      ``(?P<literal>.+?)``
    | (?P<role>(?::[\w.+-]+)+):[ ]?`(?P<content>[^`]+)`
    | `(?P<link>[^`]+)`_{0,2}
    | (?<![\w*])\*\*(?P<strong>[^*\s](?:[^*]*[^*\s])?)\*\*(?![\w*])
    | (?<![\w*])\*(?P<emphasis>[^*\s](?:[^*]*[^*\s])?)\*(?![\w*])
    | [ ]?\[(?:\#\w*|\*|\w+)\]_(?!\w)
    | \\(?P<escaped>.)
    """,
    re.VERBOSE,
)


def plain(match: re.Match[str]) -> str:
    """Return the visible text of one piece of mark-up; none for a footnote's mark."""
    groups = match.groupdict()
    if groups["escaped"] is not None:
        return groups["escaped"].strip()
    if groups["role"] is not None or groups["link"] is not None:
        text = groups["link"] or groups["content"]
        titled = re.fullmatch(r"(.+?)\s*<[^<>]*>", text)
        if titled:
            return titled[1]
        if groups["role"] in (":pep", ":rfc"):
            return f"{groups['role'][1:].upper()} {text}"
        if text.startswith("~"):
            return text.rsplit(".", 1)[-1].lstrip("~")
        return text.lstrip("!")
    return groups["literal"] or groups["strong"] or groups["emphasis"] or ""


def strip_markup(text: str) -> str:
    """Return the text of a message as a reader sees it, in one line."""
    text = MARKUP.sub(plain, " ".join(text.split()))
    # A paragraph's last "::" announces code.
    return " ".join(re.sub(r"(?<=\S)::$", ":", text).removesuffix(" ::").split())


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (original, translation) of the good messages of a .po file.

    Raises:
        UsageError: it is no .po file in UTF-8.
    """
    import polib

    try:
        catalogue = polib.pofile(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise option_error("FILE.po", str(path), f"a .po file in UTF-8 ({error})") from error
    for message in catalogue:
        if message.msgstr and not (message.msgid_plural or message.fuzzy or message.obsolete):
            yield message.msgid, message.msgstr


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", nargs="*", type=Path, metavar="FILE.po")


def run(args: argparse.Namespace) -> int:
    """Print the messages."""
    count = 0
    for path in args.file:
        for original, translation in messages(path):
            english, other = strip_markup(original), strip_markup(translation)
            if english and other and english != other:
                print(english, other, sep="\t")
                count += 1
    print(f"  {count} messages in {len(args.file)} files", file=sys.stderr)
    return 0
