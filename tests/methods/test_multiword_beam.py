"""--decoding multiword_beam and double_token_beam: slow twins, fairseq's beam, and brute force."""

import argparse
import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from reference import double_token_beam as pairs
from reference import multiword_beam as paper
from reference.greedy import fairseqs_search
from support import multiword
from support.builders import BANNED, Limits, batch, built, source_rows
from support.multiword import MODELS, PREFIXES, RAGGED, assert_same, reordered, run, twin

from fairseq_paradec.engine.native.beam import native_extend
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods.multiword_beam import extend
from fairseq_paradec.token_rules import Best

pytestmark = pytest.mark.usefixtures("exact_softmax")

#: fairseq's limits: none, and each of them in turn.
LIMITS: dict[str, Limits] = {
    "model": Limits(max_len_b=200),
    "short": Limits(max_len_b=5, lenpen=0.6),
    "ratio": Limits(max_len_a=0.8, max_len_b=2, lenpen=0.0),
    "empty": Limits(min_len=0, max_len_b=9),
    "min": Limits(min_len=6, max_len_b=9, unnormalized=True),
    "penalties": Limits(unkpen=3.0, temperature=1.7, lenpen=1.6, max_len_b=9),
}


def same_as_twin(
    models: Sequence[Any], task: Any, lengths: Sequence[int], seed: int, beam: int, limits: Limits
) -> set[int]:
    """Check all hypotheses of all rows against the twin, and return their lengths."""
    sample, found = batch(task, lengths, seed=seed), set()
    hypos = run(task, models, sample, beam, limits)
    for source, got in zip(source_rows(sample), hypos, strict=True):
        want = twin(models, source, beam, limits)
        assert_same(got, want)
        assert 1 <= len(want) <= beam
        found |= {len(output.tokens) for output in want}
    return found


@pytest.mark.parametrize("given", MODELS)
def test_ragged_batches_are_the_twins(given: str) -> None:
    """Sentences that end at different steps, some at the limit, with one and two EODs."""
    task, model = reordered(given)
    lengths = [same_as_twin([model], task, RAGGED, n, n, Limits(max_len_b=11)) for n in (1, 2, 5)]
    assert {n % 2 for n in set().union(*lengths)} == {0, 1}, "outputs should differ in length"


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("given", ["double_token", "double_token_r2l"])
def test_limits_of_pairs_are_the_twins(given: str, limits: Limits) -> None:
    """Minimal and maximal lengths within a pair, penalties, temperature, the model's positions."""
    task, model = reordered(given)
    for beam in (1, 3):
        found = same_as_twin([model], task, (4, 9, 2), 3, beam, limits)
        top = multiword.rules_of(model, 9, limits).max_len
        assert limits.min_len < min(found) and max(found) <= top + 1


@pytest.mark.parametrize("given", ["ibdecoder_sa", "double_token"])
def test_an_ensemble_averages_probabilities(given: str) -> None:
    """Two models of one order; two of different orders are refused."""
    task, first = reordered(given)
    _, second = reordered(given, seed=2)
    same_as_twin([first, second], task, RAGGED, 1, 3, Limits(max_len_b=11, temperature=1.3))
    _, other = reordered("double_token_l2r")
    for flags in ({}, {"decoding": "multiword_beam"}, {"score_reference": True}):
        with pytest.raises(UsageError, match="^--path: .*different target orders"):
            task.build_generator([first, other], argparse.Namespace(**flags))


@pytest.mark.parametrize("end", [-1.0, 1.5, 8.0])
def test_a_step_of_pairs_is_the_twins(end: float) -> None:
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
        live = [paper.Hypothesis((p,), (float(scores[0, p]),)) for p in range(width)]
        best = pairs.double_top_k(live, tables[0].tolist(), eod=2, width=beam)
        alive = [one for one in best if 2 not in one.slots[1:]][:beam]
        assert len(alive) == beam  # why the paper takes 3W
        wanted = ([one for one in best[:beam] if 2 in one.slots[1:]], alive)
        args = argparse.Namespace(**Limits().flags(), beam=beam)
        search = task.build_generator([model], args).decoder
        values, tokens = tables.topk(min(search.most_words, 9))
        given = Best(tokens.numpy(), values.numpy(), tables[..., 2].numpy())
        for got, want in zip(search.extend(given, scores.numpy()), wanted, strict=True):
            found = zip(got.parents[0].tolist(), got.words[0].tolist(), got.scores[0].tolist())
            found = [one for one in found if one[2] > -math.inf]
            assert [(p, *w) for p, w, _ in found] == [one.slots for one in want]
            assert [s for *_, s in found] == pytest.approx([one.total for one in want])


def test_the_twin_of_pairs_by_hand() -> None:
    """Tokens 0, 1 and EOD, 2; W = 1: two left words, three pairs, the best of which counts."""
    first = [[-1.0, -3.0, -2.0], [-1.5, -2.5, -0.5]]  # left, right
    found = pairs.double_top_k([paper.Hypothesis()], [first], eod=2, width=1)
    # Lefts 0 and EOD; EOD goes with EOD only.
    assert [one.slots for one in found] == [(0, 2), (0, 0), (2, 2)]
    assert [one.total for one in found] == pytest.approx([-1.5, -2.5, -2.5])
    first[1][2] = -math.inf  # no EOD on the right: left EODs are impossible, too
    found = pairs.double_top_k([paper.Hypothesis()], [first], eod=2, width=1)
    assert [one.slots for one in found] == [(0, 0), (0, 1)]


@pytest.mark.parametrize("unnormalized", [False, True])
@pytest.mark.parametrize(
    "given, size, max_len",
    [("sa_transformer", 6, 3), ("ibdecoder_sa", 5, 7), ("imdecoder", 5, 7), ("double_token", 6, 3)],
)
def test_a_beam_that_holds_everything_is_exact(
    given: str, size: int, max_len: int, unnormalized: bool
) -> None:
    """Two steps, and a beam as wide as there are outputs: all of them, the best one first."""
    task, model = reordered(given, size=size)
    limits = Limits(max_len_b=max_len, unnormalized=unnormalized)
    sample = batch(task, (4,), seed=2)
    (source,) = source_rows(sample)
    spec, rules = model.target_order, multiword.rules_of(model, len(source), limits)
    ask = paper.asker([model], spec, source, rules)
    everything = paper.every_output(ask, spec, rules)
    assert len(everything) == sum((size - 2) ** n for n in range(1, max_len + 1))
    ordered = paper.outputs(everything, spec, 2, multiword.ranking(limits))
    (got,) = run(task, [model], sample, (size - 1) ** (max_len + 1), limits)
    assert len(got) == len(ordered)
    assert_same(got[:50], ordered[:50])


def same_as_fairseq(
    task: Any, model: Any, seed: int, beam: int, limits: Limits, prefixes: Any = None, **flags: Any
) -> None:
    sample, words = batch(task, RAGGED, seed=seed), task.target_dictionary
    hypos = run(task, [model], sample, beam, limits, prefixes, **flags)
    generator = fairseqs_search([model], words, beam_size=beam, **limits.stock())
    with torch.no_grad():
        stock = generator.generate([model], sample, prefix_tokens=prefixes)
    if hasattr(model, "set_beam_size"):  # BART's, whose forward would stay another one
        model.set_beam_size(1)
    for got, want in zip(hypos, stock, strict=True):
        each = ([h[n].tolist() for n in ("tokens", "positional_scores", "score")] for h in want)
        assert_same(got, [paper.Output(*one) for one in each])


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("variant", ["default", "adaptive_softmax", "mbart"])
def test_a_plain_transformer_is_searched_as_fairseq_does(variant: str, beam: int) -> None:
    same_as_fairseq(*built(variant), beam, beam, Limits())
    if variant == "default":
        repeats = [Limits(no_repeat_ngram_size=size, min_len=4) for size in (1, 2, 3)]
        repeats += [Limits(repetition_penalty=theta, min_len=4) for theta in (0.6, 1.5)]
        repeats.append(Limits(banned=BANNED, repetition_penalty=1.1))
        for limits in (*LIMITS.values(), *repeats):
            # By the longest source fairseq limits the whole batch.
            if limits.max_len_a == 0:
                same_as_fairseq(*built(variant), 1, beam, limits)
        # prefixes of other lengths row by row
        same_as_fairseq(*built(variant), 4, beam, Limits(), PREFIXES)


@pytest.mark.parametrize(
    "rule",
    [
        *({"no_repeat_ngram_size": size} for size in (1, 2, 3)),
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.6},
        {"banned": BANNED},
        {"banned": BANNED, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    ],
    ids=str,
)
def test_rules_of_texts_by_native_passes(
    rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, model = built("default", torch.float32)
    monkeypatch.setattr(model, "_is_generation_fast", True, raising=False)
    limits = Limits(min_len=6, **rule)
    for beam in (1, 5):
        same_as_fairseq(task, model, 1, beam, limits)


@pytest.mark.parametrize("given", ["sa_transformer", "sa-3"])
def test_prefixes_of_models_that_write_from_left_to_right(given: str) -> None:
    """Whose end lies within a step: the twin's."""
    task, model = reordered(given)
    sample, limits = batch(task, RAGGED, seed=4), Limits(max_len_b=10)
    for beam in (1, 3):
        hypos = run(task, [model], sample, beam, limits, PREFIXES)
        rows = zip(source_rows(sample), PREFIXES.tolist(), hypos, strict=True)
        for source, prefix, got in rows:
            assert_same(got, twin([model], source, beam, limits, prefix))
            wanted = [word for word in prefix if word != 1]
            assert got[0]["tokens"].tolist()[: len(wanted)] == wanted


@pytest.mark.parametrize(
    "given, flags, message",
    [
        ("ibdecoder", {"decoding": "hgj"}, "--decoding: got 'hgj'; .*multiword_beam"),
        ("ibdecoder", {"decoding": "double_token_beam"}, "--decoding: got .*; .*multiword_beam"),
        ("ibdecoder", {"prefix_tokens": PREFIXES}, "--prefix-size: got 3; allowed: 0"),
        ("ibdecoder", {"beam": 0}, "--beam: got "),
        ("ibdecoder", {"audit": True}, "--audit needs "),
        ("ibdecoder", {"block_size": 3}, "--block-size: got "),
        ("ibdecoder", {"deduplicate_ngrams": 0}, "--deduplicate-ngrams: got "),
        ("ibdecoder", {"beam_stop": "early"}, "--beam-stop: got 'early'; allowed: full, settled"),
        (
            "ibdecoder",
            {"deduplicate_ngrams": 2, "trace_file": "t"},
            "--deduplicate-ngrams 2 excludes ",
        ),
        ("ibdecoder", {"sampling": True}, "--sampling: got "),
        ("double_token", {"decoding": "hgj"}, "--decoding: got 'hgj'; .*double_token_beam"),
        ("double_token", {"decoding": "multiword_beam"}, "--decoding: got .*; .*double_token_beam"),
        ("double_token", {"prefix_tokens": PREFIXES}, "--prefix-size: got 3; allowed: 0"),
        (None, {"decoding": "double_token_beam"}, "--path: .*double_token"),
    ],
)
def test_what_it_cannot_honour_is_refused(
    given: str | None, flags: dict[str, Any], message: str
) -> None:
    """By name: a reordered model has one search, and its first words are not the first slots."""
    task, model = reordered(given) if given else built("default")
    with pytest.raises(UsageError, match=f"^{message}"):
        run(task, [model], batch(task, RAGGED), limits=Limits(), **{"beam": 2} | flags)


def test_passes_are_those_that_ran() -> None:
    """Also the ones that went on for other hypotheses than the best."""
    task, model = reordered("transformer_r2l")
    options = argparse.Namespace(**Limits(max_len_b=20).flags(), beam=4)
    generator = task.build_generator([model], options).decoder
    generator.record_tokens = True
    step, idle = mock.Mock(wraps=generator.scorer.step), 0
    generator.scorer.step = step
    for seed in range(8):
        step.reset_mock()
        sample = batch(task, (5,), seed=seed)
        (hypos,) = task.inference_step(generator, [model], sample)
        assert {hypo["steps"] for hypo in hypos} == {step.call_count}
        idle += step.call_count > len(hypos[0]["tokens"])
        assert len(hypos[0]["history"]) == len(hypos[0]["tokens"])
    assert idle > 1


def collapse(words: Sequence[int], longest: int) -> list[int]:
    """Drop what repeats the n words right before it, n from `longest` down."""
    kept: list[int] = []
    for word in words:
        kept.append(word)
        for n in range(longest, 0, -1):
            if len(kept) >= 2 * n and kept[-n:] == kept[-2 * n : -n]:
                kept = kept[:-n]
                break
    return kept


@pytest.mark.parametrize("longest", [1, 3])
def test_repetitions_are_dropped_on_request(longest: int) -> None:
    """--deduplicate-ngrams: from the output in natural order, with the scores of what is left."""
    task, model = reordered("ibdecoder_sa", size=7)
    sample, limits = batch(task, RAGGED), Limits(min_len=9, max_len_b=14)
    plain = run(task, [model], sample, 2, limits)
    short = run(task, [model], sample, 2, limits, deduplicate_ngrams=longest)
    fewer = 0
    for before, after in zip(plain, short, strict=True):
        for one, other in zip(before, after, strict=True):
            words = one["tokens"].tolist()[:-1]
            assert other["tokens"].tolist() == [*collapse(words, longest), 2]
            assert len(other["positional_scores"]) == len(other["tokens"])
            assert float(other["score"]) == float(one["score"])
            fewer += len(words) - len(other["tokens"]) + 1
    assert fewer > 0


@pytest.mark.parametrize("name", ["ibdecoder", "double_token"])
def test_googles_formula_ranks_on_request(name: str) -> None:
    """--length-formula google: by score / ((5 + length) / 6)**lenpen, the best first."""
    task, model = reordered(name, size=7)
    sample, limits = batch(task, RAGGED), Limits(max_len_b=14, lenpen=0.6)
    found = run(task, [model], sample, 4, limits, length_formula="google")
    for hypos in found:
        for one in hypos:
            total = float(one["positional_scores"].sum())
            wanted = total / ((5 + len(one["tokens"])) / 6) ** 0.6
            assert float(one["score"]) == pytest.approx(wanted, rel=1e-5)
        scores = [float(one["score"]) for one in hypos]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("formula", ["fairseq", "google"])
@pytest.mark.parametrize("given", ["ibdecoder_sa", "sa-3", "transformer_r2l", "double_token"])
def test_a_settled_search_is_one_to_the_limit(given: str, formula: str) -> None:
    """--beam-stop settled: its hypotheses, in no more passes than their bound needs."""
    task, model = reordered(given, size=9 if given == "transformer_r2l" else 40)
    sample, early, longer = batch(task, RAGGED), 0, 0
    each = [Limits(max_len_b=9, lenpen=lenpen) for lenpen in (-1.0, 0.6, 2.0)]
    for limits in (*each, Limits(max_len_b=9, unnormalized=True)):
        flags = {} if limits.unnormalized else {"length_formula": formula}
        for beam in (1, 2, 4):
            full = run(task, [model], sample, beam, limits, **flags)
            hypos = run(task, [model], sample, beam, limits, beam_stop="settled", **flags)
            for source, got, other in zip(source_rows(sample), hypos, full, strict=True):
                want, passes = multiword.settled_twin(model, source, beam, limits, formula)
                assert_same(got, want)
                assert got[0]["steps"] == passes
                early += passes < -(-(limits.max_len_b + 1) // model.target_order.tokens_per_step)
                longer += passes > other[0]["steps"]
    assert early and longer, "both bounds should end a search"


def test_a_native_step_is_the_same() -> None:
    """Random scores, some words impossible; with NaN there is no hypothesis."""
    task, model = reordered("ibdecoder")
    for seed in range(40):
        chance = torch.Generator().manual_seed(seed)
        most = (4, 5, 9, 6)
        sentences, z, size, beam = (int(torch.randint(1, n, (), generator=chance)) for n in most)
        width = 1 if seed % 3 == 0 else beam
        args = argparse.Namespace(**Limits().flags(), beam=beam)
        search = task.build_generator([model], args).decoder
        tables = torch.randn(sentences, width, z, size + 3, generator=chance)
        tables[torch.rand(tables.shape, generator=chance) < 0.2] = -torch.inf
        scores = torch.randn(sentences, width, generator=chance)
        if seed % 4 == 0:
            scores[0, -1] = -torch.inf
        if seed % 8 == 0:
            scores[0] = torch.nan
        best, tokens = tables.topk(min(search.most_words, size + 3))
        given = Best(tokens.numpy(), best.numpy(), tables[..., search.eos].numpy())
        want = extend(given, scores.numpy(), search.eos, beam)
        found = native_extend(given, scores.numpy(), search.eos, beam)
        for mine, theirs in zip(found, want, strict=True):
            both = zip(*(hypotheses_of(one, search.eos) for one in (mine, theirs)), strict=True)
            for (score, *ours), (other, *wanted) in both:
                assert ours == wanted and score == pytest.approx(other, abs=1e-5)


def hypotheses_of(step: Any, eos: int) -> list[Any]:
    """All sentences' hypotheses, the best first, with their words up to ``</s>``."""
    found = []
    for candidates in zip(*(part.tolist() for part in step), strict=True):
        some = []
        for score, parent, words, values in zip(*candidates, strict=True):
            if math.isfinite(score):
                n = words.index(eos) + 1 if eos in words else len(words)
                some.append((-score, parent, words[:n], values[:n]))
        found += sorted(some)
    return found
