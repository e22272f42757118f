"""What measurements share: decoders on the sentences of a data folder, rounds, and a journal."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ... import files
from ...engine.settings import usable_device
from ...files import check_inputs
from ..data.journal import Journal
from ..data.samples import Rounds as Samples
from ..data.table import Value
from ..measure import rounds
from ..measure.inputs import code_and_machine
from ..measure.loading import choose
from ..measure.specs import Spec, read
from ..measure.systems import FairseqSystem, Models
from .asked import Decoders, Rounds

#: Begins a command of this package, in a process of its own.
PARADEC = (sys.executable, "-m", "fairseq_paradec")

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


def load(
    asked: Decoders, specs: Sequence[Spec] | None = None
) -> tuple[list[FairseqSystem], list[int]]:
    """Return the decoders, and the numbers of the sentences, from short to long.

    Args:
        asked: data, device, and the checkpoint of all that have none of their own.
        specs: of the decoders; None: those that are asked for.
    """
    check_inputs(asked.data, asked.path)
    specs = [*map(read, asked.decoder)] if specs is None else specs
    usable_device(asked.device)
    models = Models(asked.data, asked.subset, "fp32", asked.device)
    systems = [FairseqSystem(spec, models, asked.path, {}) for spec in specs]
    verifier, task = models.load(asked.path)
    return systems, choose(task, asked.subset, verifier, asked.sentences)


def in_rounds(
    asked: Rounds,
    journal: Journal,
    unit: str,
    compared: Sequence[S],
    items: Sequence[T],
    work: Callable[[S, T], R],
) -> tuple[list[list[list[R]]], str]:
    """Run rounds, each on an idle machine, with a progress bar.

    Args:
        asked: how many rounds, and whether they also run on a busy machine.
        journal: a round that it has is not run again.
        unit: what the bar counts.
        compared: what takes turns at each item.
        items: what is done in a round.
        work: of one of them at an item; its result can be JSON.

    Returns:
        The results of each, by round and item; and a note on what others used of the machine.
    """
    by_round, used = rounds.all_rounds(
        compared, items, asked.rounds, asked.busy, work, unit, journal
    )
    return [*map(list, zip(*by_round, strict=True))], rounds.others_used(used, asked.busy)


def speed_up(baseline: Samples, seconds: Samples) -> Value:
    """Return the baseline's total time of a round over another's, summed up over the rounds."""
    return Value.of([sum(base) / sum(own) for base, own in zip(baseline, seconds, strict=True)])


@contextlib.contextmanager
def journal(what: str, asked: Any, out: Path | None) -> Iterator[Journal]:
    """Keep finished rounds beside a result until it is written.

    Args:
        what: the name of what is measured.
        asked: how; of files in it what they hold counts, too.
        out: the JSON file; None: rounds are not kept.

    Raises:
        UsageError: what is kept there is of another run.
    """
    ignored = ("busy", "plot", "title", "argv")
    given = {name: str(value) for name, value in vars(asked).items() if name not in ignored}
    held = {path: files.checksum(Path(path)) for path in given.values() if os.path.isfile(path)}
    path = None if out is None else out.with_suffix(".partial.jsonl")
    run = {"schema": "profile", "what": what, "argument": given, "file": held}
    kept = Journal(path, run | code_and_machine())
    try:
        yield kept
    finally:
        kept.close()
    if path is not None:
        path.unlink()
