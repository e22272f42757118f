"""Beam searches in random settings: fairseq's n-best lists, whatever the limits and the drafts."""

import argparse
import random
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from support import assisted
from support.beam_drafts import assert_same
from support.builders import Limits, batch, lend, tiny_model, tiny_task

from fairseq_paradec.decoding.audit import Audit


def limits_of(draw: random.Random, words: int, positions: int, alone: bool) -> Limits:
    """Limits that do not contradict each other; often so tight that few words are possible."""
    longest = draw.choice([0, 1, 2, 3, 5, 9, 12, 30])
    most = min(longest, positions - 1)
    whole = draw.random() < 0.2
    few = draw.choice([0, 0, 0, 1, 2, max(0, words - 6)])
    return Limits(
        max_len_a=draw.choice([0, 0, 0.4]) if alone else 0,
        max_len_b=longest,
        min_len=min(most, draw.choice([0, 1, 1, most // 2, most])),
        unkpen=draw.choice([0, 0, 3.0, -3.0, 50.0]),
        temperature=draw.choice([1, 1, 0.3, 1.7, 8.0]),
        lenpen=1 if whole else draw.choice([1, 0, -1, 0.6, 2.5]),
        unnormalized=whole,
        suppressed=tuple(sorted(draw.sample(range(4, words), few))),
    )


def prefixes_of(draw: random.Random, words: int, batch_size: int) -> torch.Tensor | None:
    """Prefixes of several lengths, some with `</s>`, which is nowhere the first: there it fails."""
    if draw.random() < 0.5:
        return None
    width, rows = draw.randint(1, 6), []
    for _ in range(batch_size):
        row = [draw.randrange(3, words) for _ in range(draw.randint(0, width))]
        if len(row) > 1 and draw.random() < 0.4:
            row[-1] = 2
        rows.append(row + [1] * (width - len(row)))
    return torch.tensor(rows)


def check(seed: int) -> int:
    """Search in the setting of this number; return how many lists differ by a tie."""
    draw = random.Random(seed)
    words, beam = draw.choice([7, 8, 9, 12, 20, 40]), draw.choice([2, 2, 3, 4, 5, 7, 10])
    beam = min(beam, words - 2)  # beyond, fairseq's hypotheses may go on behind `</s>`
    decoding = draw.choice(["self_draft", "assisted", "multiword_beam"])
    native = draw.random() < 0.7
    dtype = torch.float32 if native else torch.float64
    lengths = [draw.randint(1, 9) for _ in range(draw.choice([1, 1, 2, 4]))]
    positions = draw.choice([13, 24])
    limits = limits_of(draw, words, positions, len(lengths) == 1)
    task = tiny_task(size=words)
    models = [
        tiny_model(task, dtype=dtype, seed=draw.randrange(50), max_target_positions=positions)
        for _ in range(draw.choice([1, 1, 1, 2]))
    ]
    drafter = draw.choice(
        [
            models[0],
            assisted.noisy(models[0], draw.choice([0.05, 0.3, 1.0])),
            tiny_model(task, seed=99, decoder_layers=1).to(dtype),
        ]
    )
    for one in (*models, drafter):
        one._is_generation_fast = True  # as after loading: native passes take it
    flags: dict[str, Any] = {"decoding": decoding, "beam": beam, "nbest": beam}
    flags["engine"] = "native" if native else "auto"
    if decoding != "multiword_beam" and draw.random() < 0.7:
        flags["block_size"] = draw.choice([1, 2, 3, 5, 8, 30])
    if decoding == "self_draft" and not native:
        flags["drafter_dtype"] = "fp32"
    if decoding == "assisted":
        flags["drafter_path"] = lend(task, models[0], drafter)
    prefixes = prefixes_of(draw, words, len(lengths))
    given = {"prefix_tokens": prefixes, "bos_token": draw.choice([None, None, 0, words - 1])}
    sample = batch(task, lengths, seed=seed)

    suppressed = [task.target_dictionary[token] for token in limits.suppressed]
    stock = SequenceGenerator(
        models,
        task.target_dictionary,
        beam_size=beam,
        tokens_to_suppress=suppressed,
        **limits.stock(),
    )
    want = stock.generate(models, sample, **given)
    found = task.build_generator(
        models,
        argparse.Namespace(**limits.flags(), **flags),
        extra_gen_cls_kwargs={"tokens_to_suppress": suppressed},
    )
    assert found.decoder.scorer.native == native
    got, audit = found.generate(models, sample, **given), None
    for b, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        texts = [[one["tokens"].tolist() for one in each] for each in (ours, theirs)]
        if texts[0] == texts[1]:
            assert_same(ours, theirs)
        elif audit is None:
            audit = Audit.of(models, found.decoder.config, found.decoder.context, beam)
            verdicts = audit.compare_with(sample, got, want, given["bos_token"], prefixes)
            assert audit.beyond == 0, (seed, b, verdicts, texts)
    return 0 if audit is None else audit.ties


@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_n_best_lists_are_fairseqs(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + 20)) <= 1


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8"])
def test_drafts_change_no_bit(form: str) -> None:
    """Hypotheses, order and scores are those of the plain search in the same dtype."""
    limits, task = Limits(max_len_b=20), tiny_task()
    drafted: dict[str, Any] = {"decoding": "self_draft", "block_size": 4}
    if form == "int8":  # else the drafter would be the model
        drafted["drafter_dtype"] = "bf16"
    for seed in range(3):
        model = tiny_model(task, dtype=torch.float32, seed=seed, max_target_positions=30)
        model._is_generation_fast = True
        sample, found = batch(task, [9, 4, 6, 2], seed=seed), []
        for more in ({"decoding": "multiword_beam"}, drafted):
            flags = {"beam": 4, "nbest": 4, "engine": "native", "engine_dtype": form} | more
            search = task.build_generator(
                [model], argparse.Namespace(**limits.flags(), **flags)
            ).generate([model], sample)
            found.append(
                [
                    (one["tokens"].tolist(), float(one["score"]), one["positional_scores"].tolist())
                    for each in search
                    for one in each
                ]
            )
        assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("first", range(1000, 1500, 100))
def test_many_n_best_lists_are_fairseqs(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + 100)) <= 2
