"""paradec distill: what it makes, that no interruption or division of the work changes it.

The corpus is 72 sentences: the demo's, an empty one and one that is longer than the teacher takes,
in two pieces (train, train1).
"""

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from support.commands import DEMO, ROOT, fairseq, lines_of, succeed, wait_until

from fairseq_paradec.cli.distill import plan
from fairseq_paradec.cli.main import main as paradec

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


def made(dest):
    """All files of a finished folder."""
    found = {str(p.relative_to(dest)): p.read_bytes() for p in dest.rglob("*") if p.is_file()}
    assert "distilled.json" in found
    return found


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
        ".lock", "distilled.json", *copies, *ours
    }  # fmt: skip
    assert all((data / name).read_bytes() == (whole / name).read_bytes() for name in copies)
    raw = {path.name: path.read_text() for path in (whole / "raw").iterdir()}
    assert raw == {name: f"raw {name}\n" for name in ("valid.en", "test.de")}


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


def test_batches_hold_every_sentence_once_and_keep_the_limits():
    """Padding counts; a sentence that is too long has a batch of its own."""
    for sizes, tokens, count, wanted in (
        ([3, 9, 1, 4, 4, 30], 12, 2, [[1], [2, 0], [3, 4], [5]]),
        ([3, 3, 5, 3], 9, None, [[0, 1, 3], [2]]),
        ([3, 3, 3, 3, 3], None, 2, [[0, 1], [2, 3], [4]]),
    ):
        assert sorted(plan.make_batches(sizes, tokens, count)) == wanted


@pytest.mark.slow
def test_a_command_stopped_and_killed_goes_on_where_it_was(data, tmp_path):
    """Ctrl-C, then SIGKILL, then two processes do the rest; no part is done twice."""
    dest, twin = tmp_path / 'it\'s a "dest"', tmp_path / "twin"
    options = ("--path", TEACHER, "--batch-size", 1, "--lenpen", -1)
    script = (ROOT / "scripts" / "distill.sh", data, *options, "--python", sys.executable)
    command = [*map(str, (*script, "--processes", 2, dest))]
    seen = {}

    def parts():
        found = (dest / "parts").glob("0*.jsonl") if dest.is_dir() else ()
        return {path: path.stat().st_mtime_ns for path in found}

    for sent, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        piped = {"stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **piped, start_new_session=True)
        wait_until(lambda: len(parts()) > len(seen), process)  # noqa: B023
        os.killpg(process.pid, sent)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == status
        assert ("finished parts are kept" in errors) == (sent == signal.SIGINT)
        assert seen.items() <= parts().items() and len(parts()) < 9
        seen = parts()
    for said in (f"{SENTENCES} sentences, 2 of them left out", "already made"):
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0 and said in result.stderr, result.stderr
    assert seen.items() <= parts().items()
    assert paradec(["distill", *map(str, (data, *options, twin))]) == 0
    assert made(dest) == made(twin)


def test_another_setting_or_teacher_is_refused_by_name(data, whole, tmp_path, capsys):
    other, changed, copy = tmp_path / "other.pt", tmp_path / "changed", tmp_path / "copy"
    state = torch.load(TEACHER, weights_only=True)
    state["cfg"]["task"] |= {"source_lang": "de", "target_lang": "en"}
    torch.save(state, other)
    shutil.copytree(data, changed)
    shutil.copy(data / "train.en-de.en.bin", changed / "train1.en-de.en.bin")
    shutil.copytree(whole / "parts", copy / "parts")
    part = copy / "parts" / "000000000.jsonl"
    part.write_bytes(part.read_bytes().replace(b'"ids":[', b'"ids":[72,', 1))
    same = "allowed: the same, or another DEST"
    for folder, dest, options, words in (
        (data, copy, ["--beam", 4], ["--beam: got 4", "with 5", str(copy), same]),
        (data, copy, ["--path", other], ["--path", same]),
        (changed, copy, [], ["DATA: got files", same]),
        (data, data, [], ["DEST: got", "holds other files"]),
        (data, copy, [], [f"{part} is not the part"]),
        (data, tmp_path / "a:b", [], ["DEST: got", "without ':'"]),
        (data, tmp_path / "new", ["--subset", "no"], ["--subset: got", "train1 valid"]),
        (data, tmp_path / "new", ["--path", other], ["got 'a teacher for de-en'; allowed: one"]),
    ):
        assert distill(folder, dest, *options) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert all(word in error for word in words), error
