"""``pytest tests/gpu --device cuda``: all gates of all methods, and their table as JSON.

Without ``--device``, as part of all tests, a small part of the gates runs on the CPU.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

RESULTS = Path("results/gpu-gates.json")
ROWS = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gates of the decoding methods")
    said = f"run all gates there (without it: a small part, on the CPU); cuda: write {RESULTS}"
    group.addoption("--device", choices=("cuda", "cpu"), help=said)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = {}
    if asked(config) == "cuda" and not torch.cuda.is_available():
        built = "sees none" if torch.version.cuda else "is built without CUDA"
        message = (
            f"--device: got 'cuda', but there is no CUDA device (torch {torch.__version__} {built})"
            "; nothing was run; allowed: cpu, the same gates for development"
        )
        pytest.exit(f"test-gpu: error: {message}", returncode=2)


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
def few(pytestconfig: pytest.Config) -> bool:
    """Whether a small part is enough."""
    return asked(pytestconfig) is None


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config) -> dict[str, dict[str, Any]]:
    """The table's rows by case."""
    return pytestconfig.stash[ROWS]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if asked(config) != "cuda":
        return
    from fairseq_paradec.measure import documents, machine
    from gpu import gates  # not before the device is known to be there: fairseq takes seconds

    rows, wanted = config.stash[ROWS], [str(case) for case in gates.cases()]
    said = f"{RESULTS} is not written: {len(rows)} of {len(wanted)} gates have a result"
    if set(rows) == set(wanted):
        made_by = machine.circumstances("", []) | {"command": "make test-gpu"}
        part = RESULTS.with_name(RESULTS.name + ".part")  # whole or not at all
        table = [rows[name] for name in wanted]
        documents.save(part, "Gates of every method on CUDA", gates.NOTES, table, made_by)
        os.replace(part, RESULTS)
        said = f"{RESULTS} is written: {len(rows)} gates"
    terminalreporter.write_line(said)
