"""scripts/train_reordered.sh, and the reordered decoders' settings of train.sh."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.commands import preprocess, wait_until
from support.training import ENV, SCRIPTS, SETTINGS, TRANSLATE, Recipe, Stubbed, names

from fairseq_paradec.cli import average
from fairseq_paradec.models.reordered_transformer import PRESETS

PYTHON = """#!/usr/bin/env bash
case "$*" in
    *find_spec*) ;;
    *is_available*) echo "${DEVICE:-cpu}" ;;
    *"fairseq_paradec evaluate "*) exec "${PYTHONPATH%%:*}/scripts/evaluate.sh" "${@:5}" ;;
esac
"""


class Reordered(Recipe):
    """train_reordered.sh with steps that only write down what they are told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        scripts = self.folder / "scripts"
        shutil.copy(SCRIPTS / "train_reordered.sh", scripts)
        shutil.copy(scripts / "acceptance.sh", scripts / "evaluate.sh")
        self.program(self.folder / "python", PYTHON)
        (self.data / "raw").mkdir()
        for name in ("train.en-de.de.idx", "test.en-de.de.idx", "raw/test.de", "dict.de.txt"):
            (self.data / name).touch()
        self.distilled = self.folder / "distilled"
        shutil.copytree(self.data, self.distilled)

    def command(self, *args: object) -> list[str]:
        script, *rest = super().command(*args)
        return [script.replace("train_gad.sh", "train_reordered.sh"), *rest]


@pytest.fixture
def recipe(tmp_path: Path) -> Reordered:
    return Reordered(tmp_path)


@pytest.fixture
def stubbed(tmp_path: Path) -> Stubbed:
    return Stubbed(tmp_path)


def scored(models: str, how: str = "[--beam] [4]", more: str = "[--lenpen] [0.6]") -> str:
    return (
        f"evaluate.sh [data] {models} [--subset] [test] [--raw=data/raw/test.de] [--beam] [1] "
        f"{how} [--title=Quality: ibdecoder, base] [--out=gad/quality.json] [--] {more}"
    )


def test_all_steps_in_their_order(recipe: Reordered) -> None:
    assert recipe.steps() == [
        f"train.sh [data] [--save-dir] [gad/teacher] {SETTINGS}",
        f"distill.sh [data] [gad/data.en-de] {TRANSLATE} [--path] [gad/teacher/model.pt]",
        f"train.sh [gad/data.en-de] [--save-dir] [gad/model] {SETTINGS} [--arch] [ibdecoder]",
        scored("[--path=gad/teacher/model.pt] [--path=gad/model/model.pt]"),
    ]


def test_what_is_given_is_not_made(recipe: Reordered) -> None:
    model = ["train.sh [gad/model]", "evaluate.sh"]
    given: Any
    for given, wanted, data in (
        (["--no-distillation"], model, "data"),
        (["--distilled", recipe.distilled], model, "distilled"),
        (["--teacher", recipe.teacher], ["distill.sh [gad/data.en-de]", *model], "gad/data.en-de"),
        (["--no-distillation", "--from-teacher"], ["train.sh [gad/teacher]", *model], "data"),
    ):
        steps = recipe.steps(*given)
        assert names(steps[:-1]) + [steps[-1].split()[0]] == wanted, given
        assert f"train.sh [{data}] [--save-dir] [gad/model]" in steps[-2]
    assert "[--encoder-from] [gad/teacher/model.pt]" in steps[-2]
    (recipe.data / "raw" / "test.de").unlink()
    assert names(recipe.steps("--no-distillation")) == ["train.sh [gad/model]"]


def test_options_reach_the_steps_that_they_are_for(recipe: Reordered) -> None:
    steps = recipe.steps(
        "--preset", "tiny", "--arch", "double_token", "--student", "--teacher", recipe.teacher,
        "--from-teacher", "--seed", 3, "--threads", 2, "--", "--lr", "1e-3; rm -rf $HOME",
    )  # fmt: skip
    assert [step.split()[0] for step in steps] == ["distill.sh", "train.sh", "evaluate.sh"]
    assert steps[1].endswith(
        "[--threads] [2] [--arch] [double_token] [--epochs] [14] [--average] [5] [--] "
        "[--decoder-layers] [2] [--encoder-from] [teacher.pt] [--warmup-updates] [500] "
        "[--lr] [1e-3; rm -rf $HOME]"
    )
    assert "[--beam] [10]" in steps[2] and steps[2].endswith("[--] [--lenpen] [1]")
    for preset, length in (("iwslt", "[--epochs] [15]"), ("big", "[--updates] [100000]")):
        assert length in recipe.steps("--preset", preset, "--from-teacher")[-2]
    step = recipe.steps("--from-teacher", "--updates", 7)[-2]
    assert "[--updates] [7]" in step and "35000" not in step
    step, score = recipe.steps("--from-teacher", "--preset", "tiny", "--smoke")[-2:]
    assert score.startswith("evaluate.sh [data] [--path=gad/model/model.pt] [--subset]")
    assert "[--smoke]" in step and "--epochs" not in step and "--average" not in step


@pytest.mark.slow
def test_a_step_stopped_or_failed(recipe: Reordered) -> None:
    process = subprocess.Popen(
        recipe.command("--save-dir", recipe.folder / "gad"),
        env=recipe.env({"WAIT": "gad/model"}), text=True, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_until(recipe.is_waiting, process)
    other = recipe.run()
    assert other.returncode == 2 and "in which another process works" in other.stderr
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 143
    assert process.stderr is not None
    with process.stderr as stream:
        assert "train_reordered: stopped; what was made is kept" in stream.read()
    result = recipe.run(FAIL="gad/model")
    assert result.returncode == 3
    assert result.stderr.endswith("train_reordered: stopped by an error in train.sh\n")
    assert len(recipe.steps()) == 4


def test_mistakes_are_named_before_work_starts(recipe: Reordered) -> None:
    data, teacher = recipe.data, ["--teacher", recipe.teacher]
    out = ["--save-dir", recipe.folder / "no"]
    empty = recipe.folder / "empty"
    empty.mkdir()
    other = recipe.folder / "other"
    shutil.copytree(data, other)
    (other / "dict.de.txt").write_text("a 1\n")
    program = recipe.folder / "scripts" / "train_reordered.sh"
    both = f"{recipe.teacher}:{recipe.verifier}"
    for args, message in (
        ([*out], "got 0 paths; needed: DATA"),
        ([data], "--save-dir is missing"),
        ([recipe.folder / "none", *out], "missing DATA: "),
        ([empty, *out], "which has no training set (train.*.idx)"),
        ([data, *out, "--preset", "deep-shallow"], "--preset: got 'deep-shallow'; allowed: tiny"),
        ([data, *out, "--arch", "block_nat"], "--arch: got 'block_nat'; allowed: ibdecoder "),
        ([data, *out, "--arch", ""], "--arch: got ''"),
        ([data, *out, "--distilled", data, "--no-distillation"], "only one of them"),
        ([data, *out, "--distilled", "/none"], "missing distilled data (--distilled): /none"),
        ([data, *out, "--distilled", empty], "missing training set (--distilled)"),
        ([data, *out, "--distilled", other], "a folder with DATA's dict.de.txt"),
        ([data, *out, "--no-distillation", *teacher], "of which nothing would be learned"),
        ([data, *out, "--teacher", "/none.pt"], "missing teacher (--teacher): /none.pt"),
        ([data, *out, "--teacher", both, "--from-teacher"], "an ensemble; allowed: one model"),
        ([data, *out, "--arch", "transformer", "--from-teacher"], "--from-teacher: got --arch"),
        ([data, *out, "--epochs", "1", "--updates", "1"], "only one of them"),
        ([data, *out, "--smoke", "--epochs", "1"], "--smoke sets --epochs"),
        ([data, *out, "--seed"], "--seed needs a value"),
        ([data, *out, "--lr", "1"], "unknown option: --lr (see --help; fairseq's own flags"),
        ([data, *out, "--seed --threads", "1"], "unknown option: --seed --threads"),
        ([data, *out, "--student[$(touch x)]"], "unknown option: --student[$(touch x)]"),
    ):
        command = [*map(str, [program, *args])]
        result = subprocess.run(command, env=recipe.env({}), capture_output=True, text=True)
        assert result.returncode == 2, args
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not recipe.record.exists() and not (recipe.folder / "no").exists()


def test_help_teaches() -> None:
    command = [str(SCRIPTS / "train_reordered.sh"), "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = "DATA --save-dir --arch --preset --student --teacher --distilled --no-distillation"
    words += " --from-teacher --epochs --updates --seed --threads --processes --smoke --python"
    words += " [1/4] [4/4] quality.json examples: --tokens-per-direction " + " ".join(PRESETS)
    assert [word for word in words.split() if word not in text] == []
    assert max(map(len, text.splitlines())) <= 101


# ---- what fairseq-train is told ------------------------------------------------------------------


def test_sizes_and_settings(stubbed: Stubbed) -> None:
    flags = stubbed.flags("--preset", "tiny", "--arch", "ibdecoder", "--", "--decoder-layers", "2")
    assert flags["arch"] == "ibdecoder" and flags["encoder-embed-dim"] == "128"
    assert (flags["decoder-layers"], flags["lr"], flags["max-epoch"]) == ("2", "0.005", "38")


def test_a_size_in_the_name_is_the_size(stubbed: Stubbed) -> None:
    flags = stubbed.flags("--preset", "tiny", "--arch", "double_token_l2r_tiny")
    assert "encoder-layers" not in flags and flags["lr"] == "0.005"


def test_an_encoder_needs_the_presets_size(stubbed: Stubbed) -> None:
    flags = ["--preset", "tiny", "--arch", "ibdecoder", "--", "--encoder-from"]
    result = stubbed.run(*flags, "/no.pt")
    assert "missing Transformer (--encoder-from): /no.pt" in result.stderr
    (stubbed.data / "t.pt").touch()
    assert stubbed.flags(*flags, stubbed.data / "t.pt")["encoder-embed-dim"] == "128"


def test_double_token_base_is_the_papers(stubbed: Stubbed) -> None:
    flags = stubbed.flags("--arch", "double_token", "--preset", "big")
    wanted = {
        "lr": "0.0004", "adam-betas": "(0.9, 0.99)", "adam-eps": "1e-6", "clip-norm": "5",
        "weight-decay": "0.0001", "dropout": "0.3", "attention-dropout": "0.1",
        "encoder-normalize-before": "", "max-update": "200000", "label-smoothing": "0.1",
        "keep-last-epochs": "10", "decoder-attention-heads": "16",
    }  # fmt: skip
    assert {name: flags.get(name) for name in wanted} == wanted


def test_the_list_of_experiments_has_all_of_them() -> None:
    """Each trains into a folder of its name, and reads checkpoints that others of them train."""
    lines = (SCRIPTS / "experiments.queue").read_text().splitlines()
    made = [
        shlex.split(line)
        for line in lines
        if re.match(r"(# )?(multi30k-tiny|wmt14-base)-\S+  scripts/train", line)
    ]
    archs = {words[words.index("--arch") + 1] for words in made if "--arch" in words}
    assert set(PRESETS) <= archs
    folders = [words[words.index("--save-dir") + 1] for words in made]
    assert len(folders) == len(set(folders))
    for words in made:
        name = words[words[0] == "#"].split("[")[0]
        assert f"checkpoints/{name}" == words[words.index("--save-dir") + 1]
    for line in lines:
        for checkpoint in re.findall(r"(checkpoints/(?:multi30k-tiny|wmt14)-\S+?)/\S*\.pt", line):
            assert checkpoint in folders or "$" in checkpoint, checkpoint


# ---- the real thing, once ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_try_out_killed_and_gone_on_with(tmp_path: Path) -> None:
    """A student on DATA itself, killed when it is trained; the same command scores it."""
    folder = tmp_path / "it's a corpus"
    data, save_dir = preprocess(folder), folder / "ib"
    (data / "raw").mkdir()
    shutil.copy(folder / "test.de", data / "raw" / "test.de")
    model = save_dir / "model" / "model.pt"
    options = "--preset tiny --arch ibdecoder_sa --student --no-distillation --smoke --threads 1"
    command = [str(SCRIPTS / "train_reordered.sh"), str(data), "--save-dir", str(save_dir)]
    command += options.split()
    process = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(model.exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    result = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert f"already trained: {model}" in result.stderr
    assert "BLEU" in result.stdout
    assert json.loads((save_dir / "quality.json").read_text())["rows"][0]["sentences"] == 40
    state = average.read(model)["model"]
    layers = {name.split(".")[2] for name in state if name.startswith("decoder.layers.")}
    assert layers == {"0", "1"}
