"""The tables of a benchmark, from its raw samples: a pure function of the JSON document."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.samples import LATENCY, THROUGHPUT, Rounds, Sample, samples, speed_ups
from ..data.table import Cells, Column, Table, Value, column
from .timing import length_bins, milliseconds, percentile

# The baselines, which every benchmark has.
BEAM, GREEDY, OWN_GREEDY = "fairseq beam 5", "fairseq greedy", "greedy"
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
        (OWN_GREEDY, "x_our_greedy"),
    )
}

#: Speed-ups of systems in groups of samples, by baseline.
Gains = Mapping[str, Mapping[tuple[str, Any], Value]]


def tables(document: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a benchmark, made of its raw samples."""
    own = [s for s in document["systems"] if s["promise"] != "peer"]
    peers = [s for s in document["systems"] if s["promise"] == "peer"]
    setting, seconds = document["setting"], document["seconds"]
    main, latency = main_threads(document), latencies(document)
    alone, raw = alone_samples(document), list(samples(document))
    gains = {base: speed_ups(alone, base) for base in AGAINST}
    blocks = any("blocks" in s for s in own)
    found = [
        Table.of(
            [output_row(s, blocks) for s in own],
            "Output",
            [
                f"Differences of {listed(document['signatures'])} with their 95% paired-bootstrap "
                "intervals.",
                "Ties: the outputs part where the two tokens' log-probabilities differ by less than"
                " 1e-4.",
                "tokens: with </s>. passes: of the decoder, at batch 1.",
                *([BLOCKS] if blocks else []),
            ],
        ),
        Table.of(
            [latency_row(s, latency, gains) for s in own],
            f"Latency: batch 1, {setting['dtype']}, {threads(main)}",
            [
                "Medians over the rounds, lowest and highest round in brackets. p95: over the "
                "sentences. Speed-ups: ratios of a round's total times.",
                "memory: peak beyond the loaded models, in MiB.",
            ],
        ),
    ]
    sweep = seconds["throughput"]
    if sweep:
        batched = [s for s in raw if s.kind == THROUGHPUT]
        of_batches = {base: speed_ups(batched, base, lambda s: s.batch) for base in AGAINST}
        found.append(
            Table.of(
                [
                    throughput_row(s, size, times, setting["sentences"], of_batches)
                    for size, times in sweep.items()
                    for s in own + peers
                    if s["label"] in times
                ],
                f"Throughput: {setting['dtype']}, {threads(main)}",
                ["Batches of sentences of similar length; speed-ups at the same size."],
            )
        )
    bins = length_bins(document["source_lengths"], BINS)
    bin_of = {item: name for name, items in bins.items() for item in items}
    by_length = speed_ups(alone, GREEDY, lambda s: bin_of[s.item])
    found.append(
        Table.of(
            [
                {"decoder": shown(s), "label": label(s)}
                | {
                    column(f"tokens_{name}", f"{name} (n={len(items)})", "x", ".2f"): by_length[
                        s["label"], name
                    ]
                    for name, items in bins.items()
                }
                for s in own
            ],
            f"Speed-up against {GREEDY}, by source length in tokens ({threads(main)})",
        )
    )
    if len(seconds["latency"]) > 1:
        single = [s for s in raw if s.kind == LATENCY]
        by_threads = speed_ups(single, OWN_GREEDY, lambda s: s.threads)
        found.append(
            Table.of(
                [threads_row(s, seconds["latency"], by_threads) for s in own]
                + peer_threads_rows(peers, seconds["latency"], by_threads),
                "Threads: batch 1, median ms; speed-up against our greedy with as many",
            )
        )
    if peers:
        found.append(
            Table.of(
                [peer_row(s, latency, gains, int(main)) for s in peers],
                "Peers: the same checkpoint in another engine",
                [
                    "Each in its own dtype, with its own number of threads; speed-ups are against "
                    f"Latency above, in the same rounds ({setting['dtype']}, {threads(main)}).",
                    "identical: to fairseq greedy.",
                ],
            )
        )
    return found


def alone_samples(document: Mapping[str, Any]) -> list[Sample]:
    """Return the samples of single sentences outside the thread sweep."""
    main = int(main_threads(document))
    return [s for s in samples(document) if s.kind == LATENCY and s.threads == main]


def main_threads(document: Mapping[str, Any]) -> str:
    """Return the number of threads outside the thread sweep."""
    return str(document["setting"]["threads"][0])


def latencies(document: Mapping[str, Any]) -> dict[str, Rounds]:
    """Return the times of single sentences with that number of threads, by system."""
    times: dict[str, Rounds] = document["seconds"]["latency"][main_threads(document)]
    return times


def listed(names: Iterable[str]) -> str:
    """Return, for example, ``BLEU and chrF``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def threads(count: str | int) -> str:
    """Return, for example, ``1 thread``."""
    return f"{count} thread{'' if str(count) == '1' else 's'}"


def shown_names(systems: Sequence[dict[str, Any]]) -> list[str]:
    """Return systems' labels as tables show them, for example ``gad [native int8]``.

    Engine and dtype are added if this package's decoders have several; the labels of fairseq's
    search and of peers tell them already.
    """

    def engine(system: dict[str, Any]) -> str:
        return f"{system['engine']} {system['engine_dtype']}"

    own = [s["promise"] != "peer" and s["label"] not in (BEAM, GREEDY) for s in systems]
    several = len({engine(s) for s, is_own in zip(systems, own, strict=True) if is_own}) > 1
    return [
        f"{s['label']} [{engine(s)}]" if several and is_own else s["label"]
        for s, is_own in zip(systems, own, strict=True)
    ]


def shown(system: dict[str, Any]) -> str:
    """Return a system's label as tables show it."""
    return str(system["shown"])


def label(system: dict[str, Any]) -> str:
    """Return the label of a system's outputs, as measured.

    A system is not called exact if one output differs from greedy search's beyond ties.
    """
    if system["promise"] != "exact":
        return system["promise"]
    counts = system["agreement"].values()
    beyond, ties, checked = (
        sum(one[key] for one in counts) for key in ("beyond ties", "ties", "sentences")
    )
    if beyond:
        return f"NOT EXACT ({beyond} of {checked})"
    if system["changed"]:
        return f"NOT EXACT ({system['changed']} outputs changed when timed)"
    return f"exact but for {ties} ties of {checked}" if ties else "exact"


def output_row(system: dict[str, Any], blocks: bool = False) -> Cells:
    """Return a system's row on its outputs."""
    at_one = system["agreement"]["1"]
    row: Cells = {
        "decoder": shown(system),
        "label": label(system),
        "parameters": system["parameters"],
        "identical_to_greedy": Value.share(at_one["identical"], at_one["sentences"]),
        "ties": at_one["ties"],
    }
    row |= quality(system, BEAM) | quality(system, GREEDY)
    passes, tokens, sentences = system["passes"], system["tokens"], at_one["sentences"]
    row["passes_per_sentence"] = None if passes is None else round(passes / sentences, 2)
    row["tokens_per_pass"] = None if passes is None else round(tokens / passes, 2)
    if blocks:
        row["mean_accepted_block"] = (
            round(tokens / system["blocks"], 2) if "blocks" in system else None
        )
    return row


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
    """Return our greedy search and each blockwise system of a benchmark, in its order."""
    alone = alone_samples(document)
    gains = {base: speed_ups(alone, base) for base in (OWN_GREEDY, GREEDY)}
    tokens = {system["label"]: system["tokens"] for system in document["systems"]}
    points = []
    for system in document["systems"]:
        name = system["label"]
        if name == OWN_GREEDY or "blocks" in system:
            block = system["tokens"] / system.get("blocks", system["tokens"])
            passes = system["passes"] / system["agreement"]["1"]["sentences"]
            length = tokens[name] / tokens[OWN_GREEDY]
            own = {base: found[name, None] for base, found in gains.items()}
            points.append(BlockPoint(name, label(system), block, passes, length, own))
    return points


def difference(metric: str, baseline: str) -> Column:
    """Return the column of a metric's difference from a baseline."""
    return column(
        f"{metric}_less_{baseline.replace(' ', '_')}", f"{metric} - {baseline}", form="+.2f"
    )


def quality(system: dict[str, Any], baseline: str) -> Cells:
    """Return a system's scores, and their differences from a baseline's."""
    row: Cells = {metric: round(score, 2) for metric, score in system["scores"].items()}
    for metric, ends in system["differences"][baseline].items():
        row[difference(metric, baseline.removeprefix("fairseq "))] = Value(*ends)
    return row


def against_baselines(name: str, gains: Gains, group: object = None) -> Cells:
    """Return the speed-ups of one system, by baseline."""
    return {AGAINST[base]: found[name, group] for base, found in gains.items()}


def latency_row(system: dict[str, Any], times: dict[str, Rounds], gains: Gains) -> Cells:
    """Return a system's latency of one sentence."""
    name = system["label"]
    return {
        "decoder": shown(system),
        "label": label(system),
        MS: milliseconds(times[name]),
        "p95": round(1000 * percentile(times[name], 95), 2),
        **against_baselines(name, gains),
        MEMORY: system["memory"]["1"],
    }


def throughput(rounds: Rounds, sentences: int) -> Value:
    """Return sentences per second."""
    return Value.of([sentences / sum(times) for times in rounds])


def throughput_row(
    system: dict[str, Any], size: str, times: dict[str, Rounds], sentences: int, gains: Gains
) -> Cells:
    """Return a system's throughput at one batch size."""
    name = system["label"]
    agreement = system["agreement"][size]
    return {
        "batch": int(size),
        "decoder": shown(system),
        "label": label(system),
        RATE: throughput(times[name], sentences),
        **against_baselines(name, gains, int(size)),
        "identical": Value.share(agreement["identical"], agreement["sentences"]),
        MEMORY: system["memory"][size],
    }


def _at_threads(
    count: str, times: dict[str, Rounds], name: str, gains: Mapping[tuple[str, Any], Value]
) -> Cells:
    """Return a system's latency with a number of threads."""
    return {
        column(f"threads_{count}_ms", f"{threads(count)}, ms", "ms", ".2f"): milliseconds(
            times[name]
        ),
        column(f"threads_{count}_x", f"{threads(count)}, x", "x", ".2f"): gains[name, int(count)],
    }


def threads_row(
    system: dict[str, Any],
    latency: dict[str, dict[str, Rounds]],
    gains: Mapping[tuple[str, Any], Value],
) -> Cells:
    """Return latency by the number of threads (santilli2023, Figure 3)."""
    row: Cells = {"decoder": shown(system), "label": label(system)}
    for count, times in latency.items():
        row |= _at_threads(count, times, system["label"], gains)
    return row


def peer_threads_rows(
    peers: Iterable[dict[str, Any]],
    latency: dict[str, dict[str, Rounds]],
    gains: Mapping[tuple[str, Any], Value],
) -> list[Cells]:
    """Return the latency of peers that were timed with all these numbers of threads."""
    found: dict[str, Cells] = {}
    for count, times in latency.items():
        for peer in peers:
            if peer["threads"] in (None, int(count)) and peer["label"] in times:
                name = peer["label"].removesuffix(f", {threads(count)}")
                row = found.setdefault(name, {"decoder": name, "label": label(peer)})
                row |= _at_threads(count, times, peer["label"], gains)
    return [row for row in found.values() if len(row) == 2 + 2 * len(latency)]


def peer_row(system: dict[str, Any], times: dict[str, Rounds], gains: Gains, main: int) -> Cells:
    """Return the latency of a peer, with its own dtype and threads."""
    name, at_one = system["label"], system["agreement"]["1"]
    return {
        "peer": name,
        "dtype": system["dtype"],
        "threads": system["threads"] or main,
        MS: milliseconds(times[name]),
        "p95": round(1000 * percentile(times[name], 95), 2),
        **against_baselines(name, gains),
        "identical": Value.share(at_one["identical"], at_one["sentences"]),
        **quality(system, GREEDY),
    }
