"""Speed-ups of a benchmark by batch, beam, source length and threads, and sentence by sentence.

A pure function of what ``paradec benchmark`` wrote. Ratios, bins and labels are those of ``timing``
and ``benchmark_tables``: a round's total times of baseline and system, median over the rounds.

Sources: zhang2020, Figure 2 (batch and beam, against a Transformer with the same) and Figure 3
(length); santilli2023, Figure 3 (threads); xia2022, Figure 4 (single sentences).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import option_error
from . import Fields
from .benchmark_tables import (
    BEAM,
    BINS,
    label,
    latencies,
    main_threads,
    milliseconds,
    shown,
    threads,
)
from .timing import Rounds, Spread, length_bins, speed_up

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
    at: str  # for example ``batch 8``
    spread: Spread  # the speed-up over the rounds
    against: str  # the baseline's name
    ms: Spread | None = None  # median time of a sentence; None where batches were timed


def check_against(document: dict[str, Any], against: str) -> None:
    """Refuse a baseline that was not measured."""
    names = [system["label"] for system in document["systems"]]
    if against not in names:
        raise option_error("--against", against, "a decoder of the benchmark: " + ", ".join(names))


def _own(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the systems that were measured in every setting."""
    return [system for system in document["systems"] if system["promise"] != "peer"]


def speed_ups(document: dict[str, Any], by: str, against: str = BEAM) -> list[SpeedUp]:
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
    if by == "batch-beam":
        return _by_batch_and_beam(document, against)
    cells = {"batch": _batches, "length": _lengths, "threads": _threads}[by](document)
    if len(cells) < 2:
        return []
    return [
        SpeedUp(shown(one), label(one), at, speed_up(times[against], times[name], items), against)
        for one in _own(document)
        for name in [one["label"]]
        for at, (times, items) in cells.items()
    ]


Cells = dict[str, tuple[dict[str, Rounds], Sequence[int] | None]]


def _batches(document: dict[str, Any]) -> Cells:
    """Return the times at each batch size; at batch 1 those of single sentences."""
    seconds = document["seconds"]
    found: Cells = {"batch 1": (latencies(document), None)}
    sweep = sorted(seconds["throughput"].items(), key=lambda item: int(item[0]))
    return found | {f"batch {size}": (times, None) for size, times in sweep}


def _lengths(document: dict[str, Any]) -> Cells:
    """Return the times of the sentences in each bin of source lengths."""
    times = latencies(document)
    bins = length_bins(document["source_lengths"], BINS)
    return {f"{name} tokens": (times, items) for name, items in bins.items()}


def _threads(document: dict[str, Any]) -> Cells:
    """Return the times with each number of threads."""
    latency = sorted(document["seconds"]["latency"].items(), key=lambda item: int(item[0]))
    return {threads(count): (times, None) for count, times in latency}


# ---- beams --------------------------------------------------------------------------------------

#: A decoder's options without its beam.
Others = frozenset[tuple[str, Any]]
STOCK: Others = frozenset({("decoding", "beam")})


def _with_beams(document: dict[str, Any]) -> dict[Others, list[tuple[int, dict[str, Any]]]]:
    """Return the systems by their options without the beam, with their beams in order."""
    groups: dict[Others, list[tuple[int, dict[str, Any]]]] = {}
    for system in _own(document):
        options = dict(system["options"])
        beam = options.pop("beam", None)
        if beam is not None:
            groups.setdefault(frozenset(options.items()), []).append((beam, system))
    return {others: sorted(ones, key=lambda one: one[0]) for others, ones in groups.items()}


def _by_batch_and_beam(document: dict[str, Any], against: str) -> list[SpeedUp]:
    """Return the systems with several beams, those of the baseline's, at each batch size."""
    cells, groups = _batches(document), _with_beams(document)
    bases: dict[int, str] = {}
    for ones in groups.values():
        labels = {width: one["label"] for width, one in ones}
        bases = labels if against in labels.values() else bases
    return [
        SpeedUp(shown(one), label(one), at, speed_up(times[base], times[one["label"]]), base)
        for ones in groups.values()
        if len(ones) > 1
        for width, one in ones
        for base in [bases.get(width, one["label"])]
        if base != one["label"] and len(bases) > 1 and len(cells) > 1
        for at, (times, _) in cells.items()
    ]


def _by_beam(document: dict[str, Any], against: str) -> list[SpeedUp]:
    """Return the systems that were measured with several beams."""
    times = latencies(document)
    groups = _with_beams(document)
    stock = {width: system["label"] for width, system in groups.get(STOCK, [])}
    found = []
    for ones in groups.values():
        if len({width for width, _ in ones}) < 2:
            continue
        for width, system in ones:
            name, base = system["label"], stock.get(width, against)
            gain, ms = speed_up(times[base], times[name]), milliseconds(times[name])
            found.append(SpeedUp(shown(system), label(system), f"beam {width}", gain, base, ms))
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
    document: dict[str, Any], labels: Sequence[str] | None = None, against: str = BEAM
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


def title(document: dict[str, Any], by: str, against: str = BEAM) -> str:
    """Name a table or a picture of one kind, with the benchmark's setting."""
    setting = document["setting"]
    base = "" if by == "beam" else f" against {against}"
    with_threads = "" if by == "threads" else f", {threads(main_threads(document))}"
    return f"{_TITLES[by]}{base} ({setting['dtype']}, {setting['device']}{with_threads})"


def table(document: dict[str, Any], by: str, against: str = BEAM) -> dict[str, Any]:
    """Return ``title``, ``notes`` and ``rows`` of one kind; see ``speed_ups``.

    The rows are empty where there is nothing to compare.
    """
    found = speed_ups(document, by, against)
    ratios = "Ratios of a round's total times: median over the rounds (lowest-highest)."
    if by == "beam":
        rows = [
            {
                "decoder": one.name,
                "label": one.label,
                "beam": int(one.at.split()[1]),
                "ms per sentence": one.ms.text(2) if one.ms else "-",
                "speed-up": one.spread.text(2, "x"),
                "against": one.against,
            }
            for one in found
        ]
    else:
        by_name: dict[str, Fields] = {}
        for one in found:
            row = by_name.setdefault(one.name, {"decoder": one.name, "label": one.label})
            row[one.at] = one.spread.text(2, "x")
        rows = list(by_name.values())
    return {"title": title(document, by, against), "notes": [_NOTES[by], ratios], "rows": rows}


def histogram_table(
    document: dict[str, Any], labels: Sequence[str] | None = None, against: str = BEAM
) -> dict[str, Any]:
    """Return ``title``, ``notes`` and ``rows`` of per-sentence speed-ups; see ``histograms``."""
    found = histograms(document, labels, against)
    width = max((len(one.bins) for one in found), default=0)
    first = min((next(i for i, n in enumerate(one.bins) if n) for one in found), default=0)
    rows = []
    for one in found:
        row: Fields = {"decoder": one.name, "label": one.label, "sentences": len(one.ratios)}
        row |= {
            "median" if percent == 50 else f"{percent}%": f"{one.quantile(percent):.2f}x"
            for percent in QUANTILES
        }
        row["above 1x"] = f"{100 * one.faster:.1f}%"
        counts = one.bins + [0] * (width - len(one.bins))
        rows.append(row | {bin_name(place): counts[place] for place in range(first, width)})
    setting = f"batch 1, {threads(main_threads(document))}"
    name = f"Speed-up of single sentences against {against} ({setting})"
    notes = [
        "For each sentence, the baseline's median time over the rounds, divided by the system's "
        "(xia2022, Figure 4); quantiles over the sentences, and the number in each bin."
    ]
    if any(one.label == "peer" for one in found):
        notes.append("Peers have their own threads and dtype.")
    return {"title": name, "notes": notes, "rows": rows}


def tables(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all tables that a benchmark has data for, each ``title``, ``notes`` and ``rows``.

    By batch, beam, length and threads, and the per-sentence histogram, all against fairseq beam 5.
    """
    found = [table(document, by) for by in KINDS]
    found.append(histogram_table(document))
    return [one for one in found if one["rows"]]
