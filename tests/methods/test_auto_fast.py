"""--decoding auto_fast: who is chosen, by a scripted clock; the output, by fairseq's search."""

import argparse
import errno
import functools
import json
import logging
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pytest import approx
from reference.greedy import stock_greedy
from support import assisted, builders
from support.beam_drafts import fairseqs
from support.builders import DEMO, DEMO_DRAFTER, HEADS_BLOCK_SIZE, batch, built, lend, tiny_drafter
from support.commands import PLUGIN, fairseq, succeed
from support.trace_records import read

from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.engine.native.library import halves
from fairseq_paradec.engine.settings import Engine
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods.auto_fast import AutoFastDecoder
from fairseq_paradec.methods.auto_fast import choose as choosing
from fairseq_paradec.methods.auto_fast.candidates import BEAM, LOSSLESS, RELAXED
from fairseq_paradec.methods.auto_fast.choose import BATCHES
from fairseq_paradec.methods.auto_fast.profile import KEYS, Bin, SpeedProfile
from fairseq_paradec.methods.gad import BlockDrafter, GadDecoder

LIMITS = builders.Limits(max_len_b=7)
HGJ = [f"hgj --block-size {size} --jacobi-window sliding" for size in (3, 5, "5 --adaptive-block")]
GAD = [f"gad --block-size {size}" for size in ("6", "3", "6 --adaptive-block")]
LOOSE = [
    f"gad_pp --block-size 6 --accept-topk {rule}"
    for rule in ("3 --accept-margin 1.0", "5 --accept-margin 3.0")
]
OWN = [
    f"blockwise --block-size {size}"
    for size in (HEADS_BLOCK_SIZE, HEADS_BLOCK_SIZE // 2, f"{HEADS_BLOCK_SIZE} --adaptive-block")
]
ASSISTED = [f"assisted --block-size {size}" for size in (4, 12)]
SELF = "self_draft"
FIRST = Bin(1, 8)
SIX = (3, 7, 5, 9, 2, 4)  # a batch of another bin


@pytest.fixture(autouse=True)
def _set_up(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(choosing, "SECONDS", 1e6)  # scripted clocks go fast


@functools.cache
def pair():
    """A task, a verifier, and the path of a drafter for it."""
    task, model = built("share_all")
    return task, model, lend(task, model, tiny_drafter(task, seed=2))


def build(task, models, costs=None, **flags):
    """The decoder; its clock goes on by ``costs(label, sentences)`` alone, if they are given."""
    args = argparse.Namespace(**LIMITS.flags(), decoding="auto_fast", **flags)
    generator = task.build_generator(list(models), args).decoder
    generator.of = task, list(models)
    now, inner = [0.0], functools.partial(AutoFastDecoder._decode_by, generator)

    def decode_by(label, net_input, rows, rules):
        hypos = inner(label, net_input, rows, rules)
        now[0] += costs(label, len(rows))
        return hypos

    if costs is not None:
        generator._decode_by, generator.timer = decode_by, lambda: now[0]
    return generator


def paired(costs, **flags):
    """The decoder of a verifier with a drafter."""
    task, model, path = pair()
    return build(task, [model], costs, **{"drafter_path": path} | flags)


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


def test_candidates_follow_models_and_drafters():
    task, model, path = pair()
    headed = builders.tiny_blockwise(task, "share_all")
    heads = builders.lend_heads(task, model, headed.block_heads)
    own_drafter = lend(task, headed, tiny_drafter(task))
    for models, flags, wanted in (
        ([model, model], {}, [*HGJ, SELF]),
        ([model], {"drafter_path": path}, [*HGJ, *GAD, SELF]),
        ([headed], {"engine_dtype": "int8"}, [*HGJ, *([SELF] if halves() else []), *OWN]),
        ([headed], {"engine_dtype": "int8", "engine": "torch"}, [*HGJ, *OWN]),
        ([headed, headed], {}, [*HGJ, SELF]),
        ([model], {"drafter_path": heads}, [*HGJ, SELF, *OWN]),
        ([headed], {"drafter_path": own_drafter}, [*HGJ, *GAD, SELF, *OWN]),
        ([model], {"drafter_path": lend(task, model, model)}, [*HGJ, *ASSISTED, SELF]),
    ):
        generator = build(task, models, **flags)
        assert list(generator.candidates) == ["greedy", *wanted]
        for label in wanted[3:]:
            own = label in OWN and models == [headed]
            path_of = generator.candidates[label].config.drafter_path
            assert path_of == (None if own else flags.get("drafter_path")) or label == SELF
    found = build(task, [model], drafter_path=path, latency_budget_ms=9.0, beam=4)
    assert list(found.candidates) == ["beam --beam 4", "greedy", *HGJ, *GAD, *LOOSE, SELF]
    assert list(found.quality.values()) == [BEAM] + 7 * [LOSSLESS] + 2 * [RELAXED] + [LOSSLESS]


QUALITY = {"beam": BEAM, "greedy": LOSSLESS, "hgj": LOSSLESS, "gad": LOSSLESS, "gad_pp": RELAXED}
MS = {"beam": 40.0, "greedy": 10.0, "hgj": 9.0, "gad": 5.0, "gad_pp": 2.0}


def test_who_is_chosen():
    for budget, changes, wanted in (
        (None, {}, "gad"),  # the fastest lossless one, if it beats greedy by two percent
        (None, {"gad": 14.0, "hgj": 9.79}, "hgj"),
        (None, {"gad": 14.0, "hgj": 9.85}, "greedy"),
        (40.0, {}, "beam"),  # the best quality within the budget
        (39.9, {}, "gad"),
        (1.9, {}, "gad_pp"),  # the fastest
        (10.0, {"hgj": 30.0, "gad": 30.0}, "greedy"),
        (9.5, {"gad": 9.6}, "hgj"),
    ):
        ms = MS | changes
        ratios = {label: value / ms["greedy"] for label, value in ms.items()}
        choice = choosing.choose(ratios, ms, QUALITY, {"gad": 3.0, "hgj": 1.5}, budget)
        assert (choice.label, choice.in_budget) == (wanted, budget != 1.9)
        if wanted == "greedy" and budget is None:  # hgj takes 0.985 of greedy's time
            assert "hgj, is 1.02x" in choice.reason
            assert "write 1.50 tokens, and pay from about 1.48" in choice.reason


def test_what_is_measured_is_the_mean_and_its_standard_error(monkeypatch):
    trial = choosing.Trial(["greedy", "a"])
    wrote = {"greedy": [[{"tokens": [5] * 10, "steps": 10}]] * 4}
    wrote["a"] = [[{"tokens": [5] * 10, "steps": 4}, {"tokens": [5], "steps": 4}]] * 4
    for seconds in (0.2, 0.6, 0.4):
        trial.add({"greedy": 2.0, "a": seconds}, wrote, 10)
    found = trial.measured(set())
    assert found.ratios == {"greedy": 1.0, "a": approx(0.2 + 0.1 / 3**0.5)}
    assert found.ms == {"greedy": 500.0, "a": 150.0}
    assert found.tokens == {"greedy": 1.0, "a": 2.5}
    assert (found.batches, found.seconds, found.pass_seconds) == (3, approx(1.2), approx(0.2))
    assert list(trial.measured({"a"}).ratios) == ["greedy"]
    for label, values in (("greedy", [1.0] * 8), ("a", [0.5] * 7 + [5.0]), ("out", [0.1] * 3)):
        trial.ratios[label], trial.ms[label], trial.written[label] = values, values, (1, 1)
    assert trial.measured(set()).ratios == {"greedy": 1.0, "a": 0.5}  # a stall; one dropped out
    monkeypatch.setattr(choosing, "SECONDS", 10.0)
    for running, batches, seconds, done in (
        ("greedy a", BATCHES - 1, 0.0, False),
        ("greedy a", BATCHES, 0.0, True),
        ("greedy a", 3, 11.0, True),
        ("greedy", 2, 0.0, True),
        ("a", 8, 0.0, True),
    ):
        begun = choosing.Trial(running.split(), trial.ratios, batches=batches, seconds=seconds)
        assert begun.is_done == done


def test_a_candidate_that_was_never_faster_drops_out_after_four_batches():
    trial = choosing.Trial(["greedy", "never", "once"])
    for number in range(4):
        assert trial.running == ["greedy", "never", "once"]
        for label, ratio in (("greedy", 1.0), ("never", 1.01), ("once", 1.01 if number else 0.99)):
            trial.ratios.setdefault(label, []).append(ratio)
        trial.drop(["greedy", "never", "once"])
    assert trial.running == ["greedy", "once"]


def test_the_fastest_is_chosen_and_only_it_runs_from_then_on(tmp_path, caplog, monkeypatch):
    times = {"greedy": 1.0, GAD[1]: 0.5, GAD[0]: 0.4, HGJ[0]: 0.64}
    ran, stats = [], tmp_path / "stats.jsonl"

    def costs(label, sentences):
        ran.append(label)
        return times.get(label, 0.9)

    generator = paired(costs, audit=True, stats_file=str(stats))
    run(generator)
    best = GAD[0]
    assert generator._choices == {FIRST: best}
    assert f"{best}, 2.50x greedy (measured on 8 batches, " in caplog.text
    # Once to warm up; one dropped out.
    assert [ran.count(one) for one in ("greedy", HGJ[1])] == [8 + 1, 3 + 1]
    ran.clear()
    run(generator, times=3)
    assert ran == [best] * 3
    records = read(stats)
    assert [one["chosen"] for one in records] == [None] * 8 + [best] * (BATCHES - 8 + 3)
    for one in records:
        assert one["audit"]["identical"] and one["decoder_passes"] == len(one["num_accepted"])
    ones = [generator._generator(label) for label in generator.candidates]
    assert len({id(one.scorer) for one in ones}) == 1, "weights are gathered once for all"


@pytest.mark.parametrize(
    ("variant", "best"), [("learned_positions", "hgj"), ("default", "own"), ("prenorm", "assisted")]
)
def test_each_bin_has_its_choice_and_fairseqs_output(variant, best, caplog):
    """With heads beside the model, outputs begin with given tokens."""
    path, prefix = None, None
    task, model = built(variant)
    if best == "own":
        path = builders.lend_heads(task, model, builders.tiny_blockwise(task).block_heads)
        best, prefix = "blockwise", torch.tensor([[7, 9]])
    if best == "assisted":
        path = lend(task, model, assisted.drafter(variant, "noisy", torch.float64))

    def costs(label, sentences):
        return 1.0 if label.startswith(best if sentences > 1 else "greedy") else 1.7

    generator = build(task, [model], costs, drafter_path=path)
    for lengths in ((6,), SIX):
        given = None if prefix is None else prefix.expand(len(lengths), 2)
        run(generator, lengths, BATCHES + 2, given)
    assert generator._choices[FIRST] == "greedy"
    assert "batch 1, sources of 1-8 tokens: greedy; the next best," in caplog.text
    assert re.search("is 0.59x as fast: its passes write .* \\(measured on 2 batches", caplog.text)
    assert generator._choices[Bin(8, 12)].startswith(best)


class Anything(ExactMatch):
    """A rule that lets every draft pass."""

    def accept(self, draft, scored):
        return np.full(len(draft), draft.shape[1])


@pytest.mark.parametrize(
    ("place", "name", "wrong", "said"),
    [
        (BlockDrafter, "propose", lambda *given: 1 / 0, "division by zero"),
        (GadDecoder, "acceptance", lambda self: Anything(), "NOT a tie"),
    ],
)
def test_who_breaks_the_promise_is_out(monkeypatch, caplog, place, name, wrong, said):
    """Though it would be the fastest."""
    generator = paired(costs_of(0.9, {"gad": 0.2}))
    monkeypatch.setattr(place, name, wrong)
    run(generator)
    assert generator._excluded & set(generator.candidates) == set(GAD)
    assert generator._choices[FIRST] in [*HGJ, SELF] and said in caplog.text


@pytest.mark.parametrize(
    ("score", "dtype", "apart", "is_tie"),
    [
        (0.4, None, 0.0, True),
        (0.9, None, 0.0, False),
        (0.4, None, 0.01, False),
        *((0.4, dtype, apart, True) for dtype, apart in (("fp16", 0.01), ("bf16", 0.1))),
        *((0.4, dtype, apart, False) for dtype, apart in (("fp16", 0.1), ("bf16", 0.2))),
    ],
)
def test_a_tie_is_told_and_no_broken_promise(score, dtype, apart, is_tie, caplog):
    """Scores as near as rounding brings them, if both tokens can be of one distribution."""
    generator = paired(costs_of(0.9, {"gad": 0.2}))
    generator.engine = Engine(dtype)
    task, models = generator.of
    inner = generator._decode_by

    def tied(label, net_input, rows, rules):
        hypos = inner(label, net_input, rows, rules)
        if label == GAD[0]:
            rows[0].tokens[0] = 4 + (rows[0].tokens[0] + 1) % 30
        rows[0].scores[0] = math.log(score) - (apart if label == GAD[0] else 0)
        return hypos

    generator._decode_by = tied
    for seed in range(BATCHES if is_tie else 1):
        task.inference_step(generator, models, batch(task, [6], seed))
    assert f"{GAD[0]} differs from greedy" in caplog.text
    assert ("a tie, as rounding" in caplog.text) == is_tie
    assert (GAD[0] in generator._excluded) != is_tie


def test_greedy_takes_over_from_a_choice_that_was_wrong(caplog):
    """The first batches flattered it; what greedy would take is known from the outputs' lengths."""

    def costs(label, sentences):
        late = generator._choices.get(FIRST) == GAD[1]
        return {"greedy": 1.0, GAD[1]: 1.5 if late else 0.5}.get(label, 1.2)

    generator = paired(costs)
    task, models = generator.of
    watched = 0
    while generator._choices.get(FIRST) != "greedy":
        watched += bool(generator._choices)
        task.inference_step(generator, models, batch(task, [6], 0))
        assert generator._choices.get(FIRST, GAD[1]) in (GAD[1], "greedy")
    assert watched == BATCHES
    assert f"greedy from now on; {GAD[1]} took 1.50 times" in caplog.text


def test_a_profile_is_used_by_its_own_and_kept_for_them(tmp_path, caplog, monkeypatch):
    file = tmp_path / "profile.json"
    flags, costs = {"speed_profile": str(file)}, costs_of(1.0, {GAD[1]: 0.5})
    run(paired(costs, **flags))
    again = paired(costs_of(9.0, {GAD[1]: 1.0}), **flags)
    run(again, times=1)
    assert f"{GAD[1]}, 2.00x greedy (from --speed-profile {file})" in caplog.text
    again._warm = set(again.candidates)
    run(again, SIX)  # another bin is measured, and added
    (before,) = json.loads(file.read_text())["profiles"]
    assert [(one["sentences"], one["source"]) for one in before["bins"]] == [(1, 8), (8, 12)]
    assert list(tmp_path.iterdir()) == [file] and "anew" not in caplog.text

    task, model, path = pair()
    deeper = builders.tiny_model(task, "share_all", decoder_layers=3)
    other = lend(task, model, tiny_drafter(task, seed=3))
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
    after = json.loads(file.read_text())["profiles"]
    assert after[0] == before and len(after) == 2


def test_that_a_profile_cannot_be_written_is_said_once(tmp_path, caplog, monkeypatch):
    def fail(*given, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    profile = SpeedProfile(str(tmp_path / "profile.json"))
    assert profile.open(dict.fromkeys(KEYS, {"candidates": ["greedy"]})) == {}
    monkeypatch.setattr(Path, "write_text", fail)
    for _ in range(3):
        profile.save({})
    assert [r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage()] == [
        f"--speed-profile {tmp_path}/profile.json: cannot be written (No space left on device)"
    ]


PROFILES = '{"schema": "fairseq_paradec.speed_profile", "version": %d, "profiles": [%s]}'


def test_a_damaged_or_foreign_file_is_refused_and_left(tmp_path):
    file = tmp_path / "profile.json"
    for text in ("{", '{"schema": "x", "version": 1}', PROFILES % (1, ""), PROFILES % (2, "{}")):
        file.write_text(text)
        with pytest.raises(UsageError, match="--speed-profile: got .*profile.json"):
            paired(None, speed_profile=str(file))
        assert file.read_text() == text


def test_what_does_not_fit_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task, model, path = pair()
    headed = builders.tiny_blockwise(task, "share_all")
    shared = lend(task, model, tiny_drafter(task, verifier=model))
    heads = builders.lend_heads(task, headed, headed.block_heads)
    reordered = builders.tiny_reordered(built("share_all")[0])
    budget = {"latency_budget_ms": 3.0}
    for said, models, drafter, flags in (
        ("--speed-profile: got .*folder", [model], path, {"speed_profile": "none/x"}),
        ("--audit.*--latency-budget-ms", [model], path, budget | {"audit": True}),
        ("--latency-budget-ms: got nan", [model], path, {"latency_budget_ms": math.nan}),
        ("--nbest: got 2", [model], path, budget | {"nbest": 2, "beam": 4}),
        ("--path: got 'a model of --arch block_nat'", [tiny_drafter(task)], None, {}),
        ("'auto_fast'.*another order", [reordered], None, {}),
        ("--path: got '2 models'", [model, model], shared, {}),
        ("--drafter-path .* excludes a model with heads", [headed], heads, {}),
        ("--drafter-path: got .*model.pt.*7944 symbols", [model], str(DEMO / "model.pt"), {}),
    ):
        with pytest.raises(UsageError, match=said):
            build(task, models, drafter_path=drafter, **flags)


@pytest.mark.slow
def test_fairseq_generate(tmp_path):
    stats, profile = tmp_path / "stats.jsonl", tmp_path / "profile.json"
    fast = [DEMO, "--user-dir", PLUGIN, "--path", DEMO / "model.pt", "--max-len-b", 60]
    fast += ["--batch-size", 1, "--decoding", "auto_fast", "--drafter-path", DEMO_DRAFTER]
    fast += ["--speed-profile", profile, "--audit", "--stats-file", stats]
    ours = succeed(fairseq("generate", *fast))
    assert "audit: 100 of 100 sentences identical" in ours.stderr
    assert "auto_fast: batch 1, sources of 9-12 tokens: " in ours.stderr
    records = read(stats)
    assert len(records) == 100 and any(record["chosen"] for record in records)
    assert profile.is_file()


PLAIN = "multiword_beam --beam 3"


@pytest.mark.parametrize(
    ("drafted", "deepest", "chosen"),
    [(0.5, 0.7, "assisted"), (1.2, 0.9, "assisted"), (1.2, 1.1, PLAIN)],
)
def test_a_beam_is_drafted_where_that_is_faster(drafted, deepest, chosen, caplog):
    """The plain search is the yardstick; n-best lists are fairseq's, whatever decodes."""
    task, model = built("default")
    caplog.set_level("INFO")
    known = {PLAIN: 1.0, "assisted --beam 3 --block-size 12": deepest}
    flags = {"beam": 3, "nbest": 3, "drafter_path": lend(task, model, model)}
    generator = build(task, [model], costs_of(drafted, known), **flags)
    depths = [f"--beam 3 --block-size {depth}" for depth in (4, 8, 12)]
    others = [f"{name} {more}" for name in ("assisted", "self_draft") for more in depths]
    assert list(generator.candidates) == [PLAIN, *others]
    for seed in range(BATCHES + 2):
        sample = batch(task, (6,), seed=seed)
        (got,) = task.inference_step(generator, [model], sample)
        (want,) = fairseqs(task, [model], sample, 3, LIMITS)
        assert [one["tokens"].tolist() for one in got] == [one["tokens"].tolist() for one in want]
    (choice,) = generator._choices.values()
    assert generator.quality[choice] == LOSSLESS
    times = {label: costs_of(drafted, known)(label, 1) for label in (PLAIN, *others)}
    assert times[choice] == min(times.values())
    assert f"auto_fast: batch 1, sources of 1-8 tokens: {choice}" in caplog.text
    assert not generator.lossless and choice.startswith(chosen.split()[0])


def test_without_a_beam_auto_fast_is_greedy():
    task, model = built("default")
    for flags in ({}, {"beam": 1}):
        generator = build(task, [model], **flags)
        assert generator.base == "greedy" and generator.lossless
    assert build(task, [model], latency_budget_ms=9.0).config.beam == 5
