"""After a fork: the child computes on one thread, and no lock of a lost thread stops it.

A fork copies the thread that forks, and no other. OpenMP does not notice, and waits for its threads
without end where it shares work among them. torch computes by OpenMP, and so do native passes,
which take torch's number of threads.
"""

import importlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Held while something is imported in the midst of decoding, and by a fork. A child would wait
#: without end for an import that another thread had begun.
IMPORTING = threading.RLock()

_LOCKS: "weakref.WeakSet[Lock]" = weakref.WeakSet()


class _State:
    """What is known of this process."""

    computes = False  # whether it, or one that it was forked from, has begun to compute
    lost = 0  # how many threads a fork has lost; 0: none, or the warning is said


class Lock:
    """A lock that is free in the child of a fork, where the thread that held it does not exist.

    What it protects must stand being begun anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.Lock()


class cached_property(Generic[T]):
    """``functools.cached_property`` without its lock, which is lost in the child of a fork.

    Python 3.11 holds one lock for all instances of a class while it computes a value. Threads that
    ask at the same time may compute it twice, as from Python 3.12 on.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = self._compute(instance)
        instance.__dict__[self._compute.__name__] = value
        return value


def computes() -> None:
    """Note that this process loads a model or decodes.

    A fork from now on leaves its child one thread. Such a child says so here, once.
    """
    _State.computes = True
    if _State.lost > 0:
        lost, _State.lost = _State.lost, 0
        log.warning(
            "this process was forked after a model was loaded, and computes on one thread, not "
            "on %d: OpenMP's threads do not survive a fork. Load in each process to use more",
            lost,
        )


def attends(tokens: Any, pad: int) -> None:
    """Import what torch's attention does where a batch of fairseq's has padding: SymPy, a second.

    Args:
        tokens: B×S.
        pad: the number of ``<pad>``.
    """
    if bool((tokens == pad).any()):
        with IMPORTING:
            importlib.import_module("torch.fx.experimental.symbolic_shapes")


def _settle_child() -> None:
    """Free the locks, and leave torch one thread if the process had begun to compute on more."""
    IMPORTING.release()
    for lock in list(_LOCKS):
        lock.renew()
    if _State.computes:
        import torch  # which is loaded; the registry's readers may not need it

        if torch.get_num_threads() > 1:
            _State.lost = torch.get_num_threads()
            torch.set_num_threads(1)


os.register_at_fork(
    before=IMPORTING.acquire, after_in_parent=IMPORTING.release, after_in_child=_settle_child
)
