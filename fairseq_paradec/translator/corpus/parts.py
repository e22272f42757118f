"""A folder of parts: each is written whole or not at all, by one process, with the same settings.

A part is some consecutive work of a corpus, named by its place there, so that neither the number
of workers nor an interruption changes what parts there are, or what is in one.
"""

import contextlib
import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import UsageError, option_error

#: The file of a folder's settings, and those that are not finished.
SETTINGS, PARTIAL, LOCK = "settings.json", ".partial", ".lock"


class Part(NamedTuple):
    """Some consecutive work."""

    name: str  # of its file
    lines: int  # how many sentences it has
    work: Any  # what a worker gets; it can be pickled


#: From parts to their contents, in any order.
Crew = Callable[[Iterator[Part]], Iterator[tuple[Part, bytes]]]


@contextlib.contextmanager
def locked(path: Path, flag: str) -> Iterator[None]:
    """Make a folder, and hold it for this process; ``flag`` names it in errors.

    Raises:
        UsageError: another process works there, or it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        stream = (path / LOCK).open("a")
    except OSError as error:
        raise option_error(flag, str(path), f"a folder that can be made ({error})") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            allowed = "a folder in which no other process works"
            raise option_error(flag, str(path), allowed) from error
        yield


def begin(path: Path, settings: Mapping[str, Any], flag: str, files: Mapping[str, str]) -> None:
    """Begin a folder with these settings, or check that what is finished there was made with them.

    Args:
        path: the folder; its parts come to ``path/parts``.
        settings: by the names of flags, but those of ``files``.
        flag: the argument that names the folder.
        files: settings that are checksums, and the flags of what they are of.

    Raises:
        UsageError: it holds something else, or was begun with other settings.
    """
    file = path / "parts" / SETTINGS
    entries = (*path.iterdir(), *path.glob("parts/*.jsonl"))
    there = {entry.name for entry in entries} - {"parts", LOCK}
    if there and not file.is_file():
        raise option_error(
            flag,
            str(path),
            "a new or empty folder, or one that this command began; this one holds other files",
        )
    if not there:  # nothing is finished
        file.parent.mkdir(exist_ok=True)
        write(file, json.dumps(settings, indent=1).encode() + b"\n")
    before = json.loads(file.read_text(encoding="utf-8"))
    for name in before | settings:
        value, had = settings.get(name), before.get(name)
        if value != had:
            given = ("files", "others") if name in files else (value, had)
            raise UsageError(
                f"{files.get(name, f'--{name}')}: got {given[0]}, but {flag} ({path}) was begun "
                f"with {given[1]}; allowed: the same, or another {flag}"
            )


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, whatever happens to the process or the machine.

    Raises:
        UsageError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
        sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); what is finished is kept, and the same "
            "command goes on"
        ) from error


def sync(path: Path) -> None:
    """Have a file's content, or a folder's names, written to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def make(path: Path, parts: Iterable[Part], crew: Crew, total: Callable[[], int | None]) -> None:
    """Let a crew do the parts that are not there yet, and write each as soon as it is finished.

    Args:
        path: the folder, which this process holds.
        parts: all parts, read as far as they are needed.
        crew: does them.
        total: all sentences, as far as it is known; it is asked again and again.

    Raises:
        UsageError: the crew cannot work, or a part cannot be written.
    """
    from tqdm import tqdm

    # tqdm's own lock is one of several processes, whose semaphores a killed driver would leave.
    tqdm.set_lock(threading.RLock())
    folder = path / "parts"
    finished = {entry.name for entry in folder.iterdir()}
    with tqdm(
        desc=path.name,
        unit=" sentences",
        smoothing=0,
        mininterval=0.5 if sys.stderr.isatty() else 60,
    ) as bar:

        def left() -> Iterator[Part]:
            for part in parts:
                if part.name in finished:
                    bar.initial += part.lines
                    bar.n += part.lines
                else:
                    yield part

        for part, content in crew(left()):
            write(folder / part.name, content)
            bar.total = total()
            bar.update(part.lines)
