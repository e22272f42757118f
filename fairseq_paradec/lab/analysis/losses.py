"""Loss curves of trainings side by side: a table of their means, and a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.table import Cells, Table, column

#: Losses by name, each by the number of updates.
Curves = Mapping[str, Mapping[int, float]]

#: A run is shown in so many parts.
PARTS = 10
TRAIN, VALID = "train loss", "valid loss"


def table(runs: Mapping[str, Curves], notes: Sequence[str] = ()) -> Table:
    """Return the losses of runs: means of training's parts, then validation's last common point.

    Args:
        runs: curves by name, all with a training loss.
        notes: of the table.
    """
    ends = [max(curves[TRAIN]) for curves in runs.values()]
    rows = []
    for part in range(PARTS):
        low, high = (min(ends) * end // PARTS for end in (part, part + 1))
        means = {name: _mean(curves[TRAIN], low, high) for name, curves in runs.items()}
        rows.append(_row("training", f"{low + 1}-{high}", means))
    points = [curves.get(VALID, {}) for curves in runs.values()]
    if both := set(points[0]).intersection(*points[1:]):
        last = max(both)
        losses = {name: curve[last] for name, curve in zip(runs, points, strict=True)}
        rows.append(_row("validation", str(last), losses))
    return Table.of(rows, notes=notes)


def _row(name: str, updates: str, losses: Mapping[str, float | None]) -> Cells:
    """Return a row, with how far the others are from the first."""
    row: Cells = {"loss": name, "updates": updates}
    for run, loss in losses.items():
        row[column(run, run)] = None if loss is None else round(loss, 3)
    (first, its), *others = losses.items()
    for run, loss in others:
        less = None if loss is None or its is None else round(loss - its, 3) + 0.0  # no -0
        row[column(f"{run}_less_{first}", f"{run} - {first}", form="+.3f")] = less
    return row


def _mean(points: Mapping[int, float], low: int, high: int) -> float | None:
    """Return the mean of the points above low and up to high."""
    inside = [loss for update, loss in points.items() if low < update <= high]
    return sum(inside) / len(inside) if inside else None


def draw(runs: Mapping[str, Curves], target: Path) -> None:
    """Write the picture: lines are the training's loss, marks the validation's."""
    from matplotlib.figure import Figure

    from ..show.plot import save

    figure: Any = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, (name, curves) in enumerate(runs.items()):
        style = {"color": f"C{number}", "linewidth": 1.2, "alpha": 0.8}
        axes.plot(*zip(*sorted(curves[TRAIN].items()), strict=True), label=name, **style)
        if VALID in curves:
            points = zip(*sorted(curves[VALID].items()), strict=True)
            mark = "ox^s"[number % 4]
            axes.plot(*points, mark, color=f"C{number}", label=f"{name}, validation")
    axes.set_xlabel("updates")
    axes.set_ylabel("loss (bits a token)")
    axes.grid(color="#eeeeee")
    axes.legend(fontsize=8, frameon=False)
    save(figure, target)
