"""Every method on a device, in every precision."""

from __future__ import annotations

from typing import Any

import pytest

from gpu.gates import DTYPES, MODELS, Case, cases, hold

# Group by group, so that models and fairseq's outputs are made once for all methods.
ORDER = sorted(cases(), key=lambda c: (MODELS.index(c.models), list(DTYPES).index(c.dtype)))


@pytest.mark.parametrize("case", ORDER, ids=str)
def test_gate(case: Case, device: str, few: bool, rows: dict[str, dict[str, Any]]) -> None:
    row, complaints = hold(case, device, few)
    rows[str(case)] = row | {"gate": "FAILED" if complaints else "passed"}
    assert not complaints, (complaints, row)
