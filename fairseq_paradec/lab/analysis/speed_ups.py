"""Speed-ups of a benchmark by batch, beam, source length and threads, and sentence by sentence.

A pure function of what ``paradec benchmark`` wrote. Ratios are those of ``samples``, bins and
labels those of ``timing`` and ``benchmark_tables``.

Sources: zhang2020, Figure 2 (batch and beam, against a Transformer with the same) and Figure 3
(length); santilli2023, Figure 3 (threads); xia2022, Figure 4 (single sentences).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import option_error
from ..data.samples import LATENCY, THROUGHPUT, Sample, samples, speed_ups
from ..data.table import Cells, Table, Value, column
from .benchmark_tables import (
    BEAM,
    BINS,
    MS,
    alone_samples,
    label,
    latencies,
    main_threads,
    shown,
    threads,
)
from .timing import length_bins, milliseconds

#: Settings by which speed-ups are listed.
KINDS = ("batch", "beam", "batch-beam", "length", "threads")

#: Quantiles of the per-sentence speed-ups, in percent.
QUANTILES = (5, 25, 50, 75, 95)

#: The last bin of per-sentence speed-ups, which is open.
LAST_BIN = 10
#: Characters of the longest bar of a histogram as text.
LONGEST_BAR = 40


@dataclass(frozen=True)
class SpeedUp:
    """One number of a table."""

    name: str  # of the system
    label: str  # of its outputs
    key: str  # of the column, for example ``batch_8``
    at: str  # in words, for example ``batch 8``
    spread: Value  # the speed-up over the rounds
    against: str  # the baseline's name
    ms: Value | None = None  # median time of a sentence; None where batches were timed


def check_against(document: Mapping[str, Any], against: str) -> None:
    """Refuse a baseline that was not measured."""
    names = [system["label"] for system in document["systems"]]
    if against not in names:
        raise option_error("--against", against, "a decoder of the benchmark: " + ", ".join(names))


def _own(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the systems that were measured in every setting."""
    return [system for system in document["systems"] if system["promise"] != "peer"]


def in_settings(document: Mapping[str, Any], by: str, against: str = BEAM) -> list[SpeedUp]:
    """Return each system's speed-up in each setting, system by system.

    Args:
        document: what ``paradec benchmark`` wrote.
        by: one of ``KINDS``.
        against: the baseline's label; for ``beam`` only where fairseq's search of the same beam is
            missing. For ``batch-beam`` its options are the baseline's, with each system's beam.

    Returns:
        An empty list if there is nothing to compare: one batch size, one number of threads, or no
        two systems whose options differ only in ``--beam``.

    Raises:
        UsageError: the baseline was not measured in these settings.
    """
    check_against(document, against)
    if by == "beam":
        return _by_beam(document, against)
    if against not in {system["label"] for system in _own(document)}:
        allowed = "a decoder that is no peer: peers were timed with their own threads"
        raise option_error("--against", against, allowed)
    settings = {"length": _lengths, "threads": _threads}.get(by, _batches)(document)
    if len(settings.names) < 2:
        return []
    if by == "batch-beam":
        return _by_batch_and_beam(document, against, settings)
    return [one for system in _own(document) for one in settings.of(system, against)]


class _Settings:
    """Samples in groups.

    Args:
        raw: the samples.
        by: what groups them.
        names: key and words of each group, in order.
    """

    def __init__(
        self, raw: list[Sample], by: Callable[[Sample], Any], names: dict[Any, tuple[str, str]]
    ) -> None:
        self.names = names
        self._gains = functools.cache(lambda against: speed_ups(raw, against, by))

    def of(self, system: dict[str, Any], against: str) -> list[SpeedUp]:
        """Return a system's speed-up in each group."""
        gains, name = self._gains(against), system["label"]
        return [
            SpeedUp(shown(system), label(system), *words, gains[name, group], against)
            for group, words in self.names.items()
        ]


def _batches(document: Mapping[str, Any]) -> _Settings:
    """Group by batch size; at batch 1 are single sentences."""
    sizes = sorted({1, *map(int, document["seconds"]["throughput"])})
    whole = [one for one in samples(document) if one.kind == THROUGHPUT]
    alone = [] if "1" in document["seconds"]["throughput"] else alone_samples(document)
    names = {size: (f"batch_{size}", f"batch {size}") for size in sizes}
    return _Settings([*alone, *whole], lambda one: one.batch, names)


def _lengths(document: Mapping[str, Any]) -> _Settings:
    """Group the sentences by source length."""
    bins = length_bins(document["source_lengths"], BINS)
    bin_of = {item: name for name, items in bins.items() for item in items}
    names = {name: (f"tokens_{name}", f"{name} tokens") for name in bins}
    return _Settings(alone_samples(document), lambda one: bin_of[one.item], names)


def _threads(document: Mapping[str, Any]) -> _Settings:
    """Group by the number of threads."""
    single = [one for one in samples(document) if one.kind == LATENCY]
    counts = sorted(map(int, document["seconds"]["latency"]))
    names = {count: (f"threads_{count}", threads(count)) for count in counts}
    return _Settings(single, lambda one: one.threads, names)


# ---- beams --------------------------------------------------------------------------------------

#: A decoder's options without its beam.
Others = frozenset[tuple[str, Any]]
STOCK: Others = frozenset({("decoding", "beam")})


def _with_beams(document: Mapping[str, Any]) -> dict[Others, list[tuple[int, dict[str, Any]]]]:
    """Return the systems by their options without the beam, with their beams in order."""
    groups: dict[Others, list[tuple[int, dict[str, Any]]]] = {}
    for system in _own(document):
        options = dict(system["options"])
        beam = options.pop("beam", None)
        if beam is not None:
            groups.setdefault(frozenset(options.items()), []).append((beam, system))
    return {others: sorted(ones, key=lambda one: one[0]) for others, ones in groups.items()}


def _by_batch_and_beam(
    document: Mapping[str, Any], against: str, settings: _Settings
) -> list[SpeedUp]:
    """Return the systems with several beams, those of the baseline's, at each batch size."""
    groups = _with_beams(document)
    bases: dict[int, str] = {}
    for ones in groups.values():
        labels = {width: one["label"] for width, one in ones}
        bases = labels if against in labels.values() else bases
    return [
        one
        for ones in groups.values()
        if len(ones) > 1
        for width, system in ones
        for base in [bases.get(width, system["label"])]
        if base != system["label"] and len(bases) > 1
        for one in settings.of(system, base)
    ]


def _by_beam(document: Mapping[str, Any], against: str) -> list[SpeedUp]:
    """Return the systems that were measured with several beams."""
    times, alone = latencies(document), alone_samples(document)
    groups = _with_beams(document)
    stock = {width: system["label"] for width, system in groups.get(STOCK, [])}
    found = []
    for ones in groups.values():
        if len({width for width, _ in ones}) < 2:
            continue
        for width, system in ones:
            name, base = system["label"], stock.get(width, against)
            gain = speed_ups([one for one in alone if one.system in (name, base)], base)[name, None]
            words = str(width), f"beam {width}"
            ms = milliseconds(times[name])
            found.append(SpeedUp(shown(system), label(system), *words, gain, base, ms))
    # Every benchmark has fairseq's own search with two beams.
    own_search = {shown(system) for _, system in groups.get(STOCK, [])}
    return found if {one.name for one in found} - own_search else []


# ---- sentence by sentence -----------------------------------------------------------------------


@dataclass(frozen=True)
class Histogram:
    """The speed-ups of single sentences."""

    name: str  # of the system
    label: str  # of its outputs
    ratios: list[float]  # for each sentence, the baseline's median time over the system's

    @property
    def bins(self) -> list[int]:
        """The numbers of sentences at 0-1x, 1-2x, ..., lower ends included.

        The last bin, ``LAST_BIN``, is open.
        """
        counts = [0] * (min(int(max(self.ratios)), LAST_BIN) + 1)
        for ratio in self.ratios:
            counts[min(int(ratio), LAST_BIN)] += 1
        return counts

    @property
    def faster(self) -> float:
        """The share of sentences above 1x."""
        return sum(ratio > 1 for ratio in self.ratios) / len(self.ratios)

    def quantile(self, percent: float) -> float:
        """Return a quantile of the ratios, linearly interpolated."""
        return float(np.percentile(self.ratios, percent))


def histograms(
    document: Mapping[str, Any], labels: Sequence[str] | None = None, against: str = BEAM
) -> list[Histogram]:
    """Return the per-sentence speed-ups at batch 1 (xia2022, Figure 4).

    A sentence's speed-up is the ratio of median times over the rounds, baseline to system.

    Args:
        document: what ``paradec benchmark`` wrote.
        labels: of the systems; None for all but the baseline, including CTranslate2's.
        against: the baseline's label.

    Raises:
        UsageError: the benchmark lacks a label.
    """
    check_against(document, against)
    names = [system["label"] for system in document["systems"]]
    unknown = [name for name in labels or () if name not in names]
    if unknown:
        allowed = "a decoder of the benchmark: " + ", ".join(names)
        raise option_error("--decoder", unknown[0], allowed)
    wanted = [name for name in names if name != against] if labels is None else labels
    times = latencies(document)
    base = np.median(np.array(times[against]), axis=0)
    known = {system["label"]: system for system in document["systems"]}
    ratios = {name: (base / np.median(np.array(times[name]), axis=0)).tolist() for name in wanted}
    return [Histogram(shown(known[n]), label(known[n]), found) for n, found in ratios.items()]


def bin_name(place: int) -> str:
    """Return, for example, ``1-2x``."""
    return f"{place}x up" if place == LAST_BIN else f"{place}-{place + 1}x"


def bars(found: Sequence[Histogram]) -> str:
    """Draw histograms as text, a bar for each bin."""
    parts = []
    for one in found:
        counts = one.bins
        lines = [f"{one.name} ({one.label})"]
        for place in range(next(i for i, n in enumerate(counts) if n), len(counts)):
            bar = "█" * round(LONGEST_BAR * counts[place] / max(counts))
            lines.append(f"  {bin_name(place):>6} {counts[place]:>5} {bar}".rstrip())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


# ---- tables -------------------------------------------------------------------------------------

_TITLES = {
    "batch": "Speed-up by batch size",
    "beam": "Speed-up by beam, batch 1",
    "batch-beam": "Speed-up by batch size and beam",
    "length": "Speed-up by source length, batch 1",
    "threads": "Speed-up by CPU threads, batch 1",
}
_NOTES = {
    "batch": "Batch 1: the timed sentences one by one; other sizes: all sentences, sorted by "
    "length. The baseline has the same batches.",
    "beam": "Systems whose commands differ only in --beam. Each against fairseq's search with the "
    "same beam where that was measured, else against the named baseline.",
    "batch-beam": "Each against the baseline's search with the same beam and batch size "
    "(zhang2020, Figure 2). Batch 1: the timed sentences one by one; others: all sentences.",
    "length": "Bins of about as many sentences each, by tokens of the source.",
    "threads": "Each against the baseline with as many threads.",
}


def title(document: Mapping[str, Any], by: str, against: str = BEAM) -> str:
    """Name a table or a picture of one kind, with the benchmark's setting."""
    setting = document["setting"]
    base = "" if by == "beam" else f" against {against}"
    with_threads = "" if by == "threads" else f", {threads(main_threads(document))}"
    return f"{_TITLES[by]}{base} ({setting['dtype']}, {setting['device']}{with_threads})"


def table(document: Mapping[str, Any], by: str, against: str = BEAM) -> Table:
    """Return the table of one kind; see ``in_settings``.

    It has no rows where there is nothing to compare.
    """
    found = in_settings(document, by, against)
    rows: dict[Any, Cells] = {}
    for one in found:
        name: Cells = {"decoder": one.name, "label": one.label}
        if by == "beam":
            gain = column("speed_up", "speed-up", "x", ".2f")
            name |= {"beam": int(one.key), MS: one.ms, gain: one.spread, "against": one.against}
            rows[one.name, one.key] = name
        else:
            row = rows.setdefault(one.name, name)
            row[column(one.key, one.at, "x", ".2f")] = one.spread
    ratios = "Ratios of a round's total times: median over the rounds (lowest-highest)."
    return Table.of(list(rows.values()), title(document, by, against), [_NOTES[by], ratios])


def histogram_table(
    document: Mapping[str, Any], labels: Sequence[str] | None = None, against: str = BEAM
) -> Table:
    """Return the table of per-sentence speed-ups; see ``histograms``."""
    found = histograms(document, labels, against)
    width = max((len(one.bins) for one in found), default=0)
    first = min((next(i for i, n in enumerate(one.bins) if n) for one in found), default=0)
    rows = []
    for one in found:
        row: Cells = {"decoder": one.name, "label": one.label, "sentences": len(one.ratios)}
        for percent in QUANTILES:
            name = "median" if percent == 50 else f"{percent}%"
            row[column(f"quantile_{percent}", name, "x", ".2f")] = one.quantile(percent)
        row[column("faster", "above 1x", "%", ".1f")] = 100 * one.faster
        counts = one.bins + [0] * (width - len(one.bins))
        for place in range(first, width):
            row[column(f"bin_{place}", bin_name(place))] = counts[place]
        rows.append(row)
    setting = f"batch 1, {threads(main_threads(document))}"
    name = f"Speed-up of single sentences against {against} ({setting})"
    notes = [
        "For each sentence, the baseline's median time over the rounds, divided by the system's "
        "(xia2022, Figure 4); quantiles over the sentences, and the number in each bin."
    ]
    if any(one.label == "peer" for one in found):
        notes.append("Peers have their own threads and dtype.")
    return Table.of(rows, name, notes)


def tables(document: Mapping[str, Any]) -> list[Table]:
    """Return all tables that a benchmark has data for.

    By batch, beam, length and threads, and the per-sentence histogram, all against fairseq beam 5.
    """
    found = [table(document, by) for by in KINDS]
    found.append(histogram_table(document))
    return [one for one in found if one.rows]
