"""ChunkScorer against fairseq's own full forward, in float64, on every kind of Transformer."""

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from support.builders import VARIANTS, batch, built, task_for, tiny_model
from support.forward import LENGTHS, difference, full_forward, inputs_for, run_chunks, walk

from fairseq_paradec.engine.chunk import ChunkScorer
from fairseq_paradec.engine.scorers import build_scorer
from fairseq_paradec.errors import UsageError

pytestmark = pytest.mark.usefixtures("exact_softmax", "no_gradients")

TOLERANCE = 1e-10  # float64, two layers: far under any real difference


@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_equal_the_full_forward(variant):
    """Rows at their own lengths, rolled back, reordered and repeated."""
    task, model = built(variant)
    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    want = full_forward(model, sample, inputs)
    assert want.std() > 0.5, "the model is too flat to show an error"
    for widest in (1, 8):
        walk(ChunkScorer(model), sample, inputs, want, widest)


def test_pad_is_a_token_like_any_other():
    """A <pad> guess takes a position and is seen; fairseq would mask it and shift positions.

    The oracle is fairseq's forward with a twin word, whose embedding is <pad>'s, in its place.
    """
    task = task_for("default")
    model = tiny_model(task)
    pad, twin = task.target_dictionary.pad(), 17
    model.decoder.embed_tokens.weight[twin] = model.decoder.embed_tokens.weight[pad]
    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    inputs[:, 3:6] = twin
    want = full_forward(model, sample, inputs)
    inputs[:, 3:6] = pad
    assert difference(run_chunks(ChunkScorer(model), sample, inputs, (13,)), want) < TOLERANCE


def test_cache_grows():
    """Beyond the first capacity, and beyond the first table of sinusoids."""
    task = task_for("default")
    model = tiny_model(task, max_target_positions=300)
    model.decoder.embed_positions.weights = model.decoder.embed_positions.weights[:60].clone()
    sample, inputs = batch(task, LENGTHS), inputs_for(task, length=200)
    got = run_chunks(ChunkScorer(model), sample, inputs, (8,) * 25)
    assert difference(got, full_forward(model, sample, inputs)) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision(dtype):
    """Scores are fp32, and no further from the truth than fairseq's own in that precision."""
    task = task_for("default")
    model = tiny_model(task)
    sample, inputs = batch(task, LENGTHS), inputs_for(task)[:, :10]
    truth = full_forward(model, sample, inputs)
    theirs = full_forward(model.to(dtype), sample, inputs).double()
    got = run_chunks(ChunkScorer(model), sample, inputs, (5, 5))
    assert got.dtype == torch.float32
    allowed = 1.5 * float((theirs - truth).abs().mean())
    assert float((got.double() - truth).abs().mean()) < allowed


class OwnModel(TransformerModel):
    def get_normalized_probs(self, *args, **kwargs):
        return super().get_normalized_probs(*args, **kwargs)


@pytest.mark.parametrize(
    "part", ["decoder.layers.1", "decoder", "decoder.layers.0.fc1", "decoder.embed_positions", ""]
)
def test_subclasses_of_what_is_known_are_refused_by_name(part):
    model = tiny_model(task_for("default"))
    module = model.get_submodule(part)
    module.__class__ = type("Own", (type(module),), {}) if part else OwnModel
    with pytest.raises(UsageError, match="Own" if part else "OwnModel.*get_normalized_probs"):
        ChunkScorer(model)


def test_strange_models_are_refused_by_name():
    task = task_for("default")
    normed = tiny_model(task)
    normed.decoder.layers[0].c_attn = torch.nn.Parameter(torch.ones(2))
    none = {"no_cross_attention": True}
    for model, name in (
        (normed, "NormFormer"),
        (tiny_model(task, **none), "no-cross-attention"),
        (tiny_model(task, **none, cross_self_attention=True), "cross-self-attention"),
        (torch.nn.Linear(2, 2), "Linear"),
    ):
        with pytest.raises(UsageError, match=name):
            build_scorer([model])
