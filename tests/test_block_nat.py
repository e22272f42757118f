"""GAD's drafter and its loss: exact against a slow twin, and what their flags promise."""

from __future__ import annotations

import json
import math
import re
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.data import LanguagePairDataset
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from reference import block_nat as twin
from support.builders import DEMO, demo, sources, tiny_task
from support.chance import assert_uniform
from support.commands import PLUGIN, preprocess, run_python, succeed
from torch import Tensor

from fairseq_paradec.criterions.block_nat_loss import BlockNatLoss, blocks
from fairseq_paradec.criterions.projected_cross_entropy import projected_cross_entropy
from fairseq_paradec.errors import UsageError
from fairseq_paradec.models import block_nat
from fairseq_paradec.models.block_nat import MASK, BlockNatModel, reveal

pytestmark = pytest.mark.usefixtures("exact_softmax")

BIDIRECTIONAL, CAUSAL = "bidirectional", "prefix_causal"
ATTENTIONS = (BIDIRECTIONAL, CAUSAL)
SIZE = 4  # of a block, in every tiny model
POSITIONS = 24  # of its decoder
VERIFIER = DEMO / "model.pt"

#: Sentence pairs, `</s>` counted; the collater puts the longest source first.
SOURCE_LENGTHS = (3, 8, 5, 2)
TARGET_LENGTHS = (6, 1, 10, 4)


# ---- models, batches, losses --------------------------------------------------------------------


def build(task: Any, arch: str = "block_nat", **options: Any) -> BlockNatModel:
    """A model of this architecture with these flags, as fairseq builds it."""
    args = Namespace(**options)
    ARCH_CONFIG_REGISTRY[arch](args)
    model: BlockNatModel = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    return model


TINY = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 32,
    "decoder_attention_heads": 2,
    "max_source_positions": 64,
    "max_target_positions": POSITIONS,
    "drafter_block_size": SIZE,
}


def tiny_drafter(
    task: Any, attention: str = CAUSAL, seed: int = 0, exact: bool = True, **options: Any
) -> BlockNatModel:
    """A tiny drafter in evaluation mode, its weights spread so that everything matters."""
    settings = TINY | {"drafter_attention": attention} | options
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = build(task, **settings)
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.5 if "embed" in name else 1.5 * weight.size(1) ** -0.5)
            elif "sharpness" not in name:
                weight.add_(torch.randn_like(weight), alpha=0.2)
        model.decoder.mask_vector.normal_(std=0.5)
    if exact:
        for module in model.modules():
            if hasattr(module, "activation_fn"):  # fairseq's GELU rounds to float32
                module.activation_fn = torch.nn.functional.gelu
        model.double()
    return model.eval()


@dataclass(frozen=True)
class Pairs:
    """A batch of sentence pairs, and its rows without padding."""

    sample: dict[str, Any]

    @property
    def sources(self) -> list[list[int]]:
        return [[t for t in row if t != 1] for row in self.src_tokens.tolist()]

    @property
    def targets(self) -> list[list[int]]:
        return [[t for t in row if t != 1] for row in self.target.tolist()]

    @property
    def src_tokens(self) -> Tensor:
        return self.sample["net_input"]["src_tokens"]

    @property
    def src_lengths(self) -> Tensor:
        return self.sample["net_input"]["src_lengths"]

    @property
    def target(self) -> Tensor:
        return self.sample["target"]


def pairs(
    task: Any,
    source_lengths: Sequence[int] = SOURCE_LENGTHS,
    target_lengths: Sequence[int] = TARGET_LENGTHS,
    seed: int = 0,
) -> Pairs:
    """A batch of random sentence pairs, as fairseq's dataset makes it."""
    source = sources(task, source_lengths, seed)
    target = sources(task, target_lengths, seed + 1000)  # one dictionary for both
    words = task.source_dictionary
    dataset = LanguagePairDataset(
        source, list(source_lengths), words, target, list(target_lengths), words,
        shuffle=False,
    )  # fmt: skip
    return Pairs(dataset.collater([dataset[i] for i in range(len(source))]))


def loss_of(task: Any, **options: Any) -> BlockNatLoss:
    """The loss with its default flags, but for these."""
    defaults = {
        "label_smoothing": 0.1,
        "prefixes_per_sentence": 1,
        "tokens_per_prefix": 0,
        "glancing_ratio": 0.5,
        "glancing_ratio_end": 0.3,
        "glancing_updates": 300,
    }
    return BlockNatLoss(task, **(defaults | options))


def run_model(
    model: BlockNatModel, batch: Pairs, starts: Tensor, ratio: float = 0.0
) -> tuple[block_nat.BlockOutput, Tensor]:
    """Run the model as the loss does; also returns the true tokens, B×J×K."""
    drawn = torch.ones_like(starts, dtype=torch.bool)
    truth = blocks(batch.target, starts, drawn, model.block_size, 1)
    output = model(
        batch.src_tokens, batch.src_lengths,
        target=batch.target, starts=starts, truth=truth, glancing_ratio=ratio,
    )  # fmt: skip
    return output, truth


def starts_for(batch: Pairs, count: int, seed: int = 0) -> Tensor:
    """Prefix lengths from 0..n for each row, B×J; the last row's first is n, the longest's 0."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(len(t), (count,), generator=generator) for t in batch.targets]
    rows[-1][0] = len(batch.targets[-1]) - 1
    rows[max(range(len(rows)), key=lambda b: len(batch.targets[b]))][-1] = 0
    return torch.stack(rows)


def some_shown(truth: Tensor, seed: int = 0) -> Tensor:
    """What stands in the blocks when about a third of the true tokens are revealed."""
    lots = torch.rand(truth.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where((lots < 0.35) & truth.ne(1), truth, torch.full_like(truth, MASK))


def as_slots(shown: Tensor) -> list[int | None]:
    """A row of what stands in a block, for the twin."""
    return [None if token == MASK else token for token in shown.tolist()]


class Spy:
    """Wraps a function of a module or an object; keeps what went in and what came out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.original: Callable[..., Any] = getattr(owner, name)
        self.inputs: list[tuple[Any, ...]] = []
        self.outputs: list[Any] = []
        self.grad: list[bool] = []
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.inputs.append(args)
        self.grad.append(torch.is_grad_enabled())
        result = self.original(*args, **kwargs)
        self.outputs.append(result.clone() if isinstance(result, Tensor) else result)
        return result


# ---- the model against its twin ------------------------------------------------------------------


@pytest.mark.parametrize("copy", [False, True], ids=["masks, post-norm", "soft-copy, pre-norm"])
@pytest.mark.parametrize(
    ("attention", "count"), [(BIDIRECTIONAL, 1), (CAUSAL, 1), (CAUSAL, 3)], ids=str
)
def test_features_are_the_twins(attention: str, count: int, copy: bool) -> None:
    task = tiny_task()
    model = tiny_drafter(
        task, attention, soft_copy=copy,
        encoder_normalize_before=copy, decoder_normalize_before=copy,
    )  # fmt: skip
    batch = pairs(task, seed=count)
    assert batch.src_tokens[1, 0] == 1, "sources are padded on the left"
    starts = starts_for(batch, count)
    drawn = torch.ones_like(starts, dtype=torch.bool)
    truth = blocks(batch.target, starts, drawn, SIZE, 1)
    shown = some_shown(truth)
    assert shown.eq(MASK).any() and shown.ne(MASK).any()
    with torch.no_grad():
        encoder_out = model.encoder(batch.src_tokens, src_lengths=batch.src_lengths)
        features = model.decoder(batch.target, starts, shown, encoder_out)
        output, _ = run_model(model, batch, starts)
    assert features.shape == (len(SOURCE_LENGTHS), count, SIZE, 16)
    scored = iter(output.logits)
    for b, (source, target) in enumerate(zip(batch.sources, batch.targets, strict=True)):
        for j, start in enumerate(starts[b].tolist()):
            prefix = target[:start]
            want = twin.block_features(model, source, prefix, as_slots(shown[b, j]), attention)
            torch.testing.assert_close(features[b, j], want, atol=1e-10, rtol=0)
            masks: list[int | None] = [None] * SIZE
            logits = twin.block_logits(model, source, prefix, masks, attention)
            for i in range(min(SIZE, len(target) - start)):
                torch.testing.assert_close(next(scored), logits[i], atol=1e-10, rtol=0)
    assert next(scored, None) is None, "something after </s> is scored"


# ---- the loss against its twin -------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [None, 0.5], ids=["validation", "half"])
@pytest.mark.parametrize(("attention", "prefixes"), [(BIDIRECTIONAL, 1), (CAUSAL, 3)], ids=str)
def test_loss_is_the_twins(
    monkeypatch: pytest.MonkeyPatch,
    attention: str,
    prefixes: int,
    ratio: float | None,
) -> None:
    task = tiny_task()
    training, smoothing = ratio is not None, 0.1
    model = tiny_drafter(task, attention, dropout=0.0, soft_copy=True)
    batch = pairs(task, SOURCE_LENGTHS * 3, TARGET_LENGTHS * 3, seed=5)
    criterion = loss_of(
        task, label_smoothing=smoothing, prefixes_per_sentence=prefixes,
        glancing_ratio=ratio or 0.0, glancing_ratio_end=ratio or 0.0,
    )  # fmt: skip
    teach(model, batch)
    draws = Spy(monkeypatch, criterion, "draw_prefixes")
    rand = Spy(monkeypatch, torch, "rand")
    torch.manual_seed(3)
    loss, sample_size, logging = criterion(model.train(training), batch.sample)

    starts, drawn = draws.outputs[0]
    if training:
        lots = rand.outputs[-1]
        assert lots.shape == (12, starts.size(1), SIZE) and len(rand.outputs) == 2
    want = [
        twin.train_block(
            model.eval(), batch.sources[b], batch.targets[b], int(starts[b, j]), SIZE, attention,
            smoothing, ratio or 0.0, lots[b, j].tolist() if training else (),
        )
        for b in range(12)
        for j in range(starts.size(1))
        if drawn[b, j]
    ]  # fmt: skip
    assert sample_size == logging["sample_size"] == sum(sum(w.scored) for w in want)
    assert loss.item() == pytest.approx(sum(w.loss for w in want), rel=1e-5)
    assert float(logging["loss"]) == loss.item() and not logging["loss"].requires_grad
    assert float(logging["nll_loss"]) == pytest.approx(sum(w.nll_loss for w in want), rel=1e-5)
    assert logging["scored_at"].tolist() == [sum(w.scored[i] for w in want) for i in range(SIZE)]
    assert logging["right_at"].tolist() == [sum(w.right[i] for w in want) for i in range(SIZE)]
    assert 0 < int(logging["right_at"].sum()) < sample_size, "some are right"
    assert logging["nsentences"] == 12 and logging["ntokens"] == batch.sample["ntokens"]
    if training:
        assert any(any(s is not None for s in w.slots) for w in want), "something is revealed"
        assert "accepted" not in logging
    else:
        assert logging["accepted"] == sum(w.accepted for w in want) > 0
        assert logging["accepted"] < int(logging["right_at"].sum()), "some come after a wrong one"
        assert logging["blocks"] == len(want) == int(drawn.sum())


def teach(model: BlockNatModel, batch: Pairs) -> None:
    """Let the model be right at some slots: a few steps on this batch."""
    criterion = loss_of(tiny_task(), prefixes_per_sentence=1, glancing_ratio=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    for _ in range(15):
        loss, _, _ = criterion(model.train(), batch.sample)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def test_no_true_token_is_a_loss_of_zero() -> None:
    task = tiny_task()
    model = tiny_drafter(task).train()
    batch = pairs(task)
    output, truth = run_model(model, batch, starts_for(batch, 2))
    nothing = torch.full_like(truth, 1)
    for ratio in (0.0, 0.5):
        output = model(
            batch.src_tokens, batch.src_lengths, target=batch.target,
            starts=starts_for(batch, 2), truth=nothing, glancing_ratio=ratio,
        )  # fmt: skip
        assert output.logits.shape == (0, len(task.target_dictionary))
        assert not output.scored.any()


@pytest.mark.parametrize(("rows", "smoothing"), [(0, 0.1), (64, 0.0), (150, 0.1)])
def test_the_loss_without_logits_is_fairseqs(rows: int, smoothing: float) -> None:
    """With its gradients; on the CPU 64 rows have logits at a time."""
    torch.manual_seed(rows)
    hidden = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(20, 8, dtype=torch.float64, requires_grad=True)
    answers = torch.randint(20, (rows,))
    logits = hidden @ weight.T
    loss, nll_loss = label_smoothed_nll_loss(logits.log_softmax(dim=-1), answers, smoothing)
    (loss * 3).backward()
    want = hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    found = projected_cross_entropy(hidden, weight, answers, smoothing)
    (found.loss * 3).backward()
    for mine, other in zip((*found, hidden.grad, weight.grad),
                           (loss, nll_loss, logits.argmax(dim=-1).eq(answers), *want)):  # fmt: skip
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=1e-10)
    assert not found.nll_loss.requires_grad and not found.right.requires_grad


# ---- prefix lengths ------------------------------------------------------------------------------


def target_of(lengths: Sequence[int]) -> Tensor:
    """Targets of these lengths, `</s>` counted, padded at the end."""
    target = torch.full((len(lengths), max(lengths)), 1)
    for row, length in zip(target, lengths, strict=True):
        row[: length - 1] = torch.arange(4, 3 + length)
        row[length - 1] = 2
    return target


@pytest.mark.parametrize("prefixes", [1, 3])
def test_prefix_lengths_are_uniform_and_not_repeated(prefixes: int) -> None:
    """From 0 (no prefix) to n (only `</s>` is left to predict)."""
    torch.manual_seed(1)
    criterion = loss_of(tiny_task(), prefixes_per_sentence=prefixes)
    starts, drawn = criterion.draw_prefixes(target_of([7, 9, 4] * 2000), training=True)
    assert starts.shape == drawn.shape == (6000, prefixes) and drawn.all()
    for row, length in enumerate([7, 9, 4]):
        mine = starts[row::3].sort(dim=1).values
        assert (mine.diff(dim=1) > 0).all()
        for column in starts[row::3].T:
            counts = column.bincount().tolist()
            assert len(counts) == length
            assert_uniform(counts)
        if prefixes > 1:  # every set of them is as likely
            sets = torch.unique(mine, dim=0, return_counts=True)[1].tolist()
            assert len(sets) == length * (length - 1) * (length - 2) // 6
            assert_uniform(sets)


@pytest.mark.parametrize(("prefixes", "spacing"), [(1, 1), (1, 3), (3, 8), (3, 50)])
def test_long_sentences_have_more_prefixes(prefixes: int, spacing: int) -> None:
    """One for every so many tokens, but no fewer than any sentence has."""
    lengths = [16, 1, 17, 3, 40]
    wanted = [min(max(prefixes, math.ceil(n / spacing)), n) for n in lengths]
    criterion = loss_of(tiny_task(), prefixes_per_sentence=prefixes, tokens_per_prefix=spacing)
    torch.manual_seed(1)
    for training in (True, False):
        starts, drawn = criterion.draw_prefixes(target_of(lengths), training)
        assert starts.size(1) == max(wanted)
        for row, mask, length, number in zip(starts, drawn, lengths, wanted, strict=True):
            found = row[mask].tolist()
            assert len(set(found)) == len(found) == number and set(found) <= set(range(length))
    starts, drawn = criterion.draw_prefixes(target_of(lengths[:1] * 3000), training=True)
    assert_uniform(starts[drawn].bincount(minlength=16).tolist())


def test_validation_draws_the_same_each_time_and_leaves_the_seed_alone() -> None:
    criterion = loss_of(tiny_task(), prefixes_per_sentence=2)
    target = target_of([9] * 50)
    torch.manual_seed(1)
    first = criterion.draw_prefixes(target, training=False)[0]
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    assert first.equal(criterion.draw_prefixes(target, training=False)[0])
    torch.manual_seed(1)
    assert state.equal(torch.random.get_rng_state())
    assert len(first[:, 0].unique()) == 9, "and not the same for every sentence"
    assert not criterion.draw_prefixes(target, training=True)[0].equal(first)


# ---- glancing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_reveals_as_many_as_the_ratio_of_the_wrong_ones(ratio: float) -> None:
    torch.manual_seed(0)
    truth = torch.randint(4, 40, (50, 3, 9))
    truth[torch.arange(9) >= torch.randint(0, 10, (50, 3, 1))] = 1
    wrong = (torch.rand(truth.shape) < 0.6) & truth.ne(1)
    shown = reveal(truth, wrong, ratio, 1)
    is_shown = shown.ne(MASK)
    assert shown[is_shown].equal(truth[is_shown]) and truth[is_shown].ne(1).all()
    number = [[int(ratio * int(w)) for w in row] for row in wrong.sum(dim=-1)]
    assert is_shown.sum(dim=-1).tolist() == number


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_first_pass_has_the_seconds_dropout_and_no_gradient(
    monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    task = tiny_task()
    model = tiny_drafter(
        task, attention, dropout=0.3, attention_dropout=0.2, activation_dropout=0.2, soft_copy=True
    ).train()
    batch = pairs(task)
    starts = starts_for(batch, 1)
    passes = Spy(monkeypatch, model.decoder, "forward")
    with monkeypatch.context() as patch:
        masks = Spy(patch, block_nat, "reveal")
        masks.original = lambda truth, wrong, ratio, pad: torch.full_like(truth, MASK)
        torch.manual_seed(1)
        with_glance, _ = run_model(model, batch, starts, ratio=0.5)
        after = torch.rand(5)
    first, second = passes.outputs
    assert first.equal(second) and passes.grad == [False, True]
    assert not first.requires_grad and second.requires_grad
    assert masks.inputs[0][1].any(), "something is wrong"
    torch.manual_seed(1)
    without, _ = run_model(model, batch, starts, ratio=0.0)
    assert len(passes.outputs) == 3 and without.logits.equal(with_glance.logits)
    assert after.equal(torch.rand(5)), "what comes next is drawn as without a glance"
    torch.manual_seed(2)
    assert not run_model(model, batch, starts)[0].logits.equal(without.logits), "dropout is on"


def test_the_glancing_ratio_falls_linearly_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny_task()
    criterion = loss_of(task)
    for updates, ratio in ((0, 0.5), (150, 0.4), (300, 0.3), (301, 0.3), (10**6, 0.3)):
        assert criterion.glancing_ratio(updates) == pytest.approx(ratio)
    rising = loss_of(task, glancing_ratio=0.0, glancing_ratio_end=1.0)
    assert rising.glancing_ratio(75) == pytest.approx(0.25)

    model, batch = tiny_drafter(task).train(), pairs(task)
    calls = Spy(monkeypatch, block_nat, "reveal")
    model.set_num_updates(150)
    criterion(model, batch.sample)
    assert calls.inputs[0][2] == pytest.approx(0.4)
    criterion(model.eval(), batch.sample)
    loss_of(task, glancing_ratio=0.0, glancing_ratio_end=0.0)(model.train(), batch.sample)
    assert len(calls.inputs) == 1, "neither in validation, nor at ratio 0"


# ---- logging -------------------------------------------------------------------------------------


def logged(outputs: list[dict[str, Any]]) -> dict[str, float]:
    with metrics.aggregate() as log:
        BlockNatLoss.reduce_metrics(outputs)
    return {name: float(value) for name, value in log.get_smoothed_values().items()}


def test_metrics_are_the_same_from_sums_and_over_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = tiny_task()
    model = tiny_drafter(task)
    batches = [pairs(task, SOURCE_LENGTHS * n, TARGET_LENGTHS * n, seed=n) for n in (1, 4, 2)]
    teach(model, batches[0])
    criterion = loss_of(task, prefixes_per_sentence=2)
    outputs = [criterion(model.eval(), batch.sample)[2] for batch in batches]
    assert criterion.logging_outputs_can_be_summed()
    want = logged(outputs)
    total: Any = {name: sum(o[name] for o in outputs) for name in outputs[0]}
    nats = float(total["nll_loss"]) / total["sample_size"]
    assert want["nll_loss"] == pytest.approx(nats / 0.69314718, abs=1e-3)
    for slot, (right, count) in enumerate(zip(total["right_at"], total["scored_at"], strict=True)):
        assert want[f"acc_{slot + 1}"] == pytest.approx(float(right / count), abs=1e-3)
    assert want["accepted"] == pytest.approx(float(total["accepted"] / total["blocks"]), abs=1e-3)
    # Each is weighted by what it is a mean of when the log joins several updates.
    with metrics.aggregate() as log:
        for output in outputs:
            BlockNatLoss.reduce_metrics([output])
    assert dict(log.get_smoothed_values()) == pytest.approx(want, abs=2e-3)
    # As the trainer sums them, before and after two processes with the same outputs are reduced.
    assert logged([total]) == pytest.approx(want, abs=2e-3)

    def both(tensor: Tensor, group: Any) -> Tensor:
        return tensor.mul_(2)

    monkeypatch.setattr(distributed_utils, "all_reduce", both)
    reduced = distributed_utils.all_reduce_dict(total, torch.device("cpu"), group=None)
    assert logged([reduced]) == pytest.approx(want, abs=2e-3)


# ---- architectures and the verifier's encoder ----------------------------------------------------


def arch_settings(arch: str, **flags: Any) -> Namespace:
    args = Namespace(**flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def test_architectures() -> None:
    names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    for arch, sizes in (("block_nat_tiny", (4, 128, 256, 4)), ("block_nat", (6, 512, 2048, 8))):
        args = arch_settings(arch, decoder_layers=1)
        assert tuple(getattr(args, f"encoder_{name}") for name in names) == sizes
        assert tuple(getattr(args, f"decoder_{name}") for name in names) == (1, *sizes[1:])
        assert args.drafter_block_size == 25 and args.drafter_attention == BIDIRECTIONAL
        assert args.activation_fn == "gelu" and args.no_scale_embedding and not args.soft_copy
        assert args.encoder_learned_pos and args.decoder_learned_pos
        again = Namespace(**vars(args))
        ARCH_CONFIG_REGISTRY[arch](again)  # fairseq does so when it loads a checkpoint
        assert again == args


@pytest.mark.parametrize(
    "options, message",
    [
        ({"drafter_attention": "causal"}, "--drafter-attention: got 'causal'; .*prefix_causal"),
        ({"drafter_block_size": POSITIONS + 1}, f"--drafter-block-size: got 25; .*{POSITIONS}"),
        ({"drafter_block_size": -1}, "--drafter-block-size: got -1"),
        ({"share_verifier_encoder": True}, "--share-verifier-encoder: .*--encoder-from"),
        ({"soft_copy": True, "decoder_embed_dim": 32}, "--soft-copy: .*equal"),
        ({"decoder_layers": 0}, "--decoder-layers: got 0"),
        ({"adaptive_softmax_cutoff": "9,20"}, "--adaptive-softmax-cutoff: got '9,20'"),
    ],
)
def test_wrong_flags_of_the_model_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        build(tiny_task(), **TINY | options)


@pytest.mark.parametrize(
    "option, value",
    [("label_smoothing", -0.1), ("glancing_ratio", 1.5), ("prefixes_per_sentence", 0),
     ("tokens_per_prefix", -1), ("glancing_updates", 0)],
)  # fmt: skip
def test_wrong_flags_of_the_loss_are_named(option: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"^--{option.replace('_', '-')}: got {value}; allowed"):
        loss_of(tiny_task(), **{option: value})


def same_weights(a: Any, b: Any) -> bool:
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(mine[k].equal(other[k]) for k in mine)


def test_encoder_from_copies_encoder_and_sizes() -> None:
    """The demo's model has sinusoidal positions, ReLU and scaled embeddings."""
    task, verifier, _ = demo()
    model = build(task, encoder_from=str(VERIFIER), decoder_layers=2).eval()
    assert type(model.encoder) is type(verifier.encoder)
    assert same_weights(model.encoder, verifier.encoder)
    assert model.decoder.embed_tokens.weight.equal(verifier.decoder.embed_tokens.weight)
    batch = pairs(task)
    net_input = (batch.src_tokens, batch.src_lengths)
    with torch.no_grad():
        mine, other = model.encoder(*net_input), verifier.encoder(*net_input)
    assert mine["encoder_out"][0].equal(other["encoder_out"][0])
    assert all(weight.requires_grad for weight in model.encoder.parameters())
    decoder = model.decoder
    assert (len(decoder.layers), decoder.layers[0].fc1.out_features) == (2, 256)
    assert type(decoder.embed_positions).__name__ == "LearnedPositionalEmbedding"
    assert decoder.embed_scale == 1 and model.encoder.embed_scale == 128**0.5


def test_what_does_not_fit_the_verifier_is_named(tmp_path: Path) -> None:
    task = demo()[0]
    for name, given, its in (("encoder_layers", 3, 4), ("encoder_learned_pos", True, False)):
        flag = "--" + name.replace("_", "-")
        with pytest.raises(UsageError, match=f"^{flag}: got {given}; allowed: {its}, .*model.pt"):
            build(task, encoder_from=str(VERIFIER), **{name: given})
    with pytest.raises(UsageError, match="^--encoder-from: got '.*missing.pt', which does not"):
        build(task, encoder_from=str(tmp_path / "missing.pt"))
    state = torch.load(VERIFIER, weights_only=True)
    state["cfg"]["model"] = arch_settings("block_nat", _name="block_nat")
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(UsageError, match="^--encoder-from: got .*other.pt.*Transformer"):
        build(task, encoder_from=str(tmp_path / "other.pt"))


def test_a_shared_encoder_is_never_trained() -> None:
    task, verifier, _ = demo()
    torch.manual_seed(0)
    model = build(
        task, encoder_from=str(VERIFIER), share_verifier_encoder=True, decoder_layers=1,
        soft_copy=True, drafter_block_size=SIZE, dropout=0.3,
    )  # fmt: skip
    model.eval()
    model.train()
    assert model.training and model.decoder.training
    assert not any(module.training for module in model.encoder.modules())
    before = model.decoder.embed_tokens.weight.clone()
    assert before.equal(verifier.decoder.embed_tokens.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    criterion = loss_of(task)
    for seed in range(3):
        loss, _, _ = criterion(model, pairs(task, seed=seed).sample)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, weight in model.named_parameters():
        is_encoder = name.startswith("encoder.")
        assert weight.requires_grad is not is_encoder, name
        assert (weight.grad is None) is is_encoder, name
    assert same_weights(model.encoder, verifier.encoder)
    assert not model.decoder.embed_tokens.weight.equal(before), "the decoder's table is its own"
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight


@pytest.mark.parametrize(("layers", "sources"), [(1, [0]), (3, [0, 2, 3])])
def test_decoder_layers_start_from_the_verifiers(layers: int, sources: list[int]) -> None:
    task, verifier, _ = demo()
    layers_kept = {"decoder_layers": layers, "decoder_layerdrop": 0.5}
    args = arch_settings("block_nat_fast", encoder_from=str(VERIFIER), **layers_kept)
    assert args.activation_fn == "relu" and args.decoder_from_verifier
    drafter = build(task, "block_nat_fast", encoder_from=str(VERIFIER), **layers_kept)
    for own, source in zip(range(layers), sources, strict=True):
        twin = verifier.decoder.layers[source]
        assert same_weights(drafter.decoder.layers[own], twin)
    assert not same_weights(drafter.decoder.layers[0], verifier.decoder.layers[1])
    plain = build(task, encoder_from=str(VERIFIER), decoder_layers=4)
    assert not same_weights(plain.decoder.layers[0], verifier.decoder.layers[0])


# ---- fairseq-train -------------------------------------------------------------------------------

#: Runs fairseq-train several times in one process; prints what is refused, and glancing ratios.
TRAIN = """
import json, sys
from fairseq_cli.train import cli_main
for number, command in enumerate(json.loads(sys.argv[1])):
    print("COMMAND", number, flush=True)
    if number == 1:  # the first one has imported the plugin
        cls = sys.modules["fairseq_paradec.criterions.block_nat_loss"].BlockNatLoss
        original = cls.glancing_ratio
        def glancing_ratio(self, updates):
            print("GLANCING", updates, original(self, updates))
            return original(self, updates)
        cls.glancing_ratio = glancing_ratio
    sys.argv = ["fairseq-train", *command]
    try:
        cli_main()
    except Exception as error:
        if type(error).__name__ != "UsageError":
            raise
        print("REFUSED", error, flush=True)
"""

COMMON = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
    "--decoder-attention-heads 2 --dropout 0.1 --optimizer adam --lr 0.01 --max-tokens 400 "
    "--no-epoch-checkpoints --log-format json --log-interval 1 --num-workers 0 --cpu --seed 3 "
    "--max-source-positions 64 --max-target-positions 64"
).split()

SMOOTHED = "--criterion label_smoothed_cross_entropy --label-smoothing 0.1".split()
BLOCK_LOSS = "--criterion block_nat_loss --glancing-updates 30".split()
DRAFTER = "--arch block_nat --drafter-block-size 4 --soft-copy".split()
MANY = "--drafter-attention prefix_causal --prefixes-per-sentence 3".split()


@dataclass
class Runs:
    """The folder of all models, and what each command printed."""

    folder: Path
    printed: dict[str, str]

    def losses(self, name: str) -> dict[int, float]:
        """The loss of each update, to three digits."""
        lines = [json.loads(m) for m in re.findall(r"train_inner \| (.*)", self.printed[name])]
        return {int(line["num_updates"]): float(line["loss"]) for line in lines}

    def ratios(self, name: str) -> dict[int, float]:
        """The glancing ratio of each update, counted from 0 before the first."""
        found = re.findall(r"^GLANCING (\d+) (.*)$", self.printed[name], flags=re.MULTILINE)
        return {int(number): float(ratio) for number, ratio in found}

    def load(self, name: str) -> BlockNatModel:
        """Load a model that was trained."""
        path = self.folder / name / "checkpoint_last.pt"
        models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)])
        model: BlockNatModel = models[0].eval()
        return model


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("runs")
    data = preprocess(folder)
    verifier = folder / "verifier"
    sizes = COMMON[COMMON.index("--dropout") :]
    commands: dict[str, list[object]] = {
        "verifier": [*COMMON, *SMOOTHED, "--arch", "transformer", "--max-update", 1,
                     "--save-dir", verifier],
        "other loss": [*COMMON, *DRAFTER, *SMOOTHED],
        "straight": [*COMMON, *DRAFTER, *BLOCK_LOSS, *MANY, "--max-update", 30,
                     "--save-dir", folder / "straight"],
        "half": [*COMMON, *DRAFTER, *BLOCK_LOSS, *MANY, "--max-update", 17,
                 "--save-dir", folder / "resumed"],
        "resumed": [*COMMON, *DRAFTER, *BLOCK_LOSS, *MANY, "--max-update", 30,
                    "--save-dir", folder / "resumed"],
        "fast": [*sizes, *BLOCK_LOSS, "--arch", "block_nat_fast", "--drafter-block-size", 4,
                 "--encoder-from", verifier / "checkpoint_last.pt", "--max-update", 2,
                 "--save-dir", folder / "fast"],
    }  # fmt: skip
    given = [
        [str(item) for item in (data, "--user-dir", PLUGIN, *command, *no_save(command))]
        for command in commands.values()
    ]
    result = succeed(run_python(TRAIN, json.dumps(given), cwd=folder))
    parts = re.split(r"^COMMAND \d+$", result.stdout, flags=re.MULTILINE)[1:]
    yield Runs(folder, dict(zip(commands, parts, strict=True)))
    shutil.rmtree(folder, ignore_errors=True)


def no_save(command: Sequence[object]) -> list[str]:
    return [] if "--save-dir" in command else ["--no-save", "--max-update", "1"]


@pytest.mark.slow
def test_training_goes_on_where_it_stopped(runs: Runs) -> None:
    """So does glancing. fairseq deals out other batches, so that losses are near, not equal."""
    assert "REFUSED --criterion: " in runs.printed["other loss"]
    straight = runs.losses("straight")
    half, resumed = runs.losses("half"), runs.losses("resumed")
    assert list(half) == list(range(1, 18)) and list(resumed) == list(range(18, 31))
    assert half == {number: straight[number] for number in half}
    assert resumed == pytest.approx({number: straight[number] for number in resumed}, abs=0.15)
    want = {number: 0.5 - 0.2 * number / 30 for number in range(30)}
    assert runs.ratios("straight") == pytest.approx(want)
    assert runs.ratios("half") | runs.ratios("resumed") == pytest.approx(want)
    assert list(runs.ratios("resumed")) == list(range(17, 30))


@torch.no_grad()
def logits_of(model: BlockNatModel) -> Tensor:
    task = tiny_task()
    batch = pairs(task)
    for tokens in (batch.src_tokens, batch.target):
        tokens[tokens > 3] = tokens[tokens > 3] % 20 + 4  # the data has 24 symbols
    return run_model(model, batch, starts_for(batch, 2))[0].logits


@pytest.mark.slow
def test_a_drafter_needs_its_verifiers_file_only_once(runs: Runs) -> None:
    path = runs.folder / "verifier" / "checkpoint_last.pt"
    verifier = torch.load(path, weights_only=True)["model"]
    saved = torch.load(runs.folder / "fast" / "checkpoint_last.pt", weights_only=True)
    before = runs.load("fast")
    path.rename(path.with_suffix(".away"))
    try:
        model = runs.load("fast")
    finally:
        path.with_suffix(".away").rename(path)
    assert model.shares_encoder and model.block_size == 4 and len(model.decoder.layers) == 2
    assert model.decoder.attention == CAUSAL
    for name, weight in model.state_dict().items():
        assert weight.equal(saved["model"][name]), name
        if name.startswith("encoder."):
            assert weight.equal(verifier[name]), name
    assert logits_of(model).equal(logits_of(before))
