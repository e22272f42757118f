"""`paradec widen`: a model twice as wide computes the same."""

import argparse
import resource

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
    wide = widened(state | {"args": "as older checkpoints have them; fairseq would prefer these"})
    assert wide["args"] is None
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
    units, features = (getattr(twin.encoder.layers[0], name).weight.grad for name in ("fc1", "fc2"))
    first, second = units.chunk(2)  # units, then the same units again
    assert difference(first, second) > 1e-3 * float(units.abs().max())
    first, second = features[0::2], features[1::2]  # pairs
    assert difference(first, second) > 1e-3 * float(features.abs().max())


def test_a_drafter_stays_on_its_verifiers_encoder():
    """In whatever order their checkpoints have the weights."""
    task = task_for("learned_positions")
    verifier = tiny_model(task, "learned_positions")
    drafter = tiny_drafter(task, verifier=verifier)

    wide = []
    for one, turn in ((verifier, list), (drafter, reversed)):
        weights = dict(turn(one.state_dict().items()))
        wide.append(widened({"cfg": {"model": vars(one.flags)}, "model": weights})["model"])
    names = [name for name in wide[0] if name.startswith("encoder.")]
    assert names and all(torch.equal(wide[0][name], wide[1][name]) for name in names)


def test_the_command_writes_a_checkpoint(tmp_path, capsys):
    task = task_for("learned_positions")
    model = tiny_model(task, "learned_positions", torch.float16)
    path = save_drafter(task, model, tmp_path / "small.pt", "transformer")
    torch.save(torch.load(path, weights_only=False) | {"last_optimizer_state": {"state": {}}}, path)

    assert paradec(["widen", path, str(tmp_path / "wide.pt")]) == 0
    assert "decoder_embed_dim 32" in capsys.readouterr().out
    state = torch.load(tmp_path / "wide.pt", weights_only=True)
    assert state["cfg"]["model"]["encoder_ffn_embed_dim"] == 64
    assert state["last_optimizer_state"] is None
    assert state["model"]["decoder.layers.0.fc1.weight"].dtype == torch.float32
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


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("no.pt", "wide.pt", "SOURCE: got 'no.pt'; allowed: a checkpoint; there is none"),
        ("small.pt", "none/wide.pt", "TARGET: got 'none/wide.pt'; allowed: a file in a folder"),
        ("small.pt", ".", "TARGET: got '.'; allowed: a file in a folder that exists"),
        ("small.pt", "small.pt", "TARGET: got 'small.pt'; allowed: another file than SOURCE"),
    ],
)
@pytest.mark.parametrize("command", ["widen", "shrink"])
def test_paths_that_do_not_serve_are_refused(
    command, source, target, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    task = task_for("default")
    save_drafter(task, tiny_model(task), tmp_path / "small.pt", "transformer")

    assert paradec([command, source, target]) == 2
    assert f"paradec {command}: error: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("widen run/checkpoint_last.pt new.pt", "TARGET"),
        ("shrink run/checkpoint_last.pt new.pt", "TARGET"),
        ("average run --last 1 --out new.pt", "--out"),
    ],
)
def test_a_checkpoint_that_the_disk_does_not_take_is_named(
    words, flag, tmp_path, monkeypatch, capsys
):
    """torch's own error is of its stream."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    task = task_for("default")
    save_drafter(task, tiny_model(task), tmp_path / "run" / "checkpoint_last.pt", "transformer")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
        status = paradec(words.split())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert status == 2 and said.count("\n") == 1, said
    assert f"error: {flag}: got 'new.pt'; allowed: a file that can be written (" in said
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
