"""``paradec threads``: speed and memory of one generator on several threads, and of several."""

import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch

from ... import register
from ...errors import UsageError
from ...model_checks import BLOCK_NAT
from ...plugin.tasks.loading import check_inputs
from ..data import documents
from ..data.table import Cells, Table, Value, column
from ..settings import Made
from . import machine, rounds
from .loading import choose
from .specs import Spec
from .systems import FairseqSystem, Models
from .traits import drafting

Pair = tuple[float, float]
#: A decoder's label, what it is measured by, and processes, which wait for their turns.
Way = tuple[str, str, Sequence[ProcessPoolExecutor]]


@dataclass(frozen=True)
class Settings(Made):
    """Of ``paradec threads``."""

    data: str  # fairseq's data folder
    path: str  # the checkpoint
    drafter_path: str | None  # a drafter of it; None: none
    decoders: Sequence[Spec]  # what is measured; none: see ``usual``
    threads: Sequence[int]  # numbers of threads, and of generators
    subset: str  # of the data
    sentences: int  # at most so many
    rounds: int  # so many, interleaved
    busy: bool  # also while others use the machine


# In a worker process: decodes all sentences by each generator; see ``_hold``.
_HELD: list[Callable[[], list[Pair]]] = []


def _hold(args: Settings, spec: Spec, count: int, threads: int) -> int:
    """In a worker process: build generators on one model; return the number of sentences."""
    logging.disable(logging.WARNING)
    register()
    models = Models(args.data, args.subset, "fp32", "cpu")
    systems = [FairseqSystem(spec, models, args.path, {}) for _ in range(count)]
    sentences = choose(systems[0].task, args.subset, systems[0].models, args.sentences)

    def decode(system: FairseqSystem) -> Pair:
        begin = rounds.now()
        for sentence in random.sample(sentences, len(sentences)):
            system.translate([sentence])
        return begin, rounds.now()

    # Some of torch's functions ask OpenMP, which has a number for each thread.
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(threads,))
    _HELD.append(lambda: list(pool.map(decode, systems)))
    return len(sentences)


def _decode() -> list[Pair]:
    """In a worker process: return when each generator began and ended."""
    return _HELD[0]()


def measure(way: Way, sentences: int) -> Pair:
    """Decode by all generators; return sentences per second, and milliseconds per sentence."""
    done = [worker.submit(_decode) for worker in way[-1]]
    begins, ends = zip(*(span for one in done for span in one.result()), strict=True)
    speed = len(ends) * sentences / (max(ends) - min(begins))
    return speed, 1000 * (sum(ends) - sum(begins)) / len(ends) / sentences


def row(way: Way, found: Sequence[Pair], first: Sequence[Pair]) -> Cells:
    """Make a row of the table of all rounds: a way's, and those of its decoder on one thread."""
    speeds = [speed for speed, _ in found]
    ratios = [speed / one for speed, (one, _) in zip(speeds, first, strict=True)]
    peaks = [worker.submit(machine.peak_mib).result() for worker in way[-1]]
    return {
        "decoder": way[0],
        "by": way[1],
        column("sentences_per_second", form=".1f"): Value.of(speeds),
        "times_1_thread": round(median(ratios), 2),
        "ms_a_sentence": round(median(each for _, each in found), 2),
        column("peak_MiB", "peak MiB", "MiB"): None
        if None in peaks
        else round(sum(filter(None, peaks))),
    }


def usual(drafter_path: str | None) -> list[Spec]:
    """Return the decoders without ``--decoder``: greedy, and what decodes with the drafter."""
    decoders: list[dict[str, Any]] = [{"decoding": "greedy"}]
    if drafter_path is not None:
        drafted = drafting(BLOCK_NAT)
        decoders += [{"decoding": name, "drafter_path": drafter_path} for name in drafted]
    forms = {"fp32": {"engine": "native"}, "int8": {"engine": "native", "engine_dtype": "int8"}}
    return [
        Spec.of(options | form, f"{options['decoding']}, {dtype}")
        for options in decoders
        for dtype, form in forms.items()
    ]


def threads(args: Settings) -> int:
    """Measure all decoders in all ways, and write the table; return the exit status."""
    check_inputs(args.data, args.path)
    most = max(args.threads)
    torch.set_num_threads(most)  # as the head of the table says
    specs = args.decoders or usual(args.drafter_path)
    loading: list[Future[int]] = []
    with contextlib.ExitStack() as stack:

        def worker(*how: Any) -> ProcessPoolExecutor:
            try:
                pool = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
            except OSError as error:
                raise UsageError(f"/dev/shm cannot be written ({error.strerror})") from error
            loading.append(pool.submit(_hold, args, *how))
            return pool

        ways: list[Way] = []
        for spec in specs:
            alone = [worker(spec, 1, 1) for _ in range(most)]
            ways.append((spec.label, "1 generator", alone[:1]))
            for n in sorted({*args.threads} - {1}):
                ways.append((spec.label, f"1 generator, {n} threads", [worker(spec, 1, n)]))
                ways.append((spec.label, f"{n} generators in threads", [worker(spec, n, 1)]))
                ways.append((spec.label, f"{n} processes", alone[:n]))
        sentences = [one.result() for one in loading][0]
        rounds.in_turns(ways, [sentences], 0, measure)  # warms up
        results, used = rounds.all_rounds(
            ways, [sentences], args.rounds, args.busy, measure, "measurements"
        )
        found = [[pair for (pair,) in own] for own in zip(*results, strict=True)]
        each = len(ways) // len(specs)  # ways of a decoder; the first is one thread
        rows = [row(way, found[i], found[i - i % each]) for i, way in enumerate(ways)]
    notes = [
        f"{sentences} sentences of `{args.subset}`, one at a time, all by each generator; medians "
        f"(lowest-highest) of {args.rounds} interleaved rounds; "
        f"{rounds.others_used(used, args.busy)}.",
        "Several generators have one thread each; those in threads of a process share the weights.",
        "Peak MiB: resident memory; of processes the sum, in which each counts the libraries.",
    ]
    documents.save_made(args, Table.of(rows, notes=notes))
    return 0
