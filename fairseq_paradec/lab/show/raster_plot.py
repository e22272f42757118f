"""One picture of an image that several methods decoded: the step that wrote each intensity.

Each method has a row: the output, the step that wrote each intensity, and the number of tokens of
that step. A step is a block of blockwise decoding, or a pass of any other method. The intensities
of a pixel are side by side, as in the output. ``trace_plot`` is the picture for sentences.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...errors import UsageError
from ...images import PEAK, Pixels, Size, from_words
from ...output import printable
from . import plot
from .trace_view import EOS, Sentence

#: Inches: side of a panel, space around it, height of a row's title.
PANEL, MARGIN, TITLE = 3.2, 0.45, 0.5

#: Titles and colour maps of the panels beside the image.
MAPS = {"step": "viridis", "tokens of that step": "magma"}


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
    try:
        pixels = from_words(words, size)
    except UsageError as error:
        given = str(size).replace("×", "x")
        allowed = f"that of the outputs ({sentence.name}, {sentence.decoding}: {error})"
        raise UsageError(f"--image-size: got {given}; allowed: {allowed}") from None
    counts = Counter(sentence.written_in)
    steps = np.array(sentence.written_in[: len(words)])
    steps = steps.reshape(size.height, size.width * size.channels)
    return pixels, steps, np.vectorize(counts.__getitem__)(steps)


@plot.drawing()
def draw(sentences: Sequence[Sentence], path: Path, files: Sequence[str], size: Size) -> list[str]:
    """Write the picture of one image; return the characters that no font has.

    Raises:
        UsageError: an output is no image of that size.
    """
    arranged = [maps(sentence, size) for sentence in sentences]
    # One scale for all methods.
    tops = [max(2, *(int(images[i].max()) for images in arranged)) for i in (1, 2)]
    panel = PANEL * min(1.0, size.height / size.width), PANEL * min(1.0, size.width / size.height)
    width, height = 3 * (panel[1] + 3 * MARGIN), panel[0] + 2 * MARGIN + TITLE
    figure = Figure(figsize=(width, height * len(sentences)), layout="constrained")
    rows = figure.subfigures(len(sentences), 1, squeeze=False)[:, 0]
    for row, sentence, file, (pixels, *others) in zip(rows, sentences, files, arranged):
        names = printable(f"{sentence.name}, {sentence.decoding} ({file})")
        row.suptitle(f"{names}\n{sentence.steps_summary}", fontsize=9)
        first, *axes = row.subplots(1, 3)
        grey = {"cmap": "gray", "vmin": 0, "vmax": PEAK} if size.channels == 1 else {}
        _show(first, "output", pixels, **grey)
        for at, (name, colours), values, top in zip(axes, MAPS.items(), others, tops):
            scale = {"vmin": 1, "vmax": top, "cmap": colours, "aspect": size.channels}
            shown = _show(at, name, values, **scale)
            row.colorbar(shown, ax=at, shrink=0.8, ticks=MaxNLocator(integer=True))
    return plot.save(figure, path)


def _show(axes: Any, title: str, values: Any, **how: Any) -> Any:
    """Draw one panel, without smoothing."""
    axes.set_title(title, fontsize=8)
    axes.set_axis_off()
    return axes.imshow(values, interpolation="nearest", **how)
