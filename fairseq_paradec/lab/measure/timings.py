"""Outputs, passes and raw times of systems on the same sentences.

All systems translate the same sentences in the same process. In each round all of them decode a
sentence before the next one, each time in another order. The timer covers batching, encoder,
decoder and detokenisation.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from ..data.journal import Journal
from . import machine, rounds
from .systems import Output, System, columns, decode

# A batch size is used if it speeds up some decoder by this factor.
USEFUL = 1.05
WARM_UP = 5
# Pause in seconds before a timed translation, if some system has several threads: idle OpenMP
# threads spin for some milliseconds, and would take a core from the next system.
REST = 0.005
# The stored fields of outputs.
KEPT = ("tokens", "texts", "passes", "blocks")


@dataclass(frozen=True)
class Plan:
    """The plan of a benchmark."""

    sentences: list[int]  # the numbers of the sentences, from short to long
    timed: list[int]  # the sentences whose latency is measured
    batch_sizes: tuple[int, ...]  # of the throughput sweep, in ascending order
    threads: tuple[int, ...]  # CPU threads; the first is used for all but the thread sweep
    rounds: int  # the number of timed rounds
    device: str = "cpu"  # ``cpu`` or ``cuda``
    busy: bool = False  # also measure on a busy machine

    def batches(self, size: int) -> list[list[int]]:
        """Return the sentences in batches of similar length."""
        return [self.sentences[i : i + size] for i in range(0, len(self.sentences), size)]


class Benchmark:
    """Measures systems and keeps raw samples."""

    def __init__(self, systems: Sequence[System], plan: Plan, journal: Journal) -> None:
        self.systems, self.plan, self.journal = list(systems), plan, journal
        self.bar = tqdm(disable=True)
        self._observed: dict[str, dict[int, list[str]]] = {}

    def run(self) -> None:
        """Measure everything that the journal does not hold yet, with a progress bar."""
        with tqdm(
            desc="translating", total=self._left(), unit=" sentences", leave=False, disable=None
        ) as self.bar:
            self._run()

    def _timed_by(self, threads: int) -> list[System]:
        """Return the systems whose latency is measured with these threads.

        A peer may have its own number of threads; the first rounds have peers of every number.
        """
        return self.systems if threads == self.plan.threads[0] else self._with(threads)

    def _with(self, threads: int) -> list[System]:
        """Return the systems on a number of threads: all but those on another of their own."""
        return [s for s in self.systems if s.threads in (None, threads)]

    def _left(self) -> int:
        """Return the largest number of translations left."""
        plan, count, among = self.plan, len(self.plan.sentences), self._with(self.plan.threads[0])
        work = {f"outputs/1/{s.label}": count for s in self.systems}
        for size in plan.batch_sizes:
            work |= {f"outputs/{size}/{s.label}": count for s in among}
            work |= {f"throughput/{size}/{r}": count * len(among) for r in range(plan.rounds)}
        for threads in plan.threads:
            each = len(plan.timed) * len(self._timed_by(threads))
            work |= {f"latency/{threads}/{r}": each for r in range(plan.rounds)}
        return sum(amount for key, amount in work.items() if key not in self.journal.entries)

    def _run(self) -> None:
        """Measure; the first batch size that speeds up no decoder ends the sweep."""
        torch.set_num_threads(self.plan.threads[0])
        for system in self.systems:
            self.observe(system, 1)
        for threads in self.plan.threads:
            torch.set_num_threads(threads)
            items = [[sentence] for sentence in self.plan.timed]
            self.time(f"latency/{threads}", self._timed_by(threads), items)
        torch.set_num_threads(self.plan.threads[0])
        among = self._with(self.plan.threads[0])
        best: dict[str, float] = {}
        for size in self.plan.batch_sizes:
            for system in among:
                self.observe(system, size)
            self.time(f"throughput/{size}", among, self.plan.batches(size))
            rates = {
                name: len(self.plan.sentences) / min(map(sum, rounds))
                for name, rounds in self.seconds(f"throughput/{size}").items()
            }
            if best and all(rates[name] < USEFUL * best[name] for name in rates):
                break
            best = rates

    def observe(self, system: System, size: int) -> None:
        """Translate everything once, untimed, for outputs, passes and peak MiB."""
        key = f"outputs/{size}/{system.label}"
        if key in self.journal.entries:
            return

        # The first call builds caches, which are not this system's memory.
        self._warm_up(system, self.plan.batches(size))
        outputs, memory = machine.with_peak_memory(
            lambda: decode(system, self.plan.sentences, size, self.bar.update), self.plan.device
        )
        by_name = columns(outputs)
        kept = {name: None if None in by_name[name] else by_name[name] for name in KEPT}
        self.journal.put(key, kept | {"memory": memory, "provenance": system.provenance()})

    def time(self, key: str, systems: Sequence[System], items: Sequence[list[int]]) -> None:
        """Time whole translations in rounds: each item by all systems before the next item."""
        warm = False
        for turn in range(self.plan.rounds):
            if f"{key}/{turn}" in self.journal.entries:
                continue
            if not warm:
                for system in systems:
                    self._warm_up(system, items)
                warm = True
            entry, busy = rounds.undisturbed(
                partial(self._round, systems, items, turn), self.plan.busy
            )
            self.journal.put(f"{key}/{turn}", {"busy": busy} | entry)

    def _warm_up(self, system: System, items: Sequence[list[int]]) -> None:
        """Translate a few items, with the first and the last."""
        step = max(1, (len(items) - 1) // WARM_UP)
        for item in [*items[:-1:step][:WARM_UP], items[-1]]:
            system.translate(item)

    def _round(
        self, systems: Sequence[System], items: Sequence[list[int]], turn: int
    ) -> dict[str, Any]:
        """Time one round; compare its outputs with the untimed ones."""
        most = max([torch.get_num_threads(), *(system.threads or 1 for system in systems)])

        def translate(system: System, item: list[int]) -> tuple[float, int]:
            if most > 1:
                time.sleep(REST)
            begin = rounds.now(self.plan.device)
            outputs = system.translate(item)
            seconds = round(rounds.now(self.plan.device) - begin, 7)
            self.bar.update(len(item))
            return seconds, self._changed(system, item, outputs)

        results = rounds.in_turns(systems, items, turn, translate)
        by_label = dict(zip((system.label for system in systems), results, strict=True))
        return {
            "seconds": {name: [seconds for seconds, _ in own] for name, own in by_label.items()},
            "changed": {name: sum(changed for _, changed in own) for name, own in by_label.items()},
        }

    def _changed(self, system: System, item: list[int], outputs: Sequence[Output]) -> int:
        """Count outputs that differ from the untimed ones, without ties of lossless systems."""
        if system.label not in self._observed:
            entry = self.journal.entries[f"outputs/1/{system.label}"]
            tokens = dict(zip(self.plan.sentences, entry["tokens"], strict=True))
            self._observed[system.label] = tokens
        before = self._observed[system.label]
        return sum(
            output.tokens != before[sentence]
            and not system.tie(sentence, output.tokens, before[sentence])
            for sentence, output in zip(item, outputs, strict=True)
        )

    def seconds(self, key: str) -> dict[str, list[list[float]]]:
        """Return the seconds of ``time`` for a key: by system, round and item."""
        rounds = [self.journal.entries[f"{key}/{turn}"] for turn in range(self.plan.rounds)]
        names = rounds[0]["seconds"]
        return {name: [entry["seconds"][name] for entry in rounds] for name in names}

    def measured(self, kind: str) -> Iterator[str]:
        """Yield the settings (threads, batch sizes) with times, in order."""
        wanted = self.plan.threads if kind == "latency" else self.plan.batch_sizes
        for setting in wanted:
            if f"{kind}/{setting}/0" in self.journal.entries:
                yield str(setting)

    def changed(self, name: str) -> int:
        """Return the number of a system's timed outputs that differ from the untimed ones."""
        return sum(entry["changed"].get(name, 0) for entry in self._rounds())

    def busiest(self) -> float | None:
        """Return the largest number of cores that others used in a round; None if unknown."""
        cores = [entry["busy"] for entry in self._rounds()]
        return None if None in cores else max(cores)

    def _rounds(self) -> list[dict[str, Any]]:
        """Return the entries of all timed rounds."""
        entries = self.journal.entries.items()
        return [entry for key, entry in entries if key.startswith(("latency/", "throughput/"))]
