"""GAD's drafter and its loss: exact against a slow twin, and what their flags promise."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.distributed import utils as distributed_utils
from reference import block_nat as twin
from support.builders import (
    DEMO,
    DRAFTER_BLOCK_SIZE,
    demo,
    save_drafter,
    tiny_drafter,
    tiny_model,
    tiny_task,
)
from support.chance import assert_drawn, assert_uniform
from support.losses import build, logged, pairs, rows_of, same_weights, teach
from torch import Tensor

from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin.models import block_nat
from fairseq_paradec.plugin.models.block_nat import MASK, BlockNatModel
from fairseq_paradec.training.criterions.block_nat_loss import (
    BlockNatLoss,
    BlockNatLossConfig,
    blocks,
)
from fairseq_paradec.training.criterions.projected_cross_entropy import projected_cross_entropy

pytestmark = pytest.mark.usefixtures("exact_softmax")

BIDIRECTIONAL, CAUSAL = "bidirectional", "prefix_causal"
SIZE = DRAFTER_BLOCK_SIZE
VERIFIER = str(DEMO / "model.pt")


def loss_of(**options: Any) -> BlockNatLoss:
    """The loss with its default flags, but for these."""
    defaults = {"glancing_updates": 300, "max_update": 0, "max_epoch": 0}
    config = BlockNatLossConfig(**defaults | options)
    return BlockNatLoss.build_criterion(config, tiny_task())


def run_model(
    model: BlockNatModel, sample: dict[str, Any], starts: Tensor, ratio: float = 0.0
) -> tuple[block_nat.BlockOutput, Tensor]:
    """Run the model as the loss does; also returns the true tokens, B×J×K."""
    drawn = torch.ones_like(starts, dtype=torch.bool)
    truth = blocks(sample["target"], starts, drawn, model.block_size, 1)
    source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
    given = {"target": sample["target"], "starts": starts, "truth": truth}
    return model(**source, **given, glancing_ratio=ratio), truth


def starts_for(sample: dict[str, Any], count: int) -> Tensor:
    """Prefix lengths from 0..n for each row, B×J; the last row's first is n, the longest's 0."""
    targets = [target for _, target in rows_of(sample)]
    torch.manual_seed(0)
    rows = [torch.randint(len(target), (count,)) for target in targets]
    rows[-1][0] = len(targets[-1]) - 1
    rows[max(range(len(rows)), key=lambda b: len(targets[b]))][-1] = 0
    return torch.stack(rows)


def spied(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The calls of a function: what goes in, what comes out, and whether with gradients."""
    calls: list[Any] = []
    original = getattr(owner, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        kept = result.clone() if isinstance(result, Tensor) else result
        calls.append((args, kept, torch.is_grad_enabled()))
        return result

    monkeypatch.setattr(owner, name, function)
    return calls


@pytest.mark.parametrize("copy", [False, True], ids=["masks, post-norm", "soft-copy, sinusoids"])
@pytest.mark.parametrize("attention, count", [(BIDIRECTIONAL, 1), (CAUSAL, 1), (CAUSAL, 3)])
@torch.no_grad()
def test_features_are_the_twins(attention: str, count: int, copy: bool) -> None:
    task = tiny_task()
    norms = {"encoder_normalize_before": copy, "decoder_normalize_before": copy}
    places = "sinusoidal" if copy else "learned"
    model = tiny_drafter(task, attention, soft_copy=copy, drafter_positions=places, **norms)
    assert model.decoder.embed_scale == (4 if copy else 1)
    sample = pairs(task, seed=count)
    source, target = sample["net_input"]["src_tokens"], sample["target"]
    assert source[1, 0] == 1, "sources are padded on the left"
    starts = starts_for(sample, count)
    output, truth = run_model(model, sample, starts)
    shown = torch.where((torch.rand(truth.shape) < 0.35) & truth.ne(1), truth, MASK)
    assert shown.eq(MASK).any() and shown.ne(MASK).any()
    encoded = model.encoder(source, src_lengths=sample["net_input"]["src_lengths"])
    features, scored = model.decoder(target, starts, shown, encoded), iter(output.logits)
    assert features.shape == (4, count, SIZE, 16)
    for b, (source, target) in enumerate(rows_of(sample)):
        for j, start in enumerate(starts[b].tolist()):
            slots = [None if token == MASK else token for token in shown[b, j].tolist()]
            want = twin.block_features(model, source, target[:start], slots, attention)
            torch.testing.assert_close(features[b, j], want, atol=1e-10, rtol=0)
            logits = twin.block_logits(model, source, target[:start], [None] * SIZE, attention)
            for i in range(min(SIZE, len(target) - start)):
                torch.testing.assert_close(next(scored), logits[i], atol=1e-10, rtol=0)
    assert next(scored, None) is None, "something after </s> is scored"


@pytest.mark.parametrize("ratio, masks, decay", [(None, 2, 0.7), (0.5, SIZE, 0.7), (0.5, 2, 1.0)])
@pytest.mark.parametrize("attention, prefixes", [(BIDIRECTIONAL, 1), (CAUSAL, 3)])
def test_loss_is_the_twins(
    monkeypatch: pytest.MonkeyPatch,
    attention: str,
    prefixes: int,
    ratio: float | None,
    masks: int,
    decay: float,
) -> None:
    """A ratio of None is validation: always as many masks as at most, and all weigh the same."""
    task, training = tiny_task(), ratio is not None
    model = tiny_drafter(task, attention, dropout=0.0, soft_copy=True)
    sample = pairs(task, 3, seed=5)
    ratios = {"glancing_ratio": ratio or 0.0, "glancing_ratio_end": ratio or 0.0}
    criterion = loss_of(prefixes_per_sentence=prefixes, position_decay=decay, **ratios)
    teach(model, loss_of(glancing_ratio=0.0), [sample], 15)
    monkeypatch.setattr(model, "draw_block_size", lambda: masks)
    size = masks if training else SIZE
    draws, rand = spied(monkeypatch, criterion, "draw_prefixes"), spied(monkeypatch, torch, "rand")
    torch.manual_seed(3)
    loss, sample_size, logging = criterion(model.train(training), sample)

    starts, drawn = draws[0][1]
    lots = rand[-1][1]
    if training:
        assert lots.shape == (12, starts.size(1), size) and len(rand) == 2
    want = [
        twin.train_block(
            model.eval(),
            source,
            target,
            int(starts[b, j]),
            size,
            attention,
            0.1,
            ratio or 0.0,
            lots[b, j].tolist() if training else (),
            decay=decay if training else 1.0,
        )
        for b, (source, target) in enumerate(rows_of(sample))
        for j in range(starts.size(1))
        if drawn[b, j]
    ]
    assert sample_size == logging["sample_size"] == sum(sum(w.scored) for w in want)
    assert loss.item() == pytest.approx(sum(w.loss for w in want), rel=1e-5)
    assert float(logging["loss"]) == loss.item() and not logging["loss"].requires_grad
    assert float(logging["nll_loss"]) == pytest.approx(sum(w.nll_loss for w in want), rel=1e-5)
    for name in ("scored", "right"):
        counts = [sum(getattr(w, name)[i] for w in want) for i in range(size)]
        assert logging[f"{name}_at"].tolist() == counts + [0] * (SIZE - size)
    assert 0 < int(logging["right_at"].sum()) < sample_size, "some are right"
    assert logging["nsentences"] == 12 and logging["ntokens"] == sample["ntokens"]
    if training:
        assert any(any(s is not None for s in w.slots) for w in want), "something is revealed"
        assert "accepted" not in logging
    else:
        assert logging["accepted"] == sum(w.accepted for w in want) > 0
        assert logging["accepted"] < int(logging["right_at"].sum()), "some come after a wrong one"
        assert logging["blocks"] == len(want) == int(drawn.sum())


@pytest.mark.parametrize(
    "rows, smoothing, weighed",
    [(0, 0.1, False), (64, 0.0, False), (150, 0.1, False), (99, 0.1, True)],
)
def test_the_loss_without_logits_is_fairseqs(rows: int, smoothing: float, weighed: bool) -> None:
    """With its gradients; on the CPU 64 rows have logits at a time."""
    torch.manual_seed(rows)
    hidden = torch.randn(rows, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(20, 8, dtype=torch.float64, requires_grad=True)
    answers = torch.randint(20, (rows,))
    logits = hidden @ weight.T
    shares = torch.rand(rows, dtype=torch.float64) if weighed else None
    each = label_smoothed_nll_loss(logits.log_softmax(dim=-1), answers, smoothing, reduce=False)
    loss = (each[0].flatten() * (1 if shares is None else shares)).sum()
    nll_loss = each[1].sum()
    want = loss, nll_loss, logits.argmax(dim=-1).eq(answers)
    want += torch.autograd.grad(loss * 3, (hidden, weight))
    found = projected_cross_entropy(hidden, weight, answers, smoothing, shares)
    gradients = torch.autograd.grad(found.loss * 3, (hidden, weight))
    for mine, other in zip((*found, *gradients), want, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=1e-10)
    assert not found.nll_loss.requires_grad and not found.right.requires_grad


def target_of(lengths: Sequence[int]) -> Tensor:
    """Targets of these lengths, `</s>` counted, padded at the end."""
    target = torch.full((len(lengths), max(lengths)), 1)
    for row, length in zip(target, lengths, strict=True):
        row[:length] = torch.arange(length - 1, -1, -1) + 2
    return target


@pytest.mark.parametrize("prefixes", [1, 3])
def test_prefix_lengths_are_uniform_and_not_repeated(prefixes: int) -> None:
    """From 0 (no prefix) to n (only `</s>` is left to predict)."""
    torch.manual_seed(1)
    criterion = loss_of(prefixes_per_sentence=prefixes)
    starts, drawn = criterion.draw_prefixes(target_of([7, 9, 4] * 2000), training=True)
    assert starts.shape == drawn.shape == (6000, prefixes) and drawn.all()
    for row, length in enumerate([7, 9, 4]):
        mine = starts[row::3].sort(dim=1).values
        assert (mine.diff(dim=1) > 0).all()
        for column in starts[row::3].T:
            counts = column.bincount().tolist()
            assert len(counts) == length
            assert_uniform(counts)


@pytest.mark.parametrize("prefixes, spacing", [(1, 3), (3, 8)])
def test_long_sentences_have_more_prefixes(prefixes: int, spacing: int) -> None:
    """One for every so many tokens, but no fewer than any sentence has."""
    lengths = [16, 1, 17, 3, 40]
    wanted = [min(max(prefixes, math.ceil(n / spacing)), n) for n in lengths]
    criterion = loss_of(prefixes_per_sentence=prefixes, tokens_per_prefix=spacing)
    for training in (True, False):
        starts, drawn = criterion.draw_prefixes(target_of(lengths), training)
        assert starts.size(1) == max(wanted)
        for row, mask, length, number in zip(starts, drawn, lengths, wanted, strict=True):
            found = row[mask].tolist()
            assert len(set(found)) == len(found) == number and set(found) <= set(range(length))


@pytest.mark.parametrize("share, spacing", [(0.5, 0), (0.4, 2), (1.0, 0)])
def test_prefixes_behind_errors_are_the_twins(
    monkeypatch: pytest.MonkeyPatch, share: float, spacing: int
) -> None:
    """Tried as in decoding, without dropout; uniform ones where errors are missing."""
    task = tiny_task()
    model = tiny_drafter(task, CAUSAL, dropout=0.3, soft_copy=True)
    sample = pairs(task, 3, seed=5)
    teach(model, loss_of(glancing_ratio=0.0), [sample], 15)
    settings = {"tokens_per_prefix": spacing, "glancing_ratio": 0.0, "glancing_ratio_end": 0.0}
    criterion = loss_of(prefixes_after_errors=share, **settings)
    draws, rand = spied(monkeypatch, criterion, "draw_prefixes"), spied(monkeypatch, torch, "rand")
    criterion(model.train(), sample)
    assert model.decoder.training and len(draws) == 2 and len(rand) == 3
    (tried, is_tried), (starts, drawn) = (found for _, found, _ in draws)
    lots, more, met, uniform = rand[1][1], rand[2][1], 0, 0
    for b, (source, target) in enumerate(rows_of(sample)):
        wanted = max(1, math.ceil(len(target) / spacing)) if spacing else 1
        trials = tried[b][is_tried[b]].tolist()
        assert len(trials) == min(4 * wanted, len(target))
        behind = twin.behind_errors(model.eval(), source, target, trials, SIZE)
        given = lots[b, : len(target)].tolist(), behind, wanted, share, more[b].item()
        want = twin.draw_prefixes(*given)
        assert set(starts[b][drawn[b]].tolist()) == want
        met, uniform = met + len(want & behind), uniform + len(want - behind)
    assert met > 1 and uniform > 1
    criterion(model, sample)
    assert draws[2][1][0].equal(loss_of(**settings).draw_prefixes(sample["target"], False)[0])
    assert len(draws) == 3, "validation is uniform"


def test_block_sizes_are_whole_or_uniform() -> None:
    model = tiny_drafter(tiny_task(), random_block_size=True)
    torch.manual_seed(2)
    sizes = torch.tensor([model.draw_block_size() for _ in range(3000)])
    shares = [0.5 / SIZE] * (SIZE - 1) + [0.5 + 0.5 / SIZE]
    assert_drawn(sizes.bincount()[1:].tolist(), shares)
    assert tiny_drafter(tiny_task()).draw_block_size() == SIZE


def test_validation_draws_the_same_each_time_and_leaves_the_seed_alone() -> None:
    criterion, target = loss_of(prefixes_per_sentence=2), target_of([9] * 50)
    state = torch.random.get_rng_state()
    first = criterion.draw_prefixes(target, training=False)[0]
    assert state.equal(torch.random.get_rng_state())
    torch.manual_seed(2)
    assert first.equal(criterion.draw_prefixes(target, training=False)[0])
    assert len(first[:, 0].unique()) == 9, "and not the same for every sentence"
    assert not criterion.draw_prefixes(target, training=True)[0].equal(first)


@pytest.mark.parametrize("attention", [BIDIRECTIONAL, CAUSAL])
def test_the_first_pass_has_the_seconds_dropout_and_no_gradient(
    monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    task, dropouts = tiny_task(), {"dropout": 0.3, "attention_dropout": 0.2}
    model = tiny_drafter(task, attention, soft_copy=True, **dropouts).train()
    sample = pairs(task)
    starts = starts_for(sample, 1)
    passes = spied(monkeypatch, model.decoder, "forward")
    with monkeypatch.context() as patch:
        patch.setattr(block_nat, "reveal", lambda truth, *_: torch.full_like(truth, MASK))
        masks = spied(patch, block_nat, "reveal")
        torch.manual_seed(1)
        with_glance, _ = run_model(model, sample, starts, ratio=0.5)
        after = torch.rand(5)
    (_, first, learns), (_, second, also) = passes
    assert first.equal(second) and (learns, also) == (False, True)
    assert not first.requires_grad and second.requires_grad
    assert masks[0][0][1].any(), "something is wrong"
    torch.manual_seed(1)
    without, _ = run_model(model, sample, starts, ratio=0.0)
    assert len(passes) == 3 and without.logits.equal(with_glance.logits)
    assert after.equal(torch.rand(5)), "what comes next is drawn as without a glance"
    assert not run_model(model, sample, starts)[0].logits.equal(without.logits), "dropout is on"


@pytest.mark.parametrize(
    "options, points",
    [
        ({}, [(0, 1, 0.5), (150, 9, 0.4), (300, 1, 0.3), (301, 1, 0.3), (10**6, 1, 0.3)]),
        ({"max_update": 8, "max_epoch": 2}, [(150, 2, 0.4)]),
        ({"glancing_ratio": 0.0}, [(300, 1, 0.0)]),
        ({"glancing_updates": 0, "max_update": 600}, [(150, 9, 0.45), (600, 9, 0.3)]),
        ({"glancing_updates": 0, "max_epoch": 5}, [(10**6, 1, 0.5), (0, 2, 0.45), (9, 5, 0.3)]),
        ({"glancing_updates": 0, "max_epoch": 5, "max_update": 60}, [(45, 2, 0.35), (1, 4, 0.35)]),
        ({"glancing_updates": 0}, [(150_000, 9, 0.4)]),
    ],
)
def test_the_glancing_ratio_changes_linearly_and_stays(options: Any, points: Any) -> None:
    """Over given updates, the run's own, or its epochs."""
    criterion = loss_of(**options)
    for updates, epoch, ratio in points:
        criterion.task.begin_epoch(epoch, None)
        assert criterion.glancing_ratio(updates) == pytest.approx(ratio)


def test_training_alone_glances(monkeypatch: pytest.MonkeyPatch) -> None:
    criterion = loss_of()
    task = tiny_task()
    model, sample = tiny_drafter(task).train(), pairs(task)
    calls = spied(monkeypatch, block_nat, "reveal")
    model.set_num_updates(150)
    criterion(model, sample)
    assert calls[0][0][2] == pytest.approx(0.4)
    criterion(model.eval(), sample)
    loss_of(glancing_ratio=0.0, glancing_ratio_end=0.0)(model.train(), sample)
    assert len(calls) == 1, "neither in validation, nor at ratio 0"


def test_metrics_are_the_same_from_sums_and_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny_task()
    model, samples = tiny_drafter(task), [pairs(task, n, seed=n) for n in (1, 4, 2)]
    teach(model, loss_of(), samples[:1])
    criterion = loss_of(prefixes_per_sentence=2)
    outputs = [criterion(model.eval(), sample)[2] for sample in samples]
    assert criterion.logging_outputs_can_be_summed()
    want = logged(criterion, [outputs])
    total: Any = {name: sum(o[name] for o in outputs) for name in outputs[0]}
    nats = float(total["nll_loss"]) / total["sample_size"]
    assert want["nll_loss"] == pytest.approx(nats / math.log(2), abs=1e-3)
    for slot, (right, count) in enumerate(zip(total["right_at"], total["scored_at"], strict=True)):
        assert want[f"acc_{slot + 1}"] == pytest.approx(float(right / count), abs=1e-3)
    assert want["accepted"] == pytest.approx(float(total["accepted"] / total["blocks"]), abs=1e-3)
    # Each is weighted by what it is a mean of when the log joins several updates.
    assert logged(criterion, [[one] for one in outputs]) == pytest.approx(want, abs=2e-3)
    # As the trainer sums them, before and after two processes with the same outputs are reduced.
    assert logged(criterion, [[total]]) == pytest.approx(want, abs=2e-3)
    monkeypatch.setattr(distributed_utils, "all_reduce", lambda tensor, group: tensor.mul_(2))
    reduced = distributed_utils.all_reduce_dict(total, torch.device("cpu"), group=None)
    assert logged(criterion, [[reduced]]) == pytest.approx(want, abs=2e-3)


def test_what_cannot_be_is_named(tmp_path: Path) -> None:
    other = save_drafter(tiny_task(), tiny_drafter(tiny_task()), tmp_path / "other.pt")
    for options, message in (
        ({"drafter_block_size": 25, "max_target_positions": 24}, "--drafter-block-size: .*25.*24"),
        ({"share_verifier_encoder": True}, "--share-verifier-encoder needs --encoder-from"),
        ({"drafter_positions": "rotary"}, "--drafter-positions: .*rotary.*learned, sinusoidal"),
        ({"drafter_positions": "sinusoidal", "decoder_learned_pos": True}, "--decoder-learned-pos"),
        ({"encoder_from": VERIFIER, "encoder_layers": 3}, "--encoder-layers: .*3; .*4, .*model.pt"),
        ({"encoder_from": VERIFIER, "encoder_learned_pos": True}, "--encoder-learned-pos: "),
        ({"encoder_from": other}, "--encoder-from: got .*other.pt.*Transformer"),
    ):
        with pytest.raises(UsageError, match=f"^{message}"):
            build(tiny_task(), "block_nat_tiny", **options)
    wrong = {
        "glancing_ratio": 1.5,
        "position_decay": 1.1,
        "prefixes_per_sentence": 0,
        "prefixes_after_errors": -0.5,
    }
    for name, value in wrong.items():
        with pytest.raises(UsageError, match=f"^--{name.replace('_', '-')}: got {value}; allowed"):
            loss_of(**{name: value})


@torch.no_grad()
def test_encoder_from_copies_encoder_and_sizes_and_is_read_once(tmp_path: Path) -> None:
    """The demo's model has sinusoidal positions, ReLU and scaled embeddings."""
    (task, verifier, _), path = demo(), shutil.copy(VERIFIER, tmp_path)
    model = build(task, "block_nat", encoder_from=path, decoder_layers=2).eval()
    assert same_weights(model.encoder, verifier.encoder)
    assert model.decoder.embed_tokens.weight.equal(verifier.decoder.embed_tokens.weight)
    net_input = pairs(task)["net_input"]
    given = [net_input[name] for name in ("src_tokens", "src_lengths")]
    mine, other = (one.encoder(*given)["encoder_out"][0] for one in (model, verifier))
    assert mine.equal(other)
    assert all(weight.requires_grad for weight in model.encoder.parameters())
    assert len(model.decoder.layers) == 2 and model.decoder.layers[0].fc1.out_features == 256
    assert model.decoder.embed_scale == 1 and model.encoder.embed_scale == 128**0.5
    fast = build(task, "block_nat_fast", encoder_from=path)
    saved = save_drafter(task, fast, tmp_path / "fast.pt", "block_nat_fast")
    Path(path).unlink()
    (loaded,), _, _ = checkpoint_utils.load_model_ensemble_and_task([saved], task=task)
    assert loaded.shares_encoder and loaded.decoder.attention == CAUSAL
    assert same_weights(loaded, fast)


def test_a_shared_encoder_is_never_trained() -> None:
    task, verifier, _ = demo()
    model = build(
        task,
        "block_nat",
        encoder_from=VERIFIER,
        share_verifier_encoder=True,
        decoder_layers=1,
        soft_copy=True,
        drafter_block_size=SIZE,
        dropout=0.3,
    )
    assert model.eval().train().decoder.training
    assert not any(module.training for module in model.encoder.modules())
    before = model.decoder.embed_tokens.weight.clone()
    assert before.equal(verifier.decoder.embed_tokens.weight)
    teach(model, loss_of(), [pairs(task)], 3)
    assert same_weights(model.encoder, verifier.encoder)
    assert not model.decoder.embed_tokens.weight.equal(before), "the decoder's table is its own"
    assert model.decoder.output_projection.weight is model.decoder.embed_tokens.weight


@pytest.mark.parametrize("theirs, own", [(1, 1), (2, 2), (6, 4)])
def test_a_fast_drafter_has_four_layers_if_the_verifier_has(
    theirs: int, own: int, tmp_path: Path
) -> None:
    task = tiny_task()
    verifier = tiny_model(task, dtype=torch.float32, decoder_layers=theirs)
    path = save_drafter(task, verifier, tmp_path / "verifier.pt", "transformer")
    given = {"encoder_from": path, "max_target_positions": 24, "drafter_block_size": 4}
    assert len(build(task, "block_nat_fast", **given).decoder.layers) == own
    assert len(build(task, "block_nat_fast", **given, decoder_layers=2).decoder.layers) == 2


def test_decoder_layers_start_from_the_verifiers() -> None:
    task, verifier, _ = demo()
    given = {"encoder_from": VERIFIER, "decoder_layers": 3, "decoder_layerdrop": 0.5}
    drafter = build(task, "block_nat_fast", **given)
    assert drafter.flags.activation_fn == "relu" and drafter.flags.decoder_from_verifier
    theirs = verifier.decoder.layers
    for own, source in enumerate([0, 2, 3]):
        assert same_weights(drafter.decoder.layers[own], theirs[source])
    assert not same_weights(drafter.decoder.layers[0], theirs[1])
