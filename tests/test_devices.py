"""The gates of tests/gpu can fail, run on no GPU only if asked to, and write a table that renders.

And what they do not judge: how far outputs in low precision may be from fairseq's.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
from gpu import gates
from support.builders import Limits, batch, built, decode
from support.commands import ROOT

from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.decoding.audit import Audit

PGJ = gates.Case("pgj", 0, "fp32", "random")


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize(
    ("dtype", "flags"),
    [(torch.float16, {"decoding": "greedy"}), (torch.bfloat16, {"decoding": "pgj"})],
)
def test_low_precision_leaves_fairseqs_output_where_two_tokens_are_close(device, dtype, flags):
    task, model = built("learned_positions", torch.float32)
    model = copy.deepcopy(model).to(device, dtype)
    sample = gates.on(device, batch(task, [9, 6, 4, 2]))
    hypos = decode(task, [model], sample, Limits(), **flags)
    audit = Audit([model], task.target_dictionary, max_len_b=Limits().max_len_b)
    verdicts = audit.compare(sample, [[hypo] for hypo in hypos])
    # In bf16 logits of size 30 are 0.125 apart, and a pass rounds in several places.
    assert all(verdict["identical"] or verdict["gap"] < 1.0 for verdict in verdicts)
    assert sum(verdict["identical"] for verdict in verdicts) >= 2


def test_an_output_that_is_not_greedys(monkeypatch):
    row, complaints = gates.hold(PGJ, "cpu", True)
    assert complaints == [] and row["beyond ties"] == 0
    assert row["identical alone"] + row["identical in batch"] + row["ties"] == 2 * row["sentences"]
    monkeypatch.setattr(ExactMatch, "commit", lambda self, accepted, drafted, rows: rows)
    row, complaints = gates.hold(PGJ, "cpu", True)
    assert row["beyond ties"] > 10
    assert any("beyond ties" in complaint for complaint in complaints)


def test_scores_that_are_not_fairseqs(monkeypatch):
    choose = gates.score_gaps
    monkeypatch.setattr(gates, "score_gaps", lambda *both: [gap + 1e-3 for gap in choose(*both)])
    complaints = gates.hold(PGJ, "cpu", True)[1]
    assert len(complaints) == 1 and "1.0e-03 from fairseq's; allowed: below 1e-04" in complaints[0]


def hypo(tokens, scores):
    scores = torch.tensor(scores)
    return [{"tokens": torch.tensor(tokens), "positional_scores": scores, "score": scores.sum()}]


def test_where_nobody_judges_a_tie_is_one_score_for_two_tokens():
    same = hypo([5, 2], [-1.0, -2.0])
    ours = [hypo([5, 6, 2], [-1.0, -2.0, -1.0]), same, hypo([7, 2], [-1.0, -1.0])]
    theirs = [hypo([5, 7, 8, 2], [-1.0, -2.00001, -3.0, -1.0]), same, hypo([8, 2], [-1.1, -1.0])]
    assert gates.alike(ours, theirs) == {"sentences": 3, "identical": 1, "ties": 1}


def test_outputs_that_do_not_end_or_have_no_scores():
    whole = hypo([5, 2], [-1.0, -2.0])
    assert gates.is_whole(whole, 2, "cpu") and not gates.is_whole(whole, 2, "cuda")
    for tokens, scores in (
        ([5, 6], [-1.0, -2.0]),
        ([2, 5, 2], [-1.0, -1.0, -2.0]),
        ([], []),
        ([5, 2], [-1.0]),
        ([5, 2], [-1.0, float("nan")]),
        ([5, 2], [-1.0, -float("inf")]),
    ):
        assert not gates.is_whole(hypo(tokens, scores), 2, "cpu")


def test_what_is_judged_in_which_precision():
    for precision, complaints in (("fp32", 3), ("bf16", 0)):
        row = {"precision": precision, "sentences": 4, "as alone": 4, "beyond ties": 0}
        assert list(gates.broken(row, 8, 1e-5, True)) == []
        assert "1 of 8 outputs do not end" in next(gates.broken(row, 7, 1e-5, True))
        bad = row | {"as alone": 3, "beyond ties": 1}
        assert len(list(gates.broken(bad, 8, 1.0, True))) == complaints


def test_a_missing_gpu_is_said_before_work_starts(tmp_path):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--device", "cuda"]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    command.append(str(ROOT / "tests" / "gpu"))
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "no CUDA device" in line and "nothing was run" in line
    assert "passed" not in done.stdout and list(tmp_path.iterdir()) == []
