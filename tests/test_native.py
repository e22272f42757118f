"""The native engine: products, passes and outputs beside torch's, fairseq's, and sanitizers."""

from __future__ import annotations

import random
import subprocess
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from support.builders import (
    VARIANTS,
    Limits,
    batch,
    decode,
    lend,
    lend_heads,
    task_for,
    tiny_blockwise,
    tiny_drafter,
    tiny_model,
    tiny_reordered,
    tiny_task,
)
from support.commands import ROOT

from fairseq_paradec.decoding.engine.chunk import ChunkScorer
from fairseq_paradec.decoding.engine.native import library as native
from fairseq_paradec.decoding.engine.native.stack import NativeMap
from fairseq_paradec.decoding.engine.settings import Engine
from fairseq_paradec.errors import UsageError

NATIVE = Engine(kind="native")
#: Variants whose embeddings or outputs are projected: torch's.
OTHERS = ("output_dim", "adaptive_output_dim", "quant_noise")


def model_of(variant: str, task: Any = None, **options: Any) -> Any:
    """A tiny model in fp32, prepared for inference."""
    model = tiny_model(task or task_for(variant), variant, torch.float32, **options)
    model._is_generation_fast = True
    return model


# ---- products ------------------------------------------------------------------------------------


def wanted(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor, form: str) -> torch.Tensor:
    """The product in float64, of weights (and for int8 inputs) as the form rounds them."""
    weight, x, bias = weight.double(), x.double(), bias.double()
    if form == "bf16":
        weight = weight.bfloat16().double()
    if form == "int8":
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        weight = (weight / scale).round() * scale
        scale = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        x = (x / scale).round() * scale
    return x @ weight.T + bias


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8"])
def test_products_of_any_shape(form: str) -> None:
    """1 to 65 rows; odd widths; a row of zeros."""
    drawn = random.Random(form)
    torch.manual_seed(3)
    for turn in range(40):
        rows = drawn.choice([1, 2, 9, 10, 11, 19, 20, 21, 33, 65])
        outputs, inputs = drawn.randint(1, 140), drawn.randint(1, 140)
        weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
        x = torch.randn(rows, inputs)
        x[-1] *= turn % 2
        found = NativeMap(weight, bias, form)(x)
        want = wanted(weight, bias, x, form)
        # With bf16 instructions inputs are rounded, too; a half rounds to either side in int8.
        near = {"fp32": 1e-5, "bf16": 8e-3, "int8": 5e-3}[form] * inputs**0.5 * 4
        torch.testing.assert_close(found.double(), want, atol=near, rtol=1e-5)


# ---- passes --------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in OTHERS])
def test_passes_are_torchs(variant: str) -> None:
    """One row, ragged rows, equal ones: chunks, rollbacks, blocks that see all of themselves."""
    task, model = task_for(variant), model_of(variant)
    scorers = ChunkScorer(model), ChunkScorer(model, NATIVE)
    for lengths in ([7], [5, 9, 3], [6, 6]):
        sample = batch(task, lengths)
        torch.manual_seed(1)
        for scorer in scorers:
            scorer.encode(sample["net_input"])
        for turn, width in enumerate((4, 1, 3, 70, 6)):
            tokens = torch.randint(4, 30, (len(lengths), width))
            cached = scorers[0].cache.lengths
            mask: Any = "all" if turn == 4 and len(set(cached)) == 1 else "causal"
            if turn == 2:  # tokens of a block see all of it
                mask = torch.full((1, width), width, dtype=torch.int32)
            first, second = (s.log_probs(s.step(tokens, mask)) for s in scorers)
            torch.testing.assert_close(second, first, atol=5e-4, rtol=0)
            kept = [n + min(width, 5) - (i % 2) for i, n in enumerate(cached)]
            for scorer in scorers:
                scorer.keep(kept)
        if len(lengths) == 3:
            tokens = torch.randint(4, 30, (2, 2))
            for scorer in scorers:
                scorer.reorder([2, 0])
            first, second = (s.log_probs(s.step(tokens)) for s in scorers)
            torch.testing.assert_close(second, first, atol=5e-4, rtol=0)


@torch.inference_mode()
def test_lower_dtypes_are_near() -> None:
    task, model = tiny_task(), model_of("default")
    sample, tokens = batch(task, [7, 4]), torch.randint(4, 30, (2, 5))
    scores = {}
    for dtype in ("fp32", "bf16", "int8"):
        scorer = ChunkScorer(model, Engine(dtype, kind="native"))
        scorer.encode(sample["net_input"])
        scores[dtype] = scorer.log_probs(scorer.step(tokens))
    spread = scores["fp32"].std()
    for dtype in ("bf16", "int8"):
        off = (scores[dtype] - scores["fp32"]).abs().mean()
        assert 0 < off < 0.1 * spread, dtype


# ---- outputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoding", ["greedy", "hgj", "gad", "blockwise"])
@pytest.mark.parametrize("lengths", [[6], [9, 3, 6, 2]], ids=str)
def test_outputs_are_fairseqs(decoding: str, lengths: list[int]) -> None:
    task = tiny_task()
    model, sample, limits = model_of("default", task), batch(task, lengths), Limits()
    flags: dict[str, Any] = {"decoding": decoding}
    if decoding == "gad":
        drafter = tiny_drafter(task, dtype=torch.float32)
        flags["drafter_path"] = lend(task, model, drafter)
    if decoding == "blockwise":
        heads = tiny_blockwise(task, dtype=torch.float32).block_heads
        flags["drafter_path"] = lend_heads(task, model, heads)
    stock = SequenceGenerator([model], task.target_dictionary, beam_size=1, max_len_b=16)
    want = stock.generate([model], sample)
    found = decode(task, [model], sample, limits, engine="native", **flags)
    torchs = decode(task, [model], sample, limits, **flags)
    for ours, other, (theirs, *_) in zip(found, torchs, want, strict=True):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
        scores = ours["positional_scores"]
        torch.testing.assert_close(scores, theirs["positional_scores"], atol=1e-4, rtol=0)
        assert ours["steps"] == other["steps"]


@pytest.mark.parametrize("arch", ["ibdecoder_tiny", "ibdecoder_sa_tiny", "double_token_tiny"])
def test_steps_in_another_order(arch: str) -> None:
    """Beams of models that write several words a step."""
    task = tiny_task()
    model = tiny_reordered(task, arch, dtype=torch.float32)
    model._is_generation_fast = True
    sample = batch(task, [6, 9, 3])
    for beam in (1, 3):
        outputs = [
            decode(task, [model], sample, Limits(), decoding="auto", beam=beam, engine=engine)
            for engine in ("torch", "native")
        ]
        for first, second in zip(*outputs, strict=True):
            assert first["tokens"].tolist() == second["tokens"].tolist()
            assert float(first["score"]) == pytest.approx(float(second["score"]), abs=1e-4)


# ---- where it cannot run -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant, dtype, reason",
    [
        ("output_dim", torch.float32, "its embeddings or outputs are projected"),
        ("default", torch.float64, "its weights are not in fp32"),
    ],
)
def test_what_is_not_known_is_named(variant: str, dtype: torch.dtype, reason: str) -> None:
    task = task_for(variant)
    model = tiny_model(task, variant, dtype)
    model._is_generation_fast = True
    with pytest.raises(UsageError, match=f"^--engine: got 'native'; allowed: torch .*{reason}"):
        ChunkScorer(model, NATIVE).encode(batch(task, [3])["net_input"])


def test_without_a_compiler_the_reason_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    native._load.cache_clear()
    try:
        with pytest.raises(UsageError, match="native library is not there: .*no-such-compiler"):
            ChunkScorer(model_of("default"), NATIVE).encode(batch(tiny_task(), [3])["net_input"])
    finally:
        monkeypatch.undo()
        native._load.cache_clear()


# ---- sanitizers ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [t[1] for t in native.TARGETS], ids=[t[0] for t in native.TARGETS]
)
def test_sanitizers_find_nothing(flags: tuple[str, ...], tmp_path) -> None:
    """Odd sizes, all forms, under the address and undefined-behaviour sanitizers."""
    names = [name for name, _, _ in native.TARGETS]
    mine = names.index(native.target()[0])
    if [t[1] for t in native.TARGETS].index(flags) < mine:
        pytest.skip("this CPU has no such instructions")
    program = tmp_path / "driver"
    checks = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [f"-I{ROOT / 'fairseq_paradec' / 'csrc'}", ROOT / "tests/support/native_driver.cpp"]
    command = ["c++", *checks, *flags, "-std=c++17", "-fopenmp", *sources, "-o", program]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0 and "finite scores" in done.stdout, done.stderr
