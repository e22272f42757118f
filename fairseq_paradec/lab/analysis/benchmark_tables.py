"""The tables of a benchmark, from its raw samples: a pure function of the JSON document."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import Fields
from .timing import Rounds, Spread, length_bins, percentile, round_medians, speed_up, total

# The baselines, which every benchmark has.
BEAM, GREEDY, OWN_GREEDY = "fairseq beam 5", "fairseq greedy", "greedy"
# Bins of source lengths.
BINS = 4
BLOCKS = (
    "mean accepted block: of blockwise decoding, tokens per block as Stern et al. 2018 count, the "
    "model's own token and the drafted ones that the next pass accepted."
)


def tables(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of a benchmark, each with ``title``, ``notes`` and ``rows``.

    They are made of the raw samples; the benchmark's own ``tables`` are not read.
    """
    own = [s for s in document["systems"] if s["promise"] != "peer"]
    peers = [s for s in document["systems"] if s["promise"] == "peer"]
    setting, seconds = document["setting"], document["seconds"]
    main, latency = main_threads(document), latencies(document)
    found = [
        {
            "title": "Output",
            "notes": [
                f"Differences of {listed(document['signatures'])} with their 95% paired-bootstrap "
                "intervals.",
                "Ties: the outputs part where the two tokens' log-probabilities differ by less than"
                " 1e-4.",
                "tokens: with </s>. passes: of the decoder, at batch 1.",
                *([BLOCKS] if any("blocks" in s for s in own) else []),
            ],
            "rows": [output_row(s, any("blocks" in other for other in own)) for s in own],
        },
        {
            "title": f"Latency: batch 1, {setting['dtype']}, {threads(main)}",
            "notes": [
                "Medians over the rounds, lowest and highest round in brackets. p95: over the "
                "sentences. Speed-ups: ratios of a round's total times.",
                "memory: peak beyond the loaded models, in MiB.",
            ],
            "rows": [latency_row(s, latency) for s in own],
        },
    ]
    sweep = seconds["throughput"]
    if sweep:
        found.append(
            {
                "title": f"Throughput: {setting['dtype']}, {threads(main)}",
                "notes": ["Batches of sentences of similar length; speed-ups at the same size."],
                "rows": [
                    throughput_row(s, size, times, setting["sentences"])
                    for size, times in sweep.items()
                    for s in own + peers
                    if s["label"] in times
                ],
            }
        )
    bins = length_bins(document["source_lengths"], BINS)
    found.append(
        {
            "title": f"Speed-up against {GREEDY}, by source length in tokens ({threads(main)})",
            "notes": [],
            "rows": [
                {"decoder": shown(s), "label": label(s)}
                | {
                    f"{name} (n={len(items)})": speed_up(
                        latency[GREEDY], latency[s["label"]], items
                    ).text(2, "x")
                    for name, items in bins.items()
                }
                for s in own
            ],
        }
    )
    if len(seconds["latency"]) > 1:
        found.append(
            {
                "title": "Threads: batch 1, median ms; speed-up against our greedy with as many",
                "notes": [],
                "rows": [threads_row(s, seconds["latency"]) for s in own]
                + peer_threads_rows(peers, seconds["latency"]),
            }
        )
    if peers:
        found.append(
            {
                "title": "Peers: the same checkpoint in another engine",
                "notes": [
                    (
                        "Each at its own best number of threads and in its own dtype; speed-ups "
                        "are against the table above"
                        if document.get("version", 3) < 3
                        else "Each in its own dtype, with its own number of threads; speed-ups are "
                        "against Latency above"
                    )
                    + f", in the same rounds ({setting['dtype']}, {threads(main)}).",
                    "identical: to fairseq greedy.",
                ],
                "rows": [peer_row(s, latency, int(main)) for s in peers],
            }
        )
    return found


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
        compiled = " compiled" if system.get("compiled") else ""  # by earlier versions
        return f"{system['engine']} {system['engine_dtype']}{compiled}"

    own = [s["promise"] != "peer" and s["label"] not in (BEAM, GREEDY) for s in systems]
    several = len({engine(s) for s, is_own in zip(systems, own, strict=True) if is_own}) > 1
    return [
        f"{s['label']} [{engine(s)}]" if several and is_own else s["label"]
        for s, is_own in zip(systems, own, strict=True)
    ]


def shown(system: dict[str, Any]) -> str:
    """Return a system's label as tables show it; older documents have labels alone."""
    name: str = system.get("shown", system["label"])
    return name


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


def output_row(system: dict[str, Any], blocks: bool = False) -> Fields:
    """Return a system's row on its outputs."""
    at_one = system["agreement"]["1"]
    row: Fields = {
        "decoder": shown(system),
        "label": label(system),
        "parameters": system["parameters"],
        "identical to greedy": f"{at_one['identical']}/{at_one['sentences']}",
        "ties": at_one["ties"],
    }
    row |= quality(system, BEAM) | quality(system, GREEDY)
    passes, tokens, sentences = system["passes"], system["tokens"], at_one["sentences"]
    row["passes per sentence"] = "-" if passes is None else round(passes / sentences, 2)
    row["tokens per pass"] = "-" if passes is None else round(tokens / passes, 2)
    if blocks:
        row["mean accepted block"] = (
            round(tokens / system["blocks"], 2) if "blocks" in system else "-"
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
    speed_ups: dict[str, Spread]  # at batch 1, by baseline


def block_points(document: dict[str, Any]) -> list[BlockPoint]:
    """Return our greedy search and each blockwise system of a benchmark, in its order."""
    times = latencies(document)
    tokens = {system["label"]: system["tokens"] for system in document["systems"]}
    points = []
    for system in document["systems"]:
        name = system["label"]
        if name == OWN_GREEDY or "blocks" in system:
            speed_ups = {base: speed_up(times[base], times[name]) for base in (OWN_GREEDY, GREEDY)}
            block = system["tokens"] / system.get("blocks", system["tokens"])
            passes = system["passes"] / system["agreement"]["1"]["sentences"]
            length = tokens[name] / tokens[OWN_GREEDY]
            points.append(BlockPoint(name, label(system), block, passes, length, speed_ups))
    return points


def quality(system: dict[str, Any], baseline: str) -> Fields:
    """Return a system's scores, and their differences from a baseline's."""
    row: Fields = {metric: round(score, 2) for metric, score in system["scores"].items()}
    for metric, (difference, low, high) in system["differences"][baseline].items():
        name = f"{metric} - {baseline.removeprefix('fairseq ')}"
        row[name] = f"{difference:+.2f} [{low:+.2f}, {high:+.2f}]"
    return row


def against_baselines(name: str, times: dict[str, Rounds]) -> Fields:
    """Return the speed-ups of one system, by baseline."""
    heads = {BEAM: "x beam 5", GREEDY: "x fairseq greedy", OWN_GREEDY: "x our greedy"}
    return {head: speed_up(times[base], times[name]).text(2) for base, head in heads.items()}


def latency_row(system: dict[str, Any], times: dict[str, Rounds]) -> Fields:
    """Return a system's latency of one sentence."""
    name = system["label"]
    return {
        "decoder": shown(system),
        "label": label(system),
        "ms per sentence": milliseconds(times[name]).text(2),
        "p95": round(1000 * percentile(times[name], 95), 2),
        **against_baselines(name, times),
        "memory": memory(system, "1"),
    }


def memory(system: dict[str, Any], size: str) -> float | str:
    """Return a peak in MiB, or "unknown"."""
    found = system["memory"].get(size)
    return "unknown" if found is None else found


def milliseconds(rounds: Rounds) -> Spread:
    """Return the median time of a sentence, in ms."""
    spread = round_medians(rounds)
    return Spread(1000 * spread.median, 1000 * spread.low, 1000 * spread.high)


def throughput(rounds: Rounds, sentences: int) -> Spread:
    """Return sentences per second."""
    return Spread.of([sentences / total(times) for times in rounds])


def throughput_row(
    system: dict[str, Any], size: str, times: dict[str, Rounds], sentences: int
) -> Fields:
    """Return a system's throughput at one batch size."""
    name = system["label"]
    agreement = system["agreement"][size]
    return {
        "batch": int(size),
        "decoder": shown(system),
        "label": label(system),
        "sentences/s": throughput(times[name], sentences).text(1),
        **against_baselines(name, times),
        "identical": f"{agreement['identical']}/{agreement['sentences']}",
        "memory": memory(system, size),
    }


def threads_row(system: dict[str, Any], latency: dict[str, dict[str, Rounds]]) -> Fields:
    """Return latency by the number of threads (santilli2023, Figure 3)."""
    row: Fields = {"decoder": shown(system), "label": label(system)}
    for count, times in latency.items():
        ours = times[system["label"]]
        row[f"{threads(count)}, ms"] = milliseconds(ours).text(2)
        row[f"{threads(count)}, x"] = speed_up(times[OWN_GREEDY], ours).text(2)
    return row


def peer_threads_rows(
    peers: Iterable[dict[str, Any]], latency: dict[str, dict[str, Rounds]]
) -> list[Fields]:
    """Return the latency of peers that were timed with all these numbers of threads."""
    found: dict[str, Fields] = {}
    for count, times in latency.items():
        for peer in peers:
            if peer["threads"] in (None, int(count)) and peer["label"] in times:
                name = peer["label"].removesuffix(f", {threads(count)}")
                row = found.setdefault(name, {"decoder": name, "label": label(peer)})
                row[f"{threads(count)}, ms"] = milliseconds(times[peer["label"]]).text(2)
                gain = speed_up(times[OWN_GREEDY], times[peer["label"]])
                row[f"{threads(count)}, x"] = gain.text(2)
    return [row for row in found.values() if len(row) == 2 + 2 * len(latency)]


def peer_row(system: dict[str, Any], times: dict[str, Rounds], main: int) -> Fields:
    """Return the latency of a peer, with its own dtype and threads."""
    name, at_one = system["label"], system["agreement"]["1"]
    return {
        "peer": name,
        "dtype": system["dtype"],
        "threads": system["threads"] or main,
        "ms per sentence": milliseconds(times[name]).text(2),
        "p95": round(1000 * percentile(times[name], 95), 2),
        **against_baselines(name, times),
        "identical": f"{at_one['identical']}/{at_one['sentences']}",
        **quality(system, GREEDY),
    }
