"""What every test shares: one thread, and where the tests' own modules and the package lie."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# Before torch is loaded: threads that spin while they wait starve each other on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

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

# Here, since it sets the level of the log where nobody else has.
import fairseq  # noqa: E402, F401  # isort: skip


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny models: more threads only get in each other's way. The commands set their own."""
    torch.set_num_threads(1)


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
    from fairseq import utils

    def softmax(x: torch.Tensor, dim: int, onnx_trace: bool = False) -> torch.Tensor:
        return x.softmax(dim, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)

    def log_softmax(x: torch.Tensor, dim: int, onnx_trace: bool = False) -> torch.Tensor:
        return softmax(x, dim).log()

    monkeypatch.setattr(utils, "softmax", softmax)
    monkeypatch.setattr(utils, "log_softmax", log_softmax)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """None are kept; the tests that want some say so."""
    with torch.no_grad():
        yield


#: The files that take longest. They come first: one that came last would run alone, and tests that
#: run side by side are dealt out file by file (``--no-loadscope-reorder`` in the Makefile).
LONGEST = (
    "test_fairseq_options",
    "test_train_gad",
    "test_conformance",
    "test_benchmark",
    "test_flags",
    "test_beam_drafts",
    "test_forks",
    "test_adding_a_method",
    "test_gates",
    "test_auto_fast",
    "test_train_scripts",
    "test_data_scripts",
    "test_corpus",
    "test_task",
    "test_train_blockwise",
    "test_distributed",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, and keep the order otherwise."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
