"""``paradec profile breakeven``: given drafts, numbers of passes, what is between points."""

import json
import math

import pytest
import torch
from support.builders import collate
from support.commands import DEMO

from fairseq_paradec.cli.arguments import ARCH_SIZES
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.cli.main import parse
from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.decoding.assistant import AssistantDrafter
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.analysis.break_even import (
    OWN,
    PAYS,
    PAYS_BELOW,
    PAYS_NOWHERE,
    PREDICTED,
    Point,
    at,
    pays_from,
)
from fairseq_paradec.lab.analysis.result_pages import page
from fairseq_paradec.lab.profile import asked, breakeven, oracle
from fairseq_paradec.lab.profile.passes import models
from fairseq_paradec.lab.profile.passes.models import random_pair
from fairseq_paradec.lab.settings import settings
from fairseq_paradec.model_checks import TRANSFORMER
from tools.site.published import read_result

BREAKEVEN = ["profile", "breakeven"]
TINY = ["--arch-size", "tiny", "--vocabulary", "50", "--sentences", "3", "--rounds", "2", "--busy"]


def made(*words):
    """Return the settings of ``paradec profile breakeven``, on the native engine in fp32."""
    _, args = parse([*BREAKEVEN, *words])
    return settings(asked.BreakEven, args, engines=["native"])


def test_right_and_wrong_words():
    words, text = range(4, 7), [4, 5, 6, 2] * 50
    none, half, most, whole = (oracle.with_errors(text, r, words, 1) for r in (0, 0.5, 0.8, 1))
    assert whole == text and all(a != b and a in words for a, b in zip(none, text))
    assert 80 < sum(a == b for a, b in zip(half, text)) < 120
    assert all(b == c for a, b, c in zip(half, most, text) if a == c)


@torch.inference_mode()
def test_given_drafts_and_the_drafters_cache(monkeypatch):
    """The verifier as its own drafter drafts greedy's tokens, whatever was rejected before."""
    pair = random_pair("tiny", 50, 1)
    pair = pair._replace(helpers={TRANSFORMER: pair.model})
    given = "--arch-size tiny --sentences 3 --decoder assisted --block-sizes 4 --rates 0.5"
    given += " --drafter-dtype fp32"  # so that they are its own
    args = made(*given.split())
    drafters, samples = breakeven.find_drafters(pair, args), breakeven.make_samples(pair, args)
    greedy, drafting = breakeven.make_decoders(pair, drafters, args)
    seen = []
    for kind in (oracle.OracleDrafter, AssistantDrafter):

        def spy(self, rows, kind=kind, propose=kind.propose):
            proposal = propose(self, rows)
            both = zip(rows, proposal.tokens, strict=True)
            seen.extend((kind, len(row.source), len(row.tokens), draft) for row, draft in both)
            return proposal

        monkeypatch.setattr(kind, "propose", spy)
    bench = breakeven.Bench(pair, samples, [greedy, drafting])
    assert len(seen) == 2 * drafting.passes > 2 * drafting.tokens / 5
    drafting.oracle[:] = drafting.texts[::-1]  # in one batch, the longest first
    whole = collate(pair.task, [sample["net_input"]["src_tokens"][0] for sample in samples])
    pair.task.inference_step(drafting.generator, [pair.model], whole)
    assert len(seen) == 4 * drafting.passes
    right, given = (
        {len(t): t for t in each} for each in (bench.right["native"].values(), drafting.texts)
    )
    assert sorted(right) == [8, 16, 24] and right != given
    for kind, n, start, draft in seen:
        text = (given if kind is oracle.OracleDrafter else right)[n]
        assert draft == text[start : start + len(draft)]
        assert len(draft) == min(4, n - 1 - start)
    monkeypatch.setattr(ExactMatch, "commit", lambda self, accepted, drafted, scored: scored)
    with pytest.raises(UsageError, match="--engines: got 'native'.*sentence 2 differs"):
        bench.time(drafting, 1)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_the_dtype_of_drafts_is_the_flags(dtype):
    given = f"--arch-size tiny --decoder self_draft --block-sizes 4 --drafter-dtype {dtype}"
    pair, args = random_pair("tiny", 50, 1), made(*given.split())
    drafters = breakeven.find_drafters(pair, args)
    _, *compared = breakeven.make_decoders(pair, drafters, args)
    assert compared and {drafting.generator.config.drafter_dtype for drafting in compared} == {
        dtype
    }


def test_a_run_from_flags_to_page(tmp_path, capsys, monkeypatch):
    argv = [str(DEMO), "--path", str(DEMO / "model.pt"), "--drafter-path", str(DEMO / "drafter.pt")]
    assert paradec([*BREAKEVEN, *argv, *TINY[4:], "--block-sizes", "8"]) == 0
    assert "| native | gad | 8 | own drafts, predicted | - |" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    argv = ["--engines", "native,torch", "--block-sizes", "1,4", "--rates", "0,0.9,1"]
    argv += ["--drafter-width", "32", "--mark", "x=gad:4:2.5", "--mark", "far=gad:4:9"]
    assert paradec([*BREAKEVEN, *TINY, *argv, "--out", "b.json", "--plot", "b.svg"]) == 0
    rows = json.loads((tmp_path / "b.json").read_text("utf-8"))["rows"]
    assert len([row for row in rows if row["rate"] is not None]) == 2 * 4 * 2 * 3
    for row in rows:
        size, first = row["block_size"], row["decoder"] == "blockwise"
        passes = [first + math.ceil((n - first) / (size + (not first))) for n in (8, 16, 24)]
        exact = {0: 1.0, 1: round(48 / sum(passes), 3)}
        assert row["tokens_a_pass"] == exact.get(row["rate"], row["tokens_a_pass"])
    marks = [(row["at"], row["speed_up"] is None) for row in rows if row["at"] in ("x", "far")]
    assert marks == [("x", False), ("far", True)] * 2
    text = page(read_result(tmp_path / "b.json"), "b.svg")
    assert "![When drafting pays: tiny, random weights](b.svg)" in text
    assert "4+1 layers, d=32, ffn 64, 1 heads" in text and "random weights never say </s>" in text


def test_a_smaller_model_drafts_for_a_larger_one(capsys, monkeypatch):
    """The larger one's layers are one, repeated: its outputs are checked as any other's."""
    monkeypatch.setitem(models.SIZES, "nllb-3.3b", (3, 64, 96, 2))
    argv = ["--arch-size", "nllb-3.3b", "--vocabulary", "50", "--drafter-size", "tiny", *TINY[2:]]
    assert paradec([*BREAKEVEN, *argv, "--decoder", "assisted", "--engines", "native"]) == 0
    page = capsys.readouterr().out
    assert "3+3 layers, d=64, ffn 96, 2 heads" in page
    assert "`assisted`: 4+4 layers, d=128" in page
    assert tuple(models.SIZES) == ARCH_SIZES


@pytest.mark.slow
@pytest.mark.parametrize(("decoder", "drafter"), [("assisted", "assistant"), ("gad", "drafter")])
def test_the_curve_foretells_a_trained_drafters_speed(decoder, drafter, tmp_path, monkeypatch):
    """Within 5% of what the rounds measure: given drafts cost two of these, in Python."""
    monkeypatch.chdir(tmp_path)
    argv = [str(DEMO), "--path", str(DEMO / "model.pt"), "--decoder", decoder]
    argv += ["--drafter-path", str(DEMO / f"{drafter}.pt"), "--engines", "native"]
    argv += ["--block-sizes", "8", "--sentences", "30", "--rounds", "9"]
    assert paradec([*BREAKEVEN, *argv, "--busy", "--out", "b.json"]) == 0
    rows = json.loads((tmp_path / "b.json").read_text("utf-8"))["rows"]
    speeds = {row["at"]: row["speed_up"] for row in rows}
    own = speeds[OWN]  # on a busy machine its rounds differ, too
    assert 0.95 * own["low"] < speeds[PREDICTED]["middle"] < 1.05 * own["high"]


def test_what_is_between_two_points_by_hand():
    points = [Point(3.0, 1.5, 1.4, 1.6), Point(1.0, 0.5, 0.25, 0.75), Point(2.0, 0.75, 0.5, 1.0)]
    # 2.5 is at 0.6 of the way from 1/2 to 1/3: the speed-up is 1 / (0.4 / 0.75 + 0.6 / 1.5).
    assert at(points, 2.5) == pytest.approx((2.5, 1 / 0.93333333, 1 / 1.22857143, 1 / 0.775))
    assert at(points, 1.0) == points[1] and at(points, 3.0) == points[0] and at(points, 3.5) is None
    words, where = pays_from(points)
    assert words == PAYS and where[:2] == pytest.approx((2.4, 1))
    assert pays_from(points[1:]) == (PAYS_NOWHERE, points[2])
    assert pays_from(points[:1]) == (PAYS_BELOW, points[0])
    assert pays_from([Point(1.5, 1.1, 1, 2), *points])[1] == where  # above 1 before, by chance


def test_a_mistake_is_named(capsys):
    for arguments, words in (
        (["--rates", "0.5,1.2"], "--rates '0.5,1.2' from 0 to 1"),
        (["--block-sizes", "4,2.5"], "--block-sizes '2.5' whole"),
        (["--mark", "x=gad:4"], "--mark 'x=gad:4' tiny=gad:8:2.6"),
        (["--mark", "x=gad:5:2"], "--mark 'gad:5' gad:8"),
        ([str(DEMO)], "DATA --arch-size"),
        (["--drafter-width", "33"], "--drafter-width 33 32"),
        (["--decoder", "self_draft", "--engines", "torch-int8"], "--engines 'torch-int8' others"),
        (["--decoder", "self_draft", "--drafter-shortlist", "9"], "--drafter-shortlist 9 excludes"),
    ):
        try:
            status = paradec([*BREAKEVEN, *TINY, *arguments])
        except SystemExit as stop:  # argparse's
            status = stop.code
        message = capsys.readouterr().err.strip().splitlines()[-1]
        assert status == 2 and message.startswith("paradec profile")
        assert all(word in message for word in words.split()), message
