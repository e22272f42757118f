"""GAD, GAD++ and the drafter alone, against fairseq's own search and a slow twin of the paper."""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_generator import SequenceGenerator
from reference.block_nat import block_logits
from reference.greedy import full_log_probs, rules_for, stock_greedy
from support.builders import (
    DEMO,
    DEMO_DRAFTER,
    DRAFTER_BLOCK_SIZE,
    DRAFTER_POSITIONS,
    Limits,
    batch,
    built,
    collate,
    decode,
    demo,
    exact_gelu,
    lend,
    save_drafter,
    source_rows,
    sources,
    task_for,
    tiny_drafter,
    tiny_model,
    tiny_task,
)
from support.commands import PLUGIN, fairseq, lines_of, preprocess, run_python, succeed
from support.exact import RAGGED, check
from support.gad import (
    SCRIPTS,
    SEED,
    Pair,
    Script,
    greedy_of,
    lots,
    noisy,
    pair,
    perfect,
    run,
    same,
    same_as_twin,
    say,
    twin,
    twin_verifier,
    wrong,
)
from torch import Tensor

from fairseq_paradec.compat import loading
from fairseq_paradec.decoding.acceptance import ExactMatch, TopKMargin
from fairseq_paradec.decoding.engine.block import BlockScorer
from fairseq_paradec.decoding.engine.chunk import ChunkScorer
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods.registry import BLOCK_NAT
from fairseq_paradec.models.block_nat import BlockNatModel

BLOCKS = (1, 2, 5, 16, 50)  # limits are 16: up to far beyond them


# ---- verifiers with drafters --------------------------------------------------------------------


# ---- drafters that follow a script --------------------------------------------------------------


def gad_check(
    given: Pair,
    sample: dict[str, Any],
    flags: dict[str, Any],
    limits: Limits = Limits(),  # noqa: B008
    prefix_tokens: Tensor | None = None,
    max_ties: int = 0,
    sizes: Sequence[int] = (DRAFTER_BLOCK_SIZE,),
) -> list[dict[str, Tensor]]:
    """Compare with fairseq's beam 1, for these block sizes: tokens, score and positional scores."""
    want = stock_greedy(given.task, given.models, sample, prefix_tokens, **limits.stock())
    for size in sizes:
        every = {"drafter_path": given.path, "block_size": size} | flags
        models = given.models
        check(given.task, models, sample, every, limits, prefix_tokens, max_ties, want)
    return want


# ---- the block model over a cache ---------------------------------------------------------------

#: Prefix lengths of four rows, call by call; the rows that stay for the next call.
GROWTH: list[tuple[list[int], list[int]]] = [
    ([0, 0, 0, 0], [0, 1, 2, 3]),
    ([1, 7, 3, 0], [0, 1, 3]),  # row 2 is done
    ([1, 8, 12], [1, 2]),  # row 0 is done
    ([30, 13], [0, 1]),  # beyond the first capacity
    ([31, 40], [1]),
    ([62], [0]),  # with the block beyond the last position
]


@pytest.mark.parametrize("copy_source", [False, True], ids=["masks", "soft-copy"])
@pytest.mark.parametrize("attention", ["bidirectional", "prefix_causal"])
@pytest.mark.parametrize("left_pad", [True, False])
def test_blocks_are_those_of_the_twin_and_of_a_scorer_without_cache(
    attention: str, copy_source: bool, left_pad: bool
) -> None:
    """Ragged prefixes, rows that leave, a cache that grows."""
    task = tiny_task()
    model = tiny_drafter(
        task, attention, seed=SEED, soft_copy=copy_source, decoder_normalize_before=copy_source,
        no_scale_embedding=left_pad,
    )  # fmt: skip
    sample = batch(task, (9, 6, 3, 2), left_pad=left_pad)
    net_input, rows = sample["net_input"], source_rows(sample)
    words = torch.randint(4, 40, (4, 64), generator=lots("prefixes")).tolist()
    scorer, live, size = BlockScorer(model), [0, 1, 2, 3], 4
    with torch.inference_mode():
        scorer.encode(net_input)
        for lengths, stay in GROWTH:
            prefixes = [words[b][:n] for b, n in zip(live, lengths, strict=True)]
            got = scorer.log_probs(scorer.fill(prefixes, size))
            fresh = BlockScorer(model)
            fresh.encode({name: part[live] for name, part in net_input.items()})
            without_cache = fresh.log_probs(fresh.fill(prefixes, size))
            torch.testing.assert_close(got, without_cache, atol=1e-10, rtol=0)
            for b, scores in zip(live, got, strict=True):
                prefix = prefixes[live.index(b)]
                want = block_logits(model, rows[b], prefix, [None] * size, attention)
                torch.testing.assert_close(scores, want.log_softmax(-1), atol=1e-9, rtol=0)
            if len(stay) < len(live):
                scorer.reorder(stay)
                live = [live[i] for i in stay]
    assert scorer.cache.capacity > 32
    if attention == "prefix_causal":
        assert scorer.cache.lengths == [62]


def test_the_prefix_is_computed_once() -> None:
    """prefix_causal: a pass runs over what is new of the prefix and the masks."""
    given = pair("learned_positions", "causal")
    sample = batch(given.task, [5])
    widths: dict[str, list[int]] = {"prefix_causal": [], "bidirectional": []}
    for attention, seen in widths.items():
        scorer = BlockScorer(tiny_drafter(given.task, attention))
        step = scorer.step
        scorer.step = lambda x, *a, s=step, w=seen, **k: w.append(x.size(1)) or s(x, *a, **k)  # type: ignore[method-assign]
        with torch.inference_mode():
            scorer.encode(sample["net_input"])
            for prefix in ([], [5, 6], [5, 6, 7, 8, 9]):
                scorer.fill([prefix], 4)
    assert widths == {"prefix_causal": [4, 6, 7], "bidirectional": [4, 6, 9]}


# ---- gad is greedy search -----------------------------------------------------------------------


def test_gad_on_an_encoder_of_another_width() -> None:
    """The drafter's own dimensions differ from the shared encoder's."""
    task, model = built("other_dims")
    drafter = tiny_drafter(task, seed=SEED, verifier=model, decoder_embed_dim=32)
    given = Pair(task, (model,), drafter, lend(task, model, drafter))
    gad_check(given, batch(task, RAGGED, seed=1), {"decoding": "gad"})
    same_as_twin(given, batch(task, RAGGED, seed=1), decoding="gad")


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("variant", ["learned_positions", "mbart"])
def test_gad_with_scripted_drafters(variant: str, script: Callable[..., Script]) -> None:
    """From perfect to never right: greedy's tokens, the twin's passes, as alone."""
    given = pair(variant, "causal-copy-shared")
    sample = batch(given.task, RAGGED, seed=1)
    greedy = greedy_of(given, sample)
    assert len({len(tokens) for tokens in greedy.values()}) > 2, "rows end at different times"
    told = script(greedy)
    for size in BLOCKS:
        flags = {"decoding": "gad", "block_size": size, "script": told}
        for ours, row in zip(run(given, sample, **flags), source_rows(sample), strict=True):
            m = len(greedy[tuple(row)])
            assert ours.tokens == greedy[tuple(row)]
            assert ours.hypo["steps"] <= m
            if script is perfect:
                assert ours.hypo["steps"] == math.ceil(m / (size + 1))
            if script is wrong:
                assert ours.hypo["steps"] == m
            if size == 5:
                (alone,) = run(given, collate(given.task, [torch.tensor(row)]), **flags)
                assert same(ours, alone)
    for size in (2, 16):
        same_as_twin(given, sample, decoding="gad", block_size=size, script=told)


def test_passes_of_a_perfect_drafter_for_every_length_and_block() -> None:
    """ceil(m / (k+1)), m with `</s>`: also where the limit is what ends the row."""
    given = pair("mbart", "bidirectional")
    sample = batch(given.task, (5,), seed=0)
    for max_len in range(13):
        limits = Limits(max_len_b=max_len, min_len=max_len)  # m is max_len + 1
        greedy = greedy_of(given, sample, limits)
        ((_, tokens),) = greedy.items()
        assert len(tokens) == max_len + 1
        for size in (1, 2, 3, 5, 12, 13, 50):
            flags = {"decoding": "gad", "block_size": size}
            (ours,) = run(given, sample, limits, script=perfect(greedy), **flags)
            assert ours.tokens == tokens
            assert ours.hypo["steps"] == math.ceil((max_len + 1) / (size + 1))
            (ours,) = run(given, sample, limits, script=wrong(greedy), **flags)
            assert ours.hypo["steps"] == max_len + 1
            assert not any(accepted for _, _, accepted in ours.passes)


def test_rows_in_another_order() -> None:
    """Who finishes first is not who comes first."""
    given = pair("learned_positions", "causal")
    rows = sources(given.task, RAGGED, seed=1)
    sample = {"net_input": {"src_tokens": torch.ones(6, 9, dtype=torch.long)}}
    sample["net_input"]["src_lengths"] = torch.tensor([len(row) for row in rows])
    for b, row in enumerate(rows):
        sample["net_input"]["src_tokens"][b, 9 - len(row) :] = row
    script = noisy(greedy_of(given, sample))
    for order in ([5, 3, 1, 0, 2, 4], [4, 2, 0, 5, 1, 3]):
        part = {"net_input": {name: x[order] for name, x in sample["net_input"].items()}}
        same_as_twin(given, part, script=script, decoding="gad", block_size=3)
        same_as_twin(given, part, script=script, decoding="gad_pp", block_size=3)


@pytest.mark.parametrize("kind", ["bidirectional", "causal-copy-shared"])
@pytest.mark.parametrize(
    "flags",
    [
        {"decoding": "gad"},
        {"decoding": "gad_pp", "accept_topk": 40, "accept_margin": math.inf},
        {"decoding": "nat"},
    ],
    ids=lambda flags: flags["decoding"],
)
def test_a_row_is_decoded_as_if_alone(flags: dict[str, Any], kind: str) -> None:
    """Not even the number of masks, which see each other, depends on the neighbours' room."""
    given = pair("learned_positions", kind)
    sample = batch(given.task, (9, 2, 5, 12), seed=3)
    for limits in (Limits(max_len_a=1.0, max_len_b=1), Limits()):
        together = run(given, sample, limits, block_size=7, **flags)
        for ours, row in zip(together, source_rows(sample), strict=True):
            (alone,) = run(
                given, collate(given.task, [torch.tensor(row)]), limits, block_size=7, **flags
            )
            assert same(ours, alone)
        same_as_twin(given, sample, limits, block_size=7, **flags)


@pytest.mark.parametrize("decoding", ["gad", "gad_pp", "nat"])
def test_a_row_without_a_source_is_left_out(decoding: str) -> None:
    """Its output is empty, and the others' are what they were."""
    given = pair("learned_positions", "causal-copy-shared")
    flags: dict[str, Any] = {"decoding": decoding, "block_size": 4}
    models = [given.drafter] if decoding == "nat" else list(given.models)
    if decoding != "nat":
        flags["drafter_path"] = given.path
    sample = batch(given.task, (6, 1, 4), seed=2)
    hypos = decode(given.task, models, sample, Limits(), **flags)
    for hypo, row in zip(hypos, source_rows(sample), strict=True):
        want = [2] if len(row) == 1 else twin(given, row, decoding=decoding, block_size=4).tokens
        assert hypo["tokens"].tolist() == want


def test_another_start_symbol() -> None:
    """The verifier's first input; the drafter has none."""
    given = pair("learned_positions", "bidirectional")
    sample = batch(given.task, RAGGED, seed=1)
    args = argparse.Namespace(**Limits().flags(), decoding="gad", drafter_path=given.path)
    generator = given.task.build_generator(list(given.models), args)
    judge = SequenceGenerator(
        list(given.models), given.task.target_dictionary, beam_size=1, **Limits().stock()
    )
    ours, want, other = (
        [hypo[0]["tokens"].tolist() for hypo in g.generate(given.models, sample, bos_token=bos)]
        for g, bos in ((generator, 5), (judge, 5), (judge, None))
    )
    assert ours == want != other


def test_a_generator_decodes_one_batch_after_another() -> None:
    """Nothing of a batch is left in the generator for the next."""
    given = pair("learned_positions", "causal-copy-shared")
    args = argparse.Namespace(
        **Limits().flags(), decoding="gad_pp", drafter_path=given.path, accept_topk=9
    )
    generator = given.task.build_generator(list(given.models), args)
    for seed, lengths in enumerate([(3, 5, 9), (4,), (2, 2, 7, 6, 8)]):
        sample = batch(given.task, lengths, seed)
        got = given.task.inference_step(generator, given.models, sample)
        want = [twin(given, row, decoding="gad_pp", accept_topk=9) for row in source_rows(sample)]
        assert [row[0]["tokens"].tolist() for row in got] == [result.tokens for result in want]


def test_the_models_are_left_as_they_were() -> None:
    given = pair("default", "causal-copy-shared")
    models = (*given.models, given.drafter)
    before = [{k: v.clone() for k, v in model.state_dict().items()} for model in models]
    run(given, batch(given.task, RAGGED), decoding="gad")
    for model, weights in zip(models, before, strict=True):
        assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


# ---- gad_pp -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"accept_topk": 1, "accept_margin": 9.0}, {"accept_margin": 0.0}])
def test_gad_pp_at_its_strictest_is_gad(how: dict[str, Any]) -> None:
    given = pair("mbart", "causal-copy-shared")
    sample = batch(given.task, RAGGED, seed=1)
    script = noisy(greedy_of(given, sample))
    exact = run(given, sample, script=script, decoding="gad", block_size=5)
    strict = run(given, sample, script=script, decoding="gad_pp", block_size=5, **how)
    assert all(same(a, b) for a, b in zip(exact, strict, strict=True))
    assert sum(p.num_accepted for one in exact for p in one.row.passes) > 10
    gad_check(given, sample, {"decoding": "gad_pp", **how})


def test_gad_pp_at_its_strictest_takes_the_token_that_greedy_takes_among_equals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two tokens of exactly the same score: the paper's two equations would pass both."""
    given = pair("learned_positions", "causal")
    sample = batch(given.task, RAGGED, seed=1)
    tokens = [token for output in greedy_of(given, sample).values() for token in output]
    common = max(set(tokens) - {2, 39}, key=tokens.count)
    log_probs = ChunkScorer.log_probs

    def with_equals(self: ChunkScorer, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        scores = log_probs(self, hidden, temperature)
        scores[:, :, 39] = scores[:, :, common]
        return scores

    monkeypatch.setattr(ChunkScorer, "log_probs", with_equals)
    hypos = decode(given.task, given.models, sample, Limits(), decoding="greedy")
    want = [hypo["tokens"].tolist() for hypo in hypos]
    assert sum(output.count(common) for output in want) > 3
    swapped = [[39 if token == common else token for token in output] for output in want]
    told = perfect(dict(zip(map(tuple, source_rows(sample)), swapped, strict=True)))

    def outputs(**flags: Any) -> list[list[int]]:
        return [one.tokens for one in run(given, sample, script=told, block_size=5, **flags)]

    assert outputs(decoding="gad") == want
    assert outputs(decoding="gad_pp", accept_topk=1) == want
    assert outputs(decoding="gad_pp", accept_margin=0.0) == want
    loose = outputs(decoding="gad_pp", accept_topk=2, accept_margin=1e-6)
    assert sum(output.count(39) for output in loose) > 0


def near(given: Pair, temperature: float = 1.0) -> Script:
    """Often one of the verifier's best tokens, not always the very best."""

    def script(source: tuple[int, ...], prefix: Sequence[int], size: int) -> Tensor:
        verify = twin_verifier(given, source, temperature)
        told: list[int] = []
        for rank in torch.randint(6, (size,), generator=lots(source, prefix)).tolist():
            scores = verify([*prefix, *told])[-1]
            told.append(int(scores.argsort(descending=True)[max(rank - 2, 0)]))
        return say(told, size)

    return script


@pytest.mark.parametrize("variant", ["learned_positions", "mbart", "adaptive_softmax"])
@pytest.mark.parametrize(("top", "margin"), [(3, 1.0), (5, 3.0), (2, math.inf), (40, 2.0)])
def test_accepted_tokens_meet_equations_6_and_7(
    variant: str, top: int, margin: float, tmp_path: Path
) -> None:
    """Read from the trace alone and judged by fairseq's full forward; rejected ones do not."""
    given = pair(variant, "bidirectional-copy-shared")
    words = given.task.target_dictionary
    sample = batch(given.task, RAGGED, seed=1)
    path = tmp_path / "trace.jsonl"
    flags = {"accept_topk": top, "accept_margin": margin, "trace_file": str(path)}
    limits = Limits(min_len=3, unkpen=0.5)
    run(given, sample, limits, script=near(given), decoding="gad_pp", block_size=6, **flags)
    accepted = rescued = rejected = 0
    for line, source in zip(path.read_text().splitlines(), source_rows(sample), strict=True):
        record, output = json.loads(line), []
        rules = rules_for(words, given.models, len(source), **limits.reference())
        for one in record["trace"]:
            assert one["start"] == len(output)
            draft = [words.index(word) for word in one["draft"]]
            full = full_log_probs(given.models, source, [*output, *draft]).double()
            for i, token in enumerate(draft):
                scores = rules.apply(full[one["start"] + i], one["start"] + i)
                ranked = scores.sort(descending=True).values
                equation_6 = float(scores[token]) >= float(ranked[top - 1])
                equation_7 = float(ranked[0] - scores[token]) <= margin
                met = equation_6 and equation_7 and float(scores[token]) > -math.inf
                shown = (
                    -math.inf if one["draft_log_probs"][i] is None else one["draft_log_probs"][i]
                )
                assert shown == pytest.approx(float(scores[token]), abs=1e-4)
                assert one["draft_ranks"][i] == int((scores > scores[token]).sum())
                if i < one["num_accepted"]:
                    assert met
                    accepted += 1
                    rescued += one["draft"][i] != one["verifier"][i]
                if i == one["num_accepted"]:
                    assert not met
                    rejected += 1
            output += draft[: one["num_accepted"]]
            if words.eos() not in output:
                output.append(words.index(one["verifier"][one["num_accepted"]]))
        assert [words[token] for token in output] == record["output"]
        assert record["flags"]["accept_margin"] == ("inf" if margin == math.inf else margin)
    assert accepted > rescued > 0 and rejected > 0


def test_the_history_is_what_was_final_after_each_pass() -> None:
    """fairseq's --retain-iter-history, where accepted tokens are not the verifier's."""
    given = pair("learned_positions", "causal")
    sample = batch(given.task, RAGGED, seed=1)
    flags = {"accept_topk": 40, "accept_margin": 2.0, "retain_iter_history": True}
    for one in run(given, sample, decoding="gad_pp", **flags):
        states = [state["tokens"].tolist() for state in one.hypo["history"]]
        ends = [start for start, _, _ in one.passes[1:]] + [len(one.tokens)]
        assert [state[:end] for state, end in zip(states, ends, strict=True)] == [
            one.tokens[:end] for end in ends
        ]


def scores_of(*rows: Sequence[float]) -> Tensor:
    """1×R×V log-probabilities."""
    return torch.tensor([list(rows)])


def test_the_relaxed_rule_by_hand() -> None:
    """Ties count as equals of the beta-th; what is forbidden or padding never passes."""
    low = -math.inf
    row = [low, -1.0, -2.0, -2.0, -3.0, low]
    for token, top, margin, passes in (
        (1, 2, 0.1, True),
        (2, 2, 1.0, True),
        (3, 2, 1.0, True),  # it ties with the second
        (2, 2, 0.9, False),  # equation 7
        (4, 3, 9.0, False),  # three score higher: equation 6
        (4, 4, 9.0, True),
        (4, 4, 1.9, False),
        (5, 99, math.inf, False),  # forbidden
        (0, 99, math.inf, False),
    ):
        scores = scores_of(row, row)
        draft, choice = torch.tensor([[token]]), torch.tensor([[1, 1]])
        count = TopKMargin(top, margin).accept(draft, choice, scores)
        assert count.tolist() == [passes], (token, top, margin)
        assert ExactMatch().accept(draft, choice, scores).tolist() == [token == 1]


def test_nothing_passes_after_a_rejected_token() -> None:
    good, bad = [-0.1, -3.0, -9.0], [-9.0, -3.0, -0.1]
    scores = torch.tensor([[good, bad, good], [good, good, bad], [bad, good, good]])
    draft, choice = (
        torch.zeros(3, 2, dtype=torch.long),
        torch.tensor([[0, 2, 0], [0, 0, 2], [2] * 3]),
    )
    assert TopKMargin(2, 1.0).accept(draft, choice, scores).tolist() == [1, 2, 0]
    empty = torch.zeros(3, 0, dtype=torch.long)
    assert TopKMargin(2, 1.0).accept(empty, choice, scores).tolist() == [0, 0, 0]
    nothing = torch.full_like(scores, math.nan)
    assert TopKMargin(99, math.inf).accept(draft, choice, nothing).tolist() == [0, 0, 0]


# ---- the drafter alone --------------------------------------------------------------------------


def test_nat_in_single_precision() -> None:
    given = pair("learned_positions", "causal", torch.float32)
    exact = pair("learned_positions", "causal")
    for sample in (batch(given.task, RAGGED, seed=1), batch(given.task, [5])):
        ours, theirs = (run(p, sample, decoding="nat") for p in (given, exact))
        for one, other in zip(ours, theirs, strict=True):
            assert one.tokens == other.tokens
            assert one.row.scores == pytest.approx(other.row.scores, abs=1e-4)


@pytest.mark.parametrize("decoding", [None, "auto", "nat"])
def test_a_block_model_is_decoded_by_nat_in_blocks_as_it_was_trained(decoding: str | None) -> None:
    given = pair("learned_positions", "causal")
    sample = batch(given.task, RAGGED, seed=1)
    args = argparse.Namespace(**Limits().flags(), decoding=decoding)
    generator = given.task.build_generator([given.drafter], args)
    assert generator.config.decoding == "nat" and not generator.lossless
    assert generator.config.block_size == DRAFTER_BLOCK_SIZE
    hypos = given.task.inference_step(generator, [given.drafter], sample)
    for hypo, row in zip(hypos, source_rows(sample), strict=True):
        assert hypo[0]["tokens"].tolist() == twin(given, row, decoding="nat").tokens


def test_drafts_are_as_long_as_in_training_unless_told() -> None:
    given = pair("learned_positions", "causal")
    for flags, size in (({}, DRAFTER_BLOCK_SIZE), ({"block_size": 3}, 3)):
        for decoding in ("gad", "gad_pp"):
            args = argparse.Namespace(decoding=decoding, drafter_path=given.path, **flags)
            generator = given.task.build_generator(list(given.models), args)
            assert generator.config.block_size == size
            assert generator.lossless == (decoding == "gad")


# ---- the encoder --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bidirectional-copy-shared", "causal-copy-shared"])
@pytest.mark.parametrize("variant", ["default", "prenorm", "mbart"])
def test_a_shared_encoder_is_a_copy_of_it(
    variant: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same drafts, and the drafter's own encoder does not run."""
    given = pair(variant, kind)
    own = copy.deepcopy(given.drafter)
    own.shares_encoder = False
    apart = Pair(given.task, given.models, own, lend(given.task, given.models[0], own))
    sample = batch(given.task, RAGGED, seed=1)
    runs = {"shared": 0, "own": 0}

    def count(name: str, encoder: Any) -> None:
        forward = encoder.forward

        def counted(*args: Any, **kwargs: Any) -> Any:
            runs[name] += 1
            return forward(*args, **kwargs)

        monkeypatch.setattr(encoder, "forward", counted)

    count("shared", given.drafter.encoder)
    count("own", own.encoder)
    for flags in (
        {"decoding": "gad"},
        {"decoding": "gad_pp", "accept_topk": 40, "accept_margin": 6.0},
    ):
        ours, theirs = (run(p, sample, block_size=5, **flags) for p in (given, apart))
        assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    assert runs == {"shared": 0, "own": 2}


def test_the_verifier_in_another_precision_has_the_same_encoder() -> None:
    task, model = built("default", torch.float32)
    drafter = tiny_drafter(task, dtype=torch.float32, verifier=model)
    for dtype in (torch.float16, torch.bfloat16):
        rounded = copy.deepcopy(model).to(dtype)
        path = lend(task, rounded, copy.deepcopy(drafter))
        args = argparse.Namespace(decoding="gad", drafter_path=path, **Limits().flags())
        generator = task.build_generator([rounded], args)
        hypos = task.inference_step(generator, [rounded], batch(task, RAGGED))
        assert all(hypo[0]["tokens"][-1] == 2 for hypo in hypos)
        assert generator.drafter.decoder.mask_vector.dtype == dtype


# ---- loading ------------------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every checkpoint that is loaded."""
    seen: list[str] = []
    load = checkpoint_utils.load_model_ensemble_and_task

    def spy(filenames: list[str], *args: Any, **kwargs: Any) -> Any:
        seen.extend(filenames)
        return load(filenames, *args, **kwargs)

    monkeypatch.setattr(loading.checkpoint_utils, "load_model_ensemble_and_task", spy)
    return seen


def test_a_drafter_is_loaded_once_for_each_precision(tmp_path: Path, loads: list[str]) -> None:
    """And generators in other precisions leave each other's drafter as it is."""
    task = task_for("default")
    model = tiny_model(task, "default", torch.float32)
    drafter = tiny_drafter(task, dtype=torch.float32, verifier=model)
    path = save_drafter(task, drafter, tmp_path / "drafter.pt")
    args = argparse.Namespace(decoding="gad", drafter_path=path, **Limits().flags())
    sample = batch(task, RAGGED)
    first = task.build_generator([model], args)
    assert loads == [path]
    assert task.build_generator([model], args).drafter is first.drafter
    assert loads == [path]
    half = copy.deepcopy(model).to(torch.bfloat16)
    second = task.build_generator([half], args)
    task.inference_step(second, [half], sample)
    for name, weight in drafter.state_dict().items():
        assert torch.equal(weight, first.drafter.state_dict()[name])
    again = task.inference_step(first, [model], sample)
    for hypo, want in zip(again, stock_greedy(task, [model], sample, max_len_b=16), strict=True):
        assert hypo[0]["tokens"].tolist() == want["tokens"].tolist()


def test_a_verifier_may_be_validated_by_gad(tmp_path: Path, loads: list[str]) -> None:
    """--eval-bleu-args: its generator is built with the model, and loads the drafter once."""
    task = task_for("default")
    flags = argparse.Namespace(**vars(tiny_model(task).flags), arch="transformer")
    path = save_drafter(task, tiny_drafter(task, dtype=torch.float32), tmp_path / "drafter.pt")
    task.cfg.eval_bleu = True
    options = {"decoding": "gad", "drafter_path": path, "max_len_b": 16}
    task.cfg.eval_bleu_args = json.dumps(options)
    model = task.build_model(flags).eval()
    assert loads == [path]
    assert task.sequence_generator.config.decoding == "gad"
    sample = batch(task, RAGGED)
    want = stock_greedy(task, [model], sample, max_len_b=16)
    hypos = task.inference_step(task.sequence_generator, [model], sample)
    for hypo, theirs in zip(hypos, want, strict=True):
        assert hypo[0]["tokens"].tolist() == theirs["tokens"].tolist()


def test_a_saved_drafter_drafts_as_before(tmp_path: Path) -> None:
    task, model = built("learned_positions", torch.float32)
    drafter = tiny_drafter(task, "bidirectional", torch.float32, seed=SEED, soft_copy=True)
    path = save_drafter(task, drafter, tmp_path / "drafter.pt")
    sample = batch(task, RAGGED, seed=1)
    ours, theirs = (
        run(Pair(task, (model,), drafter, p), sample, decoding="gad_pp", accept_topk=40)
        for p in (path, lend(task, model, drafter))
    )
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


# ---- what cannot be -----------------------------------------------------------------------------


def refused(task: Any, models: Sequence[Any], *words: str, **flags: Any) -> None:
    """Building the generator must fail, and name all these words."""
    with pytest.raises(UsageError) as error:
        task.build_generator(list(models), argparse.Namespace(**flags))
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, str(error.value)


@pytest.mark.parametrize("decoding", ["gad", "gad_pp"])
def test_wrong_drafters_are_named(decoding: str, tmp_path: Path) -> None:
    task, model = built("default", torch.float32)
    here = [task, [model], "--drafter-path"]
    flags: dict[str, Any] = {"decoding": decoding}
    refused(*here, "None", "block_nat", **flags)
    refused(*here, "''", "block_nat", drafter_path="", **flags)
    refused(*here, "/none.pt", "does not exist", drafter_path="/none.pt", **flags)
    refused(*here, str(tmp_path), "a folder", drafter_path=str(tmp_path), **flags)
    text = tmp_path / "text.pt"
    text.write_text("no weights")
    refused(*here, str(text), "no checkpoint at all", drafter_path=str(text), **flags)

    demo_task, demo_model, _ = demo()
    ar = str(DEMO / "model.pt")
    refused(
        demo_task, [demo_model], "--drafter-path", ar, "TransformerModel", "--arch block_nat",
        drafter_path=ar, **flags,
    )  # fmt: skip
    path = save_drafter(task, tiny_drafter(task, dtype=torch.float32), tmp_path / "tiny.pt")
    refused(
        demo_task, [demo_model], "--drafter-path", path, "40 symbols", "dictionary",
        drafter_path=path, **flags,
    )  # fmt: skip

    ours = tiny_task()
    ours.cfg.source_lang, ours.cfg.target_lang = "en", "de"
    drafter = tiny_drafter(ours, dtype=torch.float32)
    other = save_drafter(ours, drafter, tmp_path / "fr.pt", source_lang="en", target_lang="fr")
    refused(ours, [model], "--drafter-path", other, "en-de", "en-fr", drafter_path=other, **flags)
    good = save_drafter(ours, drafter, tmp_path / "de.pt")
    ours.build_generator([model], argparse.Namespace(drafter_path=good, **flags))


def test_a_drafter_of_another_encoder_is_named() -> None:
    task, model = built("default")
    other = built("default", seed=1)[1]
    path = lend(task, model, tiny_drafter(task, verifier=other))
    given = {"decoding": "gad", "drafter_path": path}
    refused(task, [model], "--drafter-path", path, "this verifier's encoder", **given)
    task.build_generator([other], argparse.Namespace(**given))
    narrow = tiny_drafter(task, verifier=built("other_dims")[1])
    path = lend(task, model, narrow)
    refused(task, [model], "this verifier's encoder", decoding="gad", drafter_path=path)


def test_an_ensemble_has_no_encoder_to_share() -> None:
    given = pair("default", "causal-copy-shared")
    models = [*given.models, built("default", seed=1)[1]]
    flags = {"decoding": "gad", "drafter_path": given.path}
    refused(given.task, models, "--path", "2 models", given.path, **flags)


def test_a_drafter_must_take_the_sources_that_the_verifier_takes() -> None:
    task, model = built("default")
    path = lend(task, model, tiny_drafter(task, max_source_positions=20))
    refused(
        task, [model], "--drafter-path", path, "64 source tokens", "20",
        decoding="gad", drafter_path=path,
    )  # fmt: skip


@pytest.mark.parametrize("decoding", ["auto", "beam", "greedy", "pj", "hgj", "gad", "gad_pp"])
def test_a_drafter_is_no_verifier(decoding: str) -> None:
    given = pair("default", "causal")
    flags: dict[str, Any] = {"decoding": decoding}
    if decoding.startswith("gad"):
        flags["drafter_path"] = given.path
    models = [*given.models, given.drafter] if decoding == "auto" else [given.drafter]
    refused(given.task, models, "--path", "--arch block_nat", "nat", **flags)


def test_nat_wants_one_block_model() -> None:
    given = pair("default", "causal")
    (model,) = given.models
    refused(given.task, [model], "--path", "TransformerModel", "block_nat", decoding="nat")
    refused(given.task, [given.drafter] * 2, "--path", "2 models", "block_nat", decoding="nat")
    refused(given.task, [given.drafter] * 2, "--path", "2 models", "block_nat")
    refused(given.task, [given.drafter], "--audit", "nat", decoding="nat", audit=True)


def test_a_block_must_fit_the_drafters_positions() -> None:
    given = pair("default", "causal")
    words = ("--block-size", str(DRAFTER_POSITIONS + 1), f"at most {DRAFTER_POSITIONS}")
    size = {"block_size": DRAFTER_POSITIONS + 1}
    refused(given.task, given.models, *words, decoding="gad", drafter_path=given.path, **size)
    refused(given.task, [given.drafter], *words, decoding="nat", **size)
    fits = {"decoding": "gad", "block_size": DRAFTER_POSITIONS, "script": None}
    same_as_twin(given, batch(given.task, [5]), **fits)


@pytest.mark.parametrize("shared", [False, True])
def test_probabilities_that_are_no_numbers_name_their_model(shared: bool) -> None:
    task, model = built("default")
    drafter = tiny_drafter(task, verifier=model if shared else None)
    broken = [copy.deepcopy(model), copy.deepcopy(drafter)]
    broken[0].decoder.layers[1].fc2.weight.data[3, 3] = math.nan
    broken[1].decoder.mask_vector.data[3] = math.nan
    sample = batch(task, RAGGED)

    def go(verifier: Any, block_model: Any, decoding: str) -> None:
        given = Pair(task, (verifier,), block_model, lend(task, verifier, block_model))
        run(given, sample, decoding=decoding, accept_topk=9) if decoding == "gad_pp" else run(
            given, sample, decoding=decoding
        )

    for decoding in ("gad", "gad_pp"):
        with pytest.raises(UsageError, match="^--path: the model .TransformerModel. gives NaN"):
            go(broken[0], drafter, decoding)
        with pytest.raises(
            UsageError, match="^--drafter-path: the model .BlockNatModel. gives NaN"
        ):
            go(model, broken[1], decoding)
        go(model, drafter, decoding)
    with pytest.raises(UsageError, match="^--path: the model .BlockNatModel. gives NaN"):
        go(model, broken[1], "nat")


# ---- commands -----------------------------------------------------------------------------------


@functools.cache
def demo_drafter() -> BlockNatModel:
    """A random drafter with the demo's dictionaries."""
    task = demo()[0]
    return tiny_drafter(task, dtype=torch.float32, max_source_positions=1024)


def generate(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Run fairseq-generate on the demo, in this process."""
    from fairseq_cli import generate as command

    given = [str(DEMO), "--cpu", *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", ["fairseq-generate", *given])
    command.cli_main()


def test_generate_keeps_what_it_has_when_a_batch_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word of one sentence makes the drafter say NaN: the sentences before it stay."""
    task, _, rows = demo()
    drafter = copy.deepcopy(demo_drafter())
    longest = max(rows, key=len)
    counts = torch.stack(
        [torch.bincount(row, minlength=len(task.source_dictionary)) for row in rows]
    )
    (only,) = [t for t in longest.tolist() if int(counts[:, t].bool().sum()) == 1][:1]
    drafter.encoder.embed_tokens.weight.data[only] = math.nan
    path = save_drafter(task, drafter, tmp_path / "drafter.pt")
    flags = ["--decoding", "gad", "--drafter-path", path, "--batch-size", 10]
    with pytest.raises(UsageError, match="--drafter-path: the model .BlockNatModel. gives NaN"):
        generate(monkeypatch, "--path", DEMO / "model.pt", *flags)
    heads = [line.split("\t")[0] for line in lines_of(capsys.readouterr().out, "H")]
    assert len(set(heads)) == len(heads) == 90


@pytest.mark.slow
def test_interactive_drafts(tmp_path: Path) -> None:
    """A drafter of the user's own from a file; an empty line in between."""
    path = save_drafter(demo()[0], demo_drafter(), tmp_path / "a drafter.pt")
    trace = tmp_path / "trace.jsonl"
    result = succeed(
        fairseq(
            "interactive", DEMO, "--user-dir", PLUGIN, "--path", DEMO / "model.pt", "--cpu",
            "-s", "en", "-t", "de", "--decoding", "gad_pp", "--drafter-path", path,
            "--block-size", 4, "--accept-topk", 1, "--accept-margin", 2.5, "--audit",
            "--tokenizer", "moses", "--bpe", "subword_nmt", "--bpe-codes", DEMO / "codes.bpe",
            "--trace-file", trace, "--buffer-size", 3, "--batch-size", 3,
            stdin="A dog runs across the grass .\n\nTwo men sit on a bench .\n",
        )
    )  # fmt: skip
    texts = [line.split("\t")[2] for line in lines_of(result.stdout, "D")]
    assert "Hund" in texts[0] and texts[1] == "" and "Männer" in texts[2]
    assert "audit: 2 of 2 sentences identical" in result.stderr
    records = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    want = {"drafter_path": path, "block_size": 4, "accept_topk": 1, "accept_margin": 2.5}
    want |= {"adaptive_block": False, "drafter_shortlist": None}
    assert [record["flags"] for record in records] == [want] * 2
    assert all(record["num_drafted"][0] in (1, 2, 3, 4) for record in records)


def test_hub_drafts(tmp_path: Path, loads: list[str]) -> None:
    path = save_drafter(demo()[0], demo_drafter(), tmp_path / "drafter.pt")
    hub = TransformerModel.from_pretrained(
        str(DEMO), "model.pt", str(DEMO), source_lang="en", target_lang="de",
        tokenizer="moses", bpe="subword_nmt", bpe_codes=str(DEMO / "codes.bpe"),
    )  # fmt: skip
    text = ["A dog runs across the grass.", "Two men sit on a bench."]
    want = hub.translate(text, beam=1)
    del loads[:]
    for _ in range(2):
        assert hub.translate(text, decoding="gad", drafter_path=path) == want
    assert hub.translate(text, decoding="gad_pp", drafter_path=path, accept_topk=1) == want
    assert loads == [path]
    with pytest.raises(UsageError, match="--accept-topk.*--decoding gad "):
        hub.translate(text, decoding="gad", drafter_path=path, accept_topk=2)
    with pytest.raises(UsageError, match="--accept-margin: got False"):
        hub.translate(text, decoding="gad_pp", drafter_path=path, accept_margin=False)


SMALL = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
    "--decoder-attention-heads 2 --optimizer adam --lr 0.01 --max-tokens 500 --max-epoch 2 "
    "--no-epoch-checkpoints --no-progress-bar --eval-bleu --num-workers 0 --cpu"
).split()


@pytest.mark.slow
def test_train_with_eval_bleu_and_generate(tmp_path: Path) -> None:
    """Verifier, then a drafter on its encoder, validated by nat's BLEU; then both together."""
    data = preprocess(tmp_path / "corpus")
    verifier, drafter = (tmp_path / name / "checkpoint_last.pt" for name in ("ar", "nat"))
    common = [str(data), "--user-dir", str(PLUGIN)]
    train = [*common, *SMALL, "--eval-bleu-args", '{"max_len_b": 12, "min_len": 4}']
    decoded = [*common, "--cpu", "--data-buffer-size", "0", "--max-len-b", "12", "--min-len", "4"]
    decoded.append("--path")
    gad = ["--decoding", "gad", "--drafter-path", str(drafter), "--audit"]
    commands = [
        ["train", *train, "--arch", "transformer", "--criterion", "label_smoothed_cross_entropy",
         "--save-dir", str(verifier.parent)],
        ["train", *train, "--arch", "block_nat", "--criterion", "block_nat_loss",
         "--encoder-from", str(verifier), "--share-verifier-encoder", "--drafter-block-size", "4",
         "--drafter-attention", "prefix_causal", "--save-dir", str(drafter.parent)],
        ["generate", *decoded, str(drafter)],
        ["generate", *decoded, str(verifier), *gad],
    ]  # fmt: skip
    code = """
import json, sys, importlib
for command in json.loads(sys.argv[1]):
    print("COMMAND", *command, flush=True)
    sys.argv = command
    importlib.import_module("fairseq_cli." + command[0]).cli_main()
"""
    result = succeed(run_python(code, json.dumps(commands)))
    _, ar, nat, alone, both = result.stdout.split("COMMAND")
    assert "| valid | " not in alone
    log = result.stderr + result.stdout
    assert log.count("| bleu ") >= 4, log[-3000:]
    assert "nat: 26 sentences" in log and "nat: 40 sentences" in log
    assert "Translated 40 sentences (80 tokens)" not in log
    assert len(lines_of(alone, "H")) == len(lines_of(both, "H")) == 40
    assert "audit: 40 of 40 sentences identical" in log
    assert "gad: 40 sentences" in log


# ---- the shipped pair ---------------------------------------------------------------------------


class TestShippedPair:
    """A trained verifier and its drafter, on real sentences."""

    #: Enough for every one of the sentences to end by itself.
    limits = Limits(max_len_b=60)

    def pair(self, dtype: torch.dtype = torch.float32) -> Pair:
        task, model, _ = demo(dtype)
        drafter = task.drafters.load(str(DEMO_DRAFTER), BLOCK_NAT, [model])
        return Pair(task, (model,), drafter, str(DEMO_DRAFTER))

    def test_ragged_batches(self) -> None:
        given, rows = self.pair(), demo()[2]
        assert len(rows) == 100
        flags, own = {"decoding": "gad"}, given.drafter.block_size
        for first in range(0, len(rows), 40):
            sample = collate(given.task, rows[first : first + 40])
            gad_check(given, sample, flags, self.limits, max_ties=1, sizes=(own, 1, 5, 16))
        gad_check(given, collate(given.task, rows[::10]), flags, self.limits, sizes=[100])

    def test_one_at_a_time(self) -> None:
        given, rows = self.pair(), demo()[2]
        for row in rows[:20]:
            gad_check(given, collate(given.task, [row]), {"decoding": "gad"}, Limits(max_len_b=200))

    def test_double_precision_and_passes(self) -> None:
        """The twin's passes, far fewer than tokens: drafts are accepted."""
        given, rows = self.pair(torch.float64), demo(torch.float64)[2]
        sample = collate(given.task, rows[::10])
        exact_gelu(given.drafter)
        flags = {"block_size": given.drafter.block_size}
        gad_check(given, sample, {"decoding": "gad"} | flags, self.limits)
        found = same_as_twin(given, sample, self.limits, decoding="gad", **flags)
        same_as_twin(given, sample, self.limits, decoding="nat", **flags)
        flags |= {"decoding": "gad_pp", "accept_topk": 5, "accept_margin": 3.0}
        loose = same_as_twin(given, sample, self.limits, **flags)
        means = [
            sum(len(r.tokens) for r in some) / sum(len(r.passes) for r in some)
            for some in (found, loose)
        ]
        assert 1.5 < means[0] < means[1]
