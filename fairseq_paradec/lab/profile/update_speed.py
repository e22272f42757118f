"""``profile training-speed --before``: the updates of this checkout beside those of an older one.

Both sides are processes of their own, with fairseq's Trainer, its flags and the same batches, and
make their updates in alternation.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ...errors import UsageError, option_error
from ..data.journal import Journal
from ..data.table import Cells, Table, Value, column
from ..measure import rounds
from .asked import Training

PACKAGE = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("updates_worker.py")

#: What every training on a CPU has; the user's flags come later and win.
COMMON = shlex.split(
    "--optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.0001 --cpu --distributed-world-size 1 "
    "--num-workers 0"
)


class Trained(NamedTuple):
    """An architecture with flags: ``ARCH [flags] [+ flags of this checkout alone]``."""

    arch: str  # its name
    flags: tuple[str, ...]  # of fairseq-train, for both sides
    new: tuple[str, ...]  # more, which the older checkout may not know

    @classmethod
    def parse(cls, text: str) -> "Trained":
        """Read a value of ``--arch``.

        Raises:
            UsageError: it is empty, or not what a shell takes.
        """
        both, _, new = text.partition(" + ")
        try:
            words, more = shlex.split(both), shlex.split(new)
        except ValueError as error:
            raise option_error("--arch", text, f"flags as a shell takes them ({error})") from None
        if not words or words[0][0] in "-+":
            raise option_error("--arch", text, "an architecture, then flags of fairseq-train")
        return cls(words[0], tuple(words[1:]), tuple(more))


class Side:
    """A process that makes updates by the code of a checkout."""

    def __init__(self, checkout: Path, flags: Sequence[str], batches: int, threads: int) -> None:
        asked = {"flags": list(flags), "batches": batches, "threads": threads}
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
        )
        self.flags = shlex.join(flags)
        self.hello: dict[str, Any] = self._read()
        if Path(self.hello["package"]).parent != checkout:
            self.close()
            raise option_error("--before", str(checkout), "a checkout, with its fairseq_paradec")

    def _read(self) -> Any:
        """Read a line of the process's.

        Raises:
            UsageError: it has ended; it has said why.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise UsageError(
                f"--arch: got {self.flags!r}, with which training fails, as said above"
            )
        return json.loads(line)

    def update(self, batch: int) -> tuple[float, float]:
        """Make an update; return its seconds by the clock and of CPU time."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{batch}\n")
        self.process.stdin.flush()
        clock, cpu = self._read()
        return clock, cpu

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def __enter__(self) -> "Side":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def measure(asked: Training, journal: Journal) -> Table:
    """Let both checkouts make updates in turns; return the table.

    Raises:
        UsageError: ``before`` is no checkout, or an architecture cannot be trained.
    """
    before = Path(asked.before or "").resolve()
    if asked.before is None or not (before / "fairseq_paradec").is_dir():
        raise option_error("--before", asked.before, "a checkout of this project, an older one")
    if asked.device != "cpu":
        raise option_error("--device", asked.device, "cpu with --before")
    specs = [Trained.parse(text) for text in asked.arch]
    rows: list[Cells] = []
    most: list[float | None] = []
    for spec in specs:
        row, used = _compare(asked, spec, before, journal, f"{len(rows)}")
        rows.append(row)
        most += used
    notes = [
        f"{asked.batches} batches, {asked.rounds} rounds after a warm-up, both checkouts in turns, "
        f"each in a process of its own; fp32, cpu, {asked.threads} thread(s); "
        f"{rounds.others_used(most, asked.busy)}.",
        "An update is fairseq's: forward, backward, norm of the gradient, Adam. Batches come round "
        "again, so that kept outputs are found, as from the second epoch on. Times are medians of "
        "the rounds' ratios (lowest-highest); by CPU time, which others on the machine disturb "
        "less, in the last column.",
    ]
    return Table.of(rows, notes=notes)


def _compare(
    asked: Training, spec: Trained, before: Path, journal: Journal, name: str
) -> tuple[Cells, list[float | None]]:
    """Measure an architecture; return its row, and the cores that others used."""
    data = os.path.abspath(asked.data)
    flags = [data, *COMMON, "--max-tokens", str(asked.max_tokens), *asked.flags]
    flags += ["--arch", spec.arch, *spec.flags]
    with (
        Side(before, flags, asked.batches, asked.threads) as old,
        Side(PACKAGE.parent, [*flags, *spec.new], asked.batches, asked.threads) as new,
    ):
        items = range(old.hello["batches"])
        rounds.in_turns([old, new], items, 0, Side.update)  # warms up
        results, used = rounds.all_rounds(
            [old, new], items, asked.rounds, asked.busy, Side.update, "updates", journal, name
        )
    # By kind of time, round and side: seconds of all batches.
    clock, cpu = (
        [[sum(each[kind] for each in side) for side in of_round] for of_round in results]
        for kind in (0, 1)
    )
    row: Cells = {
        "architecture": spec.arch,
        "flags": shlex.join([*spec.flags, *(["+", *spec.new] if spec.new else [])]),
        "tokens_an_update": round(old.hello["tokens"] / len(items)),
        column("before", "updates a second, before"): round(
            len(items) / statistics.median(a for a, _ in clock), 3
        ),
        "after": round(len(items) / statistics.median(b for _, b in clock), 3),
        column("times_as_many", form=".2f"): Value.of([a / b for a, b in clock]),
        "by_CPU_time": round(statistics.median(a / b for a, b in cpu), 2),
    }
    return row, used
