"""Compiled, fused and plain passes agree, whatever form the weights are in; --engine-dtype."""

import copy
import logging
import sys
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from support import builders
from support.builders import Limits, batch, built, collate, demo, task_for, tiny_drafter, tiny_model
from support.exact import METHODS, check, name
from support.forward import TOKENS, difference, full_forward, inputs_for, run_chunks, walk

from fairseq_paradec.engine import compiled, weights
from fairseq_paradec.engine.block import BlockScorer
from fairseq_paradec.engine.chunk import ChunkScorer
from fairseq_paradec.engine.compiled import CHUNKS, Compiled, chunk_bucket, source_bucket
from fairseq_paradec.engine.settings import Engine
from fairseq_paradec.errors import UsageError

#: torch.compile calls the C++ compiler with the interpreter's folder, unquoted.
no_space = pytest.mark.skipif(" " in sys.prefix, reason="torch.compile cannot take spaces")

COMPILE = Engine(compile=True)
WIDTHS = ((1,) * 13, (5, 1, 7), (13,))


def test_buckets():
    assert [chunk_bucket(n) for n in (1, 2, 4, 11, 13, 64, 65)] == [1, 4, 4, 12, 16, 64, None]
    assert [source_bucket(n) for n in (1, 16, 17, 129)] == [16, 16, 32, 256]
    assert list(CHUNKS) == sorted(set(CHUNKS))


@pytest.mark.parametrize("variant", builders.VARIANTS)
def test_filled_up_chunks_equal_the_full_forward(variant, uncompiled, exact_softmax):
    """All kinds of models, through what torch.compile is given."""
    task, model = built(variant)
    for length in (9, 1):
        sample, inputs = batch(task, [length]), inputs_for(task)[:1]
        with torch.inference_mode():
            want = full_forward(model, sample, inputs)
            for widths in WIDTHS:
                got = run_chunks(ChunkScorer(model, COMPILE), sample, inputs, widths)
                assert difference(got, want) < 1e-9
    assert uncompiled


@pytest.mark.parametrize("flags", METHODS, ids=name)
def test_methods_on_filled_up_chunks(flags, uncompiled):
    task, model = built("default")
    for lengths in ((3, 7, 5, 9, 2, 4), (9,)):
        check(task, [model], batch(task, lengths), flags | {"compile": True}, Limits())
    assert uncompiled


@pytest.mark.parametrize("attention", ["prefix_causal", "bidirectional"])
def test_drafter_on_filled_up_chunks(attention, uncompiled):
    """Masks between prefix and filling: the same states as without."""
    task = task_for("default")
    drafter = tiny_drafter(task, attention=attention)
    sample = batch(task, [7])
    plain, filled = BlockScorer(drafter), BlockScorer(drafter, COMPILE)
    with torch.inference_mode():
        for scorer in (plain, filled):
            scorer.encode(sample["net_input"])
        for prefix in ([], [7, 9], [7, 9, 8, 5, 6, 11, 12, 13]):
            want, got = plain.fill([prefix], 5), filled.fill([prefix], 5)
            assert want.std() > 0.1
            assert difference(got, want) < 1e-10
    assert uncompiled


def test_a_chunk_that_fits_no_bucket_runs_plain(uncompiled):
    task, model = built("default")
    inputs = inputs_for(task, length=CHUNKS[-1] + 1)[:1]
    sample, widths = batch(task, [5]), (inputs.size(1),)
    with torch.inference_mode():
        got = run_chunks(ChunkScorer(model, COMPILE), sample, inputs, widths)
        want = run_chunks(ChunkScorer(model), sample, inputs, widths)
    assert difference(got, want) < 1e-10
    assert not uncompiled


@no_space
@pytest.mark.slow
def test_compiled_passes_over_many_batches(exact_softmax):
    """One scorer: a cache that grows, long sources, rows that leave, another model beside it."""
    task = task_for("default")
    model = tiny_model(task, "learned_positions", max_target_positions=100)
    other = tiny_model(task, "learned_positions", seed=1, max_target_positions=100)
    scorer, beside = ChunkScorer(model, COMPILE), ChunkScorer(other, COMPILE)
    inputs = torch.randint(4, 30, (3, 52), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        for length in (9, 40, 5):
            sample = batch(task, [length])
            for each, its in ((scorer, model), (beside, other)):
                got = run_chunks(each, sample, inputs[:1], (4,) * 13)
                assert difference(got, full_forward(its, sample, inputs[:1])) < 1e-9
        # A ragged batch of which the last row is left.
        sample = batch(task, [9, 4, 7])
        walk(scorer, sample, inputs, full_forward(model, sample, inputs), 4)
    assert not COMPILE.compiling.failed and len(scorer._pass.run._compiled) >= 3


def test_what_is_not_compiled_is_said(caplog):
    compiled.warn_plain.cache_clear()
    task, model = built("default", torch.float32)
    for _ in range(2):
        scorer = ChunkScorer(model, Engine("int8", compile=True))
        scorer.encode(batch(task, [6])["net_input"])
    (record,) = [r for r in caplog.records if r.name == compiled.__name__]
    assert record.message == "--compile: passes run plain, for their weights are in int8"


def test_autocast_and_changed_forms_are_told_apart(uncompiled):
    """What was compiled for one form of the weights is not run on another; nor under autocast."""
    task = task_for("default")
    model = tiny_model(task, "default", dtype=torch.float32)
    sample = batch(task, [6])
    scorer = ChunkScorer(model, COMPILE)
    with torch.inference_mode():
        run_chunks(scorer, sample, inputs_for(task)[:1], (1,))
        model.make_generation_fast_()
        run_chunks(scorer, sample, inputs_for(task)[:1], (1,))
        assert len(uncompiled) == 2, "by rows, and by columns"
        with torch.autocast("cpu", torch.bfloat16):
            run_chunks(scorer, sample, inputs_for(task)[:1], (4,))
        assert len(uncompiled) == 2


def of_every_method(task, model):
    """Flags of every method that is lossless, with what it drafts by."""
    gad = {"drafter_path": builders.lend(task, model, tiny_drafter(task))}
    heads = builders.tiny_blockwise(task).block_heads
    blockwise = {"drafter_path": builders.lend_heads(task, model, heads)}
    return [
        {"decoding": "greedy"},
        {"decoding": "hgj", "block_size": 4, "jacobi_window": "sliding", "adaptive_block": True},
        {"decoding": "gad", **gad},
        {"decoding": "gad", "adaptive_block": True, "drafter_shortlist": 20, **gad},
        {"decoding": "gad_pp", "accept_topk": 1, **gad},
        {"decoding": "blockwise", **blockwise},
        {"decoding": "multiword_beam", "beam": 1},
        {"decoding": "auto_fast", **gad},
    ]


@no_space
@pytest.mark.slow
def test_every_method_is_greedy_when_compiled(monkeypatch, caplog):
    """One sentence at a time, against fairseq's beam 1, float64."""
    made, inner = [], Compiled._compile
    monkeypatch.setattr(Compiled, "_compile", lambda *args: made.append(args) or inner(*args))
    task = task_for("default")
    model = tiny_model(task, "default")
    for flags in of_every_method(task, model):
        for length in (8, 3):
            before = len(made)
            check(task, [model], batch(task, [length]), flags | {"compile": True}, Limits())
            assert len(made) > before, "something was compiled"
    assert "compiling failed" not in caplog.text


def test_a_failing_compiler_costs_a_warning(monkeypatch, caplog):
    fail = mock.Mock(side_effect=RuntimeError("no C++ compiler\nand a long story"))
    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    task, model = built("default")
    flags = {"decoding": "greedy", "compile": True}
    with caplog.at_level(logging.WARNING):
        check(task, [model], batch(task, [9]), flags, Limits())
    (record,) = [r for r in caplog.records if r.name == compiled.__name__]
    assert record.message.endswith("passes run plain, for compiling failed: no C++ compiler")


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


def test_what_compiles_and_the_best_form():
    """Of weights that a library laid out, only one row in fp32, which is served without it."""
    for form, dtype, rows, compiles in (
        ("plain", torch.float32, 11, True),
        ("columns", torch.float32, 11, True),
        ("packed", torch.float32, 1, True),
        ("packed", torch.float32, 2, False),
        ("packed", torch.bfloat16, 1, False),
        ("int8", torch.float32, 1, False),
    ):
        assert weights.compiles(form, dtype, rows) == compiles
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
        Engine("int8").form(torch.float32, gpu, True, 10)


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
    assert Engine().model(model) is model
    assert Engine("fp32").model(model) is model and Engine("int8").model(model) is model
    half = Engine("bf16").model(model)
    assert half is not model and Engine("bf16").model(model) is half
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
