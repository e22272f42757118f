"""distill.sh: what it makes, that no interruption or division of the work changes it, refusals.

The corpus is 72 sentences: the demo's, an empty one and one that is longer than the teacher takes,
in two pieces (train, train1).
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from support.commands import DEMO, ROOT, fairseq, lines_of, succeed, wait_until

from fairseq_paradec.cli.distill import merge, parts, shard
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError

TEACHER = DEMO / "model.pt"
EMPTY, TOO_LONG, SENTENCES = 3, 7, 72
WORDS = {lang: Dictionary.load(str(DEMO / f"dict.{lang}.txt")) for lang in ("en", "de")}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"):
        monkeypatch.delenv(name, raising=False)


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


def begin(data, dest, *options, shards=1, size=8):
    given = [data, dest, "--path", TEACHER, "--subset", "train", "--beam", 5, "--lenpen", -1]
    given += ["--batch-size", size, "--num-shards", shards, *options]
    return paradec(["distill", "parts", *map(str, given)])


def translate(data, dest, *shards, path=TEACHER):
    """As paradec distill shard, but for what becomes of an error."""
    given = [data, dest, *shards, "--path", path, "--device", "cpu", "--worker", 0]
    parser = argparse.ArgumentParser()
    shard.declare(parser)
    assert shard.run(parser.parse_args([*map(str, given)])) == 0


def made(dest):
    """All of a finished folder but its parts, and the settings, which name the shards."""
    found = {str(p.relative_to(dest)): p.read_bytes() for p in dest.rglob("*") if p.is_file()}
    assert "distilled.json" in found
    return {k: v for k, v in found.items() if k != "distilled.json" and not k.startswith("parts/")}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Made by one shard, never interrupted."""
    dest = tmp_path_factory.mktemp("whole") / "dest"
    assert begin(data, dest) == 0
    translate(data, dest, 0)
    merge.merge(data, dest)
    return dest


@pytest.fixture
def copy(whole, tmp_path):
    """A folder with all parts, not merged."""
    shutil.copytree(whole / "parts", tmp_path / "copy" / "parts")
    return tmp_path / "copy"


def command(*args, python=sys.executable):
    return [*map(str, (ROOT / "scripts" / "distill.sh", *args, "--python", python))]


def shell(*args, python=sys.executable, **variables):
    env = os.environ | variables
    return subprocess.run(command(*args, python=python), env=env, capture_output=True, text=True)


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
    assert {p.name for p in whole.iterdir() if p.is_file()} == copies | ours | {"distilled.json"}
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


SLURM = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(("options", "variables", "expected"), [
    ("--processes 2 --num-shards 5", {}, ["0: 0 2 4", "1: 1 3", "merge"]),
    ("--num-shards 9", TORCHRUN, ["1: 3 7"]),
    ("", SLURM, ["0: 2"]),
    ("--num-shards 3 --shard-id 1", SLURM | TORCHRUN, ["0: 1"]),
    ("--merge --batch-size 8 --lenpen -1", TORCHRUN, ["merge"]),
])  # fmt: skip
def test_who_does_which_shards(data, tmp_path, options, variables, expected):
    """Told by a Python that writes down who is to do which shards, instead of translating them."""
    spy = tmp_path / "spy python"
    spy.write_text(f"""#!/usr/bin/env bash
case "$4 $5" in
    "distill shard") while [ "$1" != --worker ]; do shift; done; said="$2: ${{*:6}}" ;;
    "distill merge") said=merge ;;
    *) exec "{sys.executable}" "$@" ;;
esac
echo "$said" >>'{tmp_path}/log'
""")
    spy.chmod(0o755)
    if "--merge" in options:  # then the folder tells the number of shards
        assert begin(data, tmp_path / "dest", shards=3) == 0
    given = (data, "--path", TEACHER, *options.split(), tmp_path / "dest")
    result = shell(*given, python=spy, **variables)
    assert result.returncode == 0, result.stderr
    assert sorted((tmp_path / "log").read_text().splitlines()) == expected


def test_batches_hold_every_sentence_once_and_keep_the_limits():
    """Padding counts; a sentence that is too long has a batch of its own."""
    for sizes, tokens, count, wanted in (
        ([3, 9, 1, 4, 4, 30], 12, 2, [[1], [2, 0], [3, 4], [5]]),
        ([3, 3, 5, 3], 9, None, [[0, 1, 3], [2]]),
        ([3, 3, 3, 3, 3], None, 2, [[0, 1], [2, 3], [4]]),
    ):
        assert sorted(parts.make_batches(sizes, tokens, count)) == wanted


BATCHES = [[4, 0], [1], [3, 5, 2], [6, 7], [8]]


def fake(ids):
    return [[100 + i] * (i % 3) for i in ids]


def test_a_shard_killed_after_any_batch_and_torn_at_any_byte_ends_the_same(tmp_path):
    path = tmp_path / "part"
    shard.run_shard(path, BATCHES, fake)
    full = path.read_bytes()
    assert [list(json.loads(line)["ids"]) for line in full.splitlines()] == BATCHES
    for length in range(len(full)):
        for tail in (b"", b"\0\0\0"):
            path.write_bytes(full[:length] + tail)
            seen = []
            shard.run_shard(path, BATCHES, lambda ids: seen.append(ids) or fake(ids))  # noqa: B023
            assert path.read_bytes() == full
            assert seen == BATCHES[full[:length].count(b"\n") :]


def test_a_part_is_refused_to_a_second_process_and_to_other_batches(tmp_path):
    path = tmp_path / "part"

    def meddles(ids):
        with pytest.raises(UsageError, match="another process is at work on .*part"):
            shard.run_shard(path, BATCHES, fake)
        return fake(ids)

    shard.run_shard(path, BATCHES, meddles)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="part holds other batches"):
        shard.run_shard(path, BATCHES[1:], fake)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_command_stopped_and_killed_goes_on_where_it_was(data, tmp_path):
    """Ctrl-C, then SIGKILL, then two processes do the rest; no batch is done twice."""
    dest, twin = tmp_path / 'it\'s a "dest"', tmp_path / "twin"
    part = dest / "parts" / "0-of-2.jsonl"
    given = (data, "--path", TEACHER, "--batch-size", 1, "--lenpen", -1, "--processes", 2, dest)
    before = b""

    def goes_on():
        return part.is_file() and part.read_bytes().count(b"\n") > before.count(b"\n") + 3

    for sent, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        piped = {"stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command(*given), **piped, start_new_session=True)
        wait_until(goes_on, process)
        os.killpg(process.pid, sent)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == status
        assert ("finished batches are kept" in errors) == (sent == signal.SIGINT)
        with part.open("ab") as stream:  # freed as soon as the process is gone
            shard.fcntl.flock(stream, shard.fcntl.LOCK_EX)
        assert part.read_bytes().startswith(before)
        before = part.read_bytes()[: part.read_bytes().rfind(b"\n") + 1]
    result = shell(*given)
    assert result.returncode == 0, result.stderr
    assert f"{SENTENCES} sentences, 2 of them left out" in result.stderr
    assert "already made" in shell(*given).stderr
    assert begin(data, twin, size=1, shards=2) == 0
    translate(data, twin, 0, 1)
    merge.merge(data, twin)
    assert made(dest) == made(twin) and part.read_bytes().startswith(before)
    assert part.read_bytes() == (twin / "parts" / part.name).read_bytes()


def test_missing_doubled_and_foreign_sentences_are_named(data, copy):
    part = copy / "parts" / "0-of-1.jsonl"
    lines = part.read_bytes().splitlines(keepends=True)
    last = ", ".join(map(str, sorted(json.loads(lines[-1])["ids"])))
    foreign = parts.format_batch(parts.Batch([SENTENCES], [[5]]))
    for content, message in (
        (lines[:-1], f"are missing: {last}; shards not finished: 0$"),
        ([*lines, lines[-1]], f"are doubled: {last}; remove"),
        ([*lines, foreign], f"of another subset: {SENTENCES}; remove"),
    ):
        part.write_bytes(b"".join(content))
        with pytest.raises(UsageError, match=message):
            merge.merge(data, copy)
        assert not (copy / "text").exists()


def test_another_setting_or_teacher_is_refused_by_name(data, copy, tmp_path, capsys):
    other, changed = tmp_path / "other.pt", tmp_path / "changed"
    state = torch.load(TEACHER, weights_only=True)
    state["cfg"]["task"] |= {"source_lang": "de", "target_lang": "en"}
    torch.save(state, other)
    shutil.copytree(data, changed)
    shutil.copy(data / "train.en-de.en.bin", changed / "train1.en-de.en.bin")
    for folder, options, words in (
        (data, ["--beam", 4], ["--beam", "4", "5"]),
        (data, ["--path", other], ["--path"]),
        (changed, [], ["DATA: got files"]),
    ):
        assert begin(folder, copy, *options) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "allowed: the same, or another DEST" in error
        assert all(word in error for word in (*words, str(copy))), error
    assert begin(data, data) == 2 and "holds other files" in capsys.readouterr().err
    assert begin(data, tmp_path / "dest", "--path", other) == 0
    with pytest.raises(UsageError, match="--path: got a teacher for de-en; allowed: one for en-de"):
        translate(data, tmp_path / "dest", 0, path=other)
