"""``pytest tests/gpu --device cuda``: all gates, and their table; without it a few on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.held import Held

RESULTS = Path("results/gpu-gates.json")
HELD = pytest.StashKey[Held]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gates of the decoding methods")
    said = "run all gates there (without it: a small part, on the CPU)"
    group.addoption("--device", choices=("cuda", "cpu"), help=said)
    said = "gates that have held, one a line: they are not run again; several processes may add"
    group.addoption("--held", type=Path, metavar="FILE", help=said)
    said = f"write the table of all gates there (with --device cuda: {RESULTS})"
    group.addoption("--table", type=Path, metavar="FILE.json", help=said)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[HELD] = Held(config.getoption("held", None))
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
def held(pytestconfig: pytest.Config) -> Held:
    """The gates that have held, which are not run again."""
    return pytestconfig.stash[HELD]


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # of pytest-xdist, which knows its own gates' ends alone
        return
    table = config.getoption("table", None) or (RESULTS if asked(config) == "cuda" else None)
    held = config.stash[HELD]
    held.read()  # what other processes have added
    if table is None or not held.rows:
        return
    from fairseq_paradec.lab.data import documents
    from fairseq_paradec.lab.data.table import Table
    from fairseq_paradec.lab.measure import machine
    from gpu import gates  # not before the device is known to be there: fairseq takes seconds

    names = gates.names(gates.rows(gates.SCENES))
    missing = sum(name not in held for name in names)
    said = f"{table} is not written: {missing} of {len(names)} gates have not held"
    if exitstatus == 0 and not missing:
        made_by = machine.circumstances([]) | {"command": "make test-gpu"}
        rows = [{"decoder": d, "precision": p} | found for (d, p), found in held.counts().items()]
        title, found = f"Gates of every method: {asked(config)}", Table.of(rows, notes=gates.NOTES)
        documents.save(table, title, found, made_by)
        said = f"{table} is written: {len(rows)} gates"
    terminalreporter.write_line(said)
