"""Crews of workers on one machine, and the distribution of parts to any crew.

A worker is made by ``load()`` in a process of its own and then called with the work of one part
after another. A worker that is lost is replaced, and another does its parts again.
"""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from ...errors import UsageError
from .parts import Crew, Part

#: From the work of a part to its content, and what makes such a function; that can be pickled.
Work = Callable[[Any], bytes]
Load = Callable[[], Work]

#: Workers that one part, or loading, may cost.
MOST_LOST = 3
_LOADING = "loading the model"


class Lost(Exception):
    """A worker is gone; says how."""


#: Of a worker: None, it is ready; name and content of a part; it is lost; an error, which ends all.
Outcome = None | tuple[str, bytes] | Exception


class Workers(Protocol):
    """Workers in other processes."""

    size: int  # how many there are to be
    depth: int  # parts that each has at a time: the next one waits where work comes from afar

    def hire(self) -> Any:
        """Start a worker; return what stands for it."""

    def give(self, worker: Any, name: str, work: Any) -> None:
        """Give a worker the work of a part."""

    def wait(self) -> Iterable[tuple[Any, Outcome]]:
        """Wait for workers: yields each with what came of it."""

    def close(self) -> None:
        """End all workers."""


def alone(load: Load) -> Crew:
    """Return a crew of one worker in this process."""

    def crew(parts: Iterator[Part]) -> Iterator[tuple[Part, bytes]]:
        work = None
        for part in parts:
            work = work or load()
            yield part, work(part.work)

    return crew


def distribute(workers: Workers) -> Crew:
    """Return a crew of several workers.

    It takes no part before a worker has room for it, so that only ``size * depth`` parts are in
    memory.

    Raises:
        UsageError: a part, or loading, cost ``MOST_LOST`` workers.
    """

    def crew(parts: Iterator[Part]) -> Iterator[tuple[Part, bytes]]:
        held: dict[Any, dict[str, Part]] = {}
        again: deque[Part] = deque()
        room: deque[Any] = deque()
        lost: Counter[str] = Counter()
        part = next(parts, None)
        try:
            if part is not None:
                held |= {workers.hire(): {} for _ in range(workers.size)}
            while part is not None or any(held.values()):
                if part is not None and room:
                    worker = room.popleft()
                    held[worker][part.name] = part
                    workers.give(worker, part.name, part.work)
                    part = again.popleft() if again else next(parts, None)
                    continue
                for worker, outcome in workers.wait():
                    if outcome is None:
                        lost[_LOADING] = 0
                        room.extend([worker] * workers.depth)
                    elif isinstance(outcome, tuple):
                        yield held[worker].pop(outcome[0]), outcome[1]
                        room.append(worker)
                    elif isinstance(outcome, Lost):
                        room = deque(other for other in room if other is not worker)
                        undone = held.pop(worker)
                        _count(lost, f"part {[*undone][0]}" if undone else _LOADING, outcome)
                        again.extend(undone.values())
                        if part is None and again:
                            part = again.popleft()
                        held[workers.hire()] = {}
                    else:
                        raise outcome
        finally:
            workers.close()

    return crew


def _count(lost: Counter[str], what: str, reason: Lost) -> None:
    """Count a lost worker.

    Raises:
        UsageError: too many were lost at the same.
    """
    lost[what] += 1
    if lost[what] == MOST_LOST:
        raise UsageError(
            f"{what}: {MOST_LOST} workers were lost at it ({reason}); what is finished is kept, "
            "and the same command goes on"
        )


class Processes:
    """Processes of this machine; on a GPU each takes the next one."""

    depth = 1

    def __init__(self, load: Load, size: int, gpus: int = 0) -> None:
        self.load, self.size, self.gpus = load, size, gpus
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, Any] = {}
        self._hired = 0

    def hire(self) -> Connection:
        """Start a process; return the connection to it."""
        ours, theirs = self._context.Pipe()
        gpu = self._hired % self.gpus if self.gpus else None
        process = self._context.Process(target=_serve, args=(theirs, self.load, gpu), daemon=True)
        resource_tracker.ensure_running()  # which would unblock signals below
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for this process
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()  # so that its end is noticed
        self._hired += 1
        self._processes[ours] = process
        return ours

    def give(self, worker: Connection, name: str, work: Any) -> None:
        """Send work; ``wait`` tells of a process that is gone."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.send((name, work))

    def wait(self) -> Iterator[tuple[Connection, Outcome]]:
        """Yield the processes that say something, or are gone."""
        for connection in wait(list(self._processes)):
            assert isinstance(connection, Connection)
            try:
                yield connection, connection.recv()
            except (EOFError, OSError):  # also in the middle of what it says
                process = self._processes.pop(connection)
                process.join()
                yield connection, Lost(f"a process ended with {process.exitcode}")

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()


def _serve(connection: Connection, load: Load, gpu: int | None) -> None:
    """Work until nobody asks any more."""
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
    try:
        work = load()
        connection.send(None)
        while True:
            name, given = connection.recv()
            connection.send((name, work(given)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the driver is gone
    except Exception as error:
        if not isinstance(error, (UsageError, OSError)):
            traceback.print_exc()
        connection.send(error)
