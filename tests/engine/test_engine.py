"""Fused and plain passes agree, whatever form the weights are in; --engine-dtype."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support import builders
from support.builders import batch, built, collate, demo, task_for, tiny_model
from support.forward import TOKENS, difference, full_forward, inputs_for, run_chunks

from fairseq_paradec.engine.chunk import ChunkScorer
from fairseq_paradec.engine.settings import Engine
from fairseq_paradec.engine.torch import weights
from fairseq_paradec.engine.torch.copies import form_of, model_in
from fairseq_paradec.errors import UsageError

WIDTHS = ((1,) * 13, (5, 1, 7), (13,))


@pytest.mark.parametrize("variant", builders.VARIANTS)
def test_chunks_of_one_row_equal_the_full_forward(variant, exact_softmax):
    """All kinds of models."""
    task, model = built(variant)
    for length in (9, 1):
        sample, inputs = batch(task, [length]), inputs_for(task)[:1]
        with torch.inference_mode():
            want = full_forward(model, sample, inputs)
            for widths in WIDTHS:
                got = run_chunks(ChunkScorer(model), sample, inputs, widths)
                assert difference(got, want) < 1e-9


@pytest.mark.parametrize(("rows", "bias"), [(1, True), (2, False), (11, True)])
def test_forms_compute_the_same(rows, bias):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator)
    shift = torch.randn(48, generator=generator) if bias else None
    x = torch.randn(2, rows, 32, generator=generator)
    want = F.linear(x, weight, shift)
    columns = weights.make_map(weight, shift, "columns")
    assert isinstance(columns, weights.Linear) and columns.weight.stride() == (1, 48)
    torch.testing.assert_close(columns(x), want, rtol=1e-5, atol=1e-5)
    packed = weights.PackedLinear(weight, shift)
    torch.testing.assert_close(packed(x), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed(x[:1, :1]), want[:1, :1], rtol=1e-5, atol=1e-5)
    whole = weights.Int8Linear(weight, shift)(x)
    error = (whole - want).norm() / want.norm()
    assert 1e-4 < error < 0.03, "8 bits, and no fewer"
    assert (weights.Int8Linear(weight.roll(1, 0), shift)(x) - want).norm() / want.norm() > 1


def test_the_best_form():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    large = weights.CACHED_BYTES
    packed = "packed" if torch.backends.mkldnn.is_available() else "columns"
    for given, form in (
        ((torch.float32, cpu, True, 10), "columns"),
        ((torch.float64, cpu, True, large), "columns"),
        ((torch.float32, cpu, False, 10), "plain"),
        ((torch.float16, cpu, True, 10), "plain"),
        ((torch.float32, gpu, True, 10), "plain"),
        ((torch.float32, cpu, True, large), packed),
    ):
        assert weights.best_form(*given) == form
    message = "--engine-dtype or --drafter-dtype: got 'int8'.*fp32, bf16 or fp16 on cuda"
    with pytest.raises(UsageError, match=message):
        form_of("int8", torch.float32, gpu, True, 10)


# Measured on the demo model, relative to log-probs' spread: bf16 0.02, fp16 0.002, int8 0.05.
BOUNDS = {"fp16": 0.01, "bf16": 0.06, "int8": 0.12}


def relative_error(got, want):
    """Error of log-probs, relative to their spread about the row's mean."""
    return float((got - want).norm() / (want - want.mean(-1, keepdim=True)).norm())


@pytest.mark.parametrize(
    ("dtype", "kind"), [*((d, "torch") for d in BOUNDS), ("bf16", "native"), ("int8", "native")]
)
def test_dtypes_are_near(dtype, kind):
    """Near fp32, and not fp32; a model with two layers swapped is further away."""
    task, given, sources = demo()
    model = copy.deepcopy(given)
    model.make_generation_fast_()
    sample, seed = collate(task, sources[20:21]), torch.Generator().manual_seed(0)
    inputs = torch.randint(4, 2000, (1, TOKENS), generator=seed)
    with torch.inference_mode():
        want = run_chunks(ChunkScorer(model), sample, inputs, (5, 1, 7))
        engine = Engine(dtype, kind=kind)
        got = run_chunks(ChunkScorer(model, engine), sample, inputs, (5, 1, 7))
        assert 1e-5 < relative_error(got, want) < BOUNDS[dtype]
        layers = model.decoder.layers
        layers[1], layers[2] = layers[2], layers[1]
        wrong = copy.deepcopy(model)
        other = run_chunks(ChunkScorer(wrong, engine), sample, inputs, (5, 1, 7))
        assert relative_error(other, want) > 2 * BOUNDS[dtype]
    assert next(model.parameters()).dtype == torch.float32


def test_one_copy_per_model_and_dtype():
    _, model = built("default", torch.float32)
    assert all(model_in(dtype, model) is model for dtype in (None, "fp32", "int8"))
    half = model_in("bf16", model)
    assert half is not model and model_in("bf16", model) is half
    assert next(half.parameters()).dtype == torch.bfloat16
    assert next(model.parameters()).dtype == torch.float32


def test_copies_are_in_evaluation_mode_and_fresh():
    """Made while the model trains, with layer drop; and anew when it has changed for good."""
    task = task_for("default")
    model = tiny_model(task, "default", dtype=torch.float32, decoder_layerdrop=0.9, dropout=0.5)
    sample, inputs = batch(task, [6]), inputs_for(task)[:1]
    model.train()
    scorer = ChunkScorer(model, Engine("fp16"))
    model.eval()
    with torch.no_grad():
        got = run_chunks(scorer, sample, inputs, (13,))
        assert relative_error(got, run_chunks(ChunkScorer(model), sample, inputs, (13,))) < 0.05
        for p in model.parameters():
            p.mul_(1.5)
        model.make_generation_fast_()
        want = run_chunks(ChunkScorer(model), sample, inputs, (13,))
        for one in (scorer, ChunkScorer(model, Engine("fp16"))):
            assert relative_error(run_chunks(one, sample, inputs, (13,)), want) < 0.05
