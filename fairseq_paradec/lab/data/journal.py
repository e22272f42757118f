"""Measurements on disk: an interrupted command continues if its settings are the same."""

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UsageError


@dataclass
class Journal:
    """The measurements so far, on disk, so that an interrupted benchmark can continue.

    Raises:
        UsageError: the file belongs to another run.
    """

    # a file with one JSON object per line; the first identifies the run. None: no file.
    path: Path | None
    fingerprint: dict[str, Any]  # of the run
    entries: dict[str, Any] = field(default_factory=dict)  # the measurements by key

    def __post_init__(self) -> None:
        """Read the file, and lock it."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--out: another process measures into {self.path}") from None
        self._file.seek(0)
        whole, _, torn = self._file.read().rpartition(b"\n")
        if torn:  # by a kill
            self._file.truncate(len(whole) + bool(whole))
        if not whole:
            self._write(self.fingerprint)
            return
        try:
            head, *rest = map(json.loads, whole.split(b"\n"))
            self.entries = {entry["key"]: entry["value"] for entry in rest}
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"--out: {self.path} is damaged ({error}); delete it") from None
        _refuse_other(self.path, head, json.loads(json.dumps(self.fingerprint)))

    def _write(self, entry: dict[str, Any]) -> None:
        """Append one line, and sync it to disk."""
        self._file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def put(self, key: str, value: Any) -> None:
        """Keep a measurement."""
        self.entries[key] = value
        if self.path is not None:
            self._write({"key": key, "value": value})

    def close(self) -> None:
        """Close and unlock the file."""
        if self.path is not None:
            self._file.close()


def _refuse_other(path: Path, there: Any, here: dict[str, Any], what: str = "") -> None:
    """Refuse to continue a run with other settings; the error names the first that differs."""
    for name, value in here.items():
        old = there.get(name) if isinstance(there, dict) else None
        if isinstance(value, dict) and isinstance(old, dict):
            _refuse_other(path, old, value, f"{what}{name} ")
        elif old != value:
            raise UsageError(
                f"--out: {path} holds an unfinished run with other {what}{name}: got {value!r}; "
                f"allowed: {old!r}, as there; or delete that file"
            )
