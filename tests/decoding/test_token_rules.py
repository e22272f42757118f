"""Suppressed tokens and n-grams, beside the conformance table: the audit, pairs, prefixes."""

import argparse
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from reference.greedy import rules_for, stock_greedy
from reference.jacobi import greedy, sentence
from support import builders
from support.builders import Limits, batch, built, source_rows, task_for

from fairseq_paradec.batch import AsCTranslate2
from fairseq_paradec.errors import UsageError
from fairseq_paradec.row import Row
from fairseq_paradec.token_rules import TokenRules

LIMITS = Limits(max_len_b=14, min_len=3, unkpen=0.5, temperature=1.3)
RAGGED = (3, 7, 5, 2, 9)


def generate(
    task: Any, model: Any, sample: Any, tokens: list[int], **flags: Any
) -> list[list[int]]:
    """The best outputs; `tokens` are suppressed."""
    words = tuple(task.target_dictionary[token] for token in tokens)
    args, extra = argparse.Namespace(**LIMITS.flags() | flags), {"tokens_to_suppress": words}
    generator = task.build_generator([model], args, extra_gen_cls_kwargs=extra)
    hypos = task.inference_step(generator, [model], sample)
    return [row[0]["tokens"].tolist() for row in hypos]


def favourites(outputs: list[list[int]]) -> list[int]:
    found = Counter(token for tokens in outputs for token in tokens if token > 3)
    return [token for token, _ in found.most_common(5)]


def test_the_audit_judges_by_the_same_tokens(caplog):
    task = task_for("default")
    model, sample = builders.tiny_blockwise(task), batch(task, RAGGED, seed=4)
    tokens = favourites(generate(task, model, sample, [], decoding="beam", beam=1))
    caplog.set_level("WARNING")
    generate(task, model, sample, tokens, decoding="blockwise", audit=True)
    assert "audit: sentence" not in caplog.text


def test_models_of_pairs_do_not_write_them():
    task = task_for("default")
    model = builders.tiny_reordered(task, "double_token_tiny")
    sample, how = batch(task, RAGGED, seed=2), {"decoding": "double_token_beam", "beam": 2}
    tokens = favourites(generate(task, model, sample, [], **how))
    assert tokens
    for output in generate(task, model, sample, tokens, **how):
        assert not set(output) & set(tokens)


def test_without_an_end_there_is_no_output():
    task = task_for("default")
    model = builders.tiny_model(task)
    with pytest.raises(UsageError, match="tokens_to_suppress: got '</s>'"):
        generate(task, model, batch(task, [3]), [task.target_dictionary.eos()], decoding="greedy")


def rules(**changes: Any) -> TokenRules:
    """Rules that forbid nothing but <pad> and the tokens 5 and 8 of 10."""
    plain: dict[str, Any] = {"pad": 1, "unk": 3, "eos": 2, "start": 2, "min_len": 0}
    plain |= {"unk_penalty": 0.0, "temperature": 1.0, "forced_len": 0}
    return TokenRules(**plain | {"suppressed": (5, 8)} | changes)


def forbidden(log_probs: torch.Tensor) -> list[list[int]]:
    """The tokens that may not be chosen, by position of the first row."""
    return [row.isinf().nonzero().flatten().tolist() for row in log_probs[0]]


def test_suppressed_tokens_by_position():
    """By hand: two positions have prefixes, then they hold; the row has none of its own."""
    row = Row(0, [4, 2], limit=4)
    log_probs = torch.zeros(1, 5, 10)
    rules(forced_len=2).at([row], [0]).restrict(log_probs)
    ends = [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert forbidden(log_probs) == [[1], [1], [1, 5, 8], [1, 5, 8], ends]
    for size, want in ((10, [1, 5, 8]), (8, [1, 5]), (5, [1])):  # a shortlist may end before
        log_probs = torch.zeros(1, 2, size)
        rules().at([row], [1]).restrict(log_probs)
        assert forbidden(log_probs) == [want, want]


def test_renormalised_probabilities_are_of_what_is_allowed():
    """By hand, of an array and a tensor: nine, eight or one of ten tokens that are as likely."""
    row = Row(0, [4, 2], limit=2, prefix=[6])
    given = rules(suppressed=(), min_len=2, forced_len=1, renormalised=True)
    for log_probs in (torch.zeros(1, 3, 10), np.zeros((1, 3, 10))):
        given.at([row], [0]).restrict(log_probs)
        probs = np.exp(np.asarray(log_probs))[0]
        np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
        np.testing.assert_allclose(probs.max(1), [1, 1 / 8, 1], atol=1e-6)


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_the_penalty_of_what_is_written(kind):
    """By hand: each token once, and the first one where rules read it; logits have signs."""
    at = [Row(0, [4, 2], limit=9, tokens=[5, 6, 5])]
    given = rules(suppressed=(), penalty=2.0)
    scores = kind([[[-1.0] * 8, [-1.0] * 8]])
    given.at(at, behind=[[[], [7]]]).restrict(scores)
    inf = -np.inf
    assert scores[0].tolist() == [
        [-1, inf, -1, -1, -1, -2, -2, -1],
        [-1, inf, -1, -1, -1, -2, -2, -2],
    ]
    given = rules(suppressed=(), penalty=2.0, of_logits=True, first=2)
    logits = kind([[[4.0, 4, 4, -4, 4, -4, 4, 4]]])
    given.at(at).penalise(logits)
    assert logits[0, 0].tolist() == [4, 4, 2, -4, 4, -8, 2, 4]
    given.at(at).restrict(logits)  # which has been done
    assert logits[0, 0].tolist() == [4, inf, 2, -4, 4, -8, 2, 4]


def test_sequences_that_are_not_written():
    """By hand: of one token, of two and of three; what is before the second position is unknown."""
    row = Row(0, [4, 2], limit=9, tokens=[5, 6])
    given = rules(suppressed=(), sequences=((4,), (6, 7), (5, 8), (5, 6, 3), (9, 5, 6, 0)))
    for first, more in ((None, []), (9, [0])):
        log_probs = torch.zeros(1, 2, 10)
        replace(given, first=first).at([row]).restrict(log_probs)
        assert forbidden(log_probs) == [sorted([1, 3, 4, 7, *more]), [1, 4]]


def test_as_ctranslate2_a_rows_own_prefix_alone_overrides_limits():
    """The widest prefix has two words; limits hold where a row has none of its own."""
    rows = [Row(b, [4, 2], limit=9, prefix=prefix) for b, prefix in enumerate(([3, 6], [6], []))]
    given = rules(
        suppressed=(5,),
        min_len=2,
        forced_len=2,
        unk_penalty=math.inf,
        renormalised=True,
        as_ctranslate2=AsCTranslate2(1, 1),
    )
    others = [[*range(3), *range(4, 10)], [*range(6), *range(7, 10)]]
    free, late = [1, 2, 3, 5], [1, 3, 5]
    wanted = [[*others, late], [others[1], free, late], [free, free, late]]
    for log_probs in (torch.zeros(3, 3, 10), np.zeros((3, 3, 10))):
        given.at(rows, [0, 0, 0]).restrict(log_probs)
        assert [forbidden(torch.as_tensor(one)[None]) for one in log_probs] == wanted
        assert float(log_probs[0, 0, 3]) == 0.0


@pytest.mark.parametrize(("prefix", "early"), [(0, [0, 1, 2]), (2, [2])])
def test_no_end_before_the_least_length_but_where_prefixes_are_by_position(prefix, early):
    row = Row(0, [4, 2], limit=9)
    log_probs = torch.zeros(1, 5, 10)
    rules(suppressed=(), min_len=3, forced_len=prefix).at([row], [0]).restrict(log_probs)
    assert forbidden(log_probs) == [[1, 2] if i in early else [1] for i in range(5)]


def test_the_penalty_is_taken_from_unk_by_position():
    log_probs = torch.zeros(1, 2, 10)
    rules(suppressed=(), unk_penalty=0.5).at([Row(0, [4, 2], limit=9)], [0]).restrict(log_probs)
    assert log_probs[0, :, 3].tolist() == [-0.5, -0.5] and log_probs[0, :, 4].tolist() == [0, 0]


@pytest.mark.parametrize("decoding", ["greedy", "pgj", "self_draft"])
@pytest.mark.parametrize("native", [False, True])
def test_what_is_forced_may_repeat_an_ngram(
    native: bool, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq's search has nothing left to write there."""
    task, model = built("default", torch.float32 if native else torch.float64)
    monkeypatch.setattr(model, "_is_generation_fast", native, raising=False)
    limits, prefix = Limits(no_repeat_ngram_size=2), [6, 6, 6, 6]
    sample = batch(task, RAGGED, seed=1)
    flags = {"drafter_dtype": "fp32"} if decoding == "self_draft" and not native else {}
    hypos = builders.decode(
        task, [model], sample, limits, torch.tensor([prefix] * 5), decoding=decoding, **flags
    )
    for source, hypo in zip(source_rows(sample), hypos, strict=True):
        words = task.target_dictionary
        rules = rules_for(words, [model], len(source), prefix=prefix, **limits.reference())
        wanted = greedy(sentence([model], source, rules)).tokens
        assert hypo["tokens"].tolist() == wanted and wanted[:4] == prefix


@pytest.mark.parametrize("decoding", ["greedy", "pgj", "self_draft"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_pass_that_is_read_in_parts_repeats_no_ngram(
    size: int, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A native pass of more than 256 positions."""
    task, model = built("prenorm", torch.float32)
    monkeypatch.setattr(model, "_is_generation_fast", True, raising=False)
    limits = Limits(no_repeat_ngram_size=size, min_len=6)
    sample = batch(task, [3 + i % 8 for i in range(150)], seed=3)
    hypos = builders.decode(task, [model], sample, limits, decoding=decoding)
    wanted = stock_greedy(task, [model], sample, **limits.stock())
    for got, want in zip(hypos, wanted, strict=True):
        assert got["tokens"].tolist() == want["tokens"].tolist()
