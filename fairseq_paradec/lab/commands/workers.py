"""Say what more workers give: a corpus by one process, and in parts by several workers.

Each way is the whole command, from its start to its end. The same command for one line tells what
its start takes. The ways alternate, on an idle machine.
"""

import argparse
import itertools
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ...cli import arguments
from ...cli.translate_corpus import PART
from ...errors import UsageError, option_error
from ..settings import Made

#: Stands for a new folder in the flags of a way.
PARTS = "PARTS"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec workers data-bin/demo.en-de/raw/demo.en --model data-bin/demo.en-de "
        "--processes 1,2 --out runs/workers.json"
    )
    add = parser.add_argument
    add("input", metavar="FILE", type=Path, help="a text, a sentence on each line")
    add("--model", metavar="DIR", required=True, help="a folder of paradec pack")
    add(
        "--processes",
        type=arguments.whole_numbers,
        default=[1, 2],
        help="numbers of workers, with commas (default: 1,2)",
    )
    add("--cluster", metavar="ADDRESS", help="by as many workers of this Ray cluster, too")
    add("--rounds", type=arguments.whole_number, default=3, help="(default: 3)")
    add("--busy", action="store_true", help="measure on a busy machine too")
    arguments.declare_table(parser, "Workers on a corpus")


def run(args: argparse.Namespace) -> int:
    """Measure, and write the table.

    Raises:
        UsageError: there is no such file, or a command fails.
    """
    from ..data import documents
    from ..data.table import Cells, Table, Value, column

    documents.check_out(args.out)
    if not args.input.is_file():
        raise option_error("FILE", str(args.input), "a text file")
    single = ["--threads", "1", "--decoding", "greedy", "--buffer-size", str(PART)]
    ways = {"1 process, text to text": single}
    for n in args.processes:
        ways[f"{n} workers, in parts"] = ["--out", PARTS, "--processes", str(n)]
    for n in args.processes if args.cluster else ():
        flags = ["--out", PARTS, "--processes", str(n), "--cluster", args.cluster]
        ways[f"{n} workers of Ray, in parts"] = flags
    content = args.input.read_bytes().splitlines(keepends=True)
    times = np.empty((args.rounds, len(ways), 2))
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "one"
        one.write_bytes(b"".join(content[:1]))
        for turn, place in itertools.product(*map(range, times.shape[:2])):
            flags = [*ways.values()][place]
            times[turn, place] = [
                _seconds(args.model, path, flags, args.busy) for path in (one, args.input)
            ]
    start, whole = times[..., 0], times[..., 1]
    after = whole - start
    rows: list[Cells] = [
        {
            "by": way,
            "flags": shlex.join(ways[way]),
            column("seconds", form=".1f"): Value.of(whole[:, i].tolist()),
            "of_them_start": round(np.median(start[:, i]), 1),
            "sentences_per_second_after_it": round((len(content) - 1) / np.median(after[:, i]), 1),
            "times_the_first": round(np.median(whole[:, 0] / whole[:, i]), 2),
            "after_the_start": round(np.median(after[:, 0] / after[:, i]), 2),
        }
        for i, way in enumerate(ways)
    ]
    notes = [
        f"{len(content)} lines of {args.input.name}; whole commands; medians of {args.rounds} "
        "rounds (lowest-highest), in turns, also of the ratios; a thread each.",
        "Start: the same command for the first line alone.",
    ]
    documents.save_made(Made(args.argv, args.out, args.title), Table.of(rows, notes=notes))
    return 0


def _seconds(model: str, path: Path, flags: list[str], busy: bool) -> float:
    """Return the seconds of a command for a file; PARTS stands for a new folder.

    Raises:
        UsageError: it fails.
    """
    from ..measure import machine

    if not busy:
        machine.wait_until_idle()
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder) / "parts"
        words = [str(parts) if word == PARTS else word for word in flags]
        command = [sys.executable, "-m", "fairseq_paradec", "translate", "--model", model]
        begin = time.perf_counter()
        done = subprocess.run(
            [*command, str(path), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        seconds = time.perf_counter() - begin
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UsageError(f"paradec translate {shlex.join(words)}: {last}")
    return seconds
