"""scripts/train_gad.sh, train_blockwise.sh and train_reordered.sh, with steps that only write down
what they are told; the list of experiments; and one of them with real steps."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess

import pytest
from support.commands import preprocess, wait_until
from support.training import ENV, SCRIPTS, cut_short

from fairseq_paradec.cli import average
from fairseq_paradec.models.reordered_transformer import PRESETS

RECIPES = ("gad", "blockwise", "reordered")


# Each makes what the real one makes last.
STEP = """#!/usr/bin/env bash
name=$(basename -- "$0") made=''
for ((i = 1; i <= $#; i++)); do
    next=$((i + 1))
    case ${!i} in
        --save-dir) made=${!next}/model.pt ;;
        --out=*) made=${!i#--out=} ;;
    esac
done
[ "$name" != distill.sh ] || made=$2/distilled.json
{ printf '%s' "$name"; printf ' [%s]' "$@"; echo; } >>"$RECORD"
[ -z "${WAIT:-}" ] || [[ $made != *"$WAIT"* ]] || {
    sleep 600 7>&- >/dev/null 2>&1 &
    trap 'kill "$!"; echo "terminated $made" >>"$RECORD"; exit 143' TERM
    echo waiting >>"$RECORD"
    wait
}
[ -z "${FAIL:-}" ] || [[ $made != *"$FAIL"* ]] || exit 3
mkdir -p -- "$(dirname -- "$made")" && touch -- "$made"
"""


PYTHON = """#!/usr/bin/env bash
case "$*" in
    *find_spec*) ;;
    *is_available*) echo "${DEVICE:-cpu}" ;;
    *"fairseq_paradec acceptance "* | *"fairseq_paradec evaluate "*)
        exec "${PYTHONPATH%%:*}/scripts/$4.sh" "${@:5}"
        ;;
    *"paradec shrink"*)
        { printf shrink; printf ' [%s]' "${@:5}"; echo; } >>"$RECORD"
        touch -- "${@: -1}"
        ;;
esac
"""


class Recipe:
    """A recipe with such steps, in folders whose paths have a space and a quote."""

    def __init__(self, folder, script):
        self.script = f"train_{script}.sh"
        self.folder = folder / "it's a folder"
        scripts = self.folder / "scripts"
        scripts.mkdir(parents=True)
        for name in (self.script, "lib.sh"):
            shutil.copy(SCRIPTS / name, scripts)
        for name in ("train", "distill", "acceptance", "evaluate"):
            self.program(scripts / f"{name}.sh", STEP)
        self.program(self.folder / "python", PYTHON)
        self.data = self.folder / "data"
        (self.data / "raw").mkdir(parents=True)
        files = ["raw/valid.de", "raw/test.de", "dict.de.txt"]
        for name in [f"{split}.en-de.de.idx" for split in ("train", "valid", "test")] + files:
            (self.data / name).touch()
        self.distilled, self.other = self.folder / "distilled", self.folder / "other"
        for copy in (self.distilled, self.other):
            shutil.copytree(self.data, copy)
        (self.other / "dict.de.txt").write_text("a 1\n")
        self.base, self.teacher = self.folder / "base.pt", self.folder / "teacher.pt"
        self.base.touch()
        self.teacher.touch()
        self.empty = self.folder / "empty"
        self.empty.mkdir()
        self.record = self.folder / "record"

    def place(self, word):
        """Put the path of such a file or folder for each name, such as BASE, in a word."""
        return re.sub(
            "DATA|BASE|TEACHER|DISTILLED|OTHER|EMPTY",
            lambda found: str(getattr(self, found[0].lower())),
            word,
        )

    def program(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *args, **env):
        """Run the script with these arguments."""
        return subprocess.run(
            self.command(*args), env=self.env(**env), capture_output=True, text=True, timeout=300
        )

    def command(self, *args):
        return [*map(str, (self.folder / "scripts" / self.script, *args))]

    def env(self, **env):
        return ENV | {"RECORD": str(self.record), "PYTHON": str(self.folder / "python")} | env

    def steps(self, *args, **env):
        """What the steps were told, with the folder's path left out."""
        self.record.unlink(missing_ok=True)
        result = self.run(self.data, "--save-dir", self.folder / "out", *args, **env)
        assert result.returncode == 0, result.stderr
        return self.record.read_text().replace(f"{self.folder}/", "").splitlines()

    def refuses(self, message, *args):
        """Assert that it says so in a line, before any step."""
        result = self.run(*args)
        assert result.returncode == 2, args
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
        assert not self.record.exists() and not (self.folder / "no").exists()


# ---- the steps ----------------------------------------------------------------------------------


def words(text):
    """As the steps write down what they are told."""
    return " ".join(f"[{word}]" for word in shlex.split(text))


def training(data, out, more=""):
    settings = words(f"--preset base --seed 1 --processes 1 --python python {more}")
    return f"train.sh [{data}] [--save-dir] [out/{out}] {settings}"


def distilling(data, out, teacher, more=""):
    settings = words("--device cpu --processes 1 --python python")
    return f"distill.sh [{data}] [out/{out}] {settings} " + words(f"--path {teacher} {more}")


def test_the_steps_of_gad(tmp_path):
    gad = Recipe(tmp_path, "gad")
    verifier = "out/verifier/model.pt"
    assert gad.steps() == [
        training("data", "teacher"),
        distilling("data", "distilled", "out/teacher/model.pt"),
        training("out/distilled", "verifier"),
        distilling("data", "greedy.train", verifier, "--beam 1"),
        distilling("out/greedy.train", "greedy", verifier, "--beam 1 --subset valid"),
        training("out/greedy", "drafter", f"--arch block_nat -- --encoder-from {verifier}"),
        "acceptance.sh "
        + words(
            f"data --path={verifier} --drafter-path=out/drafter/model.pt --decoding gad --decoding "
            "gad_pp --accept-topk 3 --accept-margin 1.0 --subset valid --device cpu '--title="
            "Acceptance: block_nat, base, on own-greedy' --out=out/acceptance.json"
        ),
    ]


HEADS, WHOLE = "--drafter-path=out/heads.pt", "--path=out/model/model.pt"
SHRINK = "shrink " + words("--heads-only --max-mb 10000 -- out/model/model.pt out/heads.pt")


def blockwise_steps(setting, heads, base="out/base/model.pt", data="data", flags=""):
    """Its model and its report."""
    arch = f"--arch blockwise_transformer -- --base-path {base} {flags}"
    report = words(
        f"data --path={base} {heads} --decoding blockwise --accept-topk 1 --accept-topk 2 "
        "--accept-topk 3 --subset valid --raw=data/raw/valid.de --device cpu '--title=Blockwise: "
        f"{setting}, base' --out=out/acceptance.json"
    )
    model = training(data, "model", arch)
    return [model, *[SHRINK] * (heads == HEADS), f"acceptance.sh {report}"]


@pytest.mark.parametrize("setting", ["regular", "distillation", "fine-tuning", "both"])
def test_the_steps_of_blockwise(tmp_path, setting):
    blockwise = Recipe(tmp_path, "blockwise")
    heads, flags = (HEADS, "")
    if setting in ("fine-tuning", "both"):
        heads, flags = (WHOLE, "--fine-tune-base")
    distils = setting in ("distillation", "both")
    data = "out/data.en-de" if distils else "data"
    assert blockwise.steps("--setting", setting) == [
        training("data", "base"),
        *[distilling("data", "data.en-de", "out/base/model.pt")] * distils,
        *blockwise_steps(setting, heads, data=data, flags=flags),
    ]


def test_the_steps_of_blockwise_on_images(tmp_path):
    blockwise = Recipe(tmp_path, "blockwise")
    (blockwise.data / "sizes.json").touch()
    steps = blockwise.steps("--setting", "fine-tuning")
    assert steps[0] == training("data", "base", "--arch image_transformer")
    model = "--arch blockwise_image_transformer -- --base-path out/base/model.pt --fine-tune-base"
    assert steps[1].endswith(words(model))
    rules = "--decoding blockwise --accept-distance 0 --accept-distance 2 --subset valid --device"
    assert words(f"{WHOLE} {rules}") in steps[-1]


def test_the_steps_of_reordered(tmp_path):
    reordered = Recipe(tmp_path, "reordered")
    assert reordered.steps() == [
        training("data", "teacher"),
        distilling("data", "data.en-de", "out/teacher/model.pt"),
        training("out/data.en-de", "model", "--arch ibdecoder"),
        "evaluate.sh "
        + words(
            f"data --path=out/teacher/model.pt {WHOLE} --subset test --raw=data/raw/test.de --beam "
            "1 --beam 4 '--title=Quality: ibdecoder, base' --out=out/quality.json -- --lenpen 0.6"
        ),
    ]


GREEDY = ["distill data>out/greedy.train", "distill out/greedy.train>out/greedy"]
DISTILLED = "distill data>out/data.en-de"


@pytest.mark.parametrize(
    "script, given, expected, encoder",
    [
        ("gad", "--verifier BASE", [*GREEDY, "train out/greedy>out/drafter"], "base.pt"),
        (
            "gad", "--verifier BASE --draft-on references", ["train data>out/drafter"], "base.pt",
        ),
        (
            "gad", "--teacher TEACHER:BASE --draft-on teacher",
            ["distill data>out/distilled", "train out/distilled>out/verifier",
             "train out/distilled>out/drafter"], "out/verifier/model.pt",
        ),
        ("reordered", "--distilled DISTILLED", ["train distilled>out/model"], None),
        ("reordered", "--teacher TEACHER", [DISTILLED, "train out/data.en-de>out/model"], None),
        (
            "reordered", "--no-distillation --from-teacher",
            ["train data>out/teacher", "train data>out/model"], "out/teacher/model.pt",
        ),
    ],
)  # fmt: skip
def test_what_is_given_is_not_made(tmp_path, script, given, expected, encoder):
    recipe = Recipe(tmp_path, script)
    *steps, report = recipe.steps(*(recipe.place(word) for word in given.split()))
    assert report.startswith(("acceptance.sh ", "evaluate.sh "))
    found = re.sub(
        r"(\w+)\.sh \[(.*?)\] (?:\[--save-dir\] )?\[(.*?)\].*", r"\1 \2>\3", "\n".join(steps)
    )
    assert found.split("\n") == expected
    assert f"[--encoder-from] [{encoder}]" in steps[-1] if encoder else "encoder" not in steps[-1]
    assert ":" not in given or "[--path] [teacher.pt:base.pt]" in steps[0]


def test_what_blockwise_is_given(tmp_path):
    blockwise = Recipe(tmp_path, "blockwise")
    base = ["--base", blockwise.base]
    both = [*base, "--setting", "both"]
    made = blockwise_steps("both", WHOLE, "base.pt", "distilled", "--fine-tune-base")
    assert blockwise.steps(*both, "--distilled", blockwise.distilled) == made
    steps = blockwise.steps(*both, "--teacher", blockwise.place("TEACHER:BASE"))
    assert steps[0].endswith("[--path] [teacher.pt:base.pt]")
    assert blockwise.steps(*both)[0].endswith("[--path] [base.pt]")
    (blockwise.data / "raw" / "valid.de").unlink()
    assert "--raw" not in blockwise.steps(*base)[-1]


def test_heads_are_taken_out_again_only_of_a_newer_model(tmp_path):
    blockwise = Recipe(tmp_path, "blockwise")
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


@pytest.mark.parametrize(
    "script, own, made, report_has",
    [
        ("gad", "--arch block_nat_fast", "out/drafter]", "--device cuda"),
        ("blockwise", "--block-size 4", "out/model] ", "--raw=data/raw/valid.de --device cuda"),
        ("reordered", "--arch double_token", "out/model] ", "--beam 10"),
    ],
)
def test_options_reach_the_steps_that_they_are_for(tmp_path, script, own, made, report_has):
    general = "--preset tiny --updates 7 --seed 3 --threads 2 --processes 4".split()
    given = (*own.split(), *general, "--", "--lr", "1e-3; rm -rf $HOME")
    steps = Recipe(tmp_path, script).steps(*given, DEVICE="cuda")
    for step in steps:
        learns = step.startswith("train.sh") and made in step
        assert ("[--updates] [7]" in step) == ("[--lr] [1e-3; rm -rf $HOME]" in step) == learns
        if step.startswith("train.sh"):
            assert words("--preset tiny --seed 3 --processes 4") in step
            assert "[--threads] [2]" in step
        if step.startswith("distill.sh"):
            assert words("--device cuda --processes 4") in step and "[16000]" in step
    train = next(step for step in steps if made in step)
    assert words(own) in train and words(report_has) in steps[-1]


# ---- try-outs, signals, failures, mistakes -------------------------------------------------------


@pytest.mark.parametrize("script", RECIPES)
def test_a_try_out_leaves_nothing_and_a_step_that_fails_ends_it(tmp_path, script):
    recipe = Recipe(tmp_path, script)
    (tmp_path / "tmp").mkdir()
    result = recipe.run(recipe.data, "--smoke", TMPDIR=str(tmp_path / "tmp"))
    assert result.returncode == 0, result.stderr
    steps = [step for step in recipe.record.read_text().splitlines() if "[--smoke]" not in step]
    assert [step.split()[0] for step in steps] == ["shrink"] * (script == "blockwise")
    assert not list((tmp_path / "tmp").iterdir())
    recipe.record.unlink()
    where = [recipe.data, "--save-dir", recipe.folder / "out"]
    result = recipe.run(*where, FAIL=f"out/{'base' if 'block' in script else 'teacher'}")
    assert result.returncode == 3 and len(recipe.record.read_text().splitlines()) == 1
    assert result.stderr.endswith(f"train_{script}: stopped by an error in train.sh\n")


@pytest.mark.slow
@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_step_and_the_same_command_goes_on(tmp_path, sent, status):
    gad = Recipe(tmp_path, "gad")
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
    with process.stderr as stream:
        assert "the same command goes on" in stream.read()
    assert "terminated" in gad.record.read_text().splitlines()[-1]
    assert not (gad.folder / "out" / "greedy.train").exists()
    assert len(gad.steps()) == 7


MISTAKES = {
    "gad": [
        ("", "got 0 paths; needed: DATA"),
        ("DATA --save-dir a:b", "--save-dir: got 'a:b'; allowed: a path without ':'"),
        ("EMPTY", "which has no validation set (valid.*.idx)"),
        ("DATA --arch transformer", "--arch: got 'transformer'; allowed: a drafter's"),
        ("DATA --teacher BASE:/none.pt", "missing teacher (--teacher): /none.pt"),
        ("DATA --teacher BASE --verifier BASE", "of which nothing would be learned"),
        ("DATA '--fast[$(touch x)]'", "unknown option: --fast[$(touch x)]"),
    ],
    "blockwise": [
        ("EMPTY", "which has no training set (train.*.idx)"),
        ("DATA --block-size 1", "--block-size: got '1'; allowed: from 2 up with --set"),
        ("DATA --teacher BASE", "of which nothing would be learned; allowed: with --set"),
        ("DATA --setting both --distilled EMPTY", "missing training set (--distil"),
        ("DATA --setting both --distilled OTHER", "a folder with DATA's dict.de.txt"),
        ("DATA -- --fine-tune-base", "--fine-tune-base: got it after --; allowed: --s"),
    ],
    "reordered": [
        ("DATA --arch block_nat", "--arch: got 'block_nat'; allowed: ibdecoder "),
        ("DATA --distilled OTHER", "a folder with DATA's dict.de.txt"),
        ("DATA --no-distillation --teacher BASE", "of which nothing would be learned"),
        ("DATA --teacher BASE:BASE --from-teacher", "an ensemble; allowed: one model"),
        ("DATA --arch transformer --from-teacher", "--from-teacher: got --arch"),
    ],
}


@pytest.mark.parametrize("script", RECIPES)
def test_mistakes_are_named_before_work_starts(tmp_path, script):
    recipe = Recipe(tmp_path, script)
    for args, message in MISTAKES[script]:
        given = [recipe.place(word) for word in shlex.split(args)]
        recipe.refuses(message, "--save-dir", recipe.folder / "no", *given)


# ---- the list of experiments ---------------------------------------------------------------------


def test_the_list_of_experiments(tmp_path):
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

    trains = re.compile(r"(multi30k-tiny|wmt14-base)-\S+  scripts/train")
    made = [shlex.split(line) for line in lines if trains.match(line)]
    folders = [one[one.index("--save-dir") + 1] for one in made]
    assert folders == [f"checkpoints/{one[0].split('[')[0]}" for one in made]
    assert len(folders) == len(set(folders))
    assert set(PRESETS) <= {one[one.index("--arch") + 1] for one in made if "--arch" in one}
    for line in lines:
        for checkpoint in re.findall(r"(checkpoints/(?:multi30k-tiny|wmt14)-\S+?)/\S*\.pt", line):
            assert checkpoint in folders or "$" in checkpoint, checkpoint

    tables = [line for line in lines if "acceptance" in line and "--decoding blockwise" in line]
    for line in tables:
        waits = re.findall(r"\[after=(\S+)\]", line)[0].split(",")
        paths = re.findall(r"--path checkpoints/([\w-]+-blockwise-[\w-]+)/", line)
        assert paths and set(paths) == set(waits), line
    assert tables


# ---- the real thing, once ------------------------------------------------------------------------


@pytest.mark.slow
def test_reordered_killed_and_gone_on_with(tmp_path):
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
