"""Measure what a start costs: an import, help, loading a model, a first sentence.

Each runs in a process of its own, and the processes alternate. The processor's time counts: other
work on the machine hardly changes it, unless two threads share a core.
"""

import argparse
import itertools
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...cli import arguments
from ...errors import UsageError, option_error
from ..settings import Made

PARADEC = [sys.executable, "-m", "fairseq_paradec"]


# A process begins with the memory of the one that starts it, to the system: that is a small one.
LAUNCH = """
import os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
passed = time.perf_counter() - begin
status = os.waitstatus_to_exitcode(status)
print(status, used.ru_utime, used.ru_stime, passed, used.ru_maxrss / 1024)
"""


class Cost(NamedTuple):
    """What a process costs."""

    user: float  # seconds that the process itself computes
    system: float  # seconds that the kernel computes for it
    whole: float  # seconds by the clock
    memory: float  # MiB, the most that was resident, shared files among it


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "example: paradec start-up --model data-bin/demo.en-de --out runs/start-up.json"
    add = parser.add_argument
    add("--model", metavar="DIR", help="a folder of paradec pack")
    add(
        "--arch-size",
        choices=arguments.ARCH_SIZES,
        help="instead of --model: random weights of this size, packed alone in int8; their output "
        "has as many tokens as the sentence",
    )
    add(
        "--text",
        type=arguments.utf8,
        default="A dog runs.",
        help="the sentence (default: %(default)s)",
    )
    add("--rounds", type=arguments.whole_number, default=5, help="(default: 5)")
    add("--busy", action="store_true", help="measure on a busy machine too; the result says so")
    arguments.declare_table(parser, "Start-up")


def run(args: argparse.Namespace) -> int:
    """Measure, and write the table.

    Raises:
        UsageError: a process fails.
    """
    from ..data import documents

    if (args.model is None) == (args.arch_size is None):
        raise option_error("--model", args.model, "one of --model and --arch-size")
    documents.check_out(args.out)
    with tempfile.TemporaryDirectory(prefix="paradec-start-up-") as room:
        model = args.model or random_folder(args.arch_size, Path(room))
        _measure(args, model, [] if args.model else ["--max-len-a", "1", "--max-len-b", "0"])
    return 0


def _measure(args: argparse.Namespace, model: str, limits: list[str]) -> None:
    """Measure the processes in rounds, and write the table."""
    from ..data import documents
    from ..data.table import Table, column
    from ..measure import machine

    translate = ["translate", "--text", args.text, *limits, "--model"]
    load = "import sys, fairseq_paradec; fairseq_paradec.load(sys.argv[1])"
    starts = {
        "import torch": [sys.executable, "-c", "import torch"],
        "import fairseq_paradec": [sys.executable, "-c", "import fairseq_paradec"],
        "paradec --help": [*PARADEC, "--help"],
        "fairseq_paradec.load": [sys.executable, "-c", load, model],
        f"paradec {shlex.join(translate)} {args.arch_size or model}": [*PARADEC, *translate, model],
    }
    costs = np.empty((args.rounds, len(starts), len(Cost._fields)))
    for turn, (place, command) in itertools.product(range(args.rounds), enumerate(starts.values())):
        if not args.busy:
            machine.wait_until_idle()
        costs[turn, place] = cost(command)
    medians = np.median(costs, axis=0)
    rows = [
        {
            "start": start,
            column("processor_s", "processor, s", "s"): round(user, 2),
            column("kernel_s", "its kernel's, s", "s"): round(system, 2),
            column("clock_s", "by the clock, s", "s"): round(whole, 2),
            column("peak_MiB", "peak memory, MiB", "MiB"): round(memory),
        }
        for start, (user, system, whole, memory) in zip(starts, medians.tolist(), strict=True)
    ]
    used = machine.busy_cores()
    notes = [
        f"Medians of {args.rounds} rounds. Processor: the time that the process itself computes. "
        "Memory: the most that was resident, mapped files that processes share among it.",
        *([] if used is None else [f"Cores that others used after the last round: {used:.1f}."]),
    ]
    documents.save_made(Made(args.argv, args.out, args.title), Table.of(rows, notes=notes))


def random_folder(size: str, room: Path) -> str:
    """Make a model folder of random weights, packed alone in int8; return its path."""
    import torch

    from ...plugin.files import new_checkpoint
    from ..measure.passes.models import WORDS, WORDS_OF, random_pair

    pair = random_pair(size, WORDS_OF.get(size, WORDS), 1, kinds=())
    for language in ("source", "target"):
        pair.task.source_dictionary.save(str(room / f"dict.{language}.txt"))
    options = {**vars(pair.args), "_name": "transformer"}
    weights = new_checkpoint("source", "target", options, pair.model.state_dict())
    torch.save(weights, room / "model.pt")
    del pair, weights
    given = [str(room), str(room / "packed"), "--path", str(room / "model.pt")]
    given += ["-s", "source", "-t", "target", "--engine-dtype", "int8", "--packed-only"]
    cost([*PARADEC, "pack", *given])
    return str(room / "packed")


def cost(command: list[str]) -> Cost:
    """Run a command; return what it costs.

    Raises:
        UsageError: it fails.
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCH, *command],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    status, *numbers = map(float, done.stdout.split())
    if status:
        last = done.stderr.strip().rpartition("\n")[2]
        raise UsageError(f"{shlex.join(command)}: exit status {status:.0f}: {last}")
    return Cost(*numbers)
