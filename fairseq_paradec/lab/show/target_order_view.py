"""A target order drawn as in zhang2020, Figure 1: slots, steps, positions, inputs, and the mask.

All values come from ``TargetOrder``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...target_order import TargetOrder
from . import plot
from .sheet import EDGE, FAINT, MARGIN, Sheet
from .table import aligned

BOS, EOS = "<s>", "</s>"
SEEN, HIDDEN = "●", "·"
#: The word of an unused slot.
UNTRAINED = "-"
#: In the picture, as in the paper: purple words, green positions, blue start symbols.
WORD, POSITION, START, NOTHING = "#d9c8ec", "#cfe8cf", "#c5dcf5", "#ffffff"
#: Inches: the width of a slot; the distance of the mask's circles.
SLOT, CIRCLES = 0.8, 0.3


class Slot(NamedTuple):
    """One slot of a target, in words."""

    number: str  # t, from 0; also the number of the input row that predicts it
    step: str  # the step that predicts it, from 1
    direction: str  # as in ``TargetOrder.direction_name``
    word: str  # the predicted word; ``-`` where nothing is trained
    place: str  # the word's place in the target, from 1; empty for ``</s>`` and ``-``
    input: str  # the token of the input row
    position: str  # of the input row; with a sign if there are negative ones


HEADINGS = ("slot", "step", "direction", "predicts", "place", "from input", "at position")


@dataclass(frozen=True)
class Drawing:
    """The contents of a drawing."""

    title: str  # the order in words
    words: Sequence[str]  # the target
    slots: Sequence[Slot]  # in the order of writing, whole steps
    mask: Sequence[Sequence[bool]]  # T×T: whether an input row (first index) sees another (second)
    per_step: int  # number of slots of a step

    @property
    def steps(self) -> list[Sequence[Slot]]:
        """The slots, step by step."""
        z = self.per_step
        return [self.slots[i : i + z] for i in range(0, len(self.slots), z)]


def title_of(order: TargetOrder) -> str:
    """Describe an order in words."""
    h, c, z = order.directions, order.tokens_per_direction, order.tokens_per_step
    if h == 1:
        how = "from right to left" if order.right_to_left else "from left to right"
    else:
        how = f"in {h} directions"
        how += " from the middle to both ends" if order.middle_to_side else ""
        how += " in turns" if order.alternate_ends else ""
    how += f", {c} tokens per direction and step" if h > 1 and c > 1 else ""
    more = [
        name.replace("_", " ")
        for name in ("double_token", "independent_directions", "vanilla_mask", "vanilla_positions")
        if getattr(order, name)
    ]
    tokens = "1 token" if z == 1 else f"{z} tokens"
    return f"{how}, {tokens} a step" + (f" ({', '.join(more)})" if more else "")


def drawing(order: TargetOrder, words: Sequence[str]) -> Drawing:
    """Put a target into an order."""
    # Word number i has the id i, so all ids differ.
    n, z = len(words), order.tokens_per_step
    batch = order.training_batch(np.array([[*range(n), n + 1]]), n, n + 1, n + 2)
    names = [*words, BOS, EOS, UNTRAINED]
    width = batch.target.shape[1]
    positions = order.positions(width).tolist()
    form = "{:+d}" if min(positions) < 0 else "{}"
    facts = zip(
        order.directions_of(width).tolist(),
        batch.target[0].tolist(),
        batch.prev_output_tokens[0].tolist(),
        positions,
        strict=True,
    )
    slots = [
        Slot(
            str(t),
            str(t // z + 1),
            order.direction_name(direction),
            names[word],
            str(word + 1) if word < n else "",
            names[row],
            form.format(position),
        )
        for t, (direction, word, row, position) in enumerate(facts)
    ]
    return Drawing(title_of(order), words, slots, order.step_mask(width).tolist(), z)


def written(order: TargetOrder, words: Sequence[str]) -> list[str]:
    """Return words in the order of writing, without ``</s>``."""
    places = order.sources(np.array([len(words)]), len(words))
    return [words[place] for place in places[0].tolist()]


def as_text(drawn: Drawing) -> str:
    """Draw for a terminal."""
    count, numbers = len(drawn.steps), [slot.number for slot in drawn.slots]
    boxes = " ".join(f"[{' '.join(slot.word for slot in step)}]" for step in drawn.steps)
    grid = [
        [number, *(SEEN if seen else HIDDEN for seen in line)]
        for number, line in zip(numbers, drawn.mask, strict=True)
    ]
    size = len(numbers[-1])
    return "\n".join(
        [
            drawn.title,
            "",
            f"target      {' '.join(drawn.words)} {EOS}",
            f"is written  {boxes}",
            f"            {count} step{'s' if count > 1 else ''}, a bracket each",
            "",
            aligned([HEADINGS, *drawn.slots], ruled=False, left=(2, 3, 5)),
            "",
            f"mask: {SEEN} where the input row on the left sees the one above",
            *(" ".join(cell.rjust(size) for cell in line) for line in [["", *numbers], *grid]),
        ]
    )


@plot.drawing()
def draw(drawn: Drawing, path: Path) -> list[str]:
    """Draw words, positions and inputs in dashed steps, and beside them the mask as circles.

    Returns:
        The characters that no font has.
    """
    count = len(drawn.slots)
    left = MARGIN + 0.7  # of the slots; what the rows are stands before them
    mask = left + count * SLOT + 0.6
    sheet = Sheet(mask + count * CIRCLES + MARGIN)
    sheet.head([drawn.title], [])
    height = min(max(0.36, count * CIRCLES / 3 - 0.2), 0.75)  # of a row
    top = sheet.y + 0.3
    bottom = top + 3 * height
    small: dict[str, Any] = {"ha": "center", "color": FAINT}
    for row, name in enumerate(("predicts", "position", "input")):
        sheet.text(left - 0.1, top + (row + 0.5) * height, name, 8, ha="right")
    for number, slot in enumerate(drawn.slots):
        x = left + number * SLOT
        cells = [
            (slot.word, NOTHING if slot.word == UNTRAINED else WORD),
            (slot.position, POSITION),
            (slot.input, START if number < drawn.per_step else WORD),
        ]
        sheet.text(x + SLOT / 2, top - 0.14, slot.direction, 8, ha="center", color="#c0392b")
        for row, (text, colour) in enumerate(cells):
            corner, box = (x + 0.07, top + (row + 0.2) * height), (SLOT - 0.14, 0.6 * height)
            font = min(9.0, 64 / len(text))
            sheet.box(corner, box, text, font, facecolor=colour, edgecolor="none")
        sheet.text(x + SLOT / 2, bottom + 0.16, slot.number, 8, **small)
    for step in drawn.steps:
        corner = left + int(step[0].number) * SLOT + 0.03, top - 0.3
        size = len(step) * SLOT - 0.06, bottom - corner[1]
        sheet.rectangle(corner, size, fill=False, edgecolor=EDGE, linestyle="--", linewidth=0.8)
    sheet.text(left + count * SLOT / 2, bottom + 0.4, "slot (dashed: a step)", 9, ha="center")
    middles = [(i + 0.5) * CIRCLES for i in range(count)]
    under = sheet.y + count * CIRCLES + 0.1
    for seen, face in ((True, "black"), (False, "white")):
        marks = [(i, j) for i, row in enumerate(drawn.mask) for j, s in enumerate(row) if s is seen]
        xs, ys = [mask + middles[j] for _, j in marks], [sheet.y + middles[i] for i, _ in marks]
        sheet.axes.scatter(xs, ys, s=40, facecolors=face, edgecolors="black")
    for number, middle in enumerate(middles):
        sheet.text(mask - 0.15, sheet.y + middle, str(number), 8, **small)
        sheet.text(mask + middle, under, str(number), 8, **small)
    sheet.text(mask + middles[-1] / 2, under + 0.25, "black: sees this input row", 9, ha="center")
    sheet.y = max(bottom + 0.5, under + 0.35)
    return sheet.save(path)
