"""Files from nowhere: what becomes of them, in a process with little memory and little time.

A target is a command and one of the files that it reads. Hypothesis spoils the file; the command
must go well, or say in one line what is wrong.
"""

import contextlib
import functools
import io
import json
import logging
import os
import pickle
import re
import resource
import shutil
import signal
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st

from fairseq_paradec.cli import translate
from fairseq_paradec.cli.arguments import run
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.files import checksum
from fairseq_paradec.plugin.tasks.loading import decoder, load

#: What a command may take for one bad file: bytes of memory beside what its process has, seconds of
#: the processor.
MEMORY, SECONDS = 1 << 30, 20

#: Part of a safetensors file: JSON.
HEADER = "header"

#: A change of a file: what is done, where (of 65536 parts), and with what.
Change = tuple[str, int, Any]


@dataclass(frozen=True)
class Target:
    """A command and a file that it reads."""

    words: str  # of the command; ``{}`` is the folder
    file: str  # in the folder
    member: str | None = None  # of the file, if it is an archive; or ``HEADER``
    is_json: bool = False  # whether values are changed, not bytes alone

    def seed(self, folder: Path) -> bytes:
        """The file, or the part of it that is spoilt."""
        if self.member is None:
            return (folder / self.file).read_bytes()
        if self.member == HEADER:
            return _parted(folder / self.file)[0]
        with zipfile.ZipFile(folder / self.file) as archive:
            return archive.read(_member(archive, self.member))

    def put(self, folder: Path, content: bytes) -> None:
        """Write the spoilt file; ``paradec.json`` has its hash, as an author's own would."""
        path = folder / self.file
        if self.member is None:
            path.write_bytes(content)
        elif self.member == HEADER:
            path.write_bytes(len(content).to_bytes(8, "little") + content + _parted(path)[1])
        else:
            with zipfile.ZipFile(path) as archive:
                parts = {name: archive.read(name) for name in archive.namelist()}
                parts[_member(archive, self.member)] = content
            with zipfile.ZipFile(path, "w") as archive:
                for name, part in parts.items():
                    archive.writestr(name, part)
        rehash(folder, self.file)


def _parted(path: Path) -> tuple[bytes, bytes]:
    """The header of a safetensors file, and what follows it."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end], content[end:]


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return next(one for one in archive.namelist() if one.endswith(name))


def rehash(folder: Path, file: str) -> None:
    """Write a file's hash into the folder's ``paradec.json``, if that names it."""
    about = folder / "paradec.json"
    if file == about.name or not about.is_file():
        return
    content = json.loads(about.read_text("utf-8"))
    if file in content["sha256"]:
        content["sha256"][file] = checksum(folder / file)
        about.write_text(json.dumps(content), "utf-8")


# ---- what is done to files ---------------------------------------------------------------------

_ODD: list[Any] = [
    *(None, True, -1, 0, 1, 2, 3, 7, 10**9, 10**18, 10**30, 0.5, 1e308, float("nan"), "", " "),
    *("a\nb", "\x1b[2J", "/", "../x", "<s>", "a" * 10**5, [], {}, [[]], {"a": None}),
    *("@deep", "@long"),  # texts that are lists in the file
]
_NUMBERS = (b"0", b"-1", b"99999999999", b"1" * 5000, b"1e9", b"nan", b".5", b"0x1")


def changes(is_json: bool) -> st.SearchStrategy[list[Change]]:
    """Changes of a file, some at a time."""
    at, byte = st.integers(0, 65535), st.integers(0, 255)
    kinds = [
        st.tuples(st.just("cut"), at, st.none()),
        st.tuples(st.just("flip"), at, byte),
        st.tuples(st.just("flip"), st.integers(0, 200), byte),  # heads are at the beginning
        st.tuples(st.just("erase"), at, st.integers(1, 40)),
        st.tuples(st.just("insert"), at, st.binary(min_size=1, max_size=8)),
        st.tuples(st.just("repeat"), at, st.integers(1, 300)),
        st.tuples(st.just("number"), at, st.sampled_from(_NUMBERS)),
        st.tuples(st.just("swap"), at, at),
    ]
    if is_json:
        kinds = [
            st.tuples(st.just("value"), at, st.sampled_from(_ODD)),
            st.tuples(st.just("lose"), at, st.none()),
            st.tuples(st.just("add"), at, st.sampled_from(_ODD)),
            st.one_of(*kinds),
        ]
    return st.lists(st.one_of(*kinds), min_size=1, max_size=4)


def spoil(content: bytes, given: Sequence[Change]) -> bytes:
    """Return a file with changes."""
    for kind, at, what in given:
        content = _spoil(content, kind, at * len(content) >> 16, at, what)
    return content


def _spoil(was: bytes, kind: str, place: int, at: int, what: Any) -> bytes:
    if kind == "cut":
        return was[:place]
    if kind == "flip":
        place = min(place if at > 200 else at, len(was))
        return was[:place] + bytes([what]) + was[place + 1 :]
    if kind == "erase":
        return was[:place] + was[place + what :]
    if kind == "insert":
        return was[:place] + what + was[place:]
    if kind == "repeat":
        return was[: place + what] + was[place:]
    if kind == "swap":
        other = what * len(was) >> 16
        return was[:place] + was[other : other + 8] + was[place + 8 :]
    if kind == "number":
        found = [*re.finditer(rb"\d+", was)]
        one = found[at * len(found) >> 16] if found else None
        return was if one is None else was[: one.start()] + what + was[one.end() :]
    return b"\n".join(_change_json(line, kind, at, what) for line in was.split(b"\n"))


def _change_json(line: bytes, kind: str, at: int, what: Any) -> bytes:
    """Change a value of a JSON text; what is none stays."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return line
    holder = {"": content}
    places = [*_places(holder)]
    where, key = places[at * len(places) >> 16]
    if kind == "value":
        where[key] = what
    elif kind == "lose" and isinstance(where, dict) and where is not holder:
        del where[key]
    elif kind == "add" and isinstance(where[key], dict):
        where[key]["x"] = what
    elif kind == "add" and isinstance(where[key], list):
        where[key].append(what)
    text = json.dumps(holder[""]).replace('"@deep"', "[" * 10**5 + "]" * 10**5)
    return text.replace('"@long"', "[" + "0," * 10**4 + "0]").encode()


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    for key in [*holder] if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], (dict, list)):
            yield from _places(holder[key])


# ---- what becomes of them ----------------------------------------------------------------------


class _Late(BaseException):
    """It takes too long; no ``except Exception`` catches it."""


def _late(*_: Any) -> None:
    raise _Late


def problem(words: Sequence[str]) -> str | None:
    """Run a command of ``paradec``; say what is wrong with its end, or None."""
    status, said = _run(words)
    lines = said.splitlines()
    errors = [line for line in lines if "error: " in line]
    if status == 2 and len(errors) == 1 and lines[-1] == errors[0] and len(errors[0]) < 4000:
        return None
    return None if status == 0 else f"status {status}: {said[:1500]}"


def _run(words: Sequence[str]) -> tuple[Any, str]:
    """Run a command of ``paradec``: -> its status, and what it says."""
    said, printed = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            if words[0] == "generate":
                return run("generate", lambda: generate(words[1])), said.getvalue()
            return paradec(words), said.getvalue()
    except SystemExit as ended:
        return ended.code, said.getvalue()
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)
        own = [one for one in place if "fairseq_paradec" in one.filename] or place
        where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        last = f"{Path(place[-1].filename).name}:{place[-1].lineno}"
        return f"{type(error).__name__} at {where}, {last}", str(error)[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        translate.FAILED.clear()


def outcome(words: str, folder: Path) -> str:
    """What a command that must fail says of a folder."""
    out = folder.with_name("out")
    status, said = _run([word.format(folder, out=out) for word in words.split()])
    assert status == 2, (status, said)
    return said


@functools.cache
def _loaded(folder: str) -> Any:
    return load(folder, f"{folder}/model.pt")


def generate(folder: str) -> int:
    """Decode a subset as fairseq-generate does."""
    models, task = _loaded(folder)
    task.load_dataset("test")
    batches = task.get_batch_iterator(
        task.dataset("test"),
        max_sentences=4,
        max_positions=models[0].max_positions(),
        ignore_invalid_inputs=True,
    )
    made = decoder(task, models, decoding="greedy", max_len_b=5)
    for sample in batches.next_epoch_itr(shuffle=False):
        for hypos in task.inference_step(made, models, sample):
            task.target_dictionary.string(hypos[0]["tokens"])
    return 0


def in_a_child(work: Callable[[], Any], seconds: float) -> Any:
    """Return what a function gives in a fork with ``MEMORY`` more than it has, or how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        logging.disable(logging.CRITICAL)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            result = work()
        except BaseException:
            result = traceback.format_exc()
        with open(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        content = b""
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            content = pipe.read()
        except _Late:
            os.kill(child, signal.SIGKILL)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    status = os.waitpid(child, 0)[1]
    if content:
        return pickle.loads(content)
    return f"the process ended with {os.waitstatus_to_exitcode(status)}"


def attempt(target: Target, folder: Path, content: bytes) -> str | None:
    """Give a command a spoilt file in a folder, which is mended then; return what is wrong."""
    file, about = folder / target.file, folder / "paradec.json"
    kept = {one: one.read_bytes() for one in (file, about) if one.is_file()}
    out = folder.with_name("out")
    try:
        target.put(folder, content)
        return problem([word.format(folder, out=out) for word in target.words.split()])
    finally:
        shutil.rmtree(out, ignore_errors=True)
        for one, was in kept.items():
            one.write_bytes(was)


#: What goes wrong by its kind and place: the whole message, and changes that do it.
Found = dict[str, tuple[str, list[Change]]]


def hunt(target: Target, folder: Path, examples: int, number: int, seconds: float) -> Found:
    """Return what goes wrong with spoilt files."""
    last = folder.with_name("last")
    found: Found = {}

    def work() -> Found:
        seed = target.seed(folder)

        @hypothesis.seed(number)
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(changes(target.is_json))
        def one(given: list[Change]) -> None:
            last.write_bytes(pickle.dumps(given))
            wrong = attempt(target, folder, spoil(seed, given))
            if wrong is not None:
                found.setdefault(wrong.partition(": ")[0], (wrong, given))

        one()
        return found

    result = in_a_child(work, seconds)
    if isinstance(result, str):
        given = pickle.loads(last.read_bytes()) if last.exists() else []
        result = {result.splitlines()[-1]: (result, given)}
    return result
