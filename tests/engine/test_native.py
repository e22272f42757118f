"""The native engine: products, passes and outputs beside torch's, fairseq's, and sanitizers."""

import argparse
import ctypes
import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import builders
from support.builders import VARIANTS, Limits, batch, decode, task_for, tiny_model, tiny_task
from support.commands import ROOT

from fairseq_paradec.engine import chunk, slots
from fairseq_paradec.engine.chunk import ChunkScorer
from fairseq_paradec.engine.native import building, packing
from fairseq_paradec.engine.native import library as native
from fairseq_paradec.engine.native import stack as native_stack
from fairseq_paradec.engine.native.stack import NativeMap
from fairseq_paradec.engine.settings import Engine
from fairseq_paradec.engine.torch import views
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin.models.heads import BlockHeads
from fairseq_paradec.row import Row
from fairseq_paradec.token_rules import Scored, TokenRules

ENGINES = ("torch", "native")
NATIVE = Engine(kind="native")
ISAS = [name for name, _, _ in building.TARGETS]
#: Matrix tiles by plain loops, which this CPU may have, too: the same code around them.
EMULATED = "emulated-tiles", (*building.WIDE, *building.DOTS, "-DPARADEC_EMULATED_TILES")
#: Variants whose embeddings or outputs are projected: torch's.
OTHERS = ("output_dim", "adaptive_output_dim", "quant_noise")


def model_of(variant: str, task: Any = None, **options: Any) -> Any:
    """A tiny model in fp32, prepared for inference."""
    model = tiny_model(task or task_for(variant), variant, torch.float32, **options)
    model._is_generation_fast = True
    return model


def wanted(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor, form: str) -> torch.Tensor:
    """The product in float64, of weights (and for int8 inputs) as the form rounds them."""
    weight, x, bias = weight.double(), x.double(), bias.double()
    if form in ("int4", "int2") and not native.halves():
        form = "int8"
    if form == "bf16":
        weight = weight.bfloat16().double()
    if form in ("int4", "int2"):
        weight = in_few_bits(weight, int(form[-1]))
    if form == "int8":
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        weight = (weight / scale).round() * scale
    if form in ("int8", "int4", "int2"):
        scale = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        x = (x / scale).round() * scale
    return x @ weight.T + bias


def product(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor, form: str) -> torch.Tensor:
    """The product by the library."""
    linear = NativeMap(weight.numpy(), bias.numpy(), form)
    return torch.from_numpy(linear(x.numpy()))


@pytest.mark.parametrize("layer", ["dense", "per_head"])
@pytest.mark.parametrize("seen", [0, 12], ids=["paper", "see the token"])
@pytest.mark.parametrize("first", [False, True])
@torch.no_grad()
def test_heads_draft_as_torchs(first: bool, seen: int, layer: str) -> None:
    torch.manual_seed(5)
    heads = BlockHeads(4, 16, 24, layer, first, "relu", seen=seen).eval()
    for weight in heads.parameters():
        weight.normal_(std=0.3)
    states, following = torch.randn(3, 16), torch.randn(3, seen) if seen else None
    for form, near in (("fp32", 1e-4), ("int8", 0.3)):
        native_heads = views.pack_heads(heads, form)
        assert native_heads.seen == seen
        for chosen in (range(1, 4), range(1, 2)):
            found, want = (one(states, chosen, following) for one in (native_heads, heads))
            torch.testing.assert_close(torch.from_numpy(found), want, atol=near, rtol=0)
    if seen:
        other = heads(states, range(1, 4), following.roll(1, 0))
        assert (other - heads(states, range(1, 4), following)).abs().max() > 1, "it matters"


def in_few_bits(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Weights as numbers from -8 to 7 times a step, or of 2 bits -3, -1, 1, 3 times a step.

    An output's next 64 inputs have one step, in bfloat16, the best of eight.
    """
    rounded = torch.empty_like(weight)
    for row, to in zip(weight, rounded, strict=True):
        for span, part in zip(row.split(64), to.split(64), strict=True):
            tries = []
            for cut in range(8):
                share = (1 - 0.05 * cut) / 7 if bits == 4 else 0.3 - 0.03 * cut
                step = (span.abs().max() * share).float().bfloat16().double()
                if bits == 4:
                    steps = (span / step).round().clamp(-8, 7)
                else:
                    steps = 2 * ((span / step - 1) / 2).round().clamp(-2, 1) + 1
                tries.append(steps * step)
            part[:] = min(tries, key=lambda one: float((one - span).pow(2).sum()))
    return rounded


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8", "int4", "int2"])
def test_products_of_any_shape(form: str) -> None:
    """1 to 65 rows; odd widths; a row of zeros."""
    drawn = random.Random(form)
    torch.manual_seed(3)
    for turn in range(40):
        rows = drawn.choice([1, 2, 9, 10, 11, 13, 14, 15, 20, 29, 33, 65])
        outputs, inputs = drawn.randint(1, 140), drawn.randint(1, 140)
        weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)
        x = torch.randn(rows, inputs)
        x[-1] *= turn % 2
        found = product(weight, bias, x, form)
        want = wanted(weight, bias, x, form)
        # With bf16 instructions inputs are rounded, too; a half rounds to either side in int8.
        near = (
            {"fp32": 1e-5, "bf16": 8e-3, "int8": 5e-3, "int4": 5e-3, "int2": 5e-3}[form]
            * inputs**0.5
            * 4
        )
        torch.testing.assert_close(found.double(), want, atol=near, rtol=1e-5)


@pytest.mark.parametrize("inputs", [1, 3, 64, 139])
def test_sums_of_bytes_are_exact(inputs: int) -> None:
    """Weights and inputs that int8 holds as they are, the largest among them: nothing saturates."""
    torch.manual_seed(inputs)
    for largest in (1, inputs):
        weight, x = (torch.randint(-127, 128, (count, inputs)) for count in (35, 7))
        weight[:, :largest] = x[:, :largest] = 127
        weight[::2] *= -1
        found = product(weight.float(), torch.zeros(35), x.float(), "int8")
        assert torch.equal(found.long(), x @ weight.T)


@pytest.mark.parametrize("inputs", [1, 3, 7, 8, 63, 64, 65, 139])
def test_sums_of_halves_are_exact(inputs: int) -> None:
    """Weights that 4 bits hold as they are: a step of 1, the least and the largest among them."""
    if not native.halves():
        pytest.skip("int4 is int8 here")
    torch.manual_seed(inputs)
    weight, x = torch.randint(-7, 8, (35, inputs)), torch.randint(-127, 128, (13, inputs))
    weight[:, ::64], x[:, -1] = 7, 127
    found = product(weight.float(), torch.zeros(35), x.float(), "int4")
    torch.testing.assert_close(found, (x @ weight.T).float(), rtol=1e-6, atol=1e-4)


def test_each_span_of_inputs_has_its_own_step() -> None:
    """Small weights beside large ones: one step for all would lose them."""
    if not native.halves():
        pytest.skip("int4 is int8 here")
    weight, x = torch.zeros(35, 128), torch.zeros(1, 128)
    weight[:, :64], weight[:, 64:] = 64, 2**-6
    x[:, 70] = 1
    found = product(weight, torch.zeros(35), x, "int4")
    torch.testing.assert_close(found, weight[:, 70:71].T, rtol=0.02, atol=0)


def test_other_sets_keep_weights_of_8_bits(tmp_path: Path) -> None:
    """Two in a byte pay with VNNI alone; elsewhere ``int4`` is ``int8``, sum by sum."""
    torch.manual_seed(4)
    weight, x = torch.randn(70, 93), torch.randn(19, 93)
    sets = [one for one in native.usable() if one[0] == "avx2"]
    if not sets:
        pytest.skip("this CPU has no AVX2")
    library = native._open(native.build(*sets[0], tmp_path))
    assert not library.paradec_halves()
    want = seeded(library, "int8", weight, x)
    assert all(torch.equal(seeded(library, form, weight, x), want) for form in ("int4", "int2"))


@pytest.mark.parametrize("form", ["int4", "int2"])
@pytest.mark.parametrize("rows", [1, 2, 11, 25])
def test_the_largest_outputs_are_exact(rows: int, form: str) -> None:
    """A projection in few bits that takes its best outputs from 8 bits chooses as these do."""
    if not native.halves():
        pytest.skip("int4 is int8 here")
    torch.manual_seed(rows)
    weight, bias = torch.randn(3001, 130), torch.randn(3001)
    x = torch.randn(rows, 130)
    x[-1] = 0
    for row, word in zip(x, weight[::97], strict=False):
        row += 0.3 * word  # as of a trained model: some outputs stand out
    maps = [NativeMap(weight.numpy(), bias.numpy(), one) for one in (form, "int8")]
    both = maps[0].with_exact(maps[1])
    rough, exact = (torch.from_numpy(one(x.numpy())) for one in maps)
    del maps  # the map of both keeps them
    found = torch.from_numpy(both(x.numpy()))
    best = found.argmax(dim=1)
    assert torch.equal(best, exact.argmax(dim=1))
    assert rows < 25 or (rough.argmax(dim=1) != best).any(), "it matters"
    torch.testing.assert_close(found.amax(dim=1), exact.amax(dim=1), rtol=1e-6, atol=0)
    changed = found != rough
    torch.testing.assert_close(found[changed], exact[changed], rtol=1e-6, atol=1e-6)
    assert changed.sum() <= 24 * rows


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
            scorer.encode(sample["net_input"]["src_tokens"].numpy())
        for turn, width in enumerate((4, 1, 3, 70, 6)):
            tokens = torch.randint(4, 30, (len(lengths), width))
            cached = scorers[0].cache.lengths
            mask: Any = "all" if turn == 4 and len(set(cached)) == 1 else "causal"
            if turn == 2:  # tokens of a block see all of it
                mask = np.full((1, width), width, np.int32)
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
@pytest.mark.parametrize("form", ["fp32", "bf16", "int8", "int4"])
def test_a_token_does_not_depend_on_its_chunk(form: str) -> None:
    """Alone, in a chunk, beside other rows: equal to the last bit."""
    task, model = tiny_task(), model_of("default")
    scorer = ChunkScorer(model, Engine(form, kind="native"))
    sample = batch(task, [7])
    torch.manual_seed(1)
    tokens = torch.randint(4, 30, (1, 23))
    scorer.encode(sample["net_input"]["src_tokens"].numpy())
    whole = scorer.log_probs(scorer.step(tokens))
    for sizes in ([1] * 23, [2, 9, 1, 11], [10, 13]):
        scorer.encode(sample["net_input"]["src_tokens"].numpy())
        parts, start = [], 0
        for size in sizes:
            parts.append(scorer.log_probs(scorer.step(tokens[:, start : start + size])))
            start += size
            scorer.keep([start])
        assert torch.equal(torch.cat(parts, dim=1), whole)
    many = batch(task, [7, 4, 9])["net_input"]["src_tokens"].numpy()
    source = sample["net_input"]["src_tokens"][0].numpy()
    many[0] = 1
    many[0, -len(source) :] = source
    scorer.encode(many)
    beside = scorer.log_probs(scorer.step(tokens.expand(3, -1)))
    assert torch.equal(beside[:1], whole)


@torch.inference_mode()
def test_random_chunks_of_many_tokens() -> None:
    """1 to 65 rows, outputs up to 300 tokens, odd widths and vocabularies; choices as torch's."""
    drawn = random.Random(5)
    for turn in range(12):
        task = tiny_task(size=(size := drawn.choice([9, 31, 33, 64, 97])))
        model = model_of("default", task)
        scorers = [ChunkScorer(model, engine) for engine in (Engine(), NATIVE)]
        rows = [1, 65, 2, 17][turn % 4]
        sample = batch(task, [drawn.randint(1, 12) for _ in range(rows)], seed=turn)
        for scorer in scorers:
            scorer.encode(sample["net_input"]["src_tokens"].numpy())
        wanted = drawn.choice([5, 40, 300 if rows < 3 else 60])
        texts: dict[str, Any] = {}
        if turn % 3:
            texts = {"penalty": [1.7, 0.6][turn % 2], "of_logits": turn % 4 < 2, "ngram": turn % 5}
            texts |= {"sequences": ((7,), (4, 8), (4, 4, 3)), "first": [None, 2][turn // 3 % 2]}
        rules = TokenRules(1, 3, 2, 2, 3, 0.5, 1.1, 0, (5, 6), renormalised=turn % 2, **texts)
        written = [0] * rows
        while min(written) < wanted:
            width = drawn.choice([1, 2, 9, 10, 11, 64])
            tokens = torch.randint(4, size, (rows, width)).numpy()
            given = [Row(b, [], wanted, tokens=[4] * n) for b, n in enumerate(written)]
            states = [scorer.step(tokens) for scorer in scorers]
            scores, found = (
                Scored(*map(torch.from_numpy, scorer.choose(hidden, rules.at(given), tokens)))
                for scorer, hidden in zip(scorers, states, strict=True)
            )
            known = scores.draft_scores > -torch.inf
            assert torch.equal(known, found.draft_scores > -torch.inf)
            torch.testing.assert_close(found.scores, scores.scores, atol=4e-4, rtol=0)
            drafted = found.draft_scores[known], scores.draft_scores[known]
            torch.testing.assert_close(*drafted, atol=4e-4, rtol=0)
            off = found.tokens != scores.tokens  # only where two scores are as good as equal
            assert int(off.sum()) <= 1 and int((found.draft_ranks != scores.draft_ranks).sum()) < 9
            written = [n + drawn.randint(0, width) for n in written]
            for scorer in scorers:
                scorer.keep(written)


@torch.inference_mode()
@pytest.mark.parametrize("variant", ["default", "prenorm"])
def test_a_source_may_hold_pad(variant: str) -> None:
    """On either side, and as a word: in fairseq too it is no token then."""
    task, model = task_for(variant), model_of(variant)
    given = batch(task, [9, 6, 4])["net_input"]
    given["src_tokens"][0, 3] = given["src_tokens"][0, -1] = given["src_tokens"][1, -3] = 1
    tokens, scores = torch.randint(4, 30, (3, 5)), []
    for engine in (Engine(), NATIVE):
        scorer = ChunkScorer(model, engine)
        scorer.encode(given["src_tokens"].numpy())
        scores.append(scorer.log_probs(scorer.step(tokens)))
    torch.testing.assert_close(scores[1], scores[0], atol=5e-4, rtol=0)


@pytest.mark.parametrize(
    "arch, options",
    [
        ("ibdecoder_tiny", {}),
        ("double_token_tiny", {}),
        ("transformer_both_ends_tiny", {}),
        ("ibdecoder_sa_tiny", {}),
        ("ibdecoder_sa_tiny", {"vanilla_mask": True}),
        ("ibdecoder_sa_tiny", {"independent_directions": True}),
    ],
)
def test_steps_in_another_order(arch: str, options: dict[str, bool]) -> None:
    """Beams of models that write several words a step."""
    task = tiny_task()
    model = builders.tiny_reordered(task, arch, dtype=torch.float32, **options)
    model._is_generation_fast = True
    sample = batch(task, [6, 9, 3])
    for beam in (1, 3):
        flags = {"decoding": "auto", "beam": beam}
        outputs = (decode(task, [model], sample, Limits(), **flags, engine=e) for e in ENGINES)
        for first, second in zip(*outputs, strict=True):
            assert first["tokens"].tolist() == second["tokens"].tolist()
            assert float(first["score"]) == pytest.approx(float(second["score"]), abs=1e-4)


def test_generators_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 that pack a model at once: one copy of its weights, outputs as alone, 1 thread each.

    OpenMP would give each new thread all cores, whatever torch was told in another.
    """

    def slow(*given: Any) -> Any:
        time.sleep(0.05)
        return pack(*given)

    pack = packing._pack
    monkeypatch.setattr(packing, "_pack", slow)
    task = tiny_task(size=3000)
    sample, other, model = batch(task, [9, 3, 6, 2] * 8), *(model_of("default", task) for _ in "12")

    def outputs(model: Any) -> tuple[Any, list[list[int]]]:
        args = argparse.Namespace(**Limits().flags(), decoding="greedy", engine="native")
        generator = task.build_generator([model], args)
        hypos = task.inference_step(generator, [model], sample)
        return generator.decoder.scorer.weights, [hypo[0]["tokens"].tolist() for hypo in hypos]

    _, alone = outputs(other)
    linear, x = NativeMap(torch.randn(900, 90).numpy(), None, "fp32"), torch.randn(10, 90).numpy()
    start, before = threading.Barrier(4), len(os.listdir("/proc/self/task"))

    def work(out: np.ndarray) -> tuple[Any, list[list[int]]]:
        start.wait()
        linear(x, out)  # first of all: some of torch's own functions tell OpenMP
        return outputs(model)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, [np.empty((10, 900), np.float32) for _ in range(4)]))
        assert len(os.listdir("/proc/self/task")) == before + 4
    assert [tokens for _, tokens in found] == [alone] * 4
    assert len({id(packed) for packed, _ in found}) == 1


def test_a_model_is_packed_once_for_all_decoders() -> None:
    """Also where greedy and beam search use scorers of different classes."""
    task = tiny_task(size=3000)
    model, found = model_of("default", task), []
    for flags in ({"decoding": "greedy"}, {"decoding": "multiword_beam", "beam": 3}):
        args = argparse.Namespace(**flags, engine="native")
        found.append(task.build_generator([model], args).decoder.scorer)
    assert type(found[0]) is not type(found[1])
    assert found[0].weights is found[1].weights


def test_what_is_not_known_is_named() -> None:
    for variant, dtype, reason in (
        ("output_dim", torch.float32, "its embeddings or outputs are projected"),
        ("default", torch.float64, "its weights are not in fp32"),
    ):
        model, sample = model_of(variant).to(dtype), batch(task_for(variant), [3])
        with pytest.raises(UsageError, match=f"^--engine: got 'native'; allowed: torch .*{reason}"):
            ChunkScorer(model, NATIVE).encode(sample["net_input"]["src_tokens"].numpy())


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine without compiler and libraries; the folder where installation puts them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(native, "BUILT", tmp_path)
    monkeypatch.setattr(chunk, "_SAID", set())
    native._load.cache_clear()
    yield tmp_path
    native._load.cache_clear()


def test_without_a_library_torch_decodes(elsewhere: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No library, and a damaged one: one line of warning; `--engine native` says why."""
    task, model = tiny_task(), model_of("default")
    sample = batch(task, [3, 5])
    want = decode(task, [model], sample, Limits(), decoding="greedy", engine="torch")
    for damaged in (False, True):
        if damaged:
            name, flags = native.usable()[0]
            name = f"{native.start_of(name, flags)}{'0' * 16}.so"
            (elsewhere / name).write_bytes(b"\x7fELF and no more")
        caplog.clear()
        chunk._SAID.clear()
        native._load.cache_clear()
        for _ in range(2):
            found = decode(task, [model], sample, Limits(), decoding="greedy", engine="auto")
            for one, other in zip(found, want, strict=True):
                assert one["tokens"].tolist() == other["tokens"].tolist()
        (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert "no-such-compiler" in said and ("damaged" in said) == damaged
        with pytest.raises(UsageError, match="native library is not there: .*no-such-compiler"):
            ChunkScorer(model, NATIVE)


def test_a_damaged_library_is_built_again_and_a_lesser_one_serves(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lesser where the best one is missing and cannot be built, and the user has no home."""
    monkeypatch.delenv("CXX")
    plain = tuple("-O0" if flag == "-O3" else flag for flag in building.FLAGS)
    monkeypatch.setattr(building, "FLAGS", plain)  # which take a fifth of the compiler's time
    (name, flags), lesser = native.usable()[0], native.usable()[-1]
    damaged = elsewhere / f"{native.start_of(name, flags)}{'0' * 16}.so"
    damaged.write_bytes(b"")
    assert ChunkScorer(model_of("default"), NATIVE).native
    (built,) = (elsewhere / "cache").rglob("*.so")
    assert native.hash_of(built.read_bytes()) in built.name
    native.build(*lesser, elsewhere)
    damaged.unlink(missing_ok=True)
    native._load.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(native, "user_folder", lambda _: None)
    assert ChunkScorer(model_of("default"), NATIVE).native


@pytest.mark.parametrize("engine", ENGINES)
def test_what_cannot_be_decoded_is_named(engine: str, monkeypatch: Any, tmp_path: Path) -> None:
    """A model with NaN, and a cache that does not fit in memory."""
    task, model = tiny_task(), model_of("default")
    sample, flags = batch(task, [3, 5]), {"decoding": "hgj", "engine": engine}
    with monkeypatch.context() as patch:
        (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 3 kB\n")
        patch.setattr(slots, "_MEMORY", tmp_path / "meminfo")
        patch.setattr(slots, "_SMALL", 0)
        with pytest.raises(UsageError, match="--batch-size: got '2 rows, whose cache takes"):
            decode(task, [model], sample, Limits(), **flags)
    with torch.no_grad():
        model.decoder.layers[0].fc1.bias[0] = torch.nan
    with pytest.raises(UsageError, match="--path: .*TransformerModel.*NaN|NaN"):
        decode(task, [model], sample, Limits(), **flags)


def test_a_model_in_training_is_torchs() -> None:
    model = tiny_model(tiny_task(), "default", torch.float32)
    assert not ChunkScorer(model, NATIVE).native
    model._is_generation_fast = True
    scorer = ChunkScorer(model, NATIVE)
    assert scorer.native
    before = scorer.weights
    for weight in (model.decoder.layers[0].fc1.weight, model.encoder.layers[0].fc2.bias):
        weight.data.add_(1)  # the next scorer packs weights that have changed
        after = ChunkScorer(model, NATIVE).weights
        assert after is not before and after is ChunkScorer(model, NATIVE).weights
        before = after


@pytest.mark.slow
@pytest.mark.parametrize("isa", [*ISAS, EMULATED[0]])
def test_every_instruction_set_computes_the_same(
    isa: str, monkeypatch: Any, tmp_path: Path
) -> None:
    chosen = [one for one in native.usable() if one[0] == isa]
    if isa == EMULATED[0] and "avx512-bf16-vnni" in dict(native.usable()):
        chosen = [EMULATED]
    if not chosen:
        pytest.skip("this CPU has no such instructions")
    monkeypatch.setattr(native, "usable", lambda: chosen)
    monkeypatch.setattr(native, "user_folder", lambda _: tmp_path)
    native._load.cache_clear()
    try:
        for form in ("fp32", "bf16", "int8"):
            test_products_of_any_shape(form)
            test_a_token_does_not_depend_on_its_chunk(form)
        test_sums_of_bytes_are_exact(139)
        test_passes_are_torchs("default")
        test_random_chunks_of_many_tokens()
    finally:
        native._load.cache_clear()


def product_of(library: Any, form: str, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A product by a library that is not the chosen one."""
    bias, out = torch.randn(len(weight)), torch.empty(len(x), len(weight))
    address = library.paradec_map_new(
        weight.data_ptr(), bias.data_ptr(), *weight.shape, native_stack.FORMS[form]
    )
    given = x.data_ptr(), x.stride(0), len(x), out.data_ptr(), out.stride(0)
    assert library.paradec_map(address, *given, 0, 2) == 0
    library.paradec_map_free(address)
    return out - bias


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A library that takes tiles: the CPU's own, or emulated ones."""
    if "avx512-bf16-vnni" not in dict(native.usable()):
        pytest.skip("no AVX-512 for what is around the tiles")
    own = [one for one in native.usable() if one[0] == "avx512-amx"]
    return native._open(native.build(*(own or [EMULATED])[0], tmp_path_factory.mktemp("tiles")))


def test_sums_of_tiles_are_those_of_dot_products(tiles: Any, tmp_path: Path) -> None:
    """In int8 to the last bit, on both sides of the number of rows where tiles begin."""
    (plain,) = [one for one in native.usable() if one[0] == "avx512-bf16-vnni"]
    other = native._open(native.build(*plain, tmp_path))
    for rows, outputs, inputs in (
        (1, 33, 7),
        (3, 70, 64),
        (4, 32, 65),
        (19, 96, 130),
        (64, 40, 256),
    ):
        torch.manual_seed(rows)
        weight, x = torch.randn(outputs, inputs), torch.randn(rows, inputs)
        found = []
        for one in (tiles, other):
            torch.manual_seed(rows)
            found.append(product_of(one, "int8", weight, x))
        assert torch.equal(*found)


def test_a_row_of_tiles_does_not_depend_on_the_others(tiles: Any) -> None:
    """In bf16 and int8, among 1 to 67 rows; a NaN stays in its row."""
    weight, x = torch.randn(70, 130), torch.randn(67, 130)
    for form in ("bf16", "int8"):
        torch.manual_seed(1)
        alone = torch.cat([seeded(tiles, form, weight, x[i : i + 1]) for i in range(len(x))])
        for rows in (2, 3, 4, 15, 16, 17, 32, 33, 67):
            assert torch.equal(seeded(tiles, form, weight, x[:rows]), alone[:rows])
        odd = x.clone()
        odd[5] = torch.nan
        found = seeded(tiles, form, weight, odd)
        assert bool(found[5].isnan().all())
        assert torch.equal(found[6:], alone[6:]) and torch.equal(found[:5], alone[:5])


def seeded(library: Any, form: str, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A product with the same bias each time."""
    torch.manual_seed(1)
    return product_of(library, form, weight, x)


def test_a_kernel_that_refuses_tiles_gets_the_next_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here the CPU has none, so its kernel has none to grant."""
    if "avx512-bf16-vnni" not in dict(native.usable()):
        pytest.skip("no AVX-512")
    if "avx512-amx" in dict(native.usable()):
        pytest.skip("this CPU has tiles")
    amx = [(name, flags) for name, flags, _ in building.TARGETS if name == "avx512-amx"]
    best = native.usable()
    with pytest.raises(OSError, match="kernel does not let this process use matrix tiles"):
        native._open(native.build(*amx[0], tmp_path))
    monkeypatch.setattr(native, "usable", lambda: [*amx, *best])
    monkeypatch.setattr(native, "user_folder", lambda _: tmp_path)
    native._load.cache_clear()
    try:
        assert Path(native.library()._name).name.startswith(best[0][0])
    finally:
        native._load.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("isa", [*ISAS, EMULATED[0]])
def test_sanitizers_find_nothing(isa: str, tmp_path: Path) -> None:
    """Odd sizes, all forms, and a million products beside float64.

    The plain set shares any work among threads, however small it is.
    """
    known = dict(native.usable())
    if isa == EMULATED[0] and "avx512-bf16-vnni" in known:
        known[isa] = EMULATED[1]
    if isa not in known:
        pytest.skip("this CPU has no such instructions")
    shared = ["-DSERIAL_WORK=0"] * (isa == "plain")
    flags = ["address,undefined", "-fno-sanitize-recover=all", *known[isa], *shared]
    program = _sanitized("native_driver", flags, tmp_path)
    assert "finite scores" in _said(program)
    assert "products, errors at most" in _said(program, "products")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver", "sanitizer"),
    [("native_driver", "thread"), ("pool_driver", "thread"), ("pool_driver", "address,undefined")],
)
def test_threads_share_any_work_without_races(driver: str, sanitizer: str, tmp_path: Path) -> None:
    """Helpers that are late, asleep or of a fork's parent; products too small to be shared."""
    said = {"native_driver": "finite scores", "pool_driver": "all counted once"}
    assert said[driver] in _said(_sanitized(driver, [sanitizer, "-DSERIAL_WORK=0"], tmp_path))


def _sanitized(driver: str, flags: Sequence[str], folder: Path) -> Path:
    """Compile a program of C++ under a sanitizer, the first of the flags; return its path."""
    headers = ROOT / "fairseq_paradec" / "engine" / "csrc"
    sources = [f"-I{headers}", ROOT / f"tests/support/{driver}.cpp"]
    checks = ["-O1", "-g1", f"-fsanitize={flags[0]}", *flags[1:]]
    program = folder / "driver"
    subprocess.run(["c++", *checks, "-std=c++17", "-pthread", *sources, "-o", program], check=True)
    return program


def _said(program: Path, *words: str) -> str:
    """What a program says that goes well."""
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_older_systems_can_load_the_library() -> None:
    """What it takes from glibc and libstdc++ is there since manylinux_2_28's."""
    symbols = subprocess.run(
        ["objdump", "-T", native.path()], capture_output=True, text=True, check=True
    ).stdout
    for name, newest in (("GLIBC", (2, 28)), ("GLIBCXX", (3, 4, 24)), ("CXXABI", (1, 3, 11))):
        found = re.findall(rf"\({name}_([\d.]+)\)", symbols)
        versions = [tuple(map(int, version.split("."))) for version in found]
        assert versions and max(versions) <= newest, name


#: Debian's g++-aarch64-linux-gnu and qemu-user.
ARM = ("aarch64-linux-gnu-g++", "qemu-aarch64")


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(name) is None for name in ARM), reason=f"needs {' and '.join(ARM)}"
)
def test_an_arm_computes_the_same(tmp_path: Path) -> None:
    """Every entry of the library, and rows of tiny numbers, on an emulated Arm."""
    headers = ROOT / "fairseq_paradec" / "engine" / "csrc"
    flags = [flag for flag in building.FLAGS if flag != "-shared"]
    driver = ROOT / "tests" / "support" / "native_driver.cpp"
    command = [ARM[0], *flags, "-static", f"-I{headers}", driver, "-o", tmp_path / "driver"]
    subprocess.run(command, check=True)
    done = subprocess.run([ARM[1], tmp_path / "driver"], capture_output=True, text=True)
    assert done.returncode == 0 and "finite scores, 4 lanes" in done.stdout, done.stderr
    library = tmp_path / "library.so"  # which only has to be one
    plain = ["-O0" if flag == "-O3" else flag for flag in building.FLAGS]
    subprocess.run([ARM[0], *plain, headers / "native.cpp", "-o", library], check=True)
    machine = int.from_bytes(library.read_bytes()[18:20], "little")
    assert machine == 183  # aarch64, in an ELF file's head


@pytest.mark.parametrize("name", ["VERSION", "STRUCTURES"])
def test_a_library_with_another_interface_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another version, or with other structures than Python's."""

    class Chunk(ctypes.Structure):
        _fields_ = [*native.Chunk._fields_[1::-1], *native.Chunk._fields_[2:]]

    path = Path(native.library()._name)
    assert native._open(path)
    other = {"VERSION": native.VERSION + 1, "STRUCTURES": (Chunk, *native.STRUCTURES[1:])}
    monkeypatch.setattr(native, name, other[name])
    with pytest.raises(OSError, match="another interface"):
        native._open(path)
