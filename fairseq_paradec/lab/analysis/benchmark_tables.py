"""The tables of a benchmark, from its raw samples: a pure function of the JSON document."""

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..data.samples import LATENCY, THROUGHPUT, Rounds, Sample, samples, speed_ups
from ..data.table import Cells, Column, Table, Value, column
from .promises import BREAKABLE

# The baselines, which every benchmark has; without fairseq our beam search stands for its own.
BEAM, GREEDY, OWN_GREEDY = "fairseq beam 5", "fairseq greedy", "greedy"
OWN_BEAM = "own beam 5"
# Bins of source lengths.
BINS = 4
BLOCKS = (
    "mean accepted block: of blockwise decoding, tokens per block as Stern et al. 2018 count, the "
    "model's own token and the drafted ones that the next pass accepted."
)


#: Columns of several tables.
MS = column("ms_per_sentence", unit="ms", form=".2f")
RATE = column("sentences_per_second", "sentences/s", form=".1f")
MEMORY = column("memory", unit="MiB")
#: Columns of speed-ups, by baseline.
AGAINST = {
    base: column(key, unit="x", form=".2f")
    for base, key in (
        (BEAM, "x_beam_5"),
        (GREEDY, "x_fairseq_greedy"),
        (OWN_BEAM, "x_our_beam_5"),
        (OWN_GREEDY, "x_our_greedy"),
    )
}

System = Mapping[str, Any]
#: Speed-ups of systems in groups of samples, by baseline.
Gains = Mapping[str, Mapping[tuple[str, Any], Value]]


# ---- systems ------------------------------------------------------------------------------------


def judge_of(labels: Collection[str]) -> str:
    """Return the system whose outputs are right: fairseq's greedy search, or ours without it."""
    return GREEDY if GREEDY in labels else OWN_GREEDY


def compared_with(labels: Collection[str]) -> tuple[str, str]:
    """Return the beam search and the greedy search with which scores are compared."""
    return (BEAM if BEAM in labels else OWN_BEAM), judge_of(labels)


def labels_of(document: Mapping[str, Any]) -> list[str]:
    """Return the systems' labels."""
    return [system["label"] for system in document["systems"]]


def baselines(document: Mapping[str, Any]) -> list[str]:
    """Return what speed-ups are against, in the order of columns."""
    labels = labels_of(document)
    used = {*compared_with(labels), OWN_GREEDY}
    return [base for base in AGAINST if base in used and base in labels]


def own_systems(document: Mapping[str, Any]) -> list[System]:
    """Return the systems that were measured in every setting: all but peers."""
    return [system for system in document["systems"] if system["promise"] != "peer"]


def shown_names(systems: Sequence[System]) -> list[str]:
    """Return systems' labels as tables show them, for example ``gad [native int8]``.

    Engine and dtype are added if this package's decoders have several; the labels of fairseq's
    search and of peers tell them already.
    """

    def engine(system: System) -> str:
        return f"{system['engine']} {system['engine_dtype']}"

    own = [s["promise"] != "peer" and s["label"] not in (BEAM, GREEDY) for s in systems]
    several = len({engine(s) for s, is_own in zip(systems, own, strict=True) if is_own}) > 1
    return [
        f"{s['label']} [{engine(s)}]" if several and is_own else s["label"]
        for s, is_own in zip(systems, own, strict=True)
    ]


def shown(system: System) -> str:
    """Return a system's label as tables show it."""
    return str(system["shown"])


def label(system: System) -> str:
    """Return the label of a system's outputs, as measured.

    A system is not called exact if one output differs from greedy search's beyond ties.
    """
    promise = str(system["promise"])
    if promise not in BREAKABLE:
        return promise
    counts = system["agreement"].values()
    beyond, ties, checked = (
        sum(at_size[key] for at_size in counts) for key in ("beyond ties", "ties", "sentences")
    )
    if beyond:
        return f"NOT EXACT ({beyond} of {checked})"
    if system["changed"]:
        return f"NOT EXACT ({system['changed']} outputs changed when timed)"
    return f"{promise} but for {ties} ties of {checked}" if ties else promise


def listed(names: Iterable[str]) -> str:
    """Return, for example, ``BLEU and chrF``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def threads(count: str | int) -> str:
    """Return, for example, ``1 thread``."""
    return f"{count} thread{'' if str(count) == '1' else 's'}"


# ---- times --------------------------------------------------------------------------------------


def main_threads(document: Mapping[str, Any]) -> int:
    """Return the number of threads outside the thread sweep."""
    return int(document["setting"]["threads"][0])


def latencies(document: Mapping[str, Any]) -> dict[str, Rounds]:
    """Return the times of single sentences with that number of threads, by system."""
    times: dict[str, Rounds] = document["seconds"]["latency"][str(main_threads(document))]
    return times


def milliseconds(rounds: Rounds) -> Value:
    """Return the median time of an item per round, in ms, summarised over the rounds."""
    return Value.of([statistics.median(times) for times in rounds]).times(1000)


def percentile(rounds: Rounds, percent: float) -> float:
    """Return a percentile over the items' median times."""
    return float(np.percentile(np.median(np.array(rounds), axis=0), percent))


def throughput(rounds: Rounds, sentences: int) -> Value:
    """Return sentences per second."""
    return Value.of([sentences / sum(times) for times in rounds])


def length_bins(lengths: Sequence[int], count: int) -> dict[str, list[int]]:
    """Split items by length into bins of about the same size.

    Args:
        lengths: of each item.
        count: of bins; fewer result if many lengths are equal.

    Returns:
        The items of each bin, by its name, for example ``8-11``.
    """
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, count + 1)[1:], method="inverted_cdf"))
    bins: dict[str, list[int]] = {}
    low = min(lengths)
    for high in edges.tolist():
        name = str(high) if low == high else f"{low}-{high}"
        bins[name] = [i for i, length in enumerate(lengths) if low <= length <= high]
        low = high + 1
    return {name: items for name, items in bins.items() if items}


@dataclass(frozen=True)
class Groups:
    """Samples in groups, each with a speed-up of its own."""

    samples: list[Sample]
    by: Callable[[Sample], Any]  # the group of a sample
    columns: dict[Any, Column]  # of each group's speed-ups, in order

    def gains(self, against: str) -> dict[tuple[str, Any], Value]:
        """Return the speed-ups against a baseline, by system and group."""
        return speed_ups(self.samples, against, self.by)


def alone_samples(document: Mapping[str, Any]) -> list[Sample]:
    """Return the samples of single sentences outside the thread sweep."""
    main = main_threads(document)
    return [s for s in samples(document) if s.kind == LATENCY and s.threads == main]


def by_batch(document: Mapping[str, Any]) -> Groups:
    """Group by batch size; at batch 1 are single sentences."""
    whole = [s for s in samples(document) if s.kind == THROUGHPUT]
    alone = [] if any(s.batch == 1 for s in whole) else alone_samples(document)
    sizes = sorted({1, *(s.batch for s in whole)})
    columns = {n: column(f"batch_{n}", f"batch {n}", "x", ".2f") for n in sizes}
    return Groups([*alone, *whole], lambda s: s.batch, columns)


def by_length(document: Mapping[str, Any]) -> Groups:
    """Group the sentences by source length."""
    bins = length_bins(document["source_lengths"], BINS)
    bin_of = {item: name for name, items in bins.items() for item in items}
    columns = {name: column(f"tokens_{name}", f"{name} tokens", "x", ".2f") for name in bins}
    return Groups(alone_samples(document), lambda s: bin_of[s.item], columns)


def by_threads(document: Mapping[str, Any]) -> Groups:
    """Group single sentences by the number of threads."""
    single = [s for s in samples(document) if s.kind == LATENCY]
    counts = sorted({s.threads for s in single})
    columns = {n: column(f"threads_{n}", threads(n), "x", ".2f") for n in counts}
    return Groups(single, lambda s: s.threads, columns)


# ---- tables -------------------------------------------------------------------------------------


def tables(document: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a benchmark, made of its raw samples."""
    makers = (_outputs, _latency, _throughput, _lengths, _threads, _peers)
    return [table for make in makers if (table := make(document)).rows]


def _named(system: System) -> Cells:
    """Return the first cells of a row."""
    return {"decoder": shown(system), "label": label(system)}


def _outputs(document: Mapping[str, Any]) -> Table:
    own = own_systems(document)
    blocks = any("blocks" in system for system in own)
    scored, intervals = document["signatures"], "with their 95% paired-bootstrap intervals."
    notes = [
        *([f"Differences of {listed(scored)} {intervals}"] if scored else []),
        "Ties: the outputs part where the two tokens' log-probabilities differ by less than 1e-4.",
        "tokens: with </s>. passes: of the decoder, at batch 1.",
        *([BLOCKS] if blocks else []),
    ]
    bases = compared_with(labels_of(document))
    rows = [output_row(system, blocks, bases) for system in own]
    return Table.of([*rows, *_not_run(document, rows)], "Output", notes)


def _not_run(document: Mapping[str, Any], rows: Sequence[Cells]) -> list[Cells]:
    """Return rows, as long as these, of what would be compared and is not run."""
    lacks: Mapping[str, str] = document.get("not_run", {})
    return [
        dict.fromkeys(rows[0]) | {"decoder": name, "label": f"not run: {why}"}
        for name, why in lacks.items()
    ]


def output_row(
    system: System, blocks: bool = False, bases: Sequence[str] = (BEAM, GREEDY)
) -> Cells:
    """Return a system's row on its outputs.

    Args:
        system: of a benchmark.
        blocks: whether the mean accepted block is among the columns.
        bases: the beam search and the greedy search that scores are compared with.
    """
    beam, greedy = bases
    key = "identical_to_greedy"
    identical = column(key, "identical to our greedy") if greedy == OWN_GREEDY else key
    at_one = system["agreement"]["1"]
    passes, tokens, sentences = system["passes"], system["tokens"], at_one["sentences"]
    row: Cells = {
        **_named(system),
        "parameters": system["parameters"],
        identical: _identical(system, "1"),
        "ties": at_one["ties"],
        **_quality(system, beam),
        **_quality(system, greedy),
        "passes_per_sentence": None if passes is None else round(passes / sentences, 2),
        "tokens_per_pass": None if passes is None else round(tokens / passes, 2),
    }
    if blocks:
        own_blocks = system.get("blocks")
        row["mean_accepted_block"] = own_blocks and round(tokens / own_blocks, 2)
    return row


def _identical(system: System, size: str) -> Value:
    """Return the share of a system's outputs that are the judge's greedy ones."""
    agreement = system["agreement"][size]
    return Value.share(agreement["identical"], agreement["sentences"])


def difference(metric: str, baseline: str) -> Column:
    """Return the column of a metric's difference from a baseline."""
    return column(
        f"{metric}_less_{baseline.replace(' ', '_')}", f"{metric} - {baseline}", form="+.2f"
    )


def _quality(system: System, baseline: str) -> Cells:
    """Return a system's scores, and their differences from a baseline's."""
    row: Cells = {metric: round(score, 2) for metric, score in system["scores"].items()}
    for metric, ends in system["differences"][baseline].items():
        name = "our greedy" if baseline == OWN_GREEDY else baseline.removeprefix("fairseq ")
        row[difference(metric, name)] = Value(*ends)
    return row


def _against_baselines(name: str, gains: Gains, group: object = None) -> Cells:
    """Return the speed-ups of one system, by baseline."""
    return {AGAINST[base]: of_base[name, group] for base, of_base in gains.items()}


def _alone(system: System, times: Mapping[str, Rounds], gains: Gains) -> Cells:
    """Return a system's latency of one sentence, and its speed-ups."""
    name = system["label"]
    return {
        MS: milliseconds(times[name]),
        "p95": round(1000 * percentile(times[name], 95), 2),
        **_against_baselines(name, gains),
    }


def _alone_gains(document: Mapping[str, Any]) -> Gains:
    """Return the speed-ups of single sentences."""
    alone = alone_samples(document)
    return {base: speed_ups(alone, base) for base in baselines(document)}


def _latency(document: Mapping[str, Any]) -> Table:
    times, gains = latencies(document), _alone_gains(document)
    rows = [
        _named(system) | _alone(system, times, gains) | {MEMORY: system["memory"]["1"]}
        for system in own_systems(document)
    ]
    title = f"Latency: batch 1, {document['setting']['dtype']}, {threads(main_threads(document))}"
    notes = [
        "Medians over the rounds, lowest and highest round in brackets. p95: over the sentences. "
        "Speed-ups: ratios of a round's total times.",
        "memory: peak beyond the loaded models, in MiB.",
    ]
    return Table.of([*rows, *_not_run(document, rows)], title, notes)


def _throughput(document: Mapping[str, Any]) -> Table:
    setting, groups = document["setting"], by_batch(document)
    gains = {base: groups.gains(base) for base in baselines(document)}
    peers = [system for system in document["systems"] if system["promise"] == "peer"]
    rows: list[Cells] = [
        {
            "batch": int(size),
            **_named(system),
            RATE: throughput(times[system["label"]], setting["sentences"]),
            **_against_baselines(system["label"], gains, int(size)),
            "identical": _identical(system, size),
            MEMORY: system["memory"][size],
        }
        for size, times in document["seconds"]["throughput"].items()
        for system in own_systems(document) + peers
        if system["label"] in times
    ]
    title = f"Throughput: {setting['dtype']}, {threads(main_threads(document))}"
    notes = ["Batches of sentences of similar length; speed-ups at the same size."]
    return Table.of(rows, title, notes)


def _lengths(document: Mapping[str, Any]) -> Table:
    groups = by_length(document)
    judge = judge_of(labels_of(document))
    gains, sizes = groups.gains(judge), length_bins(document["source_lengths"], BINS)
    columns = {
        name: replace(head, name=f"{name} (n={len(sizes[name])})")
        for name, head in groups.columns.items()
    }
    rows = [
        _named(system) | {head: gains[system["label"], name] for name, head in columns.items()}
        for system in own_systems(document)
    ]
    main = threads(main_threads(document))
    against = "our greedy" if judge == OWN_GREEDY else judge
    return Table.of(rows, f"Speed-up against {against}, by source length in tokens ({main})")


def _threads(document: Mapping[str, Any]) -> Table:
    """Latency by the number of threads (santilli2023, Figure 3).

    Peers have a row if they were timed with all these numbers, maybe as a system for each.
    """
    latency, gains = document["seconds"]["latency"], by_threads(document).gains(OWN_GREEDY)
    rows: dict[str, Cells] = {}
    for count, times in latency.items():
        for system in document["systems"]:
            if system["threads"] in (None, int(count)) and system["label"] in times:
                name = shown(system).removesuffix(f", {threads(count)}")
                row = rows.setdefault(name, _named(system) | {"decoder": name})
                ms = column(f"threads_{count}_ms", f"{threads(count)}, ms", "ms", ".2f")
                row[ms] = milliseconds(times[system["label"]])
                gain = column(f"threads_{count}_x", f"{threads(count)}, x", "x", ".2f")
                row[gain] = gains[system["label"], int(count)]
    whole = [row for row in rows.values() if len(row) == 2 + 2 * len(latency)]
    title = "Threads: batch 1, median ms; speed-up against our greedy with as many"
    return Table.of(whole if len(latency) > 1 else [], title)


def _peers(document: Mapping[str, Any]) -> Table:
    times, gains = latencies(document), _alone_gains(document)
    judge = judge_of(labels_of(document))
    main, dtype = main_threads(document), document["setting"]["dtype"]
    rows: list[Cells] = [
        {
            "peer": system["label"],
            "dtype": system["dtype"],
            "threads": system["threads"] or main,
            **_alone(system, times, gains),
            "identical": _identical(system, "1"),
            **_quality(system, judge),
        }
        for system in document["systems"]
        if system["promise"] == "peer"
    ]
    notes = [
        "Each in its own dtype, with its own number of threads; speed-ups are against Latency "
        f"above, in the same rounds ({dtype}, {threads(main)}).",
        f"identical: to {'our greedy' if judge == OWN_GREEDY else judge}.",
    ]
    return Table.of(rows, "Peers: the same checkpoint in another engine", notes)


# ---- blocks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockPoint:
    """A decoder in Figure 4 of Stern et al. 2018."""

    name: str  # its label
    label: str  # as ``label`` returns it
    block: float  # its mean accepted block; greedy search has blocks of one token
    passes: float  # per sentence
    length: float  # its tokens by those of our greedy search
    speed_ups: dict[str, Value]  # at batch 1, by baseline


def block_points(document: Mapping[str, Any]) -> list[BlockPoint]:
    """Return our greedy search and each blockwise system of a benchmark, in its order.

    fairseq's greedy search has to be among its systems.
    """
    gains = _alone_gains(document)
    tokens = {system["label"]: system["tokens"] for system in document["systems"]}
    return [
        BlockPoint(
            name,
            label(system),
            tokens[name] / system.get("blocks", tokens[name]),
            system["passes"] / system["agreement"]["1"]["sentences"],
            tokens[name] / tokens[OWN_GREEDY],
            {base: gains[base][name, None] for base in (OWN_GREEDY, GREEDY)},
        )
        for system in document["systems"]
        for name in [system["label"]]
        if name == OWN_GREEDY or "blocks" in system
    ]
