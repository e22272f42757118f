"""The task image_super_resolution: outputs are whole images, and what is none is named."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterionConfig
from fairseq.data import Dictionary, data_utils
from omegaconf import OmegaConf
from support.builders import task_for, tiny_blockwise, tiny_model
from support.commands import PLUGIN, TRAINING, fairseq, lines_of, succeed
from support.image_data import HIGH, LOW, PAIRS, image_folder, image_task
from support.image_models import image_batch

from fairseq_paradec import images
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Size
from fairseq_paradec.tasks.super_resolution import (
    SPARE,
    ImageSuperResolutionConfig,
    ImageSuperResolutionTask,
)

TASK = ("--user-dir", PLUGIN, "--task", "image_super_resolution")
SMALL, LARGE = Size(2, 2, 3), Size(4, 4, 3)  # 48 intensities
LIMITED = {"max_source_positions": 64, "max_target_positions": LARGE.num_tokens + 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder of images."""
    return image_folder(tmp_path_factory.mktemp("images") / "data")


def set_up(data: Path, **options: Any) -> ImageSuperResolutionTask:
    """The task as a command sets it up."""
    common: dict[str, Any] = {"train_subset": "train", "dataset_impl": None}
    common |= {"required_seq_len_multiple": 1, "num_batch_buckets": 0}
    given = ImageSuperResolutionConfig(data=str(data), **common | options)
    task: ImageSuperResolutionTask = ImageSuperResolutionTask.setup_task(
        OmegaConf.structured(given)
    )
    return task


# ---- decoding ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any, Any]:
    """A task, a stock Transformer and one with heads; they like to write other symbols."""
    task = image_task(SMALL, LARGE)
    plain, heads = (make(task, seed=3, **LIMITED) for make in (tiny_model, tiny_blockwise))
    for model in (plain, heads):
        with torch.no_grad():
            model.decoder.output_projection.weight[:4] *= 8
    return task, plain, heads


def decode(task: Any, model: Any, sample: dict[str, Any], **flags: Any) -> list[dict[str, Any]]:
    """The best hypotheses, by flags alone."""
    generator = task.build_generator([model], argparse.Namespace(**flags))
    return [hypos[0] for hypos in task.inference_step(generator, [model], sample)]


WAYS: list[dict[str, Any]] = [
    {"decoding": "greedy"},
    {"decoding": "hgj", "jacobi_window": "sliding"},
    {"decoding": "blockwise"},
    {"decoding": "multiword_beam", "beam": 1},
    {"decoding": "auto_fast"},
]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("flags", WAYS, ids=str)
def test_outputs_are_images_and_those_of_fairseq(models, flags, count):
    task, _, model = models
    sample = image_batch(task, count, seed=3)
    want = decode(task, model, sample, decoding="beam", beam=1)
    got = decode(task, model, sample, **flags)
    for ours, theirs in zip(got, want, strict=True):
        *tokens, end = ours["tokens"].tolist()
        assert end == 2 and len(tokens) == LARGE.num_tokens and min(tokens) >= 4
        assert len(set(tokens)) > 5
        assert [*tokens, end] == theirs["tokens"].tolist()
        torch.testing.assert_close(
            ours["positional_scores"].float(), theirs["positional_scores"].float(),
            atol=1e-3, rtol=0,  # fairseq sums up in fp32
        )  # fmt: skip


@pytest.mark.parametrize("limit", [1, 40])
def test_near_intensities_only(models, limit):
    """Each written intensity is at most so far from the model's own, given what is written."""
    task, _, model = models
    with torch.no_grad():  # heads that guess near the model's choices
        model.block_heads.outer.mul_(0.05)
        model.block_heads.bias.mul_(0.05)
    sample = image_batch(task, 4, seed=3)
    got = decode(task, model, sample, decoding="blockwise", accept_distance=limit)
    far = 0
    for b, hypo in enumerate(got):
        tokens = hypo["tokens"]
        source = sample["net_input"]["src_tokens"][b : b + 1]
        inputs = torch.cat((tokens.new_tensor([2]), tokens[:-1]))[None]
        lengths = sample["net_input"]["src_lengths"][b : b + 1]
        with torch.no_grad():
            logits = model(source, lengths, inputs)[0][0]
        own = logits[:-1, 4:].argmax(dim=1) + 4
        distances = (own - tokens[:-1]).abs()
        assert int(distances.max()) <= limit
        far += int(distances.gt(0).sum())
    assert limit == 1 or far > 0


def test_what_is_no_image_is_named_with_its_number(models, caplog):
    task, model, _ = models
    sample = image_batch(task, 3, seed=3)
    sample["net_input"]["src_tokens"][1, 4] = 3
    hypos = decode(task, model, sample, decoding="greedy")
    assert [len(hypo["tokens"]) for hypo in hypos] == [49, 1, 49]
    assert "sentence 1 has 1 symbols that are no intensities" in caplog.text


def test_audit_and_prefixes(models, caplog):
    task, _, model = models
    sample = image_batch(task, 2, seed=3)
    args = argparse.Namespace(decoding="blockwise", audit=True)
    generator = task.build_generator([model], args)
    prefix = torch.tensor([[4, 259, 77], [200, 5, 6]])
    caplog.set_level("WARNING")
    hypos = task.inference_step(generator, [model], sample, prefix_tokens=prefix)
    assert [row[0]["tokens"][:3].tolist() for row in hypos] == prefix.tolist()
    assert generator.audit.identical == 2 and not caplog.records


@pytest.mark.parametrize(
    "limits",
    [{"max_len_b": 47}, {"max_len_a": 1.0}, {"min_len": 2}, {"unkpen": 1.0},
     {"match_source_len": True}],
)  # fmt: skip
def test_other_limits_are_refused(models, limits):
    task, model, _ = models
    ((name, value),) = limits.items()
    for decoding in ("beam", "greedy"):
        args = argparse.Namespace(decoding=decoding, **limits)
        with pytest.raises(
            UsageError, match=f"--{name.replace('_', '-')}: got {value}; allowed: n"
        ):
            task.build_generator([model], args)


def test_distances_between_words_are_refused_before_decoding():
    task = task_for("default")
    args = argparse.Namespace(decoding="blockwise", accept_distance=2)
    with pytest.raises(UsageError, match="--accept-distance: got 2.*'w0' has no dist"):
        task.build_generator([tiny_blockwise(task)], args)


# ---- models ------------------------------------------------------------------------------------


def test_a_model_to_train_gets_the_positions_of_an_image(models, monkeypatch):
    """One of other images is refused, and targets that are padded left."""
    task, model, _ = models
    args = argparse.Namespace(**vars(model.flags) | {"max_target_positions": 7})
    args.arch = args._name = "transformer"
    assert task.build_model(args).max_positions() == (64, LARGE.num_tokens + 1 + SPARE)
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
    ("change", "words"),
    [
        (None, "cannot be read"),
        ("[", "is no JSON"),
        ({"version": 2}, "is no file of schema fairseq_paradec.images, version 1"),
        ({"lr": None}, "lacks the height, width and channels of lr or hr"),
        ({"hr": {"height": 8, "width": 8.0, "channels": 1}}, "lacks the height"),
        ({"hr": {"height": 9, "width": 8, "channels": 1}}, "do not fit, 4×4×1 and 9×8×1"),
        ({"hr": {"height": 8, "width": 8, "channels": 3}}, "do not fit, 4×4×1 and 8×8×3"),
        ({"hr": {"height": 2, "width": 2, "channels": 1}}, "do not fit, 4×4×1 and 2×2×1"),
    ],
)
def test_a_folder_without_its_sizes_is_named(data, tmp_path, change, words):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    path = folder / images.SIZES
    if change is None:
        path.unlink()
    elif isinstance(change, dict):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    else:
        path.write_text(change if isinstance(change, str) else json.dumps(change))
    with pytest.raises(UsageError) as caught:
        set_up(folder)
    message = str(caught.value)
    assert message.startswith(f"DATA: got '{folder}', whose {path} ") and words in message


def test_one_image_of_another_size_is_found(data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    image_folder(tmp_path / "other", Size(3, 4, 1), Size(6, 8, 1), {"test": 2})
    for part in ("bin", "idx"):
        name = f"test.lr-hr.lr.{part}"
        shutil.copy(tmp_path / "other" / name, folder / name)
        shutil.copy(tmp_path / "other" / name.replace("lr.", "hr.", 2), folder)
    with pytest.raises(UsageError, match="'test' the lr image 0 has 12 intensities; allowed: 16"):
        set_up(folder).load_dataset("test")


def test_other_dictionaries_are_named(data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    words = Dictionary()
    for number in range(255, -1, -1):
        words.add_symbol(str(number))
    for language in ("hr", "lr"):
        words.save(str(folder / f"dict.{language}.txt"))
        with pytest.raises(UsageError, match=rf"DATA.*dict.{language}.txt has other words than"):
            set_up(folder)


@pytest.mark.parametrize(
    "options",
    [{"max_source_positions": 500}, {"max_target_positions": 64}, {"truncate_source": True},
     {"num_batch_buckets": 2}],
)  # fmt: skip
def test_flags_for_other_lengths_are_refused(data, options):
    ((name, value),) = options.items()
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: got {value}"):
        set_up(data, **options).load_dataset("test")
    set_up(data, max_source_positions=17, max_target_positions=65).load_dataset("test")


# ---- the commands ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory) -> Path:
    """An image Transformer after a few updates, trained and validated."""
    folder = tmp_path_factory.mktemp("trained")
    sizes = TRAINING[TRAINING.index("--encoder-layers") : TRAINING.index("--optimizer")]
    succeed(
        fairseq(
            "train", data, *TASK, "--arch", "image_transformer", *sizes, "--optimizer", "adam",
            "--lr", 0.01, "--criterion", "cross_entropy", "--batch-size", 8, "--max-epoch", 2,
            "--cpu", "--no-epoch-checkpoints", "--no-progress-bar", "--save-dir", folder,
        )
    )  # fmt: skip
    return folder / "checkpoint_best.pt"


@pytest.mark.slow
def test_interactive_names_what_is_no_image(data, trained):
    image = " ".join(str(16 * i) for i in range(16))
    lines = [image, "1 2 3", "", image.replace("240", "256"), image + " 0", "hello " * 16]
    result = succeed(
        fairseq(
            "interactive", data, *TASK, "--path", trained, "--decoding", "greedy", "--cpu",
            "--buffer-size", 6, "--batch-size", 6, stdin="\n".join(lines) + "\n",
        )
    )  # fmt: skip
    texts = [line.split("\t")[2] for line in lines_of(result.stdout, "H")]
    assert len(texts[0].split()) == HIGH.num_tokens and texts[1:] == [""] * 5
    for words in (
        "a sentence has 3 intensities, and an image of 4×4×1 has 16; its output is empty",
        "a sentence is empty",
        "a sentence has 1 symbols that are no intensities (0 to 255)",
    ):
        assert words in result.stderr


@pytest.mark.slow
def test_a_model_of_images_needs_the_task_and_its_own_sizes(data, trained, tmp_path):
    path = ("--user-dir", PLUGIN, "--path", trained, "--cpu")
    other = image_folder(tmp_path / "other", LOW, Size(12, 12, 1), {"test": 1})
    for arguments, words in (
        ((data,), "--task: got 'translation'; allowed: image_super_resolution"),
        ((other, *TASK[2:]), "images of 4×4×1 and 8×8×1, as the model's; these are of 4×4×1 and 1"),
    ):
        result = fairseq("generate", *arguments, *path)
        assert result.returncode == 1
        (message,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert words in message


@pytest.mark.slow
def test_forced_through_the_decoder_images_come_back(data, trained, tmp_path, capsys):
    """Image -> tokens -> binarised data -> decoding, with the truth as the prefix -> image."""
    forced = ("--prefix-size", HIGH.num_tokens, "--path", trained, "--cpu")
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
