"""``profile installation``: what pip installs for the core, and what a first sentence opens of it.

The wheel is installed into an environment of its own by pip, which downloads what it requires. The
files that a first sentence opens are those of Python's audit events, and the libraries that are
mapped at its end.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ...errors import UsageError, option_error
from ..data.table import Cells, Table, column
from .asked import Installation

#: Lists the files of an environment's packages, bytecode among them.
LISTS = """
import json
from importlib.metadata import distributions
print(json.dumps({
    found.metadata["Name"]: [str(file.locate()) for file in found.files or ()]
    for found in distributions()
}))
"""

#: Runs ``paradec``; prints which files were opened, and are mapped.
OPENS = """
import json, os, sys
opened = set()
def told(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        opened.add(os.path.abspath(os.fsdecode(args[0])))
sys.addaudithook(told)
from fairseq_paradec.cli.main import main
assert main(sys.argv[1:]) == 0
with open("/proc/self/maps") as maps:
    opened |= {line.split(maxsplit=5)[-1].strip() for line in maps}
print(json.dumps([*filter(os.path.isfile, opened)]))
"""


class Package(NamedTuple):
    """What pip installed."""

    by: str  # what brought it: ``core``, or the extra
    files: list[str]

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(map(os.path.getsize, self.files))


def measure(asked: Installation) -> Table:
    """Install, translate and count; return the table.

    Raises:
        UsageError: there is no such wheel, pip cannot install it, or the sentence fails.
    """
    if not asked.wheel.is_file():
        raise option_error("WHEEL", str(asked.wheel), "a file that make wheel made")
    wheel, model = str(asked.wheel.absolute()), str(asked.model.absolute())
    with tempfile.TemporaryDirectory(prefix="paradec-installation-") as room:
        python = f"{room}/bin/python"
        run(sys.executable, "-m", "venv", room)
        tools = listed(python)  # pip, for example
        install(python, wheel)
        packages = {n: Package("core", f) for n, f in listed(python).items() if n not in tools}
        words = ["translate", "--model", model, "--text", asked.text]
        opened = json.loads(run(python, "-I", "-c", OPENS, *words).splitlines()[-1])
        if asked.extra is not None:
            install(python, f"{wheel}[{asked.extra}]")
            more = {n: f for n, f in listed(python).items() if n not in {*tools, *packages}}
            packages |= {name: Package(f"[{asked.extra}]", files) for name, files in more.items()}
        return table(packages, by_owner(packages, opened, model))


def run(*command: str) -> str:
    """Run a command, in an environment that has no packages of this one; return what it prints.

    Raises:
        UsageError: it fails.
    """
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=own)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise UsageError(f"{command[0]}: exit status {done.returncode}: {last}")
    return done.stdout


def install(python: str, wheel: str) -> None:
    """Install a wheel and what it requires."""
    run(python, "-m", "pip", "--disable-pip-version-check", "install", wheel)


def listed(python: str) -> dict[str, list[str]]:
    """Return the files of each package of an environment."""
    files: dict[str, list[str]] = json.loads(run(python, "-I", "-c", LISTS))
    return {name: [*filter(os.path.isfile, own)] for name, own in files.items()}


def by_owner(packages: Mapping[str, Package], opened: list[str], model: str) -> Counter[str]:
    """Count opened files by the package that they are of, or by where they lie."""
    names = {os.path.realpath(f): name for name, own in packages.items() for f in own.files}
    library, folder = (Path(os.path.realpath(p)) for p in (sysconfig.get_path("stdlib"), model))

    def owner(path: Path) -> str:
        if path.is_relative_to(folder):
            return "the model folder"
        if path.is_relative_to(library):
            return "Python's library"
        return names.get(str(path), "the system")

    return Counter(owner(Path(os.path.realpath(path))) for path in opened)


def table(packages: Mapping[str, Package], opened: Counter[str]) -> Table:
    """Return the table: packages, the largest first, and sums; then other files that are opened."""
    rows: list[Cells] = []
    for by in dict.fromkeys(package.by for package in packages.values()):
        own = {name: package for name, package in packages.items() if package.by == by}
        for name in sorted(own, key=lambda name: -own[name].bytes):
            rows.append(row(name, by, len(own[name].files), own[name].bytes, opened[name]))
        count = sum(len(package.files) for package in own.values())
        size = sum(package.bytes for package in own.values())
        rows.append(row(f"all of {by}", by, count, size, sum(opened[name] for name in own)))
    others = sorted(opened.keys() - packages.keys())
    rows += [row(name, None, None, None, opened[name]) for name in others]
    notes = [
        "Files: with the bytecode that pip makes. Opened: files that are opened or mapped where "
        "the core's installation translates one sentence; each counts once."
    ]
    return Table.of(rows, notes=notes)


def row(name: str, by: str | None, files: int | None, size: int | None, opened: int) -> Cells:
    """Return a row."""
    return {
        "package": name,
        column("by", "brought by"): by,
        "files": files,
        column("MB", "MB", "MB", ".1f"): None if size is None else round(size / 1e6, 1),
        column("opened", "opened by a first sentence"): opened,
    }
