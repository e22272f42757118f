"""``paradec``: what it lists, and that help and usage errors need neither torch nor fairseq."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT

from fairseq_paradec.cli import main

#: What takes a second or more to import.
HEAVY = ("torch", "fairseq", "matplotlib", "rouge_score", "sacremoses")

#: Asks every command for its help, and gives it a flag that it does not have.
ASK_ALL = f"""
import contextlib, io, json, sys, time
sys.argv[0] = "/somewhere/bin/paradec"
from fairseq_paradec.cli import main
found = {{}}
for name in sorted(main.COMMANDS):
    for flag in ("--help", "--no-such-flag"):
        out, start = io.StringIO(), time.process_time()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                status = main.main([name, flag])
            except SystemExit as end:
                status = end.code
        heavy = [module for module in {HEAVY} if module in sys.modules]
        found[f"{{name}} {{flag}}"] = [status, out.getvalue(), heavy, time.process_time() - start]
print(json.dumps(found))
"""


def test_every_module_with_a_parser_is_a_command():
    files = Path(main.__file__).parent.glob("*.py")
    modules = {path.stem for path in files if "\ndef run(args" in path.read_text(encoding="utf-8")}
    assert modules <= {name.replace("-", "_") for name in main.COMMANDS}


def test_the_overview_fits_a_screen(capsys):
    assert main.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    shown = {line.split()[0] for line in lines if line.startswith("  ")}
    assert shown == set(main.COMMANDS) - set(main.STEPS)


@pytest.mark.parametrize("words", [[], ["demos"], ["--help-me"]])
def test_a_command_that_does_not_exist(words, capsys):
    assert main.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(word in captured.err for word in ("COMMAND", *map(repr, words), *main.COMMANDS))


def test_help_and_usage_errors_are_light():
    done = subprocess.run(
        [sys.executable, "-c", ASK_ALL], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for asked, (status, printed, heavy, seconds) in json.loads(done.stdout).items():
        name, flag = asked.rsplit(" ", 1)
        assert status == (0 if flag == "--help" else 2), asked
        assert f"usage: paradec {name} " in printed, asked
        assert heavy == [] and seconds < 0.5, (asked, heavy, seconds)


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
