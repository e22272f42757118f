"""``profile workers``: a corpus by one process, and in parts by several workers.

Each is the whole command, from its start to its end. The same command for one line tells what its
start takes.
"""

import itertools
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from ...cli.translate_corpus import PART
from ...errors import UsageError, option_error
from ..data.journal import Journal
from ..data.table import Cells, Table, Value, column
from ..measure import machine
from .asked import Workers
from .harness import PARADEC

#: Stands for a new folder in the flags of a command.
PARTS = "PARTS"


def measure(asked: Workers, journal: Journal) -> Table:
    """Measure all commands; return the table.

    Raises:
        UsageError: there is no such file, or a command fails.
    """
    if not asked.file.is_file():
        raise option_error("FILE", str(asked.file), "a text file")
    single = ["--threads", "1", "--decoding", "greedy", "--buffer-size", str(PART)]
    commands = {"1 process, text to text": single}
    for n in asked.processes:
        commands[f"{n} workers, in parts"] = ["--out", PARTS, "--processes", str(n)]
    for n in asked.processes if asked.cluster else ():
        flags = ["--out", PARTS, "--processes", str(n), "--cluster", str(asked.cluster)]
        commands[f"{n} workers of Ray, in parts"] = flags
    content = asked.file.read_bytes().splitlines(keepends=True)
    times = np.empty((asked.rounds, len(commands), 2))
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "one"
        first.write_bytes(b"".join(content[:1]))
        for turn, place in itertools.product(*map(range, times.shape[:2])):
            flags = [*commands.values()][place]
            if (key := f"{turn}/{place}") not in journal.entries:
                seconds = [_seconds(asked, path, flags) for path in (first, asked.file)]
                journal.put(key, seconds)
            times[turn, place] = journal.entries[key]
    start, whole = times[..., 0], times[..., 1]
    after = whole - start
    rows: list[Cells] = [
        {
            "by": by,
            "flags": shlex.join(flags),
            column("seconds", form=".1f"): Value.of(whole[:, i].tolist()),
            "of_them_start": round(np.median(start[:, i]), 1),
            "sentences_per_second_after_it": round((len(content) - 1) / np.median(after[:, i]), 1),
            "times_the_first": round(np.median(whole[:, 0] / whole[:, i]), 2),
            "after_the_start": round(np.median(after[:, 0] / after[:, i]), 2),
        }
        for i, (by, flags) in enumerate(commands.items())
    ]
    notes = [
        f"{len(content)} lines of {asked.file.name}; whole commands; medians of {asked.rounds} "
        "rounds (lowest-highest), in turns, also of the ratios; a thread each.",
        "Start: the same command for the first line alone.",
    ]
    return Table.of(rows, notes=notes)


def _seconds(asked: Workers, path: Path, flags: list[str]) -> float:
    """Return the seconds of a command for a file; PARTS stands for a new folder.

    Raises:
        UsageError: it fails.
    """
    if not asked.busy:
        machine.wait_until_idle()
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder) / "parts"
        words = [str(parts) if word == PARTS else word for word in flags]
        command = [*PARADEC, "translate", "--model", str(asked.model), str(path), *words]
        begin = time.perf_counter()
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        seconds = time.perf_counter() - begin
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UsageError(f"paradec translate {shlex.join(words)}: {last}")
    return seconds
