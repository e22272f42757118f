"""Checkpoints in the layouts of fairseq 0.6 to 0.9, written here, decode as the model they hold."""

import argparse
import json
import re
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders import DEMO, Limits, batch, decode, task_for, tiny_model

import fairseq_paradec
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.plugin.tasks.loading import load

#: Settings that fairseq-train of those years wrote, and that nothing reads any more.
OLD_ARGS = {
    "task": "translation",
    "source_lang": "en",
    "target_lang": "de",
    "left_pad_source": "True",
    "left_pad_target": "False",
    "raw_text": False,
    "lazy_load": False,
    "upsample_primary": 1,
    "criterion": "label_smoothed_cross_entropy",
    "label_smoothing": 0.1,
    "optimizer": "adam",
    "adam_betas": "(0.9, 0.98)",
    "lr": [0.0005],
    "min_lr": 1e-9,
    "lr_scheduler": "inverse_sqrt",
    "warmup_updates": 4000,
    "max_tokens": 4000,
    "max_sentences": None,
    "update_freq": [16],
    "fp16": True,
    "ddp_backend": "no_c10d",
    "remove_bpe": None,
    "log_format": None,
    "seed": 1,
    "save_dir": "checkpoints",
    "restore_file": "checkpoint_last.pt",
    "user_dir": None,
    "attention_dropout": 0.1,
    "relu_dropout": 0.0,
    "dropout": 0.3,
    "weight_decay": 0.0,
}
#: What Transformers could be told in fairseq 0.6.
KNOWN = (
    "arch",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_layers",
    "encoder_learned_pos",
    "encoder_attention_heads",
    "encoder_normalize_before",
    "decoder_embed_dim",
    "decoder_layers",
    "decoder_ffn_embed_dim",
    "decoder_attention_heads",
    "decoder_normalize_before",
    "decoder_learned_pos",
    "share_decoder_input_output_embed",
    "share_all_embeddings",
    "max_source_positions",
    "max_target_positions",
    "adaptive_softmax_cutoff",
    "adaptive_softmax_factor",
)
NORMS = {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1, "final_layer_norm": 2}


def old_weights(model: Any, version: float | None) -> dict[str, torch.Tensor]:
    """The weights under the names of fairseq 0.6: one product for q, k and v, numbered norms."""
    weights: dict[str, torch.Tensor] = {}
    tied = model.decoder.share_input_output_embed
    state = {name: value.half() for name, value in model.state_dict().items()}
    for name, value in state.items():
        joined = re.fullmatch(r"(.*attn)\.([qkv])_proj\.(weight|bias)", name)
        norm = re.fullmatch(r"((?:en|de)coder\.layers\.\d+)\.(\w+_layer_norm)\.(\w+)", name)
        if joined:
            parts = [state[f"{joined[1]}.{part}_proj.{joined[3]}"] for part in "qkv"]
            weights[f"{joined[1]}.in_proj_{joined[3]}"] = torch.cat(parts)
        elif norm:
            number = NORMS[norm[2]] - (norm[1].startswith("enc") and norm[2] == "final_layer_norm")
            weights[f"{norm[1]}.layer_norms.{number}.{norm[3]}"] = value
        elif name == "decoder.output_projection.weight":
            weights |= {} if tied else {"decoder.embed_out": value}
        elif name not in ("encoder.version", "decoder.version"):
            weights[name] = value
    if version is not None:
        weights |= {f"{side}.version": torch.tensor([version]) for side in ("encoder", "decoder")}
    return weights


def write(folder: Path, model: Any, task: Any, layout: str, version: float | None) -> Path:
    """Write dictionaries and a checkpoint in an old layout."""
    task.source_dictionary.save(str(folder / "dict.en.txt"))
    task.target_dictionary.save(str(folder / "dict.de.txt"))
    (folder / "test.en-de.en.bin").touch()  # DATA is of this pair
    flags = {name: value for name, value in vars(model.flags).items() if name in KNOWN}
    if flags["adaptive_softmax_cutoff"] is not None:
        flags["adaptive_softmax_cutoff"] = ",".join(map(str, flags["adaptive_softmax_cutoff"]))
    args = argparse.Namespace(**OLD_ARGS | flags | {"arch": "transformer", "data": ["elsewhere"]})
    state = {"args": args, "model": old_weights(model, version), "last_optimizer_state": {"a": 1}}
    history = {"criterion_name": "LabelSmoothedCrossEntropyCriterion", "optimizer_name": "Adam"}
    state["extra_state"] = {"epoch": 3, "batch_offset": 0, "val_loss": 2.5}
    if layout == "0.9":
        names = model.state_dict()
        state["model"] = {name: value.half() for name, value in names.items()}
        history |= {"lr_scheduler_state": {"best": 2.5}, "num_updates": 500}
        state["extra_state"] |= {"train_iterator": {"epoch": 4, "iterations_in_epoch": 0}}
    else:
        history["best_loss"] = 2.5
    torch.save(state | {"optimizer_history": [history]}, folder / "old.pt")
    return folder / "old.pt"


@pytest.mark.parametrize(
    ("layout", "variant", "version"),
    [
        ("0.9", "share_all", None),
        ("0.6", "separate", 2.0),
        ("0.6", "prenorm", 2.0),
        ("0.6", "no_final_norm", None),
        ("0.6", "adaptive_softmax", 2.0),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                ("0.9", "prenorm", None),
                ("0.6", "default", 2.0),
                ("0.6", "share_decoder", 2.0),
                ("0.6", "share_all", None),
                ("0.6", "learned_positions", 2.0),
            )
        ),
    ],
)
def test_an_old_checkpoint_decodes_as_its_model(layout, variant, version, tmp_path):
    task = task_for(variant)
    model = tiny_model(task, variant, torch.float16).float()
    if version is None and variant == "no_final_norm":
        model.encoder.layer_norm = None  # as of version 1
    path = write(tmp_path, model, task, layout, version)
    (loaded,), its_task = load(str(tmp_path), str(path))
    sample = batch(task, [3, 7, 5], seed=2)
    outputs = [
        [hypo["tokens"].tolist() for hypo in decode(its_task, [one], sample, Limits(), **how)]
        for one, how in ((model, {"decoding": "beam", "beam": 1}), (loaded, {"decoding": "hgj"}))
    ]
    assert outputs[0] == outputs[1] and len({*map(len, outputs[0])}) > 1


@pytest.fixture
def old(tmp_path):
    """A checkpoint of fairseq 0.6."""
    task = task_for("default")
    return write(tmp_path, tiny_model(task, dtype=torch.float32), task, "0.6", 2.0)


@pytest.fixture
def told(capsys):
    """What the doctor says, by the first word of a line."""

    def told(*given: Path | str) -> dict[str, str]:
        assert paradec(["doctor", *map(str, given)]) == 0
        lines = capsys.readouterr().out.splitlines()
        return {words[0]: words[1] for line in lines if len(words := line.split(maxsplit=1)) == 2}

    return told


def test_the_doctor_says_what_a_checkpoint_is(old, told, tmp_path):
    found = told(old, tmp_path)
    assert "float16, with the training's state, which paradec shrink" in found["checkpoint"]
    assert found["written"].endswith("(args), old names: embed_out, in_proj_weight, layer_norms")
    assert found["encoder"] == "2 layers, post-norm, d = 16, feed-forward 32, 2 heads"
    assert (found["positions"], found["dictionaries"]) == ("64 source, 24 target", "en: 40, de: 40")


def test_the_doctor_says_what_fits_and_how_to_get_the_rest(old, told, tmp_path):
    found = told(old, tmp_path)
    assert found["hgj"] == "fits; greedy's output: yes" and found["--engine"] == "native   fits"
    assert found["gad"].startswith(
        f"needs scripts/train_drafter.sh {tmp_path} --kind block --fast --verifier {old}"
    )
    assert found["nat"].startswith("no: --path: got 'transformer'; allowed")
    assert found["fairseq-generate"].startswith(f"{tmp_path} --user-dir") and "paradec" in found


def test_the_doctor_tries_the_drafter_of_a_folder(told):
    found = told(DEMO)
    assert found["gad"].startswith("fits") and found["assisted"].startswith("no: --drafter-path")


def test_the_doctor_knows_models_that_write_in_another_order(told):
    found = told(DEMO / "ibdecoder.pt", DEMO, "--drafter-path", DEMO / "heads.pt")
    assert found["multiword_beam"].startswith("fits") and "another order" in found["beam"]


def test_the_doctor_needs_the_data_of_a_checkpoint(old, capsys):
    assert paradec(["doctor", str(old)]) == 2
    assert "needs DATA, the data folder of the checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["pack", "import", "the least"])
def test_a_model_folder_of_the_first_form_translates(form: str, tmp_path: Path) -> None:
    """As the first ``paradec pack`` and ``paradec import`` wrote ``paradec.json``."""
    files = ["dict.en.txt", "dict.de.txt", "model.pt"]
    content: dict[str, Any] = {"format": 1, "source": "en", "target": "de", "model": "model.pt"}
    if form == "pack":
        files += ["drafter.pt", "codes.bpe"]
        bpe = {"name": "subword_nmt", "files": {"bpe_codes": "codes.bpe"}}
        content |= {"drafter": "drafter.pt", "tokenizer": "moses", "bpe": bpe, "settings": {}}
    elif form == "import":
        settings = {"min_len": 0}
        content |= {"drafter": None, "tokenizer": None, "bpe": None, "settings": settings}
    for name in files:
        shutil.copy(DEMO / name, tmp_path)
    content["sha256"] = {name: sha256((DEMO / name).read_bytes()).hexdigest() for name in files}
    (tmp_path / "paradec.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    demo, model = fairseq_paradec.load(DEMO), fairseq_paradec.load(tmp_path)
    assert model.folder.settings == content.get("settings", {})
    assert model.folder.packed == {} and not model.folder.packed_only
    line = "A dog runs across the grass."
    (found,) = model.translate([line if form == "pack" else demo.encode(line)], decoding="hgj")
    if form != "pack":  # the symbols
        found = demo.processing.decode(found)
    assert [found] == demo.translate([line], decoding="hgj")
