"""paradec data cross-sources: more sources for distillation, from those that there are."""

from __future__ import annotations

from pathlib import Path

from fairseq.data import Dictionary, data_utils
from support.commands import DEMO

from fairseq_paradec.cli.data.cross_sources import cross
from fairseq_paradec.cli.main import main as paradec


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
    names = sorted(file.name for file in data.iterdir())
    for name in ("one", "two"):
        given = [str(data), str(tmp_path / name), "--times", "2"]
        assert paradec(["data", "cross-sources", *given]) == 0
        assert sorted(file.name for file in (tmp_path / name).iterdir()) == names
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


def test_mistakes_are_named(tmp_path, capsys):
    data, out = training_set(tmp_path / "data"), tmp_path / "x"
    for arguments, words in (
        ((tmp_path / "none", out), "DATA: got"),
        ((data, data), "DEST: got"),
        ((DEMO, out), "train.en-de"),
    ):
        assert paradec(["data", "cross-sources", *map(str, arguments)]) == 2
        assert words in capsys.readouterr().err and not out.exists()
