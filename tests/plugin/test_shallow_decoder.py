"""The shallow decoder on a verifier's encoder: what it takes from the verifier, and decoding."""

import copy
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from support.builders import DEMO, MAX_POSITIONS, Limits, demo, save_drafter, task_for, tiny_model
from support.exact import check
from support.losses import build, pairs, same_weights, teach

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.model_checks import is_block_nat
from fairseq_paradec.plugin.tasks.drafters import Drafters
from fairseq_paradec.registry import ANY

VERIFIER = str(DEMO / "model.pt")
NARROW = {"decoder_embed_dim": 8, "decoder_ffn_embed_dim": 12, "decoder_attention_heads": 4}
VARIANTS = (
    "default",
    "prenorm",
    "no_final_norm",
    "learned_positions",
    "no_positions",
    "share_all",
    "layernorm_embedding",
    "no_scale",
    "gelu",
    "separate",
    "output_dim",
)


def drafter_of(variant: str, folder: Path, **options: Any) -> tuple[Any, Any, Any]:
    """The task, a verifier of a variant, and a new drafter for it."""
    task = task_for(variant)
    verifier = tiny_model(task, variant, torch.float32)
    path = save_drafter(task, verifier, folder / "verifier.pt", "transformer")
    options |= {"encoder_from": path, "max_target_positions": MAX_POSITIONS}
    return task, verifier, build(task, "shallow_decoder", **options)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_it_starts_from_the_verifiers_last_layers(layers: int) -> None:
    task, verifier, _ = demo()
    model = build(task, "shallow_decoder", encoder_from=VERIFIER, decoder_layers=layers)
    own, theirs = model.decoder, verifier.decoder
    assert same_weights(model.encoder, verifier.encoder) and len(own.layers) == layers
    for mine, other in zip(list(own.layers)[::-1], list(theirs.layers)[::-1], strict=False):
        assert same_weights(mine, other)
    assert own.embed_tokens.weight.equal(theirs.embed_tokens.weight)
    assert own.embed_tokens.weight is own.output_projection.weight
    assert own.embed_tokens.weight is not model.encoder.embed_tokens.weight
    assert model.shares_encoder and not is_block_nat([model])


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_has_the_verifiers_settings(variant: str, tmp_path: Path) -> None:
    """With all of the layers, the verifier's output is its own, but for tied embeddings."""
    task, verifier, model = drafter_of(variant, tmp_path, decoder_layers=2)
    model.decoder.output_projection = verifier.decoder.output_projection
    model.decoder.project_out_dim = verifier.decoder.project_out_dim
    sample = pairs(task)["net_input"]
    assert model.eval()(**sample)[0].equal(verifier(**sample)[0])


@pytest.mark.parametrize("sizes", [{}, NARROW, {"decoder_layers": 2, **NARROW}])
@pytest.mark.parametrize("variant", ["default", "prenorm", "learned_positions"])
def test_training_leaves_the_encoder_and_any_search_decodes_it(
    variant: str, sizes: dict[str, Any], tmp_path: Path
) -> None:
    task, verifier, model = drafter_of(variant, tmp_path, dropout=0.3, **sizes)
    before = model.decoder.embed_tokens.weight.clone()
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.0)
    teach(model, criterion, [pairs(task)], 60)
    assert model.decoder.training and not model.encoder.training
    assert same_weights(model.encoder, verifier.encoder)
    assert not model.decoder.embed_tokens.weight.equal(before)
    saved = save_drafter(task, model, tmp_path / "drafter.pt", "shallow_decoder")
    (tmp_path / "verifier.pt").unlink()
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([saved], task=task)
    assert same_weights(models[0], model)
    hypos = check(task, models, pairs(task), {"decoding": "greedy"}, Limits())
    assert len({tuple(hypo["tokens"].tolist()) for hypo in hypos}) > 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_from": None}, "--encoder-from: got None; allowed: the verifier's checkpoint"),
        ({"decoder_layers": 0}, "--decoder-layers: got 0; allowed: a whole number from 1 up"),
        (
            {"encoder_layers": 3},
            "--encoder-layers: got 3; allowed: 4, as in --encoder-from .*model.pt",
        ),
        ({"decoder_learned_pos": True}, "--decoder-learned-pos: got True; allowed: False, as in"),
        ({"activation_fn": "gelu"}, "--activation-fn: .*relu, as in"),
        ({"encoder_from": str(DEMO / "drafter.pt")}, "--encoder-from: .*not a drafter's"),
    ],
)
def test_what_cannot_be_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        build(demo()[0], "shallow_decoder", **{"encoder_from": VERIFIER} | options)


@pytest.mark.parametrize("name", ["assistant", "drafter"])
def test_an_encoder_that_was_left_out_is_the_verifiers(name: str, tmp_path: Path, capsys) -> None:
    whole, small = tmp_path / "whole.pt", tmp_path / "small.pt"
    state = torch.load(DEMO / f"{name}.pt")
    state["cfg"]["model"] = Namespace(**state["cfg"]["model"])  # as fairseq-train saves it
    torch.save(state, whole)
    assert paradec(["shrink", "--without-encoder", str(whole), str(small)]) == 0
    assert small.stat().st_size < 0.6 * whole.stat().st_size
    task, verifier, _ = demo()
    loaded = [task.drafters.load(str(path), ANY, [verifier]) for path in (whole, small)]
    assert same_weights(loaded[1].decoder, loaded[0].decoder)
    assert same_weights(loaded[1].encoder, verifier.encoder)
    other = copy.deepcopy(verifier)
    torch.nn.init.normal_(other.encoder.layers[-1].fc1.bias)
    for models in ([other], [verifier, verifier]):
        with pytest.raises(UsageError, match="--drafter-path: .*on this verifier's encoder"):
            Drafters(task).load(str(small), ANY, models)
    with pytest.raises(UsageError, match="--path: .*encoder was left out"):
        checkpoint_utils.load_model_ensemble([str(small)], task=task)
    wrong = [str(DEMO / "model.pt"), str(tmp_path / "x.pt")]
    assert paradec(["shrink", "--without-encoder", *wrong]) == 2
    assert "--without-encoder: got" in capsys.readouterr().err
    assert paradec(["shrink", *wrong, "--max-mb", "0.1"]) == 2
    assert "--max-mb: got 0.1; allowed: " in capsys.readouterr().err
    assert not list(tmp_path.glob("x.pt*"))
