"""``pytest tests/gpu --device cuda``: all gates, and their table; without it a few on the CPU."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

RESULTS = Path("results/gpu-gates.json")
COUNTS = pytest.StashKey[dict[tuple[str, str], Counter[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gates of the decoding methods")
    said = f"run all gates there (without it: a small part, on the CPU); cuda: write {RESULTS}"
    group.addoption("--device", choices=("cuda", "cpu"), help=said)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS] = {}
    if asked(config) == "cuda" and not torch.cuda.is_available():
        missing = f"there is no CUDA device (torch {torch.__version__}); nothing was run"
        pytest.exit(f"test-gpu: error: {missing}; --device cpu: the same gates", returncode=2)


def asked(config: pytest.Config) -> str | None:
    """Return the device; as part of all tests there is no such option."""
    return config.getoption("device", None)


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """Where to run; on a GPU single precision is made what it says."""
    name = asked(pytestconfig) or "cpu"
    if name == "cuda":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    return name


@pytest.fixture(scope="session")
def counts(pytestconfig: pytest.Config) -> dict[tuple[str, str], Counter[str]]:
    """What gates that hold have counted, by case and precision."""
    return pytestconfig.stash[COUNTS]


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    if asked(config) != "cuda" or not config.stash[COUNTS]:
        return
    from fairseq_paradec.lab.data import documents
    from fairseq_paradec.lab.data.table import Table
    from fairseq_paradec.lab.measure import machine
    from gpu import gates  # not before the device is known to be there: fairseq takes seconds

    counts, said = config.stash[COUNTS], f"{RESULTS} is not written: not all gates have held"
    wanted = {(str(row["case"]), row["dtype"]) for row in gates.rows(1)}
    if exitstatus == 0 and counts.keys() == wanted:
        made_by = machine.circumstances([]) | {"command": "make test-gpu"}
        table = [{"decoder": d, "precision": p} | found for (d, p), found in counts.items()]
        found = Table.of(table, notes=gates.NOTES)
        documents.save(RESULTS, "Gates of every method on CUDA", found, made_by)
        said = f"{RESULTS} is written: {len(table)} gates"
    terminalreporter.write_line(said)
