"""A fork waits until no other thread computes, and its child computes on one thread.

A fork copies the thread that forks, and no other. A lock that another thread held then, in Python,
torch or the C library, is never free in the child, which waits for it without end. And OpenMP,
by which torch computes, does not notice the loss of its threads: it waits for them where it shares
work among them. Native passes make theirs anew.

A thread that ends holds locks once more, after its last line of Python: MKL gives its memory back,
and the threads that worked for it end, each with memory of its own. So a fork also waits
until those that have computed are gone.
"""

import concurrent.futures.thread  # noqa: F401  (see the end)
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

#: Seconds that a fork waits. It would wait for ever if a thread that computes waited for it.
LONGEST_WAIT = 60.0

#: Seconds that a fork waits for threads to end. Threads of other libraries may never rest.
LONGEST_END = 10.0

#: What Linux knows of each thread of this process.
TASKS = Path("/proc/self/task")


class _End:
    """Lies among a thread's own variables, which go when its last line of Python has run."""

    def __init__(self, gate: "_Gate") -> None:
        self.gate = gate
        self.task = threading.get_native_id()

    def __del__(self) -> None:
        """Wait while another thread forks: this one holds no lock yet."""
        if not sys.is_finalizing():  # then a thread that is no more may hold the gate's lock
            with self.gate.changed:
                self.gate.ended.add(self.task)


class _Gate:
    """Threads pass it to compute, and close it to fork."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside: Counter[int] = Counter()  # how often each thread has entered
        self.own = threading.local()  # each thread's end
        self.ended: set[int] = set()  # threads that were inside and have ended since the last fork
        self.closed = False
        self.interrupted = False  # by Ctrl-C, which ends the wait of a fork

    def enter(self) -> None:
        """Wait while another thread forks, unless this one is inside."""
        me = threading.get_ident()
        if not hasattr(self.own, "end"):
            self.own.end = _End(self) if _ends_by_itself(threading.current_thread()) else None
        with self.changed:
            if not self.inside[me]:
                self.changed.wait_for(lambda: not self.closed)
            self.inside[me] += 1

    def leave(self) -> None:
        """As often as a thread has entered."""
        me = threading.get_ident()
        with self.changed:
            self.inside[me] -= 1
            if not self.inside[me]:
                del self.inside[me]
                self.changed.notify_all()

    def close(self) -> None:
        """Wait until no other thread is inside; a fork from inside waits for none."""
        self.changed.acquire()
        try:
            if self.inside[threading.get_ident()]:
                if len(self.inside) == 1:
                    self._see_ended_go()
                return
            self.changed.wait_for(lambda: not self.closed)
            self.closed = True
            if not self.changed.wait_for(lambda: not self.inside, LONGEST_WAIT):
                log.warning(
                    "a fork has waited %g seconds for a thread that decodes, and waits no longer: "
                    "its child may wait without end",
                    LONGEST_WAIT,
                )
            else:
                self._see_ended_go()
        except KeyboardInterrupt:  # what is raised before a fork is printed, and lost
            self.interrupted = True

    def _see_ended_go(self) -> None:
        """Wait until threads that have ended, and those that worked for them, are gone.

        Which of the process's threads worked for others cannot be known, but those that stay sleep
        while they have no work. So nothing but Python's threads may be awake between two looks.
        """
        if not self.ended:
            return
        asleep, until = None, time.monotonic() + LONGEST_END
        while time.monotonic() < until:
            before, asleep = asleep, _sleepers()
            if asleep is not None and asleep == before and not self.ended.intersection(asleep):
                break
            time.sleep(0.001)
        self.ended = set()

    def open(self) -> None:
        """Let threads in again."""
        if not self.inside[threading.get_ident()]:
            self.closed = False
        interrupted, self.interrupted = self.interrupted, False
        self.changed.notify_all()
        self.changed.release()
        if interrupted:  # what is raised here would be lost, too
            whom = threading.main_thread().ident, signal.SIGINT
            threading.Timer(0.01, signal.pthread_kill, whom).start()

    def renew(self) -> None:
        """Forget the threads that the child of a fork has lost."""
        me = threading.get_ident()
        entered = self.inside[me]
        self.changed = threading.Condition()
        self.inside = Counter({me: entered} if entered else {})
        self.closed = self.interrupted = False
        self.ended = set()


def _ends_by_itself(thread: threading.Thread) -> bool:
    """Neither the first thread, with which the process ends, nor one that Python did not begin."""
    return not (thread is threading.main_thread() or isinstance(thread, threading._DummyThread))


def _sleepers() -> dict[int, list[str]] | None:
    """Return how often each thread that is not Python's has slept, or None if one is awake."""
    pythons = {thread.native_id for thread in threading.enumerate()}
    pythons.add(threading.get_native_id())
    switches = {}
    for task in TASKS.iterdir() if TASKS.is_dir() else ():
        if int(task.name) not in pythons:
            try:
                facts = (task / "status").read_text(encoding="utf-8").splitlines()
            except OSError:  # it has gone since
                continue
            if any(fact.startswith(("State:\tR", "State:\tD")) for fact in facts):
                return None
            switches[int(task.name)] = [fact for fact in facts if "ctxt_switches" in fact]
    return switches


class _State:
    """What is known of this process."""

    computes = False  # whether it, or one that it was forked from, has begun to compute
    lost = 0  # how many threads a fork has lost; 0: none, or the warning is said


_GATE = _Gate()


@contextmanager
def computing() -> Iterator[None]:
    """Load a model, make batches or decode one; a fork of another thread waits until the end.

    A fork after the first time leaves its child one thread. Such a child says so here, once.
    """
    _GATE.enter()
    try:
        _State.computes = True
        if _State.lost > 0:
            lost, _State.lost = _State.lost, 0
            log.warning(
                "this process was forked after a model was loaded, and computes on one thread, not "
                "on %d: OpenMP's threads do not survive a fork. Load in each process to use more",
                lost,
            )
        yield
    finally:
        _GATE.leave()


def _settle_child() -> None:
    """Open the gate, and leave torch one thread if the process had begun to compute on more."""
    _GATE.renew()
    torch = sys.modules.get("torch")
    if _State.computes and torch is not None and torch.get_num_threads() > 1:
        _State.lost = torch.get_num_threads()
        torch.set_num_threads(1)


# Of what is done before a fork, the last to be registered comes first. ``concurrent.futures`` takes
# a lock then: were it taken while this waits, a batch that starts a thread would wait for it.
os.register_at_fork(before=_GATE.close, after_in_parent=_GATE.open, after_in_child=_settle_child)
