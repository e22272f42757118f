"""``paradec-training-speed``: it makes real updates, on each model's own order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.builders import DEMO

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure.training_speed import Trainee

SIZES = ["--encoder-layers", "1", "--decoder-layers", "1"]
SIZES += [f"--{side}-embed-dim=8" for side in ("encoder", "decoder")]
SIZES += [f"--{side}-ffn-embed-dim=8" for side in ("encoder", "decoder")]
SIZES += [f"--{side}-attention-heads=2" for side in ("encoder", "decoder")]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """A data folder whose training part is the demo's test part."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("dict.en.txt", "dict.de.txt"):
        (folder / name).write_bytes((DEMO / name).read_bytes())
    for file in DEMO.glob("test.en-de.*"):
        (folder / file.name.replace("test", "train")).write_bytes(file.read_bytes())
    return str(folder)


def test_a_table_of_all_architectures(data: str, tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    argv = [data, "--arch", "transformer", "--arch", "ibdecoder_tiny", "--batches", "2"]
    argv += ["--rounds", "2", "--max-tokens", "200", "--busy", "--out", str(out), "--", *SIZES]
    assert paradec(["training-speed", *argv]) == 0
    first, second = json.loads(out.read_text())["rows"]
    assert (first["architecture"], second["architecture"]) == ("transformer", "ibdecoder_tiny")
    assert first["speed of transformer's"] == 1.0
    assert second["tokens per second"] > 0
    assert first["parameters"] == second["parameters"]  # the sizes are the same for both


def test_an_update_changes_the_model_and_lowers_the_loss(data: str) -> None:
    trainee = Trainee(data, "ibdecoder_tiny", [*SIZES, "--dropout", "0"], "cpu")
    (sample,) = trainee.batches(200, 1)
    for group in trainee.optimizer.param_groups:
        group["lr"] = 0.01

    def loss() -> float:
        with torch.no_grad():
            value, size, _ = trainee.task.valid_step(sample, trainee.model, trainee.criterion)
        trainee.model.train()
        return float(value) / size

    before = loss()
    assert all(trainee.update(sample) > 0 for _ in range(5))
    assert loss() < before - 0.1
    assert trainee.updates == 5


def test_wrong_flags_are_named(data: str, tmp_path: Path, capsys) -> None:
    argv = [data, "--arch", "ibdecoder_tiny", "--busy", "--out", str(tmp_path / "x.json")]
    assert paradec(["training-speed", *argv, "--", *SIZES, "--directions", "3"]) == 2
    assert "--directions: got 3" in capsys.readouterr().err
