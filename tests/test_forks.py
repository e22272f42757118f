"""A model that is loaded before a fork translates after it, in the child too.

Each case is a process of its own, on two threads; one that hangs is killed and fails.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from support.commands import DEMO, ROOT, environment

from fairseq_paradec.forks import Lock

#: Seconds after which a child hangs.
LONGEST = 120
WARNED = "computes on one thread, not on 2"

START = """
import json, multiprocessing, os, sys, threading, torch
import fairseq_paradec
torch.set_num_threads(2)
folder, engine = sys.argv[1:]
TEXT = ["A dog runs across the grass.", "Two men sit.", "A man in a black suit waits.", "Birds."]

def load():
    global model
    model = fairseq_paradec.load(folder)

def translate(line=None):
    lines = TEXT if line is None else [line]
    found = model.translate(lines, decoding=DECODING, engine=engine)
    return [os.getpid(), torch.get_num_threads(), found]

def fork():
    "Translate twice in a child; say what it says."
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = [translate(), translate()]
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    with open(read) as file:
        first, second = json.load(file)
    assert first == second and first[0] == child
    return first

def report(*children):
    print("REPORT", json.dumps([translate(), *children]))
"""


def run(code: str, engine: str, decoding: str = "greedy") -> tuple[list[Any], str]:
    """Run code after START; return what it reports, the parent's first, and stderr."""
    program = START.replace("DECODING", repr(decoding)) + code
    env = environment({"OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT)})
    command = [sys.executable, "-P", "-c", program, str(DEMO), engine]
    # A session of its own, so that children that hang are killed too.
    with subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            pytest.fail("it hangs")
    assert process.returncode == 0, err
    said = [line for line in out.splitlines() if line.startswith("REPORT ")]
    return json.loads(said[0].removeprefix("REPORT ")), err


def check(found: list[Any], err: str, warned: int = 1) -> None:
    """The children's outputs are the parent's; they compute on one thread, and have said so."""
    parent, *children = found
    assert parent[1] == 2 and len(parent[2]) == 4 and all(parent[2])
    for child in children:
        assert child[1:] == [1, parent[2]]
    assert err.count(WARNED) == warned
    assert sum("forked" in line for line in err.splitlines()) == warned


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_fork_before_and_after_the_first_pass(engine: str) -> None:
    found, err = run("load(); before = fork(); translate(); report(before, fork())", engine)
    check(found, err, warned=2)  # each child once


def test_a_fork_before_the_model_is_loaded_keeps_its_threads() -> None:
    code = "def translate(own=translate): load(); return own()\nchild = fork(); report(child)"
    (parent, child), err = run(code, "native")
    assert child[1:] == parent[1:] and child[1] == 2
    assert "forked" not in err


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_pool_after_the_first_pass(engine: str) -> None:
    code = """
load(); translate()
with multiprocessing.get_context("fork").Pool(4) as pool:
    found = pool.map(translate, TEXT * 4, chunksize=1)
lines = [found[i][2][0] for i in range(4)]
assert [one[2] for one in found] == [[line] for line in lines] * 4
assert {one[1] for one in found} == {1}
report([0, 1, lines])
print(len({one[0] for one in found}), file=sys.stderr)
"""
    found, err = run(code, engine)
    check(found, err, warned=int(err.splitlines()[-1]))


@pytest.mark.parametrize("decoding", ["assisted", "beam"])
def test_a_fork_with_other_decoders(decoding: str) -> None:
    check(*run("load(); translate(); report(fork())", "auto", decoding))


def test_a_fork_inside_a_thread_while_another_decodes() -> None:
    code = """
load(); translate()
found, ended = [], threading.Event()
def work():
    while not ended.is_set(): translate()
def forks():
    translate()
    found.extend(fork() for _ in range(3))
threads = threading.Thread(target=work), threading.Thread(target=forks)
for thread in threads: thread.start()
threads[1].join(); ended.set(); threads[0].join()
assert len(found) == 3
report(*found)
"""
    found, err = run(code, "native")
    check(found, err, warned=3)


def test_a_lock_is_free_in_the_child_of_a_fork() -> None:
    lock = Lock()
    with lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if lock._lock.acquire(timeout=5) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert lock._lock.acquire(timeout=5)  # and in the parent it was held, and is released


def test_a_process_on_one_thread_needs_no_warning() -> None:
    code = "torch.set_num_threads(1); load(); translate(); child = fork()\n"
    code += "print('REPORT', json.dumps([translate(), child]))"
    (parent, child), err = run(code, "native")
    assert child[1:] == parent[1:] and child[1] == 1
    assert "forked" not in err
