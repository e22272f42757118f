"""LocalScorer against the model's own full forward, and every method on it against fairseq."""

import math
from argparse import Namespace
from typing import Any

import pytest
import torch
from reference.greedy import stock_greedy
from support import image_models
from support.builders import task_for, tiny_model
from support.forward import full_forward, walk
from support.image_models import GRAY, HEADS, RGB, image_batch, task_of, tiny_image_model

from fairseq_paradec.engine.chunk import ChunkScorer
from fairseq_paradec.engine.scorers import build_scorer
from fairseq_paradec.engine.step import StepScorer
from fairseq_paradec.engine.torch import cache
from fairseq_paradec.engine.torch.local import LocalScorer
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Size
from fairseq_paradec.lab.commands.flops_files import read_checkpoint
from fairseq_paradec.lab.profile.passes import pieces
from fairseq_paradec.registry import check_models

pytestmark = pytest.mark.usefixtures("exact_softmax", "no_gradients")

LARGE = (Size(2, 2, 3), Size(4, 8, 3))  # 12 intensities to 96
SPANS = [(1, 0), (1, 6), (5, 4), (8, 0), (3, 40)]
ROOMS = {4, 8, 16, 32, 64, 128}  # beside what a window sees: for the widest chunk


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """Rings with little room, so that a small image goes round them many times."""
    monkeypatch.setattr(cache, "INITIAL_CAPACITY", 4)
    return 4


@pytest.mark.parametrize(("block", "memory"), SPANS)
@pytest.mark.parametrize("widest", [1, 4, 70])
@pytest.mark.parametrize("sizes", [GRAY, LARGE], ids=["gray", "large"])
def test_chunks_equal_the_full_forward(sizes, block, memory, widest, narrow):
    """Widths below and above window and ring; the ring depends on neither output nor batch."""
    task = task_of(sizes)
    model = tiny_image_model(task, block, memory)
    torch.manual_seed(0)
    for count in (1, 3):
        sample, inputs = image_batch(task, count), image_models.inputs_for(task, count)
        want = full_forward(model, sample, inputs)
        assert float(want.std()) > 0.5, "the model is too flat to show an error"
        slots = walk(LocalScorer(model), sample, inputs, want, widest, seed=block + widest)
        reach = min(block - 1 + memory, inputs.size(1) - 1)
        assert slots[0] == reach + narrow and {n - reach for n in slots} <= ROOMS
        assert (slots[-1] > slots[0]) == (widest > narrow)


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
    path = image_models.save(task, model, tmp_path / "model.pt", "image_transformer")
    with pytest.raises(UsageError, match="--path: got .*model.pt.*local attention is not counted"):
        read_checkpoint("--path", path)


def limits_of(task: Any) -> dict[str, Any]:
    """What SequenceGenerator is to be told for an image."""
    count = task.image_sizes[1].num_tokens
    limits = {"max_len_a": 0, "max_len_b": count, "min_len": count, "unk_penalty": math.inf}
    return limits | {"tokens_to_suppress": ("<s>",)}


METHODS = [
    {"decoding": "greedy"},
    {"decoding": "hgj", "block_size": 6, "hybrid_length": 17},
    {"decoding": "pgj", "block_size": 7, "jacobi_window": "sliding"},
    {"decoding": "blockwise", "block_size": 4},
    {"decoding": "blockwise", "adaptive_block": True},
]


@pytest.mark.parametrize("flags", METHODS, ids=lambda f: "-".join(map(str, f.values())))
@pytest.mark.parametrize("spans", [[(5, 4)], [(1, 9)], [(5, 4), (3, 9)]], ids=str)
def test_methods_have_fairseqs_greedy_output(flags, spans):
    """Alone and together, tokens and scores; and the audit agrees. Of ensembles, too."""
    task, headed = task_of(RGB), flags["decoding"] == "blockwise"
    if headed:  # one model has the heads
        spans = spans[:1]
    arch = HEADS if headed else "image_transformer"
    models = [tiny_image_model(task, *span, seed=n, arch=arch) for n, span in enumerate(spans)]
    for count in (1, 4):
        sample = image_batch(task, count, seed=count)
        want = stock_greedy(task, models, sample, **limits_of(task))
        generator = task.build_generator(models, Namespace(audit=True, **flags))
        got = task.inference_step(generator, models, sample)
        audit = generator.decoder.audit
        assert audit.identical == audit.sentences == count
        for (ours, *_), theirs in zip(got, want, strict=True):
            assert len(set(theirs["tokens"].tolist())) > 5
            assert ours["tokens"].tolist() == theirs["tokens"].tolist()
            scores = (ours["positional_scores"], theirs["positional_scores"].float())
            assert torch.allclose(*scores, rtol=0, atol=1e-5)  # hypotheses hold fp32
