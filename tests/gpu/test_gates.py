"""Every method on a device, in every precision."""

from collections import Counter

import pytest
from support.builders import DEMO_DRAFTER, Limits, collate, demo
from support.conformance import on, placed, row_name
from support.exact import METHODS, Flags, check, name
from support.pairwise import Row

from gpu import gates


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "row" in metafunc.fixturenames:
        rows = gates.rows(3 if metafunc.config.getoption("device", None) else 1)
        metafunc.parametrize("row", rows, ids=row_name)


def test_gate(row: Row, device: str, counts: dict[tuple[str, str], Counter[str]]) -> None:
    found = gates.hold(row, device)
    counts.setdefault((str(row["case"]), row["dtype"]), Counter()).update(found)


@pytest.mark.parametrize(
    "flags", [*METHODS, {"decoding": "gad", "drafter_path": str(DEMO_DRAFTER)}], ids=name
)
def test_the_demo(flags: Flags, device: str) -> None:
    task, model, sources = demo()
    model = placed(model, device, next(model.parameters()).dtype)
    sample = on(device, collate(task, sources[:20]))
    check(task, [model], sample, flags, Limits(max_len_b=60), max_ties=1)
