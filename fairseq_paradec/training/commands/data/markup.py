"""Extract the text of the two markup formats of parallel corpora.

`sgm FILE` prints the <seg>s of a WMT test set, one a line. `tmx FILE LANG LANG OUT OUT` writes the
sentence pairs of a translation memory, which may be gzipped.
"""

import argparse
import gzip
import html
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def segments(text: str) -> Iterator[str]:
    """Yield the segments of an .sgm file, which is no XML: it may hold a bare ampersand."""
    for segment in re.findall(r"<seg\b[^>]*>(.*?)</seg>", text, re.DOTALL | re.IGNORECASE):
        yield " ".join(html.unescape(segment).split())


def units(path: Path, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a .tmx file that has both languages."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for _, unit in ElementTree.iterparse(file):
            if unit.tag != "tu":
                continue
            texts = {
                (variant.get(LANG) or variant.get("lang") or "").lower(): " ".join(
                    "".join(variant.itertext()).split()
                )
                for variant in unit.iter("tuv")
            }
            if all(language in texts for language in languages):
                yield texts[languages[0]], texts[languages[1]]
            unit.clear()


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("sgm")
    command.add_argument("file", type=Path)
    command = commands.add_parser("tmx")
    command.add_argument("file", type=Path)
    command.add_argument("languages", nargs=2)
    command.add_argument("outputs", nargs=2, type=Path)


def run(args: argparse.Namespace) -> int:
    """Print segments, or write pairs."""
    if args.command == "sgm":
        for segment in segments(args.file.read_text(encoding="utf-8")):
            print(segment)
        return 0
    count = 0
    first, second = (path.open("w", encoding="utf-8", newline="\n") for path in args.outputs)
    with first, second:
        for text, other in units(args.file, tuple(args.languages)):
            first.write(text + "\n")
            second.write(other + "\n")
            count += 1
    print(f"  {count} pairs in {args.file.name}", file=sys.stderr)
    return 0
