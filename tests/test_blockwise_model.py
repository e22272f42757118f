"""Blockwise heads and their loss: exact against a slow twin, and what flags and files promise."""

from __future__ import annotations

import json
import re
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.configs import FairseqConfig
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from reference import blockwise_model as twin
from reference.greedy import full_log_probs
from support.builders import (
    DEMO,
    VARIANTS,
    Limits,
    batch,
    built,
    decode,
    exact_gelu,
    save_drafter,
    source_rows,
    task_for,
    tiny_blockwise,
    tiny_drafter,
    tiny_model,
    tiny_reordered,
    tiny_task,
)
from support.chance import assert_uniform
from support.commands import PLUGIN, run_python, succeed
from torch import Tensor, nn

from fairseq_paradec.criterions.blockwise_loss import BlockwiseLoss, ahead
from fairseq_paradec.decoding.engine.chunk import ChunkScorer
from fairseq_paradec.errors import UsageError
from fairseq_paradec.models.blockwise_transformer import (
    BlockHeads,
    BlockwiseTransformer,
    HeadsOutput,
    heads_only,
    load_heads,
)

pytestmark = pytest.mark.usefixtures("exact_softmax")

LAYERS = ("dense", "per_head")
BASES = [variant for variant in VARIANTS if not variant.startswith("adaptive")]
MODEL = DEMO / "model.pt"
PAD, EOS = 1, 2

#: Sentence pairs, `</s>` counted; some targets are shorter than the heads look ahead.
SOURCE_LENGTHS = (8, 5, 3, 2)
TARGET_LENGTHS = (6, 1, 9, 3)

layers = pytest.mark.parametrize("layer", LAYERS)
firsts = pytest.mark.parametrize("first", [False, True], ids=["identity", "first"])
variants = pytest.mark.parametrize("variant", BASES)


# ---- models, batches, files ---------------------------------------------------------------------


def build(task: Any, arch: str = "blockwise_transformer", **options: Any) -> BlockwiseTransformer:
    """A new model of this architecture with these flags, as fairseq builds it."""
    args = Namespace(**options)
    ARCH_CONFIG_REGISTRY[arch](args)
    model: BlockwiseTransformer = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    model.flags = args  # as they stand in a checkpoint
    return model


def exact(model: BlockwiseTransformer) -> BlockwiseTransformer:
    """The model with a GELU that does not round to float32."""
    exact_gelu(model)
    heads = model.block_heads
    if heads.activation is utils.get_activation_fn("gelu"):
        heads.activation = torch.nn.functional.gelu
    return model


def save(task: Any, model: Any, path: Path, arch: str = "transformer") -> str:
    """Write a model to a checkpoint as fairseq-train does."""
    cfg = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    cfg["task"] = {**asdict(task.cfg), "_name": "translation"}
    cfg["model"] = Namespace(**vars(model.flags) | {"arch": arch, "task": "translation"})
    state = {"args": None, "cfg": cfg, "model": model.state_dict()}
    history = {"criterion_name": "X", "lr_scheduler_state": {}, "num_updates": 1}
    torch.save(state | {"optimizer_history": [history], "extra_state": {}}, path)
    return str(path)


def base_file(task: Any, variant: str, folder: Path, **options: Any) -> tuple[Any, str]:
    """A Transformer of one of VARIANTS in float32, and its checkpoint."""
    model = tiny_model(task, variant, torch.float32, **options)
    return model, save(task, model, folder / f"{variant}.pt", VARIANTS[variant][0])


def pairs(task: Any, targets: Sequence[int] = TARGET_LENGTHS, seed: int = 0) -> dict[str, Any]:
    """A batch of random sentence pairs, as fairseq's dataset makes it."""
    generator = torch.Generator().manual_seed(seed)

    def row(length: int, words: Any) -> Tensor:
        tokens = torch.randint(4, len(words), (length,), generator=generator)
        tokens[-1] = EOS
        return tokens

    source_words, words = task.source_dictionary, task.target_dictionary
    source = [row(SOURCE_LENGTHS[i % 4], source_words) for i in range(len(targets))]
    target = [row(length, words) for length in targets]
    dataset = LanguagePairDataset(
        source, [len(r) for r in source], source_words,
        target, [len(r) for r in target], words, shuffle=False,
    )  # fmt: skip
    sample: dict[str, Any] = dataset.collater([dataset[i] for i in range(len(source))])
    return sample


def rows_of(sample: Mapping[str, Any]) -> list[tuple[list[int], list[int]]]:
    """The batch's sources and targets without padding, as the twin wants them."""
    targets = [[t for t in row if t != PAD] for row in sample["target"].tolist()]
    return list(zip(source_rows(sample), targets, strict=True))


def loss_of(task: Any, heads: str = "one", smoothing: float = 0.1) -> BlockwiseLoss:
    """The loss with these flags."""
    return BlockwiseLoss(task, smoothing, heads)


def fixed(criterion: BlockwiseLoss, head: int) -> BlockwiseLoss:
    """The loss, that always draws this head."""
    criterion.draw_heads = lambda trained: [head]  # type: ignore[method-assign]
    return criterion


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Every parameter's gradient; forgets them."""
    found = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


def same_weights(a: Any, b: Any) -> bool:
    """Whether two modules have the same weights, bit by bit."""
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(mine[k].equal(other[k]) for k in mine)


# ---- the heads' arithmetic against the twin ------------------------------------------------------


def random_heads(
    k: int = 4, layer: str = "dense", first: bool = False, activation: str = "relu"
) -> BlockHeads:
    """Heads in float64 over states of 6 dimensions, with 5 hidden units each."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(k)
        heads = BlockHeads(k, 6, 5, layer, first, activation).double().eval()
        for weight in heads.parameters():
            weight.normal_()
    if activation == "gelu":
        heads.activation = torch.nn.functional.gelu  # fairseq's rounds to float32
    return heads


def twins_outputs(heads: BlockHeads, states: Tensor, layer: str, first: bool, name: str) -> Tensor:
    """What the twin makes of each state, ...×k×D."""
    weights = dict(heads.named_parameters())
    flat = [
        torch.stack(twin.outputs(weights, state, heads.block_size, layer, first, name))
        for state in states.reshape(-1, states.size(-1))
    ]
    return torch.stack(flat).view(*states.shape[:-1], heads.block_size, states.size(-1))


@layers
@firsts
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("k", [1, 4])
def test_heads_are_the_twins(k: int, activation: str, first: bool, layer: str) -> None:
    """Of states of any leading shape."""
    heads = random_heads(k, layer, first, activation)
    torch.manual_seed(0)
    for shape in ((6,), (3, 6), (2, 3, 6), (2, 1, 3, 6)):
        states = torch.randn(shape, dtype=torch.float64)
        found = heads(states, range(k))
        want = twins_outputs(heads, states, layer, first, activation)
        torch.testing.assert_close(found, want, atol=1e-12, rtol=0)
        torch.testing.assert_close(heads.first(states), want[..., 0, :], atol=1e-12, rtol=0)
    if k > 1:
        assert (found[..., 1:, :] - states.unsqueeze(-2)).abs().min(-1).values.max() > 1e-3


@layers
@firsts
def test_new_heads_are_all_the_base(first: bool, layer: str) -> None:
    task = tiny_task()
    base = tiny_model(task, "default", torch.float32)
    options = vars(base.flags) | {"fine_tune_base": True, "train_first_head": first}
    model = build(task, **options, head_layer=layer).eval()
    net_input = pairs(task)["net_input"]
    with torch.no_grad():
        hidden = model(**net_input, heads=range(8)).hidden
        states, _ = model.decoder(
            net_input["prev_output_tokens"],
            encoder_out=model.encoder(net_input["src_tokens"], net_input["src_lengths"]),
            features_only=True,
        )
    assert model.args.block_size == 8, "the paper's fastest is the default"
    assert hidden.equal(states.unsqueeze(2).expand_as(hidden))
    inner = model.block_heads.inner.weight
    assert inner.shape == ((8 if first else 7) * 32, 16) and inner.std() > 0.05, "32 hidden units"


# ---- p_1 ----------------------------------------------------------------------------------------


@layers
@variants
@torch.no_grad()
def test_a_first_head_that_is_learned_is_p1(variant: str, layer: str) -> None:
    """The decoder's forward, all its heads, and the package's own decoder, against the twin."""
    task, _ = built(variant)
    model = exact(tiny_blockwise(task, variant, train_first_head=True, head_layer=layer))
    sample = pairs(task)
    net_input = sample["net_input"]
    scores = model(**net_input)[0]
    heads: HeadsOutput = model(**net_input, heads=[0, 1, 2, 3])
    every = heads.hidden @ heads.projection.T
    scorer = ChunkScorer(model)
    scorer.encode(net_input)
    chunk = scorer.log_probs(scorer.step(net_input["prev_output_tokens"]))
    for b, (source, target) in enumerate(rows_of(sample)):
        width = len(target)
        want = twin.logits_of(model, source, [EOS, *target[:-1]])
        torch.testing.assert_close(every[b, :width], want, atol=1e-9, rtol=0)
        torch.testing.assert_close(scores[b, :width], want[:, 0], atol=1e-9, rtol=0)
        log_probs = want[:, 0].log_softmax(dim=-1)
        torch.testing.assert_close(chunk[b, :width], log_probs, atol=1e-9, rtol=0)
    assert (every[..., 0, :] - built(variant)[1](**net_input)[0]).abs().max() > 0.1, "it matters"


# ---- the base's checkpoint ----------------------------------------------------------------------


@variants
@torch.no_grad()
def test_a_base_is_copied_whole(variant: str, tmp_path: Path) -> None:
    """Weights and settings; nothing but the heads is new; its file is needed only once."""
    task = task_for(variant)
    base, path = base_file(task, variant, tmp_path)
    model = build(task, base_path=path, block_size=3).eval()
    mine, its = model.state_dict(), base.state_dict()
    new = {f"decoder.heads.{name}" for name in ("inner.weight", "inner.bias", "outer", "bias")}
    assert set(mine) - set(its) == new and set(its) <= set(mine)
    assert all(mine[name].equal(weight) for name, weight in its.items())
    net_input = pairs(task)["net_input"]
    torch.testing.assert_close(model(**net_input)[0], base(**net_input)[0], atol=1e-4, rtol=0)
    for weight in model.block_heads.parameters():
        weight.normal_(std=0.1)
    assert model.flags.base_copied
    again = save(task, model, tmp_path / "again.pt", "blockwise_transformer")
    Path(path).unlink()
    (loaded,), _, _ = checkpoint_utils.load_model_ensemble_and_task([again], task=task)
    assert type(loaded) is BlockwiseTransformer and same_weights(loaded.eval(), model)
    assert loaded.is_frozen
    hidden = loaded(**net_input, heads=[0, 2]).hidden
    want = model(**net_input, heads=[0, 2]).hidden
    torch.testing.assert_close(hidden, want, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Transformer's checkpoint."""
    return base_file(tiny_task(), "default", tmp_path_factory.mktemp("base"))[1]


@pytest.mark.parametrize(
    "name, given",
    [("encoder_layers", 3), ("decoder_ffn_embed_dim", 64), ("activation_fn", "gelu"),
     ("decoder_learned_pos", True), ("share_all_embeddings", True)],
)  # fmt: skip
def test_flags_that_are_not_the_bases_are_refused(name: str, given: object, plain: str) -> None:
    flag = "--" + name.replace("_", "-")
    message = f"^{flag}: got {given!r}; allowed: .*, as in --base-path .*default.pt"
    with pytest.raises(UsageError, match=message):
        build(tiny_task(), base_path=plain, **{name: given})


def test_a_base_of_another_kind_or_dictionary_is_refused(tmp_path: Path) -> None:
    task = tiny_task()
    reordered, heads = tiny_reordered(tiny_task()), tiny_blockwise(task)
    for path, message in (
        (base_file(tiny_task(size=50), "default", tmp_path)[1], "encoder embeds 50 symbols.*40"),
        (save_drafter(task, tiny_drafter(task), tmp_path / "nat.pt"), "Transformer"),
        (save(task, reordered, tmp_path / "ib.pt", "ibdecoder_tiny"), "ReorderedTransformer"),
        (save(task, heads, tmp_path / "h.pt", "blockwise_transformer"), "BlockwiseTransformer"),
    ):
        with pytest.raises(UsageError, match=f"^--base-path: got .*{message}"):
            build(task, base_path=path)


# ---- wrong flags --------------------------------------------------------------------------------


def test_a_block_of_one_needs_something_to_train(plain: str) -> None:
    task = tiny_task()
    with pytest.raises(UsageError, match="^--block-size: got 1; .*--fine-tune-base.*--train-first"):
        build(task, base_path=plain, block_size=1)
    tuned = build(task, base_path=plain, block_size=1, fine_tune_base=True)
    assert tuned.trained_heads == [0] and tuned.block_heads.learned == []
    first = build(task, base_path=plain, block_size=1, train_first_head=True)
    assert first.trained_heads == first.block_heads.learned == [0]
    sample = pairs(task)
    for model in (tuned, first):
        for heads in ("one", "all"):
            loss, size, logging = loss_of(task, heads)(model.train(), sample)
            loss.backward()
            assert size == logging["scored_at"].item() == sum(TARGET_LENGTHS)


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "--base-path: got None; allowed: .*--fine-tune-base"),
        ({"fine_tune_base": True, "block_size": 0}, "--block-size: got 0; allowed: .*from 1"),
        ({"fine_tune_base": True, "head_layer": "sparse"}, "--head-layer: got 'sparse'; .*dense"),
        ({"fine_tune_base": True, "adaptive_softmax_cutoff": [9]}, "--adaptive-softmax-cutoff: "),
    ],
)
def test_wrong_flags_of_the_model_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        build(tiny_task(), **options)


def test_wrong_flags_of_the_loss_are_named() -> None:
    with pytest.raises(UsageError, match="^--label-smoothing: got 1.5; allowed"):
        loss_of(tiny_task(), smoothing=1.5)
    with pytest.raises(UsageError, match="^--heads-per-update: got 'two'; allowed: one, all"):
        loss_of(tiny_task(), heads="two")


# ---- frozen, or fine tuned ----------------------------------------------------------------------

DROPOUTS = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.2}


@layers
@firsts
def test_a_frozen_base_is_never_trained(first: bool, layer: str, plain: str) -> None:
    task = tiny_task()
    options: dict[str, Any] = {"train_first_head": first, "head_layer": layer, "block_size": 3}
    model = build(task, base_path=plain, decoder_layerdrop=0.5, **options, **DROPOUTS)
    model.eval()
    model.train()
    frozen = [m for name, m in model.named_modules() if name and "heads" not in name]
    assert model.training and not any(module.training for module in frozen)
    assert all(module.training for module in model.block_heads.modules())
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    states = []
    model.block_heads.register_forward_pre_hook(lambda module, given: states.append(given[0]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    criterion, sample = loss_of(task, "all"), pairs(task)
    for _ in range(3):
        loss, _, _ = criterion(model, sample)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert states[0].equal(states[1]) and states[0].equal(states[2]), "no dropout"
    assert not states[0].requires_grad
    for name, weight in model.named_parameters():
        is_head = name.startswith("decoder.heads.")
        assert weight.requires_grad is is_head and (weight.grad is not None) is is_head, name
    for name, weight in model.state_dict().items():
        assert weight.equal(before[name]) is not name.startswith("decoder.heads."), name
    assert not any(module.training for module in model.eval().modules())


# ---- the loss against its twin ------------------------------------------------------------------


def tuned(task: Any, layer: str = "dense", first: bool = False, **options: Any) -> Any:
    """A tiny model in float64 whose base is fine tuned, without dropout, in training mode."""
    options = {"fine_tune_base": True, "dropout": 0.0, "head_layer": layer} | options
    return exact(tiny_blockwise(task, train_first_head=first, **options)).train()


def teach(model: Any, sample: dict[str, Any], updates: int = 12) -> None:
    """Let the model be right at some places."""
    criterion = loss_of(tiny_task(), "all")
    optimizer = torch.optim.Adam([w for w in model.parameters() if w.requires_grad], lr=0.01)
    for _ in range(updates):
        loss, _, _ = criterion(model.train(), sample)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.zero_grad(set_to_none=True)


@layers
@firsts
def test_loss_and_gradients_are_the_twins(first: bool, layer: str) -> None:
    """Each head's, drawn by itself; and the mean of all."""
    task, smoothing = tiny_task(), 0.1
    model = tuned(task, layer, first)
    sample = pairs(task, seed=3)
    want = twin.loss_of(model, rows_of(sample), smoothing)
    assert [head.scored for head in want.heads] == [19, 15, 12, 9]
    weights = dict(model.named_parameters())
    for heads in ([0], [1], [2], [3], [0, 1, 2, 3]):
        criterion = loss_of(task, "all" if len(heads) > 1 else "one", smoothing)
        if len(heads) == 1:
            fixed(criterion, heads[0])
        loss, sample_size, logging = criterion(model, sample)
        loss.backward()
        assert sample_size == logging["sample_size"] == want.heads[heads[0]].scored
        mean = want.mean(heads)
        assert loss.item() / sample_size == pytest.approx(mean.item(), abs=1e-9)
        assert logging["loss"].item() == loss.item() and not logging["loss"].requires_grad
        nll = [want.heads[i].nll_loss / want.heads[i].scored for i in heads]
        assert float(logging["nll_loss"]) / sample_size == pytest.approx(
            sum(nll) / len(nll), abs=1e-9
        )
        counted = [i in heads for i in range(4)]
        scored = [head.scored * c for head, c in zip(want.heads, counted, strict=True)]
        right = [head.right * c for head, c in zip(want.heads, counted, strict=True)]
        assert logging["scored_at"].tolist() == scored
        assert logging["right_at"].tolist() == right
        assert "accepted" not in logging and "blocks" not in logging
        assert (logging["nsentences"], logging["ntokens"]) == (4, 19)
        found = gradients(model)
        others = torch.autograd.grad(
            mean * sample_size, list(weights.values()), retain_graph=True, allow_unused=True
        )
        for name, other in zip(weights, others, strict=True):
            mine = found[name]
            if mine is None or other is None:
                assert all(g is None or (g == 0).all() for g in (mine, other)), name
            else:
                torch.testing.assert_close(mine, other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("heads", ["one", "all"])
@torch.no_grad()
def test_validation_has_all_heads_and_no_chance(heads: str) -> None:
    task = tiny_task()
    model = tuned(task, "per_head", fine_tune_base=heads == "all", dropout=0.3)
    sample = pairs(task, seed=3)
    with torch.enable_grad():
        teach(model, sample)
    model.eval()
    want = twin.loss_of(model, rows_of(sample), 0.1)
    criterion = loss_of(task, heads)
    state = torch.random.get_rng_state()
    loss, sample_size, logging = criterion(model, sample)
    assert torch.random.get_rng_state().equal(state), "nothing is drawn"
    assert sample_size == want.heads[0].scored == 19
    assert loss.item() / 19 == pytest.approx(want.mean(range(4)).item(), abs=1e-9)
    assert logging["scored_at"].tolist() == [head.scored for head in want.heads]
    assert logging["right_at"].tolist() == [head.right for head in want.heads]
    assert logging["blocks"] == len(want.accepted) == 19
    assert 0 < logging["accepted"] == sum(want.accepted) < int(logging["right_at"].sum())
    torch.manual_seed(99)
    again, _, _ = criterion(model, sample)
    assert again.equal(loss)


# ---- targets, and what is counted ---------------------------------------------------------------


def test_targets_are_shifted_and_nothing_follows() -> None:
    target = torch.tensor([[5, 6, 7, 2], [8, 2, 1, 1], [2, 1, 1, 1]])
    assert ahead(target, 0, PAD).equal(target)
    assert ahead(target, 1, PAD).tolist() == [[6, 7, 2, 1], [2, 1, 1, 1], [1, 1, 1, 1]]
    assert ahead(target, 3, PAD).tolist() == [[2, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]
    for head in (4, 5, 50):
        assert ahead(target, head, PAD).eq(PAD).all()
    assert target.tolist() == [[5, 6, 7, 2], [8, 2, 1, 1], [2, 1, 1, 1]]


class Scripted(nn.Module):
    """Says what it is told to: `said[b][t][i]` is head i's most likely token."""

    def __init__(self, said: list[list[list[int]]], trained: list[int]) -> None:
        super().__init__()
        self.said = torch.tensor(said)
        self.block_heads = Namespace(block_size=self.said.size(2))
        self.trained_heads = trained
        self.asked: list[list[int]] = []

    def forward(self, heads: list[int]) -> HeadsOutput:
        self.asked.append(heads)
        hidden = nn.functional.one_hot(self.said[:, :, heads], 10).double() * 9
        return HeadsOutput(hidden.requires_grad_(), torch.eye(10, dtype=torch.float64))


#: Sentences `5 6 7 </s>` and `8 </s>`; head 0 is right but at the third token, head 1 but at the
#: second, head 2 always. Where there is nothing to predict, something is said, too.
SAID = [
    [[5, 6, 7], [6, 9, 2], [4, 2, 1], [2, 1, 1]],
    [[8, 2, 1], [2, 1, 1], [1, 1, 1], [1, 1, 1]],
]
SAMPLE = {
    "target": torch.tensor([[5, 6, 7, 2], [8, 2, 1, 1]]),
    "net_input": {},
    "ntokens": 6,
}


def test_what_is_counted_by_hand() -> None:
    """Blocks of three right tokens, one, none, one (the rest is over), two, one."""
    model = Scripted(SAID, [1, 2]).eval()
    _, sample_size, logging = loss_of(tiny_task())(model, SAMPLE)
    assert model.asked == [[0, 1, 2]] and sample_size == 6
    assert logging["scored_at"].tolist() == [6, 4, 2]
    assert logging["right_at"].tolist() == [5, 3, 2]
    assert (logging["blocks"], logging["accepted"]) == (6, 3 + 1 + 0 + 1 + 2 + 1)
    assert logged([logging])["accepted"] == pytest.approx(8 / 6, abs=1e-3)
    _, sample_size, logging = fixed(loss_of(tiny_task()), 1)(model.train(), SAMPLE)
    assert model.asked[1] == [1] and sample_size == 4
    assert logging["scored_at"].tolist() == [0, 4, 0]
    assert logging["right_at"].tolist() == [0, 3, 0]
    _, sample_size, logging = loss_of(tiny_task(), "all")(model, SAMPLE)
    assert model.asked[2] == [1, 2] and sample_size == 4
    assert logging["scored_at"].tolist() == [0, 4, 2]


def logged(outputs: list[dict[str, Any]]) -> dict[str, float]:
    """What fairseq's log says of some batches."""
    with metrics.aggregate() as log:
        BlockwiseLoss.reduce_metrics(outputs)
    return {name: float(value) for name, value in log.get_smoothed_values().items()}


# ---- the head that is drawn ---------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 8])
def test_heads_are_uniform_over_updates(count: int) -> None:
    """fairseq seeds each update anew, with its number: only first draws of a seed are used.

    Neighbours are as chance has them, too: no head follows another more often.
    """
    criterion, heads = loss_of(tiny_task()), list(range(count))
    drawn = []
    for seed in range(1, 6001):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed without a GPU's, slow to ask
        drawn.append(criterion.draw_heads(heads)[0])
    assert_uniform(torch.tensor(drawn).bincount(minlength=count).tolist())
    follows = [a * count + b for a, b in zip(drawn, drawn[1:], strict=False)]
    assert_uniform(torch.tensor(follows).bincount(minlength=count**2).tolist())


# ---- heads beside their base --------------------------------------------------------------------


def shrink(path: str | Path, out: Path, dtype: torch.dtype | None = None) -> Path:
    """Leave the heads of a checkpoint, as a file; in another precision."""
    state = torch.load(path, weights_only=False)
    weights = heads_only(state["model"])
    state["model"] = {name: w.to(dtype or w.dtype) for name, w in weights.items()}
    torch.save(state, out)
    return out


@dataclass
class Files:
    """A base, a model with heads on it, and their files."""

    task: Any
    base: Any
    model: Any
    folder: Path
    whole: str
    heads: str

    def outputs(self, model: Any, path: object = None) -> list[tuple[list[int], list[float], int]]:
        """Tokens, scores and number of passes by --decoding blockwise."""
        sample = batch(self.task, [9, 3, 6, 2])
        flags = {"drafter_path": None if path is None else str(path)}
        hypos = decode(self.task, [model], sample, Limits(), decoding="blockwise", **flags)
        return [(h["tokens"].tolist(), h["positional_scores"].tolist(), h["steps"]) for h in hypos]


@pytest.fixture(scope="module", params=["default", "bart"])
def files(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("files")
    task = task_for(request.param)
    base = tiny_model(task, request.param, torch.float32)
    model = tiny_blockwise(task, request.param, torch.float32, block_size=3)
    sample = pairs(task, (9, 12, 10, 8) * 4, seed=1)
    for source, row in zip(source_rows(sample), sample["target"], strict=True):  # greedy's outputs
        tokens = full_greedy(base, source, 12)
        row.fill_(PAD)
        row[: len(tokens)] = torch.tensor(tokens)[: len(row)]
    sample["net_input"]["prev_output_tokens"][:, 1:] = sample["target"][:, :-1]
    teach(model, sample, 40)
    model.eval()
    whole = save(task, model, folder / "whole.pt", "blockwise_transformer")
    heads = str(shrink(whole, folder / "heads.pt"))
    return Files(task, base, model, folder, whole, heads)


def full_greedy(model: Any, source: list[int], limit: int) -> list[int]:
    """Greedy's output, cut at a limit."""
    tokens: list[int] = []
    while len(tokens) < limit and EOS not in tokens:
        tokens.append(int(full_log_probs(model, source, tokens)[-1].argmax()))
    return tokens


def test_a_file_of_heads_is_small_and_decodes_as_the_whole(files: Files) -> None:
    names = torch.load(files.heads, weights_only=False)["model"].keys()
    assert {name for name in names if "heads" in name} == {
        f"decoder.heads.{name}" for name in ("inner.weight", "inner.bias", "outer", "bias")
    }
    others = [name for name in names if "heads" not in name]
    assert others and all(name.startswith("decoder.layers.1.") for name in others)
    size = sum(files.base.state_dict()[name].numel() for name in others)
    assert size < 20 * 16, "some vectors"
    want = files.outputs(files.model)
    assert any(passes < len(tokens) for tokens, _, passes in want), "the heads are of use"
    for path in (files.heads, files.whole):
        for (tokens, scores, passes), other in zip(
            files.outputs(files.base, path), want, strict=True
        ):
            assert (tokens, passes) == (other[0], other[2])
            assert scores == pytest.approx(other[1], abs=1e-4)
        assert same_weights(load_heads(path, files.base), files.model.block_heads)


def test_another_base_is_refused(files: Files, tmp_path: Path) -> None:
    """Another training of it, another size, or the tuned one's weights with the old base."""
    other = tiny_model(files.task, "default", torch.float32, seed=1)
    message = "^--drafter-path: got .*trained on the model of --path"
    for path in (files.heads, files.whole):
        with pytest.raises(UsageError, match=message):
            files.outputs(other, path)
    variant = "bart" if files.base.decoder.layernorm_embedding is not None else "default"
    model = tiny_blockwise(
        files.task, variant, torch.float32, fine_tune_base=True, dropout=0.0, block_size=3
    )
    teach(model, pairs(files.task))
    path = save(files.task, model, tmp_path / "tuned.pt", "blockwise_transformer")
    for tuned_path in (path, str(shrink(path, tmp_path / "tuned-heads.pt"))):
        with pytest.raises(UsageError, match=message):
            load_heads(tuned_path, files.base)


def test_files_without_heads_are_refused(files: Files, tmp_path: Path) -> None:
    task = tiny_task()
    stock = save(task, files.base, tmp_path / "plain.pt")
    nat = save_drafter(task, tiny_drafter(task), tmp_path / "nat.pt")
    for path, arch in ((stock, "transformer"), (nat, "block_nat")):
        message = f"^--drafter-path: got .*--arch blockwise_transformer.*this is {arch}$"
        with pytest.raises(UsageError, match=message):
            files.outputs(files.base, path)


# ---- fairseq-train and fairseq-generate ---------------------------------------------------------

#: Runs fairseq's commands one after the other in one process; prints what is refused, heads drawn.
COMMANDS = """
import json, sys
from fairseq_cli import train  # first: it says where to log
from fairseq.utils import import_user_module
from argparse import Namespace
import_user_module(Namespace(user_dir=json.loads(sys.argv[1])[0][-1]))
cls = sys.modules["fairseq_paradec.criterions.blockwise_loss"].BlockwiseLoss
original = cls.draw_heads
def draw_heads(self, trained):
    heads = original(self, trained)
    print("HEADS", *heads, flush=True)
    return heads
cls.draw_heads = draw_heads
for number, (name, *command) in enumerate(json.loads(sys.argv[1])):
    print("COMMAND", number, flush=True)
    sys.argv = ["fairseq-" + name, *command]
    try:
        train.cli_main()
    except Exception as error:
        if type(error).__name__ != "UsageError":
            raise
        print("REFUSED", error, flush=True)
"""

TRAIN = (
    "--optimizer adam --lr 0.001 --max-tokens 400 --no-epoch-checkpoints --no-progress-bar "
    "--log-format json --log-interval 1 --num-workers 0 --cpu --seed 3 --train-subset test "
    "--valid-subset test"
).split()
SEED = 3
BLOCK = ["--block-size", "3", "--base-path", str(MODEL)]
HEADS = ["--arch", "blockwise_transformer_tiny", *BLOCK]
STOCK = "--arch transformer_iwslt_de_en --encoder-layers 1 --decoder-layers 1".split()
LOSS = ["--criterion", "blockwise_loss"]
QUICK = ["--disable-validation"]
OTHER_LOSS = ["--criterion", "label_smoothed_cross_entropy"]


@dataclass
class Runs:
    """The folder of all models, and what each command printed."""

    folder: Path
    printed: dict[str, str]

    def heads(self, name: str) -> list[list[int]]:
        """The heads drawn in each update."""
        lines = re.findall(r"^HEADS (.*)$", self.printed[name], flags=re.MULTILINE)
        return [[int(head) for head in line.split()] for line in lines]

    def updates(self, name: str) -> dict[int, dict[str, str]]:
        """What was logged in training, by number of updates."""
        lines = [json.loads(m) for m in re.findall(r"train_inner \| (.*)", self.printed[name])]
        return {int(line["num_updates"]): line for line in lines}

    def state(self, name: str) -> dict[str, Any]:
        """The last checkpoint of a training."""
        path = self.folder / name / "checkpoint_last.pt"
        return torch.load(path, map_location="cpu", weights_only=False)


def train(*options: object, updates: int = 1, to: Path | None = None) -> list[object]:
    """fairseq-train's arguments, on the demo's sentences."""
    where = ["--no-save"] if to is None else ["--save-dir", to]
    return ["train", DEMO, *TRAIN, *options, "--max-update", updates, *where]


def run_commands(folder: Path, commands: Mapping[str, list[object]]) -> Runs:
    """Run commands in a process."""
    given = [[str(item) for item in (*c, "--user-dir", PLUGIN)] for c in commands.values()]
    result = succeed(run_python(COMMANDS, json.dumps(given), cwd=folder))
    parts = re.split(r"^COMMAND \d+$", result.stdout, flags=re.MULTILINE)[1:]
    return Runs(folder, dict(zip(commands, parts, strict=True)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("runs")
    straight, resumed, tune = (folder / name for name in ("straight", "resumed", "tuned"))
    all_heads = ["--heads-per-update", "all", "--head-layer", "per_head"]
    yield run_commands(
        folder,
        {
            "other loss": train(*HEADS, *OTHER_LOSS),
            "other model": train(*STOCK, *LOSS),
            "left pad": train(*HEADS, *LOSS, "--left-pad-target"),
            "block size": train(*STOCK, *OTHER_LOSS, "--block-size", 3),
            "straight": train(*HEADS, *LOSS, updates=5, to=straight),
            "half": train(*HEADS, *LOSS, *QUICK, updates=3, to=resumed),
            "resumed": train(*HEADS, *LOSS, *QUICK, updates=5, to=resumed),
            "tuned": train(
                *HEADS, *LOSS, *QUICK, "--fine-tune-base", "--train-first-head", *all_heads,
                to=tune,
            ),
        },
    )  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_training_refuses_by_name(runs: Runs) -> None:
    for name, message in (
        ("other loss", "--criterion: got 'LabelSm.*blockwise_loss with --arch blockwise_transfor"),
        ("other model", "--criterion: got 'blockwise_loss'.*--arch blockwise_transformer"),
        ("left pad", "--left-pad-target: got True"),
        ("block size", "--block-size: got 3; .*fairseq's own search decodes"),
    ):
        (refused,) = re.findall(r"^REFUSED (.*)$", runs.printed[name], flags=re.MULTILINE)
        assert re.match(message, refused)


@pytest.mark.slow
def test_training_draws_a_head_for_every_update(runs: Runs) -> None:
    """By the update's number, so that going on draws what would have been drawn."""
    want = []
    for update in range(5):
        torch.manual_seed(SEED + update)
        want.append([1 + int(torch.randint(2, ()))])
    assert runs.heads("straight") == runs.heads("half") + runs.heads("resumed") == want
    assert want.count([1]) in (1, 2, 3, 4)
    assert list(runs.updates("half")) == [1, 2, 3] and list(runs.updates("resumed")) == [4, 5]
    for update, (head,) in enumerate(want, start=1):
        line = runs.updates("straight")[update]
        known = [name for name in line if name.startswith("acc_") and line[name] is not None]
        assert known == [f"acc_{head + 1}"]
    for name in ("accepted", "acc_1", "acc_2", "acc_3"):  # of the subset that is called test
        assert f'"test_{name}": ' in runs.printed["straight"]
    assert runs.heads("tuned") == [[0, 1, 2]]


@pytest.mark.slow
def test_the_optimizer_has_the_heads_alone(runs: Runs) -> None:
    base = torch.load(MODEL, weights_only=True)["model"]
    for name, updates in (("straight", 5), ("resumed", 5)):
        state = runs.state(name)
        assert state["optimizer_history"][-1]["num_updates"] == updates
        optimizer = state["last_optimizer_state"]
        shapes = sorted(tuple(s["exp_avg"].shape) for s in optimizer["state"].values())
        heads = {n: w for n, w in state["model"].items() if n.startswith("decoder.heads.")}
        assert shapes == sorted(tuple(weight.shape) for weight in heads.values())
        assert all(int(s["step"]) == updates for s in optimizer["state"].values())
        assert all(weight.abs().max() > 0 for weight in heads.values()), "each was moved"
        for key, weight in base.items():
            assert state["model"][key].equal(weight.float()), key
    tuned_state = runs.state("tuned")["model"]
    assert not tuned_state["encoder.layers.0.fc1.weight"].equal(
        base["encoder.layers.0.fc1.weight"].float()
    )


def test_damaged_heads_are_named(files: Files, tmp_path: Path) -> None:
    """A tensor is missing, or the number of heads is another than the file says."""
    for harm in ("missing", "size"):
        state = torch.load(files.heads, weights_only=True)
        if harm == "missing":
            del state["model"]["decoder.heads.outer"]
        else:
            state["model"]["decoder.heads.bias"] = state["model"]["decoder.heads.bias"][:-1]
        path = tmp_path / f"{harm}.pt"
        torch.save(state, path)
        with pytest.raises(UsageError, match="^--drafter-path: got .*undamaged"):
            load_heads(str(path), files.base)
