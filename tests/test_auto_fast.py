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
    DRAFTER_BLOCK_SIZE,
    HEADS_BLOCK_SIZE,
    Limits,
    batch,
    built,
    dictionary,
    lend,
    lend_heads,
    tiny_blockwise,
    tiny_drafter,
    tiny_reordered,
)
from support.commands import PLUGIN, fairseq, lines_of, succeed

from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.errors import UsageError
from fairseq_paradec.measure import systems
from fairseq_paradec.methods.auto_fast import AutoFastGenerator
from fairseq_paradec.methods.auto_fast import choose as choosing
from fairseq_paradec.methods.auto_fast.candidates import BEAM, LOSSLESS, RELAXED, candidates
from fairseq_paradec.methods.auto_fast.choose import BATCHES
from fairseq_paradec.methods.auto_fast.profile import Bin, bin_of
from fairseq_paradec.methods.configure import configure
from fairseq_paradec.methods.gad import BlockDrafter, GadGenerator
from fairseq_paradec.methods.registry import METHODS
from fairseq_paradec.options import DecodingConfig

LIMITS = Limits()
RAGGED = (3, 7, 5, 9, 2, 4)
SLIDING = "--jacobi-window sliding"
HGJ = [f"hgj --block-size {size} {SLIDING}" for size in (3, 5, "5 --adaptive-block")]
GAD = [f"gad --block-size {size}" for size in ("6", "3", "6 --adaptive-block")]
LOOSE = [f"gad_pp --block-size 6 --accept-topk {rule}" for rule in ("3 --accept-margin 1.0",
         "5 --accept-margin 3.0")]  # fmt: skip

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
    """Let the clock go on by the candidates' costs."""
    now = [0.0]
    inner = functools.partial(AutoFastGenerator._decode_by, generator)

    def decode_by(label, net_input, rows, rules):
        hypos = inner(label, net_input, rows, rules)
        now[0] += costs(label, len(rows))
        return hypos

    generator._decode_by = decode_by
    generator.timer = lambda: now[0]


def run(task, models, generator, lengths=(6,), times: int = BATCHES, **more: Any) -> None:
    """Decode batches and compare every one with fairseq's own greedy search."""
    for seed in range(times):
        check(task, models, generator, batch(task, lengths, seed=seed), **more)


def check(task, models, generator, sample, prefix_tokens=None) -> None:
    """Decode a batch: fairseq's tokens and scores."""
    hypos = task.inference_step(generator, list(models), sample, prefix_tokens=prefix_tokens)
    wanted = stock_greedy(task, list(models), sample, prefix_tokens, **LIMITS.stock())
    for (hypo, *_), want in zip(hypos, wanted, strict=True):
        assert hypo["tokens"].tolist() == want["tokens"].tolist()
        assert float(hypo["score"]) == pytest.approx(float(want["score"]), abs=1e-4)


def costs_of(others: float, **own: float) -> Costs:
    """Each candidate's seconds by the start of its label, "_" standing for " "."""

    def costs(label: str, sentences: int) -> float:
        if label == "greedy":
            return 1.0
        found = [v for name, v in own.items() if label.startswith(name.replace("__", " --"))]
        return found[0] if found else others

    return costs


# ---- candidates ---------------------------------------------------------------------------------


def test_candidates_of_a_plain_transformer_and_of_an_ensemble():
    task, model, path = pair()
    assert list(build(task, [model]).candidates) == ["greedy", *HGJ]
    assert list(build(task, [model, model]).candidates) == ["greedy", *HGJ]
    assert list(build(task, [model], drafter_path=path).candidates) == ["greedy", *HGJ, *GAD]
    found = build(task, [model], drafter_path=path, latency_budget_ms=9.0, beam=4).candidates
    assert list(found) == ["beam --beam 4", "greedy", *HGJ, *GAD, *LOOSE]


def test_candidates_with_heads():
    task, model = built("default")
    headed = tiny_blockwise(task)
    sizes = (HEADS_BLOCK_SIZE, HEADS_BLOCK_SIZE // 2, f"{HEADS_BLOCK_SIZE} --adaptive-block")
    own = [f"blockwise --block-size {size}" for size in sizes]
    assert list(build(task, [headed]).candidates) == ["greedy", *HGJ, *own]
    path = lend_heads(task, model, headed.block_heads)
    found = build(task, [model], drafter_path=path)
    assert list(found.candidates) == ["greedy", *HGJ, *own]
    assert found.candidates[own[0]].config.drafter_path == path
    assert found.heads is headed.block_heads and found.drafter is None
    assert list(build(task, [headed, headed]).candidates) == ["greedy", *HGJ]
    both = build(task, [headed], drafter_path=lend(task, headed, tiny_drafter(task)))
    assert list(both.candidates) == ["greedy", *HGJ, *GAD, *own]


def test_a_shortlist_is_tried_where_the_dictionary_is_large():
    config = DecodingConfig("auto_fast", engine_dtype="bf16")
    for size in (4000, 4001):
        offered = candidates(config, {"gad": 8}, {"gad": "x"}, size, 5)
        labels = [one.label for one in offered]
        wanted = "gad --block-size 8 --adaptive-block --drafter-shortlist 2000"
        assert (wanted in labels) == (size > 4000)
        assert {one.config.engine_dtype for one in offered} == {"bf16"}
        assert {one.config.compile for one in offered} == {False}


def test_every_config_is_one_that_a_user_can_give():
    config = DecodingConfig("auto_fast", latency_budget_ms=1.0, compile=True)
    blocks, paths = {"gad": 8, "blockwise": 4}, {"gad": "x", "blockwise": None}
    for one in candidates(config, blocks, paths, 9999, 5):
        given = {k: v for k, v in vars(one.config).items() if v is not None and v is not False}
        if one.config.decoding == "beam":
            continue
        kept = ("decoding", "compile", *METHODS[one.config.decoding].reads)
        given = {name: value for name, value in given.items() if name in kept}
        if one.config.decoding == "hgj":
            given.pop("hybrid_length", None)
        assert configure(argparse.Namespace(**given)) == one.config


# ---- choosing -----------------------------------------------------------------------------------

QUALITY = {"beam": BEAM, "greedy": LOSSLESS, "hgj": LOSSLESS, "gad": LOSSLESS, "gad_pp": RELAXED}
MS = {"beam": 40.0, "greedy": 10.0, "hgj": 9.0, "gad": 5.0, "gad_pp": 2.0}


@pytest.mark.parametrize(
    ("ratios", "wanted"),
    [
        ({}, "greedy"),
        ({"hgj": 0.985, "gad": 1.4}, "greedy"),
        ({"hgj": 0.98, "gad": 1.4}, "hgj"),
        ({"hgj": 0.8, "gad": 0.7}, "gad"),
        ({"beam": 0.1, "gad_pp": 0.1, "hgj": 0.9}, "hgj"),
    ],
)
def test_the_fastest_lossless_one_if_it_beats_greedy_by_two_percent(ratios, wanted):
    ratios = {"greedy": 1.0, **ratios}
    assert choosing.choose(ratios, MS, QUALITY).label == wanted


@pytest.mark.parametrize(
    ("budget", "more", "wanted"),
    [
        (40.0, {}, "beam"),
        (39.9, {}, "gad"),
        (5.0, {}, "gad"),
        (4.9, {}, "gad_pp"),
        (1.9, {}, None),
        (10.0, {"hgj": 30.0, "gad": 30.0}, "greedy"),
        (9.5, {"gad": 9.6}, "hgj"),  # the fastest by its ratio is over the budget
        (7.0, {"beam": 6.0, "gad": 1.0}, "beam"),
    ],
)
def test_the_best_quality_within_the_budget(budget, more, wanted):
    ms = MS | more
    ratios = {label: value / ms["greedy"] for label, value in ms.items()}
    choice = choosing.choose(ratios, ms, QUALITY, budget)
    assert choice.in_budget == (wanted is not None)
    assert choice.label == (wanted or "gad_pp")


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


def test_the_order_changes():
    trial, orders = choosing.Trial([]), []
    for _ in range(6):
        orders.append("".join(trial.in_turn("abc")))
        trial.batches += 1
    assert orders == ["abc", "cba", "bca", "acb", "cab", "bac"]


@pytest.mark.parametrize(
    ("running", "batches", "seconds", "done"),
    [
        ("greedy a", 15, 0.0, False),
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
    trial = choosing.Trial(running.split(), batches=batches, seconds=seconds)
    assert trial.is_done == done


def test_greedy_if_drafting_is_useless(caplog):
    task, model, path = pair()
    generator = build(task, [model], costs_of(1.7), drafter_path=path)
    run(task, [model], generator, times=2)
    assert generator._choices == {Bin(1, 8): "greedy"}
    assert "batch 1, sources of 1-8 tokens: greedy; the next best," in caplog.text
    assert "0.59x as fast (measured on 2 batches, 20.4 s)" in caplog.text


def test_the_fastest_is_chosen_and_only_it_runs_from_then_on(caplog):
    task, model, path = pair()
    ran: list[str] = []

    def costs(label, sentences):
        ran.append(label)
        return {"greedy": 1.0, GAD[1]: 0.5, GAD[0]: 0.6, HGJ[0]: 0.54}.get(label, 0.9)

    generator = build(task, [model], costs, drafter_path=path)
    run(task, [model], generator)
    assert generator._choices == {Bin(1, 8): GAD[1]}
    assert f"{GAD[1]}, 2.00x greedy (measured on {BATCHES} batches, " in caplog.text
    assert ran.count("greedy") == BATCHES + 1, "once to warm up"
    assert ran.count(HGJ[0]) == BATCHES + 1
    assert ran.count(GAD[0]) == 5 + 1 and ran.count(HGJ[1]) == 3 + 1, "these dropped out"
    ran.clear()
    run(task, [model], generator, times=3)
    assert ran == [GAD[1]] * 3


def test_bins():
    sizes = [bin_of([[0] * n] * b) for b, n in ((1, 1), (2, 2), (3, 3), (4, 9), (32, 16), (33, 17))]
    wanted = [(1, 8), (2, 8), (4, 8), (4, 12), (32, 16), (64, 24)]
    assert [tuple(one) for one in sizes] == wanted
    assert str(sizes[-1]) == "batch 33-64, sources of 17-24 tokens"
    assert [str(bin_of([[0] * n]))[20:] for n in (1, 9, 13, 25)] == [
        "1-8 tokens", "9-12 tokens", "13-16 tokens", "25-32 tokens"
    ]  # fmt: skip


@pytest.mark.parametrize("compiled", ["greedy", "gad"])
def test_with_compile_the_best_two_are_tried_both_ways(monkeypatch, compiled):
    """The compiled forms are played by plain ones: this is about who is tried."""
    task, model, path = pair()
    ran: list[str] = []

    def costs(label, sentences):
        ran.append(label)
        if label.endswith("--compile"):
            slower = 0.1 * ("adaptive" in label)
            return 0.3 + slower if label.startswith(compiled) else 2.0
        return {"greedy": 1.0, GAD[0]: 0.5, GAD[2]: 0.55}.get(label, 0.9)

    original = AutoFastGenerator._generator

    def plain(self, label):
        return original(self, label.removesuffix(" --compile"))

    monkeypatch.setattr(AutoFastGenerator, "_generator", plain)
    generator = build(task, [model], costs, drafter_path=path, compile=True)
    run(task, [model], generator)
    assert {label for label in ran if "--compile" in label} <= {
        f"{label} --compile" for label in ("greedy", GAD[0], GAD[2])
    }
    wanted = {"greedy": "greedy --compile", "gad": f"{GAD[0]} --compile"}[compiled]
    assert generator._choices == {Bin(1, 8): wanted}


# ---- what comes out -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "best"),
    [("share_all", "greedy"), ("learned_positions", "hgj"), ("separate", "gad")],
)
def test_the_output_is_fairseqs_while_measuring_and_after(variant, best):
    """In every bin by itself."""
    task, model, path = pair(variant)

    def costs(label, sentences):
        return 0.5 if label.startswith(best if sentences > 1 else "greedy") else 1.0

    generator = build(task, [model], costs, drafter_path=path)
    for lengths in ((6,), RAGGED):
        run(task, [model], generator, lengths, times=BATCHES + 2)
    assert generator._choices[Bin(1, 8)] == "greedy"
    assert generator._choices[Bin(8, 12)].startswith(best)


@pytest.mark.parametrize("is_model", [True, False])
def test_with_prefixes_and_heads(is_model):
    task, model = built("default")
    headed = tiny_blockwise(task)
    flags = {} if is_model else {"drafter_path": lend_heads(task, model, headed.block_heads)}
    models = [headed if is_model else model]
    generator = build(task, models, costs_of(1.7, blockwise=0.5), **flags)
    for seed in range(BATCHES + 2):
        sample = batch(task, (5, 7), seed=seed)
        check(task, models, generator, sample, torch.tensor([[7, 9], [8, 1]]))
    assert all(choice.startswith("blockwise") for choice in generator._choices.values())


def test_weights_are_gathered_once_for_all():
    task, model, path = pair()
    generator = build(task, [model], costs_of(1.0), drafter_path=path)
    run(task, [model], generator, times=1)
    built_ones = [generator._generator(label) for label in generator.candidates]
    assert len({id(one.scorer) for one in built_ones}) == 1
    drafting = [one for one in built_ones if isinstance(one, GadGenerator)]
    assert len({id(one.draft_scorer) for one in drafting}) == 1 and len(drafting) == 3


def test_who_breaks_the_promise_is_out(monkeypatch, caplog):
    """One that lets wrong drafts pass, and would be the fastest."""
    task, model, path = pair()

    class Anything(ExactMatch):
        def accept(self, draft, choices, log_probs):
            return torch.full_like(draft[:, 0], draft.size(1)) if draft.numel() else draft.sum(1)

    monkeypatch.setattr(GadGenerator, "acceptance", lambda self: Anything())
    costs = costs_of(0.9, gad=0.2)
    generator = build(task, [model], costs, drafter_path=path)
    run(task, [model], generator)
    assert generator._broken & set(generator.candidates) == set(GAD)
    assert generator._choices[Bin(1, 8)] in HGJ
    assert f"{GAD[0]} differs from greedy" in caplog.text and "NOT a tie" in caplog.text


@pytest.mark.parametrize("is_tie", [True, False])
def test_a_tie_is_told_and_no_broken_promise(is_tie, caplog):
    """Equal scores are a tie only if both tokens can be of one distribution."""
    task, model, path = pair()
    generator = build(task, [model], costs_of(0.9, gad=0.2), drafter_path=path)
    inner = generator._decode_by

    def tied(label, net_input, rows, rules):
        hypos = inner(label, net_input, rows, rules)
        if label == GAD[0]:
            rows[0].tokens[0] = 4 + (rows[0].tokens[0] + 1) % 30
        rows[0].scores[0] = math.log(0.4 if is_tie else 0.9)
        return hypos

    generator._decode_by = tied
    batches = BATCHES if is_tie else 1
    for seed in range(batches):
        task.inference_step(generator, [model], batch(task, [6], seed))
    assert f"{GAD[0]} differs from greedy" in caplog.text
    assert ("a tie, as rounding" in caplog.text) == is_tie
    assert (GAD[0] in generator._broken) != is_tie


def test_greedy_takes_over_from_a_choice_that_was_wrong(tmp_path, caplog):
    """The first batches flattered it; what greedy would take is known from the outputs' lengths."""
    task, model, path = pair()
    file = tmp_path / "profile.json"
    made = [0]

    def costs(label, sentences):
        made[0] += 1
        late = generator._choices.get(Bin(1, 8)) == GAD[1]
        return {"greedy": 1.0, GAD[1]: 1.5 if late else 0.5}.get(label, 1.2)

    flags = {"drafter_path": path, "speed_profile": str(file)}
    generator = build(task, [model], costs, **flags)
    same = [(6,)] * BATCHES
    for lengths in same:
        task.inference_step(generator, [model], batch(task, lengths, 0))
        if generator._choices:
            break
    assert generator._choices == {Bin(1, 8): GAD[1]}
    with caplog.at_level("INFO"):
        for _ in range(BATCHES):
            assert generator._choices == {Bin(1, 8): GAD[1]}
            task.inference_step(generator, [model], batch(task, [6], 0))
    assert generator._choices == {Bin(1, 8): "greedy"}
    assert f"greedy from now on; {GAD[1]} took 1.50 times" in caplog.text
    second = build(task, [model], costs_of(1.0), **flags)
    run(task, [model], second, times=1)
    assert second._choices == {Bin(1, 8): "greedy"}


def test_who_fails_is_out(monkeypatch, caplog):
    """A drafter that breaks down costs a warning; greedy search goes on."""
    task, model, path = pair()
    generator = build(task, [model], costs_of(0.9, gad=0.2), drafter_path=path)

    def fail(*args):
        raise RuntimeError("out of something")

    monkeypatch.setattr(BlockDrafter, "propose", fail)
    run(task, [model], generator)
    assert set(GAD) <= generator._broken and "out of something" in caplog.text
    assert generator._choices[Bin(1, 8)] in HGJ


def test_audit_and_records(tmp_path):
    task, model, path = pair()
    files = {"stats_file": str(tmp_path / "s.jsonl"), "trace_file": str(tmp_path / "t.jsonl")}
    costs = costs_of(1.0, **{"gad__block-size 3": 0.5})
    generator = build(task, [model], costs, drafter_path=path, audit=True, **files)
    assert generator.lossless
    run(task, [model], generator, (6, 5), times=10)
    for name in files.values():
        with open(name, encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        assert [record["chosen"] for record in records[::2]] == [None] * 5 + [GAD[1]] * 5
        assert all(record["audit"]["identical"] for record in records)
        assert all(record["decoding"] == "auto_fast" for record in records)
        assert all(record["decoder_passes"] == len(record["num_accepted"]) for record in records)
        assert "trace" not in records[-1] or "draft" in records[-1]["trace"][0]


# ---- the profile --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_profile_is_written_and_read(tmp_path, caplog):
    task, model, path = pair()
    file = tmp_path / "profile.json"
    flags = {"drafter_path": path, "speed_profile": str(file)}
    first = build(task, [model], costs_of(1.0, **{"gad__block-size 3": 0.5}), **flags)
    run(task, [model], first)
    assert json.loads(file.read_text())["schema"] == "fairseq_paradec.speed_profile"
    caplog.clear()

    def never(label, sentences):
        assert label == GAD[1]
        return 1.0

    second = build(task, [model], never, **flags)
    run(task, [model], second, times=2)
    assert second._choices == {Bin(1, 8): GAD[1]}
    assert f"{GAD[1]}, 2.00x greedy (from --speed-profile {file})" in caplog.text
    script(second, costs_of(0.7))  # another bin is measured, and added
    second._warm = set(second.candidates)
    run(task, [model], second, RAGGED)
    (entry,) = json.loads(file.read_text())["profiles"]
    assert [(one["sentences"], one["source"]) for one in entry["bins"]] == [(1, 8), (8, 12)]
    assert [one for one in tmp_path.iterdir()] == [file]
    assert "measuring anew" not in caplog.text


@pytest.mark.parametrize("other", ["machine", "models", "drafter", "flags"])
def test_a_profile_of_others_is_kept_and_not_used(tmp_path, caplog, monkeypatch, other):
    task, model, path = pair()
    file = tmp_path / "profile.json"
    flags = {"drafter_path": path, "speed_profile": str(file)}
    run(task, [model], build(task, [model], costs_of(1.0, gad=0.5), **flags))
    before = json.loads(file.read_text())["profiles"]
    if other == "machine":
        monkeypatch.setattr(torch, "__version__", "9.9")
    if other == "models":
        model = built("share_all", seed=1)[1]
        model.extra = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    if other in ("models", "drafter"):
        seed = 3 if other == "drafter" else 2
        flags["drafter_path"] = lend(task, model, tiny_drafter(task, seed=seed))
    if other == "flags":
        flags["latency_budget_ms"] = 99.0
    generator = build(task, [model], costs_of(1.0, hgj=0.5), **flags)
    run(task, [model], generator, times=1)
    assert f"measured with another {other}; measuring anew" in caplog.text
    assert generator._choices == {}
    if other != "flags":
        run(task, [model], generator)
        assert generator._choices[Bin(1, 8)] in HGJ
        after = json.loads(file.read_text())["profiles"]
        assert after[0] == before[0] and len(after) == 2


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "3", '{"schema": "fairseq_paradec.decoding", "version": 1}', "\x00weights",
        '{"schema": "fairseq_paradec.speed_profile", "version": 2, "profiles": []}',
        '{"schema": "fairseq_paradec.speed_profile", "version": 1, "profiles": [{}]}',
        '{"schema": "fairseq_paradec.speed_profile", "version": 1, "profiles": [{"machine": 1, '
        '"models": 1, "drafter": 1, "flags": {"candidates": ["greedy"]}, "bins": [{"sentences": 1, '
        '"source": 1, "batches": 1, "seconds": 1, "ratios": {"greedy": -1}, "ms": {"greedy": 1}}'
        "]}]}",
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_refused_and_left(tmp_path, text):
    task, model = built("share_all")
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="--speed-profile: got .*profile.json"):
        build(task, [model], speed_profile=str(file))
    assert file.read_text() == text


def test_a_profile_that_cannot_be_written_is_refused_before(tmp_path):
    for path in (tmp_path / "none" / "x", tmp_path):
        with pytest.raises(UsageError, match="--speed-profile: got .*folder"):
            config(speed_profile=str(path))
    with pytest.raises(UsageError, match="--speed-profile: got ''"):
        config(speed_profile="")


def test_a_profile_that_goes_missing_costs_no_translation(tmp_path, caplog):
    task, model = built("share_all")
    folder = tmp_path / "folder"
    folder.mkdir()
    generator = build(task, [model], costs_of(2.0), speed_profile=str(folder / "x"))
    folder.rmdir()
    run(task, [model], generator)
    assert "--speed-profile" in caplog.text and "cannot be written" in caplog.text


# ---- a budget -----------------------------------------------------------------------------------


def budget_run(budget: float, seconds: dict[str, float], lengths=(6,), beam: int = 3):
    """The generator after measuring with a budget; seconds of a batch by the label's start."""
    task, model, path = pair()

    def costs(label, sentences):
        return next(s for name, s in seconds.items() if label.startswith(name))

    generator = build(task, [model], costs, drafter_path=path, latency_budget_ms=budget, beam=beam)
    assert not generator.lossless
    run(task, [model], generator, lengths)  # greedy's output while it measures
    return task, model, generator


SECONDS = {"beam": 0.4, "greedy": 0.1, "hgj": 0.09, "gad ": 0.05, LOOSE[0]: 0.03, LOOSE[1]: 0.02}


def test_nothing_fits(caplog):
    _, _, generator = budget_run(19.0, SECONDS)
    assert generator._choices == {Bin(1, 8): LOOSE[1]}
    assert "--latency-budget-ms 19: no decoder is as fast" in caplog.text
    assert f"the fastest, {LOOSE[1]}, takes 20.00 ms" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("with_prefix", [False, True])
def test_beams_output_is_fairseqs_beam_search(tmp_path, with_prefix):
    task, model, generator = budget_run(401.0, SECONDS, (6, 5), beam=3)
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


# ---- refusals -----------------------------------------------------------------------------------


def config(**options):
    return configure(argparse.Namespace(decoding="auto_fast", **options))


@pytest.mark.parametrize("name", ["audit", "trace_file"])
def test_what_a_budget_excludes(name, tmp_path):
    value = True if name == "audit" else str(tmp_path / "x")
    assert config(**{name: value})
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}.*--latency-budget-ms"):
        config(latency_budget_ms=3.0, **{name: value})


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), True])
def test_budgets_that_are_none(value):
    with pytest.raises(UsageError, match="--latency-budget-ms: got"):
        config(latency_budget_ms=value)


def test_a_beam_needs_a_budget():
    task, model = built("share_all")
    with pytest.raises(UsageError, match="--beam: got 4; allowed: 1 .*--latency-budget-ms"):
        build(task, [model], beam=4)
    with pytest.raises(UsageError, match="--beam: got 0"):
        build(task, [model], beam=0, latency_budget_ms=3.0)
    args = argparse.Namespace(decoding="auto_fast", beam=5)
    task.build_generator([model], args)
    assert args.beam == 1, "fairseq-generate prints it"


def test_models_that_it_does_not_decode():
    task, model, path = pair()
    with pytest.raises(UsageError, match="--path: got 'a model of --arch block_nat'"):
        build(task, [tiny_drafter(task)])
    with pytest.raises(UsageError, match="--decoding: got 'auto_fast'.*another order"):
        build(task, [tiny_reordered(built("share_all")[0])])
    shared = lend(task, model, tiny_drafter(task, verifier=model))
    with pytest.raises(UsageError, match="--path: got '2 models'"):
        build(task, [model, model], drafter_path=shared)
    headed = tiny_blockwise(task, "share_all")
    heads = lend_heads(task, model, headed.block_heads)
    with pytest.raises(UsageError, match="--path: got '2 models'"):
        build(task, [model, model], drafter_path=heads)
    heads = lend_heads(task, headed, headed.block_heads)
    with pytest.raises(UsageError, match="--drafter-path.*which has heads"):
        build(task, [headed], drafter_path=heads)


def test_a_drafter_may_be_no_verifiers_checkpoint():
    models, task = systems.loading.load(str(DEMO), str(DEMO / "model.pt"))
    with pytest.raises(UsageError, match="--drafter-path: got .*model.pt.*block_nat.*heads"):
        build(task, models, drafter_path=str(DEMO / "model.pt"))
    with pytest.raises(UsageError, match="--drafter-path"):
        build(task, models, drafter_path=str(DEMO / "dict.de.txt"))
    found = build(task, models, drafter_path=str(DEMO / "heads.pt"))
    assert any(label.startswith("blockwise") for label in found.candidates)
    found = build(task, models, drafter_path=str(DEMO_DRAFTER))
    assert any(label.startswith("gad ") for label in found.candidates)


# ---- commands -----------------------------------------------------------------------------------


def test_as_a_row_of_the_benchmark():
    path = str(DEMO / "model.pt")
    models = systems.Models(str(DEMO), "test", "fp32", "cpu")
    row = systems.FairseqSystem(
        f"auto_fast --drafter-path {DEMO_DRAFTER}", models, path, {"max_len_b": 60}
    )
    assert row.promise == systems.EXACT
    plain = systems.FairseqSystem("greedy", models, path, {"max_len_b": 60})
    assert row.parameters > plain.parameters
    for start in range(0, 20, 2):
        numbers = [start, start + 1]
        ours, theirs = row.translate(numbers), plain.translate(numbers)
        assert [one.text for one in ours] == [one.text for one in theirs]
    budget = systems.FairseqSystem("auto_fast --latency-budget-ms 50 --beam 4", models, path, {})
    assert budget.promise == systems.RELAXED
    with pytest.raises(UsageError, match="--beam"):
        systems.FairseqSystem("auto_fast --beam 4", models, path, {})


@pytest.mark.slow
def test_fairseq_generate(tmp_path):
    stats, profile = tmp_path / "stats.jsonl", tmp_path / "profile.json"
    common = [DEMO, "--user-dir", PLUGIN, "--path", DEMO / "model.pt", "--max-len-b", 60]
    common += ["--batch-size", 1]
    fast = [*common, "--decoding", "auto_fast", "--drafter-path", DEMO_DRAFTER]
    fast += ["--speed-profile", profile, "--audit", "--stats-file", stats]
    ours = succeed(fairseq("generate", *fast))
    assert len(lines_of(ours.stdout, "H")) == 100
    assert "audit: 100 of 100 sentences identical" in ours.stderr
    assert "auto_fast: batch 1, sources of 9-12 tokens: " in ours.stderr
    assert profile.exists()
    records = [json.loads(line) for line in stats.read_text().splitlines()]
    assert len(records) == 100 and any(record["chosen"] for record in records)
    again = succeed(fairseq("generate", *fast))
    assert f"(from --speed-profile {profile})" in again.stderr
    words = [{line.split("\t")[2] for line in lines_of(r.stdout, "H")} for r in (ours, again)]
    assert words[0] == words[1]


def test_the_block_sizes_here_are_the_builders():
    assert DRAFTER_BLOCK_SIZE == 6 and len(dictionary()) < 4000
