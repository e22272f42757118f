"""paradec data cross-sources: more sources for distillation, from those that there are."""

import shutil

from fairseq.data import Dictionary, data_utils
from support.commands import DEMO

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.training.commands.data.cross_sources import cross


def test_sentences_are_cut_between_words():
    first, second = "a b@@ c d e".split(), "r s t@@ u@@ v".split()  # 4 and 3 words
    assert cross(first, second, 0.0) == second
    assert cross(first, second, 1.0) == first
    assert cross(first, second, 0.5) == "a b@@ c t@@ u@@ v".split()  # 2 of 4 words, 2 of 3
    assert cross(["▁a", "b", "▁c"], ["▁d", "▁e", "f"], 0.5) == ["▁a", "b", "▁e", "f"]


def test_a_folder_of_crossed_sources(tmp_path, capsys):
    """Of the demo's test set, as if it were for training."""
    data, one, two = (tmp_path / name for name in ("it's data", "one", "two"))
    data.mkdir()
    for file in [*DEMO.glob("test.*"), *DEMO.glob("dict.*")]:
        shutil.copy(file, data / file.name.replace("test.", "train.", 1))
    names = sorted(file.name for file in data.iterdir())
    for made in (one, two):
        assert paradec(["data", "cross-sources", str(data), str(made), "--times", "2"]) == 0
        assert sorted(file.name for file in made.iterdir()) == names
    for name in names:  # the same seed, the same files
        assert (one / name).read_bytes() == (two / name).read_bytes()
    words = Dictionary.load(str(data / "dict.en.txt"))
    old, new, targets = (
        [tokens.tolist() for tokens in data_utils.load_indexed_dataset(str(path))]
        for path in (data / "train.en-de.en", one / "train.en-de.en", one / "train.en-de.de")
    )
    assert len(new) == 300 and new[:100] == old and targets == targets[:100] * 3
    known = {token for tokens in old for token in tokens}
    assert all(tokens[-1] == words.eos() and set(tokens) <= known for tokens in new)
    assert sum(tokens != old[i % 100] for i, tokens in enumerate(new)) > 150

    assert paradec(["data", "cross-sources", str(data), str(data)]) == 2
    assert "DEST: got" in capsys.readouterr().err
