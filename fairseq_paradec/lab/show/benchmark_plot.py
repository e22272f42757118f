"""Pictures of benchmarks: latency, throughput by batch size, threads; speed-up over block size."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib

matplotlib.use("Agg")  # needs no screen
matplotlib.rcParams["text.parse_math"] = False  # a $ in a label is a $

from matplotlib import pyplot as plt  # noqa: E402

from ..analysis.benchmark_tables import (  # noqa: E402
    GREEDY,
    OWN_GREEDY,
    BlockPoint,
    label,
    latencies,
    shown,
    threads,
    throughput,
)
from ..analysis.timing import milliseconds, percentile  # noqa: E402
from ..data.samples import LATENCY, samples, speed_ups  # noqa: E402
from . import plot  # noqa: E402

# Colours of the labels.
COLOURS = {
    "exact": "#2a7f62",
    "beam search": "#7f7f7f",
    "relaxed": "#d9822b",
    "other model": "#7a52a3",
    "other dtype": "#b05c86",
    "peer": "#4c78a8",
}
WRONG = "#c0392b"


def draw(document: Mapping[str, Any], target: Path | BinaryIO) -> None:
    """Write the picture of a benchmark."""
    seconds, setting = document["seconds"], document["setting"]
    panels = [_latency]
    if seconds["throughput"]:
        panels.append(_throughput)
    if len(seconds["latency"]) > 1:
        panels.append(_threads)
    height = max(3.5, 0.42 * len(document["systems"]) + 1.6)
    figure, axes = plt.subplots(1, len(panels), figsize=(6.4 * len(panels), height), squeeze=False)
    for panel, ax in zip(panels, axes[0], strict=True):
        panel(ax, document)
        ax.spines[["top", "right"]].set_visible(False)
    main = threads(str(setting["threads"][0]))
    figure.suptitle(f"{document['title']} ({setting['dtype']}, {setting['device']}, {main})")
    figure.tight_layout()
    save(figure, target)


def save(figure: Any, target: Path | BinaryIO) -> None:
    """Write a figure of pyplot's, and close it; see ``plot.save``."""
    plot.save(figure, target)
    plt.close(figure)


def legend(ax: Any, names: Sequence[str], **options: Any) -> None:
    """Add a legend, including names that begin with ``_``."""
    ax.legend(ax.get_lines()[: len(names)], list(names), fontsize=8, frameon=False, **options)


def colour(system: dict[str, Any]) -> str:
    """Return a system's colour."""
    name = label(system)
    return COLOURS["exact"] if name.startswith("exact") else COLOURS.get(name, WRONG)


def _latency(ax: Any, document: Mapping[str, Any]) -> None:
    """Bars: median time of a sentence; lines to the p95; colour by label."""
    times = latencies(document)
    systems = [s for s in document["systems"] if s["label"] in times]
    medians = [milliseconds(times[s["label"]]).middle for s in systems]
    tails = [1000 * percentile(times[s["label"]], 95) for s in systems]
    _bars(ax, systems, medians, "ms per sentence, batch 1 (bar: median, line: to p95)", tails)
    shown = {label(s): colour(s) for s in systems}
    handles = [plt.Rectangle((0, 0), 1, 1, color=one) for one in shown.values()]
    ax.legend(handles, list(shown), fontsize=8, frameon=False, loc="lower right")


def _bars(
    ax: Any,
    systems: Sequence[dict[str, Any]],
    values: Sequence[float],
    meaning: str,
    tails: Sequence[float] | None = None,
) -> None:
    """Draw a bar for each system with its value, and a line to its tail, if any."""
    for place, (system, value) in enumerate(zip(systems, values, strict=True)):
        tail = value if tails is None else tails[place]
        ax.barh(place, value, color=colour(system), height=0.66)
        ax.plot([value, tail], [place, place], color="black", linewidth=0.9)
        ax.text(tail, place, f" {value:.1f}", va="center", fontsize=8)
    ax.set_yticks(range(len(systems)), [shown(s) for s in systems], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel(meaning)


def _throughput(ax: Any, document: Mapping[str, Any]) -> None:
    """Sentences per second: lines by batch size, or bars for a single size."""
    sweep, count = document["seconds"]["throughput"], document["setting"]["sentences"]
    sizes = [int(size) for size in sweep]
    first = next(iter(sweep.values()))
    systems = [s for s in document["systems"] if s["label"] in first]
    if len(sizes) == 1:
        (times,) = sweep.values()
        rates = [throughput(times[s["label"]], count).middle for s in systems]
        _bars(ax, systems, rates, f"sentences per second, batch {sizes[0]}")
        return
    for system in systems:
        rates = [throughput(times[system["label"]], count).middle for times in sweep.values()]
        ax.plot(sizes, rates, marker="o", markersize=3)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("batch size")
    ax.set_ylabel("sentences per second")
    legend(ax, [shown(system) for system in systems])


def _threads(ax: Any, document: Mapping[str, Any]) -> None:
    """Lines: speed-up against our greedy with as many threads (santilli2023, Figure 3)."""
    counts = sorted(map(int, document["seconds"]["latency"]))
    single = [one for one in samples(document) if one.kind == LATENCY]
    found = speed_ups(single, OWN_GREEDY, lambda one: one.threads)
    systems = [s for s in document["systems"] if s["promise"] != "peer"]
    for name in (system["label"] for system in systems):
        gains = [found[name, count].middle for count in counts]
        ax.plot(counts, gains, marker="o", markersize=3)
    ax.set_xticks(counts)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("CPU threads")
    ax.set_ylabel(f"speed-up against {OWN_GREEDY}, as many threads")
    legend(ax, [shown(system) for system in systems])


def series(points: Sequence[BlockPoint]) -> dict[str, list[tuple[int, BlockPoint]]]:
    """Group points whose names differ only in a last number (``both 4``, ``both 8``).

    Returns:
        Numbers (0 without one) and points by name, in ascending order. The name of a group of
        several points lacks the number.
    """
    found: dict[str, list[tuple[int, BlockPoint]]] = {}
    for point in points:
        match = re.fullmatch(r"(.*?)[\s,]+(\d+)", point.name)
        name, number = (match[1], int(match[2])) if match else (point.name, 0)
        found.setdefault(name, []).append((number, point))
    return {
        name if len(ones) > 1 else ones[0][1].name: sorted(ones, key=lambda one: one[0])
        for name, ones in found.items()
    }


def draw_blocks(benchmarks: Mapping[str, Sequence[BlockPoint]], target: Path | BinaryIO) -> None:
    """Write the picture of speed-up over mean accepted block (stern2018, Figure 4)."""
    figure, axes = plt.subplots(1, 2, figsize=(12.8, 5.0), squeeze=False)
    for base, ax in zip((OWN_GREEDY, GREEDY), axes[0], strict=True):
        names = []
        for title, points in benchmarks.items():
            for name, ones in series(points).items():
                gains = [point.speed_ups[base] for _, point in ones]
                blocks, middles = [point.block for _, point in ones], [g.middle for g in gains]
                (line,) = ax.plot(blocks, middles, marker="o", markersize=4)
                ax.vlines(blocks, [g.low for g in gains], [g.high for g in gains], line.get_color())
                for (number, _), x, y in zip(ones, blocks, middles):
                    if number and len(ones) > 1:
                        ax.annotate(str(number), (x, y), (4, 4), textcoords="offset points")
                names.append(name if len(benchmarks) == 1 else f"{name} ({title})")
        ax.axhline(1, color="black", linewidth=0.6, linestyle=":")
        ax.set_xlim(left=0.9)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("mean accepted block, tokens")
        ax.set_ylabel(f"speed-up against {'our greedy' if base == OWN_GREEDY else base}, batch 1")
        ax.spines[["top", "right"]].set_visible(False)
        legend(ax, names)
    figure.tight_layout()
    save(figure, target)
