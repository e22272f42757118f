"""Saving of pictures: the same figure gives the same bytes."""

from pathlib import Path
from typing import Any, BinaryIO

import matplotlib

#: Pixels in an inch of a PNG.
DPI = 110


def save(figure: Any, target: Path | BinaryIO) -> None:
    """Write a figure as PNG or SVG, by the file's name; an open file gets SVG."""
    svg = not isinstance(target, Path) or target.suffix == ".svg"
    metadata = {"Date": None} if svg else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "fairseq_paradec"}):
        figure.savefig(target, dpi=DPI, metadata=metadata, format="svg" if svg else "png")
