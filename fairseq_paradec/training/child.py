"""fairseq-train in child processes: one, or one for each rank on a CPU."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .log import Follower

#: The plugin's folder, for --user-dir.
PLUGIN = Path(__file__).resolve().parents[1]

#: Seconds between looks at the children and their log.
TICK = 0.2


class Stopped(BaseException):
    """A signal has ended the run; ``status`` is the exit status that says so."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


class Signals:
    """Turns Ctrl-C and the signal of kill into ``Stopped``, in a ``with`` block."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._waits = False
        self._came: int | None = None

    def __enter__(self) -> "Signals":
        self._before = {number: signal.signal(number, self._stop) for number in self.NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _: object) -> None:
        for each in self.NUMBERS:  # nothing cuts short what ends the children
            signal.signal(each, signal.SIG_IGN)
        self._came = number
        if not self._waits:
            raise Stopped(number)

    @contextlib.contextmanager
    def later(self) -> Iterator[None]:
        """Let a signal wait for the end of the block: no child is started and then unknown."""
        self._waits = True
        yield
        self._waits = False
        if self._came is not None:
            raise Stopped(self._came)


def command(data: Path, flags: Sequence[str]) -> list[str]:
    """Return the command of fairseq-train, by this Python."""
    start = [sys.executable, "-P"] if sys.version_info >= (3, 11) else [sys.executable]
    return [*start, "-m", "fairseq_cli.train", word(data), "--user-dir", str(PLUGIN), *flags]


def word(path: Path) -> str:
    """Return a path that is taken for no flag."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def ranks(words: Sequence[str], processes: int) -> list[list[str]]:
    """Return the commands of processes on a CPU, which fairseq's own spawning has only for CUDA."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    more = "--distributed-backend gloo --ddp-backend legacy_ddp --distributed-no-spawn".split()
    more += ["--distributed-init-method", f"tcp://localhost:{port}", "--distributed-rank"]
    return [[*words, *more, str(rank)] for rank in range(processes)]


def run(
    commands: Sequence[Sequence[str]],
    env: Mapping[str, str],
    log: Path,
    lock: int,
    signals: Signals,
    updates: int,
    note: Callable[[str], None],
) -> int:
    """Run commands side by side; if one fails or this process is stopped, end the others.

    Args:
        commands: of fairseq-train.
        env: their environment.
        log: gets what they say.
        lock: a file descriptor that they keep open: while one runs, the folder is held.
        signals: which stop this process.
        updates: of the run, for the estimate.
        note: says how long it will take.

    Returns:
        0, or the first status that was another.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with log.open("ab", buffering=0) as stream:
        begun = f"==== {time.strftime('%FT%TZ', time.gmtime())}: {shlex.join(commands[0])}\n"
        try:
            stream.write(os.fsencode(begun))
        except OSError as error:
            error.filename = str(log)
            raise
        follower = Follower(log, updates)
        try:
            for words in commands:
                with signals.later():
                    process = subprocess.Popen(
                        words,
                        env=env,
                        pass_fds=(lock,),
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=stream,
                    )
                    processes.append(process)
            while True:
                states = [process.poll() for process in processes]
                failed = [state for state in states if state]
                if failed or None not in states:
                    return failed[0] if failed else 0
                if said := follower.look(time.monotonic()):
                    note(said)
                time.sleep(TICK)
        finally:
            _end(processes)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs, and wait for it."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        process.wait()
