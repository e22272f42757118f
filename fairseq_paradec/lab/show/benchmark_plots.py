"""Plots of benchmarks, of speed-ups by a setting or a sentence, of drafts, and of what they pay.

Pure functions of a benchmark's JSON, of the counts of ``acceptance_by_position``, or of the rows of
``paradec profile breakeven``. Each writes a ``.png`` or ``.svg`` file, or SVG into an open binary
file, and returns the characters that no font has.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..analysis.acceptance_by_position import Position
from ..analysis.benchmark_tables import (
    BEAM,
    GREEDY,
    OWN_GREEDY,
    BlockPoint,
    label,
    latencies,
    milliseconds,
    percentile,
    shown,
    threads,
    throughput,
)
from ..analysis.break_even import PAYS_WORDS, PREDICTED
from ..analysis.promises import BREAKABLE, EXACT
from ..analysis.speed_ups import LAST_BIN, SpeedUp, histograms, in_settings, title
from ..data.samples import LATENCY, samples, speed_ups
from ..data.table import Table, Value
from . import plot
from .plot import GRID, THIN

#: Where a plot goes: a file by its name, or an open one.
Target = Path | BinaryIO

# Colours of the labels.
COLOURS = {
    EXACT: "#2a7f62",
    "beam search": "#7f7f7f",
    "relaxed": "#d9822b",
    "other model": "#7a52a3",
    "other dtype": "#b05c86",
    "peer": "#4c78a8",
}
WRONG = "#c0392b"

#: Marks of settings or lines, in order.
MARKERS = "os^Dv<>pPX"

#: Largest number of histograms side by side.
COLUMNS = 4

#: Lines of block sizes, in order.
LINES = ("-", "--", "-.", ":")

#: Shares of fewer drafts have hollow marks.
FEW = 10


def _colour(name: str) -> str:
    """Return the colour of a label."""
    return COLOURS[EXACT] if name.startswith(BREAKABLE) else COLOURS.get(name, WRONG)


def _legend_of_labels(place: Any, labels: Iterable[str], **options: Any) -> None:
    """Add a legend of the labels' colours."""
    names = list(dict.fromkeys(labels))
    plot.legend(place, names, plot.swatches(map(_colour, names)), **options)


def _legend_below(figure: Any, labels: Sequence[str]) -> None:
    """Add a legend of the labels' colours below the panels."""
    columns = min(4, len(set(labels)))
    _legend_of_labels(figure, labels, loc="outside lower center", ncols=columns)


def _draw_ranges(axes: Any, places: Sequence[float], gains: Sequence[Value], **style: Any) -> None:
    """Draw a line of values with their ranges."""
    (line,) = axes.plot(places, [gain.middle for gain in gains], **style)
    lows, highs = [gain.low for gain in gains], [gain.high for gain in gains]
    axes.vlines(places, lows, highs, line.get_color(), linewidth=0.8)


# ---- a benchmark -------------------------------------------------------------------------------


@plot.drawing()
def draw(document: Mapping[str, Any], target: Target) -> list[str]:
    """Draw a benchmark: latency, throughput by batch size, threads."""
    seconds, setting = document["seconds"], document["setting"]
    drawers = [_draw_latency]
    if seconds["throughput"]:
        drawers.append(_draw_throughput)
    if len(seconds["latency"]) > 1:
        drawers.append(_draw_threads)
    height = max(3.5, 0.42 * len(document["systems"]) + 1.6)
    figure, axes = plot.panels(1, len(drawers), 6.4 * len(drawers), height)
    for drawer, panel in zip(drawers, axes[0], strict=True):
        drawer(panel, document)
    main = threads(str(setting["threads"][0]))
    figure.suptitle(f"{document['title']} ({setting['dtype']}, {setting['device']}, {main})")
    return plot.save(figure, target)


def _draw_latency(axes: Any, document: Mapping[str, Any]) -> None:
    """Draw bars: median time of a sentence; lines to the p95; colour by label."""
    times = latencies(document)
    systems = [system for system in document["systems"] if system["label"] in times]
    medians = [milliseconds(times[system["label"]]).middle for system in systems]
    tails = [1000 * percentile(times[system["label"]], 95) for system in systems]
    _draw_bars(axes, systems, medians, tails)
    axes.set_xlabel("ms per sentence, batch 1 (bar: median, line: to p95)")
    _legend_of_labels(axes, map(label, systems), loc="lower right")


def _draw_bars(
    axes: Any,
    systems: Sequence[dict[str, Any]],
    values: Sequence[float],
    tails: Sequence[float],
) -> None:
    """Draw a bar for each system with its value, and a line to its tail."""
    for place, (system, value, tail) in enumerate(zip(systems, values, tails, strict=True)):
        axes.barh(place, value, color=_colour(label(system)), height=0.66)
        axes.plot([value, tail], [place, place], color="black", linewidth=0.9)
        axes.text(tail, place, f" {value:.1f}", va="center", fontsize=8)
    axes.set_yticks(range(len(systems)), [shown(system) for system in systems], fontsize=8)
    axes.invert_yaxis()


def _draw_throughput(axes: Any, document: Mapping[str, Any]) -> None:
    """Draw sentences per second: lines by batch size, or bars for a single size."""
    sweep, count = document["seconds"]["throughput"], document["setting"]["sentences"]
    first = next(iter(sweep.values()))
    systems = [system for system in document["systems"] if system["label"] in first]
    rates = [
        [throughput(times[system["label"]], count).middle for times in sweep.values()]
        for system in systems
    ]
    sizes = [int(size) for size in sweep]
    if len(sizes) == 1:
        single = [rate for (rate,) in rates]
        _draw_bars(axes, systems, single, single)
        axes.set_xlabel(f"sentences per second, batch {sizes[0]}")
        return
    axes.set_xscale("log", base=2)
    _draw_lines(axes, sizes, systems, rates)
    axes.set_xlabel("batch size")
    axes.set_ylabel("sentences per second")


def _draw_threads(axes: Any, document: Mapping[str, Any]) -> None:
    """Draw speed-ups against our greedy with as many threads (santilli2023, Figure 3)."""
    counts = sorted(map(int, document["seconds"]["latency"]))
    alone = [sample for sample in samples(document) if sample.kind == LATENCY]
    gains = speed_ups(alone, OWN_GREEDY, lambda sample: sample.threads)
    systems = [system for system in document["systems"] if system["promise"] != "peer"]
    lines = [[gains[system["label"], count].middle for count in counts] for system in systems]
    _draw_lines(axes, counts, systems, lines)
    axes.set_xlabel("CPU threads")
    axes.set_ylabel(f"speed-up against {OWN_GREEDY}, as many threads")


def _draw_lines(
    axes: Any,
    places: Sequence[int],
    systems: Sequence[dict[str, Any]],
    lines: Sequence[Sequence[float]],
) -> None:
    """Draw a line for each system, from zero up."""
    for line in lines:
        axes.plot(places, line, marker="o", markersize=3)
    axes.set_xticks(places, list(map(str, places)))
    axes.set_ylim(bottom=0)
    plot.legend(axes, map(shown, systems))


# ---- speed-ups ---------------------------------------------------------------------------------


@plot.drawing()
def draw_blocks(benchmarks: Mapping[str, Sequence[BlockPoint]], target: Target) -> list[str]:
    """Draw speed-up over mean accepted block (stern2018, Figure 4)."""
    figure, axes = plot.panels(1, 2, 12.8, 5.0)
    for base, panel in zip((OWN_GREEDY, GREEDY), axes[0], strict=True):
        names = []
        for heading, points in benchmarks.items():
            for name, numbered in _series(points).items():
                gains = [point.speed_ups[base] for _, point in numbered]
                blocks = [point.block for _, point in numbered]
                _draw_ranges(panel, blocks, gains, marker="o", markersize=4)
                for (number, _), x, gain in zip(numbered, blocks, gains):
                    if number and len(numbered) > 1:
                        place = (x, gain.middle)
                        panel.annotate(str(number), place, (4, 4), textcoords="offset points")
                names.append(name if len(benchmarks) == 1 else f"{name} ({heading})")
        panel.axhline(1, **THIN)
        panel.set_xlim(left=0.9)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("mean accepted block, tokens")
        against = "our greedy" if base == OWN_GREEDY else base
        panel.set_ylabel(f"speed-up against {against}, batch 1")
        plot.legend(panel, names)
    return plot.save(figure, target)


def _series(points: Sequence[BlockPoint]) -> dict[str, list[tuple[int, BlockPoint]]]:
    """Group points whose names differ only in a last number (``both 4``, ``both 8``).

    Returns:
        Numbers (0 without one) and points by name, in ascending order. The name of a group of
        several points lacks the number.
    """
    groups: dict[str, list[tuple[int, BlockPoint]]] = {}
    for point in points:
        match = re.fullmatch(r"(.*?)[\s,]+(\d+)", point.name)
        name, number = (match[1], int(match[2])) if match else (point.name, 0)
        groups.setdefault(name, []).append((number, point))
    return {
        name if len(group) > 1 else group[0][1].name: sorted(group, key=lambda pair: pair[0])
        for name, group in groups.items()
    }


@plot.drawing()
def draw_speed_ups(
    document: Mapping[str, Any], by: str, target: Target, against: str = BEAM
) -> list[str]:
    """Draw the speed-ups in all settings: a row per system, a mark per setting."""
    gains = in_settings(document, by, against)
    rows: dict[str, list[SpeedUp]] = {}
    for gain in gains:
        rows.setdefault(gain.name, []).append(gain)
    settings = sorted(dict.fromkeys(gain.at for gain in gains), key=_first_number)
    marks = {at: MARKERS[i % len(MARKERS)] for i, at in enumerate(settings)}
    shifts = dict(zip(settings, np.linspace(-0.24, 0.24, len(settings)), strict=True))
    figure, ((axes,),) = plot.panels(1, 1, 9.6, 1.8 + 0.36 * len(rows))
    for place, row in enumerate(rows.values()):
        for gain in row:
            at, spread = place + (0 if len(row) == 1 else shifts[gain.at]), gain.spread
            style = {"color": _colour(gain.label), "linewidth": 1}
            axes.plot([spread.low, spread.high], [at, at], **style)
            mark = {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.5}
            axes.plot(spread.middle, at, marks[gain.at], **style | mark)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    for edge in range(1, len(rows)):
        axes.axhline(edge - 0.5, color="#e6e6e6", linewidth=0.6)
    axes.axvline(1, **THIN)
    axes.set_xlim(left=0)
    axes.set_xlabel("times as fast (mark: median of the rounds; line: lowest to highest)")
    figure.suptitle(title(document, by, against), fontsize=10)
    handles = plot.strokes({"color": "#555555", "marker": marks[at], "ls": ""} for at in settings)
    bases = {gain.at: gain.against for gain in gains}
    names = [f"{at}, against {bases[at]}" if by == "beam" else at for at in settings]
    plot.legend(figure, names, handles, loc="outside right upper")
    _legend_below(figure, [gain.label for gain in gains])
    return plot.save(figure, target)


def _first_number(text: str) -> int:
    """Return the first number of a setting's name."""
    match = re.search(r"\d+", text)
    return int(match[0]) if match else 0


@plot.drawing()
def draw_histogram(
    document: Mapping[str, Any],
    target: Target,
    labels: Sequence[str] | None = None,
    against: str = BEAM,
) -> list[str]:
    """Draw the speed-ups of single sentences (xia2022, Figure 4), a panel for each system.

    Args:
        document: what ``paradec benchmark`` wrote.
        target: the file.
        labels: of the systems; None for all but the baseline.
        against: the baseline's label.
    """
    systems = histograms(document, labels, against)
    columns = min(COLUMNS, len(systems))
    lines = math.ceil(len(systems) / columns)
    width, height = max(4.8, 3.2 * columns), 1.1 + 1.9 * lines
    figure, axes = plot.panels(lines, columns, width, height)
    last = 1 + max(max(system.counts) for system in systems)
    for panel, system in zip(axes.flat, systems, strict=False):
        counts, middle = system.counts, system.quantile(50)
        shares = [100 * count / len(system.ratios) for count in counts.values()]
        # A bin lies between its ends; the last one may be open.
        places = [i + 0.5 for i in counts]
        panel.bar(places, shares, width=0.92, color=_colour(system.label))
        panel.axvline(1, **THIN)
        triangle = {"color": "black", "markersize": 5, "clip_on": False, "zorder": 3}
        panel.plot(min(middle, LAST_BIN + 0.5), 0, "^", **triangle)
        faster = f"median {middle:.2f}x, {100 * system.faster:.0f}% above 1x"
        panel.set_title(f"{system.name}\n{faster}", fontsize=8)
        panel.set_xlim(0, last)
        ends = [f"{i}+" if i == LAST_BIN < last else str(i) for i in range(LAST_BIN + 1)]
        panel.set_xticks(range(last + 1), [*ends, ""][: last + 1])
        panel.tick_params(labelsize=7)
    for panel in axes.flat[len(systems) :]:
        panel.axis("off")
    meaning = f"Sentences by how many times as fast they are as with {against} (triangle: median)"
    figure.suptitle(meaning, fontsize=10)
    figure.supylabel("% of sentences", fontsize=8)
    _legend_below(figure, [system.label for system in systems])
    return plot.save(figure, target)


# ---- drafts ------------------------------------------------------------------------------------


@plot.drawing()
def draw_acceptance(by_name: Mapping[str, Sequence[Position]], target: Target) -> list[str]:
    """Draw how often the i-th token of a draft is accepted, a line for each name.

    Shares of fewer than ``FEW`` drafts have hollow marks, because they are uncertain.
    """
    figure, axes = plot.panels(1, 2, 10.4, max(4.0, 1.2 + 0.21 * len(by_name)), sharey=True)
    left, right = axes[0]
    left.set_title("accepted, % of drafted", fontsize=9)
    right.set_title("accepted, % where all before were accepted", fontsize=9)
    lines = []
    for i, positions in enumerate(by_name.values()):
        mark = MARKERS[(i // 10 + i) % len(MARKERS)]
        style = {"color": f"C{i % 10}", "marker": mark, "markersize": 4}
        rates = [(share.position, share.rate, share.drafted) for share in positions]
        reached = [(share.position, share.rate_if_reached, share.reached) for share in positions]
        lines.append(_draw_rates(left, rates, style))
        _draw_rates(right, reached, style)
    longest = max((len(positions) for positions in by_name.values()), default=1)
    for panel in (left, right):
        panel.set_ylim(-2, 102)  # with room for the marks at both ends
        panel.set_xticks(range(1, longest + 1, max(1, longest // 12)))
        panel.grid(color=GRID)
    note = f"position in the draft (hollow marks: shares of fewer than {FEW} drafts)"
    figure.supxlabel(note, fontsize=9)
    plot.legend(figure, by_name, lines, loc="outside right upper")
    return plot.save(figure, target)


def _draw_rates(
    axes: Any, rates: Sequence[tuple[int, float | None, int]], style: Mapping[str, Any]
) -> Any:
    """Draw a line of (position, share, drafts), with hollow marks for few; return the line."""
    points = [(at, 100 * rate, drafts) for at, rate, drafts in rates if rate is not None]
    (line,) = axes.plot([at for at, _, _ in points], [share for _, share, _ in points], **style)
    few = [(at, share) for at, share, drafts in points if drafts < FEW]
    # Above the full marks of all lines.
    hollow = {"linestyle": "", "markerfacecolor": "white", "zorder": 3}
    axes.plot([at for at, _ in few], [share for _, share in few], **style, **hollow)
    return line


@plot.drawing()
def draw_break_even(table: Table, name: str, target: Target) -> list[str]:
    """Draw speed-up over tokens a pass: a panel for each decoder, a line for each curve."""
    rows: list[dict[str, Any]] = list(table.rows)
    decoders, engines, sizes = (
        list(dict.fromkeys(row[column] for row in rows))
        for column in ("decoder", "engine", "block_size")
    )
    width = max(6.4, 4.8 * len(decoders))
    figure, axes = plot.panels(1, len(decoders), width, 4.4, sharex=True, sharey=True)
    for panel, decoder in zip(axes[0], decoders, strict=True):
        named: set[tuple[str, Any]] = set()
        for (i, engine), (j, size) in product(enumerate(engines), enumerate(sizes)):
            key = (decoder, engine, size)
            curve = [r for r in rows if (r["decoder"], r["engine"], r["block_size"]) == key]
            style = {"color": f"C{i}", "linestyle": LINES[j % len(LINES)], "linewidth": 1.2}
            points = [
                (row["tokens_a_pass"], row["speed_up"]) for row in curve if row["rate"] is not None
            ]
            points.sort(key=lambda point: (point[0], point[1].middle))
            tokens, gains = zip(*points, strict=True)
            _draw_ranges(panel, tokens, gains, marker="o", markersize=3, **style)
            _draw_marks(panel, curve, f"C{i}", named)
        panel.axhline(1, **THIN)
        panel.set_title(decoder, fontsize=9)
        panel.set_xlabel("tokens a pass", fontsize=8)
        panel.grid(color=GRID)
    axes[0, 0].set_xlim(left=1)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_ylabel("times as fast as greedy search in the same engine", fontsize=8)
    figure.suptitle(name, fontsize=10)
    styles = [{"color": f"C{i}"} for i in range(len(engines))]
    styles += [{"color": "#555555", "ls": LINES[j % len(LINES)]} for j in range(len(sizes))]
    names = [*engines, *(f"block size {size}" for size in sizes)]
    plot.legend(figure, names, plot.strokes(styles), loc="outside right upper")
    return plot.save(figure, target)


def _draw_marks(
    axes: Any, curve: Sequence[Mapping[str, Any]], colour: str, named: set[tuple[str, Any]]
) -> None:
    """Draw a star for each mark of a curve; its name stands only once, as ``named`` notes."""
    for row in curve:
        name, size = row["at"], row["block_size"]
        if row["rate"] is not None or row["speed_up"] is None or name in (*PAYS_WORDS, PREDICTED):
            continue
        place = row["tokens_a_pass"], row["speed_up"].middle
        axes.plot(*place, "*", markersize=9, color=colour, markeredgecolor="black")
        if (name, size) not in named:
            axes.annotate(name, place, (5, -9), textcoords="offset points", fontsize=7)
        named.add((name, size))
