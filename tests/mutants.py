"""Seed faults into a copy of the package, one at a time, and see whether the fast tests notice.
    make mutants                          all; their rows on stdout, and in docs/testing.md
    make mutants ARGS="--only cache"      those of one area, or whose name contains a word
    make mutants ARGS=--untried           those whose row has a dash
    make mutants ARGS=--check             only: every anchor is found exactly once
    make mutants ARGS=--page              only: the rows of docs/testing.md, of a changed list
A mutant is killed when a fast test fails. The tests that are named are run first, in their order,
up to the first failure. A mutant whose old text is not found exactly once is an error.
"""

import argparse
import compileall
import shlex
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode

from support.commands import run_python

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "fairseq_paradec"
COPIED = (PACKAGE, "tests", "scripts", "docs", "results")
LINKED = ("data-bin", ".venv")

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

TABLE = ("test_conformance.py",)

#: Seconds after which tests are taken for some that do not end.
LONGEST = 4 * 3600

#: pytest on the copy, in a fork that has imported fairseq: see ``run_python``.
PYTEST = """
import sys
sys.path.insert(0, "")
sys.dont_write_bytecode = True
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Mutant:
    """A fault: ``old`` becomes ``new`` in ``file``.

    ``tests`` are files of tests/, each with pytest's flags that choose some of its tests.
    """

    area: str
    file: str
    old: str
    new: str
    tests: Sequence[str]


def read_list() -> list[Mutant]:
    """The mutants of mutants.toml."""
    found = []
    for area, files in tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text("utf-8")
    ).items():
        usual = files.pop("tests", TABLE)
        for file, faults in files.items():
            found += [Mutant(area, file, old, new, own or usual) for old, new, *own in faults]
    return found


MUTANTS = read_list()

PAGE = ROOT / "docs" / "testing.md"
HEAD = "| area | file | old | new | killed by | s |\n|---|---|---|---|---|---|\n"
#: Killer and seconds of a mutant that no run has tried since it stands in the list.
UNTRIED = "- | -"


def row(mutant: Mutant) -> str:
    """A mutant's row of the table, without killer and seconds."""
    code = (f"`{' '.join(text.split())}`" for text in (mutant.old, mutant.new))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (mutant.area, mutant.file, *code))


def split_page() -> tuple[str, dict[str, str], str]:
    """The page before the table, killer and seconds by row, and the page behind the table."""
    before, table = PAGE.read_text("utf-8").split(HEAD)
    table, gap, behind = table.partition("\n\n")
    cells = [line.removesuffix(" |").rsplit(" | ", 2) for line in table.splitlines()]
    return before, {first: " | ".join(last) for first, *last in cells}, gap + behind


def write_page(found: dict[str, str]) -> None:
    """Write the list into the page, with what this run and earlier ones found."""
    before, known, behind = split_page()
    known |= found
    rows = [f"{row(one)} | {known.get(row(one), UNTRIED)} |" for one in MUTANTS]
    PAGE.write_text(before + HEAD + "\n".join(rows) + behind, "utf-8")


def find(mutant: Mutant) -> str | None:
    """The file's text; None if the anchor is not in it exactly once."""
    path = ROOT / PACKAGE / mutant.file
    text = path.read_text("utf-8") if path.exists() else ""
    return text if text.count(mutant.old) == 1 else None


def copy_of_the_checkout(folder: Path) -> None:
    """Copy what tests read; link what is large."""
    for name in COPIED:
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    for name in LINKED:
        if (ROOT / name).exists():
            (folder / name).symlink_to((ROOT / name).resolve())
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    for name in (PACKAGE, "tests"):  # what is seeded later is told from this by its text
        mode = PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / name, quiet=2, invalidation_mode=mode)


def killed_by(folder: Path, mutant: Mutant) -> str | None:
    """The first failing test; None if all pass."""
    for words in mutant.tests:
        name, *chosen = shlex.split(words)
        flags = "-q -x -n0 --tb=no --assert=plain -p no:cacheprovider".split()
        flags += ["-m", "not slow", f"tests/{name}", *chosen]
        result = run_python(PYTEST, *flags, cwd=folder, longest=LONGEST)
        if result.returncode == 0:
            continue
        if -result.returncode in CRASHES:  # of native code
            return f"{name}, by signal {-result.returncode}"
        failed = [one for one in result.stdout.splitlines() if one.startswith(("FAILED", "ERROR"))]
        assert failed, result.stdout[-2000:] + result.stderr[-2000:]
        return failed[0].split(" - ")[0].split(" ", 1)[1].removeprefix("tests/")
    return None


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="an area, or a part of a file's name")
    parser.add_argument("--untried", action="store_true", help="those that no run has tried")
    parser.add_argument("--check", action="store_true", help="only look for the anchors")
    parser.add_argument("--page", action="store_true", help="only write the list into the page")
    args = parser.parse_args()
    chosen = [one for one in MUTANTS if args.only in one.area or args.only in one.file]
    if args.untried:
        _, known, _ = split_page()
        chosen = [one for one in chosen if known.get(row(one), UNTRIED) == UNTRIED]
    lost = [one for one in chosen if find(one) is None]
    for one in lost:
        print(f"mutants: not found exactly once in {one.file}: {one.old!r}", file=sys.stderr)
    if lost or args.check:
        print(f"{len(chosen) - len(lost)} of {len(chosen)} anchors found", file=sys.stderr)
        return int(bool(lost))
    if args.page:
        write_page({})
        return 0
    chosen.sort(key=lambda one: one.file.endswith(".h"))  # what is compiled takes longest
    survived = 0
    print(HEAD, end="")
    with tempfile.TemporaryDirectory(prefix="paradec-mutants-") as name:
        folder = Path(name)
        copy_of_the_checkout(folder)
        for one in chosen:
            text = find(one)
            assert text is not None
            path = folder / PACKAGE / one.file
            path.write_text(text.replace(one.old, one.new), "utf-8")
            began = time.monotonic()
            killer = killed_by(folder, one)
            path.write_text(text, "utf-8")
            survived += killer is None
            said = (killer or "**SURVIVED**").replace("|", "\\|")
            last = f"{said} | {time.monotonic() - began:.0f}"
            print(f"{row(one)} | {last} |", flush=True)
            write_page({row(one): last})
    print(f"mutants: {len(chosen) - survived} of {len(chosen)} killed", file=sys.stderr)
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
