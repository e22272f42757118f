"""scripts/prepare_summarisation.sh and paradec data captions, on text made up here."""

import random

import pytest
from fairseq.data import Dictionary, data_utils
from support.recipes import contents, kill_at, read, succeed, write

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.training.commands.data import captions

NAME = "prepare_summarisation"
SIDES = ("document", "summary")
#: A folder whose name a shell would act on, were it ever given it.
ODD = "it's $(touch pwned); `touch pwned` & *"


def corpus(folder):
    """Texts of which one document has 600 words, and a summary 120."""
    lots = random.Random(4)

    def text(words):
        return " ".join(lots.choices("anna bert carl, dora's emil. fritz".split(), k=words))

    for split, count in (("train", 30), ("valid", 4), ("test", 5)):
        write(folder / f"{split}.document", [text(600 if i == 1 else 12) for i in range(count)])
        write(folder / f"{split}.summary", [text(120 if i == 1 else 4) for i in range(count)])
    return folder


@pytest.mark.slow
def test_a_data_folder(tmp_path):
    """Stopped at its last step, taken up there, and loaded by fairseq: a document fits 1024."""
    texts, dest = corpus(tmp_path / ODD), tmp_path / f"made of {ODD}"
    args = ["--from", texts, "--vocab", 60, dest]
    kill_at("fairseq_cli.preprocess", NAME, *args)
    assert not list(dest.glob("*.bin")) and len(read(dest / "bpe" / "train.document")) == 30
    assert "split by BPE: done before" in succeed(NAME, *args, cwd=tmp_path)
    assert not list(tmp_path.rglob("pwned"))
    for path in texts.iterdir():  # not cut: nobody asked for it
        assert read(dest / "raw" / path.name) == read(path)
    # The tokeniser is the English one: it parts 's, and keeps it escaped.
    assert any("dora &apos;s" in line for line in read(dest / "tok" / "train.document"))
    assert read(dest / "dict.document.txt") == read(dest / "dict.summary.txt")
    words = Dictionary.load(str(dest / "dict.document.txt"))
    prefix = str(dest / "test.document-summary.document")
    lengths = [len(line.split()) + 1 for line in read(dest / "bpe" / "test.document")]  # </s>
    assert data_utils.load_indexed_dataset(prefix, words).sizes.tolist() == lengths
    assert 512 < lengths[1] < 1024


@pytest.mark.slow
def test_tokens_are_cut_and_stay(tmp_path):
    """With the papers' limits: documents in all splits, summaries in train alone."""
    texts, dest = corpus(tmp_path / "texts"), tmp_path / "dest"
    # No-break spaces and stray returns are white space, and lines stay lines.
    write(texts / "test.document", ["a\u00a0b\rc d e", "", *["x 's &lt; y"] * 3])
    limits = ["--max-document", 400, "--max-summary", 100]
    kill_at("subword_nmt.learn_bpe", NAME, "--from", texts, "--tokenized", *limits, dest)
    for name, count in (
        ("train.summary", 100),
        ("valid.summary", 120),
        ("train.document", 400),
        ("valid.document", 400),
    ):
        assert read(dest / "tok" / name)[1].split() == read(texts / name)[1].split()[:count]
    assert read(dest / "tok" / "test.document")[:3] == ["a b c d e", "", "x 's &lt; y"]
    assert read(dest / "raw" / "test.document")[2] == "x's < y"  # by English rules


@pytest.fixture
def texts(tmp_path):
    """Captions, of which some are in several splits."""
    folder = tmp_path / "it's here"
    birds = [f"A bird {i} sings at night ." for i in range(7)]
    cats = [f"A cat {i} sleeps at home ." for i in range(9)]
    dogs = [f"The dog {i} runs near tree {i} ." for i in range(23)]
    write(folder / "train.en", [*dogs, cats[1].upper(), birds[0]])
    write(folder / "valid.en", [*birds, cats[2]])
    write(folder / "test.en", cats)
    return folder


def make(texts, name, options):
    """Have documents made; return of each split the sentences of both sides, pair by pair."""
    folder = texts.parent / name
    assert paradec(["data", "captions", str(texts), str(folder), *options.split()]) == 0
    return {
        split: [
            tuple(text.removesuffix(" .").split(" . ") for text in pair)
            for pair in zip(*(read(folder / f"{split}.{side}") for side in SIDES), strict=True)
        ]
        for split in ("train", "valid", "test")
    }


def test_documents_of_captions(texts):
    made = make(texts, "one", "--captions 4 --times 3")
    assert [len(pairs) for pairs in made.values()] == [15, 1, 2]
    for (split, pairs), animal in zip(made.items(), ("dog", "bird", "cat"), strict=True):
        for document, summary in pairs:
            # "The dog 3 runs near tree 3": its first four words
            assert len(document) == 4
            assert summary == [" ".join(text.split()[:4]) for text in document]
        each = [text for document, _ in pairs for text in document]
        # A round has each caption at most once: of train 5 documents of 4, of 23 captions.
        assert len(set(each[:20])) == len(each[:20])
        assert {text.split()[1] for text in each} == {animal}, split  # none in two splits
    for caption, clause in (
        ("A man in a red hat stands On a ladder .", "A man in a red hat stands"),
        ("Two young , white dogs run .", "Two young , white dogs run"),  # too early
        ("Three cats sleep , and dogs play .", "Three cats sleep"),
        ("Dog", "Dog"),
    ):
        assert captions.first_clause(caption) == clause
    make(texts, "same", "--captions 4 --times 3")
    make(texts, "other", "--captions 4 --times 3 --seed 2")
    one, same, other = (contents(texts.parent / name) for name in ("one", "same", "other"))
    assert one == same != other
