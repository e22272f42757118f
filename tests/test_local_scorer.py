"""LocalScorer against the model's own full forward, and every method on it against fairseq."""

from __future__ import annotations

import math
import random
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reference.greedy import stock_greedy
from support.builders import task_for, tiny_model
from support.image_models import (
    GRAY,
    RGB,
    full_forward,
    image_batch,
    inputs_for,
    save,
    task_of,
    tiny_image_model,
)
from torch import Tensor

from fairseq_paradec.cli.analyse_flops import read_checkpoint
from fairseq_paradec.decoding.engine import cache
from fairseq_paradec.decoding.engine.chunk import ChunkScorer
from fairseq_paradec.decoding.engine.local import LocalScorer
from fairseq_paradec.decoding.engine.scorers import build_scorer
from fairseq_paradec.decoding.engine.settings import Engine
from fairseq_paradec.decoding.engine.step import StepScorer
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Size
from fairseq_paradec.measure import pieces
from fairseq_paradec.methods.registry import check_models

pytestmark = pytest.mark.usefixtures("exact_softmax", "no_gradients")

TOLERANCE = 1e-9
LARGE = (Size(2, 2, 3), Size(4, 8, 3))  # 12 intensities to 96
SPANS = [(1, 0), (1, 6), (5, 4), (8, 0), (3, 40)]
HEADS = "blockwise_image_transformer"
COMPILE = Engine(compile=True)


def walk(scorer: Any, inputs: Tensor, want: Tensor, rng: random.Random, widest: int) -> list[int]:
    """Run chunks of random widths with random roll-backs, rows each at their own length.

    A part of what goes in behind a row's kept tokens is junk, rolled back again. Every right output
    is compared with the full forward; rows leave the batch, or change places, on the way.

    Returns:
        The number of slots of the cache after each step.
    """
    length, rows = inputs.size(1), list(range(len(inputs)))
    done = [0] * len(rows)
    slots = []
    while rows:
        width = rng.randint(1, widest)
        # 1. Of each row's chunk the first tokens are right, and the others wrong.
        right = [min(rng.randint(1, width), length - n) for n in done]
        chunk = torch.randint(4, 260, (len(rows), width))
        for b, (row, n, good) in enumerate(zip(rows, done, right, strict=True)):
            chunk[b, :good] = inputs[row, n : n + good]
        got = scorer.log_probs(scorer.step(chunk))
        for b, (row, n, good) in enumerate(zip(rows, done, right, strict=True)):
            difference = (got[b, :good] - want[row, n : n + good]).abs().max()
            assert float(difference) < TOLERANCE, (row, n, good)
        slots.append(scorer.cache.capacity)
        # 2. As much is kept as was right, or less.
        done = [n + rng.randint(min(good, 1), good) for n, good in zip(done, right, strict=True)]
        scorer.keep(done)
        # 3. Rows that are done leave; now and then the others change places.
        stay = [b for b, n in enumerate(done) if n < length]
        if rng.random() < 0.2:
            rng.shuffle(stay)
        if stay and stay != list(range(len(rows))):
            scorer.reorder(stay)
        rows, done = [rows[b] for b in stay], [done[b] for b in stay]
    return slots


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """Rings with little room, so that a small image goes round them many times."""
    monkeypatch.setattr(cache, "INITIAL_CAPACITY", 4)
    return 4


@pytest.mark.parametrize(("block", "memory"), SPANS)
@pytest.mark.parametrize("widest", [1, 4, 30])
@pytest.mark.parametrize("sizes", [GRAY, LARGE], ids=["gray", "large"])
def test_chunks_equal_the_full_forward(sizes, block, memory, widest, narrow):
    """Widths below and above the window; the ring's length depends on neither output nor batch."""
    task = task_of(sizes)
    model = tiny_image_model(task, block, memory)
    torch.manual_seed(0)
    for count in (1, 3):
        sample, inputs = image_batch(task, count), inputs_for(task, count)
        want = full_forward(model, sample, inputs)
        assert float(want.std()) > 0.5, "the model is too flat to show an error"
        scorer = LocalScorer(model)
        scorer.encode(sample["net_input"])
        slots = walk(scorer, inputs, want, random.Random(block + widest), widest)
        reach = min(block - 1 + memory, inputs.size(1) - 1)
        rooms = {n - reach for n in slots}
        assert rooms == {narrow} if widest <= narrow else max(rooms) == 32


@pytest.mark.parametrize(("block", "memory"), [(1, 0), (5, 4)])
def test_a_chunk_wider_than_the_ring_makes_it_larger(block, memory, narrow):
    """In the middle of ragged rows, and at once; and again after it."""
    task = task_of(LARGE)
    model = tiny_image_model(task, block, memory)
    sample, inputs = image_batch(task, 3), inputs_for(task, 3)
    want = full_forward(model, sample, inputs)
    scorer = LocalScorer(model)
    scorer.encode(sample["net_input"])
    got = scorer.log_probs(scorer.step(inputs))  # all at once
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE)
    scorer.encode(sample["net_input"])
    done = [0, 0, 0]
    for kept in ([4, 2, 1], [7, 3, 5], [8, 7, 9], [12, 11, 13], [16, 12, 15]):
        chunk = torch.stack([row[n : n + 4] for row, n in zip(inputs, done, strict=True)])
        scorer.step(chunk)
        scorer.keep(kept)
        done = kept
    sizes = [scorer.cache.capacity]
    for width in (30, 10, 70):
        chunk = torch.stack([row[n : n + width] for row, n in zip(inputs, done, strict=True)])
        got = scorer.log_probs(scorer.step(chunk))
        for row, n in enumerate(done):
            assert torch.allclose(got[row], want[row, n : n + width], rtol=0, atol=TOLERANCE)
        done = [n + 3 for n in done]
        scorer.keep(done)
        sizes.append(scorer.cache.capacity)
    reach = block - 1 + memory
    assert sizes == [reach + 4, reach + 32, reach + 32, reach + 128]


@pytest.mark.parametrize("index", [[2, 0], [1, 1, 0, 2, 2]], ids=str)
@pytest.mark.parametrize("kept", [[5, 3, 6], [55, 53, 56]], ids=str)
def test_rows_are_picked_and_repeated(index, kept, narrow):
    """In front of the ring's end, and many times round it."""
    task = task_of(LARGE)
    model = tiny_image_model(task, 5, 4)
    sample, inputs = image_batch(task, 3), inputs_for(task, 3)
    want = full_forward(model, sample, inputs)
    scorer = LocalScorer(model)
    scorer.encode(sample["net_input"])
    done = [0, 0, 0]
    while done != kept:
        chunk = torch.stack([row[n : n + 4] for row, n in zip(inputs, done, strict=True)])
        scorer.step(chunk)
        done = [min(n + 4, k) for n, k in zip(done, kept, strict=True)]
        scorer.keep(done)
    scorer.reorder(index)
    chunk = torch.stack([inputs[row, kept[row] : kept[row] + 4] for row in index])
    got = scorer.log_probs(scorer.step(chunk))
    for b, row in enumerate(index):
        right = want[row, kept[row] : kept[row] + 4]
        assert torch.allclose(got[b], right, rtol=0, atol=TOLERANCE)


# ---- who is whose -------------------------------------------------------------------------------


def test_each_model_has_its_scorer():
    task = task_of()
    for arch in ("image_transformer", HEADS):
        model = tiny_image_model(task, arch=arch)
        assert type(build_scorer([model])) is LocalScorer
        for other in (ChunkScorer, StepScorer):
            with pytest.raises(UsageError, match="cannot be decoded in parallel: its .* Image"):
                other(model)
    assert type(build_scorer([tiny_model(task_for("default"))])) is ChunkScorer
    plain = tiny_model(task_for("default"))
    plain.decoder.layers[1].self_attn = model.decoder.layers[1].self_attn
    with pytest.raises(UsageError, match="attention is a LocalSelfAttention"):
        ChunkScorer(plain)


@pytest.mark.parametrize("part", ["layers.0.self_attn", "embed_positions", "layers.0", ""])
def test_subclasses_of_what_is_known_are_refused(part):
    """They may compute something else under the same names."""
    model = tiny_image_model(task_of())
    module = model.decoder.get_submodule(part)
    module.__class__ = type("Strange", (type(module),), {})
    with pytest.raises(UsageError, match="Strange"):
        build_scorer([model])


def test_searches_by_steps_and_commands_that_count_whole_caches_refuse_it(tmp_path):
    task = task_of()
    model = tiny_image_model(task)
    with pytest.raises(UsageError, match="--decoding: got 'multiword_beam'.*attention is local"):
        check_models("multiword_beam", [model], None)
    with pytest.raises(UsageError, match="--path: got .*with local attention"):
        pieces.refuse_unknown(model)
    path = save(task, model, tmp_path / "model.pt", "image_transformer")
    with pytest.raises(UsageError, match="--path: got .*model.pt.*this has local attention"):
        read_checkpoint("--path", path)


# ---- compiled passes ----------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "memory"), [(1, 6), (5, 4)])
def test_filled_up_chunks(block, memory, uncompiled, narrow):
    """One row, through what torch.compile is given: chunks filled up, round the ring."""
    task = task_of(LARGE)
    model = tiny_image_model(task, block, memory)
    sample, inputs = image_batch(task, 1), inputs_for(task, 1)
    want = full_forward(model, sample, inputs)
    for widest in (1, 7, 60):
        scorer = LocalScorer(model, COMPILE)
        scorer.encode(sample["net_input"])
        walk(scorer, inputs, want, random.Random(widest), widest)
    assert uncompiled


# ---- methods ------------------------------------------------------------------------------------


def limits_of(task: Any) -> dict[str, Any]:
    """What SequenceGenerator is to be told for an image."""
    count = task.image_sizes[1].num_tokens
    return {"max_len_a": 0, "max_len_b": count, "min_len": count, "unk_penalty": math.inf} | {
        "tokens_to_suppress": ("<s>",)
    }


def decode(task: Any, models: Sequence[Any], sample: dict[str, Any], **flags: Any) -> Any:
    """The generator and its best hypotheses, as fairseq-generate drives it."""
    generator = task.build_generator(list(models), Namespace(**flags))
    return generator, [row[0] for row in task.inference_step(generator, list(models), sample)]


METHODS = [
    {"decoding": "greedy"},
    {"decoding": "hgj", "block_size": 6, "hybrid_length": 17},
    {"decoding": "pgj", "block_size": 7, "jacobi_window": "sliding"},
    {"decoding": "blockwise", "block_size": 4},
    {"decoding": "blockwise", "adaptive_block": True},
]


@pytest.mark.parametrize("flags", METHODS, ids=lambda f: "-".join(map(str, f.values())))
@pytest.mark.parametrize(("block", "memory"), [(5, 4), (1, 9)])
def test_methods_have_fairseqs_greedy_output(flags, block, memory):
    """Alone and together, tokens and scores; and the audit agrees."""
    task = task_of(RGB)
    arch = HEADS if flags["decoding"] == "blockwise" else "image_transformer"
    model = tiny_image_model(task, block, memory, arch=arch)
    for count in (1, 4):
        sample = image_batch(task, count, seed=count)
        want = stock_greedy(task, [model], sample, **limits_of(task))
        generator, got = decode(task, [model], sample, audit=True, **flags)
        assert generator.audit.identical == generator.audit.sentences == count
        for ours, theirs in zip(got, want, strict=True):
            assert len(set(theirs["tokens"].tolist())) > 5
            assert ours["tokens"].tolist() == theirs["tokens"].tolist()
            scores = (ours["positional_scores"], theirs["positional_scores"].float())
            assert torch.allclose(*scores, rtol=0, atol=1e-5)  # hypotheses hold fp32


def test_an_ensemble_decodes_as_fairseqs():
    task = task_of(RGB)
    models = [tiny_image_model(task, 5, 4), tiny_image_model(task, 3, 9, seed=1)]
    sample = image_batch(task, 3)
    want = stock_greedy(task, models, sample, **limits_of(task))
    _, got = decode(task, models, sample, decoding="pgj", block_size=5)
    assert [h["tokens"].tolist() for h in got] == [h["tokens"].tolist() for h in want]
