"""The shell scripts of training, with steps that only write down what they are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.commands import ROOT

SCRIPTS = ROOT / "scripts"


TRAIN = SCRIPTS / "train.sh"


ENV = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}


def train(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [str(TRAIN), *map(str, args)]
    return subprocess.run(command, env=ENV | env, capture_output=True, text=True, timeout=300)


STUB = """#!/usr/bin/env bash
case "$*" in
    *find_spec*) ;;
    *device_count*) echo "$GPUS" ;;
    *socket*) echo 12345 ;;
    *"paradec resume"*) echo "$UPDATES" ;;
    *"paradec average"*) printf '%s\\n' "$@" >"$RECORD.average" ;;
    *fairseq_cli.train*)
        # Ranks run side by side: each appends what it is told in one piece.
        printf '%s\\n' "$@" "THREADS $OMP_NUM_THREADS" >"$RECORD.$$"
        cat "$RECORD.$$" >>"$RECORD"
        rm "$RECORD.$$"
        [ -z "$FAIL" ] && exit
        [[ "$*" == *"--distributed-rank 1"* ]] || { touch "$RECORD.$PPID"; exec sleep 600; }
        until [ -e "$RECORD.$PPID" ]; do sleep 0.01; done # the other rank runs
        exit "$FAIL"
        ;;
esac
"""


class Stubbed:
    """train.sh with a Python that writes down what it is told."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self.dictionary("en", "a 1\n")
        self.dictionary("de", "a 1\n")
        self.record = folder / "record"
        self.save_dir = folder / "model"
        self.python = folder / "python"
        self.python.write_text(STUB)
        self.python.chmod(0o755)

    def dictionary(self, language: str, text: str) -> None:
        (self.data / f"dict.{language}.txt").write_text(text)

    def run(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        settings = {"RECORD": str(self.record), "GPUS": "0", "UPDATES": "0", "FAIL": ""} | env
        flags = ["--save-dir", self.save_dir, "--python", self.python]
        return train(self.data, *flags, *args, **settings)

    def flags(self, *args: object, **env: str) -> dict[str, str]:
        """fairseq-train's flags with their values; those without one have an empty one."""
        self.record.unlink(missing_ok=True)
        assert self.run(*args, **env).returncode == 0
        words = self.record.read_text().splitlines()
        found = {}
        for word, after in zip(words, words[1:]):
            if word.startswith("--"):
                found[word[2:]] = "" if after.startswith("--") else after
        found["threads"] = words[-1].split()[1]
        return found


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
    *"fairseq_paradec acceptance "*) exec "${PYTHONPATH%%:*}/scripts/acceptance.sh" "${@:5}" ;;
esac
"""


class Recipe:
    """train_gad.sh with such steps, in folders whose paths have a space and a quote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "it's a folder"
        scripts = self.folder / "scripts"
        scripts.mkdir(parents=True)
        for name in ("train_gad.sh", "lib.sh"):
            shutil.copy(SCRIPTS / name, scripts)
        for name in ("train.sh", "distill.sh", "acceptance.sh"):
            self.program(scripts / name, STEP)
        self.program(self.folder / "python", PYTHON)
        self.data = self.folder / "data"
        self.data.mkdir()
        (self.data / "valid.en-de.en.idx").touch()
        self.verifier = self.folder / "verifier.pt"
        self.teacher = self.folder / "teacher.pt"
        self.verifier.touch()
        self.teacher.touch()
        self.record = self.folder / "record"

    def program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def command(self, *args: object) -> list[str]:
        given = [self.folder / "scripts" / "train_gad.sh", self.data, *args]
        return [*map(str, given)]

    def env(self, env: dict[str, str]) -> dict[str, str]:
        return ENV | {"RECORD": str(self.record), "PYTHON": str(self.folder / "python")} | env

    def run(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        command = self.command("--save-dir", self.folder / "gad", *args)
        return subprocess.run(
            command, env=self.env(env), capture_output=True, text=True, timeout=300
        )

    def is_waiting(self) -> bool:
        return self.record.exists() and self.record.read_text().endswith("waiting\n")

    def steps(self, *args: object, **env: str) -> list[str]:
        """What the steps were told, with the folder's path left out."""
        self.record.unlink(missing_ok=True)
        result = self.run(*args, **env)
        assert result.returncode == 0, result.stderr
        return self.record.read_text().replace(f"{self.folder}/", "").splitlines()


SETTINGS = "[--preset] [base] [--seed] [1] [--processes] [1] [--python] [python]"


TRANSLATE = "[--device] [cpu] [--processes] [1] [--python] [python]"


def names(steps: list[str]) -> list[str]:
    """Of each step the script and what it makes."""
    words = [step.split() for step in steps]
    places = {"train.sh": 3, "distill.sh": 2, "acceptance.sh": -1}
    return [f"{word[0]} {word[places[word[0]]]}" for word in words]


BLOCKWISE_PYTHON = """#!/usr/bin/env bash
case "$*" in
    *find_spec*) ;;
    *is_available*) echo "${DEVICE:-cpu}" ;;
    *"fairseq_paradec acceptance "*) exec "${PYTHONPATH%%:*}/scripts/acceptance.sh" "${@:5}" ;;
    *"paradec shrink"*)
        { printf shrink; printf ' [%s]' "${@:5}"; echo; } >>"$RECORD"
        touch -- "${@: -1}"
        ;;
esac
"""


class Blockwise(Recipe):
    """train_blockwise.sh with steps that only write down what they are told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shutil.copy(SCRIPTS / "train_blockwise.sh", self.folder / "scripts")
        self.program(self.folder / "python", BLOCKWISE_PYTHON)
        (self.data / "raw").mkdir()
        for name in ("train.en-de.de.idx", "valid.en-de.de.idx", "test.en-de.de.idx"):
            (self.data / name).touch()
        for name in ("raw/valid.de", "dict.de.txt"):
            (self.data / name).touch()
        self.distilled = self.folder / "distilled"
        shutil.copytree(self.data, self.distilled)
        self.base = self.verifier.rename(self.folder / "base.pt")

    def command(self, *args: object) -> list[str]:
        script, *rest = super().command(*args)
        return [script.replace("train_gad.sh", "train_blockwise.sh"), *rest]
