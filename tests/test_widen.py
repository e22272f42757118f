"""`paradec widen`: a model twice as wide computes the same."""

import argparse

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from support.builders import (
    LEARNED,
    batch,
    exact_gelu,
    save_drafter,
    task_for,
    tiny_blockwise,
    tiny_drafter,
    tiny_model,
    tiny_reordered,
)
from support.forward import LENGTHS, difference, full_forward, inputs_for

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.training.commands.widen import widened

PLAIN = ("learned_positions", "prenorm", "layernorm_embedding", "no_scale")
TIED = ("share_all", "share_decoder", "gelu")


def twice_as_wide(task, model, arch="transformer"):
    """A model's twin of twice its width, and the twin's checkpoint."""
    state = {"cfg": {"model": vars(model.flags) | {"arch": arch}}, "model": model.state_dict()}
    wide = widened(state)
    args = argparse.Namespace(**wide["cfg"]["model"])
    twin = ARCH_MODEL_REGISTRY[arch].build_model(args, task).double().eval()
    twin.load_state_dict(wide["model"])
    exact_gelu(twin)
    assert twin.decoder.embed_tokens.embedding_dim == 32  # tiny models have 16
    assert twin.decoder.layers[0].self_attn.num_heads == 4
    return twin, wide


@pytest.mark.parametrize("variant", PLAIN + TIED)
def test_a_wide_model_has_the_same_log_probabilities(variant):
    task = task_for(variant)
    model = tiny_model(task, variant, **LEARNED)
    exact_gelu(model)
    twin, wide = twice_as_wide(task, model)

    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    got, want = (full_forward(one, sample, inputs) for one in (twin, model))
    assert difference(got, want) < 1e-10
    tied = wide["model"]["decoder.embed_tokens.weight"].data_ptr()
    shared = tied == wide["model"]["decoder.output_projection.weight"].data_ptr()
    assert shared == (variant in TIED[:2])


@pytest.mark.parametrize("arch", ["ibdecoder_tiny", "imdecoder_tiny", "ibdecoder_sa_tiny"])
def test_a_wide_reordered_model_has_the_same_log_probabilities(arch):
    task = task_for("default")
    model = tiny_reordered(task, arch, **LEARNED)
    twin, _ = twice_as_wide(task, model, arch)

    sample, inputs = batch(task, LENGTHS), inputs_for(task, length=12)
    got, want = (full_forward(one, sample, inputs) for one in (twin, model))
    assert difference(got, want) < 1e-10


@pytest.mark.parametrize("shared", [True, False])
def test_a_wide_block_drafter_has_the_same_states_twice(shared):
    """Its embeddings have another scale than those of its verifier's encoder."""
    task = task_for("default")
    verifier = tiny_model(task, "learned_positions") if shared else None
    model = tiny_drafter(
        task,
        verifier=verifier,
        decoder_learned_pos=True,
        encoder_learned_pos=True,
        no_scale_embedding=True,
    )
    twin, _ = twice_as_wide(task, model, "block_nat")

    sample, prefix = batch(task, LENGTHS), inputs_for(task)
    starts = torch.tensor([[1, 4]] * len(LENGTHS))
    masks = prefix.new_full((len(LENGTHS), 2, 6), -1)
    drafted = []
    for one in (twin, model):
        encoded = one.encoder(sample["net_input"]["src_tokens"], sample["net_input"]["src_lengths"])
        drafted.append(one.decoder.output_projection(one.decoder(prefix, starts, masks, encoded)))
    assert difference(*drafted) < 1e-10


@pytest.mark.parametrize("layer", ["dense", "per_head"])
@pytest.mark.parametrize("seen", [True, False])
def test_wide_heads_predict_the_same(layer, seen):
    task = task_for("learned_positions")
    options = {"head_layer": layer, "heads_see_token": seen}
    model = tiny_blockwise(task, "learned_positions", **options)
    twin, _ = twice_as_wide(task, model, "blockwise_transformer")

    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    predicted = []
    for one in (twin, model):
        output = one(**sample["net_input"] | {"prev_output_tokens": inputs}, heads=[0, 1, 2, 3])
        predicted.append(one.decoder.output_projection(output.hidden))
    assert difference(*predicted) < 1e-10


def test_features_learn_different_things_afterwards():
    """Equal halves of what reads two copies would keep these equal for ever."""
    task = task_for("learned_positions")
    twin, _ = twice_as_wide(task, tiny_model(task, "learned_positions"))

    sample, inputs = batch(task, LENGTHS), inputs_for(task)
    full_forward(twin, sample, inputs)[..., 5].sum().backward()
    gradient = twin.encoder.layers[0].fc1.weight.grad
    first, second = gradient.chunk(2)  # units, then the same units again
    assert difference(first, second) > 1e-3 * float(gradient.abs().max())


def test_the_command_writes_a_checkpoint(tmp_path, capsys):
    task = task_for("learned_positions")
    model = tiny_model(task, "learned_positions", torch.float32)
    path = save_drafter(task, model, tmp_path / "small.pt", "transformer")

    assert paradec(["widen", path, str(tmp_path / "wide.pt")]) == 0
    assert "decoder_embed_dim 32" in capsys.readouterr().out
    state = torch.load(tmp_path / "wide.pt", weights_only=True)
    assert state["cfg"]["model"]["encoder_ffn_embed_dim"] == 64
    assert paradec(["widen", str(tmp_path / "wide.pt"), str(tmp_path / "wider.pt")]) == 0
    assert "decoder_embed_dim 64" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("build", "arch", "named"),
    [
        (lambda task: tiny_model(task, "no_final_norm"), "transformer", "--no-decoder-final-norm"),
        (lambda task: tiny_model(task, "output_dim"), "transformer", "decoder.project_out_dim"),
    ],
)
def test_what_would_not_compute_the_same_is_refused(build, arch, named, tmp_path, capsys):
    task = task_for("default")
    path = save_drafter(task, build(task), tmp_path / "small.pt", arch)

    assert paradec(["widen", path, str(tmp_path / "wide.pt")]) == 2
    assert f"paradec widen: error: SOURCE: got '{named}" in capsys.readouterr().err
    assert not (tmp_path / "wide.pt").exists()
