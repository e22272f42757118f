"""Outputs, passes and raw times of systems on the same sentences.

All systems translate the same sentences in the same process. In each round all of them decode a
sentence before the next one, each time in another order. The timer covers batching, encoder,
decoder and detokenisation.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from ...threads import num_threads, set_threads
from ..data.journal import Journal
from . import machine, rounds
from .outputs import Output, System, decode

# A batch size is used if it speeds up some decoder by this factor.
USEFUL = 1.05
WARM_UP = 5
# Pause in seconds before a timed translation, if some system has several threads: idle OpenMP
# threads spin for some milliseconds, and would take a core from the next system.
REST = 0.005
# The stored fields of outputs, with the attributes that they hold.
KEPT = {"tokens": "tokens", "texts": "text", "passes": "passes", "blocks": "blocks"}


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
    """Measures systems and keeps raw samples.

    Settings are ``latency/THREADS`` and ``throughput/BATCH_SIZE``.
    """

    def __init__(self, systems: Sequence[System], plan: Plan, journal: Journal) -> None:
        self.systems, self.plan, self.journal = list(systems), plan, journal
        self._observed: dict[str, dict[int, list[str]]] = {}

    def run(self) -> None:
        """Measure what the journal lacks; the first batch size that helps no decoder is the last.

        Outputs come before times, which are compared with them.
        """
        plan = self.plan
        set_threads(plan.threads[0])
        for system in self.systems:
            self.observe(system, 1)
        for threads in plan.threads:
            set_threads(threads)
            self.time(f"latency/{threads}", [[sentence] for sentence in plan.timed])
        set_threads(plan.threads[0])
        best: dict[str, float] = {}
        for size in plan.batch_sizes:
            for system in self.timed(f"throughput/{size}"):
                self.observe(system, size)
            self.time(f"throughput/{size}", plan.batches(size))
            rates = {
                name: len(plan.sentences) / min(map(sum, by_round))
                for name, by_round in self.seconds(f"throughput/{size}").items()
            }
            if best and all(rates[name] < USEFUL * best[name] for name in rates):
                break
            best = rates

    def timed(self, setting: str) -> list[System]:
        """Return the systems that are timed in a setting: all but those on other threads.

        A peer may have its own number of threads; the first latencies are of peers of every number.
        """
        kind, _, number = setting.partition("/")
        first = self.plan.threads[0]
        if (kind, number) == ("latency", str(first)):
            return self.systems
        threads = int(number) if kind == "latency" else first
        return [system for system in self.systems if system.threads in (None, threads)]

    def observe(self, system: System, size: int) -> None:
        """Translate everything once, untimed, for outputs, passes and peak MiB."""
        key = f"outputs/{size}/{system.label}"
        if key in self.journal.entries:
            return

        # The first call builds caches, which are not this system's memory.
        self._warm_up(system, self.plan.batches(size))
        count = len(self.plan.sentences)
        with tqdm(desc=system.label, total=count, leave=False, disable=None) as bar:
            outputs, memory = machine.with_peak_memory(
                lambda: decode(system, self.plan.sentences, size, bar.update), self.plan.device
            )
        entry: dict[str, Any] = {"memory": memory, "provenance": system.provenance()}
        for name, attribute in KEPT.items():
            values = [getattr(output, attribute) for output in outputs]
            entry[name] = None if None in values else values
        self.journal.put(key, entry)

    def time(self, setting: str, items: Sequence[list[int]]) -> None:
        """Time whole translations in rounds: each item by all systems before the next item."""
        systems, count = self.timed(setting), self.plan.rounds
        if any(f"{setting}/{turn}" not in self.journal.entries for turn in range(count)):
            for system in systems:
                self._warm_up(system, items)
        most = max([num_threads(), *(system.threads or 1 for system in systems)])

        def translate(system: System, item: list[int]) -> tuple[float, int]:
            """Return the seconds, and how many outputs differ from the untimed ones."""
            if most > 1:
                time.sleep(REST)
            begin = rounds.now(self.plan.device)
            outputs = system.translate(item)
            seconds = round(rounds.now(self.plan.device) - begin, 7)
            return seconds, self._changed(system, item, outputs)

        busy, journal = self.plan.busy, self.journal
        rounds.all_rounds(systems, items, count, busy, translate, setting, journal, setting)

    def _warm_up(self, system: System, items: Sequence[list[int]]) -> None:
        """Translate a few items, with the first and the last."""
        step = max(1, (len(items) - 1) // WARM_UP)
        for item in [*items[:-1:step][:WARM_UP], items[-1]]:
            system.translate(item)

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

    def settings(self, kind: str) -> list[str]:
        """Return the settings of a kind that have times, in order."""
        numbers = self.plan.threads if kind == "latency" else self.plan.batch_sizes
        settings = [f"{kind}/{number}" for number in numbers]
        return [setting for setting in settings if f"{setting}/0" in self.journal.entries]

    def seconds(self, setting: str) -> dict[str, list[list[float]]]:
        """Return the seconds in a setting: by system, round and item."""
        return {
            label: [[seconds for seconds, _ in results] for results in by_round]
            for label, by_round in self._results(setting).items()
        }

    def changed(self, label: str) -> int:
        """Return the number of a system's timed outputs that differ from the untimed ones."""
        settings = [*self.settings("latency"), *self.settings("throughput")]
        by_round = [
            results for setting in settings for results in self._results(setting).get(label, ())
        ]
        return sum(changed for results in by_round for _, changed in results)

    def _results(self, setting: str) -> dict[str, list[list[tuple[float, int]]]]:
        """Return what ``translate`` of ``time`` returned: by system, round and item."""
        entries, turns = self.journal.entries, range(self.plan.rounds)
        by_round = [entries[f"{setting}/{turn}"][0] for turn in turns]
        return {
            system.label: [results[place] for results in by_round]
            for place, system in enumerate(self.timed(setting))
        }

    def busiest(self) -> float | None:
        """Return the largest number of cores that others used in a round; None if unknown."""
        settings = [*self.settings("latency"), *self.settings("throughput")]
        keys = [f"{setting}/{turn}" for setting in settings for turn in range(self.plan.rounds)]
        cores = [self.journal.entries[key][1] for key in keys]
        return None if None in cores else max(cores)
