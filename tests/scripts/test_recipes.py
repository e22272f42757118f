"""scripts/train_drafter.sh, _blockwise.sh and _reordered.sh, with steps that only write
down what they are told; and one of them with real steps."""

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

from fairseq_paradec.training import checkpoints

RECIPES = ("drafter", "blockwise", "reordered")

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
    *"fairseq_paradec train "* | *"fairseq_paradec distill "* | \
        *"fairseq_paradec benchmark "*)
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
        for name in ("train", "distill", "benchmark"):
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
        names = "DATA|BASE|TEACHER|DISTILLED|OTHER|EMPTY"
        return re.sub(names, lambda found: str(getattr(self, found[0].lower())), word)

    def program(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *args, **env):
        given = {"args": self.command(*args), "env": self.env(**env)}
        return subprocess.run(**given, capture_output=True, text=True, timeout=300)

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


def words(text):
    """As the steps write down what they are told."""
    return " ".join(f"[{word}]" for word in shlex.split(text))


SHOWN = "path drafter-path arch decoder-layers start-from beam subset".split()


def short(step):
    """Its name, what it reads and makes, and such of its flags; model.pt is left out of paths."""
    name, told = step.split()[0].removesuffix(".sh"), re.findall(r"\[(.*?)\]", step)
    if name == "shrink":
        return " ".join([name, *told])
    told = [re.sub("^(--sweep=)?(?=drafter-path=|beam=)", "--", word) for word in told]
    flags = dict(zip(told, told[1:])) | dict(one.split("=", 1) for one in told if "=" in one)
    name = flags.get("--preset", name) if name == "benchmark" else name
    made = flags.get("--save-dir") or flags.get("--out") or told[1]
    shown = [f"{flag}={flags[f'--{flag}']}" for flag in SHOWN if f"--{flag}" in flags]
    return " ".join([name, f"{told[0]}>{made}", *shown]).replace("/model.pt", "")


TEACHER = ["train data>out/teacher"]
TAUGHT = "distill data>out/data.en-de path="
REPORT = "acceptance data>out/acceptance.json path="
QUALITY = "quality data>out/quality.json path="
SHRINK = "shrink --heads-only --max-mb 10000 -- out/model/model.pt out/heads.pt"
SHALLOW = "shallow_decoder decoder-layers"
HEADED = "arch=blockwise_transformer start-from"


def drafted(data, verifier, arch="block_nat"):
    """A drafter and its report."""
    return [
        f"train {data}>out/drafter arch={arch} start-from={verifier}",
        f"{REPORT}{verifier} drafter-path=out/drafter subset=valid",
    ]


def greedy(verifier, *arch):
    """What a verifier says, and a drafter of it."""
    return [
        f"distill data>out/greedy.train path={verifier} beam=1",
        f"distill out/greedy.train>out/greedy path={verifier} beam=1 subset=valid",
        *drafted("out/greedy", verifier, *arch),
    ]


STEPS = [
    (
        "drafter",
        "--kind block",
        [
            *TEACHER,
            "distill data>out/distilled path=out/teacher",
            "train out/distilled>out/verifier",
            *greedy("out/verifier"),
        ],
    ),
    ("drafter", "--kind block --verifier BASE", greedy("base.pt")),
    (
        "drafter",
        "--kind block --teacher TEACHER:BASE --draft-on teacher",
        [
            "distill data>out/distilled path=teacher.pt:base.pt",
            "train out/distilled>out/verifier",
            *drafted("out/distilled", "out/verifier"),
        ],
    ),
    ("drafter", "", ["train data>out/verifier", *greedy("out/verifier", f"{SHALLOW}=1")]),
    (
        "drafter",
        "--verifier BASE --layers 2 --draft-on references",
        drafted("data", "base.pt", f"{SHALLOW}=2"),
    ),
    (
        "blockwise",
        "--setting regular",
        [
            "train data>out/base",
            f"train data>out/model {HEADED}=out/base",
            SHRINK,
            f"{REPORT}out/base drafter-path=out/heads.pt subset=valid",
        ],
    ),
    (
        "blockwise",
        "--setting both --base BASE --teacher TEACHER:BASE",
        [
            f"{TAUGHT}teacher.pt:base.pt",
            f"train out/data.en-de>out/model {HEADED}=base.pt",
            f"{REPORT}out/model subset=valid",
        ],
    ),
    (
        "blockwise",
        "--setting both --base BASE --distilled DISTILLED --preset tiny",
        [
            f"train distilled>out/frozen {HEADED}=base.pt",
            f"train distilled>out/model {HEADED}=out/frozen",
            f"{REPORT}out/model subset=valid",
        ],
    ),
    (
        "blockwise",
        "--setting fine-tuning --base BASE --heads TEACHER --preset tiny",
        [f"train data>out/model {HEADED}=teacher.pt", f"{REPORT}out/model subset=valid"],
    ),
    (
        "reordered",
        "",
        [
            *TEACHER,
            f"{TAUGHT}out/teacher",
            "train out/data.en-de>out/model arch=ibdecoder",
            f"{QUALITY}out/model beam=1,4 subset=test",
        ],
    ),
    (
        "reordered",
        "--no-distillation --from-teacher",
        [
            *TEACHER,
            "train data>out/model arch=ibdecoder start-from=out/teacher",
            f"{QUALITY}out/model beam=1,4 subset=test",
        ],
    ),
]


@pytest.mark.parametrize("script, given, expected", STEPS)
def test_the_steps(tmp_path, script, given, expected):
    """All that is needed, and nothing that is given."""
    recipe = Recipe(tmp_path, script)
    steps = recipe.steps(*(recipe.place(word) for word in given.split()))
    assert [short(step) for step in steps] == expected
    tunes = "both" in given or "fine-tuning" in given
    assert ["out/model" in step for step in steps if "[--fine-tune-base]" in step] == [True] * tunes


def test_the_steps_of_blockwise_on_images(tmp_path):
    blockwise = Recipe(tmp_path, "blockwise")
    (blockwise.data / "sizes.json").touch()
    first, second, report = blockwise.steps("--setting", "fine-tuning")
    assert short(first) == "train data>out/base arch=image_transformer"
    made = "train data>out/model arch=blockwise_image_transformer start-from=out/base"
    assert short(second) == made and "[--fine-tune-base]" in second
    assert words("--sweep=accept-distance=0,2") in report


def test_heads_are_taken_out_again_only_of_a_newer_model(tmp_path):
    blockwise = Recipe(tmp_path, "blockwise")
    base = ["--base", blockwise.base]
    blockwise.steps(*base)
    heads, whole = (blockwise.folder / "out" / name for name in ("heads.pt", "model/model.pt"))
    for age, wanted in ((5, False), (-5, True)):
        # The stub of paradec train touches the model, as the real one does only when it trains.
        (blockwise.folder / "scripts" / "train.sh").write_text("#!/bin/sh\n")
        os.utime(whole, (heads.stat().st_mtime - age,) * 2)
        assert (SHRINK in map(short, blockwise.steps(*base))) == wanted
    (first,) = blockwise.steps(*base, "--", "--train-first-head")
    assert short(first) == f"{REPORT}out/model subset=valid"  # heads of their own


@pytest.mark.parametrize(
    ("script", "own", "made"),
    [
        ("drafter", "--arch block_nat_fast", "out/drafter]"),
        ("blockwise", "--block-size 4", "out/model] "),
        ("reordered", "--arch double_token", "out/model] "),
    ],
)
def test_options_reach_the_steps_that_they_are_for(tmp_path, script, own, made):
    general = "--preset small --updates 7 --seed 3 --threads 2 --processes 4".split()
    kind = ("--kind", "block") if script == "drafter" else ()
    given = (*kind, *own.split(), *general, "--", "--lr", "1e-3; rm -rf $HOME")
    for step in Recipe(tmp_path, script).steps(*given, DEVICE="cuda"):
        learns = step.startswith("train.sh") and made in step
        for option in ("[--updates] [7]", "[--lr] [1e-3; rm -rf $HOME]", words(own)):
            assert (option in step) == learns
        if step.startswith("train.sh"):
            assert words("--preset small --seed 3 --processes 4") in step
            assert "[--threads] [2]" in step
        if step.startswith("distill.sh"):
            assert words("--device cuda --processes 4") in step and "[16000]" in step


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
    first = {"blockwise": "base", "drafter": "verifier"}.get(script, "teacher")
    result = recipe.run(*where, FAIL=f"out/{first}")
    assert result.returncode == 3 and len(recipe.record.read_text().splitlines()) == 1
    assert result.stderr.endswith(f"train_{script}: stopped by an error in paradec train\n")


@pytest.mark.slow
@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_step_and_the_same_command_goes_on(tmp_path, sent, status):
    drafter = Recipe(tmp_path, "drafter")
    options = [drafter.data, "--save-dir", drafter.folder / "out", "--kind", "block"]
    given = {"env": drafter.env(WAIT="out/verifier"), "text": True, "stderr": subprocess.PIPE}
    process = subprocess.Popen(drafter.command(*options), **given)
    record = drafter.record
    wait_until(lambda: record.exists() and record.read_text().endswith("waiting\n"), process)
    other = drafter.run(*options)
    assert other.returncode == 2
    assert f"--save-dir: got '{drafter.folder}/out', in which another process" in other.stderr
    process.send_signal(sent)
    assert process.wait(300) == status
    with process.stderr as stream:
        assert "the same command goes on" in stream.read()
    assert "terminated" in record.read_text().splitlines()[-1]
    assert not (drafter.folder / "out" / "greedy.train").exists()
    assert len(drafter.steps("--kind", "block")) == 7


MISTAKES = {
    "drafter": [
        ("", "got 0 paths; needed: DATA"),
        ("EMPTY", "which has no validation set (valid.*.idx)"),
        ("DATA --kind none", "--kind: got 'none'; allowed: shallow block"),
        ("DATA --kind block --teacher BASE:/none.pt", "missing teacher (--teacher): /none.pt"),
        ("DATA --kind block --teacher BASE --verifier BASE", "of which nothing would be learned"),
        ("DATA --teacher BASE", "of which nothing would be learned"),
        ("DATA '--fast[$(touch x)]'", "unknown option: --fast[$(touch x)]"),
        ("DATA --fast", "--fast: got it with --kind shallow; allowed: with --kind block"),
        ("DATA --arch block_nat", "--arch: got 'block_nat' with --kind shallow; allowed: with"),
        ("DATA --kind block --layers 2", "--layers: got '2' with --kind block; allowed: with"),
        ("DATA --kind block --arch transformer", "--arch: got 'transformer'; allowed: a drafter's"),
        ("DATA --layers 0", "--layers: got '0'; allowed: a whole number from 1 up"),
        ("DATA --draft-on none", "--draft-on: got 'none'; allowed: own-greedy teacher references"),
        ("DATA --verifier /none.pt", "missing verifier (--verifier): /none.pt"),
    ],
    "blockwise": [
        ("EMPTY", "which has no training set (train.*.idx)"),
        ("DATA --block-size 1", "--block-size: got '1'; allowed: from 2 up with --set"),
        ("DATA --setting both --distilled OTHER", "a folder with DATA's dict.de.txt"),
        ("DATA --base BASE --heads BASE", "allowed: with --setting fine-tuning or both, and the"),
        ("DATA -- --fine-tune-base", "--fine-tune-base: got it after --; allowed: --s"),
    ],
    "reordered": [("DATA --teacher BASE:BASE --from-teacher", "an ensemble; allowed: one model")],
}


@pytest.mark.parametrize("script", RECIPES)
def test_mistakes_are_named_before_work_starts(tmp_path, script):
    recipe = Recipe(tmp_path, script)
    for args, message in MISTAKES[script]:
        given = [recipe.place(word) for word in shlex.split(args)]
        result = recipe.run("--save-dir", recipe.folder / "no", *given)
        assert result.returncode == 2, args
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
        assert not recipe.record.exists() and not (recipe.folder / "no").exists()


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
    state = checkpoints.read_state(model)["model"]
    layers = {name.split(".")[2] for name in state if name.startswith("decoder.layers.")}
    assert layers == {"0", "1"}
