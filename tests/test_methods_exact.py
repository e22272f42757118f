"""Every method gives exactly what fairseq's own SequenceGenerator gives at beam size 1."""

from __future__ import annotations

import argparse

import pytest
import torch
from reference.greedy import stock_greedy
from support.builders import (
    MAX_POSITIONS,
    VARIANTS,
    Limits,
    batch,
    built,
    collate,
    decode,
    demo,
    source_rows,
    sources,
)
from support.exact import (
    GRID,
    INITS,
    METHODS,
    PREFIXES,
    RAGGED,
    Flags,
    check,
    name,
    windows_and_stops,
)


@pytest.mark.parametrize("flags", METHODS, ids=name)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_model_in_ragged_batches(variant: str, flags: Flags) -> None:
    """Rows of other source lengths, that end at other times, some at the limit."""
    task, model = built(variant)
    want = check(task, [model], batch(task, RAGGED, seed=1), flags, Limits())
    assert len({len(hypo["tokens"]) for hypo in want}) > 1, "rows should end at different times"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_model_one_sentence_at_a_time(variant: str) -> None:
    """Batch size 1, where nothing is padded."""
    task, model = built(variant)
    for length, flags in zip((4, 2, 8, 6), METHODS[:7:2], strict=True):
        check(task, [model], batch(task, [length], seed=length), flags, Limits())


@pytest.mark.parametrize("flags", GRID, ids=name)
@pytest.mark.parametrize("variant", ["learned_positions", "mbart"])
def test_every_combination_of_flags(variant: str, flags: Flags) -> None:
    """All inits, windows, stops and block sizes, in a ragged batch."""
    task, model = built(variant)
    check(task, [model], batch(task, RAGGED, seed=2), flags, Limits())


@pytest.mark.parametrize("flags", METHODS, ids=name)
class TestLimits:
    """fairseq's limits hold at every position of a chunk, not only the first."""

    @pytest.mark.parametrize("max_len", [1, 2, 3, 10])
    def test_length_limit(self, flags: Flags, max_len: int) -> None:
        """Only `</s>` at the limit; blocks and windows are cut there."""
        task, model = built("mbart")
        want = check(task, [model], batch(task, RAGGED, seed=1), flags, Limits(max_len_b=max_len))
        assert max(len(hypo["tokens"]) for hypo in want) == max_len + 1

    def test_length_limit_zero(self, flags: Flags) -> None:
        """Nothing but `</s>`."""
        task, model = built("mbart")
        check(task, [model], batch(task, RAGGED), flags, Limits(max_len_b=0, min_len=0))

    @pytest.mark.parametrize("variant", ["learned_positions", "mbart", "default"])
    def test_models_own_limit(self, flags: Flags, variant: str) -> None:
        """No position beyond those that the model has, however large the limit."""
        task, model = built(variant)
        want = check(task, [model], batch(task, RAGGED, seed=1), flags, Limits(max_len_b=200))
        assert max(len(hypo["tokens"]) for hypo in want) == MAX_POSITIONS

    @pytest.mark.parametrize("variant", ["no_positions", "bart", "default"])
    def test_end_first(self, flags: Flags, variant: str) -> None:
        """`</s>` may be the first token, in one row and not in the next."""
        task, model = built(variant)
        sample = batch(task, (3, 7, 5, 9, 2, 4, 6, 8), seed=1)
        want = check(task, [model], sample, flags, Limits(min_len=0))
        lengths = [len(hypo["tokens"]) for hypo in want]
        assert min(lengths) == 1 < max(lengths)

    @pytest.mark.parametrize("min_len", [4, 9, 16])
    def test_min_len(self, flags: Flags, min_len: int) -> None:
        """No `</s>` before it; at 16 that is the length limit itself."""
        task, model = built("bart")
        sample = batch(task, (3, 7, 5, 9, 2, 4, 6, 8), seed=1)
        want = check(task, [model], sample, flags, Limits(min_len=min_len))
        free = stock_greedy(task, [model], sample)
        assert min(len(hypo["tokens"]) for hypo in free) <= 4 < min_len + 1
        assert min(len(hypo["tokens"]) for hypo in want) > min_len

    @pytest.mark.parametrize(("a", "b"), [(1.0, 2), (0.5, 3), (2.7, 0)])
    def test_relative_length_limit_alone(self, flags: Flags, a: float, b: int) -> None:
        """max_len_a at batch size 1."""
        task, model = built("mbart")
        for length in (2, 5):
            limits = Limits(max_len_a=a, max_len_b=b)
            check(task, [model], batch(task, [length], seed=3), flags, limits)

    def test_relative_length_limit_is_each_rows_own(self, flags: Flags) -> None:
        """In a batch, a row's limit comes from its own length: as if it were alone.

        fairseq takes the padded width of the batch: the one difference, and meant.
        """
        task, model = built("mbart")
        limits = Limits(max_len_a=1.0, max_len_b=1)
        sample = batch(task, RAGGED, seed=3)
        got = decode(task, [model], sample, limits, **flags)
        for hypo, row in zip(got, source_rows(sample), strict=True):
            alone = collate(task, [torch.tensor(row)])
            (want,) = stock_greedy(task, [model], alone, **limits.stock())
            assert hypo["tokens"].tolist() == want["tokens"].tolist()

    @pytest.mark.parametrize("unkpen", [-6.0, 15.0])
    @pytest.mark.parametrize("variant", ["learned_positions", "adaptive_softmax"])
    def test_unkpen(self, flags: Flags, variant: str, unkpen: float) -> None:
        """A negative penalty makes `<unk>` frequent, a positive one rare; both are scored."""
        task, model = built(variant)
        sample = batch(task, RAGGED, seed=1)
        want = check(task, [model], sample, flags, Limits(unkpen=unkpen))
        unknown = sum(int(hypo["tokens"].eq(3).sum()) for hypo in want)
        assert unknown > 3 if unkpen < 0 else unknown < 3

    @pytest.mark.parametrize("temperature", [0.5, 1.7])
    @pytest.mark.parametrize("variant", ["default", "adaptive_softmax", "share_all"])
    def test_temperature(self, flags: Flags, variant: str, temperature: float) -> None:
        """Changes scores; with adaptive softmax, where it divides the features, also tokens."""
        task, model = built(variant)
        sample = batch(task, RAGGED, seed=1)
        check(task, [model], sample, flags, Limits(temperature=temperature))

    @pytest.mark.parametrize(
        "limits", [Limits(lenpen=0.6), Limits(lenpen=1.5), Limits(unnormalized=True)]
    )
    def test_score_of_the_whole(self, flags: Flags, limits: Limits) -> None:
        """--lenpen and --unnormalized change `score` only."""
        task, model = built("bart")
        check(task, [model], batch(task, RAGGED, seed=1), flags, limits)

    def test_all_at_once(self, flags: Flags) -> None:
        """Every limit together."""
        task, model = built("bart")
        limits = Limits(max_len_b=11, min_len=3, unkpen=-2.0, temperature=1.3, lenpen=0.6)
        check(task, [model], batch(task, RAGGED, seed=1), flags, limits)


@pytest.mark.parametrize("flags", METHODS, ids=name)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_tokens(flags: Flags, prefix: str) -> None:
    """--prefix-size: forced first tokens, for all rows or for some, `</s>` among them."""
    task, model = built("learned_positions")
    sample = batch(task, RAGGED[:4], seed=1)
    # 4: min_len is not asked for where a prefix column is, and is asked for after it.
    for limits in (Limits(min_len=4), Limits(max_len_b=5, unkpen=0.5)):
        check(task, [model], sample, flags, limits, torch.tensor(PREFIXES[prefix]))


@pytest.mark.parametrize("flags", METHODS, ids=name)
@pytest.mark.parametrize(
    "members",
    [("default", "other_dims"), ("learned_positions", "adaptive_softmax", "share_all")],
    ids="+".join,
)
def test_ensembles(flags: Flags, members: tuple[str, ...]) -> None:
    """Models of different shapes, their probabilities averaged."""
    task = built(members[0])[0]
    models = [built(member)[1] for member in members]
    sample = batch(task, RAGGED, seed=1)
    check(task, models, sample, flags, Limits())
    check(task, models, batch(task, [5], seed=4), flags, Limits(temperature=1.5, min_len=0))


@pytest.mark.parametrize("flags", METHODS, ids=name)
def test_sources_padded_on_the_right(flags: Flags) -> None:
    """--left-pad-source False."""
    task, model = built("learned_positions")
    check(task, [model], batch(task, RAGGED, seed=1, left_pad=False), flags, Limits())


def test_net_input_alone() -> None:
    """fairseq-interactive and hub give no ids and no target."""
    task, model = built("bart")
    sample = {"net_input": batch(task, RAGGED, seed=1)["net_input"]}
    for flags in METHODS:
        check(task, [model], sample, flags, Limits())


def test_a_generator_decodes_one_batch_after_another() -> None:
    """Nothing of a batch is left in the generator for the next."""
    task, model = built("learned_positions")
    flags = {"decoding": "pgj", "jacobi_init": "ngram", "jacobi_window": "sliding"}
    args = argparse.Namespace(**Limits().flags(), **flags)
    generator = task.build_generator([model], args)
    for seed, lengths in enumerate([(3, 5, 9), (4,), (2, 2, 7, 6, 8)]):
        sample = batch(task, lengths, seed)
        got = task.inference_step(generator, [model], sample)
        want = stock_greedy(task, [model], sample, **Limits().stock())
        assert [row[0]["tokens"].tolist() for row in got] == [
            hypo["tokens"].tolist() for hypo in want
        ]


@pytest.mark.parametrize("flags", METHODS, ids=name)
@pytest.mark.parametrize("variant", ["default", "mbart", "adaptive_softmax"])
def test_single_precision(variant: str, flags: Flags) -> None:
    """float32, where only a true tie may part the two."""
    task, model = built(variant, torch.float32)
    check(task, [model], batch(task, RAGGED, seed=1), flags, Limits(), max_ties=1)


class TestDemoModel:
    """A trained model and real sentences."""

    #: Enough for every one of its sentences to end by itself.
    limits = Limits(max_len_b=60)

    @pytest.mark.slow
    @pytest.mark.parametrize("flags", METHODS, ids=name)
    def test_ragged_batches(self, flags: Flags) -> None:
        """All sentences, in batches of 40 of very different lengths."""
        task, model, rows = demo()
        assert len(rows) == 100
        for first in range(0, len(rows), 40):
            sample = collate(task, rows[first : first + 40])
            want = check(task, [model], sample, flags, self.limits, max_ties=1)
            lengths = {len(hypo["tokens"]) for hypo in want}
            assert len(lengths) > 5
            assert max(lengths) < 61

    @pytest.mark.parametrize("flags", METHODS, ids=name)
    def test_double_precision(self, flags: Flags) -> None:
        """float64: no ties."""
        task, model, rows = demo(torch.float64)
        check(task, [model], collate(task, rows[:20]), flags, self.limits)

    @pytest.mark.parametrize("flags", METHODS, ids=name)
    def test_one_at_a_time(self, flags: Flags) -> None:
        """Batch size 1, fairseq's default limits."""
        task, model, rows = demo()
        for row in rows[:10]:
            check(task, [model], collate(task, [row]), flags, Limits(max_len_b=200))

    @pytest.mark.parametrize("init", INITS)
    @pytest.mark.parametrize("how", windows_and_stops(), ids=name)
    def test_inits(self, init: str, how: Flags) -> None:
        """Every first guess with every window and stop rule."""
        task, model, rows = demo()
        flags = {"decoding": "hgj", "block_size": 3, "jacobi_init": init, **how}
        check(task, [model], collate(task, rows[:40]), flags, self.limits, max_ties=1)


def test_the_model_is_left_as_it_was() -> None:
    """The user's model decodes under fairseq afterwards exactly as before."""
    task, model = built("default")
    sample = collate(task, sources(task, RAGGED, seed=7))
    before = stock_greedy(task, [model], sample)
    for flags in METHODS:
        decode(task, [model], sample, Limits(), **flags)
    after = stock_greedy(task, [model], sample)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one["tokens"], other["tokens"])
        assert torch.equal(one["positional_scores"], other["positional_scores"])
