"""Gates on a pretended device: what mixes host and device fails without a GPU, too."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gpu import gates
from support.pairwise import Row
from support.pretended import pretended


def rows() -> Iterator[Any]:
    """Each case once, in single precision; the first of each method is fast."""
    chosen = [row for row in gates.rows(1) if row["dtype"] == "float32"]
    methods: set[str] = set()
    for row, name in zip(chosen, gates.names(chosen), strict=True):
        marks = [pytest.mark.slow] if row["case"].method in methods else []
        methods.add(row["case"].method)
        yield pytest.param(row, id=name, marks=marks)


def test_what_cuda_refuses_is_refused() -> None:
    with pretended(), torch.no_grad():
        a = torch.arange(6.0).view(2, 3).to("cuda")
        assert a.device == torch.zeros(1, device="cuda").device == a[0].device == (a + 1).device
        assert (a + 1).tolist() == [[1, 2, 3], [4, 5, 6]] and a.cpu().device.type == "cpu"
        assert (a[:, torch.tensor([0])] * torch.tensor(2.0)).tolist() == [[0], [6]]
        for wrong in (
            lambda: a + torch.ones(3),
            lambda: a.index_select(1, torch.tensor([0])),
            lambda: torch.ones(3)[a[0].long()],
            lambda: np.asarray(a),
            lambda: a.numpy(),
        ):
            with pytest.raises((RuntimeError, TypeError), match="device|on cuda"):
                wrong()
    assert not torch.cuda.is_available()


@pytest.mark.parametrize("row", [*rows()])
def test_gate(row: Row) -> None:
    with pretended():
        assert gates.hold(row, "cuda")["sentences"]
