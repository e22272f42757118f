"""``paradec-modules``: the parts of a decoder's time add up, and none is counted twice."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from support.commands import DEMO

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure import modules
from fairseq_paradec.measure.clock import Clock


class StandingClock(Clock):
    """A clock that stands still unless it is moved."""

    time = 0.0

    def now(self):
        return self.time


def test_calls_inside_calls_are_counted_once():
    def scorer():
        """One whose methods take a known time."""
        one = SimpleNamespace(log_probs=lambda: None, encode=lambda: (take(10), one.start()))
        one.start, one.fill, one.step, one.choose = (lambda s=s: take(s) for s in (5, 20, 30, 2))
        return one

    def take(seconds):
        clock.time += seconds

    def translate(sentences):
        generator.scorer.encode()
        generator.draft_scorer.start()
        for _ in range(2):
            generator.draft_scorer.fill()
            generator.projection.choose()
            generator.scorer.step()
        generator.scorer.choose()
        take(15)

    generator = SimpleNamespace(scorer=scorer(), draft_scorer=scorer(), projection=scorer())
    clock = StandingClock(generator, modules.PARTS)
    assert modules.profile(SimpleNamespace(translate=translate), clock, 0) == {
        "encoder and keys": 15,
        "drafter's encoder and keys": 5,
        "drafter's decoder": 40,
        "drafter's vocabulary": 4,
        "decoder": 60,
        "vocabulary": 2,
        "rest": 15,
        "all": 141,
    }


def test_the_table(tmp_path, capsys):
    out = tmp_path / "modules.json"
    command = [str(DEMO), "--path", str(DEMO / "model.pt"), "--decoder", "greedy", "--decoder",
               "quick=pgj --block-size 3", "--sentences", "3", "--rounds", "2", "--busy",
               "--out", str(out)]  # fmt: skip
    assert paradec(["modules", *command]) == 0
    greedy, quick = json.loads(out.read_text())["rows"]
    assert (greedy["decoder"], quick["decoder"]) == ("greedy", "quick")
    for row in (greedy, quick):
        parts = [row[f"{column}, ms"] for column in (*modules.PARTS, "rest")]
        assert row["all, ms"] == pytest.approx(sum(parts), abs=0.05)
        assert row["decoder, ms"] > 0 and row["drafter's decoder, ms"] == 0
    assert paradec(["modules", *command, "--decoder", "beam"]) == 2
    assert "--decoder: got 'beam'" in capsys.readouterr().err
