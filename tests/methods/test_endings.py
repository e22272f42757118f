"""How commands end: reports that cannot be written, failed audits, signals, closed pipes."""

import argparse
import itertools
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from support.builders import Limits, batch, built
from support.commands import DEMO, PLUGIN, ROOT, environment, fairseq, lines_of, run_python

from fairseq_paradec.methods.reports import Reports
from fairseq_paradec.output import open_streams

GIVEN = (DEMO, "--user-dir", PLUGIN, "--path", DEMO / "model.pt", "--cpu", "--decoding", "hgj")


@pytest.mark.parametrize("kind", ["stats", "trace"])
@pytest.mark.parametrize("where", ["No space", "too large", "Broken pipe"])
def test_a_report_that_cannot_be_written_is_dropped(kind, where, tmp_path, caplog, monkeypatch):
    """The outputs stay, one line says why, and what was written before can be read."""
    monkeypatch.setattr("fairseq_paradec.methods.reports.FAILED", failed := set())
    task, model = built("share_all")
    path = "/dev/full" if where == "No space" else str(tmp_path / "report.jsonl")
    if where == "Broken pipe":
        os.mkfifo(path)
        threading.Thread(target=lambda: open(path).close()).start()
    flags = Limits().flags() | {"decoding": "pgj"}
    made = task.build_generator([model], argparse.Namespace(**flags, **{f"{kind}_file": path}))
    plain = task.build_generator([model], argparse.Namespace(**flags))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for seed in range(5):
            if where == "too large" and seed == 1:
                most = 3 * os.path.getsize(path) // 2
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            sample = batch(task, [6, 3], seed=seed)
            pair = (task.inference_step(one, [model], sample) for one in (made, plain))
            assert all(torch.equal(a["tokens"], b["tokens"]) for (a,), (b,) in zip(*pair))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (said,) = (r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage())
    assert f"--{kind}-file: {path}" in said and where in said and failed == {f"--{kind}-file"}
    if where == "too large":
        text = open(path).read()
        assert text.endswith("}\n") and 2 <= text.count("\n") < 10


HERE = f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n"
FULL = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
CLOSED = "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1)"
DIES = f"""{HERE}
from fairseq_paradec.plugin.tasks.translation import ParallelTranslationTask as Task
original, left = Task.inference_step, [4]
def step(*args, **kwargs):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), 15)
    return original(*args, **kwargs)
Task.inference_step = step
"""
WRONG = f"""{HERE}
from fairseq_paradec.decoding.acceptance import ExactMatch
ExactMatch.commit = lambda self, accepted, drafted, rows: rows
ExactMatch.known_to_library = False
"""
ONE = ("--batch-size", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "before", "status", "count", "said"),
    [
        (("--stats-file", "/dev/full"), "", 1, 100, "--stats-file: /dev/full"),
        (("--audit",), "", 0, 100, "audit: 100 of 100"),
        (("--audit",), WRONG, 1, 100, "beyond ties"),
        (ONE, DIES, -signal.SIGTERM, 3, ""),
        ((), CLOSED, 128 + signal.SIGPIPE, 0, ""),
        ((), FULL, 2, 0, "standard output cannot be written: its disk is full"),
        (("--block-size", 0), "", 2, 0, "--block-size: got 0"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "interactive"])
def test_a_command_ends_with_a_status_and_whole_lines(command, flags, before, status, count, said):
    """Under LOGLEVEL=ERROR, where nothing but errors and what was asked for is said."""
    more = (*flags, "-s", "en", "-t", "de") if command == "interactive" else flags
    text, env = "ein hund läuft .\n" * 100, {"LOGLEVEL": "ERROR"}
    result = fairseq(command, *GIVEN, *more, before=before, stdin=text, env=env)
    assert result.returncode == status, result.stderr
    assert len(lines_of(result.stdout, "P")) == count
    if status >= 0:  # a signal kills in the midst of workers
        assert said in result.stderr and result.stderr.count("\n") <= 1


@pytest.mark.slow
def test_paradec_prints_whole_lines_and_ends_with_its_reader():
    run = HERE + "from fairseq_paradec.cli import arguments\n{}\nsys.exit(arguments.run('x', f))"
    dies = "def f():\n    print('one')\n    os.kill(os.getpid(), 15)"
    result = run_python(run.format(dies))
    assert (result.returncode, result.stdout) == (-signal.SIGTERM, "one\n")
    prints = f"{CLOSED}\ndef f():\n    print('one')\n    return 0"
    result = run_python(run.format(prints))
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")


CLOSING = ["<&-", ">&-", "2>&-"]
#: Standard streams that a shell closes or that write to a full disk, by what it is told.
REDIRECTED = [
    *(" ".join(closed) for n in (1, 2, 3) for closed in itertools.combinations(CLOSING, n)),
    ">/dev/full",
    "2>/dev/full",
    ">/dev/full 2>/dev/full",
]
#: Commands that end at once, and their exit status.
QUICK = {"--help": 0, "tranlate": 2, "translate": 2, "trace no-such": 2, "trace --help": 0}


def shell(command: str, redirected: str) -> subprocess.CompletedProcess[str]:
    """Run paradec in a shell, with its streams as the shell is told."""
    program = str(Path(sys.prefix) / "bin" / "paradec")
    line = f"{program} {command} {redirected}"
    return subprocess.run(
        [str(shutil.which("bash")), "-c", line],
        env=environment(),
        input="A dog runs.\n",
        capture_output=True,
        text=True,
    )


def check_status(command: str, redirected: str, status: int) -> None:
    """Check a command's exit status, and that it ends without a trace."""
    done = shell(command, redirected)
    said = (command, redirected, done.stderr)
    assert done.returncode == (2 if " >/dev/full" in f" {redirected}" else status), said
    for trace in ("Traceback", "Logging error", "Exception ignored"):
        assert trace not in done.stdout + done.stderr, said
    if "2>" not in redirected and status == 2:
        assert "error: " in done.stderr, said


@pytest.mark.slow
@pytest.mark.parametrize("redirected", REDIRECTED)
def test_closed_streams_and_full_disks_change_no_exit_status(redirected):
    """But that of a command whose output is lost on a full disk."""
    for command, status in QUICK.items():
        check_status(command, redirected, status)


@pytest.mark.slow
@pytest.mark.parametrize("redirected", CLOSING + ["<&- >&- 2>&-"])
def test_commands_that_load_a_model_do_without_standard_streams(redirected):
    for command in (
        "--version",
        f"doctor {DEMO}",
        f"translate --model {DEMO} --decoding greedy",
        f"translate --model {DEMO} --decoding greedy --text a",
    ):
        check_status(command, redirected, 0)


@pytest.mark.slow
@pytest.mark.parametrize("redirected", CLOSING)
def test_fairseqs_commands_do_without_standard_streams(redirected):
    number = {"<&-": 0, ">&-": 1, "2>&-": 2}[redirected]
    name = ("stdin", "stdout", "stderr")[number]
    code = f"import os, sys; os.close({number}); sys.{name} = sys.__{name}__ = None"
    for decoding, status in (("greedy", 0), ("gready", 2)):
        given = (DEMO, "--user-dir", PLUGIN, "--path", DEMO / "model.pt", "--cpu")
        given += ("--decoding", decoding, "-s", "en", "-t", "de")
        done = fairseq("interactive", *given, stdin="A dog runs.\n", before=code)
        assert done.returncode == status and "Traceback" not in done.stderr, done.stderr


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path):
    path = tmp_path / "file"
    child = os.fork()
    if child == 0:
        os.close(1)
        sys.stdout = None
        open_streams()
        with open(path, "w") as file:
            print("for nobody", flush=True)
            os._exit(os.system("echo for nobody") or file.fileno() <= 2)
    assert os.waitpid(child, 0)[1] == 0 and path.read_text() == ""


def test_the_last_report_does_not_complain_of_a_closed_log(tmp_path, capsys, caplog, monkeypatch):
    """At the interpreter's end its stream may be closed, and standard error, too."""
    task, model = built("share_all")
    made = task.build_generator([model], argparse.Namespace(**Limits().flags(), decoding="greedy"))
    task.inference_step(made, [model], batch(task, [3]))
    log = open(tmp_path / "log", "w")
    handler = logging.StreamHandler(log)
    logging.getLogger("fairseq_paradec").addHandler(handler)
    try:
        log.close()
        made.decoder.reports.close()
        assert capsys.readouterr().err == ""
        logging.getLogger("fairseq_paradec").error("the log still complains of others")
        assert "Logging error" in capsys.readouterr().err
    finally:
        logging.getLogger("fairseq_paradec").removeHandler(handler)
    caplog.set_level(logging.ERROR, logger="fairseq_paradec.methods.reports")
    for stream in (None, log):
        monkeypatch.setattr(sys, "stderr", stream)
        Reports._conclude(argparse.Namespace(beyond=0, closing_line=lambda: "audit"))
