"""--decoding multiword_beam against a slow twin, fairseq's own beam search, and brute force."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from reference import multiword_beam as paper
from support.builders import Limits, batch, built, source_rows, tiny_reordered, tiny_task
from support.multiword import (
    MODELS,
    PREFIXES,
    RAGGED,
    assert_same,
    ranking,
    reordered,
    rules_of,
    run,
    twin,
)
from support.orders import spec_of

from fairseq_paradec.errors import UsageError

pytestmark = pytest.mark.usefixtures("exact_softmax")

# ---- the twin -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", MODELS)
def test_ragged_batches_are_the_twins(given: str) -> None:
    """Sentences that end at different steps, some at the limit: all their hypotheses."""
    task, model = reordered(given)
    limits, lengths = Limits(max_len_b=11), set()
    for beam in (1, 2, 5):
        sample = batch(task, RAGGED, seed=beam)
        hypos = run(task, [model], sample, beam, limits)
        for source, got in zip(source_rows(sample), hypos, strict=True):
            want = twin([model], source, beam, limits)
            assert_same(got, want)
            assert len(want) <= beam
            lengths |= {len(output.tokens) for output in want}
    assert len(lengths) > 1, "outputs should differ in length"


@pytest.mark.parametrize("given", ["ibdecoder", "sa-3", "imdecoder"])
def test_outer_addition_loses_nothing(given: str) -> None:
    """Keeping each hypothesis' best B at each addition is the same as trying all z-tuples."""
    task, model = reordered(given, size=7)
    limits = Limits(max_len_b=7, min_len=0)
    for beam in (1, 3):
        for source in source_rows(batch(task, (3, 5), seed=beam)):
            want = twin([model], source, beam, limits, extend=paper.all_tuples)
            assert want == twin([model], source, beam, limits)


def test_an_ensemble_averages_probabilities() -> None:
    """Two models of one order; two of different orders are refused."""
    task, first = reordered("ibdecoder_sa")
    _, second = reordered("ibdecoder_sa", seed=2)
    sample, limits = batch(task, RAGGED, seed=1), Limits(max_len_b=11, temperature=1.3)
    hypos = run(task, [first, second], sample, 3, limits)
    for source, got in zip(source_rows(sample), hypos, strict=True):
        assert_same(got, twin([first, second], source, 3, limits))
    _, other = reordered("imdecoder")
    for flags in ({}, {"decoding": "multiword_beam"}, {"score_reference": True}):
        with pytest.raises(UsageError, match="^--path: .*different target orders"):
            task.build_generator([first, other], argparse.Namespace(**flags))


# ---- what it comes down to ----------------------------------------------------------------------


@pytest.mark.parametrize("unnormalized", [False, True])
@pytest.mark.parametrize(
    "given, size, max_len", [("sa_transformer", 6, 3), ("ibdecoder_sa", 5, 7), ("imdecoder", 5, 7)]
)
def test_a_beam_that_holds_everything_is_exact(
    given: str, size: int, max_len: int, unnormalized: bool
) -> None:
    """Two steps, and a beam as wide as there are outputs: all of them, the best one first."""
    task, model = reordered(given, size=size)
    limits = Limits(max_len_b=max_len, unnormalized=unnormalized)
    sample = batch(task, (4,), seed=2)
    (source,) = source_rows(sample)
    spec, rules = spec_of(model.target_order), rules_of(model, len(source), limits)
    everything = paper.every_output(paper.asker([model], spec, source, rules), spec, rules)
    assert len(everything) == sum((size - 2) ** n for n in range(1, max_len + 1))
    ordered = paper.outputs(everything, spec, 2, ranking(limits))
    (got,) = run(task, [model], sample, (size - 1) ** (max_len + 1), limits)
    assert len(got) == len(ordered)
    assert_same(got[:50], ordered[:50])


def stock(
    task: Any, model: Any, sample: dict[str, Any], beam: int, limits: Limits, **more: Any
) -> Any:
    """fairseq's own beam search."""
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=beam, **limits.stock())
    try:
        with torch.no_grad():
            return generator.generate([model], sample, **more)
    finally:
        if hasattr(model, "set_beam_size"):  # BART's, whose forward would stay another one
            model.set_beam_size(1)


def assert_stocks(got: Any, want: Any) -> None:
    """All hypotheses of all rows are fairseq's."""
    for ours, theirs in zip(got, want, strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert float(one["score"]) == pytest.approx(float(other["score"]), abs=1e-4)
            scores = other["positional_scores"].tolist()
            assert one["positional_scores"].tolist() == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("variant", ["default", "adaptive_softmax", "mbart"])
def test_a_plain_transformer_is_searched_as_fairseq_does(variant: str, beam: int) -> None:
    """--decoding multiword_beam on a stock model: all hypotheses of its own beam search."""
    task, model = built(variant)
    sample, limits = batch(task, RAGGED, seed=beam), Limits()
    got = run(task, [model], sample, beam, limits)
    assert_stocks(got, stock(task, model, sample, beam, limits))


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_len_b=200),
        Limits(lenpen=0.3, min_len=4, max_len_b=8),
        Limits(unnormalized=True, unkpen=2.0, temperature=1.5),
    ],
)
def test_one_word_a_step_is_fairseqs_search(beam: int, limits: Limits) -> None:
    """A reordered model whose order is left to right."""
    task = tiny_task()
    model = tiny_reordered(task, "sa_transformer", seed=beam, tokens_per_direction=1)
    sample = batch(task, RAGGED, seed=beam)
    got = run(task, [model], sample, beam, limits, decoding="auto")
    assert_stocks(got, stock(task, model, sample, beam, limits))


# ---- prefixes -----------------------------------------------------------------------------------


def test_prefixes_as_fairseq_has_them() -> None:
    """Of other lengths row by row, on a plain Transformer."""
    task, model = built("default")
    sample = batch(task, RAGGED, seed=4)
    for beam in (1, 4):
        got = run(task, [model], sample, beam, Limits(), PREFIXES)
        want = stock(task, model, sample, beam, Limits(), prefix_tokens=PREFIXES)
        assert_stocks(got, want)


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


# ---- wrong ways to decode -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"decoding": "hgj"}, "--decoding: got 'hgj'; .*multiword_beam"),
        ({"decoding": "double_token_beam"}, "--decoding: got 'double_token_beam'; .*multiword"),
        ({"prefix_tokens": PREFIXES}, "--prefix-size: got 3; allowed: 0"),
        ({"beam": 0}, "--beam: got "),
        ({"audit": True}, "--audit: got "),
        ({"block_size": 3}, "--block-size: got "),
        ({"deduplicate_ngrams": 0}, "--deduplicate-ngrams: got "),
        ({"deduplicate_ngrams": 2, "trace_file": "trace.jsonl"}, "--deduplicate-ngrams: got "),
        ({"sampling": True}, "--sampling: got "),
    ],
)
def test_what_it_cannot_honour_is_refused(flags: dict[str, Any], message: str) -> None:
    """By name: a reordered model has one search, and its first words are not the first slots."""
    task, model = reordered("ibdecoder")
    with pytest.raises(UsageError, match=f"^{message}"):
        run(task, [model], batch(task, RAGGED), limits=Limits(), **{"beam": 2} | flags)


def test_passes_are_those_that_ran() -> None:
    """Also the ones that went on for other hypotheses than the best."""
    task, model = reordered("transformer_r2l")
    options = argparse.Namespace(**Limits(max_len_b=20).flags(), beam=4)
    generator = task.build_generator([model], options)
    generator.record_tokens = True
    step, calls, idle = generator.scorer.step, 0, 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return step(*args, **kwargs)

    generator.scorer.step = counted
    for seed in range(8):
        calls = 0
        sample = batch(task, (5,), seed=seed)
        (hypos,) = task.inference_step(generator, [model], sample)
        assert {hypo["steps"] for hypo in hypos} == {calls}
        idle += calls > len(hypos[0]["tokens"])
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
