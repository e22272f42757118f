"""What `paradec --version` says."""

import pytest

import fairseq_paradec
from fairseq_paradec.cli import version
from fairseq_paradec.cli.main import main
from fairseq_paradec.engine.native import library


def test_version_names_the_engine_and_its_library(capsys):
    assert main(["--version"]) == 0
    first, engine, place, others = capsys.readouterr().out.splitlines()
    assert first == f"paradec {fairseq_paradec.__version__}"
    instructions = engine.removeprefix("engine: native, instruction set ")
    assert instructions in [name for name, *_ in library.targets()]
    assert place == f"library: {library.path()}" and library.path().is_file()
    assert others.startswith("Python 3.")


def test_version_says_why_there_is_no_library(monkeypatch: pytest.MonkeyPatch):
    reason = library.NativeUnavailable("no C++ compiler (c++, g++)")
    monkeypatch.setattr(library, "_load", lambda: reason)
    assert version.lines()[1] == f"engine: torch; the native one is unavailable: {reason}"
