"""paradec data cross-sources: more sources for distillation, from those that there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fairseq.data import Dictionary, data_utils
from support.commands import DEMO, ROOT, run_python, succeed

from fairseq_paradec.cli.data.cross_sources import cross


def run_command(*args: object, python: str | None = None) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "from fairseq_paradec.cli.main import main\nsys.exit(main())"
    return run_python(code, "data", "cross-sources", *args, python=python)


def test_sentences_are_cut_between_words():
    first, second = "a b@@ c d e".split(), "r s t@@ u@@ v".split()  # 4 and 3 words
    assert cross(first, second, 0.0) == second
    assert cross(first, second, 1.0) == first
    assert cross(first, second, 0.5) == "a b@@ c t@@ u@@ v".split()  # 2 of 4 words, 2 of 3
    assert cross(["▁a", "b", "▁c"], ["▁d", "▁e", "f"], 0.5) == ["▁a", "b", "▁e", "f"]


def training_set(folder: Path) -> Path:
    """A folder whose training set is the demo's test set."""
    folder.mkdir()
    for file in DEMO.glob("test.*"):
        (folder / file.name.replace("test.", "train.", 1)).write_bytes(file.read_bytes())
    for file in DEMO.glob("dict.*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_folder_of_crossed_sources(tmp_path):
    data = training_set(tmp_path / "it's data")
    for name, python in (("one", None), ("two", sys.executable)):
        succeed(run_command(data, tmp_path / name, "--times", 2, python=python))
    names = sorted(file.name for file in data.iterdir())
    assert sorted(file.name for file in (tmp_path / "one").iterdir()) == names
    for name in names:  # the same seed, the same files
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    words = Dictionary.load(str(data / "dict.en.txt"))
    old = data_utils.load_indexed_dataset(str(data / "train.en-de.en"))
    new = data_utils.load_indexed_dataset(str(tmp_path / "one" / "train.en-de.en"))
    targets = data_utils.load_indexed_dataset(str(tmp_path / "one" / "train.en-de.de"))
    assert len(new) == len(targets) == 300
    assert all(new[i].tolist() == old[i].tolist() for i in range(100))
    known = {token for i in range(100) for token in old[i].tolist()}
    changed = 0
    for i in range(100, 300):
        tokens = new[i].tolist()
        assert tokens[-1] == words.eos() and set(tokens) <= known
        assert targets[i].tolist() == targets[i % 100].tolist()
        changed += tokens != old[i % 100].tolist()
    assert changed > 150


def test_mistakes_are_named(tmp_path):
    data = training_set(tmp_path / "data")
    for arguments, words in (
        ((tmp_path / "none", tmp_path / "x"), "DATA: got"),
        ((data, data), "DEST: got"),
        ((data, tmp_path / "x", "--times", "0"), "--times"),
        ((DEMO, tmp_path / "x"), "train.en-de"),
    ):
        done = run_command(*arguments)
        assert done.returncode == 2 and words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "x").exists()
