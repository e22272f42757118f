"""The gates of tests/gpu can fail, and run on no GPU only if asked to."""

import pytest
import torch
from gpu import gates
from support.commands import ROOT, run_python
from support.exact import is_whole

from fairseq_paradec.decoding.acceptance import ExactMatch


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_output_that_is_not_greedys(dtype, monkeypatch):
    row = next(r for r in gates.rows(1) if r["case"].method == "pgj" and r["dtype"] == dtype)
    row |= {"limits": "16", "prefix": "none", "batch": "ragged"}
    assert gates.hold(row, "cpu")["sentences"] == 4
    monkeypatch.setattr(ExactMatch, "commit", lambda self, accepted, drafted, rows: rows)
    with pytest.raises(AssertionError):
        gates.hold(row, "cpu")


@pytest.mark.parametrize(
    ("tokens", "scores", "whole"),
    [
        ([5, 2], [-1.0, -2.0], True),
        ([5, 6], [-1.0, -2.0], False),
        ([5, 2], [-1.0], False),
        ([2, 5, 2], [-1.0, -1.0, -2.0], False),
        ([5, 2], [-1.0, float("nan")], False),
        ([], [], False),
    ],
)
def test_outputs_that_do_not_end_or_have_no_scores(tokens, scores, whole):
    given = torch.tensor(scores)
    hypo = {"tokens": torch.tensor(tokens), "positional_scores": given, "score": given.sum()}
    assert is_whole(hypo, "cpu") == whole and not is_whole(hypo, "cuda")


def test_a_missing_gpu_is_said_before_work_starts(tmp_path):
    words = ["-p", "no:cacheprovider", "--device", "cuda", ROOT / "tests" / "gpu"]
    env = {"CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    code = "import pytest, sys\nsys.dont_write_bytecode = True\nsys.exit(pytest.console_main())"
    done = run_python(code, *words, cwd=tmp_path, env=env)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert "no CUDA device" in line and "nothing was run" in line
    assert "passed" not in done.stdout and list(tmp_path.iterdir()) == []
