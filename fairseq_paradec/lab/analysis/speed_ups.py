"""Speed-ups of a benchmark by batch, beam, source length and threads, and sentence by sentence.

A pure function of what ``paradec benchmark`` wrote.

Sources: zhang2020, Figure 2 (batch and beam, against a Transformer with the same) and Figure 3
(length); santilli2023, Figure 3 (threads); xia2022, Figure 4 (single sentences).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import option_error
from ..data.table import Cells, Table, Value, column
from .benchmark_tables import (
    BEAM,
    MS,
    Groups,
    System,
    alone_samples,
    by_batch,
    by_length,
    by_threads,
    compared_with,
    label,
    labels_of,
    latencies,
    main_threads,
    milliseconds,
    own_systems,
    shown,
    threads,
)

#: Quantiles of the per-sentence speed-ups, in percent.
QUANTILES = (5, 25, 50, 75, 95)

#: The last bin of per-sentence speed-ups, which is open.
LAST_BIN = 10


class Kind(NamedTuple):
    """A setting by which speed-ups are listed."""

    title: str
    note: str
    groups: Callable[[Mapping[str, Any]], Groups]  # of a benchmark's samples


def _alone(document: Mapping[str, Any]) -> Groups:
    """Take single sentences as one group."""
    return Groups(alone_samples(document), lambda sample: None, {None: column("beam")})


KINDS = {
    "batch": Kind(
        "Speed-up by batch size",
        "Batch 1: the timed sentences one by one; other sizes: all sentences, sorted by length. "
        "The baseline has the same batches.",
        by_batch,
    ),
    "beam": Kind(
        "Speed-up by beam, batch 1",
        "Systems whose commands differ only in --beam. Each against fairseq's search with the same "
        "beam where that was measured, else against the named baseline.",
        _alone,
    ),
    "batch-beam": Kind(
        "Speed-up by batch size and beam",
        "Each against the baseline's search with the same beam and batch size (zhang2020, Figure "
        "2). Batch 1: the timed sentences one by one; others: all sentences.",
        by_batch,
    ),
    "length": Kind(
        "Speed-up by source length, batch 1",
        "Bins of about as many sentences each, by tokens of the source.",
        by_length,
    ),
    "threads": Kind(
        "Speed-up by CPU threads, batch 1",
        "Each against the baseline with as many threads.",
        by_threads,
    ),
}


def _systems(
    document: Mapping[str, Any], flag: str, labels: Sequence[str] = ()
) -> dict[str, System]:
    """Return the systems by label; refuse labels of a flag that were not measured."""
    systems = {system["label"]: system for system in document["systems"]}
    for name in labels:
        if name not in systems:
            raise option_error(flag, name, "a decoder of the benchmark: " + ", ".join(systems))
    return systems


# ---- by setting ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpeedUp:
    """One number of a table."""

    name: str  # of the system
    label: str  # of its outputs
    key: str  # of the column, for example ``batch_8``
    at: str  # in words, for example ``batch 8``
    spread: Value  # the speed-up over the rounds
    against: str  # the baseline's name
    ms: Value  # median time of a sentence at batch 1


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
    base = _systems(document, "--against", [against])[against]
    if by != "beam" and base["promise"] == "peer":
        allowed = "a decoder that is no peer: peers were timed with their own threads"
        raise option_error("--against", against, allowed)
    groups, times = KINDS[by].groups(document), latencies(document)
    if by != "beam" and len(groups.columns) < 2:
        return []
    pairs = _with_baselines(document, by, against)
    gains = {base: groups.gains(base) for base in {base for _, base in pairs}}
    return [
        SpeedUp(
            shown(system),
            label(system),
            str(system["options"]["beam"]) if by == "beam" else head.key,
            f"beam {system['options']['beam']}" if by == "beam" else head.name,
            gains[base][system["label"], group],
            base,
            milliseconds(times[system["label"]]),
        )
        for system, base in pairs
        for group, head in groups.columns.items()
    ]


#: A decoder's options without its beam.
Others = frozenset[tuple[str, Any]]
STOCK: Others = frozenset({("decoding", "beam")})


def _with_baselines(document: Mapping[str, Any], by: str, against: str) -> list[tuple[System, str]]:
    """Return the systems of a kind, each with its baseline's label."""
    if "beam" not in by:
        return [(system, against) for system in own_systems(document)]
    families: dict[Others, dict[int, System]] = {}
    for system in own_systems(document):
        options = dict(system["options"])
        beam = options.pop("beam", None)
        if beam is not None:
            families.setdefault(frozenset(options.items()), {})[beam] = system
    several = [
        (beam, family[beam])
        for family in families.values()
        if len(family) > 1
        for beam in sorted(family)
    ]
    pairs: list[tuple[System, str]]
    if by == "batch-beam":
        bases = [f for f in families.values() if against in [s["label"] for s in f.values()]]
        beams = bases[0] if bases and len(bases[0]) > 1 else {}
        pairs = [(system, beams[beam]["label"]) for beam, system in several if beam in beams]
        return [pair for pair in pairs if pair[0]["label"] != pair[1]]
    stock = {beam: system["label"] for beam, system in families.get(STOCK, {}).items()}
    pairs = [(system, stock.get(beam, against)) for beam, system in several]
    # Every benchmark has fairseq's own search with two beams.
    return pairs if any(system["label"] not in stock.values() for system, _ in pairs) else []


def title(document: Mapping[str, Any], by: str, against: str = BEAM) -> str:
    """Name a table or a picture of one kind, with the benchmark's setting."""
    setting = document["setting"]
    base = "" if by == "beam" else f" against {against}"
    with_threads = "" if by == "threads" else f", {threads(main_threads(document))}"
    return f"{KINDS[by].title}{base} ({setting['dtype']}, {setting['device']}{with_threads})"


def table(document: Mapping[str, Any], by: str, against: str = BEAM) -> Table:
    """Return the table of one kind; see ``in_settings``.

    It has no rows where there is nothing to compare.
    """
    rows: dict[Any, Cells] = {}
    for gain in in_settings(document, by, against):
        if by == "beam":
            rows[gain.name, gain.key] = {
                "decoder": gain.name,
                "label": gain.label,
                "beam": int(gain.key),
                MS: gain.ms,
                column("speed_up", "speed-up", "x", ".2f"): gain.spread,
                "against": gain.against,
            }
        else:
            row = rows.setdefault(gain.name, {"decoder": gain.name, "label": gain.label})
            row[column(gain.key, gain.at, "x", ".2f")] = gain.spread
    ratios = "Ratios of a round's total times: median over the rounds (lowest-highest)."
    return Table.of([*rows.values()], title(document, by, against), [KINDS[by].note, ratios])


# ---- sentence by sentence -----------------------------------------------------------------------


@dataclass(frozen=True)
class Histogram:
    """The speed-ups of single sentences."""

    name: str  # of the system
    label: str  # of its outputs
    ratios: list[float]  # for each sentence, the baseline's median time over the system's

    @property
    def counts(self) -> Counter[int]:
        """The numbers of sentences at 0-1x, 1-2x, ..., by the lower end, which is included.

        The last bin, ``LAST_BIN``, is open.
        """
        return Counter(min(int(ratio), LAST_BIN) for ratio in self.ratios)

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
    _systems(document, "--against", [against])
    systems = _systems(document, "--decoder", labels or ())
    wanted = [name for name in systems if name != against] if labels is None else labels
    times = {name: np.median(rounds, axis=0) for name, rounds in latencies(document).items()}
    return [
        Histogram(shown(system), label(system), (times[against] / times[name]).tolist())
        for name, system in ((name, systems[name]) for name in dict.fromkeys(wanted))
    ]


def histogram_table(
    document: Mapping[str, Any], labels: Sequence[str] | None = None, against: str = BEAM
) -> Table:
    """Return the table of per-sentence speed-ups; see ``histograms``."""
    drawn = histograms(document, labels, against)
    bins = sorted({place for histogram in drawn for place in histogram.counts})
    rows = []
    for histogram in drawn:
        row: Cells = {
            "decoder": histogram.name,
            "label": histogram.label,
            "sentences": len(histogram.ratios),
        }
        for percent in QUANTILES:
            name = "median" if percent == 50 else f"{percent}%"
            row[column(f"quantile_{percent}", name, "x", ".2f")] = histogram.quantile(percent)
        row[column("faster", "above 1x", "%", ".1f")] = 100 * histogram.faster
        for place in bins:
            name = f"{place}x up" if place == LAST_BIN else f"{place}-{place + 1}x"
            row[column(f"bin_{place}", name)] = histogram.counts[place]
        rows.append(row)
    setting = f"batch 1, {threads(main_threads(document))}"
    name = f"Speed-up of single sentences against {against} ({setting})"
    notes = [
        "For each sentence, the baseline's median time over the rounds, divided by the system's "
        "(xia2022, Figure 4); quantiles over the sentences, and the number in each bin."
    ]
    if any(histogram.label == "peer" for histogram in drawn):
        notes.append("Peers have their own threads and dtype.")
    return Table.of(rows, name, notes)


def tables(document: Mapping[str, Any]) -> list[Table]:
    """Return all tables that a benchmark has data for.

    By batch, beam, length and threads, and the per-sentence histogram, all against fairseq beam 5,
    or against ours where that was not run.
    """
    base, _ = compared_with(labels_of(document))
    made = [*(table(document, by, base) for by in KINDS), histogram_table(document, against=base)]
    return [table for table in made if table.rows]
