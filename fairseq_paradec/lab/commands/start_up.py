"""Measure what a start costs: an import, help, a first sentence; each in a process of its own.

The processor's time is what counts: other work on the machine hardly changes it, but for a core
that two threads share. The processes alternate.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import subprocess
import sys
import time

import numpy as np

from ...cli import arguments
from ...errors import UsageError
from ..settings import Made


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("--model", metavar="DIR", required=True, help="a folder of paradec pack")
    add("--text", default="A dog runs.", help="the sentence (default: %(default)s)")
    add("--rounds", type=arguments.whole_number, default=5, help="(default: 5)")
    add("--busy", action="store_true", help="measure though others use the machine; it is noted")
    arguments.declare_table(parser, "Start-up")


def run(args: argparse.Namespace) -> int:
    """Measure, and write the table.

    Raises:
        UsageError: a process fails.
    """
    from ..measure import documents, machine

    documents.check_out(args.out)
    paradec = [sys.executable, "-m", "fairseq_paradec"]
    translate = ["translate", "--model", args.model, "--text", args.text]
    starts = {
        "import torch": [sys.executable, "-c", "import torch"],
        "import fairseq_paradec": [sys.executable, "-c", "import fairseq_paradec"],
        "paradec --help": [*paradec, "--help"],
        f"paradec {shlex.join(translate)}": [*paradec, *translate],
    }
    times = np.empty((args.rounds, len(starts), 3))
    for turn, (place, command) in itertools.product(range(args.rounds), enumerate(starts.values())):
        if not args.busy:
            machine.wait_until_idle()
        times[turn, place] = seconds(command)
    medians = np.median(times, axis=0)
    rows = [
        {
            "start": start,
            "processor, s": round(user, 2),
            "its kernel's, s": round(system, 2),
            "by the clock, s": round(whole, 2),
        }
        for start, (user, system, whole) in zip(starts, medians.tolist(), strict=True)
    ]
    used = machine.busy_cores()
    notes = [
        f"Medians of {args.rounds} rounds. Processor: the time that the process itself computes.",
        *([] if used is None else [f"Cores that others used after the last round: {used:.1f}."]),
    ]
    documents.save_made(Made(args.argv, args.out, args.title), notes, rows)
    return 0


def seconds(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return its seconds of the processor, of the kernel, and by the clock.

    Raises:
        UsageError: it fails.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UsageError(f"{shlex.join(command)}: exit status {process.returncode}")
    return used.ru_utime, used.ru_stime, time.perf_counter() - begin
