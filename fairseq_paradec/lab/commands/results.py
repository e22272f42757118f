"""Render RESULTS.md, and a page for each result, from JSON files of measuring commands.

Nobody edits these pages by hand: --check fails if one differs from its JSON file.
"""

import argparse
import difflib
import json
import os
import sys
from pathlib import Path

from ..analysis import result_pages, summary_page
from ..data import documents
from ..data.documents import SUMMARY

# The list of the results' pages, which a repository's view shows with their folder.
INDEX = "README.md"

# Parts of other pages, beside the summary: the page, the part's mark, what renders it.
PARTS = (
    ("README.md", "decoders", summary_page.first_table),
    ("docs/exactness.md", "counts", summary_page.counts),
    ("docs/experiments.md", "targets", summary_page.targets),
)

# Endings of a result's picture.
PICTURES = (".png", ".svg")

# How many lines of a difference --check shows.
DIFF_LINES = 20


def render(folder: Path, out: Path) -> dict[Path, str]:
    """Return all pages: the summary, one beside each JSON file of a folder, and their list.

    ``PARTS`` of other pages are rendered, too.

    Args:
        folder: the results, ``*.json``; without ``summary.json`` the summary has links alone.
        out: the summary's file.

    Raises:
        UsageError: there is no result, or one is wrong.
    """
    found = documents.read_folder("--tables", folder)
    pages = {}
    for result in found.values():
        file = folder / result.name
        drawn = next((p.name for p in map(file.with_suffix, PICTURES) if p.is_file()), None)
        pages[file.with_suffix(".md")] = result_pages.page(result, drawn)
    chosen = folder / SUMMARY
    content = json.loads(chosen.read_text(encoding="utf-8")) if chosen.is_file() else {}
    address = Path(os.path.relpath(folder, out.parent)).as_posix()
    pages[folder / INDEX] = result_pages.index(found)
    for name, part, text in PARTS:
        page = out.parent / name
        if content and page.is_file():
            pages[page] = summary_page.fill(page.read_text("utf-8"), part, text(content, found))
    return {out: summary_page.summary(content, found, address), **pages}


def check(page: Path, text: str) -> bool:
    """Return whether a page is up to date; print the differences."""
    found = page.read_text(encoding="utf-8") if page.is_file() else ""
    if found == text:
        return True
    lines = list(
        difflib.unified_diff(
            found.splitlines(), text.splitlines(), str(page), "rendered", n=0, lineterm=""
        )
    )
    print("\n".join(lines[:DIFF_LINES]))
    print(f"{page} is not what the tables render to: run paradec results", file=sys.stderr)
    return False


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "example: paradec results --check"
    parser.set_defaults(fails="with --check a page differs", plugin=False)
    add = parser.add_argument
    add("--tables", type=Path, default=Path("results"), help="their folder (default: results)")
    add("--out", type=Path, default=Path("RESULTS.md"), help="the summary (default: RESULTS.md)")
    add("--check", action="store_true", help="write nothing; exit 1 if a page differs")


def run(args: argparse.Namespace) -> int:
    """Render all pages, or check them; return the exit status."""
    pages = render(args.tables, args.out)
    if args.check:
        return 0 if all([check(page, text) for page, text in pages.items()]) else 1
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
    return 0
