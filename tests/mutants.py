"""Seed faults into a copy of the package, one at a time, and see whether the fast tests notice.
    make mutants                          all; what killed each is kept in tests/mutants.json
    make mutants ARGS="--only cache"      those of one area, or whose name contains a word
    make mutants ARGS=--untried           those that no run has tried
    make mutants ARGS=--check             only: every anchor is found exactly once
    make mutants ARGS=--page              only: print the page of all, as `make docs` shows it
A mutant is killed when a fast test fails. The tests that are named are run first, in their order,
up to the first failure. A mutant whose old text is not found exactly once is an error.
"""

import argparse
import compileall
import hashlib
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode

from support.commands import run_python

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "fairseq_paradec"
COPIED = (PACKAGE, "tests", "tools", "scripts", "docs", "results")
LINKED = ("data-bin", ".venv")

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

TABLE = ("methods/test_conformance.py",)

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

    @property
    def key(self) -> str:
        """What tells it from others in ``OUTCOMES``."""
        fault = "\n".join((self.file, self.old, self.new))
        return hashlib.sha256(fault.encode()).hexdigest()[:12]


def read_list() -> list[Mutant]:
    """The mutants of mutants.toml."""
    mutants = []
    for area, files in tomllib.loads(
        Path(__file__).with_suffix(".toml").read_text("utf-8")
    ).items():
        usual = files.pop("tests", TABLE)
        for file, faults in files.items():
            mutants += [Mutant(area, file, old, new, own or usual) for old, new, *own in faults]
    return mutants


MUTANTS = read_list()

#: What came of the last run of each mutant: the test that failed first, or SURVIVED, and seconds.
OUTCOMES = Path(__file__).with_suffix(".json")
SURVIVED = "SURVIVED"
Outcome = tuple[str, int]

HEAD = """\
# Mutants

`make mutants` seeds these faults into a copy of the package, one at a time; the fast tests must \
fail for each. The seconds are those of a machine shared with other work. A dash: no run has tried \
it since it stands in the list.

| area | file | old | new | killed by | s |
|---|---|---|---|---|---|"""


def read_outcomes() -> dict[str, Outcome]:
    """What is known of mutants, by key."""
    outcomes = json.loads(OUTCOMES.read_text("utf-8"))
    return {key: (killer, seconds) for key, (killer, seconds) in outcomes.items()}


def keep(mutant: Mutant, outcome: Outcome) -> None:
    """Keep a mutant's outcome beside those of the others in the list, in their order."""
    outcomes = read_outcomes() | {mutant.key: outcome}
    lines = [
        f"{json.dumps(listed.key)}: {json.dumps(outcomes[listed.key])}"
        for listed in MUTANTS
        if listed.key in outcomes
    ]
    OUTCOMES.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def row(mutant: Mutant, outcomes: Mapping[str, Outcome]) -> str:
    """A mutant's row of the page's table."""
    code = (f"`{' '.join(text.split())}`" for text in (mutant.old, mutant.new))
    killer, seconds = outcomes.get(mutant.key, ("-", "-"))
    cells = (mutant.area, mutant.file, *code, killer, str(seconds))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def find(mutant: Mutant) -> str | None:
    """The file's text; None if the old text is not in it exactly once."""
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
        lines = result.stdout.splitlines()
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        assert failed, result.stdout[-2000:] + result.stderr[-2000:]
        return failed[0].split(" - ")[0].split(" ", 1)[1].removeprefix("tests/")
    return None


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="an area, or a part of a file's name")
    parser.add_argument("--untried", action="store_true", help="those that no run has tried")
    parser.add_argument("--check", action="store_true", help="only look for the anchors")
    parser.add_argument("--page", action="store_true", help="only print the page")
    args = parser.parse_args()
    outcomes = read_outcomes()
    if args.page:
        print("\n".join([HEAD, *(row(mutant, outcomes) for mutant in MUTANTS)]))
        return 0
    chosen = [mutant for mutant in MUTANTS if args.only in mutant.area or args.only in mutant.file]
    if args.untried:
        chosen = [mutant for mutant in chosen if mutant.key not in outcomes]
    lost = [mutant for mutant in chosen if find(mutant) is None]
    for mutant in lost:
        print(f"mutants: not found exactly once in {mutant.file}: {mutant.old!r}", file=sys.stderr)
    if lost or args.check:
        print(f"{len(chosen) - len(lost)} of {len(chosen)} anchors found", file=sys.stderr)
        return int(bool(lost))
    chosen.sort(key=lambda mutant: mutant.file.endswith(".h"))  # what is compiled takes longest
    survived = 0
    with tempfile.TemporaryDirectory(prefix="paradec-mutants-") as name:
        folder = Path(name)
        copy_of_the_checkout(folder)
        for mutant in chosen:
            text = find(mutant)
            assert text is not None
            path = folder / PACKAGE / mutant.file
            path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
            began = time.monotonic()
            killer = killed_by(folder, mutant)
            path.write_text(text, "utf-8")
            survived += killer is None
            outcome = (killer or SURVIVED, round(time.monotonic() - began))
            keep(mutant, outcome)
            print(row(mutant, {mutant.key: outcome}), flush=True)
    print(f"mutants: {len(chosen) - survived} of {len(chosen)} killed", file=sys.stderr)
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
