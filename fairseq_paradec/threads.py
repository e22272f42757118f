"""How many threads of the CPU a thread of Python computes with."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

#: Where Linux says which of the CPUs are threads of one core.
_CPUS = Path("/sys/devices/system/cpu")


class _Set(threading.local):
    """What ``set_threads`` has set: each thread has a number, new ones begin with the last set."""

    count: int | None = None


_SET = _Set()


def set_threads(count: int) -> None:
    """Let this thread of Python compute with so many, in torch as well where that is loaded."""
    _SET.count = _Set.count = count
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)


@contextlib.contextmanager
def computing_on(count: int) -> Iterator[None]:
    """Let this thread of Python compute with so many threads meanwhile; 0: with as many as before.

    Where torch is loaded its own number is what counts, and is left as it is.
    """
    before = _SET.count
    _SET.count = count or before
    try:
        yield
    finally:
        _SET.count = before


def num_threads() -> int:
    """Return how many threads a pass takes: torch's number, where it is loaded.

    Else it is what ``set_threads`` has set, or OMP_NUM_THREADS, or the number of cores.
    """
    if (torch := sys.modules.get("torch")) is not None:
        count: int = torch.get_num_threads()
        return count
    return _SET.count or _default()


def _default() -> int:
    """Return OMP_NUM_THREADS, or else how many cores this process may use, as torch counts them."""
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return len({_core_of(cpu) for cpu in os.sched_getaffinity(0)})


def _core_of(cpu: int) -> str:
    """Return the CPUs of a CPU's core; its own number, where the system does not say."""
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)
