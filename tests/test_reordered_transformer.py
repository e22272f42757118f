"""The reordered Transformers: presets, the forward pass, training, and decoding step by step."""

from __future__ import annotations

import argparse
import functools
import math
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.sequence_scorer import SequenceScorer
from omegaconf import OmegaConf
from reference import target_order as paper
from support.builders import (
    MAX_POSITIONS,
    Limits,
    batch,
    source_rows,
    tiny_model,
    tiny_reordered,
    tiny_task,
)
from support.orders import spec_of

from fairseq_paradec.decoding.engine.step import StepScorer
from fairseq_paradec.errors import UsageError
from fairseq_paradec.models.reordered_transformer import ReorderedTransformer
from fairseq_paradec.target_order import TargetOrder

pytestmark = pytest.mark.usefixtures("exact_softmax")

Pair = tuple[torch.Tensor, torch.Tensor]  # a source and a target, both with </s>

#: What each architecture writes like.
PRESETS: dict[str, TargetOrder] = {
    "ibdecoder": TargetOrder(2, 1),
    "ibdecoder_sa": TargetOrder(2, 2),
    "imdecoder": TargetOrder(4, 1),
    "sa_transformer": TargetOrder(1, 2),
    "transformer_r2l": TargetOrder(1, 1, right_to_left=True),
    "double_token": TargetOrder(2, 1, double_token=True),
    "double_token_l2r": TargetOrder(1, 2, double_token=True),
    "double_token_r2l": TargetOrder(1, 2, double_token=True, right_to_left=True),
}

#: Presets with options: every kind of position vectors, mask and step.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{arch: (arch, {}) for arch in PRESETS},
    "ibdecoder-learned": ("ibdecoder", {"decoder_learned_pos": True}),
    "imdecoder-learned": ("imdecoder", {"decoder_learned_pos": True}),
    "imdecoder-6x2": ("imdecoder", {"directions": 6, "tokens_per_direction": 2}),
    "sa-3": ("sa_transformer", {"tokens_per_direction": 3}),
    "sa-learned": ("sa_transformer", {"decoder_learned_pos": True}),
    "r2l-learned": ("transformer_r2l", {"decoder_learned_pos": True}),
    "double_token-sinusoids": ("double_token", {"decoder_learned_pos": False}),
    "ibdecoder-none": ("ibdecoder", {"no_token_positional_embeddings": True}),
    "ibdecoder-prenorm": (
        "ibdecoder_sa", {"encoder_normalize_before": True, "decoder_normalize_before": True},
    ),
    "middle": ("ibdecoder", {"middle_to_side": True}),
    "independent": ("ibdecoder_sa", {"independent_directions": True}),
    "vanilla_mask": ("ibdecoder_sa", {"vanilla_mask": True}),
    "vanilla_positions": ("ibdecoder", {"vanilla_positions": True}),
    "imdecoder-vanilla": (
        "imdecoder", {"vanilla_positions": True, "vanilla_mask": True},
    ),
    "imdecoder-independent": ("imdecoder", {"independent_directions": True}),
    "left_to_right": ("sa_transformer", {"tokens_per_direction": 1}),
}  # fmt: skip

every_preset = pytest.mark.parametrize("arch", PRESETS)
every_model = pytest.mark.parametrize("given", MODELS)


@functools.cache
def reordered(given: str, seed: int = 0) -> tuple[Any, ReorderedTransformer]:
    """A task and its model, one of MODELS: leave both as they are."""
    arch, options = MODELS[given]
    task = tiny_task()
    return task, tiny_reordered(task, arch, seed=seed, **options)


def pairs_of(lengths: Sequence[int], seed: int = 0, words: int = 40) -> list[Pair]:
    """Random sources and targets of these numbers of words."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for n in lengths:
        source = torch.randint(4, words, (n % 5 + 2,), generator=generator)
        source[-1] = 2
        target = torch.randint(4, words, (n + 1,), generator=generator)
        target[-1] = 2
        found.append((source, target))
    return found


def with_targets(task: Any, pairs: Sequence[Pair]) -> dict[str, Any]:
    """fairseq's own batch of these pairs."""
    source, target = [p[0] for p in pairs], [p[1] for p in pairs]
    dataset = LanguagePairDataset(
        source, [len(row) for row in source], task.source_dictionary,
        target, [len(row) for row in target], task.target_dictionary, shuffle=False,
    )  # fmt: skip
    sample: dict[str, Any] = dataset.collater([dataset[i] for i in range(len(pairs))])
    return sample


def words_of(sample: dict[str, Any]) -> list[list[int]]:
    """The batch's targets without `</s>` and padding."""
    return [[word for word in row if word not in (1, 2)] for row in sample["target"].tolist()]


class Backward:
    """All that a task's train_step asks of an optimizer."""

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def random_inputs(model: ReorderedTransformer, rows: int, steps: int, seed: int) -> torch.Tensor:
    """Start symbols, then random words: whole steps."""
    order = model.target_order
    generator = torch.Generator().manual_seed(seed)
    width = steps * order.tokens_per_step
    tokens = torch.randint(4, 40, (rows, width), generator=generator)
    tokens[:, : order.tokens_per_step] = torch.tensor(order.start(0, 2))
    return tokens


def full_forward(
    model: ReorderedTransformer, sample: dict[str, Any], inputs: torch.Tensor
) -> torch.Tensor:
    """The model's own log-probabilities, B×T×V."""
    net_input = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
    with torch.no_grad():
        logits, _ = model(**net_input, prev_output_tokens=inputs)
    return torch.log_softmax(logits, dim=-1)  # fairseq's own is always in fp32


# ---- presets ------------------------------------------------------------------------------------


@every_preset
def test_presets_are_the_papers(arch: str) -> None:
    """The order of each preset, and its sizes; a flag wins over the preset."""
    sizes = {
        "": (6, 512, 2048, 8), "_big": (6, 1024, 4096, 16), "_iwslt": (6, 512, 1024, 4),
        "_tiny": (4, 128, 256, 4),
    }  # fmt: skip
    for size, (layers, dim, ffn, heads) in sizes.items():
        args = argparse.Namespace()
        ARCH_CONFIG_REGISTRY[arch + size](args)
        for side in ("encoder", "decoder"):
            found = [getattr(args, f"{side}_{n}") for n in ("layers", "embed_dim", "ffn_embed_dim")]
            assert [*found, getattr(args, f"{side}_attention_heads")] == [layers, dim, ffn, heads]
        assert args.decoder_learned_pos == arch.startswith("double_token")
        args = argparse.Namespace(decoder_layers=2, decoder_learned_pos=False)
        ARCH_CONFIG_REGISTRY[arch + size](args)
        assert (args.decoder_layers, args.encoder_layers) == (2, layers)
        assert args.decoder_learned_pos is False
    _, model = reordered(arch)
    assert model.target_order == PRESETS[arch]


def plain_twin(**options: Any) -> Any:
    """A plain Transformer of tiny_reordered's sizes."""
    sizes = {"encoder_layers": 1, "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 32}
    return tiny_model(tiny_task(), **{"seed": 3} | sizes | options)


def save(task: Any, model: Any, path: Path) -> str:
    """Write a plain Transformer to a checkpoint, as fairseq-train does."""
    cfg = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    cfg["task"] = {**asdict(task.cfg), "_name": "translation"}
    cfg["model"] = argparse.Namespace(**vars(model.flags), arch="transformer")
    state = {"args": None, "cfg": cfg, "model": model.state_dict(), "extra_state": {}}
    history = {"criterion_name": "CrossEntropyCriterion", "lr_scheduler_state": {}}
    torch.save(state | {"optimizer_history": [history | {"num_updates": 1}]}, path)
    return str(path)


@every_preset
def test_training_may_start_from_a_plain_transformers_encoder(arch: str, tmp_path: Path) -> None:
    """--encoder-from: encoder and embeddings are its own, the decoder's layers are not."""
    plain = plain_twin(dtype=torch.float32)
    path = save(tiny_task(), plain, tmp_path / "plain.pt")
    task = tiny_task()
    args = argparse.Namespace(**vars(tiny_reordered(task, arch).flags))
    args.encoder_from = path
    model = task.build_model(args)
    for name, value in plain.encoder.state_dict().items():
        assert model.encoder.state_dict()[name].equal(value), name
    assert model.decoder.embed_tokens.weight.equal(plain.decoder.embed_tokens.weight)
    ours, theirs = (m.decoder.layers[0].fc1.weight for m in (model, plain))
    assert not ours.equal(theirs)
    # Its own checkpoint does not ask for the other one again.
    assert args.encoder_copied is True
    (tmp_path / "plain.pt").unlink()
    task.build_model(args)


def test_an_encoder_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Of another size, not there, or one that does other things with the same weights."""
    differences: list[dict[str, Any]] = [
        {"encoder_ffn_embed_dim": 48}, {"encoder_attention_heads": 4}, {"activation_fn": "gelu"},
        {"encoder_normalize_before": True}, {"no_scale_embedding": True},
    ]  # fmt: skip
    paths = [str(tmp_path / "none.pt")]
    for number, options in enumerate(differences):
        plain = plain_twin(dtype=torch.float32, **options)
        paths.append(save(tiny_task(), plain, tmp_path / f"{number}.pt"))
    for wrong in paths:
        with pytest.raises(UsageError, match="^--encoder-from: "):
            tiny_reordered(tiny_task(), "ibdecoder", encoder_from=wrong)


@pytest.mark.parametrize(
    "arch, options, flag",
    [
        ("ibdecoder", {"directions": 3}, "--directions"),
        ("ibdecoder", {"right_to_left": True}, "--right-to-left"),
        ("sa_transformer", {"middle_to_side": True}, "--middle-to-side"),
        ("sa_transformer", {"tokens_per_direction": 0}, "--tokens-per-direction"),
        ("double_token", {"tokens_per_direction": 2}, "--double-token"),
        ("transformer_r2l", {"vanilla_mask": True}, "--vanilla-mask"),
        ("double_token", {"vanilla_positions": True}, "--vanilla-positions"),
        ("transformer_r2l", {"independent_directions": True}, "--independent-directions"),
    ],
)
def test_contradictory_options_are_refused(arch: str, options: dict[str, Any], flag: str) -> None:
    """Before anything is built, with the flag's name."""
    with pytest.raises(UsageError, match=f"^{flag}: got "):
        tiny_reordered(tiny_task(), arch, **options)


@pytest.mark.parametrize("name", ["left_pad_target", "load_alignments"])
def test_settings_that_do_not_fit_are_refused(name: str) -> None:
    """Padding in front of a target, and alignments to it, are in natural order."""
    task = tiny_task()
    tiny_reordered(task, "ibdecoder")
    setattr(task.cfg, name, True)
    options = argparse.Namespace(
        _name="label_smoothed_cross_entropy", criterion="label_smoothed_cross_entropy",
        label_smoothing=0.1, sentence_avg=False, ignore_prefix_size=0, report_accuracy=False,
    )  # fmt: skip
    with pytest.raises(UsageError, match=f"^--{name.replace('_', '-')}: got True; allowed: ."):
        task.build_criterion(options)


@every_model
def test_positions_fill_whole_steps(given: str) -> None:
    """The longest output's inputs are whole steps, all of them within the model's positions."""
    _, model = reordered(given)
    z = model.target_order.tokens_per_step
    assert model.max_decoder_positions() == MAX_POSITIONS - MAX_POSITIONS % z
    inputs = random_inputs(model, 1, MAX_POSITIONS // z, seed=1)
    scores = full_forward(model, batch(tiny_task(), [5]), inputs)
    assert scores.shape[1] == model.max_decoder_positions()


# ---- the forward pass ---------------------------------------------------------------------------


@every_model
def test_the_forward_pass_is_the_twins(given: str) -> None:
    """Positions, directions and mask written down one by one, given to the decoder's layers."""
    task, model = reordered(given)
    spec = spec_of(model.target_order)
    sample = batch(task, [6, 3])
    inputs = random_inputs(model, 2, 3, seed=1)
    got = full_forward(model, sample, inputs)
    for b, source in enumerate(source_rows(sample)):
        with torch.no_grad():
            want = paper.log_probs(model, spec, source, [inputs[b].tolist()])
        torch.testing.assert_close(got[b], want[0], atol=1e-5, rtol=0)


@every_model
def test_what_a_row_sees_is_what_moves_it(given: str) -> None:
    """Another word in input j moves row i exactly where the formula lets i see j."""
    task, model = reordered(given)
    spec = spec_of(model.target_order)
    sample = batch(task, [5])
    inputs = random_inputs(model, 1, 3 if spec.z < 5 else 2, seed=2)
    base = full_forward(model, sample, inputs)[0]
    for j in range(inputs.size(1)):
        other = inputs.clone()
        other[0, j] = (int(inputs[0, j]) + 7) % 33 + 5
        moved = (full_forward(model, sample, other)[0] - base).abs().amax(dim=1)
        for i in range(inputs.size(1)):
            if paper.sees(spec, i, j):
                assert moved[i] > 1e-6, (i, j)
            else:
                assert moved[i] < 1e-12, (i, j)


@every_model
def test_a_ragged_batch_is_its_rows_alone(given: str) -> None:
    """Each row of a training batch, the longest one too, has the outputs that it has alone."""
    task, model = reordered(given)
    sample = with_targets(task, pairs_of([9, 4, 0, 7, 1, 10, 3]))
    written = task.in_model_order(sample)
    got = full_forward(model, sample, written["net_input"]["prev_output_tokens"])
    spec = spec_of(model.target_order)
    for b, (source, words) in enumerate(zip(source_rows(sample), words_of(sample), strict=True)):
        inputs, slots = paper.training_row(spec, words, bos=0, eos=2)
        with torch.no_grad():
            want = paper.log_probs(model, spec, source, [inputs])[0]
        count = len(slots)
        torch.testing.assert_close(got[b, :count], want[:count], atol=1e-5, rtol=0)


@every_model
def test_step_by_step_is_the_full_forward(given: str) -> None:
    """StepScorer's cache, in float64, all steps up to the last that the model has."""
    task, model = reordered(given)
    order, z = model.target_order, model.target_order.tokens_per_step
    sample = batch(task, [7, 3, 5])
    inputs = random_inputs(model, 3, MAX_POSITIONS // z, seed=3)
    want = full_forward(model, sample, inputs)
    seen = order.step_mask(inputs.size(1))
    scorer = StepScorer(model)
    with torch.no_grad():
        scorer.encode(sample["net_input"])
        for begin in range(0, inputs.size(1), z):
            end = begin + z
            hidden = scorer.step(inputs[:, begin:end], mask=seen[begin:end, :end])
            got = scorer.log_probs(hidden)
            torch.testing.assert_close(got, want[:, begin:end], atol=1e-9, rtol=0)
            scorer.keep([end] * 3)


# ---- training -----------------------------------------------------------------------------------


@every_model
def test_the_loss_is_the_twins(given: str) -> None:
    """Through the task's steps: loss, targets counted, and the gradient of every parameter."""
    arch, options = MODELS[given]
    task = tiny_task()
    model = tiny_reordered(task, arch, dropout=0.0, **options)
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    sample = with_targets(task, pairs_of([6, 1, 0, 9, 3]))
    natural = {name: value.clone() for name, value in sample["net_input"].items()}
    pairs = list(zip(source_rows(sample), words_of(sample), strict=True))
    spec = spec_of(model.target_order)
    want, plain, count = paper.smoothed_loss(model, spec, pairs, bos=0, eos=2, smoothing=0.1)
    want.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    loss, size, log = task.train_step(sample, model, criterion, Backward(), 0)
    assert float(loss) == pytest.approx(float(want), abs=1e-4)
    assert float(log["nll_loss"]) == pytest.approx(float(plain), abs=1e-4)
    assert size == log["ntokens"] == count
    assert len(gradients) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, gradients[name], atol=1e-3, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )
    loss, size, log = task.valid_step(sample, model, criterion)
    assert float(loss) == pytest.approx(float(want), abs=1e-4)
    assert (size, log["ntokens"]) == (count, count)
    assert all(natural[name].equal(value) for name, value in sample["net_input"].items())


def test_what_a_loss_may_not_ignore() -> None:
    """--ignore-prefix-size counts slots: they are the target's first words from the left only."""
    for arch, allowed in (("ibdecoder", False), ("sa_transformer", True)):
        task = tiny_task()
        tiny_reordered(task, arch)
        task.cfg.left_pad_target = False
        settings = argparse.Namespace(criterion="cross_entropy", sentence_avg=False)
        assert task.build_criterion(settings)
        settings = argparse.Namespace(
            criterion="label_smoothed_cross_entropy", sentence_avg=False, label_smoothing=0.1,
            ignore_prefix_size=2, report_accuracy=False,
        )  # fmt: skip
        if allowed:
            assert task.build_criterion(settings)
        else:
            with pytest.raises(UsageError, match="^--ignore-prefix-size: got 2; allowed: 0"):
                task.build_criterion(settings)


def test_a_batch_in_model_order() -> None:
    """The natural target is kept, the sample given is not touched; without a target, nothing."""
    task, _ = reordered("ibdecoder")
    sample = with_targets(task, pairs_of([5, 2]))
    target = sample["target"].clone()
    written = task.in_model_order(sample)
    assert sample["target"].equal(target) and "natural_target" not in sample
    assert written["natural_target"].equal(target)
    assert not written["target"].equal(target)
    assert written["ntokens"] == sample["ntokens"] == 9
    assert task.in_model_order(batch(task, [4])).get("target") is None
    assert task.in_model_order({}) == {}
    pairs, _ = reordered("double_token")
    assert pairs.in_model_order(sample)["ntokens"] == 10  # 5 words and </s>, 2 and two
    plain, _ = reordered("left_to_right")
    assert plain.in_model_order(sample) is sample


@every_preset
def test_scores_of_references_are_in_natural_order(arch: str) -> None:
    """--score-reference: each word's own log-probability, `</s>`'s last, of all EODs."""
    task, model = reordered(arch)
    sample = with_targets(task, pairs_of([5, 8, 1, 2]))
    scorer = task.build_generator([model], argparse.Namespace(score_reference=True))
    assert type(scorer) is SequenceScorer
    hypos = task.inference_step(scorer, [model], sample)
    spec = spec_of(model.target_order)
    rows = zip(source_rows(sample), words_of(sample), hypos, strict=True)
    for source, words, (hypo,) in rows:
        inputs, slots = paper.training_row(spec, words, bos=0, eos=2)
        with torch.no_grad():
            table = paper.log_probs(model, spec, source, [inputs])[0]
        scores = [float(table[slot, word]) for slot, word in enumerate(slots)]
        n = len(words)
        want = [*paper.read(spec, scores[:n]), sum(scores[n:])]
        assert hypo["tokens"].tolist() == [*words, 2]
        assert hypo["positional_scores"].tolist() == pytest.approx(want, abs=1e-4)
        assert float(hypo["score"]) == pytest.approx(sum(want) / (n + 1), abs=1e-4)


# ---- learning -----------------------------------------------------------------------------------

COPY_WORDS = 11  # the dictionary's size; 4 stands in front of every source, so that none is empty


def copy_pairs(generator: random.Random, count: int) -> list[Pair]:
    """Sentences of 0 to 6 words, to be copied."""
    found = []
    for _ in range(count):
        words = [generator.randrange(5, COPY_WORDS) for _ in range(generator.randrange(7))]
        found.append((torch.tensor([4, *words, 2]), torch.tensor([*words, 2])))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("arch", [*PRESETS, "ibdecoder-c3"])
def test_a_copy_task_is_learned_and_decoded(arch: str) -> None:
    """A layer each side, 250 updates; then its own search copies sentences it has not seen."""
    task = tiny_task(size=COPY_WORDS)
    options = {"tokens_per_direction": 3} if arch == "ibdecoder-c3" else {}
    args = argparse.Namespace(
        arch=arch.split("-")[0] + "_tiny", encoder_layers=1, decoder_layers=1,
        encoder_embed_dim=32, decoder_embed_dim=32, encoder_ffn_embed_dim=64,
        decoder_ffn_embed_dim=64, encoder_normalize_before=True, decoder_normalize_before=True,
        encoder_learned_pos=True, dropout=0.0,
        max_source_positions=16, max_target_positions=16, **options,
    )  # fmt: skip
    updates, rate = 250, 0.01
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = task.build_model(args)
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.0)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    generator = random.Random(1)
    batches = [with_targets(task, copy_pairs(generator, 32)) for _ in range(80)]
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((update + 1) / 30, 2 - 2 * update / updates, 1)
        optimizer.zero_grad()
        sample = batches[update % len(batches)]
        _, size, _ = task.train_step(sample, model, criterion, Backward(), update)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= size
        optimizer.step()
    model.eval()
    sample = with_targets(task, copy_pairs(random.Random(7), 60))
    loss, size, _ = task.valid_step(sample, model, criterion)
    assert float(loss) / size / math.log(2) < 0.1
    search = argparse.Namespace(**Limits(min_len=0).flags(), beam=1)
    hypos = task.inference_step(task.build_generator([model], search), [model], sample)
    want = words_of(sample)
    assert {len(words) for words in want} == set(range(7))
    right = [h[0]["tokens"].tolist() == [*w, 2] for h, w in zip(hypos, want, strict=True)]
    assert sum(right) >= 57, f"{sum(right)} of 60"
