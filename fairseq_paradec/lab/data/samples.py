"""Raw times as one long table, and every speed-up of it by one function."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .table import Value

#: Seconds by round and item.
Rounds = Sequence[Sequence[float]]

LATENCY, THROUGHPUT = "latency", "throughput"


class Sample(NamedTuple):
    """What one system took for one item in one round.

    Compared systems take turns at each item of a round, so that a busy moment of the machine slows
    all of them.
    """

    system: str
    round: int
    item: int  # a sentence; of a throughput, a batch
    seconds: float
    kind: str = LATENCY
    threads: int = 1
    batch: int = 1  # sentences


def series(system: str, rounds: Rounds, **setting: Any) -> Iterator[Sample]:
    """Yield the samples of one system in one setting."""
    for number, times in enumerate(rounds):
        for item, seconds in enumerate(times):
            yield Sample(system, number, item, seconds, **setting)


def samples(document: Mapping[str, Any]) -> Iterator[Sample]:
    """Yield all samples of a benchmark's file."""
    main = document["setting"]["threads"][0]
    for kind, settings in document["seconds"].items():
        for at, systems in settings.items():
            setting = {"threads": int(at)} if kind == LATENCY else {"threads": main}
            setting |= {"batch": 1 if kind == LATENCY else int(at)}
            for system, rounds in systems.items():
                yield from series(system, rounds, kind=kind, **setting)


def speed_ups(
    samples: Iterable[Sample],
    against: str,
    by: Callable[[Sample], Hashable] = lambda sample: None,
) -> dict[tuple[str, Any], Value]:
    """Return each system's speed-up: the baseline's total time of a round over the system's.

    Args:
        samples: of the baseline, too.
        against: the baseline.
        by: what to group samples by; each group has its own speed-up.

    Returns:
        The median of the rounds, the lowest and the highest, by system and group. Groups that lack
        the baseline have none.
    """
    seconds: dict[tuple[str, Hashable, int], list[float]] = {}
    for sample in samples:
        key = sample.system, by(sample), sample.round
        seconds.setdefault(key, []).append(sample.seconds)
    ratios: dict[tuple[str, Any], list[float]] = {}
    for (system, group, number), own in seconds.items():
        if (against, group, number) in seconds:
            ratio = sum(seconds[against, group, number]) / sum(own)
            ratios.setdefault((system, group), []).append(ratio)
    return {key: Value.of(of_rounds) for key, of_rounds in ratios.items()}
