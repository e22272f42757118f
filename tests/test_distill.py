"""distill.sh: what it makes, that no interruption or division of the work changes it, refusals.

The corpus is 72 sentences: the demo's, an empty one and one that is longer than the teacher takes,
in two pieces (train, train1).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from support.commands import DEMO, ROOT, fairseq, lines_of, succeed, wait_until

from fairseq_paradec.cli.distill import merge as distill_merge
from fairseq_paradec.cli.distill import parts as distill_parts
from fairseq_paradec.cli.distill import shard as distill_shard
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError

SCRIPT = ROOT / "scripts" / "distill.sh"
TEACHER = DEMO / "model.pt"
EMPTY, TOO_LONG, SENTENCES = 3, 7, 72
PATH = ["--path", str(TEACHER)]
OPTIONS = (*PATH, "--subset", "train", "--lenpen", "1")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def words() -> dict[str, Dictionary]:
    return {lang: Dictionary.load(str(DEMO / f"dict.{lang}.txt")) for lang in ("en", "de")}


@pytest.fixture(scope="module")
def corpus(words) -> list[torch.Tensor]:
    """The sources."""
    demo = data_utils.load_indexed_dataset(str(DEMO / "test.en-de.en"), words["en"])
    sentences = [demo[i] for i in range(SENTENCES - 2)]
    end = torch.tensor([words["en"].eos()])
    sentences.insert(EMPTY, end)
    sentences.insert(TOO_LONG, torch.cat([torch.full((1100,), 10), end]))
    return sentences


@pytest.fixture(scope="module")
def data(tmp_path_factory, words, corpus) -> Path:
    folder = tmp_path_factory.mktemp("da ta's")
    for piece, sentences in (("train", corpus[:62]), ("train1", corpus[62:])):
        for lang in ("en", "de"):
            prefix = str(folder / f"{piece}.en-de.{lang}")
            builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", len(words[lang]))
            for sentence in sentences:
                builder.add_item(sentence if lang == "en" else torch.tensor([9, 2]))
            builder.finalize(f"{prefix}.idx")
    for lang in ("en", "de"):
        shutil.copy(DEMO / f"dict.{lang}.txt", folder)
        for end in ("bin", "idx"):
            for split in ("valid", "test"):
                shutil.copy(
                    DEMO / f"test.en-de.{lang}.{end}", folder / f"{split}.en-de.{lang}.{end}"
                )
    (folder / "notes.txt").write_text("not to be copied\n")
    (folder / "raw").mkdir()
    for name in ("train.de", "train1.en", "valid.en", "test.de", "notes.txt"):
        (folder / "raw" / name).write_text(f"raw {name}\n")
    return folder


def begin(data: Path, dest: Path, *options: object, shards: int = 1, size: int = 8) -> int:
    given = ["--beam", 5, "--batch-size", size, "--num-shards", shards, *options]
    return paradec(["distill", "parts", str(data), str(dest), *OPTIONS, *map(str, given)])


def translate(data: Path, dest: Path, *shards: int, path: object = TEACHER, **more: object) -> None:
    """As paradec distill shard, but for what becomes of an error."""
    options = {"path": path, "device": "cpu", "worker": 0} | more
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    parser = argparse.ArgumentParser()
    distill_shard.declare(parser)
    assert distill_shard.run(parser.parse_args([*map(str, (data, dest, *shards)), *given])) == 0


def made(dest: Path) -> dict[str, bytes]:
    """All of a finished folder but its parts, and the settings, which name the shards."""
    found = {str(p.relative_to(dest)): p.read_bytes() for p in dest.rglob("*") if p.is_file()}
    assert "distilled.json" in found
    return {k: v for k, v in found.items() if k != "distilled.json" and not k.startswith("parts/")}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    """Made by one shard, never interrupted."""
    dest = tmp_path_factory.mktemp("whole") / "dest"
    assert begin(data, dest) == 0
    translate(data, dest, 0)
    distill_merge.merge(data, dest)
    return dest


def shell(*args: object, python: object = sys.executable, **variables: str) -> Any:
    command = [str(SCRIPT), *map(str, args), "--python", str(python)]
    env = os.environ | variables
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


# ---- what is made -------------------------------------------------------------------------------


def test_the_folder_holds_the_teachers_translations(data, whole, words, corpus):
    text = {n: (whole / "text" / f"train.{n}").read_text().splitlines() for n in ("en", "de")}
    assert text["en"] == [words["en"].string(s) for s in corpus]
    assert len(text["de"]) == SENTENCES
    empty = [i for i, line in enumerate(text["de"]) if not line]
    assert empty == [EMPTY, TOO_LONG]
    left_out = [r.split("\t")[:2] for r in (whole / "text/left-out.txt").read_text().splitlines()]
    assert left_out == [[str(EMPTY), "1"], [str(TOO_LONG), "1101"]]
    kept = [i for i in range(SENTENCES) if i not in empty]
    for lang in ("en", "de"):
        dataset = data_utils.load_indexed_dataset(str(whole / f"train.en-de.{lang}"), words[lang])
        assert [words[lang].string(s) for s in dataset] == [text[lang][i] for i in kept]
        assert all(s[-1] == words[lang].eos() and s.dtype == torch.int64 for s in dataset)

    copies = {p.name for p in data.iterdir() if p.name.startswith(("dict", "valid", "test"))}
    assert {p.name for p in whole.iterdir() if p.is_file()} == copies | {
        "distilled.json",
        *(f"train.en-de.{lang}.{end}" for lang in ("en", "de") for end in ("bin", "idx")),
    }
    assert all((data / name).read_bytes() == (whole / name).read_bytes() for name in copies)
    raw = {path.name: path.read_text() for path in (whole / "raw").iterdir()}
    assert raw == {name: f"raw {name}\n" for name in ("valid.en", "test.de")}


def test_pieces_of_the_training_set_are_joined_and_other_subsets_are_not(data, tmp_path):
    for name in ("train.en-de.en.idx", "train1.en-de.en.idx"):
        shutil.copy(data / name, tmp_path / name.replace("train", "valid"))
        shutil.copy(data / name, tmp_path / name)
    assert distill_parts.pieces(tmp_path, "valid", ("en", "de")) == ["valid"]
    assert distill_parts.pieces(tmp_path, "train", ("en", "de")) == ["train", "train1"]


@pytest.mark.slow
def test_translations_are_those_of_stock_generate(data, whole):
    """fairseq without this plugin, in batches of its own."""
    options = "--gen-subset train --beam 5 --max-tokens 300 -s en -t de --cpu"
    options += " --required-batch-size-multiple 1 --skip-invalid-size-inputs-valid-test"
    out = succeed(fairseq("generate", data, "--path", TEACHER, *options.split()))
    stock = {int(r.split("\t")[0][2:]): r.split("\t")[2] for r in lines_of(out.stdout, "H")}
    assert sorted(stock) == [i for i in range(62) if i != TOO_LONG]
    del stock[EMPTY]  # what fairseq makes of nothing
    ours = (whole / "text" / "train.de").read_text().splitlines()
    assert {i: ours[i] for i in stock} == stock


@pytest.mark.slow
def test_an_ensemble_and_options_reach_the_search(data, whole, tmp_path):
    """Whether they do shows in the translations: each change makes other ones."""
    state = torch.load(TEACHER, weights_only=True)
    second = tmp_path / "it's second.pt"
    state["model"] = {n: w * (1.2 if w.dim() > 1 else 1) for n, w in state["model"].items()}
    torch.save(state, second)
    before = json.loads((whole / "parts" / "settings.json").read_text())
    results = []
    for path, changes in (
        (TEACHER, {}),
        (f"{TEACHER}:{second}", {}),
        (second, {}),
        (TEACHER, {"beam": 1}),
        (TEACHER, {"lenpen": -3.0}),
    ):
        run, _ = distill_shard.translator(data, str(path), before | changes, torch.device("cpu"))
        results.append(run(list(range(30, 60))))
    assert not [1 for i, one in enumerate(results) if one in results[:i]]
    assert sum(map(len, results[-1])) < sum(map(len, results[0]))


# ---- divisions of the work ----------------------------------------------------------------------


def test_shards_in_any_order_make_the_same(data, whole, tmp_path):
    dest = tmp_path / "dest"
    assert begin(data, dest, shards=3) == 0
    for shard in (2, 0, 1):
        with pytest.raises(UsageError, match="shards not finished: "):
            distill_merge.merge(data, dest)
        translate(data, dest, shard)
    distill_merge.merge(data, dest)
    assert made(dest) == made(whole)


@pytest.fixture
def spy(tmp_path) -> Path:
    """A Python that writes down who is to do which shards, instead of translating them."""
    script = tmp_path / "spy python"
    script.write_text(f"""#!/usr/bin/env bash
case "$4 $5" in
    "distill shard") while [ "$1" != --worker ]; do shift; done; said="$2: ${{*:6}}" ;;
    "distill merge") said=merge ;;
    *) exec "{sys.executable}" "$@" ;;
esac
echo "$said" >>'{tmp_path}/log'
""")
    script.chmod(0o755)
    return script


SLURM = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        (["--num-shards", 3], {}, ["0: 0 1 2", "merge"]),
        (["--processes", 2], {}, ["0: 0", "1: 1", "merge"]),
        (["--processes", 2, "--num-shards", 5], {}, ["0: 0 2 4", "1: 1 3", "merge"]),
        ([], TORCHRUN, ["1: 3"]),
        (["--num-shards", 9], TORCHRUN, ["1: 3 7"]),
        ([], {"RANK": "0", "WORLD_SIZE": "1"}, ["0: 0", "merge"]),
        ([], SLURM, ["0: 2"]),
        (["--num-shards", 3, "--shard-id", 1], SLURM | TORCHRUN, ["0: 1"]),
        (["--processes", 1], SLURM | TORCHRUN, ["0: 0", "merge"]),
        (["--merge", "--batch-size", 8], TORCHRUN, ["merge"]),
    ],
)
def test_who_does_which_shards(data, tmp_path, spy, options, variables, expected):
    if "--merge" in options:  # then the folder tells the number of shards
        assert begin(data, tmp_path / "dest", shards=3) == 0
    command = (data, "--path", TEACHER, *options, tmp_path / "dest")
    result = shell(*command, python=spy, **variables)
    assert result.returncode == 0, result.stderr
    assert sorted((tmp_path / "log").read_text().splitlines()) == expected


def test_each_process_gets_a_gpu(data, tmp_path, monkeypatch):
    assert begin(data, tmp_path / "dest", shards=2) == 0
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(distill_shard, "translator", lambda *a: (seen.append(a[-1]), 1 / 0))
    for worker in range(3):
        with pytest.raises(ZeroDivisionError):
            translate(data, tmp_path / "dest", 0, device="cuda", worker=worker)
    assert seen == [torch.device("cuda", i) for i in (0, 1, 0)]


# ---- batches ------------------------------------------------------------------------------------


def test_batches_hold_every_sentence_once_and_keep_the_limits():
    rng = random.Random(1)
    for _ in range(200):
        sizes = [rng.randint(1, 30) for _ in range(rng.randint(0, 40))]
        tokens = rng.choice([None, rng.randint(1, 100)])
        count = rng.choice([None, rng.randint(1, 9)])
        batches = distill_parts.make_batches(sizes, tokens, count)
        assert sorted(i for ids in batches for i in ids) == list(range(len(sizes)))
        for ids in batches:
            padded = len(ids) * max(sizes[i] for i in ids)
            assert tokens is None or padded <= tokens or len(ids) == 1
            assert count is None or len(ids) <= count
    assert distill_parts.make_batches([5] * 9, None, 3) != sorted(
        distill_parts.make_batches([5] * 9, None, 3)
    )


# ---- interruptions ------------------------------------------------------------------------------

BATCHES = [[4, 0], [1], [3, 5, 2], [6, 7], [8]]


class Killed(BaseException):
    """Stands for the end of the process."""


def fake(ids: list[int]) -> list[list[int]]:
    return [[100 + i] * (i % 3) for i in ids]


def test_a_shard_killed_after_any_batch_and_torn_at_any_byte_ends_the_same(tmp_path):
    path = tmp_path / "part"
    distill_shard.run_shard(path, BATCHES, fake)
    full = path.read_bytes()
    assert [list(json.loads(line)["ids"]) for line in full.splitlines()] == BATCHES
    for length in range(len(full)):
        for tail in (b"", b"\0\0\0"):
            path.write_bytes(full[:length] + tail)
            seen: list[list[int]] = []
            distill_shard.run_shard(path, BATCHES, lambda ids: seen.append(ids) or fake(ids))  # noqa: B023
            assert path.read_bytes() == full
            assert seen == BATCHES[full[:length].count(b"\n") :]


def test_a_part_is_refused_to_a_second_process_and_to_other_batches(tmp_path):
    path = tmp_path / "part"

    def meddles(ids: list[int]) -> list[list[int]]:
        with pytest.raises(UsageError, match="another process is at work on .*part"):
            distill_shard.run_shard(path, BATCHES, fake)
        return fake(ids)

    distill_shard.run_shard(path, BATCHES, meddles)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="part holds other batches"):
        distill_shard.run_shard(path, BATCHES[1:], fake)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_command_stopped_and_killed_goes_on_where_it_was(data, tmp_path):
    """Ctrl-C, then SIGKILL, then two processes do the rest; no batch is done twice."""
    dest, twin = tmp_path / 'it\'s a "dest"', tmp_path / "twin"
    part = dest / "parts" / "0-of-2.jsonl"
    words = (data, *PATH, "--batch-size", 1, "--processes", 2, dest, "--python", sys.executable)
    before, seen = b"", 0
    for sent, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen(
            [str(SCRIPT), *map(str, words)], stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        wait_until(
            lambda: part.is_file() and part.read_bytes().count(b"\n") > seen + 3,  # noqa: B023
            process,
        )
        os.killpg(process.pid, sent)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == status
        assert ("finished batches are kept" in errors) == (sent == signal.SIGINT)
        with part.open("ab") as stream:  # freed as soon as the process is gone
            distill_shard.fcntl.flock(stream, distill_shard.fcntl.LOCK_EX)
        assert part.read_bytes().startswith(before)
        before = part.read_bytes()[: part.read_bytes().rfind(b"\n") + 1]
        seen = before.count(b"\n")
    result = shell(*words)
    assert result.returncode == 0, result.stderr
    assert f"{SENTENCES} sentences, 2 of them left out" in result.stderr
    assert "already made" in shell(*words).stderr
    assert begin(data, twin, size=1, shards=2) == 0
    translate(data, twin, 0, 1)
    distill_merge.merge(data, twin)
    assert made(dest) == made(twin) and part.read_bytes().startswith(before)
    assert part.read_bytes() == (twin / "parts" / part.name).read_bytes()


def test_a_merge_cut_short_at_any_file_does_not_look_finished(data, whole, tmp_path, monkeypatch):
    dest = tmp_path / "dest"
    shutil.copytree(whole / "parts", dest / "parts")
    replace = Path.replace
    for count in range(len(made(whole)) + 1):
        left = iter(range(count))

        def dies(self: Path, target: Path, left: Any = left) -> Path:
            if next(left, None) is None:
                raise Killed
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", dies)
        with pytest.raises(Killed):
            distill_merge.merge(data, dest)
        assert not (dest / "distilled.json").exists()
    monkeypatch.undo()
    distill_merge.merge(data, dest)
    assert made(dest) == made(whole)


def test_of_merges_at_once_one_does_the_work(data, whole, tmp_path, monkeypatch):
    """As all ranks of torchrun do; files locked by several descriptors lock out threads, too."""
    dest = tmp_path / "dest"
    shutil.copytree(whole / "parts", dest / "parts")
    write, calls, together = distill_merge.write, [], threading.Barrier(4)
    monkeypatch.setattr(distill_merge, "write", lambda *a: (calls.append(a), write(*a))[1])
    with ThreadPoolExecutor(4) as pool:
        counts = list(
            pool.map(lambda _: (together.wait(60), distill_merge.merge(data, dest))[1], range(4))
        )
    assert counts == [{"sentences": SENTENCES, "left out": 2}] * 4 and len(calls) == 1
    assert made(dest) == made(whole)


# ---- missing, doubled, refused ------------------------------------------------------------------


def test_missing_doubled_and_foreign_sentences_are_named(data, whole, tmp_path):
    part = whole / "parts" / "0-of-1.jsonl"
    lines = part.read_bytes().splitlines(keepends=True)
    last = ", ".join(map(str, sorted(json.loads(lines[-1])["ids"])))
    foreign = distill_parts.format_batch(distill_parts.Batch([SENTENCES], [[5]]))
    for i, (content, message) in enumerate((
        (lines[:-1], f"are missing: {last}; shards not finished: 0$"),
        ([*lines, lines[-1]], f"are doubled: {last}; remove"),
        ([*lines, foreign], f"of another subset: {SENTENCES}; remove"),
    )):  # fmt: skip
        dest = tmp_path / str(i)
        shutil.copytree(whole / "parts", dest / "parts")
        (dest / "parts" / part.name).write_bytes(b"".join(content))
        with pytest.raises(UsageError, match=message):
            distill_merge.merge(data, dest)
        assert not (dest / "text").exists()


def test_another_setting_is_refused_by_name(data, whole, tmp_path, capsys):
    dest, other, changed = tmp_path / "dest", tmp_path / "other.pt", tmp_path / "changed"
    shutil.copytree(whole / "parts", dest / "parts")
    other.write_bytes(TEACHER.read_bytes() + b"\0")
    shutil.copytree(data, changed)
    shutil.copy(data / "train.en-de.en.bin", changed / "train1.en-de.en.bin")
    for folder, options, words in (
        (data, ["--num-shards", 2], ["--num-shards", "2", "1"]),
        (data, ["--beam", 4], ["--beam", "4", "5"]),
        (data, ["--fp16"], ["--fp16"]),
        (data, ["--path", other], ["--path"]),
        (changed, [], ["DATA: got files"]),
    ):
        assert begin(folder, dest, *options) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "allowed: the same, or another DEST" in error
        assert all(word in error for word in (*words, str(dest))), error
    assert begin(data, dest) == 0


def test_a_teacher_of_another_pair_is_refused(data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    state = torch.load(TEACHER, weights_only=True)
    state["cfg"]["task"] |= {"source_lang": "de", "target_lang": "en"}
    torch.save(state, tmp_path / "back.pt")
    assert begin(folder, tmp_path / "dest", "--path", tmp_path / "back.pt") == 0
    with pytest.raises(UsageError, match="--path: got a teacher for de-en; allowed: one for en-de"):
        translate(folder, tmp_path / "dest", 0, path=tmp_path / "back.pt")


@pytest.mark.parametrize(
    ("args", "expected", "variables"),
    [
        (["DATA", "DEST"], "--path is missing", {}),
        (["--path", f"{TEACHER}:no.pt", "DATA", "DEST"], "missing teacher (--path): no.pt", {}),
        ([*PATH, "DATA", "a:b"], "DEST: got 'a:b'; allowed: a path without ':'", {}),
        ([*PATH, "DATA", "DATA"], "holds other files", {}),
        ([*PATH, "--subset", "exam", "DATA", "DEST"], "test train train1 valid", {}),
        ([*PATH, "--beam", "0", "DATA", "DEST"], "--beam: got '0'", {}),
        ([*PATH, "--shard-id", "0", "DATA", "DEST"], "--shard-id needs --num-shards", {}),
        ([*PATH, "--num-shards", "2", "--shard-id", "2", "DATA", "DEST"], "allowed: 0 to 1", {}),
        (
            [*PATH, "DATA", "DEST"],
            "SLURM_ARRAY_TASK_ID): got '4'; allowed: 0 to 3",
            SLURM | {"SLURM_ARRAY_TASK_ID": "4"},
        ),
        ([*PATH, "--device", "tpu", "DATA", "DEST"], "--device: got 'tpu'; allowed: cpu cuda", {}),
        ([*PATH, "--merge", "DATA", "DEST"], "parts to merge (DEST)", {}),
        ([*PATH, "--beams", "5", "DATA", "DEST"], "unknown option: --beams", {}),
    ],
)
def test_mistakes_are_named_in_a_line_before_work_starts(data, tmp_path, args, expected, variables):
    places = {"DATA": data, "DEST": tmp_path / "dest"}
    result = shell(*(places.get(arg, arg) for arg in args), **variables)
    assert result.returncode == 2
    assert expected in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not (tmp_path / "dest").exists()
