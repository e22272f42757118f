"""scripts/prepare_summarisation.sh and paradec data captions, on text made up here."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from support.recipes import contents, kill_at, read, refuse, succeed, write

from fairseq_paradec.cli.data import captions
from fairseq_paradec.cli.main import main as paradec

NAME = "prepare_summarisation"
SIDES = ("document", "summary")
#: A folder whose name a shell would act on, were it ever given it.
ODD = "it's $(touch pwned); `touch pwned` & *"
LONG = 600


def corpus(folder: Path) -> Path:
    """Texts of which one document has 600 words, and a summary 120."""
    lots = random.Random(4)

    def text(words: int) -> str:
        return " ".join(lots.choices("anna bert carl, dora's emil. fritz".split(), k=words))

    for split, count in (("train", 30), ("valid", 4), ("test", 5)):
        write(folder / f"{split}.document", [text(LONG if i == 1 else 12) for i in range(count)])
        write(folder / f"{split}.summary", [text(120 if i == 1 else 4) for i in range(count)])
    return folder


def task_of(data: Path, positions: int) -> Any:
    """The translation task on a data folder, as fairseq-generate sets it up."""
    size = str(positions)
    flags = ["--max-source-positions", size, "--max-target-positions", size]
    parser = options.get_generation_parser()
    args = options.parse_args_and_arch(parser, [str(data), "-s", SIDES[0], "-t", SIDES[1], *flags])
    return tasks.setup_task(convert_namespace_to_omegaconf(args).task)


@pytest.mark.slow
def test_a_data_folder(tmp_path: Path) -> None:
    """Stopped at its last step, taken up there, and loaded by fairseq with 1024 positions."""
    texts = corpus(tmp_path / ODD)
    dest = tmp_path / f"made of {ODD}"
    args = ["--from", texts, "--vocab", 60, dest]
    kill_at("fairseq_cli.preprocess", NAME, *args)
    assert not list(dest.glob("*.bin")) and len(read(dest / "bpe" / "train.document")) == 30
    assert "split by BPE: done before" in succeed(NAME, *args, cwd=tmp_path)
    assert not list(tmp_path.rglob("pwned"))
    for split in ("train", "valid", "test"):
        for side in SIDES:  # not cut: nobody asked for it
            assert read(dest / "raw" / f"{split}.{side}") == read(texts / f"{split}.{side}")
    # The tokeniser is the English one: it parts 's, and keeps it escaped.
    assert any("dora &apos;s" in line for line in read(dest / "tok" / "train.document"))
    assert read(dest / "dict.document.txt") == read(dest / "dict.summary.txt")

    task = task_of(dest, 1024)
    task.load_dataset("test")
    dataset = task.dataset("test")
    lengths = [len(line.split()) + 1 for line in read(dest / "bpe" / "test.document")]  # </s>
    assert dataset.src_sizes.tolist() == lengths and 512 < lengths[1] < 1024
    for positions, lost in ((1024, []), (512, [1])):
        limits = (positions, positions)
        assert dataset.filter_indices_by_size(dataset.ordered_indices(), limits)[1] == lost
    said = refuse(NAME, *args[:-1], "--tokenized", dest)
    assert "was made otherwise (was tokenized , is now tokenized yes)" in said


@pytest.mark.slow
def test_tokens_are_cut_and_stay(tmp_path: Path) -> None:
    """With the papers' limits: documents in all splits, summaries in train alone."""
    texts = corpus(tmp_path / "texts")
    # No-break spaces and stray returns are white space, and lines stay lines.
    write(texts / "test.document", ["a\u00a0b\rc d e", "", *["x 's &lt; y"] * 3])
    dest = tmp_path / "dest"
    limits = ["--max-document", 400, "--max-summary", 100]
    kill_at("subword_nmt.learn_bpe", NAME, "--from", texts, "--tokenized", *limits, dest)
    for split, count in (("train", 100), ("valid", 120)):
        long = read(texts / f"{split}.summary")[1].split()
        assert read(dest / "tok" / f"{split}.summary")[1].split() == long[:count]
        lines = read(texts / f"{split}.document")
        assert read(dest / "tok" / f"{split}.document")[1].split() == lines[1].split()[:400]
    assert read(dest / "tok" / "test.document")[:3] == ["a b c d e", "", "x 's &lt; y"]
    assert read(dest / "raw" / "test.document")[2] == "x's < y"  # by English rules


def test_mistakes_of_the_recipe(tmp_path: Path) -> None:
    texts, dest = corpus(tmp_path / "texts"), tmp_path / "dest"
    for args, words in (
        (["--max-document", "0"], "--max-document: got '0'; allowed: a whole number from 1 up"),
        (["--language", "English"], "--language: got 'English'; allowed: two or three letters"),
        (["--tokenised"], "unknown option: --tokenised"),
    ):
        assert words in refuse(NAME, "--from", texts, *args, dest)
    (texts / "valid.summary").unlink()
    said = refuse(NAME, "--from", texts, dest)
    assert f"missing input file: {texts}/valid.summary" in said and not dest.exists()


# ---- the stand-in --------------------------------------------------------------------------------


def caption_files(folder: Path) -> Path:
    """Captions, of which some are in several splits."""
    train = [f"The dog {i} runs near tree {i} ." for i in range(23)]
    write(folder / "train.en", [*train, "A CAT 1 sleeps at home .", "A bird 0 sings at night ."])
    valid = [f"A bird {i} sings at night ." for i in range(7)]
    write(folder / "valid.en", [*valid, "A cat 2 sleeps at home ."])
    write(folder / "test.en", [f"A cat {i} sleeps at home ." for i in range(9)])
    return folder


def made(folder: Path, split: str) -> list[tuple[str, str]]:
    documents, summaries = (read(folder / f"{split}.{side}") for side in SIDES)
    return list(zip(documents, summaries, strict=True))


def parts(text: str) -> list[str]:
    """The sentences of a document or summary."""
    assert text.endswith(" .")
    return text.removesuffix(" .").split(" . ")


def test_documents_of_captions(tmp_path: Path, capsys: Any) -> None:
    texts = caption_files(tmp_path / "it's here")
    args = [str(texts), str(tmp_path / "a" / "one"), "--captions", "4", "--times", "3"]
    assert paradec(["data", "captions", *args]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "test: 2 documents", "valid: 1 documents", "train: 15 documents"
    ]  # fmt: skip
    folder, seen = tmp_path / "a" / "one", {}
    for split in ("train", "valid", "test"):
        pairs = made(folder, split)
        for document, summary in pairs:
            # "The dog 3 runs near tree 3": its first four words
            wanted = [" ".join(text.split()[:4]) for text in parts(document)]
            assert parts(summary) == wanted and len(wanted) == 4
        each = [text for document, _ in pairs for text in parts(document)]
        # A round has each caption at most once: of train 5 documents of 4, of 23 captions.
        assert len(set(each[:20])) == len(each[:20])
        seen[split] = {text.lower() for text in each}
    assert not seen["train"] & (seen["test"] | seen["valid"]) and not seen["valid"] & seen["test"]
    assert {text.split()[1] for text in seen["train"]} == {"dog"}  # also those left over in test
    assert {text.split()[1] for text in seen["valid"]} == {"bird"}
    for caption, clause in (
        ("A man in a red hat stands On a ladder .", "A man in a red hat stands"),
        ("Two young , white dogs run .", "Two young , white dogs run"),  # too early
        ("Three cats sleep , and dogs play .", "Three cats sleep"),
        ("Dog", "Dog"),
    ):
        assert captions.first_clause(caption) == clause
    assert paradec(["data", "captions", args[0], str(tmp_path / "same"), *args[2:]]) == 0
    assert (
        paradec(["data", "captions", args[0], str(tmp_path / "other"), *args[2:], "--seed", "2"])
        == 0
    )
    assert contents(folder) == contents(tmp_path / "same") != contents(tmp_path / "other")


def test_documents_of_several_lengths(tmp_path: Path) -> None:
    texts = str(caption_files(tmp_path / "texts"))
    for name, sizes, *more in (
        ("both", "3,2,3"), ("one", "3"), ("brief", "3,2", "--summarised", "1"),
        ("few", "3,2", "--most", "1"),
    ):  # fmt: skip
        args = [texts, str(tmp_path / name), "--captions", sizes, "--times", "2", *more]
        assert paradec(["data", "captions", *args]) == 0
    for split, rounds, available in (("train", 2, 23), ("valid", 1, 7), ("test", 1, 9)):
        pairs = made(tmp_path / "both", split)
        lengths = [len(parts(document)) for document, _ in pairs]
        # a length given twice counts once
        assert lengths == [3] * (rounds * (available // 3)) + [2] * (rounds * (available // 2))
        assert lengths == [len(parts(summary)) for _, summary in pairs]
        one = made(tmp_path / "one", split)
        assert pairs[: len(one)] == one
        assert all(len(parts(summary)) == 1 for _, summary in made(tmp_path / "brief", split))
        few = pairs if split == "train" else [pairs[0], pairs[len(one)]]
        assert made(tmp_path / "few", split) == few


def test_mistakes_with_captions(tmp_path: Path, capsys: Any) -> None:
    texts, dest = caption_files(tmp_path / "texts"), tmp_path / "dest"
    for args, words in (
        ([texts, texts], "DEST: got"),
        ([tmp_path, dest], "TEXTS: got"),
        ([texts, dest, "--captions", "6,4", "--summarised", "5"], "allowed: at most --captions, 4"),
        ([texts, dest, "--captions", "2,9"], "allowed: at least --captions, 9"),
        ([texts, dest, "--captions", "9"], "valid.en: got 7 captions that no other split has"),
    ):
        assert paradec(["data", "captions", *map(str, args)]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1
    with pytest.raises(SystemExit):
        paradec(["data", "captions", str(texts), str(dest), "--captions", "2,0"])
    assert not dest.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".captions")]
