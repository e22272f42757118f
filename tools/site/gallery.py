"""The pictures of docs/gallery.md: made, and checked, by the commands that the page shows.

They run in a temporary folder, where traces stay; checksums of these go to traces.json beside the
pictures. A check compares the checksums, and looks for the pictures. It does not compare pictures,
because another matplotlib draws other bytes.
"""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_paradec.errors import UsageError
from fairseq_paradec.records import Record, read

from . import ROOT

PAGE = ROOT / "docs" / "gallery.md"

#: What the commands read in the checkout, or write there.
LINKED = ("data-bin", "docs", "fairseq_paradec", "results")

#: The module of each program.
MODULES = {"fairseq-generate": "fairseq_cli.generate", "paradec": "fairseq_paradec"}

#: Of a picture, and of all.
MAX_BYTES, MAX_TOTAL = 300_000, 1_500_000


def commands(page: Path) -> list[list[str]]:
    """Return the words of each command that a page shows: first decode, then draw."""
    blocks = re.findall(r"^```\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def name_of(command: Sequence[str]) -> str | None:
    """Return the name of the trace that a command writes; None: it draws."""
    if "--trace-file" not in command:
        return None
    return Path(command[command.index("--trace-file") + 1]).stem


def shown_sentences(page: Path) -> set[int | None]:
    """Return the sentences in a page's pictures."""
    return {
        int(command[command.index("--sentence") + 1])
        for command in commands(page)
        if "--sentence" in command
    }


@contextmanager
def working_folder() -> Iterator[Path]:
    """Yield a temporary folder in which the commands find the checkout."""
    with tempfile.TemporaryDirectory() as name:
        for linked in LINKED:
            (Path(name) / linked).symlink_to(ROOT / linked)
        yield Path(name)


def execute(command: Sequence[str], folder: Path) -> None:
    """Run a command in a folder.

    Raises:
        UsageError: it fails.
    """
    program, *words = command
    result = subprocess.run(
        [sys.executable, "-m", MODULES[program], *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # batches of one sentence
        capture_output=True,
        encoding="utf-8",
    )
    if result.returncode != 0:
        print(result.stderr[-4000:], file=sys.stderr)
        raise UsageError(f"status {result.returncode} of: {shlex.join(command)}")


def digest(trace: Path, sentences: Collection[int | None]) -> dict[str, Any]:
    """Return a trace's counts, and a checksum of its outputs, passes, and sentences' drafts.

    Probabilities are left out: another processor rounds them differently.
    """
    records: list[Record] = [record for _, record in read(str(trace))]
    records.sort(key=lambda record: record["id"] or 0)
    fields = ("start", "draft", "verifier", "num_accepted", "num_committed", "positions")
    facts = []
    for record in records:
        fact: list[Any] = [record["id"], record["output"], record["decoder_passes"]]
        if record["id"] in sentences:
            fact += [[entry.get(field) for field in fields] for entry in record["trace"]]
        facts.append(fact)
    return {
        "sentences": len(records),
        "tokens": sum(record["num_tokens"] for record in records),
        "passes": sum(record["decoder_passes"] for record in records),
        "digest": hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
    }


def decode(name: str, page: Path) -> dict[str, Any]:
    """Decode the demo's test set as a page says for a trace; return its digest."""
    (command,) = (words for words in commands(page) if name_of(words) == name)
    with working_folder() as folder:
        execute(command, folder)
        return digest(folder / f"{name}.jsonl", shown_sentences(page))


def make() -> None:
    """Run all commands of the page: write its pictures and traces.json."""
    pictures, traces = PAGE.with_suffix(""), {}
    pictures.mkdir(exist_ok=True)
    with working_folder() as folder:
        for command in commands(PAGE):
            execute(command, folder)
            if (name := name_of(command)) is not None:
                traces[name] = digest(folder / f"{name}.jsonl", shown_sentences(PAGE))
    (pictures / "traces.json").write_text(json.dumps(traces, indent=1) + "\n", "utf-8")


def problems(page: Path, names: Iterable[str] | None = None) -> list[str]:
    """Return what is wrong with a page's pictures and traces; only the named ones, or all."""
    folder, text = page.with_suffix(""), page.read_text("utf-8")
    shown = {Path(link).name for link in re.findall(r"!\[.*?\]\((.*?)\)", text)}
    drawn = {Path(command[-1]).name for command in commands(page) if name_of(command) is None}
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*"))}
    wanted = {"traces.json", *shown}
    said = [f"{page} shows {name} without its command" for name in sorted(shown - drawn)]
    said += [f"{folder / name} is missing" for name in sorted(wanted - sizes.keys())]
    said += [f"{folder / name} is on no page" for name in sorted(sizes.keys() - wanted)]
    said += [
        f"{folder / name} has {size} bytes" for name, size in sizes.items() if size > MAX_BYTES
    ]
    if sum(sizes.values()) > MAX_TOTAL:
        said.append(f"{folder} has {sum(sizes.values())} bytes; allowed: {MAX_TOTAL}")
    if "traces.json" in sizes:
        traces = json.loads((folder / "traces.json").read_text("utf-8"))
        for name in traces if names is None else names:
            if decode(name, page) != traces[name]:
                said.append(f"the trace of {name} differs")
    return said
