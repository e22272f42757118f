"""The shell scripts of training, with steps that only write down what they are told."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from support.commands import ROOT, wait_until

SCRIPTS = ROOT / "scripts"
TRAIN = SCRIPTS / "train.sh"
ENV = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}


def train(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [str(TRAIN), *map(str, args)]
    return subprocess.run(command, env=ENV | env, capture_output=True, text=True, timeout=300)


STUB = """#!/usr/bin/env bash
case "$*" in
    *find_spec*) ;;
    *sizes.json*) exec "REAL" "$@" ;;
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
        self.python.write_text(STUB.replace("REAL", sys.executable))
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
        pairs = [(word[2:], after) for word, after in zip(words, words[1:]) if word[:2] == "--"]
        found = {name: "" if after.startswith("--") else after for name, after in pairs}
        return found | {"threads": words[-1].split()[1]}

    def values(self, flag: str) -> list[str]:
        """What follows a flag wherever it was given to the last run."""
        words = self.record.read_text().splitlines()
        return [after for word, after in zip(words, words[1:]) if word == flag]


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

    def __init__(self, folder: Path, script: str) -> None:
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

    def place(self, word: str) -> str:
        """Put the path of such a file or folder for each name, such as BASE, in a word."""
        return re.sub(
            "DATA|BASE|TEACHER|DISTILLED|OTHER|EMPTY",
            lambda found: str(getattr(self, found[0].lower())),
            word,
        )

    def program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the script with these arguments."""
        return subprocess.run(
            self.command(*args), env=self.env(**env), capture_output=True, text=True, timeout=300
        )

    def command(self, *args: object) -> list[str]:
        return [*map(str, (self.folder / "scripts" / self.script, *args))]

    def env(self, **env: str) -> dict[str, str]:
        return ENV | {"RECORD": str(self.record), "PYTHON": str(self.folder / "python")} | env

    def steps(self, *args: object, **env: str) -> list[str]:
        """What the steps were told, with the folder's path left out."""
        self.record.unlink(missing_ok=True)
        result = self.run(self.data, "--save-dir", self.folder / "out", *args, **env)
        assert result.returncode == 0, result.stderr
        return self.record.read_text().replace(f"{self.folder}/", "").splitlines()

    def refuses(self, message: str, *args: object) -> None:
        """Assert that it says so in a line, before any step."""
        result = self.run(*args)
        assert result.returncode == 2, args
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
        assert not self.record.exists() and not (self.folder / "no").exists()


def cut_short(command: list[str], made: Path) -> str:
    """Kill a recipe as soon as it has made something, give it again, and return what it says."""
    process = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: list(made.parent.glob(made.name)), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    result = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr
