"""Suppressed tokens: what fairseq's search never chooses, no method chooses."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import pytest
import torch
from support import builders
from support.builders import Limits, batch, built, lend, task_for, tiny_drafter

from fairseq_paradec.decoding.row import Row
from fairseq_paradec.decoding.token_rules import TokenRules
from fairseq_paradec.errors import UsageError

LIMITS = Limits(max_len_b=14, min_len=3, unkpen=0.5, temperature=1.3)
RAGGED = (3, 7, 5, 2, 9)

WAYS: list[dict[str, Any]] = [
    {"decoding": "greedy"},
    {"decoding": "gad", "drafter_shortlist": 12},
    {"decoding": "blockwise", "drafter_shortlist": 12, "adaptive_block": True},
    {"decoding": "multiword_beam", "beam": 1},
    {"decoding": "auto_fast"},
]


def generate(
    task: Any, model: Any, sample: Any, tokens: list[int], prefix: Any = None, **flags: Any
) -> list[list[dict[str, Any]]]:
    """All hypotheses; `tokens` are suppressed."""
    words = tuple(task.target_dictionary[token] for token in tokens)
    generator = task.build_generator(
        [model], argparse.Namespace(**LIMITS.flags() | flags),
        extra_gen_cls_kwargs={"tokens_to_suppress": words},
    )  # fmt: skip
    hypos: list[list[dict[str, Any]]] = task.inference_step(
        generator, [model], sample, prefix_tokens=prefix
    )
    return hypos


def assert_same(got: list[list[dict[str, Any]]], want: list[list[dict[str, Any]]]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            torch.testing.assert_close(
                one["positional_scores"].float(), other["positional_scores"].float(),
                atol=2e-6, rtol=0,
            )  # fmt: skip


def favourites(hypos: list[list[dict[str, Any]]], count: int) -> list[int]:
    found = Counter(t for row in hypos for t in row[0]["tokens"].tolist() if t > 3)
    return [token for token, _ in found.most_common(count)]


@pytest.fixture(scope="module")
def model() -> tuple[Any, Any, str]:
    """A model with heads, its task, and a drafter for it."""
    task = task_for("default")
    model = builders.tiny_blockwise(task)
    return task, model, lend(task, model, tiny_drafter(task))


@pytest.mark.parametrize("prefixed", [False, True], ids=["free", "prefixes"])
@pytest.mark.parametrize("flags", WAYS, ids=str)
def test_every_method_suppresses_what_fairseq_does(model, flags, prefixed):
    task, model, drafter = model
    sample = batch(task, RAGGED, seed=4)
    flags = dict(flags)
    if flags["decoding"] == "gad":
        flags["drafter_path"] = drafter
    free = generate(task, model, sample, [], decoding="beam", beam=1)
    tokens = [0, *favourites(free, 6)]
    prefix = None
    if prefixed:  # ragged, with suppressed tokens among them, one longer than a chunk is
        rows = [[tokens[-1], 7, tokens[1]] for _ in RAGGED]
        prefix = torch.tensor([row[: 1 + b % 3] + [1] * (2 - b % 3) for b, row in enumerate(rows)])
    want = generate(task, model, sample, tokens, prefix, decoding="beam", beam=1)
    assert [r[0]["tokens"].tolist() for r in want] != [r[0]["tokens"].tolist() for r in free]
    assert_same(generate(task, model, sample, tokens, prefix, **flags), want)
    if prefixed:
        assert any(set(row[0]["tokens"].tolist()) & set(tokens) for row in want)


def test_the_audit_judges_by_the_same_tokens(model, caplog):
    task, model, _ = model
    sample = batch(task, RAGGED, seed=4)
    tokens = favourites(generate(task, model, sample, [], decoding="beam", beam=1), 5)
    caplog.set_level("WARNING")
    generate(task, model, sample, tokens, decoding="blockwise", audit=True)
    assert "audit: sentence" not in caplog.text


@pytest.mark.parametrize("beam", [1, 3])
def test_beam_search_suppresses_them_too(beam):
    task, model = built("default")
    sample = batch(task, RAGGED, seed=2)
    tokens = favourites(generate(task, model, sample, [], decoding="beam", beam=beam), 5)
    flags = {"beam": beam, "nbest": beam}
    want = generate(task, model, sample, tokens, decoding="beam", **flags)
    assert_same(generate(task, model, sample, tokens, decoding="multiword_beam", **flags), want)


def test_nor_do_models_of_pairs_write_them():
    task = task_for("default")
    model = builders.tiny_reordered(task, "double_token_tiny")
    sample, how = batch(task, RAGGED, seed=2), {"decoding": "double_token_beam", "beam": 2}
    free = generate(task, model, sample, [], **how)
    tokens = favourites(free, 5)
    assert tokens
    for row in generate(task, model, sample, tokens, **how):
        assert not set(row[0]["tokens"].tolist()) & set(tokens)


def test_without_an_end_there_is_no_output():
    task = task_for("default")
    model = builders.tiny_model(task)
    with pytest.raises(UsageError, match="tokens_to_suppress: got '</s>'"):
        generate(task, model, batch(task, [3]), [task.target_dictionary.eos()], decoding="greedy")


def rules(**changes: Any) -> TokenRules:
    """Rules that forbid nothing but <pad> and the tokens 5 and 8 of 10."""
    plain: dict[str, Any] = {"pad": 1, "unk": 3, "eos": 2, "start": 2, "min_len": 0}
    plain |= {"unk_penalty": 0.0, "temperature": 1.0, "forced_len": 0}
    return TokenRules(**plain | {"device": torch.device("cpu"), "suppressed": (5, 8)} | changes)


def forbidden(log_probs: torch.Tensor) -> list[list[int]]:
    """The tokens that may not be chosen, by position of the first row."""
    return [row.isinf().nonzero().flatten().tolist() for row in log_probs[0]]


def test_suppressed_tokens_by_position():
    """By hand: two positions have prefixes, then they hold; the row has none of its own."""
    row = Row(0, [4, 2], limit=4)
    log_probs = torch.zeros(1, 5, 10)
    rules(forced_len=2).restrict(log_probs, [row], [0])
    ends = [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert forbidden(log_probs) == [[1], [1], [1, 5, 8], [1, 5, 8], ends]
    for size, want in ((10, [1, 5, 8]), (8, [1, 5]), (5, [1])):  # a shortlist may end before
        log_probs = torch.zeros(1, 2, size)
        rules().restrict(log_probs, [row], [1])
        assert forbidden(log_probs) == [want, want]
