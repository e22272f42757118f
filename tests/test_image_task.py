"""The task image_super_resolution: outputs are whole images, and what is none is named."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterionConfig
from fairseq.data import data_utils
from omegaconf import OmegaConf
from support.builders import tiny_blockwise, tiny_model
from support.commands import PLUGIN, fairseq, succeed
from support.image_data import HIGH, LOW, PAIRS, image_folder, image_task
from support.image_models import image_batch, save, tiny_image_model

from fairseq_paradec import images
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Size
from fairseq_paradec.tasks import super_resolution

TASK = ("--user-dir", PLUGIN, "--task", "image_super_resolution")
SMALL, LARGE = Size(2, 2, 3), Size(4, 4, 3)  # 48 intensities
LIMITED = {"max_source_positions": 64, "max_target_positions": LARGE.num_tokens + 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder of images."""
    return image_folder(tmp_path_factory.mktemp("images") / "data")


def set_up(data: Path, **options: Any) -> super_resolution.ImageSuperResolutionTask:
    """The task as a command sets it up."""
    common: dict[str, Any] = {"train_subset": "train", "dataset_impl": None}
    common |= {"required_seq_len_multiple": 1, "num_batch_buckets": 0}
    given = super_resolution.ImageSuperResolutionConfig(data=str(data), **common | options)
    return super_resolution.ImageSuperResolutionTask.setup_task(OmegaConf.structured(given))


# ---- decoding ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def given() -> tuple[Any, Any]:
    """A task, and a stock Transformer with heads, which likes to write other symbols."""
    task = image_task(SMALL, LARGE)
    model = tiny_blockwise(task, seed=3, **LIMITED)
    with torch.no_grad():
        model.decoder.output_projection.weight[:4] *= 8
    return task, model


def decode(given: tuple[Any, Any], sample: dict[str, Any], **flags: Any) -> list[dict[str, Any]]:
    """The best hypotheses, by flags alone."""
    task, model = given
    generator = task.build_generator([model], argparse.Namespace(**flags))
    return [hypos[0] for hypos in task.inference_step(generator, [model], sample)]


@pytest.mark.parametrize(
    "flags",
    [
        {"decoding": "hgj", "jacobi_window": "sliding"},
        {"decoding": "blockwise"},
        {"decoding": "multiword_beam", "beam": 1},
        {"decoding": "auto_fast"},
    ],
    ids=str,
)
def test_outputs_are_images_and_those_of_fairseq(given, flags):
    sample = image_batch(given[0], 3, seed=3)
    want = decode(given, sample, decoding="beam", beam=1)
    for ours, theirs in zip(decode(given, sample, **flags), want, strict=True):
        *tokens, end = ours["tokens"].tolist()
        assert end == 2 and len(tokens) == LARGE.num_tokens and min(tokens) >= 4
        assert len(set(tokens)) > 5
        assert [*tokens, end] == theirs["tokens"].tolist()
        scores = (one["positional_scores"].float() for one in (ours, theirs))
        torch.testing.assert_close(*scores, atol=1e-3, rtol=0)  # fairseq sums up in fp32


def test_what_is_no_image_is_named_with_its_number(given, caplog):
    """Its output is empty, and its neighbours' are not."""
    for wrong, words in (
        ([0], "sentence 1 has 11 intensities, and an image of 2×2×3 has 12; its output is empty"),
        ([*range(12)], "sentence 1 is empty"),
        ([4], "sentence 1 has 1 symbols that are no intensities (0 to 255)"),
    ):
        sample = image_batch(given[0], 3, seed=3)
        sample["net_input"]["src_tokens"][1, wrong] = 3 if wrong == [4] else 1
        hypos = decode(given, sample, decoding="greedy")
        assert [len(hypo["tokens"]) for hypo in hypos] == [49, 1, 49]
        assert words in caplog.text


def test_other_limits_are_refused(given):
    task, model = given
    for name, value in (("max_len_b", 47), ("min_len", 2), ("unkpen", 1.0)):
        for decoding in ("beam", "greedy"):
            args = argparse.Namespace(decoding=decoding, **{name: value})
            wanted = f"--{name.replace('_', '-')}: got {value}; allowed: n"
            with pytest.raises(UsageError, match=wanted):
                task.build_generator([model], args)


def test_a_model_to_train_gets_the_positions_of_an_image(monkeypatch):
    """One of other images is refused, and targets that are padded left."""
    task = image_task(SMALL, LARGE)
    model = tiny_model(task, seed=3, **LIMITED)
    args = argparse.Namespace(**vars(model.flags) | {"max_target_positions": 7})
    args.arch = args._name = "transformer"
    positions = task.build_model(args).max_positions()
    assert positions == (64, LARGE.num_tokens + 1 + super_resolution.SPARE)
    args.max_target_positions = 7
    with pytest.raises(UsageError, match=r"--path: got 'a TransformerModel with \(64, 7\) posit"):
        task.build_model(args, from_checkpoint=True)
    monkeypatch.setattr(type(model), "image_sizes", task.image_sizes, raising=False)
    monkeypatch.setattr(task, "_model", model)
    monkeypatch.setattr(task.cfg, "left_pad_target", True)
    with pytest.raises(UsageError, match="--left-pad-target"):
        task.build_criterion(CrossEntropyCriterionConfig(_name="cross_entropy"))
    monkeypatch.setattr(type(model), "image_sizes", (LOW, HIGH), raising=False)
    with pytest.raises(UsageError, match="DATA.*4×4×1 and 8×8×1, as the model's.*2×2×3 and 4×4×3"):
        task.build_model(args)


# ---- data --------------------------------------------------------------------------------------


def test_images_come_back_from_the_folder(data):
    task = set_up(data)
    assert task.image_sizes == (LOW, HIGH) and task.max_positions() == (17, 65)
    assert (task.cfg.source_lang, task.cfg.target_lang) == ("lr", "hr")
    task.load_dataset("test")
    dataset = task.dataset("test")
    assert len(dataset) == PAIRS["test"]
    for pair in (dataset[i] for i in range(len(dataset))):
        large = images.image([t - 4 for t in pair["target"].tolist()[:-1]], HIGH)
        small = images.image([t - 4 for t in pair["source"].tolist()[:-1]], LOW)
        assert (images.shrink(large, LOW) == small).all()


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (images.SIZES, None, "cannot be read"),
        (images.SIZES, "[", "is no JSON"),
        (images.SIZES, {"version": 2}, "is no file of schema fairseq_paradec.images, version 1"),
        (images.SIZES, {"hr": {"height": 8, "width": 8.0, "channels": 1}}, "lacks the height"),
        (images.SIZES, {"hr": vars(Size(9, 8, 1))}, "do not fit, 4×4×1 and 9×8×1"),
        (images.SIZES, {"hr": vars(Size(8, 8, 3))}, "do not fit, 4×4×1 and 8×8×3"),
        (
            images.SIZES,
            {"lr": vars(Size(2, 2, 1))},
            "lr image 0 has 16 intensities; allowed: 4",
        ),
        ("dict.hr.txt", "".join(f"{n} 1\n" for n in reversed(range(256))), "has other words than"),
    ],
)
def test_another_folder_is_named(tmp_path, file, change, words):
    folder = image_folder(tmp_path / "data", pairs={"test": 1})
    path = folder / file
    if isinstance(change, dict):
        change = json.dumps(json.loads(path.read_text()) | change)
    path.unlink()
    if change is not None:
        path.write_text(change)
    with pytest.raises(UsageError, match=f"DATA: got '{folder}', .*{file}.*") as caught:
        set_up(folder).load_dataset("test")
    assert words in str(caught.value)


def test_flags_for_other_lengths_are_refused(data):
    for name, value in (
        ("max_source_positions", 500), ("max_target_positions", 64), ("truncate_source", True),
        ("num_batch_buckets", 2),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: got {value}"):
            set_up(data, **{name: value}).load_dataset("test")
    set_up(data, max_source_positions=17, max_target_positions=65).load_dataset("test")


# ---- the commands ------------------------------------------------------------------------------


@pytest.mark.slow
def test_forced_through_the_decoder_images_come_back(data, tmp_path, capsys):
    """Image -> tokens -> binarised data -> decoding, with the truth as the prefix -> image."""
    model = tiny_image_model(image_task(), dtype=torch.float32)
    path = save(image_task(), model, tmp_path / "model.pt", "image_transformer")
    forced = ("--prefix-size", HIGH.num_tokens, "--path", path, "--cpu")
    report = tmp_path / "forced.jsonl"
    how = ("--decoding", "greedy", "--stats-file", report)
    result = succeed(fairseq("generate", data, *TASK, *forced, *how))
    (tmp_path / "forced.txt").write_text(result.stdout, encoding="utf-8")
    given = (data, tmp_path / "forced.txt", "--stats", report, "--out", tmp_path, "--scale", 1)
    assert paradec(["images", "compare", *map(str, given)]) == 0
    # No error counts as one intensity off by one: 48.13 + 10 log10(64).
    assert re.search(r"forced +66\.19", capsys.readouterr().out)
    targets = data_utils.load_indexed_dataset(str(data / "test.lr-hr.hr"))
    for number in range(PAIRS["test"]):
        picture = images.load(tmp_path / f"{number}.png", 1)
        truth = (targets[number][:-1].numpy() - 4).reshape(8, 8)
        middle = picture[:, 8 + images.LINE : 16 + images.LINE]
        assert (middle == truth).all() and (picture[:, -8:] == truth).all()
