"""Blocks as Stern et al. 2018 count them, and their Figure 4: speed-up over mean accepted block."""

from __future__ import annotations

import json

import pytest
from support.commands import ROOT
from support.tables import write

from fairseq_paradec.analysis.benchmark_plot import series
from fairseq_paradec.analysis.benchmark_tables import BEAM, GREEDY, OWN_GREEDY, block_points, tables
from fairseq_paradec.analysis.blocks import block_sizes
from fairseq_paradec.analysis.timing import Spread
from fairseq_paradec.cli.main import main as paradec


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
    """A benchmark of two sentences, which has all else from a stored one."""
    stored = json.loads((ROOT / "results" / "benchmark-tiny.json").read_text(encoding="utf-8"))
    none = {"BLEU": [0.0] * 3, "chrF": [0.0] * 3}
    same = stored["systems"][0] | {
        "agreement": {"1": {"sentences": 2, "identical": 2, "ties": 0, "beyond ties": 0}},
        "memory": {"1": 1.0}, "differences": {BEAM: none, GREEDY: none},
    }  # fmt: skip
    systems = []
    for label, (_, promise, passes, tokens, blocks) in SYSTEMS.items():
        one = {"label": label, "promise": promise, "passes": passes, "tokens": tokens}
        systems.append(same | one | ({} if blocks is None else {"blocks": blocks}))
    setting = {"sentences": 2, "timed sentences": 2, "rounds": 2, "threads": [1]}
    latency = {"1": {label: given[0] for label, given in SYSTEMS.items()}}
    found = stored | {
        "title": "Made up", "setting": stored["setting"] | setting, "systems": systems,
        "source_lengths": [5, 6], "seconds": {"latency": latency, "throughput": {}},
    } | changes  # fmt: skip
    return found | {"tables": tables(found)}


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
    return status, *capsys.readouterr()


def test_the_command_writes_a_table_and_draws_it(tmp_path, capsys):
    benchmark = write(tmp_path / "b.json", json.dumps(document()))
    out, plot = tmp_path / "new" / "f.json", tmp_path / "new" / "f.png"
    assert figure(capsys, benchmark, "--out", out, "--plot", plot)[0] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    table = json.loads(out.read_text(encoding="utf-8"))
    assert table["rows"][2] == {
        "decoder": "regular 4", "label": "exact", "mean accepted block": 1.67,
        "passes per sentence": 7.0, "x our greedy": "1.00 (1.00-1.00)",
        "x fairseq greedy": "2.25 (1.50-3.00)",
    }  # fmt: skip
    # As translation and images in the paper's figure: side by side.
    second = write(tmp_path / "images.json", json.dumps(document(title="Images")))
    assert figure(capsys, benchmark, second, "--out", out, "--plot", plot)[0] == 0
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["benchmark"] for row in rows] == ["Made up"] * 5 + ["Images"] * 5
    doctored = document()
    doctored["systems"][3]["blocks"] = 4
    for arguments, words in (
        ([write(tmp_path / "bad.json", json.dumps(doctored))], "not what its raw samples say"),
        ([ROOT / "results" / "benchmark-tiny.json"], "one with a --decoder 'blockwise ...'"),
        ([benchmark, benchmark], "'Made up' is twice"),
    ):
        status, _, err = figure(capsys, *arguments)
        assert status == 2 and err.startswith("paradec analyse: error: ") and words in err
