"""``paradec profile breakeven --beam``: a table by hand, a run from flags to the file."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.builders import DEMO

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.cli.main import parse
from fairseq_paradec.decoding.depth import Costs
from fairseq_paradec.engine.native.library import halves
from fairseq_paradec.lab.analysis.break_even import MEASURED, PAYS
from fairseq_paradec.lab.analysis.result_pages import page
from fairseq_paradec.lab.data.table import Table
from fairseq_paradec.lab.profile import asked, breakeven
from fairseq_paradec.lab.settings import settings
from tools.site.published import read_result

BREAKEVEN = ["profile", "breakeven"]
TINY = ["--arch-size", "tiny", "--vocabulary", "50", "--sentences", "2", "--rounds", "2", "--busy"]


def made(*words: str) -> Any:
    """Return the settings of ``paradec profile breakeven``."""
    _, args = parse([*BREAKEVEN, *words])
    return settings(asked.BreakEven, args, engines=["native"])


def test_a_table_by_hand() -> None:
    words = "--arch-size tiny --beam 4 --block-sizes 3 --rates 1 --mark x=self_draft:3:2.2"
    drafting = breakeven.Drafting("native", "self_draft", 0, None, None, [])
    # A round of 3 drafted steps takes as long as 2.75 plain ones, once as 3.75.
    usual, slow = (Costs(1.0, (2.0, c), (4.0, c + 1.5)) for c in (2.0, 3.0))
    cells = breakeven.beam_rows(made(*words.split()), [drafting], [[usual, usual, slow]])
    rows = Table.of(cells).rows
    assert [(row["at"], row["steps_a_pass"]) for row in rows] == [
        (PAYS, 2.75),
        ("x", 2.2),
        (MEASURED, 4.0),
    ]
    gains = [row["speed_up"] for row in rows]
    assert [gain.middle for gain in gains] == pytest.approx([1.0, 0.8, 4 / 2.75])
    assert (gains[1].low, gains[1].high) == pytest.approx((2.2 / 3.75, 0.8))
    assert (rows[0]["ms_a_round"], rows[0]["plain_step_ms"]) == (2750.0, 1000.0)


def test_medians_over_sentences() -> None:
    costs = [Costs(n, (2.0, n + 1), (9.0 - n, n * n)) for n in (1.0, 3.0, 2.0)]
    assert breakeven.middle(costs) == Costs(2.0, (2.0, 3.0), (7.0, 4.0))


def test_a_run_from_flags_to_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights with both drafters; and a checkpoint."""
    monkeypatch.chdir(tmp_path)
    argv = ["--beam", "3", "--engines", "native,native-int8", "--block-sizes", "2,4"]
    assert paradec([*BREAKEVEN, *TINY, *argv, "--rates", "0,1", "--out", "b.json"]) == 0
    rows = json.loads(Path("b.json").read_text("utf-8"))["rows"]
    cells = [(row["engine"], row["decoder"], row["steps_drafted"]) for row in rows]
    ways = [("native", "assisted"), ("native", "self_draft"), ("native-int8", "assisted")]
    ways += [("native-int8", "self_draft")] if halves() else []  # which then drafts in 4 bits
    assert set(cells) == {(*way, depth) for way in ways for depth in (2, 4)}
    assert len(cells) == 3 * len(set(cells))
    steps = {(row["steps_drafted"], row["rate"]): row["steps_a_pass"] for row in rows}
    assert [steps[depth, rate] for depth in (2, 4) for rate in (0.0, 1.0)] == [1, 3, 1, 5]
    assert "When drafted beams pay: tiny, random weights" in page(read_result(Path("b.json")))
    of = [str(DEMO), "--path", str(DEMO / "model.pt"), "--decoder", "self_draft"]
    assert paradec([*BREAKEVEN, *of, *TINY[4:], "--beam", "2", "--engines", "native"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--beam", "1"], "--beam 1 more"),
        (["--beam", "3", "--engines", "torch"], "--engines 'torch' native"),
        (["--beam", "3", "--decoder", "gad"], "--decoder 'gad' self_draft"),
        (["--beam", "3", "--plot", "x.svg"], "--plot excludes --beam"),
        (
            ["--beam", "3", "--engines", "native-int8", "--decoder", "self_draft"],
            "--engines 'native-int8' others",
        ),
    ],
)
def test_a_mistake_is_named(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(breakeven, "halves", lambda: False)  # as where there is no VNNI
    assert paradec([*BREAKEVEN, *TINY, *arguments]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("paradec profile")
    assert all(word in message for word in words.split()), message
