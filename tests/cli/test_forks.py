"""A model that is loaded before a fork translates after it, in the child too.

Each program is a process of its own, on two threads. One that hangs is killed, with its children,
and fails. ``PYTHONPATH=tests python tests/cli/test_forks.py --runs 300`` runs one of them so often
beside busy processes, and writes ``results/forks.json``.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import DEMO, ROOT, run_python, succeed
from tqdm import tqdm

import fairseq_paradec
from fairseq_paradec import forks
from fairseq_paradec.forks import computing
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.data.table import Table
from fairseq_paradec.lab.measure import machine

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

#: A fork during another thread's batch, so that the thread ends beside it.
DURING_A_BATCH = """
load()
work = lambda: translate(decoding="beam", beam=2)
parent, begun, forked = [], threading.Event(), threading.Event()
decoder = model.generator({"decoding": "beam", "beam": 2})
decode = decoder.decode

def slow(*batch):
    begun.set()
    assert not forked.wait(2)
    return decode(*batch)

decoder.decode = slow
thread = threading.Thread(target=lambda: parent.extend(work()))
thread.start()
begun.wait()
decoder.decode = decode
os.register_at_fork(after_in_parent=forked.set)
child = fork(work)
thread.join()
report(parent, child)
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


def test_a_fork_waits_for_the_batch_of_another_thread() -> None:
    """Its first one, by fairseq's search, imports SymPy and begins what torch begins but once."""
    (parent, *children), err = run(DURING_A_BATCH, "torch")
    check(parent, children, err)


def test_a_fork_waits_for_a_model_that_loads() -> None:
    code = """
thread = threading.Thread(target=load)
thread.start()
while "fairseq_paradec.translator.translator" not in sys.modules:
    pass
child = fork(lambda: translate())
thread.join()
report(translate(), child)
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


@contextlib.contextmanager
def another_thread_inside() -> Iterator[None]:
    """While another thread is inside a batch."""
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        with computing():
            begun.set()
            ended.wait()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_threads_wait_for_a_fork_and_it_for_them() -> None:
    """They enter and leave, again and again, and the child finds none inside, and the gate open."""
    ended = threading.Event()
    held = [0, 0]

    def work(number: int) -> None:
        while not ended.is_set():
            with computing():
                held[number] = 1
                time.sleep(0.001)
                held[number] = 0

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            with computing():
                os._exit(sum(held))
        assert os.waitpid(child, 0)[1] == 0
    ended.set()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_a_fork_inside_a_batch_waits_for_no_other() -> None:
    """As of a callback: the other thread may wait for this one. The child is inside, as it was."""
    with another_thread_inside():
        with computing():
            child = os.fork()
        if child == 0:
            signal.alarm(5)
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0)
            os._exit(os.waitpid(grandchild, 0)[1])
        assert os.waitpid(child, 0)[1] == 0


def test_a_fork_inside_a_batch_that_ends_may_not_decode_by_its_decoder() -> None:
    """Nor may the batch itself: either would wait for this batch's end, and so without end."""
    code = """
load()
parent, problems = translate(), []

def try_to():
    try:
        translate()
    except fairseq_paradec.UsageError as error:
        problems.append(str(error))
    return [os.getpid(), len(problems)]

def end(translation):
    if not problems:
        try_to()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, json.dumps(try_to()).encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        problems.append(json.loads(os.read(read, 100))[1])

found = model.results(TEXT, on_finish=[end] * 4, decoding="greedy", engine=engine)
report([one.text for one in found], parent[2], problems)
"""
    (found, wanted, problems), _ = run(code, "native")
    assert found == wanted
    assert problems[0].startswith("on_pass, on_finish, admit: a function of these decodes")
    assert problems[1:] == [2]


def test_a_fork_waits_for_the_first_text_that_is_split() -> None:
    """It imports what splits sentences; in the child what another thread imports stays half."""
    code = """
import importlib.machinery
load()
begun = threading.Event()

class Slow:
    @staticmethod
    def find_spec(name, *more):
        return importlib.machinery.ModuleSpec(name, Slow) if name == "sentencex" else None

    create_module = staticmethod(lambda spec: None)

    @staticmethod
    def exec_module(module):
        begun.set()
        threading.Event().wait(1)
        module.segment = lambda language, text: [text]

sys.modules.pop("sentencex", None)
sys.meta_path.insert(0, Slow)
work = lambda: [os.getpid(), 0, [one.text for one in model.texts([" ".join(TEXT)])]]
parent = []
thread = threading.Thread(target=lambda: parent.extend(work()))
thread.start()
begun.wait()
child = fork(work)
thread.join()
report(parent, child)
"""
    (parent, child), _ = run(code, "native")
    assert parent[2] == child[2] != [""]


def test_a_batch_may_start_threads_while_a_fork_waits_for_it() -> None:
    code = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
import fairseq_paradec.forks  # the order counts
from concurrent.futures import ThreadPoolExecutor
begun = threading.Event()
pool = ThreadPoolExecutor(1)

def work():
    with fairseq_paradec.forks.computing():
        begun.set()
        time.sleep(1)
        pool.submit(int).result()

thread = threading.Thread(target=work)
thread.start()
begun.wait()
begin = time.monotonic()
child = os.fork()
if child == 0:
    os._exit(0)
taken = time.monotonic() - begin
thread.join()
print(taken, os.waitpid(child, 0)[1])
"""
    command = [sys.executable, "-c", code, str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    taken, status = result.stdout.split()
    assert float(taken) < forks.LONGEST_WAIT and status == "0"


def test_ctrl_c_ends_the_wait_of_a_fork_and_is_raised() -> None:
    with another_thread_inside():
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            child = os.fork()
            if child == 0:
                os._exit(0)
            time.sleep(10)
        assert os.waitpid(child, 0)[1] == 0
    with computing():  # the gate is open
        pass


def test_a_fork_gives_up_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forks, "LONGEST_WAIT", 0.1)
    with another_thread_inside():
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert "a fork has waited 0.1 seconds" in caplog.text


def test_a_fork_waits_for_a_thread_that_ends_behind_its_last_line_of_python() -> None:
    """The C library's own end of a thread takes 0.3 seconds here, where MKL gives memory back."""
    libc, key = ctypes.CDLL(None), ctypes.c_uint()
    usleep = ctypes.cast(libc.usleep, ctypes.c_void_p)
    assert libc.pthread_key_create(ctypes.byref(key), usleep) == 0
    begun = []

    def end_slowly(inside: contextlib.AbstractContextManager[None]) -> None:
        with inside:
            begun.append(threading.get_native_id())
        assert libc.pthread_setspecific(key, ctypes.c_void_p(300_000)) == 0

    def ends_before_a_fork(inside: contextlib.AbstractContextManager[None]) -> bool:
        thread = threading.Thread(target=end_slowly, args=(inside,))
        thread.start()
        while thread.is_alive():
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            os._exit(0)
        ended = not (forks.TASKS / str(begun[-1])).exists()
        assert os.waitpid(child, 0)[1] == 0
        return ended

    assert ends_before_a_fork(computing())
    assert not ends_before_a_fork(contextlib.nullcontext())


def test_a_thread_does_not_end_while_another_forks() -> None:
    """Not even between the gate's last look and the fork."""
    code = """
import os, sys, threading, time
ended, found = threading.Event(), []

def look():
    ended.set()
    time.sleep(0.3)
    found.append((fairseq_paradec.forks.TASKS / str(thread.native_id)).exists())

os.register_at_fork(before=look)  # before the package's, so that it runs after that
sys.path.insert(0, sys.argv[1])
import fairseq_paradec.forks

def work():
    with fairseq_paradec.forks.computing():
        pass
    ended.wait()

thread = threading.Thread(target=work)
thread.start()
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
print(found)
"""
    result = run_python(code, ROOT)
    assert succeed(result).stdout == "[True]\n"


def test_a_fork_waits_for_openmps_threads_that_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody knows which they are: those of one that has ended are awake, or have been."""
    states = iter(["R (running)", "S (sleeping)", "D (disk sleep)"] + 3 * ["S (sleeping)"])
    switches = iter([1, 2, 3, 3])
    looks = []

    def look(path: Path, encoding: str) -> str:
        looks.append(path)
        state = next(states)
        return f"State:\t{state}\nvoluntary_ctxt_switches:\t{next(switches) if 'S' in state else 0}"

    (tmp_path / "1").mkdir()
    monkeypatch.setattr(forks, "TASKS", tmp_path)
    monkeypatch.setattr(Path, "read_text", look)
    gate = forks._Gate()
    gate.ended.add(2)
    gate._see_ended_go()
    assert len(looks) == 6 and not gate.ended
    gate._see_ended_go()
    assert len(looks) == 6


def products_beside_forks(count: int) -> None:
    """Fork beside threads that end after matrix products of torch's; the child computes one, too.

    Without the wait for threads that end, one child in five hung in MKL. Such a one is killed.
    """
    code = """
import signal
from fairseq_paradec.forks import computing
a, b = torch.ones(64, 512), torch.ones(512, 512)

def multiply(count):
    with computing():
        for _ in range(count):
            torch.mm(a, b)

multiply(1)
statuses = []
for number in range(int(folder)):
    threads = [threading.Thread(target=multiply, args=(number % 5 + 1,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    if number % 3 == 0:
        for thread in threads:
            thread.join()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        multiply(3)
        os._exit(0)
    statuses.append(os.waitpid(child, 0)[1])
    for thread in threads:
        thread.join()
report(statuses)
"""
    result = run_python(START + code, ROOT, count, "torch")
    said = succeed(result).stdout.removeprefix("REPORT ")
    assert json.loads(said) == [[0] * count]


def test_forks_beside_threads_that_have_just_ended_their_products() -> None:
    products_beside_forks(30)


@pytest.mark.slow
def test_many_forks_beside_threads_that_have_just_ended_their_products() -> None:
    products_beside_forks(400)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["beam", "torch", "native"])
def test_a_hundred_forks_beside_threads_that_have_just_ended_a_batch(search: str) -> None:
    """``beam`` is fairseq's search. A child that hangs is killed after a minute."""
    code = f"""
import signal
load()
options = dict(decoding="beam", beam=2) if "{search}" == "beam" else dict()
wanted, statuses = translate(**options)[2], []
for _ in range(100):
    thread = threading.Thread(target=translate, kwargs=options)
    thread.start()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if translate(**options)[2] == wanted else 1)
    statuses.append(os.waitpid(child, 0)[1])
    thread.join()
report(statuses)
"""
    (statuses,), _ = run(code, "native" if search == "native" else "torch")
    assert statuses == [0] * 100


def loop(runs: int, busy: int, lanes: int = 3) -> Counter[str]:
    """Run a program that forks beside a thread that ends, so often; return how the runs ended."""
    found: Counter[str] = Counter()

    def ends(number: int) -> str:
        try:
            (parent, *children), err = run(DURING_A_BATCH, "torch")
            check(parent, children, err)
        except subprocess.TimeoutExpired:
            return "hung"
        except AssertionError:
            return "wrong"
        return "right"

    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        with ThreadPoolExecutor(lanes) as pool:
            for end in tqdm(pool.map(ends, range(runs)), total=runs, disable=None):
                found[end] += 1
    finally:
        for process in others:
            process.kill()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--busy", type=int, default=3, help="processes beside them")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "forks.json")
    args = parser.parse_args()
    ends = loop(args.runs, args.busy)
    row = {"processes": args.runs, "busy beside them": args.busy}
    row |= {end: ends[end] for end in ("right", "hung", "wrong")}
    note = (
        "Each process loads a model, forks while another thread decodes its first batch by "
        "fairseq's search, and compares the child's translations with its own."
    )
    made_by = machine.circumstances([])
    made_by["command"] = (
        f"PYTHONPATH=tests python tests/cli/test_forks.py --runs {args.runs} --busy {args.busy}"
    )
    table = Table.of([row], notes=[note])
    documents.save(args.out, "Forks beside threads that have just ended a batch", table, made_by)
    print(row)
    return int(ends["right"] != args.runs)


if __name__ == "__main__":
    sys.exit(main())
