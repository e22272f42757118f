"""paradec distill: what it makes and refuses; test_corpus.py has interruptions and several workers.

The corpus is 72 sentences: the demo's, an empty one and one that is longer than the teacher takes,
in two pieces (train, train1).
"""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from support.commands import DEMO, fairseq, lines_of, succeed

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.training.distill import plan
from fairseq_paradec.training.distill.merge import REPORT, loops

TEACHER = DEMO / "model.pt"
EMPTY, TOO_LONG, SENTENCES = 3, 7, 72
WORDS = {lang: Dictionary.load(str(DEMO / f"dict.{lang}.txt")) for lang in ("en", "de")}


@pytest.fixture(scope="module")
def corpus():
    """The sources."""
    demo = data_utils.load_indexed_dataset(str(DEMO / "test.en-de.en"), WORDS["en"])
    sentences = [demo[i] for i in range(SENTENCES - 2)]
    end = torch.tensor([WORDS["en"].eos()])
    sentences.insert(EMPTY, end)
    sentences.insert(TOO_LONG, torch.cat([torch.full((1100,), 10), end]))
    return sentences


@pytest.fixture(scope="module")
def data(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("da ta's")
    for lang in ("en", "de"):
        for piece, sentences in (("train", corpus[:62]), ("train1", corpus[62:])):
            prefix = str(folder / f"{piece}.en-de.{lang}")
            builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", len(WORDS[lang]))
            for sentence in sentences:
                builder.add_item(sentence if lang == "en" else torch.tensor([9, 2]))
            builder.finalize(f"{prefix}.idx")
        shutil.copy(DEMO / f"dict.{lang}.txt", folder)
        for end in ("bin", "idx"):
            name = f"en-de.{lang}.{end}"
            for split in ("valid", "test"):
                shutil.copy(DEMO / f"test.{name}", folder / f"{split}.{name}")
    (folder / "raw").mkdir()
    for name in ("train.de", "valid.en", "test.de", "notes.txt"):
        (folder / "raw" / name).write_text(f"raw {name}\n")
    return folder


def distill(data, dest, *options):
    given = [data, dest, "--path", TEACHER, "--lenpen", -1, "--batch-size", 8, *options]
    return paradec(["distill", *map(str, given)])


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Made by one process, never interrupted."""
    dest = tmp_path_factory.mktemp("whole") / "dest"
    assert distill(data, dest) == 0
    return dest


def test_the_folder_holds_the_teachers_translations(data, whole, corpus):
    text = {n: (whole / "text" / f"train.{n}").read_text().splitlines() for n in ("en", "de")}
    assert text["en"] == [WORDS["en"].string(s) for s in corpus]
    assert [i for i, line in enumerate(text["de"]) if not line] == [EMPTY, TOO_LONG]
    assert len(text["de"]) == SENTENCES
    left_out = [r.split("\t")[:2] for r in (whole / "text/left-out.txt").read_text().splitlines()]
    assert left_out == [[str(EMPTY), "1"], [str(TOO_LONG), "1101"]]
    kept = [i for i in range(SENTENCES) if i not in (EMPTY, TOO_LONG)]
    for lang, words in WORDS.items():
        dataset = data_utils.load_indexed_dataset(str(whole / f"train.en-de.{lang}"), words)
        assert [words.string(s) for s in dataset] == [text[lang][i] for i in kept]
        assert all(s[-1] == words.eos() and s.dtype == torch.int64 for s in dataset)

    copies = {p.name for p in data.iterdir() if p.name.startswith(("dict", "valid", "test"))}
    ours = {f"train.en-de.{lang}.{end}" for lang in WORDS for end in ("bin", "idx")}
    assert {p.name for p in whole.iterdir() if p.is_file()} == {
        ".lock",
        "distilled.json",
        *copies,
        *ours,
    }
    assert all((data / name).read_bytes() == (whole / name).read_bytes() for name in copies)
    raw = {path.name: path.read_text() for path in (whole / "raw").iterdir()}
    assert raw == {name: f"raw {name}\n" for name in ("valid.en", "test.de")}


def test_loops_are_left_out(data, whole, tmp_path, capsys):
    """Those of the same translations; a folder with them is no folder without."""
    repeats = lambda t, n: any(t[i : i + n] * 3 == t[i : i + 3 * n] for i in range(len(t)))  # noqa: E731
    drawn = random.Random(1)
    for _ in range(500):
        tokens = drawn.choices(range(drawn.choice([2, 3])), k=drawn.randrange(14))
        assert loops(tokens) == any(repeats(tokens, n) for n in range(1, 5))
    copy = tmp_path / "copy"
    shutil.copytree(whole / "parts", copy / "parts")
    assert distill(data, copy, "--no-loops") == 2
    assert "--no-loops: got True" in capsys.readouterr().err
    part, file = copy / "parts" / "000000000.jsonl", copy / "parts" / "settings.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"no-loops": True}))
    rows = [json.loads(row) for row in part.read_text().splitlines()]
    rows[0]["targets"][0] = [9, 8, 9, 8, 9, 8]
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert distill(data, copy, "--no-loops") == 0
    left_out = [r.split("\t")[0] for r in (copy / "text/left-out.txt").read_text().splitlines()]
    assert set(left_out) == {str(EMPTY), str(TOO_LONG), str(rows[0]["ids"][0])}
    kept = data_utils.load_indexed_dataset(str(copy / "train.en-de.de"), WORDS["de"])
    assert len(kept) == SENTENCES - 3


@pytest.mark.slow
def test_translations_are_those_of_stock_generate(data, whole):
    """fairseq without this plugin, in batches of its own."""
    options = "--gen-subset train --beam 5 --lenpen -1 --max-tokens 300 -s en -t de --cpu"
    options += " --required-batch-size-multiple 1 --skip-invalid-size-inputs-valid-test"
    out = succeed(fairseq("generate", data, "--path", TEACHER, *options.split()))
    stock = {int(r.split("\t")[0][2:]): r.split("\t")[2] for r in lines_of(out.stdout, "H")}
    assert sorted(stock) == [i for i in range(62) if i != TOO_LONG]
    del stock[EMPTY]  # what fairseq makes of nothing
    ours = (whole / "text" / "train.de").read_text().splitlines()
    assert {i: ours[i] for i in stock} == stock


def test_another_setting_or_teacher_is_refused_by_name(data, whole, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(whole / "parts", copy / "parts")
    part = copy / "parts" / "000000000.jsonl"
    part.write_bytes(part.read_bytes().replace(b'"ids":[', b'"ids":[72,', 1))
    same = "allowed: the same, or another DEST"
    for dest, options, said in (
        (copy, ["--beam", 4], f"--beam: got 4, but DEST ({copy}) was begun with 5; {same}"),
        (copy, ["--path", DEMO / "ibdecoder.pt"], same),
        (data, [], "holds other files"),
        (copy, [], f"{part} is not the part"),
        (tmp_path / "new", ["--subset", "no"], "test train train1 valid"),
    ):
        assert distill(data, dest, *options) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("other", ["teacher", "data"])
def test_a_worker_with_another_teacher_or_other_data_is_refused(data, whole, tmp_path, other):
    """On a cluster a path may hold another file on each machine."""
    settings = json.loads((whole / "parts" / "settings.json").read_text())
    here = shutil.copytree(data, tmp_path / "data")
    path = tmp_path / "teacher.pt"
    shutil.copy(TEACHER if other == "data" else DEMO / "ibdecoder.pt", path)
    said = "--path: got .*teacher.pt'; allowed: the same teacher on all machines"
    if other == "data":
        said = "DATA: got .*train.en-de.en.bin'; allowed: the same data on all machines"
        shutil.copy(here / "valid.en-de.en.bin", here / "train.en-de.en.bin")
    with pytest.raises(UsageError, match=said):
        plan.teacher(here, str(path), settings, "cpu")
    assert plan.teacher(data, str(TEACHER), settings, "cpu")


def test_what_the_report_speaks_of_is_on_the_disk_before_it(data, whole, tmp_path, monkeypatch):
    dest = tmp_path / "dest"
    shutil.copytree(whole / "parts", dest / "parts")
    synced, opened = [], os.open

    def open_named(path, *more, **others):
        synced.append(Path(path))
        return opened(path, *more, **others)

    monkeypatch.setattr(os, "open", open_named)
    assert distill(data, dest) == 0
    names = [path.name for path in synced]
    for path in whole.rglob("*"):
        if path.is_file() and path.parent.name != "parts" and path.name not in (".lock", REPORT):
            assert path.name in names, path
    assert synced.index(dest) < names.index("dest", names.index("dest") + 1)  # the report's
    assert {dest / "text", dest / "raw"} <= {*synced}


@pytest.mark.parametrize(
    ("max_tokens", "batch_size", "batches"),
    [
        (2000, None, 8),
        (4000, None, 4),
        (16000, None, 1),
        (50000, 9, 1),
        (None, 64, 8),
        (99, 512, 2),
    ],
)
def test_a_part_has_fewer_of_large_batches(max_tokens, batch_size, batches):
    assert plan.batches_of_part(max_tokens, batch_size) == batches
