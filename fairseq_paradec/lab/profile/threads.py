"""``profile threads``: speed and memory of one generator on several threads, and of several."""

import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any, NamedTuple

import torch

from ... import register
from ...errors import UsageError
from ...files import check_inputs
from ..data.journal import Journal
from ..data.table import Cells, Table, Value, column
from ..measure import machine, rounds
from ..measure.specs import Spec, read
from ..measure.systems import FairseqSystem
from .asked import Threads
from .harness import in_rounds, load

#: When a generator began and ended; or sentences a second, and milliseconds of a sentence.
Pair = tuple[float, float]


class Generators(NamedTuple):
    """Generators of one decoder that work at once."""

    decoder: str  # its label
    by: str  # how many there are, and on what
    processes: Sequence[ProcessPoolExecutor]  # wait for their turns


# In a worker process: decodes all sentences by each generator; see ``_hold``.
_HELD: list[Callable[[], list[Pair]]] = []


def _hold(asked: Threads, spec: Spec, count: int, threads: int) -> int:
    """In a worker process: build generators on one model; return the number of sentences."""
    logging.disable(logging.WARNING)
    register()
    systems, sentences = load(asked, [spec] * count)

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


def decode_all(generators: Generators, sentences: int) -> Pair:
    """Decode by all generators; return sentences per second, and milliseconds per sentence."""
    done = [worker.submit(_decode) for worker in generators.processes]
    begins, ends = zip(*(span for spans in done for span in spans.result()), strict=True)
    speed = len(ends) * sentences / (max(ends) - min(begins))
    return speed, 1000 * (sum(ends) - sum(begins)) / len(ends) / sentences


def row(generators: Generators, own: Sequence[Pair], single: Sequence[Pair]) -> Cells:
    """Make a row of the table of all rounds, and those of its decoder on one thread."""
    speeds = [speed for speed, _ in own]
    ratios = [speed / alone for speed, (alone, _) in zip(speeds, single, strict=True)]
    peaks = [worker.submit(machine.peak_mib).result() for worker in generators.processes]
    return {
        "decoder": generators.decoder,
        "by": generators.by,
        column("sentences_per_second", form=".1f"): Value.of(speeds),
        "times_1_thread": round(median(ratios), 2),
        "ms_a_sentence": round(median(each for _, each in own), 2),
        column("peak_MiB", "peak MiB", "MiB"): None
        if None in peaks
        else round(sum(filter(None, peaks))),
    }


def measure(asked: Threads, journal: Journal) -> Table:
    """Measure all decoders on one thread, on several, and in processes; return the table."""
    check_inputs(asked.data, asked.path)
    most = max(asked.threads)
    torch.set_num_threads(most)  # as the head of the table says
    specs = [*map(read, asked.decoder)]
    loading: list[Future[int]] = []
    with contextlib.ExitStack() as stack:

        def worker(*how: Any) -> ProcessPoolExecutor:
            try:
                pool = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
            except OSError as error:
                raise UsageError(f"/dev/shm cannot be written ({error.strerror})") from error
            loading.append(pool.submit(_hold, asked, *how))
            return pool

        compared: list[Generators] = []
        for spec in specs:
            alone = [worker(spec, 1, 1) for _ in range(most)]
            compared.append(Generators(spec.label, "1 generator", alone[:1]))
            for n in sorted({*asked.threads} - {1}):
                several = {
                    f"1 generator, {n} threads": [worker(spec, 1, n)],
                    f"{n} generators in threads": [worker(spec, n, 1)],
                    f"{n} processes": alone[:n],
                }
                compared += [Generators(spec.label, by, pools) for by, pools in several.items()]
        sentences = [loaded.result() for loaded in loading][0]
        rounds.in_turns(compared, [sentences], 0, decode_all)  # warms up
        results, others = in_rounds(
            asked, journal, "measurements", compared, [sentences], decode_all
        )
        pairs = [[pair for (pair,) in by_round] for by_round in results]
        each = len(compared) // len(specs)  # of a decoder; the first is one thread
        rows = [
            row(generators, pairs[i], pairs[i - i % each]) for i, generators in enumerate(compared)
        ]
    notes = [
        f"{sentences} sentences of `{asked.subset}`, one at a time, all by each generator; medians "
        f"(lowest-highest) of {asked.rounds} interleaved rounds; {others}.",
        "Several generators have one thread each; those in threads of a process share the weights.",
        "Peak MiB: resident memory; of processes the sum, in which each counts the libraries.",
    ]
    return Table.of(rows, notes=notes)
