"""Render RESULTS.md, and a page for each result, from what commands measured.

Nothing is measured here, and no page is edited by hand: ``--check`` fails if one is not what the
JSON files render to.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from pathlib import Path

from ..analysis import result_pages
from ..errors import option_error
from ..measure import documents

# Says what stands on RESULTS.md.
SUMMARY = "summary.json"

# Lines of the difference that --check shows.
DIFF_LINES = 20


def render(folder: Path, out: Path) -> dict[Path, str]:
    """Return all pages: the summary, and one beside each JSON file of a folder.

    Args:
        folder: with results, ``*.json``, and with ``summary.json`` if the summary has more than
            links.
        out: the summary's file.

    Raises:
        UsageError: there is no result, or one is wrong.
    """
    files = [file for file in sorted(folder.glob("*.json")) if file.name != SUMMARY]
    if not files:
        raise option_error("--tables", str(folder), "a folder with tables, *.json")
    found = {file.stem: documents.read_document(file) for file in files}
    pages = {
        file.with_suffix(".md"): result_pages.page(
            found[file.stem], f"{file.stem}.png" if file.with_suffix(".png").is_file() else None
        )
        for file in files
    }
    chosen = folder / SUMMARY
    content = json.loads(chosen.read_text(encoding="utf-8")) if chosen.is_file() else {}
    address = Path(os.path.relpath(folder, out.parent)).as_posix()
    return {out: result_pages.summary(content, found, address), **pages}


def check(page: Path, text: str) -> bool:
    """Say whether a page is what it should be, and show where not.

    Args:
        page: the file; a missing one differs.
        text: what it should hold.
    """
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
    parser.set_defaults(plugin=False)
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
