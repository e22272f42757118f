"""One picture of an image that several methods decoded: the step that wrote each intensity.

Each method has a row: the output, the step that wrote each intensity, and the number of tokens of
that step. A step is a block of blockwise decoding, or a pass of any other method. The intensities
of a pixel are side by side, as in the output. ``trace_plot`` is the picture for sentences.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...errors import UsageError, needs, option_error
from ...images import PEAK, Pixels, Size, image
from ...output import printable
from . import fonts, plot
from .trace_view import EOS, Sentence

#: Inches: side of a panel, space around it, height of a row's title.
PANEL, MARGIN, TITLE = 3.2, 0.45, 0.5

#: Colour maps of steps and of their numbers of tokens.
COLOURS = ("viridis", "magma")


def written_in(sentence: Sentence) -> list[int]:
    """Return the step that wrote each token of the output, from 1; see ``Sentence.steps``."""
    if not sentence.in_blocks:
        return [origin.pass_number for origin in sentence.origins]
    return [number for number, tokens in enumerate(sentence.steps, start=1) for _ in tokens]


def maps(
    sentence: Sentence, size: Size
) -> tuple[Pixels, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return an output as an image, with maps of its steps.

    Returns:
        The image; for each intensity, the step that wrote it and the number of tokens of that step
        (``</s>`` counted), both height × (width · channels).

    Raises:
        UsageError: the output is no image of that size.
    """
    words = [token for token in sentence.output if token != EOS]
    shape = (size.height, size.width * size.channels)
    given = str(size).replace("×", "x")
    where = f"{sentence.name} ({sentence.decoding})"
    strange = next((word for word in words if not re.fullmatch("[0-9]{1,3}", word)), None)
    if strange is not None:
        raise needs("--image-size", given, f"images: {where} has {strange[:20]!r}")
    if len(words) != size.num_tokens:
        raise option_error("--image-size", given, f"that of the outputs: {where} has {len(words)}")
    try:
        pixels = image([int(word) for word in words], size)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    steps = written_in(sentence)
    sizes = Counter(steps)
    found = [
        np.array(some[: len(words)]).reshape(shape)
        for some in (steps, [sizes[step] for step in steps])
    ]
    return pixels, found[0], found[1]


def draw(sentences: Sequence[Sentence], size: Size, path: Path, files: Sequence[str]) -> None:
    """Write the picture of one image.

    Raises:
        UsageError: an output is no image of that size.
    """
    arranged = [maps(one, size) for one in sentences]
    # One scale for all methods.
    last, most = (max(2, *(int(one[i].max()) for one in arranged)) for i in (1, 2))
    panel = PANEL * min(1.0, size.height / size.width), PANEL * min(1.0, size.width / size.height)
    width, height = 3 * (panel[1] + 3 * MARGIN), panel[0] + 2 * MARGIN + TITLE
    grey = {"cmap": "gray", "vmin": 0, "vmax": PEAK} if size.channels == 1 else {}
    with fonts.drawing(texts(sentences, files)):
        figure = Figure(figsize=(width, height * len(sentences)), layout="constrained")
        rows = figure.subfigures(len(sentences), 1, squeeze=False)[:, 0]
        for row, title, (pixels, *others) in zip(rows, texts(sentences, files), arranged):
            row.suptitle(title, fontsize=9)
            axes = row.subplots(1, 3)
            _show(axes[0], "output", pixels, **grey)
            for at, name, values, top, colours in zip(
                axes[1:], ("step", "tokens of that step"), others, (last, most), COLOURS
            ):
                scale = {"vmin": 1, "vmax": top, "cmap": colours, "aspect": size.channels}
                shown = _show(at, name, values, **scale)
                row.colorbar(shown, ax=at, shrink=0.8, ticks=MaxNLocator(integer=True))
        plot.save(figure, path)


def texts(sentences: Sequence[Sentence], files: Sequence[str]) -> list[str]:
    """Return the texts of the picture, for ``fonts.choose``."""
    return [_title(one, file) for one, file in zip(sentences, files, strict=True)]


def _title(sentence: Sentence, file: str) -> str:
    """Return the title of a method's row."""
    names = printable(f"{sentence.name}, {sentence.decoding} ({file})")
    return f"{names}\n{sentence.steps_summary}"


def _show(axes: Any, title: str, values: Any, **how: Any) -> Any:
    """Draw one panel, without smoothing."""
    axes.set_title(title, fontsize=8)
    axes.set_axis_off()
    return axes.imshow(values, interpolation="nearest", **how)
