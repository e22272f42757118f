"""A model that is loaded before a fork translates after it, in the child too.

Each program is a process of its own, on two threads. One that hangs is killed, with its children,
and fails.
"""

import json
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import DEMO, ROOT, run_python, succeed

import fairseq_paradec
from fairseq_paradec.forks import Lock, cached_property

START = """
import faulthandler, json, multiprocessing, os, sys, threading, torch, traceback
root, folder, engine = sys.argv[1:]
sys.path.insert(0, root)
import fairseq_paradec
torch.set_num_threads(2)
TEXT = ["A dog runs across the grass.", "Two men sit.", "A man in a black suit waits.", "Birds."]

def load():
    global model
    model = fairseq_paradec.load(folder)

def translate(lines=TEXT, **options):
    "Return this process, its threads, and the translations."
    options = options or {"decoding": "greedy", "engine": engine}
    return [os.getpid(), torch.get_num_threads(), model.translate(lines, **options)]

def fork(work=translate):
    "Return what the work returns in a child, which does it twice."
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(100)  # one that hangs says where
        try:
            os.write(write, json.dumps([work(), work()]).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    with open(read) as file:
        first, second = json.load(file)
    assert first == second and first[0] == child
    return first

def report(*found):
    print("REPORT", json.dumps(found))

sys.modules["__main__"].translate = translate  # where a pool's worker looks for it
"""


def run(code: str, engine: str) -> tuple[list[Any], str]:
    """Run code after START; return what it reports, and stderr."""
    result = run_python(START + code, ROOT, DEMO, engine)
    lines = succeed(result).stdout.splitlines()
    said = next(line for line in lines if line.startswith("REPORT "))
    return json.loads(said.removeprefix("REPORT ")), result.stderr


def check(parent: list[Any], children: list[list[Any]], err: str) -> None:
    """The children's outputs are the parent's; they compute on one thread, and each says so once.

    A worker of a pool may have translated nothing, or more than once.
    """
    assert parent[1] == 2 and len(parent[2]) == 4 and all(parent[2])
    for child in children:
        assert child[1:] == [1, parent[2]]
    workers = {child[0] for child in children}
    assert parent[0] not in workers
    warnings = [line for line in err.splitlines() if "was forked" in line]
    assert len(warnings) == len(workers)
    assert all("computes on one thread, not on 2: OpenMP's threads" in line for line in warnings)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_forks_before_and_after_the_first_pass_and_a_pool_of_four(engine: str) -> None:
    code = """
load()
before = fork()
parent = translate()
after = fork()
with multiprocessing.get_context("fork").Pool(4) as pool:
    report(parent, before, after, *pool.map(translate, [TEXT] * 8, chunksize=1))
"""
    (parent, *children), err = run(code, engine)
    assert len(children) == 10
    check(parent, children, err)


def test_a_translation_draws_no_random_number() -> None:
    """A generator's lock, held by another thread at a fork, is lost in the child.

    numpy's is held here. torch's cannot be, but a draw changes its state.
    """
    model = fairseq_paradec.load(DEMO)
    before, found = torch.get_rng_state(), []

    def work() -> None:
        found.extend(model.translate(["A dog runs.", "Two men sit."], batch_size=1))

    thread = threading.Thread(target=work, daemon=True)
    with np.random.get_bit_generator().lock:
        thread.start()
        thread.join(60)
        assert len(found) == 2 and all(found)
    assert torch.equal(before, torch.get_rng_state())


def test_threads_share_a_model() -> None:
    """Each gets its own lines' translations, in batches of its own."""
    model = fairseq_paradec.load(DEMO)
    texts = [[f"{word} dog runs."] * count for word, count in (("A", 2), ("The", 3), ("My", 7))]
    wanted = [model.translate(lines, decoding="greedy") for lines in texts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda t: model.translate(t, decoding="greedy"), texts * 20))
    finally:
        sys.setswitchinterval(interval)
    assert found == wanted * 20


def test_forks_inside_a_thread_while_another_decodes() -> None:
    code = """
load()
parent, children, ended = translate(), [], threading.Event()

def decode():
    while not ended.is_set():
        translate()

def forks():
    translate()
    children.extend(fork() for _ in range(3))
    ended.set()

def fail(raised):
    traceback.print_exception(raised.exc_value)
    os._exit(1)

threading.excepthook = fail  # or the other thread would go on without end
threads = [threading.Thread(target=work, daemon=True) for work in (decode, forks)]
for thread in threads:
    thread.start()
for thread in reversed(threads):
    thread.join()
report(parent, *children)
"""
    (parent, *children), err = run(code, "native")
    assert len(children) == 3
    check(parent, children, err)


def test_a_fork_with_fairseqs_search() -> None:
    code = """
load()
work = lambda: translate(decoding="beam", beam=2)
report(work(), fork(work))
"""
    (parent, *children), err = run(code, "torch")
    assert len(children) == 1
    check(parent, children, err)


def test_a_fork_waits_for_what_another_thread_imports() -> None:
    """fairseq's search of the first batch with padding imports SymPy, which takes a second."""
    code = """
load()
work = lambda: translate(decoding="beam", beam=2)
assert "sympy" not in sys.modules
parent = []
thread = threading.Thread(target=lambda: parent.extend(work()))
thread.start()
while "sympy" not in sys.modules:
    pass
child = fork(work)
thread.join()
report(parent, child)
"""
    (parent, *children), err = run(code, "torch")
    check(parent, children, err)


def test_a_fork_that_costs_nothing_is_not_warned_of() -> None:
    """Before a model is loaded; and of a process on one thread."""
    code = """
def work():
    load()
    return translate()

before = fork(work)
parent = work()
torch.set_num_threads(1)
report(parent, before, fork())
"""
    (parent, before, after), err = run(code, "native")
    assert [parent[1], before[1], after[1]] == [2, 2, 1]
    assert parent[2] == before[2] == after[2] and all(parent[2])
    assert "was forked" not in err


def test_a_lock_is_free_in_the_child_of_a_fork() -> None:
    lock = Lock()
    with lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if lock._lock.acquire(timeout=5) else 1)
        assert not lock._lock.acquire(blocking=False)
        assert os.waitpid(child, 0)[1] == 0
    assert lock._lock.acquire(blocking=False)


def test_a_cached_value_is_had_in_the_child_of_a_fork() -> None:
    """Another thread is computing it; the lock of functools' own would never be free."""
    begun, ended = threading.Event(), threading.Event()

    class Owner:
        @cached_property
        def value(self) -> int:
            if threading.current_thread() is thread:
                begun.set()
                ended.wait()
            return 7

    owner = Owner()
    thread = threading.Thread(target=lambda: owner.value)
    thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        os._exit(owner.value)
    status = os.waitpid(child, 0)[1]
    ended.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7
    assert vars(owner) == {"value": 7}


def test_what_decodes_caches_no_value_under_a_lock() -> None:
    elsewhere = {"lab", "serve", "training"}
    for path in (ROOT / "fairseq_paradec").rglob("*.py"):
        if path.relative_to(ROOT / "fairseq_paradec").parts[0] not in elsewhere:
            text = path.read_text(encoding="utf-8")
            assert "@functools.cached_property" not in text, path
            assert not re.search("from functools import .*cached_property", text), path
