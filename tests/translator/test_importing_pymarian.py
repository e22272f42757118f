"""Models that Marian itself trains, and what it says of them, where pymarian is installed.

pymarian has 600 MB and is in no extra; only its module is needed: a folder with ``_pymarian*.so``,
named by PYTHONPATH.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.builders import DEMO
from support.marian import own_pieces

import fairseq_paradec
from fairseq_paradec.cli.main import main
from fairseq_paradec.translator.importing.marian_files import MarianFile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("_pymarian") is None, reason="needs pymarian"),
]

EN_DE = ["--source", "en", "--target", "de"]
TIED, SHARED = "--tied-embeddings", "--tied-embeddings-all"
PRE = "--transformer-preprocess n --transformer-postprocess da"
#: What models are trained with, beside a small size.
SHAPES = {
    "post-norm": SHARED,
    "pre-norm": f"{SHARED} {PRE} --transformer-postprocess-top n",
    "pre-norm without a last norm": f"{SHARED} {PRE}",
    "tied layers": f"{TIED} --transformer-tied-layers 1 1 --transformer-decoder-dim-ffn 48",
    "no projection": "--tied-embeddings-src --transformer-no-projection",
    "relu": f"{SHARED} --transformer-ffn-activation relu",
    "gelu": f"{SHARED} --transformer-ffn-activation gelu",
    "three tables": "--output-omit-bias --transformer-no-bias --transformer-no-affine",
    "a norm of embeddings": f"{SHARED} --transformer-postprocess-emb nd",
    "positions that were not trained": f"{SHARED} --transformer-train-position-embeddings",
}
#: Its decoder norms a pre-norm model's keys at the first word alone; its scorer norms all.
DECODED = [name for name in SHAPES if not name.startswith("pre-norm")]


def marian(folder: Path, *words: str) -> str:
    """Run a command of Marian in a folder: -> what it prints."""
    code = "import sys, _pymarian; _pymarian.main(sys.argv[1:])"
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=os.environ, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def trained(folder: Path, shape: str) -> None:
    """Train a small model for sixty updates: model.npz, and sentences en.txt and de.txt."""
    folder.mkdir()
    shutil.copy(own_pieces(), folder / "vocab.spm")
    for language in ("en", "de"):
        shutil.copy(DEMO / f"raw/demo.{language}", folder / f"all.{language}")
        lines = (folder / f"all.{language}").read_text("utf-8").splitlines()[:12]
        (folder / f"{language}.txt").write_text("\n".join(lines) + "\n", "utf-8")
    size = "--dim-emb 32 --enc-depth 2 --dec-depth 2 --transformer-heads 4 --transformer-dim-ffn 64"
    files = "-m model.npz -t all.en all.de -v vocab.spm vocab.spm --cpu-threads 1 -w 300"
    learning = "--type transformer --seed 7 --mini-batch 32 --after 60u --learn-rate 0.01"
    marian(folder, "train", *f"{size} {files} {learning} {SHAPES[shape]}".split())


@pytest.mark.parametrize("shape", SHAPES)
def test_translations_have_the_log_probabilities_of_marian(shape: str, tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    trained(given, shape)
    command = "-m model.npz -v vocab.spm vocab.spm --cpu-threads 1 -t en.txt de.txt --word-scores"
    said = marian(given, "score", *command.split()).splitlines()
    theirs = [[float(one) for one in line.split("WordScores=")[1].split()] for line in said]
    assert main(["import", str(given), str(out), *EN_DE]) == 0
    sources, targets = ((given / f"{one}.txt").read_text().splitlines() for one in ("en", "de"))
    ours = [score.scores for score in fairseq_paradec.load(out).score(sources, targets)]
    worst = max(np.abs(np.subtract(*pair)).max() for pair in zip(ours, theirs, strict=True))
    print(f"{shape}: {sum(map(len, ours))} words, log-probabilities to {worst:.1e}")
    assert worst < 2e-4  # Marian's norms add 1e-9 to a variance, fairseq's 1e-5


@pytest.mark.parametrize("shape", DECODED)
def test_greedy_outputs_are_those_of_marian(shape: str, tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    trained(given, shape)
    command = "-m model.npz -v vocab.spm vocab.spm --cpu-threads 1 -b 1 -i en.txt --allow-unk"
    theirs = marian(given, "decode", *command.split(), "--max-length-factor", "2").splitlines()
    assert main(["import", str(given), str(out), *EN_DE]) == 0
    lines = (given / "en.txt").read_text("utf-8").splitlines()
    model = fairseq_paradec.load(out)
    ours = [
        model.translate(line, decoding="greedy", max_len_b=2 * _length(line) + 2) for line in lines
    ]
    # Where an output does not end, the limits differ.
    assert all(a.startswith(b) or b.startswith(a) for a, b in zip(ours, theirs, strict=True))
    assert all(ours)


def _length(line: str) -> int:
    """How many pieces a line has."""
    import sentencepiece

    return len(sentencepiece.SentencePieceProcessor(model_file=str(own_pieces())).encode(line))


@pytest.mark.parametrize("kind", ["float32", "intgemm8", "intgemm16"])
@pytest.mark.parametrize("shape", ["post-norm", "tied layers", "three tables"])
def test_binary_files_of_marian_are_read(kind: str, shape: str, tmp_path: Path) -> None:
    """Each weight is what was converted, to half a step of its numbers."""
    given = tmp_path / "given"
    trained(given, shape)
    marian(given, "convert", "-f", "model.npz", "-t", "model.bin", "-g", kind)
    steps = {"float32": 0.0, "intgemm8": 1 / 127, "intgemm16": 1 / 1024}
    read, whole = MarianFile(given / "model.bin"), MarianFile(given / "model.npz")
    for name in whole.left():
        weight = whole.take(name)
        largest = np.abs(weight).max() if kind == "intgemm8" else 1.0
        allowed = 0.5001 * steps[kind] * largest
        assert np.abs(read.take(name) - weight).max() <= allowed, name
    assert not read.left()


@pytest.mark.parametrize("kind", ["packed16", "intgemm8avx2"])
def test_files_for_one_kind_of_processors_are_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "given"
    trained(given, "post-norm")
    marian(given, "convert", "-f", "model.npz", "-t", "model.bin", "-g", kind)
    assert main(["import", str(given / "model.bin"), str(tmp_path / "out"), *EN_DE]) == 2
    assert "others are for one kind of processors" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
