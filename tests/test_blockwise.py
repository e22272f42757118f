"""Blockwise parallel decoding, against fairseq's own search and a slow twin of the paper."""

from __future__ import annotations

import argparse
import copy
import functools
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from reference.greedy import full_log_probs, rules_for, stock_greedy
from support.blockwise import (
    ADAPTIVE,
    KINDS,
    LAYERS,
    SCRIPTS,
    TRAINED,
    Decoded,
    Given,
    Script,
    build,
    ends_at_once,
    generate,
    lent,
    network,
    never_ends,
    noisy,
    numbers,
    outputs_of,
    perfect,
    run,
    same,
    same_as_twin,
    told,
    twin,
    whole,
    wide,
    wrong,
)
from support.builders import (
    VARIANTS,
    Limits,
    batch,
    built,
    collate,
    decode,
    lend,
    lend_heads,
    save_drafter,
    source_rows,
    sources,
    task_for,
    tiny_drafter,
    tiny_model,
    tiny_task,
)
from support.exact import METHODS, RAGGED, check, name
from torch import nn

from fairseq_paradec.analysis.blocks import block_sizes
from fairseq_paradec.decoding.acceptance import AtLeast, Distance, ExactMatch, TopKMargin
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods.blockwise import BlockwiseGenerator
from fairseq_paradec.models.blockwise_transformer import heads_only
from fairseq_paradec.tasks.flags import ParallelTranslationConfig
from fairseq_paradec.tasks.translation import ParallelTranslationTask

# ---- models -------------------------------------------------------------------------------------


# ---- heads that are told what to say ------------------------------------------------------------


# ---- decoding -----------------------------------------------------------------------------------


# ---- exact decoding is greedy search ------------------------------------------------------------


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in ADAPTIVE])
def test_a_frozen_base_keeps_its_output(variant: str, layer: str) -> None:
    """fairseq's beam 1 of the stock base, by heads in the model and beside it."""
    task, base = built(variant)
    given = whole(task, variant, head_layer=layer)
    beside, saved = lent(task, base, given.heads), 0
    for sample in (batch(task, RAGGED, seed=1), batch(task, [5], seed=3)):
        want = stock_greedy(task, [base], sample, **Limits().stock())
        check(task, [given.model], sample, given.flags, Limits(), want=want)
        check(task, [base], sample, beside.flags, Limits(), want=want)
        guided = told(task, base, sample, want, noisy)
        check(task, [base], sample, guided.flags, Limits(), want=want)
        saved += sum(len(ours.tokens) - ours.hypo["steps"] for ours in run(guided, sample))
    assert saved > 0, "heads should be right at times"


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("variant", ["default", "mbart", "output_dim", "separate", "share_all"])
def test_a_learned_first_head_is_what_greedy_search_sees(variant: str, layer: str) -> None:
    """fairseq's beam 1 of the model with its head, which is another than the base's."""
    task, base = built(variant)
    given = whole(task, variant, head_layer=layer, train_first_head=True)
    sample = batch(task, RAGGED, seed=1)
    want = check(task, [given.model], sample, given.flags, Limits())
    greedy = decode(task, [given.model], sample, Limits(), decoding="greedy")
    assert outputs_of(sample, greedy) == outputs_of(sample, want)
    assert outputs_of(sample, want) != outputs_of(sample, stock_greedy(task, [base], sample))


def test_heads_take_the_precision_of_their_base() -> None:
    task, base = built("default", torch.float32)
    sample = batch(task, RAGGED)
    for dtype in (torch.float32, torch.bfloat16):
        rounded = copy.deepcopy(base).to(dtype)
        given = lent(task, rounded, copy.deepcopy(whole(task).heads))
        assert all(ours.tokens[-1] == 2 for ours in run(given, sample))
        assert given.heads.bias.dtype == dtype
        if dtype == torch.float32:
            check(task, [base], sample, lent(task, base, given.heads).flags, Limits(), max_ties=1)


def test_another_start_symbol() -> None:
    task, base = built("learned_positions")
    given, sample = whole(task, "learned_positions"), batch(task, RAGGED, seed=1)
    judge = SequenceGenerator([base], task.target_dictionary, beam_size=1, **Limits().stock())
    generator = build(given)
    ours = generator.generate([given.model], sample, bos_token=5)
    want, other = (judge.generate([base], sample, bos_token=bos) for bos in (5, None))
    ours, want, other = (
        [row[0]["tokens"].tolist() for row in rows] for rows in (ours, want, other)
    )
    assert ours == want != other


def test_a_row_without_a_source_is_left_out() -> None:
    given = numbers("dense")
    sample = batch(given.task, (6, 1, 4), seed=2)
    hypos = decode(given.task, [given.model], sample, Limits(), accept_topk=3, **given.flags)
    for hypo, row in zip(hypos, source_rows(sample), strict=True):
        want = [2] if len(row) == 1 else twin(given, row, accept_topk=3).tokens
        assert hypo["tokens"].tolist() == want


# ---- the twin -----------------------------------------------------------------------------------

RULES: list[dict[str, Any]] = [
    {},
    {"accept_topk": 1, "accept_distance": 0, "min_block": 1},
    {"accept_topk": 2},
    {"accept_topk": 3},
    {"accept_topk": 16},
    {"accept_topk": 999},
    {"accept_distance": 0},
    {"accept_distance": 1},
    {"accept_distance": 2},
    {"accept_distance": 100},
    {"min_block": 2},
    {"min_block": 3},
    {"min_block": TRAINED},
    {"min_block": 2, "accept_topk": 2},
    {"min_block": 3, "accept_topk": 4},
    {"min_block": 2, "accept_distance": 1},
    {"min_block": 4, "accept_distance": 3},
]


def rule_name(flags: dict[str, Any]) -> str:
    """A test id."""
    return "-".join(f"{flag}{value}" for flag, value in flags.items()) or "exact"


@pytest.mark.parametrize("flags", RULES, ids=rule_name)
@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_is_the_papers(kind: str, flags: dict[str, Any]) -> None:
    """Tokens, scores, blocks and passes, in a ragged batch and alone."""
    given = numbers(kind)
    sample = batch(given.task, RAGGED, seed=1)
    found = same_as_twin(given, sample, **flags)
    same_as_twin(given, batch(given.task, [5], seed=3), **flags)
    for result in found:
        # But for the last blocks, which an output's end and its limit may cut.
        assert all(size >= flags.get("min_block", 1) for size in result.sizes[:-2])
        assert sum(result.sizes) == len(result.tokens)
    exact = [twin(given, row).tokens for row in source_rows(sample)]
    if not flags or flags in (RULES[1], {"accept_distance": 0}):
        assert [result.tokens for result in found] == exact
    if flags in ({"accept_topk": 16}, {"min_block": TRAINED}):
        assert [result.tokens for result in found] != exact


def test_scores_to_the_last_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fairseq's attention does not round to float32, as it does elsewhere."""
    monkeypatch.setattr(
        utils, "softmax", lambda x, dim, onnx_trace=False: torch.softmax(x, dim=dim)
    )
    network.cache_clear()
    for kind in KINDS:
        given = numbers(kind)
        sample = batch(given.task, RAGGED, seed=1)
        rounds = given.model.flags.activation_fn == "gelu"  # fairseq's does, too
        close = 1e-4 if rounds else 1e-10
        for flags in ({}, {"accept_topk": 3}, {"min_block": 2}):
            for ours, row in zip(run(given, sample, **flags), source_rows(sample), strict=True):
                want = twin(given, row, **flags)
                assert ours.tokens == want.tokens
                assert ours.row.scores == pytest.approx(want.scores, abs=close)
    network.cache_clear()


@pytest.mark.parametrize("trained", range(1, 7))
@pytest.mark.parametrize("kind", ["dense", "per_head-first", "lent"])
def test_every_block_size(kind: str, trained: int) -> None:
    """As trained, and every smaller one: the same heads, fewer of them."""
    given = numbers(kind, trained)
    sample = batch(given.task, RAGGED[:4], seed=2)
    for size in range(1, trained + 1):
        for flags in ({}, {"accept_topk": 3}, {"min_block": size}):
            found = same_as_twin(given, sample, block_size=size, **flags)
            assert max(s for result in found for s in result.sizes) <= size
            if "min_block" in flags:
                assert all({*result.sizes[:-2]} <= {size} for result in found)
    same_as_twin(given, sample)  # by default as trained


RELAXED: list[dict[str, Any]] = [
    {},
    {"accept_topk": 3},
    {"accept_distance": 2, "min_block": 3},
]


def test_random_heads_are_right_and_wrong() -> None:
    """What the tests above stand on: blocks of many sizes, and `</s>` in drafts."""
    sizes: set[int] = set()
    drafted = 0
    for kind in KINDS:
        given = numbers(kind)
        for row in source_rows(batch(given.task, RAGGED, seed=1)):
            exact = twin(given, row)
            sizes |= set(exact.sizes)
            drafted += sum(2 in block.predicted[1:] for block in exact.blocks)
    assert len(sizes) >= 3 and drafted > 5


# ---- heads by construction ----------------------------------------------------------------------


def blocks(count: int, k: int) -> list[int]:
    """So many tokens in blocks of k."""
    return [k] * (count // k) + [count % k] * (count % k > 0)


def test_passes_of_perfect_heads_for_every_length_and_block() -> None:
    """1 + ceil((m-1)/k) for m tokens; wrong heads take m, with blocks of one token."""
    task, base = wide()
    sample = batch(task, (5,), seed=0)
    for m in range(1, 18):
        limits = Limits(max_len_b=m - 1, min_len=m - 1)
        want = stock_greedy(task, [base], sample, **limits.stock())
        (tokens,) = outputs_of(sample, want).values()
        assert len(tokens) == m
        best, worst = (told(task, base, sample, want, script, 10) for script in (perfect, wrong))
        for k in range(1, 11):
            (ours,) = run(best, sample, limits, block_size=k)
            assert ours.tokens == tokens
            assert ours.hypo["steps"] == 1 + math.ceil((m - 1) / k)
            assert ours.sizes == blocks(m - 1, k) + [1]  # </s> at the limit need not be drafted
        (ours,) = run(worst, sample, limits)
        assert ours.tokens == tokens
        assert ours.hypo["steps"] == m and ours.sizes == [1] * m


@pytest.mark.parametrize("script", SCRIPTS)
def test_heads_that_are_told_what_to_say(script: Script) -> None:
    """Rows that end by themselves at many times: greedy's tokens, in as many passes as it takes.

    `</s>` in a draft ends the block, and the row.
    """
    task, base = wide()
    sample = batch(task, (3, 7, 5, 9, 2, 4, 6, 8, 3, 2, 5, 4), seed=5)
    limits = Limits(min_len=0)
    want = stock_greedy(task, [base], sample, **limits.stock())
    outputs = outputs_of(sample, want)
    assert len({len(tokens) for tokens in outputs.values()}) > 4
    given = told(task, base, sample, want, script, 10)
    for k in range(1, 11):
        for ours, row in zip(run(given, sample, limits, block_size=k), outputs, strict=True):
            m = len(outputs[row])
            assert ours.tokens == outputs[row]
            assert sum(ours.sizes) == m and max(ours.sizes) <= k
            if script is perfect:
                assert ours.hypo["steps"] == 1 + math.ceil((m - 1) / k)
                assert ours.sizes == (blocks(m, k) if m < 17 else blocks(16, k) + [1])
            if script is wrong:
                assert ours.hypo["steps"] == m
            if script is ends_at_once and k > 1:
                # Only the last drafts are right: at the end, and one token before it.
                assert ours.hypo["steps"] == m
                assert all(drafted <= 1 for _, drafted, _ in ours.passes)
                assert m == 1 or m == 17 or ours.sizes[-1] == 2
            if script is never_ends:
                # </s> is the verifier's own, in the pass that finds the rest of the words.
                assert ours.hypo["steps"] == 1 + math.ceil((m - 1) / k)
                assert ours.passes[-1][2] < k
            if k in (3, 10) and m in (2, 5, 17):
                (alone,) = run(given, collate(task, [torch.tensor(row)]), limits, block_size=k)
                assert same(ours, alone)


def test_heads_without_a_clue_lose_nothing() -> None:
    """Of whatever size their weights are."""
    task, base = built("mbart")
    sample = batch(task, RAGGED, seed=1)
    want = stock_greedy(task, [base], sample, **Limits().stock())
    for seed, scale in enumerate((0.0, 0.1, 1.0, 30.0)):
        heads = copy.deepcopy(whole(task, "mbart").heads)
        torch.manual_seed(seed)
        for weight in heads.parameters():
            nn.init.normal_(weight, std=scale)
        given = lent(task, base, heads)
        check(task, [base], sample, given.flags, Limits(), want=want)
        same_as_twin(given, sample)


def test_the_model_runs_once_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The merged substeps: what is counted is what runs, and chunks are no longer than k."""
    given = numbers("per_head")
    generator = build(given, accept_topk=3)
    widths: list[int] = []
    step = generator.scorer.step
    monkeypatch.setattr(
        generator.scorer, "step", lambda chunk: widths.append(chunk.size(1)) or step(chunk)
    )
    for row in source_rows(batch(given.task, RAGGED, seed=1)):
        widths.clear()
        (ours,) = generate(given, generator, collate(given.task, [torch.tensor(row)]))
        assert len(widths) == ours.hypo["steps"] == twin(given, row, accept_topk=3).passes
        assert widths[0] == 1 and max(widths) <= TRAINED


def test_block_sizes_by_hand() -> None:
    """A pass is the end of one block and the first token of the next."""
    assert block_sizes([0], 1) == [1]  # </s> at once
    assert block_sizes([0, 2, 0, 3], 8) == [3, 1, 4]  # the last draft is </s>
    assert block_sizes([0, 2, 0, 3], 9) == [3, 1, 4, 1]  # and here the verifier's own is
    assert block_sizes([0, 0, 0], 3) == [1, 1, 1]
    # Section 7.4's example: its blocks, with one pass more.
    sizes = [10, 5, 4, 10, 2, 3]
    assert block_sizes([0, *(size - 1 for size in sizes)], sum(sizes)) == sizes


# ---- which rule, and what it promises -----------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "lossless"),
    [
        ({}, True),
        ({"accept_topk": 1}, True),
        ({"accept_distance": 0}, True),
        ({"min_block": 1}, True),
        ({"accept_topk": 1, "accept_distance": 0, "min_block": 1}, True),
        ({"accept_topk": 2}, False),
        ({"accept_distance": 1}, False),
        ({"accept_topk": 1, "accept_distance": 1}, False),
        ({"min_block": 2}, False),
        ({"min_block": 2, "accept_topk": 2}, False),
    ],
)
def test_what_is_lossless(flags: dict[str, Any], lossless: bool) -> None:
    for kind in ("dense", "gelu-first", "lent"):
        assert build(numbers(kind), **flags).lossless is lossless


@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_finds_nothing(kind: str) -> None:
    """In exact decoding; what a relaxed rule changes it finds."""
    given = numbers(kind)
    sample = batch(given.task, RAGGED, seed=1)
    for flags in ({}, {"accept_distance": 0}, {"block_size": 2}):
        generator = build(given, audit=True, **flags)
        generate(given, generator, sample)
        assert generator.audit.sentences == generator.audit.identical == len(RAGGED)
    relaxed = build(given, audit=True, min_block=3)
    generate(given, relaxed, sample)
    assert relaxed.audit.identical < relaxed.audit.sentences


def test_the_strictest_rules_are_the_exact_one() -> None:
    for kind in KINDS:
        given = numbers(kind)
        sample = batch(given.task, RAGGED, seed=1)
        exact = run(given, sample)
        for flags in ({"accept_topk": 1}, {"accept_distance": 0}, {"min_block": 1}):
            strict = run(given, sample, **flags)
            assert all(same(a, b) for a, b in zip(exact, strict, strict=True))


def test_the_rules_by_hand() -> None:
    """One row per case: what passes, up to the first that does not."""
    low, pad = -math.inf, 1
    values = torch.tensor([math.nan, math.nan, math.nan, 10.0, 11.0, 13.0, 20.0])
    scores = torch.tensor([low, low, -9.0, -1.0, -2.0, -2.0, low]).expand(9, 3, 7)
    draft = torch.tensor(
        [
            [3, 3, 3],
            [4, 4, 3],
            [5, 3, 3],
            [3, 5, 4],
            [2, 3, 3],  # </s>, which is no number
            [6, 3, 3],  # forbidden
            [pad, pad, pad],
            [5, pad, pad],
            [3, 5, pad],
        ]
    )
    choice = torch.full((9, 3), 3)

    def counts(rule: ExactMatch) -> list[int]:
        return rule.accept(draft, choice, scores).tolist()

    assert counts(ExactMatch()) == [3, 0, 0, 1, 0, 0, 0, 0, 1]
    assert counts(Distance(1, values)) == [3, 3, 0, 1, 0, 0, 0, 0, 1]
    assert counts(Distance(2, values)) == [3, 3, 0, 1, 0, 0, 0, 0, 1]
    assert counts(Distance(3, values)) == [3, 3, 3, 3, 0, 0, 0, 1, 2]
    assert counts(Distance(99, values)) == [3, 3, 3, 3, 0, 0, 0, 1, 2]
    # 4 and 5 tie: one token scores strictly higher than each.
    assert counts(TopKMargin(2)) == [3, 3, 3, 3, 0, 0, 0, 1, 2]
    assert counts(TopKMargin(3)) == [3, 3, 3, 3, 0, 0, 0, 1, 2]
    assert counts(TopKMargin(4)) == [3, 3, 3, 3, 3, 0, 0, 1, 2]
    assert counts(AtLeast(ExactMatch(), 1, pad)) == [3, 1, 1, 1, 1, 1, 0, 1, 1]
    assert counts(AtLeast(ExactMatch(), 2, pad)) == [3, 2, 2, 2, 2, 2, 0, 1, 2]
    assert counts(AtLeast(ExactMatch(), 9, pad)) == [3, 3, 3, 3, 3, 3, 0, 1, 2]
    assert counts(AtLeast(Distance(1, values), 1, pad)) == [3, 3, 1, 1, 1, 1, 0, 1, 1]
    empty = torch.zeros(9, 0, dtype=torch.long)
    for rule in (Distance(9, values), AtLeast(ExactMatch(), 2, pad)):
        assert rule.accept(empty, choice, scores).tolist() == [0] * 9


def test_distances_of_large_numbers() -> None:
    """Neighbours far from zero are as far apart as others."""
    words = Dictionary()
    for number in range(10**9, 10**9 + 12):
        words.add_symbol(str(number))
    task = ParallelTranslationTask(ParallelTranslationConfig(), words, words)
    given = whole(task, "output_dim", 15, block_size=TRAINED)
    for limit in (1, 2, 4):
        same_as_twin(given, batch(task, RAGGED, seed=1), accept_distance=limit)


# ---- what is accepted, read from the trace ------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [{}, {"accept_topk": 2}, {"accept_topk": 4}, {"accept_distance": 1}, {"accept_distance": 3},
     {"min_block": 3}, {"min_block": 2, "accept_topk": 3}],
    ids=rule_name,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["dense", "per_head-first", "lent"])
def test_accepted_tokens_meet_their_rule(kind: str, flags: dict[str, Any], tmp_path: Path) -> None:
    """By fairseq's full forward along the output; the first rejected ones do not."""
    given = numbers(kind)
    words = given.task.target_dictionary
    values = {word: int(word) for word in words.symbols if word.isdigit()}
    sample, path, limits = batch(given.task, RAGGED, seed=1), tmp_path / "t", Limits(min_len=2)
    run(given, sample, limits, trace_file=str(path), **flags)
    met = forced = rejected = 0

    def near(one: str, other: str) -> bool:
        both = one in values and other in values
        return one == other or (both and abs(values[one] - values[other]) <= distance)

    top, distance = flags.get("accept_topk", 1), flags.get("accept_distance", 0)
    least = flags.get("min_block", 1)
    for line, source in zip(path.read_text().splitlines(), source_rows(sample), strict=True):
        record, output = json.loads(line), []
        rules = rules_for(words, [given.model], len(source), **limits.reference())
        want = twin(given, source, limits, **flags)
        blocks = [block for block in want.blocks if block.predicted[0] != 2]
        assert len(record["trace"]) == len(blocks) + 1 == record["decoder_passes"]
        assert record["num_accepted"] == [one["num_accepted"] for one in record["trace"]]
        for number, one in enumerate(record["trace"]):
            assert one["start"] == len(output)
            draft = [words.index(word) for word in one["draft"]]
            if number == 0:
                assert draft == [] and one["verifier"] == [words[want.tokens[0]]]
            else:
                block = blocks[number - 1]
                assert draft == list(block.predicted[1:])
                assert [words.index(word) for word in one["verifier"]] == list(block.verified)
            full = full_log_probs(given.model, source, [*output, *draft]).double()
            all_met = True
            for i, token in enumerate(draft):
                scores = rules.apply(full[one["start"] + i], one["start"] + i)
                higher = int((scores > scores[token]).sum())
                own = words[int(scores.argmax())]
                assert one["verifier"][i] == own
                assert one["draft_ranks"][i] == higher
                passes = higher < top or near(words[token], own)
                passes = passes and float(scores[token]) > -math.inf
                if i < one["num_accepted"]:
                    assert passes or i + 1 < least
                    met, forced = met + passes, forced + (not passes)
                all_met = all_met and passes
                if i == one["num_accepted"]:
                    assert not all_met
                    rejected += 1
            before = len(output)
            output += draft[: one["num_accepted"]]
            if words.eos() not in output:  # behind the drafts, the verifier's own
                scores = rules.apply(full[len(output)], len(output))
                output.append(int(scores.argmax()))
                assert words[output[-1]] == one["verifier"][one["num_accepted"]]
            assert one["num_committed"] == len(output) - before
        assert [words[token] for token in output] == record["output"]
        asked = {"accept_topk": 1, "accept_distance": None, "min_block": 1} | flags
        asked |= {"drafter_path": given.path, "block_size": TRAINED}
        asked |= {"adaptive_block": False, "drafter_shortlist": None}
        assert record["flags"] == asked
    assert met > 0 and rejected > 0
    assert (forced > 0) == ("min_block" in flags)


def test_the_history_is_what_was_final_after_each_pass() -> None:
    """fairseq's --retain-iter-history."""
    given = numbers("dense")
    sample = batch(given.task, RAGGED, seed=1)
    for one in run(given, sample, accept_topk=4, retain_iter_history=True):
        states = [state["tokens"].tolist() for state in one.hypo["history"]]
        ends = [start for start, _, _ in one.passes[1:]] + [len(one.tokens)]
        assert [state[:end] for state, end in zip(states, ends, strict=True)] == [
            one.tokens[:end] for end in ends
        ]


# ---- other methods on a model with heads --------------------------------------------------------


@pytest.mark.parametrize(
    "flags", [*METHODS, {"decoding": "multiword_beam", "beam": 1}, {"decoding": "gad"}], ids=name
)
@pytest.mark.parametrize("first", [False, True], ids=["identity", "first"])
def test_other_methods_decode_it(flags: dict[str, Any], first: bool) -> None:
    """What they verify by is p_1."""
    for variant, dtype in (("learned_positions", torch.float64), ("mbart", torch.float64)):
        task, base = built(variant, dtype)
        model = whole(task, variant, train_first_head=first).model
        if flags["decoding"] == "gad":
            flags = flags | {"drafter_path": lend(task, model, tiny_drafter(task))}
        sample = batch(task, RAGGED, seed=1)
        want = check(task, [model], sample, flags, Limits())
        theirs = stock_greedy(task, [base], sample, **Limits().stock())
        assert first == (outputs_of(sample, want) != outputs_of(sample, theirs))


# ---- one generator, many batches ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "gelu-first", "lent"])
def test_a_generator_decodes_one_batch_after_another(kind: str) -> None:
    """Nothing of a batch is left in the generator for the next."""
    given = numbers(kind)
    flags = {"accept_distance": 2, "min_block": 2}
    generator = build(given, **flags)
    for seed, lengths in enumerate([(3, 5, 9), (4,), (2, 2, 7, 6, 8), (3, 5, 9)]):
        sample = batch(given.task, lengths, seed)
        got, fresh = generate(given, generator, sample), run(given, sample, **flags)
        assert all(same(a, b) for a, b in zip(got, fresh, strict=True))
        want = [twin(given, row, **flags).tokens for row in source_rows(sample)]
        assert [ours.tokens for ours in got] == want


def test_rows_in_another_order() -> None:
    """Who finishes first is not who comes first."""
    given = numbers("per_head")
    rows = sources(given.task, RAGGED, seed=1)
    tokens = torch.ones(6, 9, dtype=torch.long)
    for b, row in enumerate(rows):
        tokens[b, 9 - len(row) :] = row
    lengths = torch.tensor([len(row) for row in rows])
    for flags in RELAXED:
        known: dict[int, Decoded] = {}
        for order in (range(6), [5, 3, 1, 0, 2, 4], [4, 2, 0, 5, 1, 3], [0, 0, 3, 3, 3, 1]):
            index = list(order)
            part = {"net_input": {"src_tokens": tokens[index], "src_lengths": lengths[index]}}
            same_as_twin(given, part, **flags)
            for b, ours in zip(index, run(given, part, **flags), strict=True):
                assert same(known.setdefault(b, ours), ours)


def test_rows_that_leave_take_their_states_along() -> None:
    """Heads that know each row's states: any mix-up makes them fail."""
    task, base = wide()
    sample = batch(task, (3, 7, 5, 9, 2, 4, 6, 8, 3, 2, 5, 4), seed=5)
    order = [7, 0, 11, 4, 2, 9, 1, 10, 3, 8, 6, 5]
    part = {"net_input": {key: value[order] for key, value in sample["net_input"].items()}}
    want = stock_greedy(task, [base], part, **Limits().stock())
    for script in (noisy, perfect):
        given = told(task, base, part, want, script, 3)
        assert [ours.tokens for ours in run(given, part)] == [
            theirs["tokens"].tolist() for theirs in want
        ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_models_that_are_prepared_for_inference(dtype: torch.dtype) -> None:
    """As fairseq-generate does with what it loads; weights then lie otherwise."""
    cfg = OmegaConf.create({"generation": {"beam": 1}})
    for variant, first in (("mbart", False), ("output_dim", True), ("share_decoder", False)):
        task = task_for(variant)
        plain = whole(task, variant, dtype=dtype, train_first_head=first)
        model = copy.deepcopy(plain.model)
        model.prepare_for_inference_(cfg)
        pairs = [(plain, Given(task, model, model.block_heads))]
        if not first:
            base, ready = (tiny_model(task, variant, dtype) for _ in range(2))
            ready.make_generation_fast_()
            pairs.append((lent(task, base, plain.heads), lent(task, ready, plain.heads)))
        sample = batch(task, RAGGED, seed=1)
        for before, after in pairs:
            for flags in ({}, {"accept_topk": 6}, {"min_block": 2}):
                generator = build(after, **flags)
                for _ in range(2):
                    got, want = generate(after, generator, sample), run(before, sample, **flags)
                    assert [ours.tokens for ours in got] == [theirs.tokens for theirs in want]
                    assert [ours.passes for ours in got] == [theirs.passes for theirs in want]


def test_the_models_are_left_as_they_were() -> None:
    for given in (numbers("dense-first"), numbers("lent")):
        parts = [given.model, given.heads]
        before = [{k: v.clone() for k, v in part.state_dict().items()} for part in parts]
        run(given, batch(given.task, RAGGED), accept_topk=3)
        for part, weights in zip(parts, before, strict=True):
            assert all(torch.equal(v, weights[k]) for k, v in part.state_dict().items())


# ---- what --decoding auto means -----------------------------------------------------------------


@pytest.mark.parametrize("decoding", [None, "auto", "blockwise"])
def test_a_model_with_heads_is_decoded_blockwise(decoding: str | None) -> None:
    """In blocks as it was trained, unless told."""
    given = numbers("dense")
    sample = batch(given.task, RAGGED, seed=1)
    for flags, size in (({}, TRAINED), ({"block_size": 2}, 2)):
        generator = build(given, decoding=decoding, **flags)
        assert isinstance(generator, BlockwiseGenerator) and generator.lossless
        assert generator.config.decoding == "blockwise"
        assert generator.config.block_size == size
        for ours, row in zip(generate(given, generator, sample), source_rows(sample), strict=True):
            want = twin(given, row, block_size=size)
            assert (ours.tokens, ours.sizes) == (want.tokens, want.sizes)


def test_beam_search_is_fairseqs() -> None:
    """--decoding beam in any case; an ensemble by auto, for heads read one model's states."""
    task = task_for("default")
    models = [whole(task, seed=seed, train_first_head=seed == 1).model for seed in range(2)]
    sample = batch(task, RAGGED, seed=1)
    for members, decoding in ((models, None), (models, "auto"), (models[1:], "beam")):
        args = argparse.Namespace(**Limits().flags(), decoding=decoding, beam=4)
        generator = task.build_generator(members, args)
        assert type(generator) is SequenceGenerator
        judge = SequenceGenerator(members, task.target_dictionary, beam_size=4, max_len_b=16)
        hypos = task.inference_step(generator, members, sample)
        with torch.no_grad():
            want = judge.generate(members, sample)
        for ours, theirs in zip(hypos, want, strict=True):
            assert ours[0]["tokens"].tolist() == theirs[0]["tokens"].tolist()


# ---- what cannot be -----------------------------------------------------------------------------


def refused(task: Any, models: Sequence[Any], *words: str, **flags: Any) -> None:
    """Building the generator must fail, and name all these words, the flag first."""
    with pytest.raises(UsageError) as error:
        task.build_generator(list(models), argparse.Namespace(**flags))
    message = str(error.value)
    assert message.startswith(words[0] + ": got "), message
    missing = [word for word in words if word not in message]
    assert not missing, message


def test_blocks_of_a_size_that_heads_do_not_have() -> None:
    for kind in ("dense", "lent"):
        given = numbers(kind)
        here: list[Any] = [given.task, [given.model]]
        refused(*here, "--block-size", "7", "at most 6", block_size=7, **given.flags)
        refused(*here, "--min-block", "7", "at most", "6", min_block=7, **given.flags)
        refused(*here, "--min-block", "4", "at most", "3", min_block=4, block_size=3, **given.flags)
        fits = build(given, block_size=TRAINED, min_block=TRAINED)
        assert fits.config.min_block == fits.config.block_size == TRAINED
    given = numbers("dense")
    refused(given.task, [given.model], "--block-size", "7", "at most 6", block_size=7)


@pytest.mark.parametrize(
    ("flag", "least", "values"),
    [
        ("--block-size", 1, (0, -3, 2.0, True, "4")),
        ("--min-block", 1, (0, -1, 1.5, True, "2")),
        ("--accept-distance", 0, (-1, 0.5, False, "1")),
        ("--accept-topk", 1, (0, -1, 2.5, True, "2")),
    ],
)
def test_numbers_that_are_none(flag: str, least: int, values: tuple[Any, ...]) -> None:
    given = numbers("dense")
    option = flag[2:].replace("-", "_")
    for value in values:
        words = (flag, repr(value), f"whole number from {least} up")
        refused(given.task, [given.model], *words, **given.flags | {option: value})


@pytest.mark.parametrize("flag", ["--min-block", "--accept-distance"])
@pytest.mark.parametrize(
    "decoding", ["auto", "beam", "greedy", "pj", "pgj", "hgj", "gad", "gad_pp", "nat",
                 "multiword_beam", "double_token_beam"],
)  # fmt: skip
def test_flags_of_no_other_method(decoding: str, flag: str) -> None:
    given = numbers("dense")
    option = flag[2:].replace("-", "_")
    flags: dict[str, Any] = {"decoding": decoding, option: 2}
    refused(given.task, [given.model], flag, "2", decoding, "blockwise", **flags)
    if decoding == "auto":
        refused(given.task, [given.model], flag, "2", "blockwise", **{option: 2})


@pytest.mark.parametrize(
    "flag", ["accept_margin", "jacobi_init", "jacobi_window", "hybrid_length", "deduplicate_ngrams"]
)
def test_flags_of_other_methods(flag: str) -> None:
    given = numbers("dense")
    words = ("--" + flag.replace("_", "-"), "--decoding blockwise does not use")
    refused(given.task, [given.model], *words, **{flag: 1}, **given.flags)


def test_a_distance_needs_numbers() -> None:
    """A dictionary of words has none; nor has one with a single word among the numbers."""
    given = whole(task_for("default"))
    words = ("--accept-distance", "2", "whole numbers", "'w0'")
    refused(given.task, [given.model], *words, accept_distance=2, **given.flags)
    refused(given.task, [given.model], "--accept-distance", "0", "whole numbers",
            accept_distance=0, **given.flags)  # fmt: skip
    for odd in ("1.5", "-1", "seven"):
        mixed = Dictionary()
        for word in ("3", "0", odd, *map(str, range(20, 29))):
            mixed.add_symbol(word)
        task = ParallelTranslationTask(ParallelTranslationConfig(), mixed, mixed)
        words = ("--accept-distance", "1", "whole numbers", repr(odd))
        given = Given(task, numbers("dense").model, None)
        refused(task, [given.model], *words, accept_distance=1, **given.flags)


def test_a_distance_and_ranks_do_not_go_together() -> None:
    given = numbers("dense")
    words = ("--accept-distance", "2", "without --accept-topk")
    refused(given.task, [given.model], *words, accept_distance=2, accept_topk=2, **given.flags)
    build(given, accept_distance=2, accept_topk=1)


def test_heads_are_needed_once() -> None:
    task, base = built("default")
    given = whole(task)
    words = ("--path", "TransformerModel", "blockwise_transformer", "--drafter-path")
    refused(task, [base], *words, decoding="blockwise")
    path = lend_heads(task, given.model, given.heads)
    words = ("--drafter-path", path, "blockwise_transformer")
    refused(task, [given.model], *words, decoding="blockwise", drafter_path=path)


def test_no_ensembles() -> None:
    """Nor a block size for one that auto decodes by beam search."""
    task, base = built("default")
    models = [whole(task, seed=seed).model for seed in range(2)]
    refused(task, models, "--path", "2 models", "one", decoding="blockwise")
    refused(task, [base, models[0]], "--path", "2 models", "one", decoding="blockwise")
    refused(task, models, "--block-size", "2", "blockwise", block_size=2)
    path = lend_heads(task, base, models[0].block_heads)
    words = ("--path", "2 models", "one")
    refused(task, [base, base], *words, decoding="blockwise", drafter_path=path)


def test_a_plain_transformer_has_no_blocks() -> None:
    task, base = built("default")
    for decoding in (None, "auto"):
        words = ("--block-size", "3", "blockwise")
        refused(task, [base], *words, decoding=decoding, block_size=3)


@pytest.mark.parametrize("variant", ADAPTIVE)
def test_an_adaptive_softmax_is_refused(variant: str) -> None:
    """Its projection cannot be shared by heads."""
    with pytest.raises(UsageError, match="^--adaptive-softmax-cutoff: got .*blockwise_transformer"):
        whole(task_for(variant), variant)


# ---- heads in files -----------------------------------------------------------------------------


def save(task: Any, model: Any, path: Path, arch: str, weights: Any = None) -> str:
    """Write a model, or some weights of it, to a checkpoint as fairseq-train does."""
    named = argparse.Namespace(flags=model.flags, state_dict=lambda: weights or model.state_dict())
    written = save_drafter(task, named, path)
    state = torch.load(path, weights_only=False)
    state["cfg"]["model"].arch = arch
    torch.save(state, path)
    return written


@functools.cache
def base_and_heads() -> tuple[Any, Any, Any]:
    """A task, a base in single precision, and the model with heads that was trained on it."""
    task = task_for("default")
    return (
        task,
        tiny_model(task, dtype=torch.float32),
        whole(task, dtype=torch.float32, head_layer="per_head").model,
    )


def test_heads_from_files(tmp_path: Path) -> None:
    """A whole model, its heads alone, and in half precision: for the base that they know."""
    task, base, model = base_and_heads()
    sample = batch(task, RAGGED, seed=1)
    want = run(lent(task, base, model.block_heads), sample, accept_topk=9)
    assert max(max(ours.sizes) for ours in want) > 1
    every = model.state_dict()
    few = heads_only(every)
    assert set(few) < set(every) and not any(key.startswith("encoder.") for key in few)
    for number, weights in enumerate((every, few)):
        path = save(task, model, tmp_path / f"{number}.pt", "blockwise_transformer", weights)
        got = run(Given(task, base, None, path), sample, accept_topk=9)
        assert all(same(a, b) for a, b in zip(got, want, strict=True))
    halves = {key: weight.half() for key, weight in few.items()}
    path = save(task, model, tmp_path / "half.pt", "blockwise_transformer", halves)
    given = Given(task, base, None, path)
    check(task, [base], sample, given.flags, Limits(), max_ties=1)


def test_heads_are_loaded_once_for_each_base(tmp_path: Path) -> None:
    task, base, model = base_and_heads()
    path = save(task, model, tmp_path / "heads.pt", "blockwise_transformer")
    given = Given(task, base, None, path)
    first = build(given).heads
    assert build(given).heads is first
    other = copy.deepcopy(base)
    assert build(Given(task, other, None, path)).heads is not first


def test_wrong_files_are_named(tmp_path: Path) -> None:
    """Another base, no heads, no file, and heads that change the next token."""
    task, base, model = base_and_heads()
    arch, flags = "blockwise_transformer", {"decoding": "blockwise"}

    def wrong_file(path: str, *words: str, against: Any = base) -> None:
        refused(task, [against], "--drafter-path", path, *words, drafter_path=path, **flags)

    good = [
        save(task, model, tmp_path / f"good{number}.pt", arch, weights)
        for number, weights in enumerate((model.state_dict(), heads_only(model.state_dict())))
    ]
    others = (
        tiny_model(task, dtype=torch.float32, seed=1),
        tiny_model(task, dtype=torch.float32, decoder_layers=1),
        tiny_model(task, "output_dim", dtype=torch.float32),
        tiny_model(task, "adaptive_softmax", dtype=torch.float32),
    )
    for path in good:
        for other in others:
            wrong_file(path, "trained on the model of --path", against=other)
        build(Given(task, base, None, path))
    tuned = copy.deepcopy(model)
    tuned.decoder.layers[1].fc2.bias.data[3] += 0.1
    for number, weights in enumerate((tuned.state_dict(), heads_only(tuned.state_dict()))):
        path = save(task, model, tmp_path / f"tuned{number}.pt", arch, weights)
        wrong_file(path, "trained on the model of --path", "frozen")
    alone = {k: v for k, v in model.state_dict().items() if k.startswith("decoder.heads.")}
    wrong_file(save(task, model, tmp_path / "alone.pt", arch, alone), "trained on the model of")
    first = whole(task, dtype=torch.float32, train_first_head=True).model
    wrong_file(save(task, first, tmp_path / "first.pt", arch), "--train-first-head", "--path")
    plain = save(task, base, tmp_path / "plain.pt", "transformer")
    wrong_file(plain, "blockwise_transformer", "this is transformer")
    drafter = save_drafter(task, tiny_drafter(task, dtype=torch.float32), tmp_path / "nat.pt")
    wrong_file(drafter, "blockwise_transformer", "this is block_nat")
    wrong_file(str(tmp_path / "missing.pt"), "does not exist")
    (tmp_path / "text.pt").write_text("no checkpoint")
    wrong_file(str(tmp_path / "text.pt"), "no checkpoint at all")
    # And heads are no drafter for another method.
    words = ("--drafter-path", good[0], "block_nat")
    refused(task, [base], *words, decoding="gad", drafter_path=good[0])


def test_what_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The statistics add up to the paper's mean accepted block size, and are logged."""
    given, path = numbers("dense"), tmp_path / "stats.jsonl"
    sample = batch(given.task, RAGGED, seed=1)
    with caplog.at_level(logging.INFO):
        run(given, sample, stats_file=str(path), accept_topk=3)
    want = [twin(given, row, accept_topk=3) for row in source_rows(sample)]
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record, result in zip(records, want, strict=True):
        assert record["decoding"] == "blockwise"
        assert record["decoder_passes"] == result.passes
        assert block_sizes(record["num_accepted"], record["num_tokens"]) == result.sizes
        assert record["positional_scores"] == pytest.approx(result.scores)
    tokens, passes = (sum(map(f, want)) for f in (lambda r: len(r.tokens), lambda r: r.passes))
    assert f"blockwise: 6 sentences, {tokens} tokens, {passes} passes" in caplog.text


def test_heads_without_a_number_are_refused() -> None:
    """NaN heads end the decoding with the flag that gave them, in the model or beside it."""
    task = tiny_task()
    sample = batch(task, [5])
    model = whole(task).model
    base = tiny_model(task, "default")
    broken = copy.deepcopy(model.block_heads)
    broken.bias.data.fill_(math.nan)
    path = lend_heads(task, base, broken)
    with pytest.raises(UsageError, match=r"^--drafter-path: .*NaN"):
        decode(task, [base], sample, Limits(), decoding="blockwise", drafter_path=path)
    model.block_heads.bias.data.fill_(math.nan)
    with pytest.raises(UsageError, match=r"^--path: .*NaN"):
        decode(task, [model], sample, Limits(), decoding="blockwise")
