"""fairseq's commands as a user runs them, each in a process of its own, on data made up here."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "fairseq_paradec"
DEMO = ROOT / "data-bin" / "demo.en-de"

#: Sentences in the test set of ``write_corpus``: 40 = 5 * 7 + 5, so that batches of 7 leave a rest.
TEST_SENTENCES = 40

#: The smallest model that trains: 1+1 layers, 16 dimensions.
TRAINING = (
    "--arch transformer --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 "
    "--decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2 --optimizer adam --lr 0.01 "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 500 "
    "--no-epoch-checkpoints --no-progress-bar --eval-bleu --best-checkpoint-metric bleu "
    "--maximize-best-checkpoint-metric"
).split()


def run_python(
    code: str,
    *args: object,
    python: Path | str = sys.executable,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process, in which ``-P`` keeps the current folder off sys.path.

    Installed scripts do the same: only what is installed, or named by --user-dir, is found.
    """
    return subprocess.run(
        [str(python), "-P", "-c", code, *map(str, args)],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LOGLEVEL")}
        | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


def fairseq(
    command: str,
    *args: object,
    before: str = "",
    python: Path | str = sys.executable,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run ``fairseq-COMMAND``; ``before`` is Python code to be run first in the same process."""
    code = f"{before}\nfrom fairseq_cli.{command} import cli_main\ncli_main()"
    return run_python(code, *args, python=python, cwd=cwd, env=env, stdin=stdin)


def succeed(result: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Return the result of a command that must have gone well; show its errors if not."""
    assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-1000:]
    return result


def write_corpus(folder: Path, words: int = 20) -> None:
    """Write random sentence pairs, train, valid and test: w3 in English is v3 in German."""
    rng = random.Random(1)
    for split, count in (("train", 200), ("valid", 13), ("test", TEST_SENTENCES)):
        # Every word occurs, so that the size of the dictionary is known.
        lines = [list(range(words))] * (split == "train")
        lines += [[rng.randrange(words) for _ in range(rng.randint(2, 9))] for _ in range(count)]
        lines = lines[:count]
        for language, letter in (("en", "w"), ("de", "v")):
            text = "".join(" ".join(f"{letter}{i}" for i in line) + "\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def preprocess(folder: Path, words: int = 20) -> Path:
    """Write a corpus into the folder, binarise it, and return the data-bin folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder, words)
    prefixes: Sequence[object] = [
        item for split in ("train", "valid", "test") for item in (f"--{split}pref", folder / split)
    ]
    data = folder / "data-bin"
    succeed(fairseq("preprocess", "-s", "en", "-t", "de", *prefixes, "--destdir", data))
    return data


def lines_of(text: str, kind: str) -> list[str]:
    """Return the lines of fairseq's output that start with, for example, ``H-``."""
    return [line for line in text.splitlines() if line.startswith(f"{kind}-")]
