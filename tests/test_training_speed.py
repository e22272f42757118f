"""``paradec-training-speed``: it makes real updates, on each model's own order."""

from __future__ import annotations

import json

import pytest
import torch
from support.builders import DEMO

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure.training_speed import Trainee

ONE_LAYER = ("layers=1", "embed-dim=8", "ffn-embed-dim=8", "attention-heads=2")
SIZES = [f"--{side}-{size}" for side in ("encoder", "decoder") for size in ONE_LAYER]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder whose training part is the demo's test part."""
    folder = tmp_path_factory.mktemp("data")
    for file in (*DEMO.glob("dict.*.txt"), *DEMO.glob("test.en-de.*")):
        (folder / file.name.replace("test", "train")).write_bytes(file.read_bytes())
    return str(folder)


def test_a_table_of_all_architectures(data, tmp_path, capsys):
    out = tmp_path / "speed.json"
    argv = ["training-speed", data, "--arch", "ibdecoder_tiny", "--busy", "--out", str(out)]
    few = ["--batches", "2", "--rounds", "2", "--max-tokens", "200"]
    assert paradec([*argv, *few, "--arch", "transformer", "--", *SIZES]) == 0
    second, first = json.loads(out.read_text())["rows"]
    assert (first["architecture"], second["architecture"]) == ("transformer", "ibdecoder_tiny")
    assert second["speed of ibdecoder_tiny's"] == 1.0
    assert first["tokens per second"] > 0
    assert first["parameters"] == second["parameters"]  # the sizes are the same for both
    assert paradec([*argv, "--", *SIZES, "--directions", "3"]) == 2
    assert "--directions: got 3" in capsys.readouterr().err


def test_an_update_changes_the_model_and_lowers_the_loss(data):
    trainee = Trainee(data, "ibdecoder_tiny", [*SIZES, "--dropout", "0"], "cpu")
    (sample,) = trainee.batches(200, 1)
    for group in trainee.optimizer.param_groups:
        group["lr"] = 0.01

    def loss():
        with torch.no_grad():
            value, size, _ = trainee.task.valid_step(sample, trainee.model, trainee.criterion)
        trainee.model.train()
        return float(value) / size

    before = loss()
    assert all(trainee.update(sample) > 0 for _ in range(5))
    assert loss() < before - 0.1
    assert trainee.updates == 5
