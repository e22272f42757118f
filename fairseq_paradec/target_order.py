"""TargetOrder: the order in which a target is written (zhang2020, imamura2020).

A target of n words fills slots 0..n-1; ``</s>`` takes slot n. Slot t belongs to step t // z, and
all z slots of a step are predicted at once. The decoder's input row t predicts slot t: it is a
start symbol where t < z, else the word of slot t - z. With ``alternate_ends``, z is 1: the same
slots, one after the other.

| paper                                     | here                                               |
|-------------------------------------------|----------------------------------------------------|
| h, generation directions                  | ``directions``                                     |
| c, words per direction and step           | ``tokens_per_direction``                           |
| z = h·c, or 1 (table 3)                   | ``tokens_per_step``, ``alternate_ends``            |
| y^BD, y^MD (zhang2020, equations 6, 9)    | ``sources``                                        |
| T^BD, T^MD (equations 7, 10)              | ``positions``, and ``directions_of`` for the latter|
| M(h, c) (equation 4)                      | ``step_mask``                                      |
| EOD (imamura2020, section 3.2)            | ``</s>``, with ``double_token`` until a step is full|
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .errors import needs, option_error


class SlotBatch(NamedTuple):
    """A batch of reordered targets for training."""

    prev_output_tokens: np.ndarray  # B×T decoder inputs, ``<pad>`` after a row's last step
    target: np.ndarray  # B×T predicted tokens, ``<pad>`` where there is no loss


@dataclass(frozen=True)
class TargetOrder:
    """The order in which targets are written; the default is left to right, one token per step.

    Raises:
        UsageError: the attributes contradict each other; the message names the flag.
    """

    # h: 1; 2, from both ends; or an even number, from both ends of h/2 segments
    directions: int = 1
    tokens_per_direction: int = 1  # c: tokens that each direction writes per step
    right_to_left: bool = False  # with one direction: from the end to the beginning
    # imamura2020's pairs: ``</s>`` fills the last step, the first step's inputs are ``<s>`` and
    # ``</s>``, positions count slots
    double_token: bool = False
    # with two directions: from the middle outwards; with an odd number of words the middle one
    # comes first (A B C D E: C D B E A), so that ``</s>`` can come last
    middle_to_side: bool = False
    # the directions write in turns, one token a step: y1, yn, y2, ... (zhang2020, table 3,
    # bidirectional and autoregressive)
    alternate_ends: bool = False
    independent_directions: bool = False  # a direction does not attend to the others
    vanilla_mask: bool = False  # a slot does not attend to the later slots of its own step
    # positions count slots, without a sign; directions have no embeddings
    vanilla_positions: bool = False

    def __post_init__(self) -> None:
        h, c = self.directions, self.tokens_per_direction
        if type(h) is not int or h < 1 or (h > 1 and h % 2 == 1):
            raise option_error("--directions", h, "1, or an even number: each segment has two ends")
        if type(c) is not int or c < 1:
            raise option_error("--tokens-per-direction", c, "a whole number from 1 up")
        if self.right_to_left and h != 1:
            raise needs("--right-to-left", True, f"--directions 1, not {h}")
        if self.double_token and h * c != 2:
            raise needs("--double-token", True, f"two tokens a step; here a step has {h * c}")
        if self.middle_to_side and h != 2:
            raise needs("--middle-to-side", True, f"--directions 2, not {h}")
        if self.alternate_ends and (h == 1 or c > 1 or self.double_token):
            raise needs(
                "--alternate-ends",
                True,
                "--directions 2 or more, a token of each, and no --double-token",
            )
        if self.independent_directions and (h == 1 or self.alternate_ends):
            needed = "--directions 2 or more, and no --alternate-ends"
            raise needs("--independent-directions", True, needed)
        if self.vanilla_mask and self.tokens_per_step == 1:
            raise needs("--vanilla-mask", True, "more than one token a step")
        if self.vanilla_positions and (h == 1 or self.double_token):
            raise needs(
                "--vanilla-positions",
                True,
                "--directions 2 or more, and no --double-token: else positions do not differ",
            )

    @property
    def tokens_per_step(self) -> int:
        """Z, the slots of a step: h·c; 1 where directions write in turns."""
        return 1 if self.alternate_ends else self.directions * self.tokens_per_direction

    @property
    def keeps_prefix(self) -> bool:
        """Whether the first words of a target are its first slots.

        False for ``double_token``, for which the search does not support prefixes.
        """
        return self.directions == 1 and not self.right_to_left and not self.double_token

    # ---- the order -----------------------------------------------------------------------------

    def sources(self, lengths: np.ndarray, width: int) -> np.ndarray:
        """Return the word of each slot.

        Args:
            lengths: B numbers of words n, without ``</s>``.
            width: W slots.

        Returns:
            B×W 0-based words; from slot n on, the slot's own number.
        """
        n = lengths[:, None]  # B×1
        t = np.arange(width)  # W
        if self.directions == 1:
            word = n - 1 - t if self.right_to_left else t
        elif self.middle_to_side:
            middle = (n + 1) // 2  # the left half, the longer one
            k = t // 2
            word = np.where(t % 2 == 0, middle - 1 - k, middle + k)
        else:
            # Slot t is the k-th of direction d, which runs over segment g from its left or right.
            segments = self.directions // 2
            d, k = t % self.directions, t // self.directions
            g = d % segments
            share, rest = n // segments, n % segments
            first = g * share + np.minimum(g, rest)  # B×W: the segment's first word
            size = share + (g < rest)
            word = np.where(d < segments, first + k, first + size - 1 - k)
        return np.where(t < n, word, t)

    # ---- positions, directions and masks of a model --------------------------------------------

    @property
    def counts_slots(self) -> bool:
        """Whether positions are the slots' own numbers."""
        return self.directions == 1 or self.double_token or self.vanilla_positions

    def positions(self, width: int) -> np.ndarray:
        """Return the position of each input row, W.

        Two directions: +1, -1, +2, -2, ... (zhang2020, equation 7). More: the number of earlier
        rows of the same direction (equation 10). One direction, ``double_token`` or
        ``vanilla_positions``: 0, 1, 2, ...
        """
        t = np.arange(width)
        if self.counts_slots:
            return t
        if self.directions > 2:
            return t // self.directions
        return (t // 2 + 1) * (1 - 2 * (t % 2))

    def directions_of(self, width: int) -> np.ndarray:
        """Return the direction of each slot, W numbers below h."""
        return np.arange(width) % self.directions

    def direction_name(self, direction: int) -> str:
        """Name a direction: its number from 1, and → where it writes from left to right, else ←."""
        if self.directions == 1:
            backwards = self.right_to_left
        else:
            backwards = direction >= self.directions // 2
        return f"{direction + 1}{'←' if backwards != self.middle_to_side else '→'}"

    def step_mask(self, width: int) -> np.ndarray:
        """Return the mask, W×W: True where input row i attends to row j (equation 4).

        Rows attend to all steps up to their own.
        """
        t = np.arange(width)
        step = t if self.vanilla_mask else t // self.tokens_per_step
        seen: np.ndarray = step[:, None] >= step[None, :]
        if self.independent_directions:
            d = self.directions_of(width)
            seen &= d[:, None] == d[None, :]
        return seen

    def whole_steps(self, slots: int) -> int:
        """Round a number of slots up to whole steps."""
        z = self.tokens_per_step
        return (slots + z - 1) // z * z

    def start(self, bos: int, eos: int) -> list[int]:
        """Return the inputs of the first step: ``</s>``, as fairseq starts; in pairs, <s> </s>."""
        return [bos, eos] if self.double_token else [eos] * self.tokens_per_step

    def training_batch(self, target: np.ndarray, bos: int, eos: int, pad: int) -> SlotBatch:
        """Reorder targets to slots, and make the decoder's inputs.

        Inputs fill whole steps, so that a slot attends to every input of its own step, independent
        of the other rows of the batch.

        Args:
            target: B×W words, then ``</s>``, padded at the end.
            bos: ``<s>``.
            eos: ``</s>``.
            pad: ``<pad>``.

        Returns:
            Inputs and targets, B×T, where T is the longest row's number of slots in whole steps.
        """
        z = self.tokens_per_step
        lengths = (target != pad).sum(axis=1) - 1  # n
        width = self.whole_steps(target.shape[1])
        slots = np.full((len(target), width), pad)
        words = self.sources(lengths, target.shape[1])
        slots[:, : target.shape[1]] = np.take_along_axis(target, words, axis=1)
        t = np.arange(width)
        steps = (lengths + z) // z  # the steps of n + 1 slots
        rows = (steps * z)[:, None]  # B×1: the number of inputs of a row
        if self.double_token:
            slots[(t >= lengths[:, None]) & (t < rows)] = eos
        inputs = np.concatenate(
            (np.tile(self.start(bos, eos), (len(target), 1)), slots[:, : width - z]), axis=1
        )
        inputs[t >= rows] = pad
        return SlotBatch(inputs, slots)


def order_of(model: Any) -> TargetOrder:
    """Return a model's target order; a plain Transformer's is left to right."""
    return getattr(model, "target_order", None) or TargetOrder()
