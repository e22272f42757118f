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
    where = "run all gates there (without it: a small part, on the CPU)"
    group.addoption("--device", choices=("cuda", "cpu"), help=where)
    table = f"table of all gates, as JSON (--device cuda: {RESULTS}; --device cpu: not written)"
    group.addoption("--summary", metavar="FILE", help=table)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = {}
    device, summary = asked(config)
    if summary is not None and (device is None or summary.is_dir()):
        stop(f"--summary: got {str(summary)!r}; allowed: a file, with --device cuda, cpu")
    if device == "cuda" and not torch.cuda.is_available():
        built = "sees none" if torch.version.cuda else "is built without CUDA"
        stop(
            f"--device: got 'cuda', but there is no CUDA device (torch {torch.__version__} {built})"
            "; nothing was run; allowed: cpu, the same gates for development"
        )


def asked(config: pytest.Config) -> tuple[str | None, Path | None]:
    """Return device and file; as part of all tests there are no such options."""
    device = config.getoption("device", None)
    summary = config.getoption("summary", None)
    if summary is None:
        return device, RESULTS if device == "cuda" else None
    return device, Path(summary)


def stop(message: str) -> None:
    pytest.exit(f"test-gpu: error: {message}", returncode=2)


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """Where to run; on a GPU single precision is made what it says."""
    name = asked(pytestconfig)[0] or "cpu"
    if name == "cuda":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    return name


@pytest.fixture(scope="session")
def few(pytestconfig: pytest.Config) -> bool:
    """Whether a small part is enough."""
    return asked(pytestconfig)[0] is None


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config) -> dict[str, dict[str, Any]]:
    """The table's rows by case."""
    return pytestconfig.stash[ROWS]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    device, summary = asked(config)
    if summary is None or device is None:
        return
    from fairseq_paradec.measure import documents, machine
    from gpu import gates  # not before the device is known to be there: fairseq takes seconds

    rows, wanted = config.stash[ROWS], [str(case) for case in gates.cases()]
    said = f"{summary} is not written: {len(rows)} of {len(wanted)} gates have a result"
    if set(rows) == set(wanted):
        command = "make test-gpu" + ("" if device == "cuda" else f' ARGS="--device {device}"')
        made_by = machine.circumstances("", []) | {"command": command}
        part = summary.with_name(summary.name + ".part")  # whole or not at all
        title, table = f"Gates of every method on {device.upper()}", [rows[n] for n in wanted]
        documents.save(part, title, gates.NOTES, table, made_by)
        os.replace(part, summary)
        said = f"{summary} is written: {len(rows)} gates"
    terminalreporter.write_line(said)
