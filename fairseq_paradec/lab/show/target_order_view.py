"""A target order drawn as in zhang2020, Figure 1: slots, steps, positions, inputs, and the mask.

All values come from ``TargetOrder``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.patches import Rectangle

from ...target_order import TargetOrder
from . import plot
from .benchmark_plot import plt

BOS, EOS = "<s>", "</s>"
SEEN, HIDDEN = "●", "·"
#: The word of an unused slot.
UNTRAINED = "-"
#: In the picture, as in the paper: purple words, green positions, blue start symbols.
COLOURS = {"word": "#d9c8ec", "position": "#cfe8cf", "start": "#c5dcf5", "none": "#ffffff"}


@dataclass(frozen=True)
class Slot:
    """One slot of a target."""

    number: int  # t, from 0; also the number of the input row that predicts it
    step: int  # the step that predicts it, from 1
    direction: str  # as in ``TargetOrder.direction_name``
    word: str  # the predicted word; ``-`` where nothing is trained
    place: int | None  # the word's place in the target, from 1; None for ``</s>`` and ``-``
    position: int  # of the input row
    input: str  # the token of the input row


@dataclass(frozen=True)
class Drawing:
    """The contents of a drawing."""

    title: str  # the order in words
    words: tuple[str, ...]  # the target
    slots: tuple[Slot, ...]  # in the order of writing, whole steps
    # T×T; whether an input row (first index) sees another (second)
    mask: tuple[tuple[bool, ...], ...]
    per_step: int  # number of slots of a step

    @property
    def steps(self) -> list[tuple[Slot, ...]]:
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
    n = len(words)
    bos, eos, pad = n, n + 1, n + 2
    target = torch.tensor([[*range(n), eos]])
    names = [*words, BOS, EOS, UNTRAINED]
    batch = order.training_batch(target, bos, eos, pad)
    width = batch.target.size(1)
    positions, directions = order.positions(width).tolist(), order.directions_of(width).tolist()
    slots = tuple(
        Slot(
            number=t,
            step=t // order.tokens_per_step + 1,
            direction=order.direction_name(d),
            word=names[word],
            place=word + 1 if word < n else None,
            position=position,
            input=names[row],
        )
        for t, (d, word, position, row) in enumerate(
            zip(
                directions,
                batch.target[0].tolist(),
                positions,
                batch.prev_output_tokens[0].tolist(),
                strict=True,
            )
        )
    )
    mask = tuple(map(tuple, order.step_mask(width).tolist()))
    return Drawing(title_of(order), tuple(words), slots, mask, order.tokens_per_step)


def written(order: TargetOrder, words: Sequence[str]) -> list[str]:
    """Return words in the order of writing, without ``</s>``."""
    places = order.sources(torch.tensor([len(words)]), len(words))
    return [words[place] for place in places[0].tolist()]


def signed(drawn: Drawing, position: int) -> str:
    """Format a position, with a sign if there are negative ones."""
    return f"{position:+d}" if any(s.position < 0 for s in drawn.slots) else str(position)


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Align cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def as_text(drawn: Drawing) -> str:
    """Draw for a terminal."""
    count = len(drawn.steps)
    boxes = " ".join(f"[{' '.join(slot.word for slot in step)}]" for step in drawn.steps)
    rows = [["slot", "step", "direction", "predicts", "place", "from input", "at position"]]
    for slot in drawn.slots:
        place = "" if slot.place is None else str(slot.place)
        row = [str(slot.number), str(slot.step), slot.direction, slot.word, place, slot.input]
        rows.append([*row, signed(drawn, slot.position)])
    number = len(str(len(drawn.slots) - 1))
    grid = [" " * number + " " + " ".join(str(t).rjust(number) for t in range(len(drawn.mask)))]
    for t, line in enumerate(drawn.mask):
        marks = " ".join((SEEN if seen else HIDDEN).rjust(number) for seen in line)
        grid.append(f"{str(t).rjust(number)} {marks}")
    return "\n".join(
        [
            drawn.title,
            "",
            f"target      {' '.join(drawn.words)} {EOS}",
            f"is written  {boxes}",
            f"            {count} step{'s' if count > 1 else ''}, a bracket each",
            "",
            *columns(rows, right=(0, 1, 4, 6)),
            "",
            f"mask: {SEEN} where the input row on the left sees the one above",
            *grid,
        ]
    )


def draw(drawn: Drawing, path: Path) -> None:
    """Draw a picture: words, positions and inputs in dashed steps, and the mask as circles."""
    width = len(drawn.slots)
    ratios = 0.8 * width + 1.2, max(1.6, 0.32 * width)  # inches
    shape = sum(ratios) + 0.6, max(3.0, 0.32 * width + 1.2)
    figure, (left, right) = plt.subplots(1, 2, figsize=shape, width_ratios=ratios)
    for slot in drawn.slots:
        start = slot.number < drawn.per_step
        box(left, slot.number, 2, slot.word, COLOURS["none" if slot.word == UNTRAINED else "word"])
        box(left, slot.number, 1, signed(drawn, slot.position), COLOURS["position"])
        box(left, slot.number, 0, slot.input, COLOURS["start" if start else "word"])
        left.text(slot.number, 2.62, slot.direction, ha="center", fontsize=8, color="#c0392b")
    for step in drawn.steps:
        corner, size = (step[0].number - 0.47, -0.45), (len(step) - 0.06, 3.42)
        left.add_patch(Rectangle(corner, *size, fill=False, linestyle="--", linewidth=0.8))
    left.set_xlim(-0.6, width - 0.4)
    left.set_ylim(-0.6, 3.1)
    left.set_yticks([0, 1, 2], ["input", "position", "predicts"])
    left.set_xticks(range(width))
    left.set_xlabel("slot (dashed: a step)")
    for seen, face in ((True, "black"), (False, "white")):
        cells = [(j, i) for i, row in enumerate(drawn.mask) for j, s in enumerate(row) if s == seen]
        if cells:
            right.scatter(*zip(*cells, strict=True), s=40, facecolors=face, edgecolors="black")
    right.set_xlim(-0.7, width - 0.3)
    right.set_ylim(width - 0.3, -0.7)
    right.set_xticks(range(width))
    right.set_yticks(range(width))
    right.set_xlabel("black: sees this input row")
    right.set_aspect("equal")
    for ax in (left, right):
        ax.tick_params(length=0, labelsize=8)
        ax.spines[:].set_visible(False)
    figure.suptitle(drawn.title, fontsize=10)
    figure.tight_layout()
    plot.save(figure, path)
    plt.close(figure)


def box(ax: Any, x: int, y: float, text: str, colour: str) -> None:
    """Draw a rectangle with a word that fits."""
    ax.add_patch(Rectangle((x - 0.41, y - 0.27), 0.82, 0.54, color=colour))
    ax.text(x, y, text, ha="center", va="center", fontsize=min(9.0, 80 / len(text)))
