"""The reordered Transformers: presets, the forward pass, training, and decoding step by step."""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.sequence_scorer import SequenceScorer
from reference import target_order as paper
from support import builders
from support.builders import MAX_POSITIONS, batch, source_rows, tiny_reordered, tiny_task
from support.forward import full_forward
from support.losses import pairs

from fairseq_paradec.engine.step import StepScorer
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin.models.reordered_transformer import ReorderedTransformer
from fairseq_paradec.target_order import TargetOrder

pytestmark = pytest.mark.usefixtures("exact_softmax")

#: What each architecture writes like.
PRESETS: dict[str, TargetOrder] = {
    "ibdecoder": TargetOrder(2, 1),
    "ibdecoder_sa": TargetOrder(2, 2),
    "imdecoder": TargetOrder(4, 1),
    "sa_transformer": TargetOrder(1, 2),
    "transformer_r2l": TargetOrder(1, 1, right_to_left=True),
    "transformer_both_ends": TargetOrder(2, 1, alternate_ends=True),
    "double_token": TargetOrder(2, 1, double_token=True),
    "double_token_l2r": TargetOrder(1, 2, double_token=True),
    "double_token_r2l": TargetOrder(1, 2, double_token=True, right_to_left=True),
}

#: Presets with options: every kind of position vectors, mask and step.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{arch: (arch, {}) for arch in PRESETS},
    "imdecoder-learned": ("imdecoder", {"decoder_learned_pos": True}),
    "imdecoder-6x2": ("imdecoder", {"directions": 6, "tokens_per_direction": 2}),
    "imdecoder-in-turns": ("imdecoder", {"alternate_ends": True}),
    "sa-learned": ("sa_transformer", {"decoder_learned_pos": True}),
    "double_token-sinusoids": ("double_token", {"decoder_learned_pos": False}),
    "middle": ("ibdecoder", {"middle_to_side": True}),
    "independent": ("ibdecoder_sa", {"independent_directions": True}),
    "vanilla_mask": ("ibdecoder_sa", {"vanilla_mask": True}),
    "vanilla_positions": ("ibdecoder", {"vanilla_positions": True}),
    "left_to_right": ("sa_transformer", {"tokens_per_direction": 1}),
    "starts-learned": ("ibdecoder", {"start_rows": "learned"}),
    "starts-zero": ("ibdecoder_sa", {"start_rows": "zero"}),
    "starts-learned-in-segments": ("imdecoder", {"start_rows": "learned"}),
    "starts-zero-counted": ("sa_transformer", {"start_rows": "zero"}),
    "starts-learned-positions": (
        "double_token",
        {"start_rows": "learned", "decoder_learned_pos": True},
    ),
}

every_preset = pytest.mark.parametrize("arch", PRESETS)
every_model = pytest.mark.parametrize("given", MODELS)


@functools.cache
def reordered(given: str) -> tuple[Any, ReorderedTransformer]:
    """A task and its model, one of MODELS: leave both as they are."""
    (arch, options), task = MODELS[given], tiny_task()
    return task, tiny_reordered(task, arch, **options)


def with_targets(task: Any, lengths: Sequence[int]) -> dict[str, Any]:
    """A batch of random sources, and targets of these numbers of words."""
    of_sources, of_targets = [n % 5 + 2 for n in lengths], [n + 1 for n in lengths]
    return pairs(task, source_lengths=of_sources, target_lengths=of_targets)


def words_of(sample: dict[str, Any]) -> list[list[int]]:
    return [[word for word in row if word not in (1, 2)] for row in sample["target"].tolist()]


@every_preset
def test_presets_are_the_papers(arch: str) -> None:
    names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    for size, want in {"": (6, 512, 2048, 8), "_tiny": (4, 128, 256, 4)}.items():
        args = argparse.Namespace()
        ARCH_CONFIG_REGISTRY[arch + size](args)
        for side in ("encoder", "decoder"):
            assert tuple(getattr(args, f"{side}_{name}") for name in names) == want
        assert args.decoder_learned_pos == arch.startswith("double_token")
    assert reordered(arch)[1].target_order == PRESETS[arch]


def test_new_models_have_start_rows_where_starts_would_be_alike() -> None:
    """From fairseq-train's flags; an older checkpoint, without the option, keeps its symbols."""
    data = str(Path(__file__).parents[2] / "data-bin" / "demo.en-de")
    for arch, rows in (
        ("ibdecoder", "learned"),
        ("sa_transformer", "learned"),
        ("double_token", "tokens"),
        ("transformer_r2l", "tokens"),
    ):
        parser = fairseq_options.get_training_parser()
        args = fairseq_options.parse_args_and_arch(parser, [data, "--arch", arch])
        assert args.start_rows == rows
    assert reordered("ibdecoder")[1].decoder.embed_positions.symbols == []


def save_plain(path: Path, **options: Any) -> Any:
    sizes = {"encoder_layers": 1, "decoder_embed_dim": 16, "decoder_ffn_embed_dim": 32}
    task = tiny_task()
    model = builders.tiny_model(task, dtype=torch.float32, **{"seed": 3} | sizes | options)
    builders.save_drafter(task, model, path, "transformer")
    return model


def test_training_may_start_from_a_plain_transformers_encoder(tmp_path: Path) -> None:
    """--encoder-from: encoder and embeddings are its own, the decoder's layers are not."""
    path = tmp_path / "plain.pt"
    plain = save_plain(path)
    task = tiny_task()
    args = argparse.Namespace(**vars(tiny_reordered(task, "ibdecoder").flags))
    args.encoder_from = str(path)
    model = task.build_model(args)
    for name, value in plain.encoder.state_dict().items():
        assert model.encoder.state_dict()[name].equal(value), name
    assert model.decoder.embed_tokens.weight.equal(plain.decoder.embed_tokens.weight)
    ours, theirs = (m.decoder.layers[0].fc1.weight for m in (model, plain))
    assert not ours.equal(theirs)
    path.unlink()  # its own checkpoint does not ask for the other one again
    task.build_model(args)


def test_an_encoder_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.pt"
    for name, value in (("encoder_attention_heads", 4), ("activation_fn", "gelu")):
        save_plain(path, **{name: value})
        with pytest.raises(UsageError, match="^--encoder-from: "):
            tiny_reordered(tiny_task(), "ibdecoder", encoder_from=str(path))


def start_from(path: Path, arch: str, freeze: bool = False, **options: Any) -> Any:
    """A model in training, as fairseq-train builds it."""
    task = tiny_task()
    args = argparse.Namespace(**vars(tiny_reordered(task, arch, **options).flags))
    args.start_from, args.freeze_encoder = str(path), freeze
    model = task.build_model(args).eval()
    model.flags = args
    return model


@torch.no_grad()
def test_a_model_may_start_from_all_weights_of_another(tmp_path: Path) -> None:
    """--start-from: at one word a step from the left the model is the other one."""
    path = tmp_path / "plain.pt"
    plain = save_plain(path, decoder_layers=3)
    for layers in (3, 2):
        own = start_from(
            path, "sa_transformer", tokens_per_direction=1, encoder_layers=1, decoder_layers=layers
        )
        sample = batch(tiny_task(), [7, 3])
        inputs = torch.randint(4, 40, (2, 5), generator=torch.Generator().manual_seed(3))
        inputs[:, 0] = 2
        same = full_forward(own, sample, inputs).equal(full_forward(plain, sample, inputs))
        assert same == (layers == 3)
    last = own.decoder.layers[-1].state_dict()  # of three layers, two are the first and the last
    assert all(last[n].equal(w) for n, w in plain.decoder.layers[-1].state_dict().items())
    sample = batch(tiny_task(), [7, 3])

    first = start_from(path, "ibdecoder", start_rows="learned", encoder_layers=1, decoder_layers=3)
    starts, words = first.decoder.embed_positions.starts, plain.decoder.embed_tokens.weight
    assert starts[0].equal(plain.decoder.embed_scale * words[2])  # </s>, as the other one starts
    assert not starts[1].isclose(starts[0]).any()
    task = tiny_task()
    builders.save_drafter(task, first, path, "ibdecoder")
    sa = start_from(path, "ibdecoder_sa", start_rows="learned", encoder_layers=1, decoder_layers=3)
    assert sa.decoder.embed_positions.starts[:2].equal(starts)
    sizes = {"encoder_layers": 1, "decoder_layers": 3}
    paired = start_from(path, "double_token", decoder_learned_pos=True, **sizes)
    learned = paired.decoder.embed_positions.weight[2:]
    assert learned[1].isclose(torch.tensor(paper.sinusoid(-1, learned.size(1))).float()).all()


def test_a_frozen_encoder_is_not_trained(tmp_path: Path) -> None:
    """--freeze-encoder: no weight of the encoder learns, and it has no dropout."""
    path = tmp_path / "plain.pt"
    save_plain(path)
    model = start_from(
        path,
        "ibdecoder",
        start_rows="learned",
        freeze=True,
        encoder_layers=1,
        decoder_layers=2,
        share_all_embeddings=True,
    )
    model.train()
    assert model.decoder.training and not model.encoder.training
    assert not any(weight.requires_grad for weight in model.encoder.parameters())
    assert all(weight.requires_grad for weight in model.decoder.parameters())
    with pytest.raises(UsageError, match="^--freeze-encoder needs --start-f"):
        tiny_reordered(tiny_task(), "ibdecoder", freeze_encoder=True)


def test_directions_start_as_large_as_words() -> None:
    """A vector of norm 1 beside words of norm 12 would not be seen."""
    task, args = tiny_task(), tiny_reordered(tiny_task(), "imdecoder").flags
    decoder = task.build_model(argparse.Namespace(**vars(args))).decoder
    norms = decoder.embed_positions.directions.weight.norm(dim=1)
    words = (decoder.embed_scale * decoder.embed_tokens.weight[4:]).norm(dim=1)
    assert 0.5 < float(norms.mean() / words.mean()) < 2


def test_starts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.pt"
    save_plain(path)
    sizes = {"encoder_layers": 1, "decoder_layers": 2}
    for options, said in (
        ({"start_rows": "none"}, "--start-rows: got 'none'; allowed: tokens, zero, learned"),
        ({"start_rows": "tokens"}, "--start-rows: got 'tokens'; allowed: zero or learned"),
        (
            {"start_rows": "zero", "encoder_from": str(path)},
            "--start-from .* excludes --encoder-from",
        ),
        ({"start_rows": "zero", "decoder_attention_heads": 4}, "--start-from: got .* decoder of"),
        ({"start_rows": "zero", "no_token_positional_embeddings": True}, "--start-rows: got 'ze"),
    ):
        with pytest.raises(UsageError, match=f"^{said}"):
            start_from(path, "ibdecoder", **sizes | options)


def test_settings_that_do_not_fit_are_refused() -> None:
    """Contradictory orders; padding in front of targets, and prefixes of targets."""
    with pytest.raises(UsageError, match="^--vanilla-mask needs "):
        tiny_reordered(tiny_task(), "transformer_r2l", vanilla_mask=True)
    for setting, prefix, said in (
        ("left_pad_target", 0, "--left-pad-target excludes reordered"),
        ("", 2, "--ignore-prefix-size: got 2; allowed: 0"),
    ):
        task = tiny_task()
        tiny_reordered(task, "ibdecoder")
        if setting:
            setattr(task.cfg, setting, True)
        name = "label_smoothed_cross_entropy"
        flags = {"_name": name, "criterion": name, "label_smoothing": 0.1, "sentence_avg": False}
        args = argparse.Namespace(**flags, ignore_prefix_size=prefix, report_accuracy=False)
        with pytest.raises(UsageError, match=f"^{said}"):
            task.build_criterion(args)


@every_model
@torch.no_grad()
def test_step_by_step_is_the_twins_forward_pass(given: str) -> None:
    """Positions, directions and mask written down one by one; all steps that the model has."""
    task, model = reordered(given)
    order, z = model.target_order, model.target_order.tokens_per_step
    width = model.max_decoder_positions()
    assert width == MAX_POSITIONS - MAX_POSITIONS % z
    sample = batch(task, [7, 3, 5])
    inputs = torch.randint(4, 40, (3, width), generator=torch.Generator().manual_seed(3))
    inputs[:, :z] = torch.tensor(order.start(0, 2))
    full = full_forward(model, sample, inputs)
    for b, source in enumerate(source_rows(sample)):
        want = paper.log_probs(model, order, source, [inputs[b].tolist()])
        torch.testing.assert_close(full[b], want[0], atol=1e-4, rtol=0)  # fp32 sines
    seen = order.step_mask(width)
    scorer = StepScorer(model)
    scorer.encode(sample["net_input"]["src_tokens"].numpy())
    for begin in range(0, width, z):
        end = begin + z
        hidden = scorer.step(inputs[:, begin:end], mask=seen[begin:end, :end])
        got = scorer.log_probs(hidden)
        torch.testing.assert_close(got, full[:, begin:end], atol=1e-9, rtol=0)
        scorer.keep([end] * 3)


@every_model
def test_the_loss_is_the_twins(given: str) -> None:
    """Through the task's steps: loss, targets counted, and the gradient of every parameter."""
    arch, options = MODELS[given]
    task = tiny_task()
    model = tiny_reordered(task, arch, dropout=0.0, **options)
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    sample = with_targets(task, [6, 1, 0, 9, 3])
    natural = {name: value.clone() for name, value in sample["net_input"].items()}
    texts = list(zip(source_rows(sample), words_of(sample), strict=True))
    order = model.target_order
    want, plain, count = paper.smoothed_loss(model, order, texts, bos=0, eos=2, smoothing=0.1)
    want.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    optimizer = argparse.Namespace(backward=lambda loss: loss.backward())
    loss, size, log = task.train_step(sample, model, criterion, optimizer, 0)
    assert float(loss) == pytest.approx(float(want), abs=1e-4)
    assert float(log["nll_loss"]) == pytest.approx(float(plain), abs=1e-4)
    assert size == log["ntokens"] == count
    assert len(gradients) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        near, said = {"atol": 1e-3, "rtol": 1e-3}, functools.partial("{}: {}".format, name)
        torch.testing.assert_close(parameter.grad, gradients[name], **near, msg=said)
    loss, size, log = task.valid_step(sample, model, criterion)
    assert float(loss) == pytest.approx(float(want), abs=1e-4)
    assert (size, log["ntokens"]) == (count, count)
    assert all(natural[name].equal(value) for name, value in sample["net_input"].items())


@every_preset
def test_scores_of_references_are_in_natural_order(arch: str) -> None:
    """--score-reference: each word's own log-probability, `</s>`'s last, of all EODs."""
    task, model = reordered(arch)
    sample = with_targets(task, [5, 8, 1, 2])
    scorer = task.build_generator([model], argparse.Namespace(score_reference=True))
    assert type(scorer) is SequenceScorer
    hypos = task.inference_step(scorer, [model], sample)
    spec = model.target_order
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
