"""--decoding auto_fast: who is chosen, by a scripted clock; the output, by fairseq's search."""

from __future__ import annotations

import argparse
import functools
import json
import logging
import math

import pytest
import torch
from pytest import approx
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
    tiny_model,
    tiny_reordered,
)
from support.commands import PLUGIN, fairseq, lines_of, succeed

from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.errors import UsageError
from fairseq_paradec.measure import loading
from fairseq_paradec.methods.auto_fast import AutoFastGenerator
from fairseq_paradec.methods.auto_fast import choose as choosing
from fairseq_paradec.methods.auto_fast.candidates import BEAM, LOSSLESS, RELAXED
from fairseq_paradec.methods.auto_fast.choose import BATCHES
from fairseq_paradec.methods.auto_fast.profile import Bin
from fairseq_paradec.methods.gad import BlockDrafter, GadGenerator
from fairseq_paradec.options import DecodingConfig

LIMITS = Limits()
HGJ = [f"hgj --block-size {size} --jacobi-window sliding" for size in (3, 5, "5 --adaptive-block")]
GAD = [f"gad --block-size {size}" for size in ("6", "3", "6 --adaptive-block")]
LOOSE = [f"gad_pp --block-size 6 --accept-topk {rule}" for rule in ("3 --accept-margin 1.0",
         "5 --accept-margin 3.0")]  # fmt: skip
OWN = [f"blockwise --block-size {size}" for size in (HEADS_BLOCK_SIZE, HEADS_BLOCK_SIZE // 2,
       f"{HEADS_BLOCK_SIZE} --adaptive-block")]  # fmt: skip
FIRST = Bin(1, 8)
SIX = (3, 7, 5, 9, 2, 4)  # a batch of another bin


@pytest.fixture(autouse=True)
def _set_up(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(choosing, "SECONDS", 1e6)  # scripted clocks go fast


@functools.cache
def pair(variant="share_all"):
    """A task, a verifier, and the path of a drafter for it."""
    task, model = built(variant)
    return task, model, lend(task, model, tiny_drafter(task, seed=2))


def build(task, models, costs=None, **flags):
    """The generator; with ``costs``, its clock goes on by what they say and by nothing else."""
    args = argparse.Namespace(**LIMITS.flags(), decoding="auto_fast", **flags)
    generator = task.build_generator(list(models), args)
    generator.of = task, list(models)
    if costs is not None:
        script(generator, costs)
    return generator


def paired(costs, variant="share_all", **flags):
    """The generator of a verifier with a drafter."""
    task, model, path = pair(variant)
    return build(task, [model], costs, **{"drafter_path": path} | flags)


def script(generator, costs):
    """Let a batch take ``costs(label, sentences)`` seconds by each candidate."""
    now = [0.0]
    inner = functools.partial(AutoFastGenerator._decode_by, generator)

    def decode_by(label, net_input, rows, rules):
        hypos = inner(label, net_input, rows, rules)
        now[0] += costs(label, len(rows))
        return hypos

    generator._decode_by = decode_by
    generator.timer = lambda: now[0]


def run(generator, lengths=(6,), times=BATCHES, prefix=None):
    """Decode batches and compare every one with fairseq's own greedy search."""
    task, models = generator.of
    for seed in range(times):
        sample = batch(task, lengths, seed=seed)
        hypos = task.inference_step(generator, models, sample, prefix_tokens=prefix)
        wanted = stock_greedy(task, models, sample, prefix, **LIMITS.stock())
        for (hypo, *_), want in zip(hypos, wanted, strict=True):
            assert hypo["tokens"].tolist() == want["tokens"].tolist()
            assert float(hypo["score"]) == approx(float(want["score"]), abs=1e-4)


def costs_of(others, own=None):
    """Each candidate's seconds by the start of its label; greedy takes one."""
    known = {"greedy": 1.0} | (own or {})
    return lambda label, sentences: next((known[n] for n in known if label.startswith(n)), others)


def records_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


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


QUALITY = {"beam": BEAM, "greedy": LOSSLESS, "hgj": LOSSLESS, "gad": LOSSLESS, "gad_pp": RELAXED}
MS = {"beam": 40.0, "greedy": 10.0, "hgj": 9.0, "gad": 5.0, "gad_pp": 2.0}


def test_who_is_chosen():
    for budget, changes, wanted in (
        (None, {}, "gad"),  # the fastest lossless one, if it beats greedy by two percent
        (None, {"gad": 14.0, "hgj": 9.79}, "hgj"),
        (None, {"gad": 14.0, "hgj": 9.85}, "greedy"),
        (40.0, {}, "beam"),  # the best quality within the budget
        (39.9, {}, "gad"),
        (4.9, {}, "gad_pp"),
        (1.9, {}, "gad_pp"),  # the fastest
        (10.0, {"hgj": 30.0, "gad": 30.0}, "greedy"),
        (9.5, {"gad": 9.6}, "hgj"),
    ):
        ms = MS | changes
        ratios = {label: value / ms["greedy"] for label, value in ms.items()}
        choice = choosing.choose(ratios, ms, QUALITY, budget)
        assert (choice.label, choice.in_budget) == (wanted, budget != 1.9)


def test_who_drops_out():
    for times, left in (
        ([[0.9, 1.6]], "ab"),  # the first two batches: both must be that slow
        ([[0.9, 1.6]] * 2, "a"),
        ([[0.9, 1.1]] * 3, "ab"),  # 1.3 times the best after three, 1.1 after five
        ([[0.8, 1.1]] * 3, "a"),
        ([[0.9, 0.98]] * 5, "ab"),
        ([[0.9, 1.0]] * 5, "a"),
        ([[1.2, 1.05]] * 5, "b"),  # greedy is the best
        ([[0.6, 0.62], [0.6, 0.62], [0.6, 9.0], [0.6, 0.62], [0.6, 0.62]], "ab"),  # the median
    ):
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
    assert found.ratios == {"greedy": 1.0, "a": approx(0.2)}
    assert found.ms == {"greedy": 500.0, "a": 150.0}
    assert (found.batches, found.seconds, found.pass_seconds) == (3, approx(1.2), approx(0.2))
    assert list(trial.measured({"a"}).ratios) == ["greedy"]
    orders = []
    for trial.batches in range(6):
        orders.append("".join(trial.in_turn("abc")))
    assert orders == ["abc", "cba", "bca", "acb", "cab", "bac"]


def test_when_a_bin_is_measured(monkeypatch):
    monkeypatch.setattr(choosing, "SECONDS", 10.0)
    for running, batches, seconds, done in (
        ("greedy a", BATCHES - 1, 0.0, False),
        ("greedy a", BATCHES, 0.0, True),
        ("greedy a", 3, 9.0, False),
        ("greedy a", 2, 11.0, False),
        ("greedy a", 3, 11.0, True),
        ("greedy", 2, 0.0, True),
        ("a", 4, 0.0, False),
        ("a", 5, 0.0, True),
    ):
        assert choosing.Trial(running.split(), batches=batches, seconds=seconds).is_done == done


def test_the_fastest_is_chosen_and_only_it_runs_from_then_on(caplog):
    ran = []

    def costs(label, sentences):
        ran.append(label)
        return {"greedy": 1.0, GAD[1]: 0.5, GAD[0]: 0.6, HGJ[0]: 0.54}.get(label, 0.9)

    generator = paired(costs)
    run(generator)
    assert generator._choices == {FIRST: GAD[1]}
    assert f"{GAD[1]}, 2.00x greedy (measured on {BATCHES} batches, " in caplog.text
    # Once to warm up; the last two dropped out.
    counts = [ran.count(one) for one in ("greedy", HGJ[0], GAD[0], HGJ[1])]
    assert counts == [BATCHES + 1, BATCHES + 1, 5 + 1, 3 + 1]
    ran.clear()
    run(generator, times=3)
    assert ran == [GAD[1]] * 3
    ones = [generator._generator(label) for label in generator.candidates]
    assert len({id(one.scorer) for one in ones}) == 1, "weights are gathered once for all"
    assert len({id(one.draft_scorer) for one in ones if isinstance(one, GadGenerator)}) == 1


def test_with_compile_the_best_two_are_tried_both_ways(monkeypatch):
    """The compiled forms are played by plain ones: this is about who is tried."""
    times = {"greedy": 1.0, GAD[0]: 0.5, GAD[2]: 0.55, f"{GAD[0]} --compile": 0.3}
    ran, original = set(), AutoFastGenerator._generator

    def costs(label, sentences):
        ran.add(label)
        return times.get(label, 0.9)

    def plain(self, label):
        return original(self, label.removesuffix(" --compile"))

    monkeypatch.setattr(AutoFastGenerator, "_generator", plain)
    generator = paired(costs, compile=True)
    run(generator)
    tried = {f"{label} --compile" for label in ("greedy", GAD[0], GAD[2])}
    assert {label for label in ran if "--compile" in label} == tried
    assert generator._choices == {FIRST: f"{GAD[0]} --compile"}


@pytest.mark.parametrize(("variant", "best"), [("learned_positions", "hgj"), ("separate", "gad")])
def test_each_bin_has_its_choice_and_fairseqs_output(variant, best, caplog):
    def costs(label, sentences):
        return 1.0 if label.startswith(best if sentences > 1 else "greedy") else 1.7

    generator = paired(costs, variant)
    for lengths in ((6,), SIX):
        run(generator, lengths, times=BATCHES + 2)
    assert generator._choices[FIRST] == "greedy"
    assert "batch 1, sources of 1-8 tokens: greedy; the next best," in caplog.text
    assert "0.59x as fast (measured on 2 batches" in caplog.text
    assert generator._choices[Bin(8, 12)].startswith(best)


def test_with_prefixes_and_heads():
    task, model = built("default")
    path = lend_heads(task, model, tiny_blockwise(task).block_heads)
    generator = build(task, [model], costs_of(1.7, {"blockwise": 0.5}), drafter_path=path)
    run(generator, (5, 7), BATCHES + 2, torch.tensor([[7, 9], [8, 1]]))
    assert all(choice.startswith("blockwise") for choice in generator._choices.values())


class Anything(ExactMatch):
    """A rule that lets every draft pass."""

    def accept(self, draft, scored):
        return torch.full_like(draft[:, 0], draft.size(1)) if draft.numel() else draft.sum(1)


@pytest.mark.parametrize(
    ("place", "name", "wrong", "said"),
    [
        (BlockDrafter, "propose", lambda *given: 1 / 0, "division by zero"),
        (GadGenerator, "acceptance", lambda self: Anything(), "NOT a tie"),
    ],
)
def test_who_breaks_the_promise_is_out(monkeypatch, caplog, place, name, wrong, said):
    """Though it would be the fastest."""
    generator = paired(costs_of(0.9, {"gad": 0.2}))
    monkeypatch.setattr(place, name, wrong)
    run(generator)
    assert generator._excluded & set(generator.candidates) == set(GAD)
    assert generator._choices[FIRST] in HGJ and said in caplog.text


@pytest.mark.parametrize("is_tie", [True, False])
def test_a_tie_is_told_and_no_broken_promise(is_tie, caplog):
    """Equal scores are a tie only if both tokens can be of one distribution."""
    generator = paired(costs_of(0.9, {"gad": 0.2}))
    task, models = generator.of
    inner = generator._decode_by

    def tied(label, net_input, rows, rules):
        hypos = inner(label, net_input, rows, rules)
        if label == GAD[0]:
            rows[0].tokens[0] = 4 + (rows[0].tokens[0] + 1) % 30
        rows[0].scores[0] = math.log(0.4 if is_tie else 0.9)
        return hypos

    generator._decode_by = tied
    for seed in range(BATCHES if is_tie else 1):
        task.inference_step(generator, models, batch(task, [6], seed))
    assert f"{GAD[0]} differs from greedy" in caplog.text
    assert ("a tie, as rounding" in caplog.text) == is_tie
    assert (GAD[0] in generator._excluded) != is_tie


def test_greedy_takes_over_from_a_choice_that_was_wrong(tmp_path, caplog):
    """The first batches flattered it; what greedy would take is known from the outputs' lengths."""
    flags = {"speed_profile": str(tmp_path / "profile.json")}

    def costs(label, sentences):
        late = generator._choices.get(FIRST) == GAD[1]
        return {"greedy": 1.0, GAD[1]: 1.5 if late else 0.5}.get(label, 1.2)

    generator = paired(costs, **flags)
    task, models = generator.of
    watched = 0
    while generator._choices.get(FIRST) != "greedy":
        watched += bool(generator._choices)
        task.inference_step(generator, models, batch(task, [6], 0))
        assert generator._choices.get(FIRST, GAD[1]) in (GAD[1], "greedy")
    assert watched == BATCHES
    assert f"greedy from now on; {GAD[1]} took 1.50 times" in caplog.text
    second = paired(costs_of(1.0), **flags)
    run(second, times=1)
    assert second._choices == {FIRST: "greedy"}


def test_audit_and_records(tmp_path):
    files = {"stats_file": tmp_path / "s.jsonl", "trace_file": tmp_path / "t.jsonl"}
    flags = {name: str(path) for name, path in files.items()}
    run(paired(costs_of(1.0, {GAD[1]: 0.5}), audit=True, **flags), (6, 5), times=10)
    for path in files.values():
        records = records_of(path)
        assert [record["chosen"] for record in records[::2]] == [None] * 5 + [GAD[1]] * 5
        for record in records:
            assert record["audit"]["identical"] and record["decoding"] == "auto_fast"
            assert record["decoder_passes"] == len(record["num_accepted"])


def test_a_profile_is_used_by_its_own_and_kept_for_them(tmp_path, caplog, monkeypatch):
    file = tmp_path / "profile.json"
    flags = {"speed_profile": str(file)}
    run(paired(costs_of(1.0, {GAD[1]: 0.5}), **flags))
    again = paired(costs_of(9.0, {GAD[1]: 1.0}), **flags)
    run(again, times=2)
    assert again._choices == {FIRST: GAD[1]}
    assert f"{GAD[1]}, 2.00x greedy (from --speed-profile {file})" in caplog.text
    script(again, costs_of(0.7))  # another bin is measured, and added
    again._warm = set(again.candidates)
    run(again, SIX)
    (before,) = json.loads(file.read_text())["profiles"]
    assert [(one["sentences"], one["source"]) for one in before["bins"]] == [(1, 8), (8, 12)]
    assert list(tmp_path.iterdir()) == [file] and "anew" not in caplog.text

    task, model, path = pair()
    deeper = tiny_model(task, "share_all", decoder_layers=3)
    costs, other = costs_of(1.0, {"hgj": 0.5}), lend(task, model, tiny_drafter(task, seed=3))
    others = {
        "flags": paired(costs, latency_budget_ms=99.0, **flags),
        "drafter": paired(costs, **flags | {"drafter_path": other}),
        "models": build(task, [deeper], costs, drafter_path=path, **flags),
        "machine": paired(costs, **flags),
    }
    for name, generator in others.items():
        if name == "machine":
            monkeypatch.setattr(torch, "__version__", "9.9")
        run(generator, times=1)
        assert f"measured with another {name}; measuring anew" in caplog.text
        assert generator._choices == {}
    run(generator)
    assert generator._choices[FIRST] in HGJ
    after = json.loads(file.read_text())["profiles"]
    assert after[0] == before and len(after) == 2


PROFILES = '{"schema": "fairseq_paradec.speed_profile", "version": %d, "profiles": [%s]}'


def test_a_damaged_or_foreign_file_is_refused_and_left(tmp_path):
    file = tmp_path / "profile.json"
    for text in ("{", "\x00weights", '{"schema": "x", "version": 1}', PROFILES % (2, ""),
                 PROFILES % (1, "{}")):  # fmt: skip
        file.write_text(text)
        with pytest.raises(UsageError, match="--speed-profile: got .*profile.json"):
            paired(None, speed_profile=str(file))
        assert file.read_text() == text


def test_a_profile_that_goes_missing_costs_no_translation(tmp_path, caplog):
    folder = tmp_path / "folder"
    folder.mkdir()
    generator = paired(costs_of(2.0), speed_profile=str(folder / "x"))
    folder.rmdir()
    run(generator)
    assert "--speed-profile" in caplog.text and "cannot be written" in caplog.text


SECONDS = {"beam": 0.4, "greedy": 0.1, "hgj": 0.09, "gad ": 0.05, LOOSE[0]: 0.03, LOOSE[1]: 0.02}


def test_nothing_fits(caplog):
    generator = paired(costs_of(0.0, SECONDS), latency_budget_ms=19.0, beam=3)
    run(generator)  # greedy's output while it measures
    assert generator._choices == {FIRST: LOOSE[1]} and not generator.lossless
    assert "--latency-budget-ms 19: no decoder is as fast" in caplog.text
    assert f"the fastest, {LOOSE[1]}, takes 20.00 ms" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [None, torch.tensor([[7, 9], [8, 1]])])
def test_beams_output_is_fairseqs_beam_search(tmp_path, prefix):
    generator = paired(costs_of(0.0, SECONDS), latency_budget_ms=401.0, beam=3)
    run(generator, (6, 5))
    task, models = generator.of
    stats = tmp_path / "stats.jsonl"
    generator.reports.config = DecodingConfig("auto_fast", stats_file=str(stats))
    args = argparse.Namespace(**LIMITS.flags(), decoding="beam", beam=3)
    stock = task.build_generator(models, args)
    sample = batch(task, (6, 5), seed=77)
    hypos, wanted = (
        task.inference_step(one, models, sample, prefix_tokens=prefix) for one in (generator, stock)
    )
    for ours, theirs, record in zip(hypos, wanted, records_of(stats), strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        assert float(ours[0]["score"]) == float(theirs[0]["score"])
        assert record["output"] == [task.target_dictionary[t] for t in theirs[0]["tokens"]]
        assert record["chosen"] == "beam --beam 3"
        assert record["decoder_passes"] == record["num_tokens"] == ours[0]["steps"]


def test_wrong_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, said in (
        ({"speed_profile": "none/x"}, "--speed-profile: got .*folder"),
        ({"speed_profile": "."}, "--speed-profile: got .*folder"),
        ({"speed_profile": ""}, "--speed-profile: got ''"),
        ({"latency_budget_ms": 3.0, "audit": True}, "--audit.*--latency-budget-ms"),
        ({"latency_budget_ms": 3.0, "trace_file": "x"}, "--trace-file.*--latency-budget-ms"),
        ({"latency_budget_ms": 0}, "--latency-budget-ms: got 0"),
        ({"latency_budget_ms": float("nan")}, "--latency-budget-ms: got nan"),
        ({"beam": 4}, "--beam: got 4; allowed: 1 .*--latency-budget-ms"),
    ):
        with pytest.raises(UsageError, match=said):
            paired(None, **options)


def test_models_and_drafters_that_do_not_fit():
    task, model, _ = pair()
    headed = tiny_blockwise(task, "share_all")
    shared = lend(task, model, tiny_drafter(task, verifier=model))
    heads, more = (lend_heads(task, base, headed.block_heads) for base in (model, headed))
    trained, demo = loading.load(str(DEMO), str(DEMO / "model.pt"))
    reordered = tiny_reordered(built("share_all")[0])
    for said, its_task, models, path in (
        ("--path: got 'a model of --arch block_nat'", task, [tiny_drafter(task)], None),
        ("'auto_fast'.*another order", task, [reordered], None),
        ("--path: got '2 models'", task, [model, model], shared),
        ("--path: got '2 models'", task, [model, model], heads),
        ("--drafter-path.*which has heads", task, [headed], more),
        ("--drafter-path: got .*model.pt.*block_nat.*heads", demo, trained, DEMO / "model.pt"),
        ("--drafter-path", demo, trained, DEMO / "dict.de.txt"),
    ):
        with pytest.raises(UsageError, match=said):
            build(its_task, models, drafter_path=None if path is None else str(path))
    for name, method in (("heads.pt", "blockwise"), ("drafter.pt", "gad ")):
        found = build(demo, trained, drafter_path=str(DEMO / name))
        assert any(label.startswith(method) for label in found.candidates)


@pytest.mark.slow
def test_fairseq_generate(tmp_path):
    stats, profile = tmp_path / "stats.jsonl", tmp_path / "profile.json"
    fast = [DEMO, "--user-dir", PLUGIN, "--path", DEMO / "model.pt", "--max-len-b", 60]
    fast += ["--batch-size", 1, "--decoding", "auto_fast", "--drafter-path", DEMO_DRAFTER]
    fast += ["--speed-profile", profile, "--audit", "--stats-file", stats]
    ours = succeed(fairseq("generate", *fast))
    assert "audit: 100 of 100 sentences identical" in ours.stderr
    assert "auto_fast: batch 1, sources of 9-12 tokens: " in ours.stderr
    records = records_of(stats)
    assert len(records) == 100 and any(record["chosen"] for record in records)
    again = succeed(fairseq("generate", *fast))
    assert f"(from --speed-profile {profile})" in again.stderr
    words = [{line.split("\t")[2] for line in lines_of(r.stdout, "H")} for r in (ours, again)]
    assert words[0] == words[1]
