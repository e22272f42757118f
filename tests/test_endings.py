"""How commands end: reports that cannot be written, failed audits, signals, closed pipes."""

import argparse
import os
import resource
import signal
import threading

import pytest
import torch
from support.builders import Limits, batch, built
from support.commands import DEMO, PLUGIN, ROOT, fairseq, lines_of, run_python

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
