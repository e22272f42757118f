"""A benchmark as a picture: latency, throughput by batch size, and the sweep over threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # a file is drawn, on machines without a screen, too
matplotlib.rcParams["text.parse_math"] = False  # a $ in a label is a $

from matplotlib import pyplot as plt  # noqa: E402

from .benchmark_tables import OWN_GREEDY, label, milliseconds, threads, throughput  # noqa: E402
from .timing import percentile, speed_up  # noqa: E402

# Of the labels; what is another promise has another colour.
COLOURS = {
    "exact": "#2a7f62",
    "beam search": "#7f7f7f",
    "relaxed": "#d9822b",
    "other model": "#7a52a3",
    "peer": "#4c78a8",
}
WRONG = "#c0392b"


def draw(document: dict[str, Any], path: Path) -> None:
    """Write the picture of a benchmark.

    Args:
        document: what ``paradec-benchmark`` wrote.
        path: of the PNG file.
    """
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
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def legend(ax: Any, names: Sequence[str], **options: Any) -> None:
    """Name the lines of a panel, also those that begin with ``_``."""
    ax.legend(ax.get_lines()[: len(names)], list(names), fontsize=8, frameon=False, **options)


def colour(system: dict[str, Any]) -> str:
    """Return a system's colour."""
    name = label(system)
    return COLOURS["exact"] if name.startswith("exact") else COLOURS.get(name, WRONG)


def _latency(ax: Any, document: dict[str, Any]) -> None:
    """Bars: median time of a sentence; lines to the p95; colour by label."""
    times = document["seconds"]["latency"][str(document["setting"]["threads"][0])]
    systems = [s for s in document["systems"] if s["label"] in times]
    for place, system in enumerate(systems):
        rounds = times[system["label"]]
        median, tail = milliseconds(rounds).median, 1000 * percentile(rounds, 95)
        ax.barh(place, median, color=colour(system), height=0.66)
        ax.plot([median, tail], [place, place], color="black", linewidth=0.9)
        ax.text(tail, place, f" {median:.1f}", va="center", fontsize=8)
    ax.set_yticks(range(len(systems)), [s["label"] for s in systems], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("ms per sentence, batch 1 (bar: median, line: to p95)")
    shown = {label(s): colour(s) for s in systems}
    handles = [plt.Rectangle((0, 0), 1, 1, color=one) for one in shown.values()]
    ax.legend(handles, list(shown), fontsize=8, frameon=False, loc="lower right")


def _throughput(ax: Any, document: dict[str, Any]) -> None:
    """Lines: sentences a second by batch size."""
    sweep, count = document["seconds"]["throughput"], document["setting"]["sentences"]
    sizes = [int(size) for size in sweep]
    names = list(next(iter(sweep.values())))
    for name in names:
        rates = [throughput(times[name], count).median for times in sweep.values()]
        ax.plot(sizes, rates, marker="o", markersize=3)
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("batch size")
    ax.set_ylabel("sentences per second")
    legend(ax, names)


def _threads(ax: Any, document: dict[str, Any]) -> None:
    """Lines: speed-up against our greedy with as many threads (santilli2023, Figure 3)."""
    latency = document["seconds"]["latency"]
    counts = sorted(latency, key=int)
    names = [name for name in latency[counts[-1]] if all(name in latency[c] for c in counts)]
    for name in names:
        gains = [speed_up(latency[c][OWN_GREEDY], latency[c][name]).median for c in counts]
        ax.plot([int(c) for c in counts], gains, marker="o", markersize=3)
    ax.set_xticks([int(c) for c in counts])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("CPU threads")
    ax.set_ylabel(f"speed-up against {OWN_GREEDY}, as many threads")
    legend(ax, names)
