"""Pictures of speed-ups: by batch, beam, length, threads; of single sentences; and of drafts.

Pure functions of a benchmark's JSON, of the counts of ``acceptance_by_position``, or of the rows of
``paradec breakeven``. Each writes a ``.png`` or ``.svg`` file, or SVG into an open binary file.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..analysis.acceptance_by_position import Position
from ..analysis.benchmark_tables import BEAM
from ..analysis.break_even import PAYS_WORDS, PREDICTED
from ..analysis.speed_ups import LAST_BIN, SpeedUp, histograms, in_settings, title
from ..data.table import Table
from .benchmark_plot import COLOURS, WRONG, plt, save

#: Marks of settings or lines, in order.
MARKERS = "os^Dv<>pPX"

#: Largest number of histograms side by side.
COLUMNS = 4

#: Lines of block sizes, in order.
LINES = ("-", "--", "-.", ":")

#: Shares of fewer drafts have hollow marks.
FEW = 10


def _colour(label: str) -> str:
    """Return the colour of a label, as in the benchmark's own picture."""
    return COLOURS["exact"] if label.startswith("exact") else COLOURS.get(label, WRONG)


def _axes(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """Make a figure with panels."""
    size = (width, height)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained", **options
    )
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _label_legend(figure: Any, labels: Sequence[str]) -> None:
    """Draw a legend of the colours below the panels."""
    shown = list(dict.fromkeys(labels))
    handles = [plt.Rectangle((0, 0), 1, 1, color=_colour(one)) for one in shown]
    where = {"loc": "outside lower center", "ncols": min(4, len(shown))}
    figure.legend(handles, shown, fontsize=8, frameon=False, **where)


def draw_speed_ups(
    document: Mapping[str, Any], by: str, target: Path | BinaryIO, against: str = BEAM
) -> None:
    """Draw the speed-ups in all settings: a row per system, a mark per setting."""
    found = in_settings(document, by, against)
    rows: dict[str, list[SpeedUp]] = {}
    for one in found:
        rows.setdefault(one.name, []).append(one)
    settings = sorted(dict.fromkeys(one.at for one in found), key=_number)
    marks = {at: MARKERS[i % len(MARKERS)] for i, at in enumerate(settings)}
    shifts = dict(zip(settings, np.linspace(-0.24, 0.24, len(settings)), strict=True))
    figure, axes = _axes(1, 1, 9.6, 1.8 + 0.36 * len(rows))
    ax = axes[0, 0]
    for place, ones in enumerate(rows.values()):
        for one in ones:
            at, colour = place + (0 if len(ones) == 1 else shifts[one.at]), _colour(one.label)
            ax.plot([one.spread.low, one.spread.high], [at, at], color=colour, linewidth=1)
            ax.plot(
                one.spread.middle,
                at,
                marks[one.at],
                markersize=5.5,
                color=colour,
                markeredgecolor="white",
                markeredgewidth=0.5,
            )
    ax.set_yticks(range(len(rows)), list(rows), fontsize=8)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    for edge in range(1, len(rows)):
        ax.axhline(edge - 0.5, color="#e6e6e6", linewidth=0.6)
    ax.axvline(1, color="black", linewidth=0.6, linestyle=":")
    ax.set_xlim(left=0)
    ax.set_xlabel("times as fast (mark: median of the rounds; line: lowest to highest)")
    figure.suptitle(title(document, by, against), fontsize=10)
    handles = [plt.Line2D([], [], color="#555555", marker=marks[at], ls="") for at in settings]
    bases = {one.at: one.against for one in found}
    names = [f"{at}, against {bases[at]}" if by == "beam" else at for at in settings]
    figure.legend(handles, names, fontsize=8, frameon=False, loc="outside right upper")
    _label_legend(figure, [one.label for one in found])
    save(figure, target)


def _number(text: str) -> int:
    """Return the first number of a setting's name."""
    match = re.search(r"\d+", text)
    return int(match[0]) if match else 0


def draw_histogram(
    document: Mapping[str, Any],
    target: Path | BinaryIO,
    labels: Sequence[str] | None = None,
    against: str = BEAM,
) -> None:
    """Draw the speed-ups of single sentences (xia2022, Figure 4), a panel for each system.

    Args:
        document: what ``paradec benchmark`` wrote.
        target: the file.
        labels: of the systems; None for all but the baseline.
        against: the baseline's label.
    """
    found = histograms(document, labels, against)
    columns = min(COLUMNS, len(found))
    lines = math.ceil(len(found) / columns)
    width, height = max(4.8, 3.2 * columns), 1.1 + 1.9 * lines
    figure, axes = _axes(lines, columns, width, height, sharex=True)
    last = max(len(one.bins) for one in found)
    for ax, one in zip(axes.flat, found, strict=False):
        counts = one.bins
        shares = [100 * n / len(one.ratios) for n in counts]
        # A bin lies between its ends; the last one may be open.
        ax.bar([i + 0.5 for i in range(len(counts))], shares, width=0.92, color=_colour(one.label))
        ax.axvline(1, color="black", linewidth=0.6, linestyle=":")
        middle = min(one.quantile(50), LAST_BIN + 0.5)
        ax.plot(middle, 0, "^", color="black", markersize=5, clip_on=False, zorder=3)
        ax.set_title(
            f"{one.name}\nmedian {one.quantile(50):.2f}x, {100 * one.faster:.0f}% above 1x",
            fontsize=8,
        )
        ax.set_xlim(0, last)
        ax.set_xticks(range(last + 1))
        ax.tick_params(labelsize=7)
    for ax in axes.flat[len(found) :]:
        ax.axis("off")
    if last > LAST_BIN:
        names = [str(i) for i in range(LAST_BIN + 1)] + [""]
        names[LAST_BIN] += "+"
        axes[0, 0].set_xticks(range(last + 1), names)
    figure.suptitle(f"Sentences by how much faster they are than with {against}", fontsize=10)
    figure.supylabel("% of sentences", fontsize=8)
    # With shared axes matplotlib labels only the last row, which may be incomplete.
    for ax in axes.flat[max(0, len(found) - columns) : len(found)]:
        ax.tick_params(labelbottom=True)
        ax.set_xlabel("times as fast (triangle: median)", fontsize=8)
    _label_legend(figure, [one.label for one in found])
    save(figure, target)


def _draw_rates(ax: Any, found: Sequence[Position], if_reached: bool, **style: Any) -> Any:
    """Draw a line of shares, with hollow marks for few drafts; return the line."""
    points = []
    for one in found:
        rate = one.rate_if_reached if if_reached else one.rate
        if rate is not None:
            drafts = one.reached if if_reached else one.drafted
            points.append((one.position, 100 * rate, drafts))
    (line,) = ax.plot([x for x, _, _ in points], [y for _, y, _ in points], **style)
    few = [(x, y) for x, y, drafts in points if drafts < FEW]
    places, shares = [x for x, _ in few], [y for _, y in few]
    # Above the full marks of all lines.
    ax.plot(places, shares, **style, linestyle="", markerfacecolor="white", zorder=3)
    return line


def draw_acceptance(by_name: Mapping[str, Sequence[Position]], target: Path | BinaryIO) -> None:
    """Draw how often the i-th token of a draft is accepted, a line for each name.

    Shares of fewer than ``FEW`` drafts have hollow marks, because they are uncertain.
    """
    figure, axes = _axes(1, 2, 10.4, max(4.0, 1.2 + 0.21 * len(by_name)), sharey=True)
    heads = ("accepted, % of drafted", "accepted, % where all before were accepted")
    longest = max((len(found) for found in by_name.values()), default=1)
    lines = []
    for panel, (ax, head) in enumerate(zip(axes[0], heads, strict=True)):
        for i, found in enumerate(by_name.values()):
            colour, mark = f"C{i % 10}", MARKERS[(i // 10 + i) % len(MARKERS)]
            style = {"color": colour, "marker": mark, "markersize": 4}
            lines.append(_draw_rates(ax, found, bool(panel), **style))
        ax.set_title(head, fontsize=9)
        ax.set_ylim(-2, 102)  # with room for the marks at both ends
        ax.set_xticks(range(1, longest + 1, max(1, longest // 12)))
        ax.grid(color="#eeeeee")
    note = f"position in the draft (hollow marks: shares of fewer than {FEW} drafts)"
    figure.supxlabel(note, fontsize=9)
    handles = lines[: len(by_name)]
    # Explicit handles, because matplotlib hides names that begin with _.
    figure.legend(handles, list(by_name), fontsize=8, frameon=False, loc="outside right upper")
    save(figure, target)


def draw_break_even(found: Table, name: str, target: Path | BinaryIO) -> None:
    """Draw speed-up over tokens a pass: a panel for each decoder, a line for each curve."""
    rows: list[dict[str, Any]] = list(found.rows)
    decoders, engines, sizes = (
        list(dict.fromkeys(row[column] for row in rows))
        for column in ("decoder", "engine", "block_size")
    )
    figure, axes = _axes(
        1, len(decoders), max(6.4, 4.8 * len(decoders)), 4.4, sharex=True, sharey=True
    )
    for ax, decoder in zip(axes[0], decoders, strict=True):
        own = [row for row in rows if row["decoder"] == decoder]
        named = set()
        for (i, engine), (j, size) in product(enumerate(engines), enumerate(sizes)):
            curve = [r for r in own if (r["engine"], r["block_size"]) == (engine, size)]
            points = sorted(
                (row["tokens_a_pass"], gain.middle, gain.low, gain.high)
                for row in curve
                if row["rate"] is not None
                for gain in [row["speed_up"]]
            )
            tokens, middles, lows, highs = zip(*points, strict=True)
            style = {"color": f"C{i}", "linestyle": LINES[j % len(LINES)]}
            ax.plot(tokens, middles, marker="o", markersize=3, linewidth=1.2, **style)
            ax.vlines(tokens, lows, highs, f"C{i}", linewidth=0.8)
            for row in curve:
                if row["rate"] is not None or row["speed_up"] is None:
                    continue
                if row["at"] in (*PAYS_WORDS, PREDICTED):
                    continue
                where = row["tokens_a_pass"], row["speed_up"].middle
                ax.plot(*where, "*", markersize=9, color=f"C{i}", markeredgecolor="black")
                if (row["at"], size) not in named:
                    ax.annotate(row["at"], where, (5, -9), textcoords="offset points", fontsize=7)
                named.add((row["at"], size))
        ax.axhline(1, color="black", linewidth=0.6, linestyle=":")
        ax.set_title(decoder, fontsize=9)
        ax.set_xlabel("tokens a pass", fontsize=8)
        ax.grid(color="#eeeeee")
    axes[0, 0].set_xlim(left=1)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_ylabel("times as fast as greedy search in the same engine", fontsize=8)
    figure.suptitle(name, fontsize=10)
    handles = [plt.Line2D([], [], color=f"C{i}", label=one) for i, one in enumerate(engines)]
    for j, size in enumerate(sizes):
        style = {"color": "#555555", "linestyle": LINES[j % len(LINES)]}
        handles.append(plt.Line2D([], [], label=f"block size {size}", **style))
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside right upper")
    save(figure, target)
