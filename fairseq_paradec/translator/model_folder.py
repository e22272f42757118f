"""The model folder: a model with its dictionaries and text processing, which one file names.

DIR is a data folder of fairseq without data, ``dict.SOURCE.txt`` and ``dict.TARGET.txt``, and holds
the model, the files of its BPE and perhaps a drafter. ``DIR/paradec.json`` names them, with
their hashes, and is written last: a folder without it is no model folder.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import option_error
from ..files import MODEL_FOLDER, Checked, checksum, replacing, stamp_of

#: The file that names the others, and the version of its keys.
NAME, FORMAT = MODEL_FOLDER, 1

#: How the name of a folder ends that is being made.
_PARTIAL = ".partial"

_TEXT = "a word"
_FILE = "the name of a file in the folder"
_FILES = 'null, or {"name": fairseq\'s --bpe, "files": {"bpe_codes": "codes.bpe"}}'


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """What a model folder holds. Files are named relative to it."""

    source: str  # the source language; its dictionary is ``dict.SOURCE.txt``
    target: str  # the target language
    model: str = "model.safetensors"  # a model file, or a checkpoint
    # what ``--drafter-path`` takes: a drafter, or heads; None: none
    drafter: str | None = None
    tokenizer: str | None = None  # fairseq's ``--tokenizer``; None: none
    bpe: str | None = None  # fairseq's ``--bpe``; None: none
    # the files of ``bpe``, by fairseq's name of the flag that takes each
    bpe_files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # what the model needs, by fairseq's or the plugin's names of settings
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # files with the model's packed weights, by ``--engine-dtype``
    packed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    packed_only: bool = False  # whether the model lacks the weights that these files have
    # of ``read``: the files, whose hashes are those that it says
    checked: Mapping[str, Checked] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def files(self) -> list[str]:
        """The names of all files, dictionaries first."""
        words = dict.fromkeys(f"dict.{language}.txt" for language in (self.source, self.target))
        more = [self.model, *([self.drafter] if self.drafter else []), *self.bpe_files.values()]
        return [*words, *more, *self.packed.values()]


def read(path: Path, flag: str = "--model") -> ModelFolder:
    """Read a model folder, and check that its files are there and unchanged.

    Raises:
        UsageError: it is no model folder, a key is unknown, missing or wrong, or a file is missing
            or has another hash.
    """
    file = path / NAME
    if not file.is_file():
        allowed = f"a model folder, with {NAME}, as paradec pack makes it"
        raise option_error(flag, str(path), allowed)
    folder, hashes = described(file, flag)
    checked = {}
    for name in folder.files:
        if not (path / name).is_file():
            raise option_error(str(file), name, f"files that are in {path}; this is missing")
        stamp, digest = stamp_of(path / name), checksum(path / name)
        if hashes.get(name) != digest:
            allowed = f"files as they were packed; {path / name} has another sha256"
            raise option_error(str(file), name, allowed)
        checked[name] = Checked(path / name, stamp, digest)
    return dataclasses.replace(folder, checked=checked)


def described(file: Path, flag: str = "--model") -> tuple[ModelFolder, Mapping[str, str]]:
    """Read ``paradec.json`` alone: -> the folder, and the hashes by file.

    Raises:
        UsageError: it is no JSON, or a key is unknown, missing or wrong.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise option_error(flag, str(file), f"a JSON object ({error})") from error
    return _parse(str(file), content)


def write(path: Path, folder: ModelFolder) -> None:
    """Write ``paradec.json``, the last file of a folder; the others are there.

    Raises:
        OSError: a named file cannot be read.
    """
    content = {
        "format": FORMAT,
        "source": folder.source,
        "target": folder.target,
        "model": folder.model,
        "drafter": folder.drafter,
        "tokenizer": folder.tokenizer,
        "bpe": {"name": folder.bpe, "files": dict(folder.bpe_files)} if folder.bpe else None,
        "settings": dict(folder.settings),
        **({"packed": dict(folder.packed)} if folder.packed else {}),
        **({"packed_only": True} if folder.packed_only else {}),
        "sha256": {name: checksum(path / name) for name in folder.files},
    }
    _parse(str(path / NAME), content)
    with replacing(path / NAME) as partial:
        text = json.dumps(content, indent=1, ensure_ascii=False)
        partial.write_text(text + "\n", encoding="utf-8")


@contextlib.contextmanager
def new_folder(path: Path, flag: str = "OUT") -> Iterator[Path]:
    """Make a folder whole or not at all: yields a temporary one, which becomes it at the end.

    Temporary ones of processes that were killed are removed: nobody holds their locks.

    Raises:
        UsageError: it is not empty, or cannot be made.
    """
    taken = option_error(flag, str(path), "a new folder, or an empty one")
    try:
        goal = path.resolve()
        if goal.is_file() or (goal.is_dir() and any(goal.iterdir())):
            raise taken
        goal.parent.mkdir(parents=True, exist_ok=True)
        _remove_dead(goal)
        partial, held = _make_partial(goal)
    except OSError as error:
        raise option_error(flag, str(path), f"a folder that can be made ({error})") from error
    try:
        with _left_at_sigterm():
            yield partial
        partial.chmod(0o755)  # mkdtemp's is the user's alone
        try:
            partial.rename(goal)
        except OSError as error:  # another process was faster
            raise taken from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(held)


@contextlib.contextmanager
def _left_at_sigterm() -> Iterator[None]:
    """Leave the body at SIGTERM, with the exit status that shells give it, where nobody else does.

    Raises:
        SystemExit: the signal came.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _make_partial(goal: Path) -> tuple[Path, int]:
    """Make a temporary folder beside a folder, and lock it: -> path, what holds the lock."""
    while True:
        name = tempfile.mkdtemp(prefix=f".{goal.name}.", suffix=_PARTIAL, dir=goal.parent)
        held = os.open(name, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_EX)
        if os.path.isdir(name):
            return Path(name), held
        os.close(held)  # another process took it for a dead one before it was locked


def _remove_dead(goal: Path) -> None:
    """Remove the temporary folders of a folder that no process has locked."""
    pattern = re.compile(re.escape(f".{goal.name}.") + r"\w{8}" + re.escape(_PARTIAL))
    for path in goal.parent.iterdir():
        if pattern.fullmatch(path.name) is None or path.is_symlink():
            continue
        with contextlib.suppress(OSError):  # it is locked, or another process was faster
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(descriptor)


def _parse(file: str, content: Any) -> tuple[ModelFolder, Mapping[str, str]]:
    """Check the content of ``paradec.json``: -> the folder, and the hashes by file.

    Raises:
        UsageError: it has another format, or a key is unknown, missing or wrong.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        given = content.get("format") if isinstance(content, dict) else content
        raise option_error(f"{file}: format", given, f"{FORMAT}; a newer version may read others")
    known = {"format": None, **_KEYS}
    for key in content:
        if key not in known:
            raise option_error(file, key, f"the keys {', '.join(known)}")
    for key, (fits, allowed) in _KEYS.items():
        if not fits(content.get(key)):
            raise option_error(f"{file}: {key}", content.get(key), allowed)
    bpe = content.get("bpe") or {"name": None, "files": {}}
    kept: dict[str, Any] = {
        key: content.get(key) for key in ("source", "target", "model", "drafter", "tokenizer")
    }
    settings = content.get("settings") or {}
    folder = ModelFolder(
        **kept,
        bpe=bpe["name"],
        bpe_files=bpe["files"],
        settings=settings,
        packed=content.get("packed") or {},
        packed_only=bool(content.get("packed_only")),
    )
    return folder, content["sha256"]


def _is_word(value: Any) -> bool:
    """Return whether a value is a text with something in it."""
    return isinstance(value, str) and bool(value.strip())


def _is_file(value: Any) -> bool:
    """Return whether a value is the name of a file, without a folder."""
    return _is_word(value) and Path(value).name == value


def _is_bpe(value: Any) -> bool:
    """Return whether a value is None, or a name with files by flag."""
    if value is None:
        return True
    right = isinstance(value, dict) and value.keys() == {"name", "files"}
    return right and _is_word(value["name"]) and _are_texts(value["files"], _is_file)


def _are_texts(value: Any, fits: Any = _is_word) -> bool:
    """Return whether a value is a dict of texts that fit."""
    return isinstance(value, dict) and all(map(fits, value.values()))


#: The keys but the format: whether a value fits, and what is allowed, in words.
_KEYS: dict[str, tuple[Any, str]] = {
    "source": (_is_word, _TEXT),
    "target": (_is_word, _TEXT),
    "model": (_is_file, _FILE),
    "drafter": (lambda value: value is None or _is_file(value), f"null, or {_FILE}"),
    "tokenizer": (lambda value: value is None or _is_word(value), f"null, or {_TEXT}"),
    "bpe": (_is_bpe, _FILES),
    "settings": (lambda value: value is None or isinstance(value, dict), "an object of settings"),
    "packed": (
        lambda value: value is None or _are_texts(value, _is_file),
        "an object with the file of each --engine-dtype",
    ),
    "packed_only": (lambda value: value in (None, False, True), "true or false"),
    "sha256": (_are_texts, "an object with the sha256 of each file"),
}
