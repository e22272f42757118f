"""Adaptive blocks: the rule. What it makes of passes is in the conformance table."""

import pytest

from fairseq_paradec.decoding.drafting import BlockSizes


@pytest.mark.parametrize(
    ("most", "accepted", "blocks"),
    [
        (8, [8, 8], [8, 8, 8]),
        (8, [0, 0], [8, 2, 2]),
        (8, [3, 1, 0, 2, 4, 6, 8], [8, 5, 3, 2, 4, 6, 8, 8]),
        (3, [0, 2, 1, 3], [3, 2, 3, 3, 3]),
        (1, [0, 1, 0], [1, 1, 1, 1]),
    ],
)
def test_the_rule(most: int, accepted: list[int], blocks: list[int]) -> None:
    sizes = BlockSizes(most, 2, adaptive=True)
    found = [sizes.sizes]
    for count in accepted:
        sizes.observe([count, 0])
        found.append(sizes.sizes)
    assert found == [[most, most], *([block, min(2, most)] for block in blocks[1:])]
    sizes.drop([1])
    assert sizes.sizes == found[-1][1:]
