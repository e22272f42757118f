"""ChunkScorer against fairseq's own full forward, in float64, on every kind of Transformer."""

from __future__ import annotations

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from support.builders import VARIANTS, batch, built, task_for, tiny_model
from support.forward import LENGTHS, difference, full_forward, inputs_for

from fairseq_paradec.decoding.engine.chunk import ChunkScorer
from fairseq_paradec.decoding.engine.scorers import EnsembleScorer, build_scorer
from fairseq_paradec.errors import UsageError

pytestmark = pytest.mark.usefixtures("exact_softmax", "no_gradients")

TOLERANCE = 1e-10  # float64, two layers: far under any real difference


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("widths", [(1,) * 13, (8, 5)], ids=str)
def test_chunks_equal_the_full_forward(variant, widths):
    task, model = built(variant)
    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    scorer = ChunkScorer(model)
    scorer.encode(sample["net_input"])
    done, parts = 0, []
    for width in widths:
        parts.append(scorer.log_probs(scorer.step(inputs[:, done : done + width])))
        done += width
        scorer.keep([done] * len(LENGTHS))
    want = full_forward(model, sample, inputs)
    assert want.std() > 0.5, "the model is too flat to show an error"
    assert difference(torch.cat(parts, dim=1), want) < TOLERANCE


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_at_their_own_lengths_and_rolled_back(variant):
    """Junk is scored and rolled back, each row to its own length: as if it had never run."""
    task, model = built(variant)
    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    junk = inputs_for(task, seed=2)
    want = full_forward(model, sample, inputs)
    scorer = ChunkScorer(model)
    scorer.encode(sample["net_input"])
    scorer.step(inputs[:, :6])
    kept = [6, 2, 5, 0]
    scorer.keep(kept)
    scorer.step(junk[:, :7])
    scorer.keep(kept)
    width = 4
    chunk = torch.stack([row[k : k + width] for row, k in zip(inputs, kept, strict=True)])
    got = scorer.log_probs(scorer.step(chunk))
    for row, k in enumerate(kept):
        assert difference(got[row], want[row, k : k + width]) < TOLERANCE, (row, k)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("index", [[2, 0], [3, 3, 1, 0, 0]], ids=str)
def test_reorder_is_as_if_the_rows_had_always_been_so(variant, index):
    task, model = built(variant)
    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    want = full_forward(model, sample, inputs)
    scorer = ChunkScorer(model)
    scorer.encode(sample["net_input"])
    kept = [5, 3, 6, 1]
    scorer.step(inputs[:, :6])
    scorer.keep(kept)
    scorer.reorder(index)
    chunk = torch.stack([inputs[row, kept[row] : kept[row] + 3] for row in index])
    got = scorer.log_probs(scorer.step(chunk))
    for new, row in enumerate(index):
        assert difference(got[new], want[row, kept[row] : kept[row] + 3]) < TOLERANCE


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
    scorer = ChunkScorer(model)
    scorer.encode(sample["net_input"])
    assert difference(scorer.log_probs(scorer.step(inputs)), want) < TOLERANCE


def test_cache_grows():
    """Beyond the first capacity, and beyond the first table of sinusoids."""
    task = task_for("default")
    model = tiny_model(task, max_target_positions=300)
    length = 200
    model.decoder.embed_positions.weights = model.decoder.embed_positions.weights[:60].clone()
    sample = batch(task, LENGTHS)
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(4, 40, (len(LENGTHS), length), generator=generator)
    scorer = ChunkScorer(model)
    scorer.encode(sample["net_input"])
    parts = []
    for start in range(0, length, 8):
        parts.append(scorer.log_probs(scorer.step(inputs[:, start : start + 8])))
        scorer.keep([start + 8] * len(LENGTHS))
    assert difference(torch.cat(parts, 1), full_forward(model, sample, inputs)) < TOLERANCE


def test_ensemble_averages_probabilities():
    task, first = built("default")
    second = tiny_model(task, "prenorm", seed=4)
    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    scorer = build_scorer([first, second])
    assert isinstance(scorer, EnsembleScorer)
    scorer.encode(sample["net_input"])
    scorer.step(inputs[:, :5])
    kept = [5, 4, 2, 3]
    scorer.keep(kept)
    scorer.reorder([2, 1])
    chunk = torch.stack([inputs[row, kept[row] : kept[row] + 3] for row in (2, 1)])
    got = scorer.log_probs(scorer.step(chunk), temperature=1.0)
    mean = sum(full_forward(m, sample, inputs).exp() for m in (first, second)) / 2
    for new, row in enumerate((2, 1)):
        assert difference(got[new].exp(), mean[row, kept[row] : kept[row] + 3]) < TOLERANCE


@pytest.mark.parametrize("variant", ["default", "adaptive_softmax"])
def test_temperature(variant):
    task, model = built(variant)
    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    scorer = ChunkScorer(model)
    scorer.encode(sample["net_input"])
    hidden = scorer.step(inputs)
    net_input = sample["net_input"]
    out = model(net_input["src_tokens"], net_input["src_lengths"], inputs, features_only=True)
    if variant == "default":
        want = torch.log_softmax(model.decoder.output_layer(out[0]) / 1.7, dim=-1)
    else:
        want = model.decoder.adaptive_softmax.get_log_prob(out[0] / 1.7, None)
    assert difference(scorer.log_probs(hidden, 1.7), want) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision(dtype):
    """Scores are fp32, and no further from the truth than fairseq's own in that precision."""
    task = task_for("default")
    model = tiny_model(task)
    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    truth = full_forward(model, sample, inputs)[:, :10]
    model.to(dtype)
    theirs = full_forward(model, sample, inputs)[:, :10].double()
    scorer = ChunkScorer(model)
    scorer.encode(sample["net_input"])
    parts = []
    for start in (0, 5):
        parts.append(scorer.log_probs(scorer.step(inputs[:, start : start + 5])))
        scorer.keep([5] * len(LENGTHS))
    got = torch.cat(parts, dim=1)
    assert got.dtype == torch.float32
    allowed = 1.5 * float((theirs - truth).abs().mean())
    assert float((got.double() - truth).abs().mean()) < allowed


def test_weights_are_read_anew_while_training():
    """--eval-bleu decodes between updates, and fairseq's optimisers write to .data."""
    task = task_for("default")
    model = tiny_model(task)
    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    scorer = ChunkScorer(model)
    scorer.encode(sample["net_input"])
    for parameter in model.parameters():
        parameter.data.mul_(1.1)
    scorer.encode(sample["net_input"])
    got = scorer.log_probs(scorer.step(inputs))
    assert difference(got, full_forward(model, sample, inputs)) < TOLERANCE


class OwnModel(TransformerModel):
    def get_normalized_probs(self, *args, **kwargs):
        return super().get_normalized_probs(*args, **kwargs)


@pytest.mark.parametrize(
    "part", ["decoder.layers.1", "decoder", "decoder.layers.0.fc1", "decoder.embed_positions"]
)
def test_subclasses_of_what_is_known_are_refused_by_name(part):
    model = tiny_model(task_for("default"))
    module = model.get_submodule(part)
    module.__class__ = type("Own", (type(module),), {})
    with pytest.raises(UsageError, match="Own"):
        ChunkScorer(model)


def test_strange_models_are_refused_by_name():
    model = tiny_model(task_for("default"))
    model.__class__ = OwnModel
    with pytest.raises(UsageError, match="OwnModel.*get_normalized_probs"):
        ChunkScorer(model)
    model = tiny_model(task_for("default"))
    model.decoder.layers[0].c_attn = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(UsageError, match="NormFormer"):
        ChunkScorer(model)
    with pytest.raises(UsageError, match="Linear"):
        build_scorer([torch.nn.Linear(2, 2)])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"cross_self_attention": True, "no_cross_attention": True}, "cross-self-attention"),
        ({"no_cross_attention": True}, "no-cross-attention"),
    ],
)
def test_other_attention_is_refused(options, name):
    model = tiny_model(task_for("default"), **options)
    with pytest.raises(UsageError, match=name):
        ChunkScorer(model)
