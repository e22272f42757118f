"""Every method on a device, in every precision."""

import functools
from typing import Any

import pytest
from reference.greedy import stock_greedy
from support.builders import DEMO_DRAFTER, Limits, collate, demo
from support.commands import DEMO
from support.conformance import on, placed
from support.exact import METHODS, Flags, check
from support.exact import name as name_of
from support.pairwise import Row

from gpu import gates
from gpu.held import Held


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "row" in metafunc.fixturenames:
        asked = metafunc.config.getoption("device", None)
        rows = gates.rows(gates.SCENES if asked else 1)
        # Of those on the CPU a third is fast: of each case one precision, by turns.
        slow = [not asked and i % 3 != i // 3 % 3 for i in range(len(rows))]
        marks = [[pytest.mark.slow] if one else [] for one in slow]
        given = zip(rows, gates.names(rows), marks, strict=True)
        found = [pytest.param(row, name, id=name, marks=own) for row, name, own in given]
        metafunc.parametrize("row, name", found)


def test_gate(row: Row, name: str, device: str, held: Held) -> None:
    if name in held:
        pytest.skip("it has held before")
    held.put(name, str(row["case"]), row["dtype"], gates.hold(row, device))


@pytest.mark.skipif(not (DEMO / "model.pt").is_file(), reason="the demo's model was left out")
@pytest.mark.parametrize(
    "flags", [*METHODS, {"decoding": "gad", "drafter_path": str(DEMO_DRAFTER)}], ids=name_of
)
def test_the_demo(flags: Flags, device: str) -> None:
    task, model, sample, limits, want = the_demo(device)
    check(task, [model], sample, flags, limits, max_ties=1, want=want)


@functools.cache
def the_demo(device: str) -> Any:
    """The demo's task and model, a batch, limits, and what fairseq makes of them."""
    task, model, sources = demo()
    model = placed(model, device, next(model.parameters()).dtype)
    sample, limits = on(device, collate(task, sources[:20])), Limits(max_len_b=60)
    return task, model, sample, limits, stock_greedy(task, [model], sample, **limits.stock())
