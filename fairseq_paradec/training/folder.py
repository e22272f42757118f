"""A run's folder: one process works in it, and its settings stay those that it began with."""

import contextlib
import fcntl
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from ..errors import UsageError, option_error
from ..files import checksum, replacing

#: A line of settings.txt, in words.
Line = tuple[str, ...]

#: Lines that are no flags of fairseq-train begin with these; the last one is a flag of ours.
DATA, PRESET, AVERAGE = "DATA", "PRESET", "--average"
CHECKPOINTS = {"--encoder-from": "ENCODER", "--start-from": "START", "--base-path": "BASE"}
NOT_FLAGS = (DATA, PRESET, AVERAGE, *CHECKPOINTS.values())

#: Seconds to wait for a process that is about to end.
PATIENCE = 10


@contextlib.contextmanager
def held(folder: Path, note: Callable[[str], None]) -> Iterator[int]:
    """Make a folder and hold its lock, which can be passed on to child processes.

    Yields:
        The lock's file descriptor.

    Raises:
        UsageError: another process trains there, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("a")
    except OSError as error:
        raise option_error("--save-dir", str(folder), f"a folder ({error.strerror})") from error
    with stream:
        end = None
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if end is None:
                    note(f"waiting for another process that trains in {folder}")
                    end = time.monotonic() + PATIENCE
                elif time.monotonic() > end:
                    raise UsageError(
                        f"--save-dir: got '{folder}', in which another process trains"
                    ) from None
                time.sleep(0.2)
        yield stream.fileno()


def data_lines(data: Path) -> list[Line]:
    """Return checksums of all that a training reads of a data folder, wherever it lies."""
    patterns = ("dict.*.txt", "sizes*.json", "train*.bin", "train*.idx", "valid*.bin", "valid*.idx")
    names = [path.name for pattern in patterns for path in sorted(data.glob(pattern))]
    return [(DATA, name, checksum(data / name)[:16]) for name in names]


def settle(folder: Path, data: Path, lines: Sequence[Line], chosen: Collection[str]) -> list[Line]:
    """Write a new run's settings, or compare with those that a run in the folder began with.

    Args:
        folder: which this process holds.
        data: fairseq's data folder.
        lines: the settings, without the data.
        chosen: first words of lines that the user did not ask for: what the run began with counts.

    Returns:
        The settings that count.

    Raises:
        UsageError: the run began with other data, or the user asks for something else.
    """
    path = folder / "settings.txt"
    now = [*data_lines(data), *lines]
    if not any(folder.glob("checkpoint*.pt")) and not (folder / "model.pt").exists():
        # Nothing is lost by other settings.
        with replacing(path) as partial:
            partial.write_text("".join(f"{_written(line)}\n" for line in now), "utf-8")
        return now
    if not path.is_file():
        raise UsageError(
            f"--save-dir: {folder} has checkpoints of a run that this command did not start"
        )
    before = [_read(line) for line in path.read_text("utf-8").splitlines()]
    if (DATA, str(data)) in before:  # the oldest runs have no checksums
        now = [(DATA, str(data)), *lines]
    free = set(chosen)
    if not any(line[0] == PRESET for line in before):  # older ones do not say it
        free.add(PRESET)
    differences = [f"before: {_written(x)}" for x in before if x not in now and x[0] not in free]
    differences += [f"now: {_written(x)}" for x in now if x not in before and x[0] not in free]
    if differences:
        raise UsageError(
            f"--save-dir: the run in {folder} has other settings: {'; '.join(differences)}"
        )
    return before


def _written(line: Line) -> str:
    """Return a line as it is written."""
    return " ".join(line) if line[0] in NOT_FLAGS else shlex.join(line)


def _read(text: str) -> Line:
    """Read a line of this version, or of the shell script that trained before."""
    kind, _, rest = text.partition(" ")
    if kind == DATA:
        name, _, digest = rest.rpartition(" ")
        checked = len(digest) == 16 and set(digest) <= set("0123456789abcdef") and name
        return (DATA, name, digest) if checked else (DATA, rest)
    return tuple(text.split(" ")) if kind in NOT_FLAGS else tuple(shlex.split(text))
