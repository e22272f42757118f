"""What `make setup` says where it cannot begin: one line, with all that is to be installed."""

import os
import shlex
import subprocess
import sys

import pytest
from support.commands import ROOT


@pytest.fixture
def setup(tmp_path):
    """Return what runs the Makefile in a folder of its own, and gives what it complains of."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text("utf-8"), "utf-8")
    for name in ("requirements.txt", "setup.py"):
        (tmp_path / name).touch()
    (tmp_path / "fairseq_paradec").mkdir()
    # These tests may run under make themselves.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}

    def run(before: str = "", python: str | None = None, **env: str) -> list[str]:
        """Run it; BEFORE is Python, which changes what the interpreter says of the machine."""
        if python is None:
            python = "./it's a python"
            command = f"{shlex.quote(sys.executable)} -c {shlex.quote(before)}"
            (tmp_path / python).write_text(f'#!/bin/sh\nexec {command}"$2"\n')
            (tmp_path / python).chmod(0o755)
        done = subprocess.run(
            ["make", "setup", f"PYTHON={python}"],
            cwd=tmp_path,
            env=outer | {"CXX": ""} | env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and not (tmp_path / ".venv").exists(), done.stdout
        return [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]

    return run


@pytest.mark.parametrize(
    ("minor", "why"), [(10, ""), (13, ", on which fairseq is not tested"), (9, "")]
)
def test_another_python_is_refused(setup, minor, why):
    change = f"sys.version_info, sys.executable = (3, {minor}, 5), '/usr/bin/python'"
    (said,) = setup(f"import sys; {change}\n")
    assert said == (
        f"setup: /usr/bin/python is Python 3.{minor}{why}; 3.11 or 3.12 is needed: "
        "make PYTHON=/path/to/python3.12"
    )


def test_no_python_is_named(setup):
    (said,) = setup(python="no/python")
    assert said.startswith("setup: no interpreter 'no/python': install Python 3.11 or 3.12")


def test_all_that_is_missing_is_named_at_once(setup):
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (said,) = setup(
        "import shutil, sys, sysconfig; sys.modules['ensurepip'] = None; "
        "shutil.which = lambda name: None; sysconfig.get_paths = lambda: {'include': 'none'}\n"
    )
    assert said == (
        f"setup: Python {version} lacks the module ensurepip; there is no C++ compiler (c++, g++, "
        f"clang++), nor does CXX name one; the headers of Python {version} are missing "
        "(none/Python.h): install what is missing (Debian, Ubuntu: apt-get install "
        f"python{version}-venv g++ python{version}-dev)"
    )


def test_a_compiler_that_is_not_there_is_named(setup):
    (said,) = setup(CXX="no-compiler -O2")
    assert "there is no C++ compiler (no-compiler)" in said and "apt-get install g++)" in said
