"""What `paradec --version` says."""

import re

import pytest
from support.commands import ROOT

import fairseq_paradec
from fairseq_paradec.cli import version
from fairseq_paradec.cli.main import main
from fairseq_paradec.engine.native import building, library


def test_version_names_the_engine_and_its_library(capsys):
    assert main(["--version"]) == 0
    first, engine, place, others = capsys.readouterr().out.splitlines()
    assert first == f"paradec {fairseq_paradec.__version__}"
    instructions = engine.removeprefix("engine: native, instruction set ")
    assert instructions in [name for name, *_ in building.targets()]
    assert place == f"library: {library.path()}" and library.path().is_file()
    assert others.startswith("Python 3.")


@pytest.mark.fairseq
def test_version_says_why_there_is_no_library(monkeypatch: pytest.MonkeyPatch):
    reason = library.NativeUnavailable("no C++ compiler (c++, g++)")
    monkeypatch.setattr(library, "_load", lambda: reason)
    assert version.lines()[1] == f"engine: torch; the native one is unavailable: {reason}"
    monkeypatch.setattr(version, "is_installed", lambda package: package != "fairseq")
    none = "engine: none without fairseq_paradec[fairseq]"
    assert version.lines()[1] == f"{none}; the native one is unavailable: {reason}"


def test_metadata_agree_on_version_and_pythons():
    setup, makefile = (ROOT / "setup.py").read_text("utf-8"), (ROOT / "Makefile").read_text("utf-8")
    assert f"\nversion: {fairseq_paradec.__version__}\n" in (ROOT / "CITATION.cff").read_text(
        "utf-8"
    )
    assert f"\n## {fairseq_paradec.__version__} " in (ROOT / "CHANGELOG.md").read_text("utf-8")
    # The core's Pythons, and those that fairseq is tested on: make setup and CI have these.
    installation = (ROOT / "docs" / "fairseq.md").read_text("utf-8")
    core = re.findall(r"^\| (3\.\d+) \| yes \|", installation, re.MULTILINE)
    fairseqs = re.findall(r"^\| (3\.\d+) \| yes \| yes \|", installation, re.MULTILINE)
    assert core == re.findall(r"Python :: (3\.\d+)", setup)
    check = makefile.split("if version not in", 1)[1]
    assert core == re.findall(r'"(3\.\d+)"', check.partition(":")[0])
    tested = re.findall(r"\(3, (\d+)\)", makefile.split("TAKES_FAIRSEQ :=", 1)[1].splitlines()[0])
    assert fairseqs == [f"3.{minor}" for minor in tested]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    assert f"python: {fairseqs}".replace("'", '"') in workflow
    assert f'python-version: "{core[-1]}"' in workflow
