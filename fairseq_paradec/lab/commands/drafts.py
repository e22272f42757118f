"""Count what earlier translations save as drafts (translate --drafts), where texts change.

Each line of FILE is typed word by word, has one word changed, or stays as it is; the translation of
the text before is the draft. The table has the passes of each decoder, with drafts and without.
Passes do not depend on what else the machine does; times, with --rounds, do.
"""

import argparse
from pathlib import Path

from ...cli import arguments
from ...registry import METHODS
from ..settings import settings


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec drafts data-bin/demo-small.en-de/raw/demo.en "
        "--model data-bin/demo-small.en-de --out runs/drafts.json"
    )
    add = parser.add_argument
    add("file", metavar="FILE", type=Path, help="plain text, a sentence a line")
    add("--model", metavar="DIR", type=Path, required=True, help="a folder that paradec pack made")
    exact = [name for name, one in METHODS.items() if one.is_lossless_by_default]
    add(
        "--decoding",
        nargs="+",
        choices=exact,
        metavar="D",
        default=["greedy", "self_draft"],
        help=f"of {', '.join(exact)} (default: greedy self_draft)",
    )
    add("--limit", type=arguments.whole_number, help="lines (default: all)")
    add("--rounds", type=arguments.whole_number, default=0, help="also time so often (default: 0)")
    add("--out", type=Path, required=True, help="JSON file to write")


def run(args: argparse.Namespace) -> int:
    """Translate all edits by all decoders, and write the table."""
    from ..data import documents
    from ..measure.drafts import Settings, drafts

    documents.check_out(args.out)
    with arguments.quiet():
        return drafts(settings(Settings, args))
