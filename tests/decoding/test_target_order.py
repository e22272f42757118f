"""TargetOrder against a twin that writes words into lists one by one."""

import itertools
import random
import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from reference import target_order as paper

from fairseq_paradec.errors import UsageError
from fairseq_paradec.target_order import TargetOrder

BOS, PAD, EOS = 0, 1, 2
LENGTHS = range(41)

#: Every h and c, and what the other options allow.
ORDERS: list[TargetOrder] = [
    *(TargetOrder(h, c) for h in (1, 2, 4, 6, 8) for c in (1, 2, 3, 4)),
    *(TargetOrder(1, c, right_to_left=True) for c in (1, 2, 3)),
    *(TargetOrder(2, c, middle_to_side=True) for c in (1, 2)),
    TargetOrder(2, 1, double_token=True),
    TargetOrder(1, 2, double_token=True),
    TargetOrder(1, 2, double_token=True, right_to_left=True),
    TargetOrder(2, 1, double_token=True, middle_to_side=True),
    *(TargetOrder(h, c, independent_directions=True) for h, c in ((2, 1), (2, 2), (4, 1))),
    *(TargetOrder(h, c, vanilla_mask=True) for h, c in ((2, 1), (2, 2), (1, 3), (4, 1))),
    *(TargetOrder(h, c, vanilla_positions=True) for h, c in ((2, 1), (2, 3), (4, 1))),
    TargetOrder(2, 2, independent_directions=True, vanilla_mask=True, vanilla_positions=True),
    *(TargetOrder(h, alternate_ends=True) for h in (2, 4)),
    TargetOrder(2, alternate_ends=True, middle_to_side=True, vanilla_positions=True),
]


def name(order: TargetOrder) -> str:
    on = [f.name for f in fields(order) if getattr(order, f.name) is True]
    return "-".join([str(order.directions), str(order.tokens_per_direction), *on])


every_order = pytest.mark.parametrize("order", ORDERS, ids=name)


def targets(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randrange(4, 60) for _ in range(n)] for n in lengths]


def padded(rows: list[list[int]], more: int = 0) -> np.ndarray:
    """Words with `</s>`, as fairseq pads targets; `more` columns of padding."""
    width = max(map(len, rows)) + 1 + more
    return np.array([[*row, EOS] + [PAD] * (width - len(row) - 1) for row in rows])


# ---- words into slots ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order, text, want",
    [
        (TargetOrder(2, 1), "ABCDE", "AEBDC"),  # zhang2020, Figure 1
        (TargetOrder(2, 1, double_token=True), "ABCDEF", "AFBECD"),
        (TargetOrder(1, 2), "ABCDE", "ABCDE"),
        (TargetOrder(1, 1, right_to_left=True), "ABCDE", "EDCBA"),
        (TargetOrder(4, 1), "ABCDEFG", "AEDGBFC"),
        (TargetOrder(4, 1), "ABC", "ACB"),
        (TargetOrder(6, 1), "ABCDEFG", "ADFCEGB"),
        (TargetOrder(2, 1, middle_to_side=True), "ABCD", "BCAD"),
        (TargetOrder(2, 1, middle_to_side=True), "ABCDE", "CDBEA"),
    ],
)
def test_small_orders_by_hand(order: TargetOrder, text: str, want: str) -> None:
    source = order.sources(np.array([len(text)]), len(text))[0]
    assert "".join(text[i] for i in source) == want


@every_order
def test_slots_of_ragged_batches_are_the_papers(order: TargetOrder) -> None:
    """All lengths in one batch, shuffled; the same rows as alone."""
    lengths = list(LENGTHS)
    random.Random(1).shuffle(lengths)
    batch = padded(targets(lengths), more=3)
    sources = order.sources(np.array(lengths), batch.shape[1])
    slots = np.take_along_axis(batch, sources, axis=1)
    for row, words, length in zip(slots.tolist(), batch.tolist(), lengths, strict=True):
        assert row[:length] == paper.write(order, words[:length])
        assert row[length:] == words[length:]
        assert paper.read(order, row[:length]) == words[:length]


# ---- what the model is told ---------------------------------------------------------------------


def test_signed_positions_by_hand() -> None:
    """The same whatever c is."""
    for c in (1, 2, 3):
        assert TargetOrder(2, c).positions(6).tolist() == [1, -1, 2, -2, 3, -3]
    assert TargetOrder(4, 1).positions(9).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    for counted in (
        TargetOrder(1, 3),
        TargetOrder(2, 1, double_token=True),
        TargetOrder(2, 2, vanilla_positions=True),
    ):
        assert counted.positions(4).tolist() == [0, 1, 2, 3]


@every_order
def test_positions_directions_and_mask_are_the_formulas(order: TargetOrder) -> None:
    """Equations 4, 7 and 10, entry by entry, and what the ablations take away."""
    width = 18
    assert order.positions(width).tolist() == [paper.position(order, t) for t in range(width)]
    assert order.directions_of(width).tolist() == [t % order.directions for t in range(width)]
    seen = order.step_mask(width).tolist()
    for i, j in itertools.product(range(width), repeat=2):
        assert seen[i][j] == paper.sees(order, i, j), (i, j)


# ---- training batches ---------------------------------------------------------------------------


@every_order
def test_training_batches_are_the_twins(order: TargetOrder) -> None:
    """Ragged batches of all lengths, those below a step among them, and rows alone."""
    for lengths in ([*LENGTHS], [0], [2, 0, 1], [5]):
        rows = targets(lengths, seed=sum(lengths))
        got = order.training_batch(padded(rows), BOS, EOS, PAD)
        inputs, slots = paper.training_batch(order, rows, BOS, EOS, PAD)
        assert got.prev_output_tokens.tolist() == inputs
        assert got.target.tolist() == slots


# ---- what an order says of itself ---------------------------------------------------------------


def test_prefixes() -> None:
    """Only left to right does a prefix come first."""
    for order in ORDERS:
        first = all(
            paper.write(order, range(n))[:k] == list(range(k)) for n in range(9) for k in range(n)
        )
        assert order.keeps_prefix == (first and not order.double_token)
    assert TargetOrder(2, 1, double_token=True).start(BOS, EOS) == [BOS, EOS]
    assert TargetOrder(2, 2).start(BOS, EOS) == [EOS] * 4


@pytest.mark.parametrize(
    "options, flag",
    [
        ({"directions": 3}, "--directions"),
        ({"directions": 2.0}, "--directions"),
        ({"tokens_per_direction": 0}, "--tokens-per-direction"),
        ({"directions": 2, "right_to_left": True}, "--right-to-left"),
        ({"directions": 4, "double_token": True}, "--double-token"),
        ({"directions": 4, "middle_to_side": True}, "--middle-to-side"),
        ({"tokens_per_direction": 2, "independent_directions": True}, "--independent-directions"),
        ({"vanilla_mask": True}, "--vanilla-mask"),
        ({"directions": 2, "alternate_ends": True, "vanilla_mask": True}, "--vanilla-mask"),
        ({"alternate_ends": True}, "--alternate-ends"),
        ({"directions": 4, "tokens_per_direction": 2, "alternate_ends": True}, "--alternate-ends"),
        ({"directions": 2, "alternate_ends": True, "double_token": True}, "--alternate-ends"),
        (
            {"directions": 2, "alternate_ends": True, "independent_directions": True},
            "--independent-directions",
        ),
        ({"tokens_per_direction": 2, "vanilla_positions": True}, "--vanilla-positions"),
    ],
)
def test_contradictions_are_named(options: dict[str, Any], flag: str) -> None:
    value = options[flag.strip("-").replace("-", "_")]
    said = f"{flag} needs " if value is True else f"{flag}: got {value!r}; allowed: "
    with pytest.raises(UsageError, match=f"^{re.escape(said)}."):
        TargetOrder(**options)
