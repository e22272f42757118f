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
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary, data_utils, indexed_dataset
from support.commands import DEMO, ROOT, fairseq, lines_of, succeed

from fairseq_paradec.cli.distill import merge as distill_merge
from fairseq_paradec.cli.distill import parts as distill_parts
from fairseq_paradec.cli.distill import shard as distill_shard
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.measure import loading

SCRIPT = ROOT / "scripts" / "distill.sh"
TEACHER = DEMO / "model.pt"
EMPTY, TOO_LONG, SENTENCES = 3, 7, 72
OPTIONS = ("--path", str(TEACHER), "--subset", "train", "--lenpen", "1")


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
    for name in ("train.de", "train1.en", "valid.en", "valid.de", "test.de", "notes.txt"):
        (folder / "raw" / name).write_text(f"raw {name}\n")
    return folder


def begin(data: Path, dest: Path, *options: object, shards: int = 1, size: int = 8) -> int:
    given = ["--beam", 5, "--batch-size", size, "--num-shards", shards, *options]
    return paradec(["distill", "parts", str(data), str(dest), *OPTIONS, *map(str, given)])


def run_shards(*given: object) -> None:
    """As paradec distill shard, but for what becomes of an error."""
    parser = argparse.ArgumentParser()
    distill_shard.declare(parser)
    assert distill_shard.run(parser.parse_args(list(map(str, given)))) == 0


def translate(data: Path, dest: Path, *shards: int, path: object = TEACHER) -> None:
    given = [data, dest, *shards, "--path", path, "--device", "cpu", "--worker", 0]
    run_shards(*given)


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


def shell(
    *args: object, python: object = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *map(str, args), "--python", str(python)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


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
    report = json.loads((whole / "distilled.json").read_text())
    assert (report["sentences"], report["left out"]) == (SENTENCES, 2)


def test_the_rest_is_copied_and_the_old_pieces_of_the_training_set_are_not(data, whole):
    copies = {p.name for p in data.iterdir() if p.name.startswith(("dict", "valid", "test"))}
    assert {p.name for p in whole.iterdir() if p.is_file()} == copies | {
        "distilled.json",
        *(f"train.en-de.{lang}.{end}" for lang in ("en", "de") for end in ("bin", "idx")),
    }
    assert all((data / name).read_bytes() == (whole / name).read_bytes() for name in copies)
    raw = {path.name: path.read_text() for path in (whole / "raw").iterdir()}
    assert raw == {name: f"raw {name}\n" for name in ("valid.en", "valid.de", "test.de")}


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
    generator = torch.Generator().manual_seed(1)
    noisy = {}
    for name, weight in state["model"].items():
        noise = torch.randn(weight.shape, generator=generator) * 0.05
        noisy[name] = weight + noise if weight.dim() > 1 else weight
    second = tmp_path / "it's second.pt"
    torch.save(state | {"model": noisy}, second)
    before = json.loads((whole / "parts" / "settings.json").read_text())
    results = []
    for path, changes in (
        (str(TEACHER), {}),
        (f"{TEACHER}:{second}", {}),
        (str(second), {}),
        (str(TEACHER), {"beam": 1}),
        (str(TEACHER), {"lenpen": -3.0}),
    ):
        run, _ = distill_shard.translator(data, path, before | changes, torch.device("cpu"))
        results.append(run(list(range(30, 60))))
    same = [(i, j) for i, a in enumerate(results) for j, b in enumerate(results[:i]) if a == b]
    assert not same
    lengths = [sum(map(len, result)) for result in results]
    assert lengths[-1] < lengths[0]


# ---- divisions of the work ----------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_shards_in_any_order_make_the_same(data, whole, tmp_path, order):
    dest = tmp_path / "dest"
    assert begin(data, dest, shards=3) == 0
    for shard in order:
        with pytest.raises(UsageError, match="shards not finished: .*"):
            distill_merge.merge(data, dest)
        translate(data, dest, shard)
    distill_merge.merge(data, dest)
    assert made(dest) == made(whole)


@pytest.mark.slow
def test_two_local_processes_make_the_same(data, whole, tmp_path):
    dest = tmp_path / 'it\'s a "dest"'
    command = (data, "--path", TEACHER, "--batch-size", 8, "--processes", 2, dest)
    result = shell(*command)
    assert result.returncode == 0, result.stderr
    assert made(dest) == made(whole)
    assert f"{SENTENCES} sentences, 2 of them left out" in result.stderr
    again = shell(*command)
    assert (again.returncode, "already made" in again.stderr) == (0, True)


@pytest.mark.slow
def test_torchrun_makes_the_same(data, whole, tmp_path):
    """Both steps: with --merge, all ranks are to merge."""
    dest = tmp_path / "dest"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               "2", "--no-python", str(SCRIPT), str(data), "--path", str(TEACHER), "--batch-size",
               "8", "--python", sys.executable, str(dest)]  # fmt: skip
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    for step in ([], ["--merge"]):
        assert not (dest / "distilled.json").exists()
        result = subprocess.run([*command, *step], capture_output=True, text=True, env=env)
        assert result.returncode == 0, result.stderr
        assert sorted(p.name for p in (dest / "parts").glob("*.jsonl")) == [
            "0-of-2.jsonl",
            "1-of-2.jsonl",
        ]
    assert made(dest) == made(whole)


@pytest.fixture
def spy(tmp_path) -> Path:
    """A Python that writes down who is to do which shards, instead of translating them."""
    script = tmp_path / "spy python"
    script.write_text(
        "#!/usr/bin/env bash\n"
        f"log='{tmp_path}/log'\n"
        'case "$4 $5" in\n"distill shard") ;;\n"distill merge") echo merge >>"$log"; exit ;;\n'
        f'*) exec "{sys.executable}" "$@" ;;\nesac\n'
        'while [ "$1" != --worker ]; do shift; done\n'
        'echo "$2: ${*:6}" >>"$log"\n'
    )
    script.chmod(0o755)
    return script


SLURM = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        ([], {}, ["0: 0", "merge"]),
        (["--num-shards", 3], {}, ["0: 0 1 2", "merge"]),
        (["--processes", 2], {}, ["0: 0", "1: 1", "merge"]),
        (["--processes", 2, "--num-shards", 5], {}, ["0: 0 2 4", "1: 1 3", "merge"]),
        (["--processes", 2, "--num-shards", 1], {}, ["0: 0", "merge"]),
        (["--num-shards", 3, "--shard-id", 2], {}, ["0: 2"]),
        ([], TORCHRUN, ["1: 3"]),
        (["--num-shards", 9], TORCHRUN, ["1: 3 7"]),
        ([], {"RANK": "0", "WORLD_SIZE": "1"}, ["0: 0", "merge"]),
        ([], SLURM, ["0: 2"]),
        (["--num-shards", 8], {**SLURM, "SLURM_ARRAY_TASK_ID": "7"}, ["0: 7"]),
        (["--num-shards", 3, "--shard-id", 1], SLURM | TORCHRUN, ["0: 1"]),
        (["--processes", 1], SLURM | TORCHRUN, ["0: 0", "merge"]),
    ],
)
def test_who_does_which_shards(data, tmp_path, spy, options, variables, expected):
    command = (data, "--path", TEACHER, *options, tmp_path / "dest")
    result = shell(*command, python=spy, **variables)
    assert result.returncode == 0, result.stderr
    assert sorted((tmp_path / "log").read_text().splitlines()) == expected


def test_merge_alone_takes_the_number_of_shards_from_the_folder(data, tmp_path, spy):
    assert begin(data, tmp_path / "dest", shards=3) == 0
    command = (data, "--path", TEACHER, "--batch-size", 8, "--merge", tmp_path / "dest")
    result = shell(*command, python=spy, **TORCHRUN)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "log").read_text() == "merge\n"


def test_half_precision_where_it_is_asked_for(data, whole, monkeypatch):
    settings = distill_parts.read_settings(whole)
    models: list[Any] = []
    generator = loading.generator
    monkeypatch.setattr(
        loading,
        "generator",
        lambda task, given, **options: (models.extend(given), generator(task, given, **options))[1],
    )
    for fp16 in (False, True):
        given = (data, str(TEACHER), settings | {"fp16": fp16}, torch.device("cpu"))
        run, _ = distill_shard.translator(*given)
        assert len(run([0, EMPTY])[0]) > 1
    assert [next(m.parameters()).dtype for m in models] == [torch.float32, torch.float16]


def test_each_process_gets_a_line_of_the_terminal_and_a_gpu(data, tmp_path, monkeypatch):
    assert begin(data, tmp_path / "dest", shards=2) == 0
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(distill_shard, "translator", lambda *a: (seen.append(a[-1]), 1 / 0))
    for worker in range(3):
        given = [data, tmp_path / "dest", 0, "--path", TEACHER, "--device", "cuda"]
        with pytest.raises(ZeroDivisionError):
            run_shards(*given, "--worker", worker)
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


def fake(ids: list[int], seen: list[list[int]] | None = None) -> list[list[int]]:
    if seen is not None:
        seen.append(ids)
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
            distill_shard.run_shard(path, BATCHES, lambda ids: fake(ids, seen))  # noqa: B023
            assert path.read_bytes() == full
            assert seen == BATCHES[full[:length].count(b"\n") :]


def test_a_batch_is_in_the_file_before_the_next_is_begun(tmp_path):
    path = tmp_path / "part"
    seen = []

    def looks(ids: list[int]) -> list[list[int]]:
        seen.append([batch.ids for batch, _ in distill_parts.read_part(path)])
        return fake(ids)

    distill_shard.run_shard(path, BATCHES, looks)
    assert seen == [BATCHES[:count] for count in range(len(BATCHES))]


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


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    while not path.is_file() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)


@pytest.mark.slow
def test_a_command_stopped_and_killed_goes_on_where_it_was(data, tmp_path):
    """Ctrl-C, then SIGKILL at a random moment, then the rest; no batch is done twice."""
    seed = random.randrange(10**6)
    print("seed", seed)
    dest = tmp_path / "dest"
    part = dest / "parts" / "0-of-1.jsonl"
    command = [str(SCRIPT), str(data), "--path", str(TEACHER), "--batch-size", "1", str(dest),
               "--python", sys.executable]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for_lines(part, 1, process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished batches are kept" in errors and "Traceback" not in errors
    stopped = part.read_bytes()
    first = stopped.count(b"\n")
    assert 1 <= first < 40

    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    wait_for_lines(part, first + random.Random(seed).randint(1, max(1, 30 - first)), process)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with part.open("ab") as stream:  # freed as soon as the process is gone
        distill_shard.fcntl.flock(stream, distill_shard.fcntl.LOCK_EX)
    killed = part.read_bytes()
    assert killed.startswith(stopped[: stopped.rfind(b"\n") + 1])
    assert killed.count(b"\n") < SENTENCES

    assert begin(data, dest, size=1) == 0
    translate(data, dest, 0)
    assert part.read_bytes().startswith(killed[: killed.rfind(b"\n") + 1])
    distill_merge.merge(data, dest)
    twin = tmp_path / "twin"
    assert begin(data, twin, size=1) == 0
    translate(data, twin, 0)
    distill_merge.merge(data, twin)
    assert made(dest) == made(twin)
    assert part.read_bytes() == (twin / "parts" / part.name).read_bytes()


def test_a_merge_cut_short_at_any_file_does_not_look_finished(data, whole, tmp_path, monkeypatch):
    dest = tmp_path / "dest"
    shutil.copytree(whole / "parts", dest / "parts")
    replace = Path.replace
    for count in range(len(made(whole)) + 1):
        left = count

        def dies(self: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
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
    write, calls = distill_merge.write, []
    together = threading.Barrier(4)

    def counted(*args: Any) -> dict[str, int]:
        calls.append(args)
        return write(*args)

    def merge(_: int) -> dict[str, int]:
        together.wait(60)
        return distill_merge.merge(data, dest)

    monkeypatch.setattr(distill_merge, "write", counted)
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(merge, range(4)))
    assert counts == [{"sentences": SENTENCES, "left out": 2}] * 4
    assert len(calls) == 1
    assert made(dest) == made(whole)


# ---- missing, doubled, refused ------------------------------------------------------------------


def damaged(whole: Path, dest: Path, change: Any) -> Path:
    shutil.copytree(whole / "parts", dest / "parts")
    part = dest / "parts" / "0-of-1.jsonl"
    part.write_bytes(b"".join(change(part.read_bytes().splitlines(keepends=True))))
    return dest


def ids_of(line: bytes) -> list[int]:
    return sorted(json.loads(line)["ids"])


def test_missing_doubled_and_foreign_sentences_are_named(data, whole, tmp_path):
    lines = (whole / "parts" / "0-of-1.jsonl").read_bytes().splitlines()
    lost = ", ".join(map(str, ids_of(lines[-1])))
    dest = damaged(whole, tmp_path / "a", lambda lines: lines[:-1])
    with pytest.raises(UsageError, match=f"are missing: {lost}; shards not finished: 0$"):
        distill_merge.merge(data, dest)
    assert not (dest / "text").exists()
    dest = damaged(whole, tmp_path / "b", lambda lines: [*lines, lines[-1]])
    with pytest.raises(UsageError, match=f"are doubled: {lost}; remove"):
        distill_merge.merge(data, dest)
    foreign = distill_parts.format_batch(distill_parts.Batch([SENTENCES], [[5]]))
    dest = damaged(whole, tmp_path / "c", lambda lines: [*lines, foreign])
    with pytest.raises(UsageError, match=f"of another subset: {SENTENCES}; remove"):
        distill_merge.merge(data, dest)


def test_another_setting_is_refused_by_name(data, whole, tmp_path, capsys):
    dest = tmp_path / "dest"
    shutil.copytree(whole / "parts", dest / "parts")
    other = tmp_path / "other.pt"
    other.write_bytes(TEACHER.read_bytes() + b"\0")
    for options, words in (
        (["--num-shards", 2], ["--num-shards", "2", "1"]),
        (["--beam", 4], ["--beam", "4", "5"]),
        (["--lenpen", 0.5], ["--lenpen", "0.5", "1.0"]),
        (["--batch-size", 9], ["--batch-size", "9", "8"]),
        (["--max-tokens", 90], ["--max-tokens", "90", "None"]),
        (["--subset", "valid"], ["--subset", "'valid'", "'train'"]),
        (["--fp16"], ["--fp16"]),
        (["--smoke"], ["--smoke"]),
        (["--path", other], ["--path"]),
        (["--path", f"{TEACHER}:{TEACHER}"], ["--path"]),
    ):
        assert begin(data, dest, *options) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "allowed: the same, or another DEST" in error
        assert all(word in error for word in (*words, str(dest)))
    changed = tmp_path / "changed"
    shutil.copytree(data, changed)
    shutil.copy(data / "train.en-de.en.bin", changed / "train1.en-de.en.bin")
    assert begin(changed, dest) == 2
    assert "DATA: got files" in capsys.readouterr().err
    assert begin(data, dest) == 0


@pytest.mark.parametrize(
    ("options", "variables", "flag"),
    [
        (["--processes", 1], {}, "--processes"),
        ([], {}, "--processes"),
        (["--processes", 2, "--num-shards", 1], {}, "--num-shards"),
        ([], {"RANK": "0", "WORLD_SIZE": "1"}, "WORLD_SIZE"),
        ([], {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1"}, "SLURM_ARRAY_TASK_COUNT"),
    ],
)
def test_another_number_of_shards_is_refused_by_what_gave_it(
    data, tmp_path, spy, options, variables, flag
):
    dest = tmp_path / "dest"
    assert begin(data, dest, shards=2) == 0
    command = (data, "--path", TEACHER, "--batch-size", 8, *options, dest)
    result = shell(*command, python=spy, **variables)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert f"distill: error: {flag}: got 1, but DEST ({dest}) was begun with 2;" in result.stderr
    assert not (tmp_path / "log").exists()


def test_smoke_takes_the_first_sentences(data, tmp_path):
    assert begin(data, tmp_path / "dest", "--smoke") == 0
    translate(data, tmp_path / "dest", 0)
    assert distill_merge.merge(data, tmp_path / "dest") == {"sentences": 64, "left out": 2}


def test_other_subsets_are_not_joined(data, tmp_path):
    """fairseq joins train and train1, but test1 is a test set of its own."""
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    for path in data.glob("train.*"):
        shutil.copy(path, folder / path.name.replace("train.", "valid1."))
    assert distill_parts.pieces(folder, "valid", ("en", "de")) == ["valid"]
    assert distill_parts.pieces(folder, "train", ("en", "de")) == ["train", "train1"]


def test_a_teacher_of_another_pair_is_refused(data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    state = torch.load(TEACHER, weights_only=True)
    state["cfg"]["task"] |= {"source_lang": "de", "target_lang": "en"}
    torch.save(state, tmp_path / "back.pt")
    assert begin(folder, tmp_path / "dest", "--path", tmp_path / "back.pt") == 0
    with pytest.raises(UsageError, match="--path: got a teacher for de-en; allowed: one for en-de"):
        translate(folder, tmp_path / "dest", 0, path=tmp_path / "back.pt")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused(data, tmp_path):
    with pytest.raises(UsageError, match="--device: got 'cuda'"):
        run_shards(data, tmp_path, 0, "--path", "x", "--device", "cuda", "--worker", 0)


MISTAKES: list[tuple[list[Any], list[str]]] = [
    (["DATA", "DEST"], ["--path is missing"]),
    (["--path", TEACHER, "DATA"], ["got 1 paths"]),
    (["--path", "no.pt", "DATA", "DEST"], ["teacher (--path)", "no.pt"]),
    (["--path", f"{TEACHER}:no.pt", "DATA", "DEST"], ["teacher (--path)", "no.pt"]),
    (["--path", TEACHER, "a:b", "DEST"], ["DATA: got 'a:b'; allowed: a path without ':'"]),
    (["--path", TEACHER, "DATA", "a:b"], ["DEST: got 'a:b'; allowed: a path without ':'"]),
    (["--path", TEACHER, "no/data", "DEST"], ["missing DATA", "no/data"]),
    (["--path", TEACHER, "DATA", "DATA"], ["DEST", "holds other files"]),
    (
        ["--path", TEACHER, "--subset", "exam", "DATA", "DEST"],
        ["'exam'", "test train train1 valid"],
    ),
    (["--path", TEACHER, "--beam", "0", "DATA", "DEST"], ["--beam", "'0'", "from 1 up"]),
    (["--path", TEACHER, "--lenpen", "x", "DATA", "DEST"], ["--lenpen", "'x'", "a number"]),
    (["--path", TEACHER, "--max-tokens", "-1", "DATA", "DEST"], ["--max-tokens", "'-1'"]),
    (["--path", TEACHER, "--batch-size", "1.5", "DATA", "DEST"], ["--batch-size", "'1.5'"]),
    (["--path", TEACHER, "--processes", "", "DATA", "DEST"], ["--processes", "''", "--help"]),
    (["--path", TEACHER, "--num-shards", "x", "DATA", "DEST"], ["--num-shards", "'x'"]),
    (["--path", TEACHER, "--shard-id", "0", "DATA", "DEST"], ["--shard-id needs --num-shards"]),
    (
        ["--path", TEACHER, "--num-shards", "2", "--shard-id", "2", "DATA", "DEST"],
        ["--shard-id", "'2'", "0 to 1"],
    ),
    (
        ["--path", TEACHER, "--num-shards", "2", "--shard-id", "-1", "DATA", "DEST"],
        ["--shard-id", "'-1'", "0 to 1"],
    ),
    (
        [
            "--path",
            TEACHER,
            "--num-shards",
            "2",
            "--shard-id",
            "1",
            "--processes",
            "2",
            "DATA",
            "DEST",
        ],
        ["--processes", "--shard-id"],
    ),  # fmt: skip
    (["--path", TEACHER, "--device", "tpu", "DATA", "DEST"], ["--device", "'tpu'", "cpu cuda"]),
    (["--path", TEACHER, "--merge", "DATA", "DEST"], ["parts to merge (DEST)"]),
    (["--path", TEACHER, "--beams", "5", "DATA", "DEST"], ["unknown option: --beams"]),
    (["DATA", "DEST", "--path"], ["--path needs a value"]),
]


@pytest.mark.parametrize(("args", "expected"), MISTAKES)
def test_mistakes_are_named_in_a_line_before_work_starts(data, tmp_path, args, expected):
    places = {"DATA": data, "DEST": tmp_path / "dest"}
    options = [places.get(arg, arg) for arg in args]
    result = subprocess.run(
        [str(SCRIPT), *map(str, options)], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2
    assert (
        result.stderr.startswith(("distill: ", "paradec distill: error: "))
        and result.stderr.count("\n") == 1
    )
    assert all(word in result.stderr for word in expected), result.stderr
    assert not (tmp_path / "dest").exists()


def test_an_array_task_beyond_the_shards_is_refused(data, tmp_path):
    command = (data, "--path", TEACHER, tmp_path / "dest")
    result = shell(*command, SLURM_ARRAY_TASK_ID="4", SLURM_ARRAY_TASK_COUNT="4")
    assert result.returncode == 2
    assert "SLURM_ARRAY_TASK_ID" in result.stderr and "0 to 3" in result.stderr


def test_help_names_every_option():
    text = subprocess.run([str(SCRIPT), "--help"], capture_output=True, text=True).stdout
    options = ["--path", "--subset", "--beam", "--lenpen", "--max-tokens", "--batch-size"]
    options += ["--device", "--fp16", "--smoke", "--processes", "--num-shards", "--shard-id"]
    for option in [*options, "--merge", "--python", "torchrun", "sbatch"]:
        assert f"    {option} " in text, option
