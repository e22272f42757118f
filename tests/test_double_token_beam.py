"""--decoding double_token_beam against a slow twin and brute force."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reference import double_token_beam as paper
from reference.multiword_beam import Hypothesis, Output, asker
from support.builders import Limits, batch, built, source_rows, tiny_reordered, tiny_task
from support.multiword import LIMITS, PREFIXES, RAGGED, assert_same, ranking, rules_of
from support.multiword import reordered as multiword_model
from support.multiword import run as run_search
from support.orders import spec_of

from fairseq_paradec.errors import UsageError

pytestmark = pytest.mark.usefixtures("exact_softmax")

#: Presets with options and a seed whose outputs have many lengths.
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "double_token": ("double_token", 14, {}),
    "double_token_l2r": ("double_token_l2r", 14, {}),
    "double_token_r2l": ("double_token_r2l", 14, {}),
    "middle": ("double_token", 14, {"middle_to_side": True}),
    "vanilla_mask": ("double_token", 14, {"vanilla_mask": True}),
}


def reordered(given: str, size: int = 40, seed: int | None = None) -> tuple[Any, Any]:
    """A task and its model, one of MODELS."""
    arch, own, options = MODELS[given]
    task = tiny_task(size=size)
    return task, tiny_reordered(task, arch, seed=own if seed is None else seed, **options)


def run(*args: Any, **flags: Any) -> list[list[dict[str, Any]]]:
    """All hypotheses of each row; see test_multiword_beam.run."""
    return run_search(*args, **{"decoding": "double_token_beam"} | flags)


def twin(models: Sequence[Any], source: Sequence[int], beam: int, limits: Limits) -> list[Output]:
    """What Algorithm 1 makes of one sentence."""
    spec, rules = spec_of(models[0].target_order), rules_of(models[0], len(source), limits)
    finished = paper.search(asker(models, spec, source, rules), rules, beam, ranking(limits))
    return paper.outputs(finished, spec, rules.eos, ranking(limits))


# ---- the twin -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", MODELS)
def test_ragged_batches_are_the_twins(given: str) -> None:
    """Sentences that end at different steps: all their hypotheses, with one and two EODs."""
    task, model = reordered(given)
    limits, lengths = Limits(max_len_b=11), set()
    for beam in (1, 2, 3, 5):
        sample = batch(task, RAGGED, seed=beam)
        hypos = run(task, [model], sample, beam, limits)
        for source, got in zip(source_rows(sample), hypos, strict=True):
            want = twin([model], source, beam, limits)
            assert_same(got, want)
            assert 1 <= len(want) <= beam
            lengths |= {len(output.tokens) % 2 for output in want}
    assert lengths == {0, 1}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("given", ["double_token", "double_token_r2l"])
def test_limits_are_the_twins(given: str, limits: Limits) -> None:
    """Minimal and maximal lengths within a pair, penalties, temperature, the model's positions."""
    task, model = reordered(given)
    sample = batch(task, (4, 9, 2), seed=3)
    for beam in (1, 3):
        hypos = run(task, [model], sample, beam, limits)
        for source, got in zip(source_rows(sample), hypos, strict=True):
            assert_same(got, twin([model], source, beam, limits))
            top = rules_of(model, len(source), limits).max_len
            assert all(limits.min_len < len(h["tokens"]) <= top + 1 for h in got)


@pytest.mark.parametrize("end", [-1.0, 1.5, 8.0])
def test_a_step_is_the_twins(end: float) -> None:
    """Random scores, also where most pairs end: of 3W, W do not. A word is impossible."""
    task, model = reordered("double_token")
    for seed, beam in enumerate((1, 2, 3, 5)):
        generator = torch.Generator().manual_seed(seed)
        width = beam if seed % 2 else 1
        tables = torch.randn(1, width, 2, 9, generator=generator, dtype=torch.float64)
        tables[..., 2] += end
        tables[..., [1, 4]] = -torch.inf
        tables = tables.log_softmax(dim=-1)
        scores = torch.randn(1, width, generator=generator, dtype=torch.float64)
        live = [Hypothesis((p,), (float(scores[0, p]),)) for p in range(width)]
        pairs = paper.double_top_k(live, tables[0].tolist(), eod=2, width=beam)
        alive = [one for one in pairs if 2 not in one.slots[1:]][:beam]
        assert len(alive) == beam  # why the paper takes 3W
        wanted = ([one for one in pairs[:beam] if 2 in one.slots[1:]], alive)
        search = task.build_generator([model], argparse.Namespace(**Limits().flags(), beam=beam))
        for got, want in zip(search.extend(tables.clone(), scores.clone()), wanted, strict=True):
            found = zip(got.parents[0].tolist(), got.words[0].tolist(), got.scores[0].tolist())
            found = [one for one in found if one[2] > -math.inf]
            assert [(p, *w) for p, w, _ in found] == [one.slots for one in want]
            assert [s for *_, s in found] == pytest.approx([one.total for one in want])


def test_an_ensemble_averages_probabilities() -> None:
    """Two models of one order; two of different orders are refused."""
    task, first = reordered("double_token")
    _, second = reordered("double_token", seed=2)
    sample, limits = batch(task, RAGGED, seed=1), Limits(max_len_b=11, temperature=1.3)
    hypos = run(task, [first, second], sample, 3, limits)
    for source, got in zip(source_rows(sample), hypos, strict=True):
        assert_same(got, twin([first, second], source, 3, limits))
    _, other = reordered("double_token_l2r")
    with pytest.raises(UsageError, match="^--path: "):
        run(task, [first, other], sample, 3, limits)


@pytest.mark.parametrize("unnormalized", [False, True])
@pytest.mark.parametrize("given", ["double_token", "double_token_r2l"])
def test_a_beam_that_holds_everything_is_exact(given: str, unnormalized: bool) -> None:
    """Two pairs, and a beam as wide as there are outputs: all of them, the best one first."""
    task, model = reordered(given, size=6)
    limits = Limits(max_len_b=3, unnormalized=unnormalized)
    sample = batch(task, (4,), seed=2)
    (source,) = source_rows(sample)
    spec, rules = spec_of(model.target_order), rules_of(model, len(source), limits)
    everything = paper.every_output(asker([model], spec, source, rules), rules)
    assert len(everything) == 4 + 4**2 + 4**3  # 1 to 3 words: neither <pad> nor </s>
    want = paper.outputs(everything, spec, 2, ranking(limits))
    (got,) = run(task, [model], sample, 5**4, limits)
    assert_same(got, want)


def test_the_twin_by_hand() -> None:
    """Tokens 0, 1 and EOD, 2; W = 1: two left words, three pairs, the best of which counts."""
    first = [[-1.0, -3.0, -2.0], [-1.5, -2.5, -0.5]]  # left, right
    second = [[-4.0, -5.0, -0.1], [-1.0, -0.7, -0.2]]
    pairs = paper.double_top_k([Hypothesis()], [first], eod=2, width=1)
    # Lefts 0 and EOD; EOD goes with EOD only.
    assert [one.slots for one in pairs] == [(0, 2), (0, 0), (2, 2)]
    assert [one.total for one in pairs] == pytest.approx([-1.5, -2.5, -2.5])
    first[1][2] = -math.inf  # no EOD on the right: left EODs are impossible, too
    pairs = paper.double_top_k([Hypothesis()], [first], eod=2, width=1)
    assert [one.slots for one in pairs] == [(0, 0), (0, 1)]
    rules, rank = rules_of(multiword_model("ibdecoder")[1], 3, Limits()), ranking(Limits())
    (found,) = paper.search(
        lambda found: [[first, second][len(slots) // 2] for slots in found], rules, 1, rank
    )
    assert found.slots == (0, 0, 2, 2)
    spec = spec_of(reordered("double_token")[1].target_order)
    (output,) = paper.outputs([found], spec, 2, rank)
    assert output.tokens == [0, 0, 2]
    assert output.scores == pytest.approx([-1.0, -1.5, -0.3])
    assert output.score == pytest.approx(-2.8 / 3)


# ---- wrong ways to decode -----------------------------------------------------------------------


def test_other_models_decodings_and_prefixes_are_refused() -> None:
    """Each has one search, and the message names it; Algorithm 1 knows of no prefixes."""
    task, model = reordered("double_token")
    sample = batch(task, RAGGED)
    for decoding in ("hgj", "multiword_beam"):
        with pytest.raises(UsageError, match=f"^--decoding: got '{decoding}'; .*double_token_beam"):
            run(task, [model], sample, 2, Limits(), decoding=decoding)
    with pytest.raises(UsageError, match="^--prefix-size: got 3; allowed: 0"):
        run(task, [model], sample, 2, Limits(), PREFIXES)
    task, plain = built("default")
    with pytest.raises(UsageError, match="^--path: .*double_token"):
        run(task, [plain], sample, 2, Limits())
    task, model = multiword_model("ibdecoder")
    with pytest.raises(UsageError, match="^--decoding: got 'double_token_beam'; .*multiword_beam"):
        run(task, [model], sample, 2, Limits())


def test_auto_is_the_models_own_search() -> None:
    task, model = reordered("double_token")
    sample = batch(task, RAGGED)
    found = [run(task, [model], sample, 3, Limits(), **how) for how in ({"decoding": "auto"}, {})]
    for ours, theirs in zip(*found, strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
