"""Blocks as Stern et al. 2018 count them, and their Figure 4: speed-up over mean accepted block."""

from __future__ import annotations

import json

import pytest
from support.commands import ROOT

from fairseq_paradec.analysis.benchmark_plot import series
from fairseq_paradec.analysis.benchmark_tables import (
    BEAM,
    GREEDY,
    OWN_GREEDY,
    block_points,
    tables,
)
from fairseq_paradec.analysis.blocks import block_sizes
from fairseq_paradec.analysis.timing import Spread
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure import documents


@pytest.mark.parametrize(
    ("num_accepted", "num_tokens", "sizes"),
    [
        # the paper's section 7.4; the last pass accepts a drafted </s>
        ([0, 9, 4, 3, 9, 1, 2], 34, [10, 5, 4, 10, 2, 3]),
        ([0], 1, [1]),  # </s> at once
        ([0, 0, 0], 3, [1, 1, 1]),  # nothing accepted: greedy search
        ([0, 2], 4, [3, 1]),  # </s> is the model's own
        ([0, 2], 3, [3]),  # </s> was drafted
        ([0, 5, 5, 5], 18, [6, 6, 6]),  # 1 + ceil((18 - 1) / 6) passes
    ],
)
def test_block_sizes(num_accepted, num_tokens, sizes):
    assert block_sizes(num_accepted, num_tokens) == sizes


# ---- Figure 4 ----------------------------------------------------------------------------------

#: label -> seconds of two sentences in two rounds, promise, passes, tokens, blocks
SYSTEMS = {
    BEAM: ([[4, 4], [4, 4]], "beam search", 20, 20, None),
    GREEDY: ([[3, 3], [4, 2]], "exact", 20, 20, None),
    OWN_GREEDY: ([[2, 2], [1, 1]], "exact", 20, 20, None),
    "regular 8": ([[1, 1], [1, 1]], "exact", 10, 20, 8),
    "regular 4": ([[1, 3], [1, 1]], "exact", 14, 20, 12),
    "top-2": ([[1, 1], [1, 1]], "relaxed", 9, 18, 6),
    "both 4": ([[0.5, 0.5], [0.5, 0.5]], "other model", 8, 24, 6),
}


def document(**changes):
    """A benchmark of two sentences."""
    scores = {"BLEU": 30.0, "chrF": 50.0}
    no_difference = {metric: [0.0, 0.0, 0.0] for metric in scores}
    same = {"sentences": 2, "identical": 2, "ties": 0, "beyond ties": 0}
    systems = [
        {
            "label": name, "command": "any", "promise": promise, "parameters": 7, "dtype": "fp32",
            "threads": None, "passes": passes, "tokens": tokens, "scores": scores,
            "differences": {BEAM: no_difference, GREEDY: no_difference}, "agreement": {"1": same},
            "memory": {"1": 1.0}, "changed": 0, **({} if blocks is None else {"blocks": blocks}),
        }
        for name, (_, promise, passes, tokens, blocks) in SYSTEMS.items()
    ]  # fmt: skip
    about = {
        "data": "DATA", "path": "model.pt", "subset": "test", "reference": "DATA", "sentences": 2,
        "timed sentences": 2, "rounds": 2, "dtype": "fp32", "device": "cpu", "threads": [1],
        "limits": {}, "busy cores": 0.0,
    }  # fmt: skip
    made_by = {"processor": "p", "cores": 2, "threads": 1, "accelerator": "none"}
    one = {
        "schema": documents.BENCHMARK, "version": 1, "title": "Made up", "notes": [],
        "command": "python", "date": "2026-01-02", "machine": made_by,
        "versions": {"python": "3", "torch": "2"}, "setting": about,
        "signatures": {"BLEU": "b", "chrF": "c"}, "systems": systems, "source_lengths": [5, 6],
        "seconds": {
            "latency": {"1": {name: given[0] for name, given in SYSTEMS.items()}},
            "throughput": {},
        },
    } | changes  # fmt: skip
    return one | {"tables": tables(one)}


def test_points_by_hand():
    points = {point.name: point for point in block_points(document())}
    assert list(points) == [OWN_GREEDY, "regular 8", "regular 4", "top-2", "both 4"]
    assert [point.block for point in points.values()] == [1, 20 / 8, 20 / 12, 3, 4]
    assert [point.passes for point in points.values()] == [10, 5, 7, 4.5, 4]
    assert points["regular 4"].label == "exact" and points["both 4"].label == "other model"
    assert points["regular 4"].speed_ups == {
        OWN_GREEDY: Spread(1, 1, 1), GREEDY: Spread(2.25, 1.5, 3),
    }  # fmt: skip
    assert points["both 4"].speed_ups[OWN_GREEDY] == Spread(3, 2, 4)
    lines = {n: [p.name for _, p in ones] for n, ones in series(block_points(document())).items()}
    assert lines == {
        "greedy": ["greedy"], "regular": ["regular 4", "regular 8"], "top-2": ["top-2"],
        "both 4": ["both 4"],
    }  # fmt: skip
    rows = {row["decoder"]: row for row in document()["tables"][0]["rows"]}
    assert rows["regular 4"]["mean accepted block"] == 1.67
    assert rows[GREEDY]["mean accepted block"] == "-"


def figure(capsys, *arguments):
    status = paradec(["analyse", "blocks", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def write(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_command_writes_a_table_and_draws_it(tmp_path, capsys):
    benchmark = write(tmp_path / "b.json", document())
    out, plot = tmp_path / "new" / "f.json", tmp_path / "new" / "f.png"
    status, text, _ = figure(capsys, benchmark, "--out", out, "--plot", plot)
    assert status == 0 and "regular 4" in text and "Made up: batch 1, fp32, cpu, 1 thread" in text
    assert plot.read_bytes().startswith(b"\x89PNG")
    table = json.loads(out.read_text(encoding="utf-8"))
    assert table["rows"][2] == {
        "decoder": "regular 4", "label": "exact", "mean accepted block": 1.67,
        "passes per sentence": 7.0, "x our greedy": "1.00 (1.00-1.00)",
        "x fairseq greedy": "2.25 (1.50-3.00)",
    }  # fmt: skip
    # As translation and images in the paper's figure: side by side.
    second = write(tmp_path / "images.json", document(title="Images"))
    assert figure(capsys, benchmark, second, "--out", out, "--plot", plot)[0] == 0
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["benchmark"] for row in rows] == ["Made up"] * 5 + ["Images"] * 5


def test_mistakes_are_named(tmp_path, capsys):
    good = write(tmp_path / "good.json", document())
    doctored = document()
    doctored["systems"][3]["blocks"] = 4
    for arguments, words in (
        ([tmp_path / "none"], "BENCHMARK: got"),
        ([write(tmp_path / "list.json", [1])], "allowed: what paradec benchmark wrote"),
        ([write(tmp_path / "doctored.json", doctored)], "not what its raw samples say"),
        ([ROOT / "results" / "benchmark-tiny.json"], "one with a --decoder 'blockwise ...'"),
        ([good, "--plot", tmp_path / "f.pdf"], "--plot: got"),
        ([good, good], "'Made up' is twice"),
    ):
        status, out, err = figure(capsys, *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("paradec analyse: error: ") and words in err
