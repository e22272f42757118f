"""Gates on a pretended device: what mixes host and device fails without a GPU, too."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gpu import gates
from support.builders import Limits, collate, decode, demo
from support.commands import DEMO
from support.conformance import on, placed
from support.pairwise import Row
from support.pretended import pretended

from fairseq_paradec import load

#: Cases of a method that run here: the first ones.
CASES = 2


def rows() -> Iterator[Any]:
    """Some cases of each method, in single precision; the first of a few methods is fast."""
    fast, seen = {"greedy", "hgj", "multiword_beam"}, Counter[str]()
    chosen = [row for row in gates.rows(1) if row["dtype"] == "float32"]
    for row, name in zip(chosen, gates.names(chosen), strict=True):
        method = row["case"].method
        marks = [] if method in fast else [pytest.mark.slow]
        fast.discard(method)
        seen[method] += 1
        if seen[method] <= CASES:
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


@pytest.mark.parametrize(
    "flags",
    [
        {"decoding": "assisted", "sampling": True, "sampling_topk": 5},
        {"decoding": "assisted", "beam": 3, "draft_width": 3},
        {"decoding": "self_draft", "beam": 3, "engine_dtype": "fp32", "drafter_dtype": "bf16"},
    ],
    ids=lambda flags: "-".join(map(str, flags.values())),
)
def test_what_gates_leave_out(flags: dict[str, Any]) -> None:
    """Draws and drafted beams are those of the CPU by the same seed."""
    task, model, sources = demo()
    if flags["decoding"] == "assisted":
        flags = flags | {"drafter_path": str(DEMO / "assistant.pt")}

    def tokens(device: str) -> list[list[int]]:
        np.random.seed(1)
        given = placed(model, device, torch.float32), on(device, collate(task, sources[:4]))
        hypos = decode(task, [given[0]], given[1], Limits(max_len_b=40), engine="torch", **flags)
        assert {hypo["tokens"].device.type for hypo in hypos} == {device}
        return [hypo["tokens"].tolist() for hypo in hypos]

    with pretended():
        there = tokens("cuda")
    assert there == tokens("cpu")


def test_a_folder_is_loaded_there() -> None:
    lines = ["A dog runs across the grass .", "", "Two men sit ."]
    with pretended():
        model = load(DEMO, device="cuda")
        there = [str(line) for line in model.translate(lines, decoding="hgj")]
    assert there == [str(line) for line in load(DEMO).translate(lines, decoding="hgj")]
