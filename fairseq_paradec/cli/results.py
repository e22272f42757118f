"""paradec-results: render RESULTS.md from the JSON that the measuring commands wrote.

Nothing is measured here, and nothing is edited in RESULTS.md by hand: ``--check`` fails if the page
is not what the tables render to.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..analysis.markdown import markdown
from ..errors import option_error
from ..measure import documents
from . import arguments

HEAD = """\
# Results

Rendered by `paradec-results` (`python -m fairseq_paradec.cli.results`) from `results/*.json`, which
the commands below wrote. Change a number by running its command again, not here. What was aimed at,
and what came of it, is written by hand in `results/targets.md`.
"""

# Lines of the difference that --check shows.
DIFF_LINES = 20


def section(path: Path, page: Path) -> str:
    """Render one file with its circumstances, and the picture of its name if there is one.

    Args:
        path: the file; its name tells sections of the same title apart.
        page: the page, for the picture's address.
    """
    table = documents.read_document(path)
    machine, picture = table["machine"], path.with_suffix(".png")
    about = [
        table["date"],
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} used, "
        f"accelerator: {machine['accelerator']}",
        ", ".join(f"{package} {version}" for package, version in table["versions"].items()),
    ]
    parts = [
        f"## {table['title']} ({path.stem})",
        "; ".join(about),
        f"```\n{table['command']}\n```",
        "\n".join(f"- {note}" for note in table["notes"]),
    ]
    if picture.is_file():
        address = os.path.relpath(picture, page.parent)
        parts.append(f"![{table['title']}]({Path(address).as_posix()})")
    parts.append(markdown(table["tables"]).rstrip("\n"))
    return "\n\n".join(part for part in parts if part) + "\n"


def render(folder: Path, page: Path) -> str:
    """Render all files of a folder, by name, after its ``targets.md`` if it has one.

    Args:
        folder: with ``*.json``.
        page: where the text will lie.

    Raises:
        UsageError: there is none, or one is wrong.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise option_error("--tables", str(folder), "a folder with tables, *.json")
    targets = folder / "targets.md"
    head = [HEAD, targets.read_text(encoding="utf-8")] if targets.is_file() else [HEAD]
    return "\n".join([*head, *(section(file, page) for file in files)])


def check(page: Path, text: str) -> int:
    """Say whether a page is what it should be; return 1 and show where not.

    Args:
        page: the file; a missing one differs.
        text: what it should hold.
    """
    found = page.read_text(encoding="utf-8") if page.is_file() else ""
    if found == text:
        return 0
    lines = list(
        difflib.unified_diff(
            found.splitlines(), text.splitlines(), str(page), "rendered", n=0, lineterm=""
        )
    )
    print("\n".join(lines[:DIFF_LINES]))
    print(f"{page} is not what the tables render to: run paradec-results", file=sys.stderr)
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="paradec-results", description=__doc__)
    add = parser.add_argument
    add("--tables", type=Path, default=Path("results"), help="their folder (default: results)")
    add("--out", type=Path, default=Path("RESULTS.md"), help="the page (default: RESULTS.md)")
    add("--check", action="store_true", help="write nothing; exit 1 if the page differs")
    args = parser.parse_args(argv)

    def command() -> int:
        text = render(args.tables, args.out)
        if args.check:
            return check(args.out, text)
        args.out.write_text(text, encoding="utf-8")
        return 0

    return arguments.run("paradec-results", command)


if __name__ == "__main__":
    sys.exit(main())
