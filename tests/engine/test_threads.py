"""How many threads a pass takes, with torch and without it."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fairseq_paradec import threads


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch is not loaded, and nobody has set a number."""
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(threads, "_SET", threads._Set())
    monkeypatch.setattr(threads._Set, "count", None)


def test_torchs_number_counts_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert threads.num_threads() == 7


def test_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.setattr(threads._Set, "count", None)
    threads.set_threads(3)
    assert told == [3]


@pytest.mark.usefixtures("without_torch")
def test_a_number_of_each_thread() -> None:
    """A new thread begins with the last number that was set, as in torch."""
    threads.set_threads(3)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(threads.num_threads).result() == 3
        pool.submit(threads.set_threads, 2).result()
        assert pool.submit(threads.num_threads).result() == 2
    assert threads.num_threads() == 3


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("asked", [None, "1", "1,2", "", "0", "many"])
def test_as_many_as_torch_would_take(asked: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    asks = "import torch; print(torch.get_num_threads())"
    command = [sys.executable, "-c", asks]
    run = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ})
    assert threads.num_threads() == int(run.stdout)
