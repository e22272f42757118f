"""The gates that have held, in memory and in a file that several processes may add to."""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Held:
    """The gates that have held, by the name of their row.

    Args:
        path: a line for each; those of other code do not count. None: no file.

    Attributes:
        rows: what each has counted.
    """

    def __init__(self, path: Path | None) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self._path, self._code = path, code() if path else ""
        self.read()

    def read(self) -> None:
        """Add what the file has."""
        if self._path is None or not self._path.is_file():
            return
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                found = json.loads(line)
            except ValueError:  # a kill has left a part of it
                continue
            if found["code"] == self._code:
                self.rows[found["row"]] = found

    def __contains__(self, row: str) -> bool:
        return row in self.rows

    def put(self, row: str, case: str, dtype: str, counts: Counter[str]) -> None:
        """Keep what a gate of a case and a precision has counted."""
        found = {"row": row, "case": case, "dtype": dtype, "counts": counts, "code": self._code}
        self.rows[row] = found
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{json.dumps(found)}\n".encode())  # whole: lines of processes do not mix
        os.close(file)

    def counts(self) -> dict[tuple[str, str], Counter[str]]:
        """Return the sums by case and precision."""
        found: dict[tuple[str, str], Counter[str]] = {}
        for one in self.rows.values():
            found.setdefault((one["case"], one["dtype"]), Counter()).update(one["counts"])
        return found


def code() -> str:
    """Return a checksum of the package, of the tests' support and of the gates."""
    found = hashlib.sha256()
    folders = [ROOT / name for name in ("fairseq_paradec", "tests/support", "tests/gpu")]
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
