"""Blockwise parallel decoding, against fairseq's own search and a slow twin of the paper."""

import copy
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from reference.greedy import stock_greedy
from support import blockwise, builders
from support.blockwise import TRAINED, Given, lent, numbers, run, same_as_twin, sizes, whole
from support.builders import Limits, batch, built, task_for, tiny_drafter, tiny_model
from support.exact import RAGGED, check, outputs_of, refused, scored

from fairseq_paradec.decoding.acceptance import AtLeast, Distance, ExactMatch, TopKMargin
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin.models.heads import heads_only
from fairseq_paradec.plugin.tasks.flags import ParallelTranslationConfig
from fairseq_paradec.plugin.tasks.translation import ParallelTranslationTask

ARCH = "blockwise_transformer"


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
    drafter = builders.lend(task, given.model, tiny_drafter(task))
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


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"accept_topk": 3},
        {"accept_topk": 999},
        {"accept_distance": 1},
        {"accept_distance": 100},
        {"min_block": 3},
        {"min_block": TRAINED},
        {"min_block": 2, "accept_topk": 2},
        {"min_block": 4, "accept_distance": 3},
    ],
    ids=str,
)
def test_every_rule_is_the_papers(flags: dict[str, Any]) -> None:
    """Tokens, scores, blocks and passes."""
    found_sizes, drafted_ends = set(), 0
    for kind in blockwise.KINDS:
        given = numbers(kind)
        for result in same_as_twin(given, batch(given.task, RAGGED, seed=1), **flags):
            # But for the last blocks, which an output's end and its limit may cut.
            assert all(size >= flags.get("min_block", 1) for size in result.sizes[:-2])
            assert sum(result.sizes) == len(result.tokens)
            found_sizes |= set(result.sizes)
            drafted_ends += sum(2 in block.predicted[1:] for block in result.blocks)
    assert len(found_sizes) >= 3 and drafted_ends > 5  # random heads are right and wrong


#: Scores and intensities of seven tokens, and nine drafts of three; the verifier chooses token 3.
#: Draft 4 begins with </s>, which is no intensity; draft 5 with a forbidden token.
VALUES = np.array([math.nan, math.nan, math.nan, 10.0, 11.0, 13.0, 20.0])
SCORES = torch.tensor([-math.inf, -math.inf, -9.0, -1.0, -2.0, -2.0, -math.inf]).expand(9, 3, 7)
CHOICE = torch.full((9, 3), 3)
PADDING = 1
NINE = torch.tensor(
    [
        [3, 3, 3],
        [4, 4, 3],
        [5, 3, 3],
        [3, 5, 4],
        [2, 3, 3],
        [6, 3, 3],
        [PADDING, PADDING, PADDING],
        [5, PADDING, PADDING],
        [3, 5, PADDING],
    ]
)
#: A rule -> the tokens that it accepts of each draft: what passes, up to the first that does not.
ACCEPTED = {
    "exact": (ExactMatch(), [3, 0, 0, 1, 0, 0, 0, 0, 1]),
    "distance 1": (Distance(1, VALUES), [3, 3, 0, 1, 0, 0, 0, 0, 1]),
    "distance 2": (Distance(2, VALUES), [3, 3, 0, 1, 0, 0, 0, 0, 1]),
    "distance 3": (Distance(3, VALUES), [3, 3, 3, 3, 0, 0, 0, 1, 2]),
    # Tokens 4 and 5 tie: one token scores strictly higher than each.
    "top 2": (TopKMargin(2), [3, 3, 3, 3, 0, 0, 0, 1, 2]),
    "top 3": (TopKMargin(3), [3, 3, 3, 3, 0, 0, 0, 1, 2]),
    "top 9": (TopKMargin(9), [3, 3, 3, 3, 3, 0, 0, 1, 2]),
    "top 4 within 1": (TopKMargin(4, 1.0), [3, 3, 3, 3, 0, 0, 0, 1, 2]),
    "top 4 within 0.9": (TopKMargin(4, 0.9), [3, 0, 0, 1, 0, 0, 0, 0, 1]),
    "at least 1": (AtLeast(ExactMatch(), 1, PADDING), [3, 1, 1, 1, 1, 1, 0, 1, 1]),
    "at least 2": (AtLeast(ExactMatch(), 2, PADDING), [3, 2, 2, 2, 2, 2, 0, 1, 2]),
    "at least 9": (AtLeast(ExactMatch(), 9, PADDING), [3, 3, 3, 3, 3, 3, 0, 1, 2]),
    "at least 1, distance 1": (
        AtLeast(Distance(1, VALUES), 1, PADDING),
        [3, 3, 1, 1, 1, 1, 0, 1, 1],
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_rule_by_hand(name: str) -> None:
    rule, accepted = ACCEPTED[name]
    assert rule.accept(NINE.numpy(), scored(SCORES, CHOICE, NINE)).tolist() == accepted


@pytest.mark.parametrize("name", ACCEPTED)
def test_no_rule_accepts_anything_of_an_empty_draft(name: str) -> None:
    rule, empty = ACCEPTED[name][0], NINE[:, :0]
    assert rule.accept(empty.numpy(), scored(SCORES, CHOICE, empty)).tolist() == [0] * 9


def test_what_is_lossless_passes_the_audit() -> None:
    lossless = [{}, {"accept_topk": 1}, {"accept_distance": 0}, {"min_block": 1}, {"block_size": 2}]
    relaxed = [{"accept_topk": 2}, {"accept_distance": 1}, {"min_block": 2}, {"min_block": 3}]
    for kind in ("dense", "gelu-first", "lent"):
        given = numbers(kind)
        for flags in lossless + relaxed:
            generator = blockwise.build(given, audit=True, **flags).decoder
            assert generator.lossless == (flags in lossless)
            sample = batch(given.task, RAGGED, seed=1)
            given.task.inference_step(generator, [given.model], sample)
            assert flags in relaxed or generator.audit.identical == len(RAGGED)
        assert generator.audit.identical < generator.audit.sentences == len(RAGGED)


def test_a_model_with_heads_is_decoded_blockwise() -> None:
    """In blocks as it was trained, unless told; beam search and ensembles are fairseq's."""
    given = numbers("dense")
    for decoding in (None, "auto", "blockwise"):
        for flags, size in (({}, TRAINED), ({"block_size": 2}, 2)):
            generator = blockwise.build(given, decoding=decoding, **flags).decoder
            assert generator.config.decoding == "blockwise" and generator.lossless
            assert generator.config.block_size == size
    for models, decoding in (([given.model] * 2, None), ([given.model], "beam")):
        args = Namespace(decoding=decoding, beam=4)
        assert type(given.task.build_generator(models, args)) is SequenceGenerator


def test_what_cannot_be_is_named() -> None:
    """Blocks that heads do not have, words that are no numbers, no heads, and too many."""
    mixed = Dictionary()
    for word in ("3", "0", "-1", *map(str, range(20, 29))):
        mixed.add_symbol(word)
    task, base = built("default")
    one, two = (whole(task, seed=seed).model for seed in range(2))
    beside, twice = (
        {"drafter_path": builders.lend_heads(task, model, one.block_heads)} for model in (base, one)
    )
    with_mixed = ParallelTranslationTask(ParallelTranslationConfig(), mixed, mixed)
    of_numbers = [(numbers(kind).task, [numbers(kind).model]) for kind in ("dense", "lent")]
    own = numbers("lent").flags
    for (its_task, models), flags, words in (
        (of_numbers[0], {"block_size": 7}, ["--block-size", "7", "at most 6"]),
        (of_numbers[1], own | {"block_size": 7}, ["--block-size", "7", "at most 6"]),
        (of_numbers[1], own | {"min_block": 7}, ["--min-block", "7", "at most", "6"]),
        (of_numbers[0], {"min_block": 4, "block_size": 3}, ["--min-block", "4", "at most", "3"]),
        ((task, [one]), {"accept_distance": 2}, ["--accept-distance", "whole numbers", "'w0'"]),
        ((task, [one]), {"accept_distance": 0}, ["--accept-distance", "0", "whole numbers"]),
        ((with_mixed, of_numbers[0][1]), {"accept_distance": 1}, ["--accept-distance", "-1"]),
        ((task, [base]), {}, ["--path", "TransformerModel", ARCH]),
        ((task, [one]), twice, ["--drafter-path", ARCH]),
        ((task, [one, two]), {}, ["--path", "2 models", "one"]),
        ((task, [base, base]), beside, ["--path", "2 models", "one"]),
    ):
        refused(its_task, models, "|".join(words), **{"decoding": "blockwise"} | flags)
    refused(task, [one, two], "--block-size 2 needs|blockwise", block_size=2)
    for variant in blockwise.ADAPTIVE:  # its projection cannot be shared by heads
        with pytest.raises(UsageError, match="^--adaptive-softmax-cutoff: got .*blockwise_transf"):
            whole(task_for(variant), variant)
    broken = whole(task)
    broken.heads.bias.data.fill_(math.nan)
    for given, flag in ((broken, "--path"), (lent(task, base, broken.heads), "--drafter-path")):
        with pytest.raises(UsageError, match=f"^{flag}: .*NaN"):
            run(given, batch(task, [5]))


def test_heads_from_files(tmp_path: Path) -> None:
    """A whole model, its heads alone, and in half precision; loaded once for each base."""
    task = task_for("default")
    base = tiny_model(task, dtype=torch.float32)
    model = whole(task, dtype=torch.float32, head_layer="per_head").model
    sample = batch(task, RAGGED, seed=1)
    want = run(lent(task, base, model.block_heads), sample, accept_topk=9)
    assert max(max(sizes(ours)) for ours in want) > 1
    every = model.state_dict()
    few = heads_only(every)
    for name, weight in few.items():  # of the base only some vectors
        is_vector = name.startswith("decoder.layers.1.") and weight.dim() == 1
        assert is_vector or name.startswith("decoder.heads.")
    halves = {key: weight.half() for key, weight in few.items()}
    paths = [
        builders.save_drafter(task, model, tmp_path / f"{number}.pt", ARCH, weights)
        for number, weights in enumerate((every, few, halves))
    ]
    for path in paths[:2]:
        given = Given(task, base, None, path)
        got = run(given, sample, accept_topk=9)
        assert [(o.tokens, o.passes) for o in got] == [(o.tokens, o.passes) for o in want]
    heads = blockwise.build(given).decoder.heads
    assert blockwise.build(given).decoder.heads is heads
    other = Given(task, copy.deepcopy(base), None, given.path)
    assert blockwise.build(other).decoder.heads is not heads
    flags = {"decoding": "blockwise", "drafter_path": paths[2]}
    check(task, [base], sample, flags, Limits(), max_ties=1)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    """Another base, no heads, damaged ones, and heads that change the next token."""
    task, own = task_for("default"), {"dtype": torch.float32}
    base, model = tiny_model(task, **own), whole(task, **own).model
    tuned = copy.deepcopy(model)
    tuned.decoder.layers[1].fc2.bias.data[3] += 0.1
    every, few = model.state_dict(), heads_only(model.state_dict())
    alone = {k: v for k, v in every.items() if k.startswith("decoder.heads.")}
    torn = {k: v for k, v in few.items() if k != "decoder.heads.outer"}
    short = few | {"decoder.heads.bias": few["decoder.heads.bias"][:-1]}
    first = whole(task, **own, train_first_head=True).model
    drafter = tiny_drafter(task, **own)

    def save(name: str, model: Any, weights: Any = None, arch: str = ARCH) -> str:
        return builders.save_drafter(task, model, tmp_path / name, arch, weights)

    other, good = "trained on the model of", save("good.pt", model, few)
    for path, *words in (
        (save("tuned.pt", tuned), other, "frozen"),
        (save("t.pt", model, heads_only(tuned.state_dict())), other),
        (save("alone.pt", model, alone), other),
        (save("torn.pt", model, torn), "undamaged"),
        (save("short.pt", model, short), "undamaged"),
        (save("first.pt", first), "--train-first-head", "--path"),
        (save("plain.pt", base, arch="transformer"), ARCH, "this is transformer"),
        (save("nat.pt", drafter, arch="block_nat"), "this is block_nat"),
    ):
        words = "|".join(["--drafter-path: got", path, *words])
        refused(task, [base], words, decoding="blockwise", drafter_path=path)
    for against in (
        tiny_model(task, **own, seed=1),
        tiny_model(task, **own, decoder_layers=1),
        tiny_model(task, "adaptive_softmax", **own),
    ):
        words = f"--drafter-path: got|{good}|{other} --path"
        refused(task, [against], words, decoding="blockwise", drafter_path=good)
    words = "--drafter-path: got|heads without their base|--decoding blockwise"
    refused(task, [base], words, decoding="gad", drafter_path=good)
