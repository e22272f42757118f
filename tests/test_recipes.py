"""scripts/train_gad.sh, train_blockwise.sh and train_reordered.sh, with steps that only write down
what they are told; the list of experiments; and one of them with real steps."""

from __future__ import annotations

import itertools
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
from support.training import SCRIPTS, Recipe, cut_short, names

from fairseq_paradec.cli import average
from fairseq_paradec.models.reordered_transformer import PRESETS

SETTINGS = "[--preset] [base] [--seed] [1] [--processes] [1] [--python] [python]"
TRANSLATE = "[--device] [cpu] [--processes] [1] [--python] [python]"
RECIPES = ("train_gad.sh", "train_blockwise.sh", "train_reordered.sh")


@pytest.fixture
def gad(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path, "train_gad.sh")


@pytest.fixture
def blockwise(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path, "train_blockwise.sh")


@pytest.fixture
def reordered(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path, "train_reordered.sh")


def training(data: str, out: str, more: str = "") -> str:
    return f"train.sh [{data}] [--save-dir] [out/{out}] {SETTINGS}{more}"


def test_the_steps_of_gad(gad: Recipe) -> None:
    verifier = "out/verifier/model.pt"
    assert gad.steps() == [
        training("data", "teacher"),
        f"distill.sh [data] [out/distilled] {TRANSLATE} [--path] [out/teacher/model.pt]",
        training("out/distilled", "verifier"),
        f"distill.sh [data] [out/greedy.train] {TRANSLATE} [--path] [{verifier}] [--beam] [1]",
        f"distill.sh [out/greedy.train] [out/greedy] {TRANSLATE} [--path] [{verifier}] [--beam] "
        "[1] [--subset] [valid]",
        training(
            "out/greedy", "drafter", f" [--arch] [block_nat] [--] [--encoder-from] [{verifier}]"
        ),
        f"acceptance.sh [data] [--path={verifier}] [--drafter-path=out/drafter/model.pt] "
        "[--decoding] [gad] [--decoding] [gad_pp] [--accept-topk] [3] [--accept-margin] [1.0] "
        "[--subset] [valid] [--device] [cpu] "
        "[--title=Acceptance: block_nat, base, on own-greedy] [--out=out/acceptance.json]",
    ]


HEADS, WHOLE = "--drafter-path=out/heads.pt", "--path=out/model/model.pt"
SHRINK = "shrink [--heads-only] [--max-mb] [10000] [--] [out/model/model.pt] [out/heads.pt]"


def blockwise_steps(
    setting: str, heads: str, base: str = "out/base/model.pt", data: str = "data", flags: str = ""
) -> list[str]:
    """Its model and its report."""
    more = f" [--arch] [blockwise_transformer] [--] [--base-path] [{base}]{flags}"
    return [
        training(data, "model", more),
        *[SHRINK] * (heads == HEADS),
        f"acceptance.sh [data] [--path={base}] [{heads}] [--decoding] [blockwise] [--accept-topk] "
        "[1] [--accept-topk] [2] [--accept-topk] [3] [--subset] [valid] [--raw=data/raw/valid.de] "
        f"[--device] [cpu] [--title=Blockwise: {setting}, base] [--out=out/acceptance.json]",
    ]


@pytest.mark.parametrize("setting", ["regular", "distillation", "fine-tuning", "both"])
def test_the_steps_of_blockwise(blockwise: Recipe, setting: str) -> None:
    tuned = setting in ("fine-tuning", "both")
    distils = setting in ("distillation", "both")
    distill = f"distill.sh [data] [out/data.en-de] {TRANSLATE} [--path] [out/base/model.pt]"
    assert blockwise.steps("--setting", setting) == [
        training("data", "base"),
        *[distill] * distils,
        *blockwise_steps(
            setting, WHOLE if tuned else HEADS, data="out/data.en-de" if distils else "data",
            flags=" [--fine-tune-base]" * tuned,
        ),
    ]  # fmt: skip


def test_the_steps_of_blockwise_on_images(blockwise: Recipe) -> None:
    (blockwise.data / "sizes.json").touch()
    rules = "[--accept-distance] [0] [--accept-distance] [2] [--subset] [valid] [--device]"
    steps = blockwise.steps("--setting", "fine-tuning")
    assert steps[0] == training("data", "base", " [--arch] [image_transformer]")
    more = "[--arch] [blockwise_image_transformer] [--] [--base-path] [out/base/model.pt]"
    assert steps[1].endswith(f"{more} [--fine-tune-base]")
    assert f"[{WHOLE}] [--decoding] [blockwise] {rules}" in steps[-1]
    blockwise.record.unlink()
    options = ["--save-dir", blockwise.folder / "no", "--setting", "both"]
    blockwise.refuses(
        "--setting: got 'both'; allowed with images: regular", blockwise.data, *options
    )


def test_the_steps_of_reordered(reordered: Recipe) -> None:
    assert reordered.steps() == [
        training("data", "teacher"),
        f"distill.sh [data] [out/data.en-de] {TRANSLATE} [--path] [out/teacher/model.pt]",
        training("out/data.en-de", "model", " [--arch] [ibdecoder]"),
        "evaluate.sh [data] [--path=out/teacher/model.pt] [--path=out/model/model.pt] [--subset] "
        "[test] [--raw=data/raw/test.de] [--beam] [1] [--beam] [4] [--title=Quality: ibdecoder, "
        "base] [--out=out/quality.json] [--] [--lenpen] [0.6]",
    ]


# ---- what is given is not made -------------------------------------------------------------------


def test_what_gad_is_given(gad: Recipe) -> None:
    drafter = ["train.sh [out/drafter]", "acceptance.sh [--out=out/acceptance.json]"]
    greedy = ["distill.sh [out/greedy.train]", "distill.sh [out/greedy]"]
    verifier, two = ["--verifier", gad.base], f"{gad.teacher}:{gad.base}"
    given: Any
    for given, wanted, data in (
        (verifier, greedy + drafter, "out/greedy"),
        ([*verifier, "--draft-on", "references"], drafter, "data"),
        (
            ["--teacher", two, "--draft-on", "teacher"],
            ["distill.sh [out/distilled]", "train.sh [out/verifier]", *drafter],
            "out/distilled",
        ),
    ):
        steps = gad.steps(*given)
        assert names(steps) == wanted, given
        assert f"train.sh [{data}] [--save-dir] [out/drafter]" in steps[-2]
    assert "[--path] [teacher.pt:base.pt]" in steps[0]
    assert "[--encoder-from] [out/verifier/model.pt]" in steps[-2]


def test_what_blockwise_is_given(blockwise: Recipe) -> None:
    base: list[Any] = ["--base", blockwise.base]
    both = [*base, "--setting", "both"]
    assert blockwise.steps(*both, "--distilled", blockwise.distilled) == blockwise_steps(
        "both", WHOLE, "base.pt", "distilled", " [--fine-tune-base]"
    )
    steps = blockwise.steps(*both, "--teacher", f"{blockwise.teacher}:{blockwise.base}")
    assert steps[0].endswith("[--path] [teacher.pt:base.pt]")
    assert blockwise.steps(*both)[0].endswith("[--path] [base.pt]")
    (blockwise.data / "raw" / "valid.de").unlink()
    assert "--raw" not in blockwise.steps(*base)[-1]


def test_heads_are_taken_out_again_only_of_a_newer_model(blockwise: Recipe) -> None:
    base = ["--base", blockwise.base]
    blockwise.steps(*base)
    heads, whole = (blockwise.folder / "out" / name for name in ("heads.pt", "model/model.pt"))
    for age, wanted in ((5, False), (-5, True)):
        # The stub of train.sh touches the model, as the real one does only when it trains.
        (blockwise.folder / "scripts" / "train.sh").write_text("#!/bin/sh\n")
        os.utime(whole, (heads.stat().st_mtime - age,) * 2)
        assert (SHRINK in blockwise.steps(*base)) == wanted
    first = blockwise.steps(*base, "--", "--train-first-head")
    assert len(first) == 1 and f"[{WHOLE}]" in first[0]  # heads of their own


def test_what_reordered_is_given(reordered: Recipe) -> None:
    model = ["train.sh [out/model]", "evaluate.sh"]
    given: Any
    for given, wanted, data in (
        (["--distilled", reordered.distilled], model, "distilled"),
        (
            ["--teacher", reordered.teacher],
            ["distill.sh [out/data.en-de]", *model],
            "out/data.en-de",
        ),
        (["--no-distillation", "--from-teacher"], ["train.sh [out/teacher]", *model], "data"),
    ):
        steps = reordered.steps(*given)
        assert names(steps) == wanted, given
        assert f"train.sh [{data}] [--save-dir] [out/model]" in steps[-2]
    assert "[--encoder-from] [out/teacher/model.pt]" in steps[-2]
    (reordered.data / "raw" / "test.de").unlink()
    assert names(reordered.steps("--no-distillation")) == ["train.sh [out/model]"]


@pytest.mark.parametrize("script", RECIPES)
def test_options_reach_the_steps_that_they_are_for(tmp_path: Path, script: str) -> None:
    recipe = Recipe(tmp_path, script)
    own, made = {
        "train_gad.sh": (["--fast"], "out/drafter]"),
        "train_blockwise.sh": (
            ["--setting", "distillation", "--block-size", 4, "--subset", "test"], "out/model] ",
        ),
        "train_reordered.sh": (["--arch", "double_token", "--student"], "out/model] "),
    }[script]  # fmt: skip
    steps = recipe.steps(
        "--preset", "tiny", *own, "--updates", 7, "--seed", 3, "--threads", 2, "--processes", 4,
        "--", "--lr", "1e-3; rm -rf $HOME", DEVICE="cuda",
    )  # fmt: skip
    for step in steps:
        learns = step.startswith("train.sh") and made in step
        assert ("[--updates] [7]" in step) == ("[--lr] [1e-3; rm -rf $HOME]" in step) == learns
        if step.startswith("train.sh"):
            assert "[--preset] [tiny] [--seed] [3] [--processes] [4]" in step
            assert "[--threads] [2]" in step
        if step.startswith("distill.sh"):
            assert "[--device] [cuda] [--processes] [4]" in step
            assert "[--max-tokens] [16000]" in step
    train = next(step for step in steps if made in step)
    said = {
        "train_gad.sh": ("[--arch] [block_nat_fast]", "[--device] [cuda]"),
        "train_blockwise.sh": (
            "[--block-size] [4] [--lr]",
            "[--raw=data/raw/test.de] [--device] [cuda]",
        ),
        "train_reordered.sh": ("[--] [--decoder-layers] [2] [--lr]", "[--beam] [10]"),
    }[script]
    assert said[0] in train and said[1] in steps[-1]


def test_lengths_of_reordered_training_by_preset(reordered: Recipe) -> None:
    teacher = ["--from-teacher", "--teacher", reordered.teacher, "--distilled", reordered.distilled]
    for preset, length in (
        ("tiny", "[--epochs] [14] [--average] [5] [--] [--encoder-from] [teacher.pt] "
                 "[--warmup-updates] [500]"),
        ("iwslt", "[--epochs] [15] [--]"),
        ("big", "[--updates] [100000] [--]"),
    ):  # fmt: skip
        assert f"[--arch] [ibdecoder] {length}" in reordered.steps("--preset", preset, *teacher)[0]
    step = reordered.steps(*teacher, "--updates", 7)[0]
    assert "[--updates] [7]" in step and "35000" not in step
    step, score = reordered.steps(*teacher, "--preset", "tiny", "--smoke")
    assert score.startswith("evaluate.sh [data] [--path=out/model/model.pt] [--subset]")
    assert "[--smoke]" in step and "--epochs" not in step and "--average" not in step


# ---- try-outs, signals, failures, mistakes -------------------------------------------------------


@pytest.mark.parametrize("script", RECIPES)
def test_a_try_out_leaves_nothing(tmp_path: Path, script: str) -> None:
    recipe = Recipe(tmp_path, script)
    (tmp_path / "tmp").mkdir()
    result = recipe.run(recipe.data, "--smoke", TMPDIR=str(tmp_path / "tmp"))
    assert result.returncode == 0, result.stderr
    steps = [step for step in recipe.record.read_text().splitlines() if "[--smoke]" not in step]
    assert [step.split()[0] for step in steps] == ["shrink"] * (script == "train_blockwise.sh")
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_step_and_the_same_command_goes_on(
    gad: Recipe, sent: signal.Signals, status: int
) -> None:
    options = [gad.data, "--save-dir", gad.folder / "out"]
    process = subprocess.Popen(
        gad.command(*options), env=gad.env(WAIT="out/verifier"), text=True, stderr=subprocess.PIPE
    )
    wait_until(
        lambda: gad.record.exists() and gad.record.read_text().endswith("waiting\n"), process
    )
    other = gad.run(*options)
    assert other.returncode == 2
    assert f"--save-dir: got '{gad.folder}/out', in which another process" in other.stderr
    process.send_signal(sent)
    assert process.wait(300) == status
    assert process.stderr is not None
    with process.stderr as stream:
        assert "the same command goes on" in stream.read()
    assert "terminated" in gad.record.read_text().splitlines()[-1]
    assert not (gad.folder / "out" / "greedy.train").exists()
    assert len(gad.steps()) == 7


@pytest.mark.parametrize("script", RECIPES)
def test_a_step_that_fails_ends_it(tmp_path: Path, script: str) -> None:
    recipe = Recipe(tmp_path, script)
    where = [recipe.data, "--save-dir", recipe.folder / "out"]
    result = recipe.run(*where, FAIL=f"out/{'base' if 'block' in script else 'teacher'}")
    assert result.returncode == 3 and len(recipe.record.read_text().splitlines()) == 1
    assert result.stderr.endswith(f"{script[:-3]}: stopped by an error in train.sh\n")


MISTAKES: dict[str, list[tuple[list[str], str]]] = {
    "train_gad.sh": [
        ([], "got 0 paths; needed: DATA"),
        (["DATA", "--save-dir", "a:b"], "--save-dir: got 'a:b'; allowed: a path without ':'"),
        (["/none"], "missing DATA: "),
        (["EMPTY"], "which has no validation set (valid.*.idx)"),
        (["DATA", "--preset", "deep-shallow"], "--preset: got 'deep-shallow'; allowed: tiny"),
        (["DATA", "--arch", "transformer"], "--arch: got 'transformer'; allowed: a drafter's"),
        (["DATA", "--arch", "block_nat", "--fast"], "--fast and --arch: only one of them"),
        (["DATA", "--draft-on", "x"], "--draft-on: got 'x'; allowed: own-greedy teacher ref"),
        (["DATA", "--epochs", "1", "--updates", "1"], "only one of them"),
        (["DATA", "--updates", "x"], "--updates: got 'x'; allowed: a whole number from 1 up"),
        (["DATA", "--smoke", "--epochs", "1"], "--smoke sets --epochs"),
        (["DATA", "--verifier", "/none.pt"], "missing verifier (--verifier): /none.pt"),
        (["DATA", "--teacher", "BASE:/none.pt"], "missing teacher (--teacher): /none.pt"),
        (["DATA", "--teacher", "BASE", "--verifier", "BASE"], "of which nothing would be learned"),
        (["DATA", "--lr", "1"], "unknown option: --lr (see --help; fairseq's own flags"),
        (["DATA", "--seed"], "--seed needs a value"),
        (["DATA", "--fast[$(touch x)]"], "unknown option: --fast[$(touch x)]"),
    ],
    "train_blockwise.sh": [
        (["EMPTY"], "which has no training set (train.*.idx)"),
        (["DATA", "--subset", "test1"], "--subset: got 'test1'; allowed: valid test"),
        (["DATA", "--setting", "x"], "got 'x'; allowed: regular distillation fine-tuning both"),
        (["DATA", "--block-size", "0"], "--block-size: got '0'; allowed: a whole number"),
        (["DATA", "--block-size", "1"], "--block-size: got '1'; allowed: from 2 up with --set"),
        (["DATA", "--base", "/none.pt"], "missing base (--base): /none.pt"),
        (["DATA", "--distilled", "DATA"], "of which nothing would be learned; allowed: with --se"),
        (["DATA", "--teacher", "BASE"], "of which nothing would be learned; allowed: with --set"),
        (["DATA", "--setting", "both", "--distilled", "EMPTY"], "missing training set (--distil"),
        (["DATA", "--setting", "both", "--distilled", "OTHER"], "a folder with DATA's dict.de.txt"),
        (["DATA", "--", "--fine-tune-base"], "--fine-tune-base: got it after --; allowed: --s"),
        (["DATA", "--", "--base-path", "x"], "--base-path: got it after --; allowed: --base"),
        (["DATA", "--", "--block-size=4"], "--block-size=4: got it after --; allowed: it bef"),
    ],
    "train_reordered.sh": [
        (["EMPTY"], "which has no training set (train.*.idx)"),
        (["DATA", "--arch", "block_nat"], "--arch: got 'block_nat'; allowed: ibdecoder "),
        (["DATA", "--distilled", "DATA", "--no-distillation"], "only one of them"),
        (["DATA", "--distilled", "/none"], "missing distilled data (--distilled): /none"),
        (["DATA", "--distilled", "OTHER"], "a folder with DATA's dict.de.txt"),
        (["DATA", "--no-distillation", "--teacher", "BASE"], "of which nothing would be learned"),
        (["DATA", "--teacher", "BASE:BASE", "--from-teacher"], "an ensemble; allowed: one model"),
        (["DATA", "--arch", "transformer", "--from-teacher"], "--from-teacher: got --arch"),
    ],
}


@pytest.mark.parametrize("script", RECIPES)
def test_mistakes_are_named_before_work_starts(tmp_path: Path, script: str) -> None:
    recipe = Recipe(tmp_path, script)
    other, empty = recipe.folder / "other", recipe.folder / "empty"
    empty.mkdir()
    shutil.copytree(recipe.data, other)
    (other / "dict.de.txt").write_text("a 1\n")
    places = {"DATA": recipe.data, "BASE": recipe.base, "OTHER": other, "EMPTY": empty}
    pattern = re.compile("|".join(places))
    for args, message in MISTAKES[script]:
        words = [pattern.sub(lambda found: str(places[found[0]]), word) for word in args]
        recipe.refuses(message, "--save-dir", recipe.folder / "no", *words)
    if script == "train_blockwise.sh":  # what is a mistake without
        one = ["--base", recipe.base, "--block-size", 1]
        assert recipe.steps(*one, "--", "--train-first-head")
        assert recipe.steps(*one, "--setting", "fine-tuning")
    else:
        recipe.refuses("--save-dir is missing", recipe.data)


# ---- the list of experiments ---------------------------------------------------------------------


def test_the_list_of_experiments(tmp_path: Path) -> None:
    """Also of those that are commented out: each trains into a folder of its name, and reads
    checkpoints that others of them train."""
    lines = (SCRIPTS / "experiments.queue").read_text().splitlines()
    for start in ("  scripts/", "  .venv/bin/"):
        lines = [line.removeprefix("# ") if start in line else line for line in lines]
    queue = tmp_path / "queue"
    queue.write_text("\n".join(lines) + "\n")
    command = [SCRIPTS / "queue.sh", queue, "--list", "--runs", tmp_path / "runs"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stderr == ""
    rows = result.stdout.splitlines()[1:]
    assert len(rows) == sum("  " in line and not line.startswith("#") for line in lines)

    made = [shlex.split(line) for line in lines
            if re.match(r"(multi30k-tiny|wmt14-base)-\S+  scripts/train", line)]  # fmt: skip
    folders = [words[words.index("--save-dir") + 1] for words in made]
    assert folders == [f"checkpoints/{words[0].split('[')[0]}" for words in made]
    assert len(folders) == len(set(folders))
    assert set(PRESETS) <= {words[words.index("--arch") + 1] for words in made if "--arch" in words}
    for line in lines:
        for checkpoint in re.findall(r"(checkpoints/(?:multi30k-tiny|wmt14)-\S+?)/\S*\.pt", line):
            assert checkpoint in folders or "$" in checkpoint, checkpoint

    names = {folder.removeprefix("checkpoints/") for folder in folders}  # Stern et al., table 1
    settings = ("", "-distillation", "-fine-tuning", "-both")
    for k, setting in itertools.product((2, 4, 6, 8, 10), settings):
        assert {f"{one}-blockwise-{k}{setting}" for one in ("multi30k-tiny", "wmt14-base")} <= names
    tables = [line for line in lines if "acceptance" in line and "--decoding blockwise" in line]
    assert tables
    for line in tables:
        waits = re.findall(r"\[after=(\S+)\]", line)[0].split(",")
        paths = re.findall(r"--path checkpoints/([\w-]+-blockwise-[\w-]+)/", line)
        assert paths and set(paths) == set(waits), line


# ---- the real thing, once ------------------------------------------------------------------------


@pytest.mark.slow
def test_reordered_killed_and_gone_on_with(tmp_path: Path) -> None:
    """A student on DATA itself, killed when it is trained; the same command scores it."""
    folder = tmp_path / "it's a corpus"
    data, save_dir = preprocess(folder), folder / "ib"
    (data / "raw").mkdir()
    shutil.copy(folder / "test.de", data / "raw" / "test.de")
    model = save_dir / "model" / "model.pt"
    options = "--preset tiny --arch ibdecoder_sa --student --no-distillation --smoke --threads 1"
    command = [str(SCRIPTS / "train_reordered.sh"), str(data), "--save-dir", str(save_dir)]
    said = cut_short([*command, *options.split()], model)
    assert f"already trained: {model}" in said and "BLEU" in said
    assert json.loads((save_dir / "quality.json").read_text())["rows"][0]["sentences"] == 40
    state = average.read(model)["model"]
    layers = {name.split(".")[2] for name in state if name.startswith("decoder.layers.")}
    assert layers == {"0", "1"}
