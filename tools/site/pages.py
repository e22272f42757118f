"""The committed pages that results make: RESULTS.md, and marked parts of others; what differs."""

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_paradec.errors import UsageError

from . import summary
from .published import Results

#: Parts of other pages, beside the summary: the page, the part's name, what renders it.
PARTS = (
    ("README.md", "decoders", summary.first_table),
    ("docs/exactness.md", "counts", summary.counts),
    ("docs/experiments.md", "targets", summary.targets),
)

#: How many lines of a difference are shown.
DIFF_LINES = 20


def render(results: Results, choice: Mapping[str, Any], root: Path) -> dict[Path, str]:
    """Return RESULTS.md of a checkout, and the pages with ``PARTS`` that are there.

    Args:
        results: all of them, by name; of its folder ``results``.
        choice: summary.json; without content the summary has links alone.
        root: the checkout.

    Raises:
        UsageError: a page would say what no result does.
    """
    pages = {root / "RESULTS.md": summary.summary(choice, results)}
    for name, part, render_part in PARTS:
        page = root / name
        if choice and page.is_file():
            content = render_part(choice, results)
            pages[page] = fill(page.read_text("utf-8"), part, content)
    return pages


def fill(text: str, name: str, content: str) -> str:
    """Return a page with content between its marks ``<!-- name by make docs -->``.

    Raises:
        UsageError: the page lacks a mark.
    """
    begin, end = f"<!-- {name} by make docs -->", f"<!-- end of {name} -->"
    head, begun, rest = text.partition(begin)
    _, ended, tail = rest.partition(end)
    if not (begun and ended):
        raise UsageError(f"a page lacks {begin} or {end}")
    return f"{head}{begin}\n{content}\n{end}{tail}"


def is_current(page: Path, text: str) -> bool:
    """Return whether a page is up to date; print the differences."""
    committed = page.read_text("utf-8") if page.is_file() else ""
    if committed == text:
        return True
    lines = difflib.unified_diff(
        committed.splitlines(), text.splitlines(), str(page), "rendered", n=0, lineterm=""
    )
    print("\n".join(list(lines)[:DIFF_LINES]))
    print(f"{page} is not what results render to: run make docs", file=sys.stderr)
    return False
