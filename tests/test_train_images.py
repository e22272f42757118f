"""scripts/train.sh on a folder of images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.image_data import image_folder
from support.training import STUB, Stubbed, train

from fairseq_paradec.images import Size

RGB = {"lr": vars(Size(8, 8, 3)), "hr": vars(Size(32, 32, 3))}


class Images(Stubbed):
    """train.sh on such a folder, with a Python that writes down what it is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        real = f"""    *sizes.json*) exec "{sys.executable}" "$@" ;;"""
        self.python.write_text(STUB.replace('case "$*" in', f'case "$*" in\n{real}'))
        self.sizes(RGB)

    def sizes(self, sizes: object) -> None:
        (self.data / "sizes.json").write_text(json.dumps(sizes))


@pytest.fixture
def stubbed(tmp_path: Path) -> Images:
    return Images(tmp_path)


def test_settings_of_the_base(stubbed: Images) -> None:
    flags = stubbed.flags("--preset", "tiny", "--arch", "image_transformer")
    expected = {
        "task": "image_super_resolution", "decoder-layers": "4", "share-all-embeddings": "",
        "dropout": "0.1", "label-smoothing": "0", "lr": "0.002", "warmup-updates": "500",
        "max-tokens": "4096", "update-freq": "2", "max-epoch": "20", "keep-last-epochs": "3",
    }  # fmt: skip
    assert {name: flags.get(name) for name in expected} == expected
    flags = stubbed.flags("--preset", "base", "--arch", "image_transformer")
    assert flags["label-smoothing"] == "0" and flags["max-update"] == "100000"
    tokens = int(flags["max-tokens"]) * int(flags["update-freq"])
    assert 3073 <= int(flags["max-tokens"]) and 20000 < tokens <= 25000


def test_settings_of_the_heads(stubbed: Images) -> None:
    base = stubbed.data / "base.pt"
    base.touch()
    heads = ["--arch", "blockwise_image_transformer", "--preset", "tiny", "--", "--base-path", base]
    flags = stubbed.flags(*heads)
    assert flags["task"] == "image_super_resolution" and flags["criterion"] == "blockwise_loss"
    assert flags["label-smoothing"] == "0" and flags["heads-per-update"] == "all"
    assert "encoder-layers" not in flags
    tuned = stubbed.flags(*heads, "--fine-tune-base")
    assert tuned["lr"] == "0.001" and "train-first-head" in tuned
    assert tuned["max-tokens"] == "3073"  # an image, where sentences have batches of 1,024


def test_a_try_out_leaves_no_image_out(stubbed: Images) -> None:
    for sizes, wanted in ((RGB, "3073"), ({"hr": vars(Size(8, 8, 1))}, "128")):
        stubbed.sizes(sizes)
        flags = stubbed.flags("--arch", "image_transformer", "--smoke")
        assert flags["max-tokens"] == wanted and "max-target-positions" not in flags


def test_what_does_not_belong_together_is_refused(stubbed: Images) -> None:
    (stubbed.data / "sizes.json").write_text("{}")
    result = stubbed.run("--arch", "image_transformer")
    assert result.returncode == 2 and "whose sizes.json cannot be read" in result.stderr
    (stubbed.data / "sizes.json").unlink()
    for arch in ("image_transformer", "blockwise_image_transformer_tiny"):
        result = stubbed.run("--arch", arch)
        assert result.returncode == 2
        assert f"--arch: got '{arch}'; allowed: it with images" in result.stderr
    assert "task" not in stubbed.flags()


@pytest.mark.slow
def test_a_try_out_from_data_to_heads(tmp_path: Path) -> None:
    """train.sh itself: a base of one layer, and heads on it."""
    data, base, heads = image_folder(tmp_path / "data"), tmp_path / "base", tmp_path / "heads"
    layers = ["--encoder-layers", "1", "--decoder-layers", "1"]
    for folder, arch, more in (
        (base, "image_transformer", layers),
        (heads, "blockwise_image_transformer", ["--base-path", base / "model.pt"]),
    ):
        flags = ["--preset", "tiny", "--smoke", "--arch", arch, "--", *more]
        result = train(data, "--save-dir", folder, *flags)
        assert result.returncode == 0, result.stderr
    assert (heads / "model.pt").is_file()
    log = (heads / "train.log").read_text()
    assert "num_updates 20" in log and "acc_2" in log
