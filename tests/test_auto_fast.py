"""--decoding auto_fast: who is chosen, by a scripted clock; the output, by fairseq's search."""

from __future__ import annotations

import argparse
import functools
import json
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference.greedy import stock_greedy
from support.builders import (
    DEMO,
    DEMO_DRAFTER,
    HEADS_BLOCK_SIZE,
    Limits,
    batch,
    built,
    lend,
    lend_heads,
    tiny_blockwise,
    tiny_drafter,
    tiny_reordered,
)
from support.commands import PLUGIN, fairseq, lines_of, succeed

from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.errors import UsageError
from fairseq_paradec.measure import loading
from fairseq_paradec.methods.auto_fast import AutoFastGenerator
from fairseq_paradec.methods.auto_fast import choose as choosing
from fairseq_paradec.methods.auto_fast.candidates import (
    BEAM,
    LOSSLESS,
    RELAXED,
    Drafter,
    candidates,
)
from fairseq_paradec.methods.auto_fast.choose import BATCHES
from fairseq_paradec.methods.auto_fast.profile import Bin
from fairseq_paradec.methods.configure import configure
from fairseq_paradec.methods.gad import BlockDrafter, GadGenerator
from fairseq_paradec.methods.registry import BLOCK_NAT, HEADS, METHODS
from fairseq_paradec.options import DecodingConfig

LIMITS = Limits()
SLIDING = "--jacobi-window sliding"
HGJ = [f"hgj --block-size {size} {SLIDING}" for size in (3, 5, "5 --adaptive-block")]
GAD = [f"gad --block-size {size}" for size in ("6", "3", "6 --adaptive-block")]
LOOSE = [f"gad_pp --block-size 6 --accept-topk {rule}" for rule in ("3 --accept-margin 1.0",
         "5 --accept-margin 3.0")]  # fmt: skip
OWN = [f"blockwise --block-size {size}" for size in (HEADS_BLOCK_SIZE, HEADS_BLOCK_SIZE // 2,
       f"{HEADS_BLOCK_SIZE} --adaptive-block")]  # fmt: skip
FIRST = Bin(1, 8)

Costs = Callable[[str, int], float]  # a candidate's label, sentences in the batch -> seconds


@pytest.fixture(autouse=True)
def _set_up(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(choosing, "SECONDS", 1e6)  # scripted clocks go fast


def pair(variant: str = "share_all"):
    """A task, a verifier, and the path of a drafter for it."""
    task, model = built(variant)
    return task, model, lend(task, model, tiny_drafter(task, seed=2))


def build(task, models, costs: Costs | None = None, **flags: Any) -> AutoFastGenerator:
    """The generator; with ``costs``, its clock goes on by what they say and by nothing else."""
    args = argparse.Namespace(**LIMITS.flags(), decoding="auto_fast", **flags)
    generator = task.build_generator(list(models), args)
    if costs is not None:
        script(generator, costs)
    return generator


def script(generator: AutoFastGenerator, costs: Costs) -> None:
    now = [0.0]
    inner = functools.partial(AutoFastGenerator._decode_by, generator)

    def decode_by(label, net_input, rows, rules):
        hypos = inner(label, net_input, rows, rules)
        now[0] += costs(label, len(rows))
        return hypos

    generator._decode_by = decode_by
    generator.timer = lambda: now[0]


def run(task, models, generator, lengths=(6,), times: int = BATCHES, prefix=None) -> None:
    """Decode batches and compare every one with fairseq's own greedy search."""
    for seed in range(times):
        sample = batch(task, lengths, seed=seed)
        hypos = task.inference_step(generator, list(models), sample, prefix_tokens=prefix)
        wanted = stock_greedy(task, list(models), sample, prefix, **LIMITS.stock())
        for (hypo, *_), want in zip(hypos, wanted, strict=True):
            assert hypo["tokens"].tolist() == want["tokens"].tolist()
            assert float(hypo["score"]) == pytest.approx(float(want["score"]), abs=1e-4)


def costs_of(others: float, own: dict[str, float] | None = None) -> Costs:
    """Each candidate's seconds by the start of its label; greedy takes one."""

    def costs(label: str, sentences: int) -> float:
        known = {"greedy": 1.0} | (own or {})
        return next((known[name] for name in known if label.startswith(name)), others)

    return costs


# ---- candidates ---------------------------------------------------------------------------------


def test_candidates_follow_models_and_drafters():
    task, model, path = pair()
    headed = tiny_blockwise(task, "share_all")
    heads = lend_heads(task, model, headed.block_heads)
    own_drafter = lend(task, headed, tiny_drafter(task))
    for models, flags, wanted in (
        ([model, model], {}, HGJ),
        ([model], {"drafter_path": path}, [*HGJ, *GAD]),
        ([headed], {}, [*HGJ, *OWN]),
        ([headed, headed], {}, HGJ),
        ([model], {"drafter_path": heads}, [*HGJ, *OWN]),
        ([headed], {"drafter_path": own_drafter}, [*HGJ, *GAD, *OWN]),
    ):
        generator = build(task, models, **flags)
        assert list(generator.candidates) == ["greedy", *wanted]
        for label in wanted[3:]:
            own = label in OWN and models == [headed]
            path_of = generator.candidates[label].config.drafter_path
            assert path_of == (None if own else flags["drafter_path"])
    found = build(task, [model], drafter_path=path, latency_budget_ms=9.0, beam=4)
    assert list(found.candidates) == ["beam --beam 4", "greedy", *HGJ, *GAD, *LOOSE]
    assert list(found.quality.values()) == [BEAM] + 7 * [LOSSLESS] + 2 * [RELAXED]


@pytest.mark.parametrize("size", [4000, 4001])
def test_every_config_is_one_that_a_user_can_give(size):
    config = DecodingConfig("auto_fast", latency_budget_ms=1.0, compile=True, engine_dtype="bf16")
    drafters = {BLOCK_NAT: Drafter(8, "x"), HEADS: Drafter(4, None)}
    found = candidates(config, drafters, size, 5)
    shortlisted = "gad --block-size 8 --adaptive-block --drafter-shortlist 2000"
    assert (shortlisted in [one.label for one in found]) == (size > 4000)
    native = candidates(DecodingConfig("auto_fast", engine="native"), drafters, size, 5)
    assert {one.config.engine for one in native} == {"native"}
    for one in found[1:]:
        assert one.config.engine_dtype == "bf16"
        given = {k: v for k, v in vars(one.config).items() if v is not None and v is not False}
        kept = ("decoding", "compile", "engine_dtype", *METHODS[one.config.decoding].reads)
        given = {name: value for name, value in given.items() if name in kept}
        if one.config.decoding == "hgj":
            given.pop("hybrid_length", None)
        assert configure(argparse.Namespace(**given)) == one.config


# ---- choosing -----------------------------------------------------------------------------------

QUALITY = {"beam": BEAM, "greedy": LOSSLESS, "hgj": LOSSLESS, "gad": LOSSLESS, "gad_pp": RELAXED}
MS = {"beam": 40.0, "greedy": 10.0, "hgj": 9.0, "gad": 5.0, "gad_pp": 2.0}


@pytest.mark.parametrize(
    ("budget", "changes", "wanted"),
    [
        (None, {}, "gad"),  # the fastest lossless one, if it beats greedy by two percent
        (None, {"gad": 14.0, "hgj": 9.79}, "hgj"),
        (None, {"gad": 14.0, "hgj": 9.85}, "greedy"),
        (40.0, {}, "beam"),  # the best quality within the budget
        (39.9, {}, "gad"),
        (4.9, {}, "gad_pp"),
        (1.9, {}, "gad_pp"),  # the fastest
        (10.0, {"hgj": 30.0, "gad": 30.0}, "greedy"),
        (9.5, {"gad": 9.6}, "hgj"),
        (9.9, {"gad": 9.0, "hgj": 8.0}, "hgj"),
        (7.0, {"beam": 6.0, "gad": 1.0}, "beam"),
    ],
)
def test_who_is_chosen(budget, changes, wanted):
    ms = MS | changes
    ratios = {label: value / ms["greedy"] for label, value in ms.items()}
    choice = choosing.choose(ratios, ms, QUALITY, budget)
    assert (choice.label, choice.in_budget) == (wanted, budget != 1.9)


@pytest.mark.parametrize(
    ("times", "left"),
    [
        ([[0.9, 1.6]], "ab"),  # the first two batches: both must be that slow
        ([[0.9, 1.6]] * 2, "a"),
        ([[0.9, 1.1]] * 3, "ab"),  # 1.3 times the best after three, 1.1 after five
        ([[0.8, 1.1]] * 3, "a"),
        ([[0.9, 0.98]] * 5, "ab"),
        ([[0.9, 1.0]] * 5, "a"),
        ([[1.2, 1.05]] * 5, "b"),  # greedy is the best
        ([[0.6, 0.62], [0.6, 0.62], [0.6, 9.0], [0.6, 0.62], [0.6, 0.62]], "ab"),  # the median
    ],
)
def test_who_drops_out(times, left):
    trial = choosing.Trial(["greedy", "a", "b"])
    for a, b in times:
        trial.add({"greedy": 1.0, "a": a, "b": b}, 1, 5)
        trial.drop([label for label in trial.running if label != "greedy"])
    assert trial.running == ["greedy", *left]


def test_what_is_measured_is_what_two_of_three_batches_reach():
    trial = choosing.Trial(["greedy", "a"])
    for seconds in (0.2, 0.6, 0.4):
        trial.add({"greedy": 2.0, "a": seconds}, 4, 10)
    found = trial.measured(set())
    assert found.ratios == {"greedy": 1.0, "a": pytest.approx(0.2)}
    assert found.ms == {"greedy": 500.0, "a": 150.0}
    assert (found.batches, found.seconds) == (3, pytest.approx(1.2))
    assert found.pass_seconds == pytest.approx(0.2)
    assert list(trial.measured({"a"}).ratios) == ["greedy"]
    orders = []
    for trial.batches in range(6):
        orders.append("".join(trial.in_turn("abc")))
    assert orders == ["abc", "cba", "bca", "acb", "cab", "bac"]


@pytest.mark.parametrize(
    ("running", "batches", "seconds", "done"),
    [
        ("greedy a", BATCHES - 1, 0.0, False),
        ("greedy a", BATCHES, 0.0, True),
        ("greedy a", 3, 9.0, False),
        ("greedy a", 2, 11.0, False),
        ("greedy a", 3, 11.0, True),
        ("greedy", 2, 0.0, True),
        ("a", 4, 0.0, False),
        ("a", 5, 0.0, True),
    ],
)
def test_when_a_bin_is_measured(monkeypatch, running, batches, seconds, done):
    monkeypatch.setattr(choosing, "SECONDS", 10.0)
    assert choosing.Trial(running.split(), batches=batches, seconds=seconds).is_done == done


def test_the_fastest_is_chosen_and_only_it_runs_from_then_on(caplog):
    task, model, path = pair()
    ran: list[str] = []

    def costs(label, sentences):
        ran.append(label)
        return {"greedy": 1.0, GAD[1]: 0.5, GAD[0]: 0.6, HGJ[0]: 0.54}.get(label, 0.9)

    generator = build(task, [model], costs, drafter_path=path)
    run(task, [model], generator)
    assert generator._choices == {FIRST: GAD[1]}
    assert f"{GAD[1]}, 2.00x greedy (measured on {BATCHES} batches, " in caplog.text
    # Once to warm up; the last two dropped out.
    assert [ran.count(one) for one in ("greedy", HGJ[0])] == [BATCHES + 1] * 2
    assert [ran.count(one) for one in (GAD[0], HGJ[1])] == [5 + 1, 3 + 1]
    ran.clear()
    run(task, [model], generator, times=3)
    assert ran == [GAD[1]] * 3
    ones = [generator._generator(label) for label in generator.candidates]
    assert len({id(one.scorer) for one in ones}) == 1, "weights are gathered once for all"
    assert len({id(one.draft_scorer) for one in ones if isinstance(one, GadGenerator)}) == 1


def test_with_compile_the_best_two_are_tried_both_ways(monkeypatch):
    """The compiled forms are played by plain ones: this is about who is tried."""
    task, model, path = pair()
    ran: list[str] = []

    def costs(label, sentences):
        ran.append(label)
        own = {"greedy": 1.0, GAD[0]: 0.5, GAD[2]: 0.55, f"{GAD[0]} --compile": 0.3}
        return own.get(label, 0.9)

    original = AutoFastGenerator._generator
    monkeypatch.setattr(
        AutoFastGenerator, "_generator", lambda s, label: original(s, label.split(" --comp")[0])
    )
    generator = build(task, [model], costs, drafter_path=path, compile=True)
    run(task, [model], generator)
    tried = {f"{label} --compile" for label in ("greedy", GAD[0], GAD[2])}
    assert {label for label in ran if "--compile" in label} == tried
    assert generator._choices == {FIRST: f"{GAD[0]} --compile"}


# ---- what comes out -----------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "best"), [("learned_positions", "hgj"), ("separate", "gad")])
def test_each_bin_has_its_choice_and_fairseqs_output(variant, best, caplog):
    task, model, path = pair(variant)

    def costs(label, sentences):
        chosen = best if sentences > 1 else "greedy"
        return 1.0 if label.startswith(chosen) else 1.7

    generator = build(task, [model], costs, drafter_path=path)
    for lengths in ((6,), (3, 7, 5, 9, 2, 4)):
        run(task, [model], generator, lengths, times=BATCHES + 2)
    assert generator._choices[FIRST] == "greedy"
    assert "batch 1, sources of 1-8 tokens: greedy; the next best," in caplog.text
    assert "0.59x as fast (measured on 2 batches" in caplog.text
    assert generator._choices[Bin(8, 12)].startswith(best)


def test_with_prefixes_and_heads():
    task, model = built("default")
    path = lend_heads(task, model, tiny_blockwise(task).block_heads)
    generator = build(task, [model], costs_of(1.7, {"blockwise": 0.5}), drafter_path=path)
    run(task, [model], generator, (5, 7), BATCHES + 2, torch.tensor([[7, 9], [8, 1]]))
    assert all(choice.startswith("blockwise") for choice in generator._choices.values())


@pytest.mark.parametrize("how", ["wrong drafts pass", "fails"])
def test_who_breaks_the_promise_is_out(monkeypatch, caplog, how):
    """Though it would be the fastest."""
    task, model, path = pair()

    class Anything(ExactMatch):
        def accept(self, draft, scored):
            return torch.full_like(draft[:, 0], draft.size(1)) if draft.numel() else draft.sum(1)

    generator = build(task, [model], costs_of(0.9, {"gad": 0.2}), drafter_path=path)
    if how == "fails":
        monkeypatch.setattr(BlockDrafter, "propose", lambda *given: 1 / 0)
    else:
        monkeypatch.setattr(GadGenerator, "acceptance", lambda self: Anything())
    run(task, [model], generator)
    assert generator._excluded & set(generator.candidates) == set(GAD)
    assert generator._choices[FIRST] in HGJ
    assert ("division by zero" if how == "fails" else "NOT a tie") in caplog.text


@pytest.mark.parametrize("is_tie", [True, False])
def test_a_tie_is_told_and_no_broken_promise(is_tie, caplog):
    """Equal scores are a tie only if both tokens can be of one distribution."""
    task, model, path = pair()
    generator = build(task, [model], costs_of(0.9, {"gad": 0.2}), drafter_path=path)
    inner = generator._decode_by

    def tied(label, net_input, rows, rules):
        hypos = inner(label, net_input, rows, rules)
        if label == GAD[0]:
            rows[0].tokens[0] = 4 + (rows[0].tokens[0] + 1) % 30
        rows[0].scores[0] = math.log(0.4 if is_tie else 0.9)
        return hypos

    generator._decode_by = tied
    for seed in range(BATCHES if is_tie else 1):
        task.inference_step(generator, [model], batch(task, [6], seed))
    assert f"{GAD[0]} differs from greedy" in caplog.text
    assert ("a tie, as rounding" in caplog.text) == is_tie
    assert (GAD[0] in generator._excluded) != is_tie


def test_greedy_takes_over_from_a_choice_that_was_wrong(tmp_path, caplog):
    """The first batches flattered it; what greedy would take is known from the outputs' lengths."""
    task, model, path = pair()
    flags = {"drafter_path": path, "speed_profile": str(tmp_path / "profile.json")}

    def costs(label, sentences):
        late = generator._choices.get(FIRST) == GAD[1]
        return {"greedy": 1.0, GAD[1]: 1.5 if late else 0.5}.get(label, 1.2)

    generator = build(task, [model], costs, **flags)
    measuring, watching = 0, 0
    while generator._choices.get(FIRST) != "greedy":
        measuring, watching = measuring + (not generator._choices), watching + 1
        task.inference_step(generator, [model], batch(task, [6], 0))
        assert generator._choices.get(FIRST, GAD[1]) in (GAD[1], "greedy")
    assert watching - measuring == BATCHES
    assert f"greedy from now on; {GAD[1]} took 1.50 times" in caplog.text
    second = build(task, [model], costs_of(1.0), **flags)
    run(task, [model], second, times=1)
    assert second._choices == {FIRST: "greedy"}


def test_audit_and_records(tmp_path):
    task, model, path = pair()
    files = {"stats_file": str(tmp_path / "s.jsonl"), "trace_file": str(tmp_path / "t.jsonl")}
    costs = costs_of(1.0, {GAD[1]: 0.5})
    generator = build(task, [model], costs, drafter_path=path, audit=True, **files)
    run(task, [model], generator, (6, 5), times=10)
    for name in files.values():
        with open(name, encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        assert [record["chosen"] for record in records[::2]] == [None] * 5 + [GAD[1]] * 5
        for record in records:
            assert record["audit"]["identical"] and record["decoding"] == "auto_fast"
            assert record["decoder_passes"] == len(record["num_accepted"])
        assert "trace" not in records[-1] or "draft" in records[-1]["trace"][0]


# ---- the profile --------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["machine", "models", "drafter", "flags"])
def test_a_profile_is_used_by_its_own_and_kept_for_them(tmp_path, caplog, monkeypatch, other):
    task, model, path = pair()
    file = tmp_path / "profile.json"
    flags = {"drafter_path": path, "speed_profile": str(file)}
    run(task, [model], build(task, [model], costs_of(1.0, {GAD[1]: 0.5}), **flags))
    if other == "machine":  # once is enough
        again = build(task, [model], costs_of(9.0, {GAD[1]: 1.0}), **flags)
        run(task, [model], again, times=2)
        assert again._choices == {FIRST: GAD[1]}
        assert f"{GAD[1]}, 2.00x greedy (from --speed-profile {file})" in caplog.text
        script(again, costs_of(0.7))  # another bin is measured, and added
        again._warm = set(again.candidates)
        run(task, [model], again, (3, 7, 5, 9, 2, 4))
        monkeypatch.setattr(torch, "__version__", "9.9")
        assert list(tmp_path.iterdir()) == [file] and "anew" not in caplog.text
    (before,) = json.loads(file.read_text())["profiles"]
    bins = [(1, 8), (8, 12)] if other == "machine" else [(1, 8)]
    assert [(one["sentences"], one["source"]) for one in before["bins"]] == bins
    if other == "models":
        model = built("share_all", seed=1)[1]
        model.extra = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    if other in ("models", "drafter"):
        seed = 3 if other == "drafter" else 2
        flags["drafter_path"] = lend(task, model, tiny_drafter(task, seed=seed))
    if other == "flags":
        flags["latency_budget_ms"] = 99.0
    generator = build(task, [model], costs_of(1.0, {"hgj": 0.5}), **flags)
    run(task, [model], generator, times=1)
    assert f"measured with another {other}; measuring anew" in caplog.text
    assert generator._choices == {}
    if other == "machine":
        run(task, [model], generator)
        assert generator._choices[FIRST] in HGJ
        after = json.loads(file.read_text())["profiles"]
        assert after[0] == before and len(after) == 2


PROFILES = '{"schema": "fairseq_paradec.speed_profile", "version": %d, "profiles": [%s]}'
NEGATIVE = """{"machine": 1, "models": 1, "drafter": 1, "flags": {"candidates": ["greedy"]},
    "bins": [{"sentences": 1, "source": 1, "batches": 1, "seconds": 1, "ratios": {"greedy": -1},
    "ms": {"greedy": 1}}]}"""


@pytest.mark.parametrize(
    "text",
    ["{", "\x00weights", '{"schema": "fairseq_paradec.decoding", "version": 1}', PROFILES % (2, ""),
     PROFILES % (1, "{}"), PROFILES % (1, NEGATIVE)],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_refused_and_left(tmp_path, text):
    task, model = built("share_all")
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="--speed-profile: got .*profile.json"):
        build(task, [model], speed_profile=str(file))
    assert file.read_text() == text


def test_a_profile_that_goes_missing_costs_no_translation(tmp_path, caplog):
    task, model = built("share_all")
    folder = tmp_path / "folder"
    folder.mkdir()
    generator = build(task, [model], costs_of(2.0), speed_profile=str(folder / "x"))
    folder.rmdir()
    run(task, [model], generator)
    assert "--speed-profile" in caplog.text and "cannot be written" in caplog.text


# ---- a budget -----------------------------------------------------------------------------------

SECONDS = {"beam": 0.4, "greedy": 0.1, "hgj": 0.09, "gad ": 0.05, LOOSE[0]: 0.03, LOOSE[1]: 0.02}


def budget_run(budget: float, lengths=(6,)):
    """The generator after measuring with a budget; seconds of a batch by the label's start."""
    task, model, path = pair()
    flags = {"drafter_path": path, "latency_budget_ms": budget, "beam": 3}
    generator = build(task, [model], costs_of(0.0, SECONDS), **flags)
    assert not generator.lossless
    run(task, [model], generator, lengths)  # greedy's output while it measures
    return task, model, generator


def test_nothing_fits(caplog):
    _, _, generator = budget_run(19.0)
    assert generator._choices == {FIRST: LOOSE[1]}
    assert "--latency-budget-ms 19: no decoder is as fast" in caplog.text
    assert f"the fastest, {LOOSE[1]}, takes 20.00 ms" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("with_prefix", [False, True])
def test_beams_output_is_fairseqs_beam_search(tmp_path, with_prefix):
    task, model, generator = budget_run(401.0, (6, 5))
    stats = tmp_path / "stats.jsonl"
    generator.reports.config = DecodingConfig("auto_fast", stats_file=str(stats))
    sample = batch(task, (6, 5), seed=77)
    prefix = torch.tensor([[7, 9], [8, 1]]) if with_prefix else None
    hypos = task.inference_step(generator, [model], sample, prefix_tokens=prefix)
    args = argparse.Namespace(**LIMITS.flags(), decoding="beam", beam=3)
    stock = task.build_generator([model], args)
    wanted = task.inference_step(stock, [model], sample, prefix_tokens=prefix)
    words = task.target_dictionary
    records = [json.loads(line) for line in stats.read_text().splitlines()]
    for ours, theirs, record in zip(hypos, wanted, records, strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        assert float(ours[0]["score"]) == float(theirs[0]["score"])
        assert record["output"] == [words[t] for t in theirs[0]["tokens"]]
        assert record["chosen"] == "beam --beam 3"
        assert record["decoder_passes"] == record["num_tokens"] == ours[0]["steps"]


# ---- refusals, commands --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speed_profile": "none/x"}, "--speed-profile: got .*folder"),
        ({"speed_profile": "."}, "--speed-profile: got .*folder"),
        ({"speed_profile": ""}, "--speed-profile: got ''"),
        ({"latency_budget_ms": 3.0, "audit": True}, "--audit.*--latency-budget-ms"),
        ({"latency_budget_ms": 3.0, "trace_file": "x"}, "--trace-file.*--latency-budget-ms"),
        ({"latency_budget_ms": 0}, "--latency-budget-ms: got 0"),
        ({"latency_budget_ms": float("nan")}, "--latency-budget-ms: got nan"),
        ({"latency_budget_ms": True}, "--latency-budget-ms: got True"),
        ({"beam": 4}, "--beam: got 4; allowed: 1 .*--latency-budget-ms"),
        ({"beam": 0, "latency_budget_ms": 3.0}, "--beam: got 0"),
    ],
)
def test_wrong_options(options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task, model = built("share_all")
    with pytest.raises(UsageError, match=said):
        build(task, [model], **options)


def test_models_and_drafters_that_do_not_fit():
    task, model, _ = pair()
    headed = tiny_blockwise(task, "share_all")
    shared = lend(task, model, tiny_drafter(task, verifier=model))
    heads = lend_heads(task, model, headed.block_heads)
    more = lend_heads(task, headed, headed.block_heads)
    block_nat = "--path: got 'a model of --arch block_nat'"
    refused(block_nat, task, [tiny_drafter(task)])
    refused("'auto_fast'.*another order", task, [tiny_reordered(built("share_all")[0])])
    refused("--path: got '2 models'", task, [model, model], shared)
    refused("--path: got '2 models'", task, [model, model], heads)
    refused("--drafter-path.*which has heads", task, [headed], more)
    models, task = loading.load(str(DEMO), str(DEMO / "model.pt"))
    said = "--drafter-path: got .*model.pt.*block_nat.*heads"
    refused(said, task, models, str(DEMO / "model.pt"))
    refused("--drafter-path", task, models, str(DEMO / "dict.de.txt"))
    for name, method in (("heads.pt", "blockwise"), ("drafter.pt", "gad ")):
        found = build(task, models, drafter_path=str(DEMO / name))
        assert any(label.startswith(method) for label in found.candidates)


def refused(said: str, task, models, path: str | None = None) -> None:
    with pytest.raises(UsageError, match=said):
        build(task, models, drafter_path=path)


@pytest.mark.slow
def test_fairseq_generate(tmp_path):
    stats, profile = tmp_path / "stats.jsonl", tmp_path / "profile.json"
    fast = [DEMO, "--user-dir", PLUGIN, "--path", DEMO / "model.pt", "--max-len-b", 60]
    fast += ["--batch-size", 1, "--decoding", "auto_fast", "--drafter-path", DEMO_DRAFTER]
    fast += ["--speed-profile", profile, "--audit", "--stats-file", stats]
    ours = succeed(fairseq("generate", *fast))
    assert "audit: 100 of 100 sentences identical" in ours.stderr
    assert "auto_fast: batch 1, sources of 9-12 tokens: " in ours.stderr
    records = [json.loads(line) for line in stats.read_text().splitlines()]
    assert len(records) == 100 and any(record["chosen"] for record in records)
    again = succeed(fairseq("generate", *fast))
    assert f"(from --speed-profile {profile})" in again.stderr
    words = [{line.split("\t")[2] for line in lines_of(r.stdout, "H")} for r in (ours, again)]
    assert words[0] == words[1]
