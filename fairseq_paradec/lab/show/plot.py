"""The one writer of plots: figures of matplotlib, without its state, as PNG or SVG.

The same figure gives the same bytes. In an SVG texts stay texts, which the reader's own fonts draw;
for a PNG ``fonts`` finds some that have every character.
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from . import fonts

#: Pixels in an inch of a PNG.
DPI = 110
#: Dotted lines at a speed-up of 1; lines of grids.
THIN: dict[str, Any] = {"color": "black", "linewidth": 0.6, "linestyle": ":"}
GRID = "#eeeeee"

STYLE = {
    "text.parse_math": False,  # a $ in a text is a $
    # of the same widths, where one of them is missing
    "font.sans-serif": [fonts.USUAL, "Verdana"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "fairseq_paradec",
}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Make matplotlib draw as all pictures are drawn."""
    with warnings.catch_warnings(), matplotlib.rc_context(STYLE):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def panels(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple[Figure, Any]:
    """Make a figure with panels; return it with its axes, rows by columns."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def legend(
    place: Any, names: Iterable[str], handles: Sequence[Any] | None = None, **options: Any
) -> None:
    """Add a legend to a figure or to axes, including names that begin with ``_``.

    Args:
        place: the figure or the axes.
        names: of the handles.
        handles: what is named; without them the axes' first lines.
        options: of matplotlib.
    """
    shown = list(names)
    place.legend(place.get_lines()[: len(shown)] if handles is None else handles, shown, **options)


def swatches(colours: Iterable[str]) -> list[Patch]:
    """Return handles of colours, for a legend."""
    return [Patch(color=colour) for colour in colours]


def strokes(styles: Iterable[Mapping[str, Any]]) -> list[Line2D]:
    """Return handles of lines or marks, for a legend."""
    return [Line2D([], [], **style) for style in styles]


def save(figure: Figure, target: Path | BinaryIO) -> list[str]:
    """Write a figure as PNG or SVG, by the file's name; an open file gets SVG.

    Returns:
        The characters of a PNG that no font of the machine has; boxes stand for them.
    """
    svg = not isinstance(target, Path) or target.suffix == ".svg"
    with drawing():
        missing = [] if svg else fonts.fit(figure)
        metadata = {"Date": None} if svg else {"Software": None}
        figure.savefig(target, dpi=DPI, metadata=metadata, format="svg" if svg else "png")
    return missing
