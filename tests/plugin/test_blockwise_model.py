"""Blockwise heads and their loss: exact against a slow twin, and what flags and files promise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from reference import blockwise as twin
from support import builders
from support.builders import VARIANTS, built, task_for, tiny_blockwise, tiny_model, tiny_task
from support.chance import assert_uniform
from support.losses import build, logged, pairs, rows_of, same_weights, teach
from torch import nn

from fairseq_paradec.engine.chunk import ChunkScorer
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin.models.heads import BlockHeads
from fairseq_paradec.training.criterions.blockwise_loss import BlockwiseLoss, BlockwiseLossConfig

pytestmark = pytest.mark.usefixtures("exact_softmax")

ARCH = "blockwise_transformer"
HEADS = {f"decoder.heads.{name}" for name in ("inner.weight", "inner.bias", "outer", "bias")}

layers = pytest.mark.parametrize("layer", ["dense", "per_head"])
firsts = pytest.mark.parametrize("first", [False, True], ids=["identity", "first"])


def base_file(folder: Path, variant: str = "default", task: Any = None) -> tuple[Any, str]:
    """A Transformer of one of VARIANTS in float32, and its checkpoint."""
    task = task or task_for(variant)
    model, path = tiny_model(task, variant, torch.float32), folder / f"{variant}.pt"
    return model, builders.save_drafter(task, model, path, VARIANTS[variant][0])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Transformer's checkpoint."""
    return base_file(tmp_path_factory.mktemp("base"))[1]


def loss_of(heads: str = "one", smoothing: float = 0.1, first: float = 1.0) -> BlockwiseLoss:
    """The loss with these flags."""
    flags = {"heads_per_update": heads, "first_head_weight": first}
    return BlockwiseLoss(BlockwiseLossConfig(label_smoothing=smoothing, **flags), tiny_task())


@layers
@firsts
@pytest.mark.parametrize("seen", [0, 4], ids=["paper", "see the token"])
@pytest.mark.parametrize("k, activation", [(1, "relu"), (4, "relu"), (4, "gelu")])
@torch.no_grad()
def test_heads_are_the_twins(k: int, activation: str, seen: int, first: bool, layer: str) -> None:
    """Of states of any leading shape; some heads, and all."""
    torch.manual_seed(k)
    heads = BlockHeads(k, 6, 5, layer, first, activation, seen=seen).double().eval()
    for weight in heads.parameters():
        weight.normal_()
    if activation == "gelu":
        heads.activation = nn.functional.gelu  # fairseq's rounds to float32
    states, tokens = torch.randn(2, 3, 6).double(), torch.randn(2, 3, seen).double()
    twins, pairs = twin.heads_of(heads, activation), (states.flatten(0, 1), tokens.flatten(0, 1))
    flat = [torch.stack([twins(s, i, t) for i in range(k)]) for s, t in zip(*pairs, strict=True)]
    want = torch.stack(flat).view(2, 3, k, 6)
    for part in ((0, 0), (0,), (), (slice(None), None)):
        given = tokens[part] if seen else None
        for chosen in (range(k), range(k // 2, k)):
            found = heads(states[part], chosen, given)
            torch.testing.assert_close(found, want[part][..., chosen, :], atol=1e-12, rtol=0)
        first_output = heads.first(states[part])
        torch.testing.assert_close(first_output, want[part][..., 0, :], atol=1e-12, rtol=0)


@layers
@firsts
@torch.no_grad()
def test_new_heads_are_all_the_base(first: bool, layer: str) -> None:
    task = tiny_task()
    options = vars(tiny_model(task, "default").flags)
    options |= {"fine_tune_base": True, "train_first_head": first, "head_layer": layer}
    model, net_input = build(task, ARCH, **options).eval(), pairs(task)["net_input"]
    hidden = model(**net_input, heads=range(8)).hidden
    encoded = model.encoder(net_input["src_tokens"], net_input["src_lengths"])
    given = {"encoder_out": encoded, "features_only": True}
    states, _ = model.decoder(net_input["prev_output_tokens"], **given)
    assert model.args.block_size == 8, "the paper's fastest is the default"
    assert hidden.equal(states.unsqueeze(2).expand_as(hidden))
    inner = model.block_heads.inner.weight
    assert inner.shape == ((8 if first else 7) * 32, 16) and inner.std() > 0.05, "32 hidden units"


@layers
@pytest.mark.parametrize("variant", ["default", "no_final_norm", "output_dim", "share_all", "gelu"])
@torch.no_grad()
def test_a_first_head_that_is_learned_is_p1(variant: str, layer: str) -> None:
    """The decoder's forward, all its heads, and the package's own decoder, against the twin."""
    task, base = built(variant)
    model = tiny_blockwise(task, variant, train_first_head=True, head_layer=layer)
    if variant == "gelu":
        builders.exact_gelu(model)
        model.block_heads.activation = nn.functional.gelu
    sample = pairs(task)
    net_input = sample["net_input"]
    scores, heads = model(**net_input)[0], model(**net_input, heads=range(4))
    every = heads.hidden @ heads.projection.T
    scorer = ChunkScorer(model)
    scorer.encode(net_input["src_tokens"].numpy())
    chunk = scorer.log_probs(scorer.step(net_input["prev_output_tokens"]))
    for b, (source, target) in enumerate(rows_of(sample)):
        width, want = len(target), twin.logits_of(model, source, [2, *target[:-1]])
        first = want[:, 0]
        for found, it in ((every, want), (scores, first), (chunk, first.log_softmax(dim=-1))):
            torch.testing.assert_close(found[b, :width], it, atol=1e-9, rtol=0)
    assert (scores - base(**net_input)[0]).abs().max() > 0.1, "it matters"


@pytest.mark.parametrize("variant", [name for name in VARIANTS if not name.startswith("adaptive")])
@torch.no_grad()
def test_a_base_is_copied_whole(variant: str, tmp_path: Path) -> None:
    """Weights and settings; nothing but the heads is new; its file is needed only once."""
    task, (base, path) = task_for(variant), base_file(tmp_path, variant)
    model = build(task, ARCH, base_path=path, block_size=3).eval()
    mine, its = model.state_dict(), base.state_dict()
    assert set(mine) - set(its) == HEADS and set(its) <= set(mine)
    assert all(mine[name].equal(weight) for name, weight in its.items())
    net_input = pairs(task)["net_input"]
    torch.testing.assert_close(model(**net_input)[0], base(**net_input)[0], atol=1e-4, rtol=0)
    for weight in model.block_heads.parameters():
        weight.normal_(std=0.1)
    assert model.flags.base_copied
    again = builders.save_drafter(task, model, tmp_path / "again.pt", arch=ARCH)
    Path(path).unlink()
    (loaded,), _, _ = checkpoint_utils.load_model_ensemble_and_task([again], task=task)
    assert loaded.is_frozen and same_weights(loaded.eval(), model)
    found, want = (one(**net_input, heads=[0, 2]).hidden for one in (loaded, model))
    torch.testing.assert_close(found, want, atol=1e-4, rtol=0)


def test_what_cannot_be_is_named(tmp_path: Path, plain: str) -> None:
    task, tuned = tiny_task(), {"fine_tune_base": True}
    _, other = base_file(tmp_path, task=tiny_task(size=50))
    ib, blockwise = (
        builders.save_drafter(task, make(tiny_task()), tmp_path / f"{arch}.pt", arch)
        for make, arch in ((builders.tiny_reordered, "ibdecoder_tiny"), (tiny_blockwise, ARCH))
    )
    for options, message in (
        ({"base_path": plain, "encoder_layers": 3}, "--encoder-layers: got 3; allowed: 2, as in"),
        ({"base_path": plain, "activation_fn": "gelu"}, "--activation-fn: got 'gelu'; .*relu, as"),
        ({"base_path": other}, "--base-path: got .*encoder embeds 50 symbols.*40"),
        ({"base_path": ib}, "--base-path: got .*ReorderedTransformer"),
        ({"base_path": blockwise, "block_size": 3}, "--block-size: got 3; allowed: 4, as in --b"),
        ({"base_path": blockwise, "head_layer": "per_head"}, "--head-layer: .*allowed: dense, as"),
        ({"base_path": plain, "block_size": 1}, "--block-size: got 1; .*--fine-tune-base"),
        ({}, "--base-path: got None; allowed: .*--fine-tune-base"),
        ({**tuned, "block_size": 0}, "--block-size: got 0; allowed: .*from 1"),
        ({**tuned, "head_layer": "sparse"}, "--head-layer: got 'sparse'; .*dense"),
        ({**tuned, "adaptive_softmax_cutoff": [9]}, "--adaptive-softmax-cutoff: "),
    ):
        with pytest.raises(UsageError, match=f"^{message}"):
            build(task, ARCH, **options)
    with pytest.raises(UsageError, match="^--label-smoothing: got 1.5; allowed"):
        loss_of(smoothing=1.5)
    with pytest.raises(UsageError, match="^--heads-per-update: got 'two'; allowed: one, all"):
        loss_of("two")
    for heads, weight in (("all", 0.0), ("one", 2.0)):
        with pytest.raises(UsageError, match=f"^--first-head-weight: got {weight}"):
            loss_of(heads, first=weight)


@layers
@firsts
@pytest.mark.parametrize("saw, sees", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("had", [False, True], ids=["of the identity", "of a first head"])
def test_frozen_heads_are_a_start_for_fine_tuning(
    tmp_path: Path, had: bool, saw: bool, sees: bool, first: bool, layer: str
) -> None:
    """Its outputs are theirs; a first head that is new is the identity, and all is trained.

    Heads that see the token keep it; those that are to see it start as they were.
    """
    task, sample = tiny_task(), pairs(tiny_task())
    options = {"head_layer": layer, "train_first_head": had, "dtype": torch.float32}
    frozen = tiny_blockwise(task, heads_see_token=saw, **options)
    path = builders.save_drafter(task, frozen, tmp_path / "frozen.pt", ARCH)
    own = {"fine_tune_base": True, "train_first_head": first, "dropout": 0.0}
    model = build(task, ARCH, base_path=path, heads_see_token=sees, **own)
    assert model.block_heads.seen == (16 if saw or sees else 0)
    heads, net_input = model.block_heads, sample["net_input"]
    assert (model.args.block_size, model.args.head_layer) == (4, layer)
    assert (heads.learned[0] == 0) == (first or had)
    with torch.no_grad():
        for chosen in (range(4), [1], [0, 2]):
            found, want = (one.eval()(**net_input, heads=chosen).hidden for one in (model, frozen))
            torch.testing.assert_close(found, want, atol=1e-5, rtol=0)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    teach(model.train(), loss_of("all"), [sample], 2)  # new hidden units learn behind the outputs
    for name, weight in model.named_parameters():
        assert not weight.equal(before[name]), name


@layers
@firsts
def test_a_frozen_base_is_never_trained(first: bool, layer: str, plain: str) -> None:
    task = tiny_task()
    options: dict[str, Any] = {"train_first_head": first, "head_layer": layer, "block_size": 3}
    options |= {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.2}
    model = build(task, ARCH, base_path=plain, decoder_layerdrop=0.5, **options).eval().train()
    frozen = [m for name, m in model.named_modules() if name and "heads" not in name]
    assert model.training and not any(module.training for module in frozen)
    assert all(module.training for module in model.block_heads.modules())
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    states: list[Any] = []
    model.block_heads.register_forward_pre_hook(lambda module, given: states.append(given[0]))
    teach(model, loss_of("all"), [pairs(task)], 3)
    assert states[0].equal(states[1]) and states[0].equal(states[2]), "no dropout"
    assert not states[0].requires_grad
    for name, weight in model.named_parameters():
        is_head = name in HEADS
        assert weight.requires_grad is is_head and (weight.grad is not None) is is_head, name
    for name, weight in model.state_dict().items():
        assert weight.equal(before[name]) is (name not in HEADS), name


def tuned(layer: str, **options: Any) -> Any:
    """A tiny model in float64 whose base is fine tuned, in training mode."""
    options = {"fine_tune_base": True, "dropout": 0.0, "head_layer": layer} | options
    return tiny_blockwise(tiny_task(), **options).train()


@layers
@firsts
@pytest.mark.parametrize("sees", [False, True], ids=["paper", "see the token"])
def test_loss_and_gradients_are_the_twins(sees: bool, first: bool, layer: str) -> None:
    """Each head's, drawn by itself; and the mean of all."""
    model = tuned(layer, train_first_head=first, heads_see_token=sees)
    sample = pairs(tiny_task(), seed=3)
    want, _ = twin.losses_of(model, rows_of(sample), 0.1)
    assert [head.scored for head in want] == [21, 17, 14, 11]
    every = [0, 1, 2, 3]
    for heads, weight in (([0], 1), ([1], 1), ([2], 1), ([3], 1), (every, 1), (every, 10)):
        criterion = loss_of("all" if len(heads) > 1 else "one", first=weight)
        criterion.draw_heads = lambda trained, heads=heads: heads
        model.zero_grad()
        loss, sample_size, logging = criterion(model, sample)
        loss.backward()
        assert sample_size == logging["sample_size"] == want[heads[0]].scored
        mean = twin.mean(want, heads, weight)
        assert loss.item() / sample_size == pytest.approx(mean.item(), abs=1e-9)
        assert logging["loss"].item() == loss.item() and not logging["loss"].requires_grad
        times = {i: 1 if i else weight for i in heads}
        nll = sum(times[i] * want[i].nll_loss / want[i].scored for i in heads) / sum(times.values())
        assert float(logging["nll_loss"]) / sample_size == pytest.approx(nll, abs=1e-9)
        for name in ("scored", "right"):
            counts = [getattr(head, name) * (i in heads) for i, head in enumerate(want)]
            assert logging[f"{name}_at"].tolist() == counts
        assert "accepted" not in logging and "blocks" not in logging
        assert (logging["nsentences"], logging["ntokens"]) == (4, 21)
        weights = dict(model.named_parameters())
        how = {"retain_graph": True, "allow_unused": True}
        others = torch.autograd.grad(mean * sample_size, list(weights.values()), **how)
        for (name, weight), other in zip(weights.items(), others, strict=True):
            none = torch.zeros_like(weight)
            mine, theirs = (none if g is None else g for g in (weight.grad, other))
            torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-9, msg=name)


@pytest.mark.parametrize("heads", ["one", "all"])
def test_validation_has_all_heads_and_no_chance(heads: str) -> None:
    model = tuned("per_head", fine_tune_base=heads == "all", dropout=0.3)
    sample, criterion = pairs(tiny_task(), seed=3), loss_of(heads)
    teach(model, loss_of("all"), [sample])
    want, accepted = twin.losses_of(model.eval(), rows_of(sample), 0.1)
    state = torch.random.get_rng_state()
    loss, sample_size, logging = criterion(model, sample)
    assert torch.random.get_rng_state().equal(state), "nothing is drawn"
    assert sample_size == want[0].scored == 21
    assert loss.item() / 21 == pytest.approx(twin.mean(want, range(4)).item(), abs=1e-9)
    assert logging["scored_at"].tolist() == [head.scored for head in want]
    assert logging["right_at"].tolist() == [head.right for head in want]
    assert logging["blocks"] == len(accepted) == 21
    assert 0 < logging["accepted"] == sum(accepted) < int(logging["right_at"].sum())
    assert logged(criterion, [[logging]])["accepted"] == pytest.approx(sum(accepted) / 21, abs=1e-3)


@pytest.mark.parametrize("count", [2, 8])
def test_heads_are_uniform_over_updates(count: int) -> None:
    """fairseq seeds each update anew, with its number: only first draws of a seed are used.

    Neighbours are as chance has them, too: no head follows another more often.
    """
    criterion, heads = loss_of(), list(range(count))
    drawn = []
    for seed in range(1, 6001):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed without a GPU's, slow to ask
        drawn.append(criterion.draw_heads(heads)[0])
    assert_uniform(torch.tensor(drawn).bincount(minlength=count).tolist())
    follows = [a * count + b for a, b in zip(drawn, drawn[1:], strict=False)]
    assert_uniform(torch.tensor(follows).bincount(minlength=count**2).tolist())
