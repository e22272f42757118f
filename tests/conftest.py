"""What every test shares: one thread, and where the tests' own modules and the package lie.

Without torch and fairseq, as on a Python that fairseq is not tested on, the core's tests run alone.
"""

import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch is loaded: threads that spin while they wait starve each other on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest

# Whoever starts the tests in the background may have them ignore these, and what a process ignores
# its children do, too; a handler they do not inherit. For pytest itself nothing changes.
for _signal in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, lambda *_: None)

TESTS = Path(__file__).resolve().parent
for folder in (TESTS, TESTS.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from fairseq_paradec.output import FAILED  # noqa: E402
from fairseq_paradec.threads import set_threads  # noqa: E402

#: Whether torch and fairseq are there.
WHOLE = all(importlib.util.find_spec(name) is not None for name in ("torch", "fairseq"))
if WHOLE:  # here, since it sets the level of the log where nobody else has
    import fairseq  # noqa: F401

#: The files whose tests need neither, but for those that are marked ``fairseq``.
CORE = {
    "cli/test_demo.py",
    "cli/test_files.py",
    "cli/test_version.py",
    "engine/test_building.py",
    "lab/test_table.py",
    "lab/test_way.py",
    "methods/test_batch_invariance.py",
    "methods/test_drafts_by_hand.py",
    "methods/test_each_sentence.py",
    "repository/test_set_up.py",
    "serve/test_serve_parts.py",
    "translator/test_documents.py",
    "translator/test_sentences.py",
}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out folders and files that need torch or fairseq, where these are not there."""
    if WHOLE or not collection_path.is_relative_to(TESTS):
        return None
    name = collection_path.relative_to(TESTS).as_posix()
    if collection_path.is_dir():
        core = name == "." or any(file.startswith(f"{name}/") for file in CORE)
    else:
        core = name in CORE or not collection_path.name.startswith("test_")
    return None if core else True


def pytest_report_header() -> str:
    """Say what is left out."""
    files = sum(1 for _ in TESTS.rglob("test_*.py"))
    said = f"without torch and fairseq: {len(CORE)} of {files} files of tests run, the core's"
    return "" if WHOLE else said


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny models: more threads only get in each other's way. The commands set their own."""
    set_threads(1)


@pytest.fixture(autouse=True)
def loud() -> Iterator[None]:
    """Undo what a command or a server says of logging: that is for a process of its own."""
    logging.disable(logging.NOTSET)
    logging.getLogger("fairseq_paradec.methods.each_sentence").setLevel(logging.NOTSET)
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture(autouse=True)
def nothing_has_failed() -> None:
    """An audit that failed ends a process with status 1; each test is as a process of its own."""
    FAILED.clear()


@pytest.fixture
def exact_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq takes softmax in float32 whatever comes in, and so would spoil float64."""
    import torch
    from fairseq import utils

    def softmax(x: Any, dim: int, onnx_trace: bool = False) -> Any:
        return x.softmax(dim, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)

    def log_softmax(x: Any, dim: int, onnx_trace: bool = False) -> Any:
        return softmax(x, dim).log()

    monkeypatch.setattr(utils, "softmax", softmax)
    monkeypatch.setattr(utils, "log_softmax", log_softmax)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """None are kept; the tests that want some say so."""
    import torch

    with torch.no_grad():
        yield


#: The files that take longest. They come first: one that came last would run alone, and tests that
#: run side by side are dealt out file by file (``--no-loadscope-reorder`` in the Makefile).
LONGEST = (
    "test_native",
    "test_gpu_script",
    "test_corpus",
    "test_wheel",
    "test_fairseq_options",
    "test_serve_load",
    "test_train_gad",
    "test_conformance",
    "test_docs",
    "test_long_running",
    "test_benchmark",
    "test_flags",
    "test_beam_drafts",
    "test_forks",
    "test_adding_a_method",
    "test_gates",
    "test_auto_fast",
    "test_train_scripts",
    "test_data_scripts",
    "test_task",
    "test_train_blockwise",
    "test_distributed",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, and keep the order otherwise; skip what cannot run."""
    for item in items:
        if not WHOLE and item.get_closest_marker("fairseq"):
            item.add_marker(pytest.mark.skip(reason="needs torch and fairseq"))
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
