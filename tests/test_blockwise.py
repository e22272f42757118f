"""Blockwise parallel decoding, against fairseq's own search and a slow twin of the paper."""

from __future__ import annotations

import argparse
import copy
import functools
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from reference.greedy import stock_greedy
from support.blockwise import (
    ADAPTIVE,
    KINDS,
    TRAINED,
    Given,
    Script,
    build,
    ends_at_once,
    lent,
    never_ends,
    noisy,
    numbers,
    perfect,
    run,
    same_as_twin,
    sizes,
    told,
    twin,
    whole,
    wide,
    wrong,
)
from support.builders import (
    Limits,
    batch,
    built,
    lend,
    lend_heads,
    save_drafter,
    source_rows,
    task_for,
    tiny_drafter,
    tiny_model,
    tiny_task,
)
from support.exact import RAGGED, check, outputs_of

from fairseq_paradec.analysis.blocks import block_sizes
from fairseq_paradec.decoding.acceptance import AtLeast, Distance, ExactMatch, TopKMargin
from fairseq_paradec.errors import UsageError
from fairseq_paradec.models.blockwise_transformer import heads_only
from fairseq_paradec.tasks.flags import ParallelTranslationConfig
from fairseq_paradec.tasks.translation import ParallelTranslationTask

# ---- exact decoding is greedy search ------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "layer", "first"),
    [("mbart", "dense", False), ("default", "per_head", False), ("share_all", "per_head", True)],
)
def test_exact_decoding_is_greedy_search(variant: str, layer: str, first: bool) -> None:
    """Of the stock base, by heads in the model and beside it; or of another p_1."""
    task, base = built(variant)
    given = whole(task, variant, head_layer=layer, train_first_head=first)
    sample = batch(task, RAGGED, seed=1)
    want = check(task, [given.model], sample, given.flags, Limits())
    theirs = stock_greedy(task, [base], sample, **Limits().stock())
    assert first == (outputs_of(sample, want) != outputs_of(sample, theirs))
    if not first:
        check(task, [base], sample, lent(task, base, given.heads).flags, Limits(), want=theirs)
    drafter = lend(task, given.model, tiny_drafter(task))
    for flags in (
        {"decoding": "greedy"},
        {"decoding": "hgj"},
        {"decoding": "multiword_beam", "beam": 1},
        {"decoding": "gad", "drafter_path": drafter},
    ):  # what they verify by is p_1
        check(task, [given.model], sample, flags, Limits(), want=want)


def test_heads_take_the_precision_of_their_base() -> None:
    task, base = built("default", torch.float32)
    rounded = copy.deepcopy(base).to(torch.bfloat16)
    given = lent(task, rounded, copy.deepcopy(whole(task).heads))
    assert all(ours.tokens[-1] == 2 for ours in run(given, batch(task, RAGGED)))
    assert given.heads.bias.dtype == torch.bfloat16


# ---- the twin -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [{}, {"accept_topk": 3}, {"accept_topk": 999}, {"accept_distance": 1}, {"accept_distance": 100},
     {"min_block": 3}, {"min_block": TRAINED}, {"min_block": 2, "accept_topk": 2},
     {"min_block": 4, "accept_distance": 3}],
    ids=str,
)  # fmt: skip
def test_every_rule_is_the_papers(flags: dict[str, Any]) -> None:
    """Tokens, scores, blocks and passes."""
    found_sizes, drafted_ends = set(), 0
    for kind in KINDS:
        given = numbers(kind)
        for result in same_as_twin(given, batch(given.task, RAGGED, seed=1), **flags):
            # But for the last blocks, which an output's end and its limit may cut.
            assert all(size >= flags.get("min_block", 1) for size in result.sizes[:-2])
            assert sum(result.sizes) == len(result.tokens)
            found_sizes |= set(result.sizes)
            drafted_ends += sum(2 in block.predicted[1:] for block in result.blocks)
    assert len(found_sizes) >= 3 and drafted_ends > 5  # random heads are right and wrong


@pytest.mark.parametrize("trained", [1, 2, 6])
@pytest.mark.parametrize("kind", ["per_head-first", "lent"])
def test_every_block_size(kind: str, trained: int) -> None:
    """As trained, and every smaller one: the same heads, fewer of them."""
    given = numbers(kind, trained)
    sample = batch(given.task, RAGGED[:4], seed=2)
    for size in range(1, trained + 1):
        for flags in ({}, {"min_block": size}):
            found = same_as_twin(given, sample, block_size=size, **flags)
            assert max(s for result in found for s in result.sizes) <= size
            if flags:
                assert all({*result.sizes[:-2]} <= {size} for result in found)
    same_as_twin(given, sample)  # by default as trained


def test_distances_of_large_numbers() -> None:
    """Neighbours far from zero are as far apart as others."""
    words = Dictionary()
    for number in range(10**9, 10**9 + 12):
        words.add_symbol(str(number))
    task = ParallelTranslationTask(ParallelTranslationConfig(), words, words)
    given = whole(task, "output_dim", 15, block_size=TRAINED)
    for limit in (1, 4):
        same_as_twin(given, batch(task, RAGGED, seed=1), accept_distance=limit)


def test_the_rules_by_hand() -> None:
    """One row per case: what passes, up to the first that does not."""
    low, pad = -math.inf, 1
    values = torch.tensor([math.nan, math.nan, math.nan, 10.0, 11.0, 13.0, 20.0])
    scores = torch.tensor([low, low, -9.0, -1.0, -2.0, -2.0, low]).expand(9, 3, 7)
    # Row 4 starts with </s>, which is no number; row 5 with a forbidden token.
    draft = [[3, 3, 3], [4, 4, 3], [5, 3, 3], [3, 5, 4], [2, 3, 3], [6, 3, 3]]
    draft = torch.tensor([*draft, [pad, pad, pad], [5, pad, pad], [3, 5, pad]])
    choice = torch.full((9, 3), 3)

    def counts(rule: ExactMatch) -> list[int]:
        assert rule.accept(draft[:, :0], choice, scores).tolist() == [0] * 9
        return rule.accept(draft, choice, scores).tolist()

    assert counts(ExactMatch()) == [3, 0, 0, 1, 0, 0, 0, 0, 1]
    assert counts(Distance(1, values)) == [3, 3, 0, 1, 0, 0, 0, 0, 1]
    assert counts(Distance(2, values)) == [3, 3, 0, 1, 0, 0, 0, 0, 1]
    assert counts(Distance(3, values)) == [3, 3, 3, 3, 0, 0, 0, 1, 2]
    # 4 and 5 tie: one token scores strictly higher than each.
    assert counts(TopKMargin(2)) == [3, 3, 3, 3, 0, 0, 0, 1, 2]
    assert counts(TopKMargin(4)) == [3, 3, 3, 3, 3, 0, 0, 1, 2]
    assert counts(AtLeast(ExactMatch(), 1, pad)) == [3, 1, 1, 1, 1, 1, 0, 1, 1]
    assert counts(AtLeast(ExactMatch(), 2, pad)) == [3, 2, 2, 2, 2, 2, 0, 1, 2]
    assert counts(AtLeast(ExactMatch(), 9, pad)) == [3, 3, 3, 3, 3, 3, 0, 1, 2]
    assert counts(AtLeast(Distance(1, values), 1, pad)) == [3, 3, 1, 1, 1, 1, 0, 1, 1]


# ---- heads by construction ----------------------------------------------------------------------


def blocks(count: int, k: int) -> list[int]:
    """So many tokens in blocks of k."""
    return [k] * (count // k) + [count % k] * (count % k > 0)


@pytest.mark.parametrize("m", [1, 2, 7, 17])
def test_passes_of_perfect_and_wrong_heads(m: int) -> None:
    """1 + ceil((m-1)/k) for m tokens; wrong heads take m, with blocks of one token."""
    task, base = wide()
    sample, limits = batch(task, (5,), seed=0), Limits(max_len_b=m - 1, min_len=m - 1)
    want = stock_greedy(task, [base], sample, **limits.stock())
    (tokens,) = outputs_of(sample, want).values()
    assert len(tokens) == m
    best, worst = (told(task, base, sample, want, script, 10) for script in (perfect, wrong))
    for k in (1, 2, 3, 10):
        (ours,) = run(best, sample, limits, block_size=k)
        assert ours.tokens == tokens
        assert ours.hypo["steps"] == 1 + math.ceil((m - 1) / k)
        assert sizes(ours) == blocks(m - 1, k) + [1]  # </s> at the limit need not be drafted
    (ours,) = run(worst, sample, limits)
    assert ours.tokens == tokens
    assert ours.hypo["steps"] == m and sizes(ours) == [1] * m


@pytest.mark.parametrize("script", [perfect, wrong, noisy, ends_at_once, never_ends])
def test_heads_that_are_told_what_to_say(script: Script) -> None:
    """Rows that end by themselves at many times: greedy's tokens, in as many passes as it takes.

    `</s>` in a draft ends the block, and the row. Heads that see another row's state fail.
    """
    task, base = wide()
    sample, limits = batch(task, (3, 7, 5, 9, 2, 4, 6, 8, 3, 2, 5, 4), seed=5), Limits(min_len=0)
    want = stock_greedy(task, [base], sample, **limits.stock())
    outputs = outputs_of(sample, want)
    assert len({len(tokens) for tokens in outputs.values()}) > 4
    given = told(task, base, sample, want, script, 10)
    for k in (1, 2, 3, 10):
        for ours, tokens in zip(run(given, sample, limits, block_size=k), outputs.values()):
            m = len(tokens)
            assert ours.tokens == tokens
            assert sum(sizes(ours)) == m and max(sizes(ours)) <= k
            if script is perfect:
                assert sizes(ours) == (blocks(m, k) if m < 17 else blocks(16, k) + [1])
            if script in (perfect, never_ends):
                # </s> is the verifier's own, in the pass that finds the rest of the words.
                assert ours.hypo["steps"] == 1 + math.ceil((m - 1) / k)
            if script in (wrong, ends_at_once):
                assert ours.hypo["steps"] == m
            if script is ends_at_once and k > 1:
                # Only the last drafts are right: at the end, and one token before it.
                assert all(drafted <= 1 for _, drafted, _ in ours.passes)
                assert m == 1 or m == 17 or sizes(ours)[-1] == 2


def test_block_sizes_by_hand() -> None:
    """A pass is the end of one block and the first token of the next."""
    assert block_sizes([0], 1) == [1]  # </s> at once
    assert block_sizes([0, 2, 0, 3], 8) == [3, 1, 4]  # the last draft is </s>
    assert block_sizes([0, 2, 0, 3], 9) == [3, 1, 4, 1]  # and here the verifier's own is
    assert block_sizes([0, 0, 0], 3) == [1, 1, 1]
    # Section 7.4's example: its blocks, with one pass more.
    found = [10, 5, 4, 10, 2, 3]
    assert block_sizes([0, *(size - 1 for size in found)], sum(found)) == found


# ---- which rule, and what it promises -----------------------------------------------------------


def test_what_is_lossless_passes_the_audit() -> None:
    lossless = [{}, {"accept_topk": 1}, {"accept_distance": 0}, {"min_block": 1}, {"block_size": 2}]
    relaxed = [{"accept_topk": 2}, {"accept_distance": 1}, {"min_block": 2}, {"min_block": 3}]
    for kind in ("dense", "gelu-first", "lent"):
        given, identical = numbers(kind), []
        sample = batch(given.task, RAGGED, seed=1)
        for flags in lossless + relaxed:
            generator = build(given, audit=True, **flags)
            assert generator.lossless == (flags in lossless)
            given.task.inference_step(generator, [given.model], sample)
            assert generator.audit.sentences == len(RAGGED)
            identical.append(generator.audit.identical)
        assert identical[: len(lossless)] == [len(RAGGED)] * len(lossless)
        assert identical[-1] < len(RAGGED)


def test_what_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Blocks and scores are the twin's, and the trace, replayed, gives the output."""
    given, stats, trace = numbers("dense"), tmp_path / "stats.jsonl", tmp_path / "trace.jsonl"
    sample, words = batch(given.task, RAGGED, seed=1), given.task.target_dictionary
    with caplog.at_level(logging.INFO):
        run(given, sample, stats_file=str(stats), trace_file=str(trace), accept_topk=3)
    want = [twin(given, row, accept_topk=3) for row in source_rows(sample)]
    files = (map(json.loads, path.read_text().splitlines()) for path in (stats, trace))
    for record, traced, result in zip(*files, want, strict=True):
        assert record["decoding"] == "blockwise"
        assert record["decoder_passes"] == len(traced["trace"]) == result.passes
        assert block_sizes(record["num_accepted"], record["num_tokens"]) == result.sizes
        assert record["positional_scores"] == pytest.approx(result.scores)
        output: list[str] = []
        for one in traced["trace"]:
            assert one["start"] == len(output)
            accepted = one["num_accepted"]
            output += (one["draft"][:accepted] + one["verifier"][accepted:])[: one["num_committed"]]
        assert output == traced["output"] == [words[token] for token in result.tokens]
        drafts = [list(b.predicted[1:]) for b in result.blocks if b.predicted[0] != 2]
        assert [[words.index(w) for w in p["draft"]] for p in traced["trace"]] == [[], *drafts]
    tokens, passes = sum(len(r.tokens) for r in want), sum(r.passes for r in want)
    assert f"blockwise: 6 sentences, {tokens} tokens, {passes} passes" in caplog.text


@pytest.mark.parametrize("kind", ["dense", "lent"])
def test_a_generator_decodes_one_batch_after_another(kind: str) -> None:
    """Nothing of a batch is left for the next; a row without a source has no output."""
    given, flags = numbers(kind), {"accept_distance": 2, "min_block": 2}
    generator = build(given, **flags)
    for seed, lengths in enumerate([(3, 5, 9), (4,), (2, 1, 7, 6, 1), (3, 5, 9)]):
        sample = batch(given.task, lengths, seed)
        hypos = given.task.inference_step(generator, [given.model], sample)
        for hypo, row in zip(hypos, source_rows(sample), strict=True):
            alone = [2] if len(row) == 1 else twin(given, row, **flags).tokens
            assert hypo[0]["tokens"].tolist() == alone


@pytest.mark.parametrize(("variant", "first"), [("mbart", False), ("output_dim", True)])
def test_models_that_are_prepared_for_inference(variant: str, first: bool) -> None:
    """As fairseq-generate does with what it loads; weights then lie otherwise."""
    task = task_for(variant)
    plain = whole(task, variant, dtype=torch.float32, train_first_head=first)
    model = copy.deepcopy(plain.model)
    model.prepare_for_inference_(OmegaConf.create({"generation": {"beam": 1}}))
    pairs = [(plain, Given(task, model, model.block_heads))]
    if not first:
        base, ready = (tiny_model(task, variant, torch.float32) for _ in range(2))
        ready.make_generation_fast_()
        pairs.append((lent(task, base, plain.heads), lent(task, ready, plain.heads)))
    sample = batch(task, RAGGED, seed=1)
    for each in pairs:
        before, after = (
            [(o.tokens, o.passes) for o in run(p, sample, accept_topk=6)] for p in each
        )
        assert before == after


def test_a_model_with_heads_is_decoded_blockwise() -> None:
    """In blocks as it was trained, unless told; beam search and ensembles are fairseq's."""
    given = numbers("dense")
    for decoding in (None, "auto", "blockwise"):
        for flags, size in (({}, TRAINED), ({"block_size": 2}, 2)):
            generator = build(given, decoding=decoding, **flags)
            assert generator.config.decoding == "blockwise" and generator.lossless
            assert generator.config.block_size == size
    for models, decoding in (([given.model] * 2, None), ([given.model], "beam")):
        args = argparse.Namespace(decoding=decoding, beam=4)
        assert type(given.task.build_generator(models, args)) is SequenceGenerator


# ---- what cannot be -----------------------------------------------------------------------------


def refused(task: Any, models: list[Any], *words: str, **flags: Any) -> None:
    """Building the generator must fail, and name all these words, the flag first."""
    with pytest.raises(UsageError) as error:
        task.build_generator(models, argparse.Namespace(**flags))
    message = str(error.value)
    assert message.startswith(words[0] + ": got "), message
    missing = [word for word in words if word not in message]
    assert not missing, message


def test_what_cannot_be_is_named() -> None:
    """Blocks that heads do not have, words that are no numbers, no heads, and too many."""
    mixed = Dictionary()
    for word in ("3", "0", "-1", *map(str, range(20, 29))):
        mixed.add_symbol(word)
    task, base = built("default")
    one, two = (whole(task, seed=seed) for seed in range(2))
    of_words = one.task, [one.model]
    path = lend_heads(task, base, one.heads)
    twice = {"drafter_path": lend_heads(task, one.model, one.heads)}
    with_mixed = ParallelTranslationTask(ParallelTranslationConfig(), mixed, mixed)
    for kind in ("dense", "lent"):
        given = numbers(kind)
        for flags, words in (
            ({"block_size": 7}, ["--block-size", "7", "at most 6"]),
            ({"min_block": 7}, ["--min-block", "7", "at most", "6"]),
            ({"min_block": 4, "block_size": 3}, ["--min-block", "4", "at most", "3"]),
        ):
            refused(given.task, [given.model], *words, **given.flags, **flags)
        build(given, block_size=TRAINED, min_block=TRAINED)
    model = numbers("dense").model
    for (its_task, models), flags, words in (
        (of_words, {"accept_distance": 2}, ["--accept-distance", "whole numbers", "'w0'"]),
        (of_words, {"accept_distance": 0}, ["--accept-distance", "0", "whole numbers"]),
        ((with_mixed, [model]), {"accept_distance": 1}, ["--accept-distance", "'-1'"]),
        ((task, [base]), {}, ["--path", "TransformerModel", "blockwise_transformer"]),
        (of_words, twice, ["--drafter-path", "blockwise_transformer"]),
        ((task, [one.model, two.model]), {}, ["--path", "2 models", "one"]),
        ((task, [base, base]), {"drafter_path": path}, ["--path", "2 models", "one"]),
    ):
        refused(its_task, models, *words, decoding="blockwise", **flags)
    refused(task, [one.model, two.model], "--block-size", "2", "blockwise", block_size=2)
    for variant in ADAPTIVE:  # its projection cannot be shared by heads
        with pytest.raises(UsageError, match="^--adaptive-softmax-cutoff: got .*blockwise_transf"):
            whole(task_for(variant), variant)


def test_heads_without_a_number_are_refused() -> None:
    """NaN heads end the decoding with the flag that gave them, in the model or beside it."""
    task = tiny_task()
    given = whole(task)
    given.heads.bias.data.fill_(math.nan)
    beside = lent(task, tiny_model(task, "default"), given.heads)
    for one, flag in ((given, "--path"), (beside, "--drafter-path")):
        with pytest.raises(UsageError, match=f"^{flag}: .*NaN"):
            run(one, batch(task, [5]))


# ---- heads in files -----------------------------------------------------------------------------


def save(task: Any, model: Any, path: Path, arch: str = "", weights: Any = None) -> str:
    """Write a model, or some weights of it, to a checkpoint as fairseq-train does."""
    named = argparse.Namespace(flags=model.flags, state_dict=lambda: weights or model.state_dict())
    written = save_drafter(task, named, path)
    state = torch.load(path, weights_only=False)
    state["cfg"]["model"].arch = arch or "blockwise_transformer"
    torch.save(state, path)
    return written


@functools.cache
def base_and_heads() -> tuple[Any, Any, Any]:
    """A task, a base in single precision, and the model with heads that was trained on it."""
    task = task_for("default")
    base = tiny_model(task, dtype=torch.float32)
    return task, base, whole(task, dtype=torch.float32, head_layer="per_head").model


def test_heads_from_files(tmp_path: Path) -> None:
    """A whole model, its heads alone, and in half precision; loaded once for each base."""
    task, base, model = base_and_heads()
    sample = batch(task, RAGGED, seed=1)
    want = run(lent(task, base, model.block_heads), sample, accept_topk=9)
    assert max(max(sizes(ours)) for ours in want) > 1
    every = model.state_dict()
    few = heads_only(every)
    assert set(few) < set(every) and not any(key.startswith("encoder.") for key in few)
    for number, weights in enumerate((every, few)):
        given = Given(task, base, None, save(task, model, tmp_path / f"{number}.pt", "", weights))
        got = run(given, sample, accept_topk=9)
        assert [(o.tokens, o.passes) for o in got] == [(o.tokens, o.passes) for o in want]
    heads = build(given).heads
    assert build(given).heads is heads
    assert build(Given(task, copy.deepcopy(base), None, given.path)).heads is not heads
    halves = {key: weight.half() for key, weight in few.items()}
    given = Given(task, base, None, save(task, model, tmp_path / "half.pt", "", halves))
    check(task, [base], sample, given.flags, Limits(), max_ties=1)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    """Another base, no heads, no file, and heads that change the next token."""
    task, base, model = base_and_heads()
    state = model.state_dict()
    tuned = copy.deepcopy(model)
    tuned.decoder.layers[1].fc2.bias.data[3] += 0.1
    alone = {k: v for k, v in state.items() if k.startswith("decoder.heads.")}
    first = whole(task, dtype=torch.float32, train_first_head=True).model
    drafter = tiny_drafter(task, dtype=torch.float32)
    (tmp_path / "text.pt").write_text("no checkpoint")
    plain, other = save(task, base, tmp_path / "plain.pt", "transformer"), "trained on the model of"
    made = [
        (save(task, model, tmp_path / "tuned.pt", "", tuned.state_dict()), [other, "frozen"]),
        (save(task, model, tmp_path / "t.pt", "", heads_only(tuned.state_dict())), [other]),
        (save(task, model, tmp_path / "alone.pt", "", alone), [other]),
        (save(task, first, tmp_path / "first.pt"), ["--train-first-head", "--path"]),
        (plain, ["blockwise_transformer", "this is transformer"]),
        (save_drafter(task, drafter, tmp_path / "nat.pt"), ["this is block_nat"]),
        (str(tmp_path / "missing.pt"), ["does not exist"]),
        (str(tmp_path / "text.pt"), ["no checkpoint at all"]),
    ]
    for path, words in made:
        words = ["--drafter-path", path, *words]
        refused(task, [base], *words, decoding="blockwise", drafter_path=path)
    good = save(task, model, tmp_path / "good.pt", "", heads_only(state))
    for against in (
        tiny_model(task, dtype=torch.float32, seed=1),
        tiny_model(task, dtype=torch.float32, decoder_layers=1),
        tiny_model(task, "adaptive_softmax", dtype=torch.float32),
    ):
        words = ["--drafter-path", good, "trained on the model of --path"]
        refused(task, [against], *words, decoding="blockwise", drafter_path=good)
    words = ["--drafter-path", "heads without their base", "--decoding blockwise"]
    refused(task, [base], *words, decoding="gad", drafter_path=good)
