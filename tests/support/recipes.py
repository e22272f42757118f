"""Running the data recipes, and files for them."""

import fcntl
import gzip
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.commands import ROOT

SCRIPTS = ROOT / "scripts"


def arguments(name: str, *args: object, python: str = sys.executable) -> dict[str, Any]:
    """What subprocess needs for a recipe."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LOGLEVEL")}
    return {
        "args": ["bash", str(SCRIPTS / f"{name}.sh"), *map(str, args)],
        "env": env | {"PYTHON": python, "OMP_NUM_THREADS": "1"},
        "text": True,
        "stdin": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
    }


def run(name: str, *args: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    given = arguments(name, *args)
    return subprocess.run(**given, cwd=cwd, stdout=subprocess.PIPE, timeout=300)


def succeed(name: str, *args: object, cwd: Path | None = None, status: int = 0) -> str:
    result = run(name, *args, cwd=cwd)
    assert result.returncode == status, result.stderr
    return result.stderr


def refuse(name: str, *args: object) -> str:
    """Run what must be refused; return the one line that says why."""
    said = succeed(name, *args, status=2)
    assert said.startswith(f"{name}: ") and said.count("\n") == 1
    return said


def kill_at(call: str, name: str, *args: object) -> str:
    """Run a recipe until it calls Python with these arguments; kill it and its children there.

    It is the call itself that kills, in the middle of its output: when, is no matter of luck.
    The folder of the recipe must be the last argument.
    """
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "python"
        python.write_text(
            "#!/bin/sh\n"
            f'case " $* " in *" {call} "*) printf "half a li"; kill -KILL 0 ;; esac\n'
            f'exec "{sys.executable}" "$@"\n'
        )
        python.chmod(0o755)
        given = arguments(name, *args, python=str(python))
        process = subprocess.Popen(**given, start_new_session=True)
        _, said = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, said
    # The children hold the lock until they, too, have gone.
    with (Path(str(args[-1])) / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    return said


def write(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def read(path: Path) -> list[str]:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that a recipe made, downloads and its own notes apart."""
    names = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {k: v.read_bytes() for k, v in names.items() if not k.startswith((".", "download/"))}
