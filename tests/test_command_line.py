"""``paradec``: what it lists, and that help and usage errors need neither torch nor fairseq."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT

from fairseq_paradec.cli import main


def test_every_module_with_a_parser_is_a_command():
    files = Path(main.__file__).parent.glob("*.py")
    modules = {path.stem for path in files if "\ndef run(args" in path.read_text(encoding="utf-8")}
    assert modules <= {name.replace("-", "_") for name in main.COMMANDS}


def test_the_overview_fits_a_screen(capsys):
    assert main.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(main.COMMANDS)


@pytest.mark.parametrize("words", [[], ["demos"], ["--help-me"]])
def test_a_command_that_does_not_exist(words, capsys):
    assert main.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(word in captured.err for word in ("COMMAND", *map(repr, words), *main.COMMANDS))


def test_the_module_is_the_command():
    script = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'fairseq_paradec', '--help'])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *lines, seconds = done.stdout.splitlines()
    assert lines == main.overview().splitlines()
    assert float(seconds) < 0.5
