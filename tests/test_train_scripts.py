"""scripts/train.sh, paradec average, resume and evaluate."""

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.commands import preprocess, run_python, succeed, wait_until
from support.training import ENV, SCRIPTS

from fairseq_paradec.cli import average, resume
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure import evaluate, judge

TRAIN = SCRIPTS / "train.sh"


def train(*args, **env):
    command = [str(TRAIN), *map(str, args)]
    return subprocess.run(command, env=ENV | env, capture_output=True, text=True, timeout=300)


STUB = """#!/usr/bin/env bash
case "$*" in
    *find_spec*) ;;
    *sizes.json*) exec "REAL" "$@" ;;
    *device_count*) echo "$GPUS" ;;
    *socket*) echo 12345 ;;
    *"paradec resume"*) echo "$UPDATES" ;;
    *"paradec average"*) printf '%s\\n' "$@" >"$RECORD.average" ;;
    *fairseq_cli.train*)
        # Ranks run side by side: each appends what it is told in one piece.
        printf '%s\\n' "$@" "THREADS $OMP_NUM_THREADS" >"$RECORD.$$"
        cat "$RECORD.$$" >>"$RECORD"
        rm "$RECORD.$$"
        [ -z "$FAIL" ] && exit
        [[ "$*" == *"--distributed-rank 1"* ]] || { touch "$RECORD.$PPID"; exec sleep 600; }
        until [ -e "$RECORD.$PPID" ]; do sleep 0.01; done # the other rank runs
        exit "$FAIL"
        ;;
esac
"""


class Stubbed:
    """train.sh with a Python that writes down what it is told."""

    def __init__(self, folder):
        self.data = folder / "data"
        self.data.mkdir()
        for language in ("en", "de"):
            (self.data / f"dict.{language}.txt").write_text("a 1\n")
            (self.data / f"train.en-de.{language}.idx").touch()
        self.record = folder / "record"
        self.save_dir = folder / "model"
        self.python = folder / "python"
        self.python.write_text(STUB.replace("REAL", sys.executable))
        self.python.chmod(0o755)

    def run(self, *args, **env):
        settings = {"RECORD": str(self.record), "GPUS": "0", "UPDATES": "0", "FAIL": ""} | env
        flags = ["--save-dir", self.save_dir, "--python", self.python]
        return train(self.data, *flags, *args, **settings)

    def flags(self, *args, **env):
        """fairseq-train's flags with their values; those without one have an empty one."""
        self.record.unlink(missing_ok=True)
        assert self.run(*args, **env).returncode == 0
        words = self.record.read_text().splitlines()
        pairs = [(word[2:], after) for word, after in zip(words, words[1:]) if word[:2] == "--"]
        found = {name: "" if after.startswith("--") else after for name, after in pairs}
        return found | {"threads": words[-1].split()[1]}


@pytest.fixture
def stubbed(tmp_path):
    return Stubbed(tmp_path)


FAST = "--preset tiny --arch block_nat_fast -- --encoder-from V"
IMAGES = "--preset tiny --arch blockwise_image_transformer -- --base-path V"


@pytest.mark.parametrize("given, expected", [
    ("--preset tiny --threads 3",
     "source-lang=en target-lang=de arch=transformer share-all-embeddings= max-tokens=4096 cpu= "
     "criterion=lean_cross_entropy max-epoch=38 keep-last-epochs=8 threads=3 !max-update"),
    ("--preset tiny -- --lr 0.001", "lr=0.001"),  # the last
    # the paper's: glancing lasts as long as the training, by itself
    ("--arch block_nat --epochs 9",
     "max-epoch=9 glancing-ratio=0.5 !glancing-updates soft-copy= drafter-block-size=25"),
    ("--preset big --arch block_nat", "drafter-block-size=30 encoder-embed-dim=1024"),
    ("--arch block_nat_fast -- --encoder-from V", "glancing-ratio-end=0.3 !soft-copy"),
    ("--preset tiny --arch block_nat -- --encoder-from V", "glancing-ratio=0 !soft-copy"),
    # several prefixes need an attention that allows them
    (FAST, "arch=block_nat_fast encoder-from=V prefixes-per-sentence=4 position-decay=0.8 "
     "!encoder-layers !decoder-layers"),
    (f"{FAST} --drafter-attention bidirectional", "prefixes-per-sentence=1"),
    ("--preset tiny --arch shallow_decoder -- --encoder-from V",
     "max-update=2500 max-tokens=3000 dropout=0 label-smoothing=0 !decoder-layers"),
    # a size in the name is the size; an encoder needs the preset's
    ("--preset tiny --arch double_token_l2r_tiny", "!encoder-layers lr=0.005"),
    ("--preset tiny --arch ibdecoder -- --encoder-from V", "encoder-embed-dim=128"),
    ("--preset tiny --updates 5000 --average 3 --seed 7",
     "max-update=5000 !max-epoch save-interval-updates=50 keep-interval-updates=3 "
     "keep-last-epochs=3 seed=7"),
    # an image in a batch, where sentences have batches of 1,024
    (f"{IMAGES} --fine-tune-base --block-size 4",
     "task=image_super_resolution criterion=blockwise_loss heads-per-update=all block-size=4 "
     "train-first-head= lr=0.0003 first-head-weight=10 max-epoch=10 max-tokens=3073 "
     "!encoder-layers !share-all-embeddings"),
])  # fmt: skip
def test_settings(stubbed, given, expected):
    """Of each name what it must have, of a !name that it must not be there; V is a model's file."""
    model = stubbed.data / "it's a model.pt"
    model.touch()
    if "image" in given:
        sizes = {"hr": {"height": 32, "width": 32, "channels": 3}}
        (stubbed.data / "sizes.json").write_text(json.dumps(sizes))
    flags = stubbed.flags(*(str(model) if word == "V" else word for word in given.split()))
    for setting in expected.split():
        name, is_there, value = setting.lstrip("!").partition("=")
        found = flags.get(name, "none").replace(", ", ",").replace(str(model), "V")
        assert found == (value if is_there else "none"), name
    last = flags["keep-last-epochs"]
    assert f"--last\n{last}\n" in Path(f"{stubbed.record}.average").read_text()


@pytest.mark.parametrize(("gpus", "processes"), [(0, 3), (4, 2)])
def test_a_batch_is_a_batch_whatever_the_device_and_the_processes(stubbed, gpus, processes):
    for preset, layers, batch in (("iwslt", "6+6", 4096), ("deep-shallow", "12+1", 25000)):
        stubbed.save_dir = stubbed.save_dir.with_name(preset)
        given = ("--preset", preset, "--arch", "another", "--processes", processes)
        flags = stubbed.flags(*given, GPUS=str(gpus))
        assert f"{flags['encoder-layers']}+{flags['decoder-layers']}" == layers
        tokens = int(flags["max-tokens"]) * int(flags["update-freq"]) * processes
        assert 0.99 * batch < tokens <= batch
        assert ("fp16" in flags, "cpu" in flags) == (gpus > 0, gpus == 0)
        assert flags["distributed-world-size"] == str(processes)


def test_ranks_on_a_cpu_are_processes_that_fail_together(stubbed):
    cores = int(subprocess.check_output(["nproc"], env=ENV))
    assert stubbed.flags("--preset", "tiny", "--processes", 2)["threads"] == str(max(1, cores // 2))
    words = stubbed.record.read_text().splitlines()
    ranks = [rank for word, rank in zip(words, words[1:]) if word == "--distributed-rank"]
    assert sorted(ranks) == ["0", "1"]
    stubbed.save_dir = stubbed.save_dir.with_name("failing")
    # Rank 0 would sleep for 600 seconds, and this waits for 300 at most.
    result = stubbed.run("--preset", "tiny", "--processes", 2, FAIL="9")
    assert result.returncode == 1 and "fairseq-train failed with status" in result.stderr


def test_a_folder_in_which_another_process_trains_is_refused_and_untouched(stubbed):
    assert stubbed.run("--preset", "tiny").returncode == 0
    stubbed.record.unlink()
    before = {path: path.read_bytes() for path in stubbed.save_dir.iterdir()}
    with (stubbed.save_dir / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = stubbed.run("--preset", "tiny", "--seed", 2)
    assert result.returncode == 2
    waits, refusal = result.stderr.splitlines()
    assert f"waiting for another process that trains in {stubbed.save_dir}" in waits
    assert f"--save-dir: got '{stubbed.save_dir}', in which another process trains" in refusal
    assert {path: path.read_bytes() for path in stubbed.save_dir.iterdir()} == before
    assert not stubbed.record.exists()


def test_other_data_and_another_encoder_are_refused_wherever_they_lie(stubbed, tmp_path):
    encoder = tmp_path / "encoder.pt"
    words = ("--arch", "block_nat_fast", "--", "--encoder-from", encoder)
    for path in (stubbed.data / "train.en-de.en.bin", encoder):
        path.write_text("1")
    assert stubbed.run(*words).returncode == 0
    (stubbed.save_dir / "checkpoint_last.pt").touch()
    copy = stubbed.data = shutil.copytree(stubbed.data, tmp_path / "it's a copy")
    (copy / "test.en-de.en.bin").touch()  # no part of the training
    assert stubbed.run(*words).returncode == 0
    for name in ("train.en-de.en.bin", "dict.en.txt", "train1.en-de.en.bin", "encoder.pt"):
        path = encoder if name == "encoder.pt" else copy / name
        before = path.read_text() if path.exists() else None
        path.write_text("b 1\n")
        result = stubbed.run(*words)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, name
        changed = "ENCODER" if path == encoder else f"DATA {name}"
        assert "other settings: " in result.stderr and f"now: {changed} " in result.stderr
        path.unlink() if before is None else path.write_text(before)


def test_settings_are_free_until_there_is_a_checkpoint_and_updates_are_not_exceeded(stubbed):
    assert stubbed.run("--arch", "trasformer", "--processes", 2, FAIL="2").returncode == 1
    assert stubbed.run("--updates", 100).returncode == 0
    assert "'--arch' 'transformer'" in (stubbed.save_dir / "settings.txt").read_text()
    (stubbed.save_dir / "checkpoint_last.pt").touch()
    assert "before: '--arch'" in stubbed.run("--updates", 100, "--arch", "another").stderr
    stubbed.record.unlink()
    said = stubbed.run("--updates", 100, UPDATES="100").stderr
    assert "training was finished: 100 updates" in said and not stubbed.record.exists()
    (stubbed.save_dir / "settings.txt").unlink()
    result = stubbed.run("--updates", 100)
    assert result.returncode == 2
    assert "has checkpoints of a run that this script did not start" in result.stderr
    assert not (stubbed.save_dir / "settings.txt").exists()


def test_mistakes_are_named_before_work_starts(stubbed, tmp_path):
    data, out = stubbed.data, ["--save-dir", tmp_path / "no"]
    for args, message in (
        ([data], "--save-dir is missing"),
        ([tmp_path / "a:b", *out], f"DATA: got '{tmp_path}/a:b'; allowed: a path without ':'"),
        ([data, *out, "--arch", "block_nat_fast"], "--encoder-from is missing after --: the ver"),
        ([data, *out, "--", "--base-path", "/no.pt"], "missing base (--base-path): /no.pt"),
        ([data, *out, "--arch", "image_transformer"], "allowed: it with images"),
    ):
        result = train(*args)
        assert result.returncode == 2, args
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
    result = stubbed.run("--processes", 3, GPUS="2")
    assert "--processes: got '3'; allowed: at most 2" in result.stderr
    assert not (tmp_path / "no").exists() and not stubbed.save_dir.exists()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder whose path has a space and a quote, with text and data-bin."""
    folder = tmp_path_factory.mktemp("train") / "it's a corpus"
    preprocess(folder)
    return folder


def smoke(corpus, name):
    return [corpus / "data-bin", "--save-dir", corpus / name, "--preset", "tiny", "--smoke"]


@pytest.fixture(scope="module")
def trained(corpus):
    result = train(*smoke(corpus, "whole run"))
    assert result.returncode == 0, result.stderr
    # The end of an epoch counts, too.
    assert "averaged, of updates 14, 20" in result.stderr
    names = {path.name for path in (corpus / "whole run").glob("checkpoint*[0-9].pt")}
    assert names == {"checkpoint_1_10.pt", "checkpoint1.pt", "checkpoint_2_20.pt"}
    return corpus / "whole run"


@pytest.mark.slow
def test_a_killed_and_a_stopped_run_end_as_an_undisturbed_one(corpus, trained):
    folder = corpus / "killed run"
    command = [str(TRAIN), *map(str, smoke(corpus, "killed run"))]
    process = subprocess.Popen(command, env=ENV, start_new_session=True)
    # In the middle of an epoch; ten more updates would follow.
    wait_until(lambda: list(folder.glob("checkpoint_1_10.pt")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "model.pt").exists()
    # What a kill in the middle of fairseq's copying leaves, on a machine of any speed:
    whole = (folder / "checkpoint_1_10.pt").read_bytes()
    for name in ("checkpoint1.pt", "checkpoint_best.pt"):
        (folder / name).unlink(missing_ok=True)
    (folder / "checkpoint_last.pt").write_bytes(whole[: len(whole) // 2])
    with subprocess.Popen(
        command, env=ENV, text=True, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        while "[1/2] training" not in (line := process.stderr.readline()):
            assert line, "ended before it trained"
        assert "10 updates done" in line
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
        assert "the same command goes on" in process.stderr.read()

    result = train(*smoke(corpus, "killed run"))
    assert result.returncode == 0, result.stderr
    assert "averaged, of updates 14, 20" in result.stderr
    for name in ("checkpoint_last.pt", "model.pt"):
        first, second = (average.read(path / name)["model"] for path in (folder, trained))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_evaluation_gives_the_number_of_the_sacrebleu_command(corpus, trained, monkeypatch, capsys):
    out, raw, data = corpus / "my result.json", corpus / "test.de", corpus / "data-bin"
    command = ["evaluate", data, "--path", trained / "model.pt", "--out", out, "--raw", raw]
    arguments = [*map(str, command), "--subset", "test"]
    arguments += ["--", "--decoding", "greedy", "--max-len-b", "7"]
    assert paradec(arguments) == 0
    texts = out.with_suffix(".0.test.txt")
    lines = texts.read_text().splitlines()
    assert len(lines) == 40 and max(len(line.split()) for line in lines) <= 7
    document = json.loads(out.read_text())
    for metric, key in (("bleu", "BLEU"), ("chrf", "chrF")):
        flags = ["-i", texts, "-m", metric, "-w", 2, "-f", "json"]
        code = "from sacrebleu.sacrebleu import main\nmain()"
        official = json.loads(succeed(run_python(code, raw, *flags)).stdout)
        row = document["rows"][0]
        assert (row["subset"], row["sentences"], row[key]) == ("test", 40, official["score"])
        assert f"{key}: {official['signature']}" in document["notes"]

    # Given again, it translates nothing; each change of what it was made of, it does.
    calls = []

    def count():
        calls.clear()
        assert paradec(arguments) == 0
        return len(calls)

    monkeypatch.setattr(evaluate, "translate", lambda *a: (calls.append(a), lines)[1])
    assert count() == 0 and json.loads(out.read_text())["rows"] == document["rows"]
    for changed in (trained / "model.pt", data / "dict.de.txt", data / "test.en-de.en.bin"):
        before = changed.read_bytes()
        changed.write_bytes(before + b"\0")
        assert (count(), count()) == (1, 0), changed
        changed.write_bytes(before)
    arguments[-1] = "8"
    assert (count(), count()) == (1, 0)
    monkeypatch.setattr(evaluate, "translate", lambda *_: ["a"] * 39)
    arguments[-1] = "7"
    assert paradec(arguments) == 2 and "gave 39 outputs for test of" in capsys.readouterr().err


def test_evaluation_keeps_the_order_of_the_data_and_joins_words(monkeypatch):
    said = "S-2\tx\nH-2\t-0.5\tzw@@ ei .\nH-0\t-1.0\teins\u2028\nH-0\t-2.0\tsecond\nH-1\t0\t\n"
    result = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(evaluate.subprocess, "run", lambda *_, **__: result)
    monkeypatch.setattr(judge.data_utils, "infer_language_pair", lambda _: ("en", "de"))
    assert evaluate.translate("data", "model", "test", []) == ["eins", "", "zwei."]


def checkpoint(updates, model):
    return {
        "cfg": {"model": argparse.Namespace(arch="transformer")}, "model": model,
        "optimizer_history": [{"num_updates": updates}], "last_optimizer_state": {"m": 1},
    }  # fmt: skip


def test_average_is_the_mean_and_what_was_not_trained_stays_to_the_bit(tmp_path):
    """A drafter's frozen encoder is its verifier's."""
    bits = torch.randint(-(2**31), 2**31 - 1, (4000,), dtype=torch.int32)
    frozen = bits.view(torch.float32)
    frozen = torch.cat([frozen[frozen.isfinite()], torch.tensor([-0.0, 0.0, 1e-45, 3.4e38])])
    same, models = {"frozen": frozen, "version": torch.tensor([3])}, []
    for updates in (10, 20, 30, 40):
        tied = torch.randn(4, 3)
        models.append({"a": tied, "b": tied, "half": torch.randn(5).half()} | same)
        torch.save(checkpoint(updates, models[-1]), tmp_path / f"checkpoint{updates}.pt")
    torch.save(checkpoint(40, models[-1]), tmp_path / "checkpoint_last.pt")
    torch.save(checkpoint(99, {}), tmp_path / "checkpoint_best.pt")  # may be of any epoch
    out = tmp_path / "model.pt"
    assert paradec(["average", str(tmp_path), "--last", "3", "--out", str(out)]) == 0
    result = average.read(out)
    found = result["model"]
    for name in ("a", "half"):
        wanted = sum(one[name].double() for one in models[1:]) / 3
        assert found[name].dtype == torch.float32
        assert torch.allclose(found[name].double(), wanted, rtol=1e-6, atol=1e-7)
    assert torch.equal(found["frozen"].view(torch.int32), frozen.view(torch.int32))
    assert found["version"].tolist() == [3]
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert average.count_updates(result) == 40 and result["last_optimizer_state"] is None
    one, number = checkpoint(1, {"a": torch.ones(2), "n": torch.tensor(1)}), torch.tensor(1)
    for other, message in (
        ({"a": torch.ones(2)}, r"n is \(\) in one checkpoint and missing"),
        ({"a": torch.ones(3), "n": number}, r"a is \(2,\) .* \(3,\)"),
        ({"a": torch.ones(2), "n": number + 1}, "n holds whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            average.average([one, checkpoint(2, other)])


@pytest.mark.parametrize(("state", "message"), [
    (None, "which is truncated or no checkpoint"),
    (checkpoint(1, {"a": slice(3)}), "which holds objects that safe loading refuses: builtins"),
    ({"model": {}, "cfg": None}, "checkpoint_last.pt: no whole checkpoint of fairseq-train"),
])  # fmt: skip
def test_an_unfit_file_is_named_and_nothing_written(tmp_path, capsys, state, message):
    torn = tmp_path / "checkpoint_last.pt"
    torch.save(state or checkpoint(1, {"a": torch.ones(9)}), torn)
    torn.write_bytes(torn.read_bytes()[: -50 if state is None else None])
    for words in (["average", "--last", "1", "--out", str(tmp_path / "model.pt")], ["resume"]):
        assert paradec([*words, str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert message in error and "Weights only load" not in error
        assert len([line for line in error.splitlines() if "not used: " not in line]) == 1
    assert [path.name for path in tmp_path.iterdir()] == [torn.name]


def test_mending_takes_the_newest_whole_checkpoint(tmp_path):
    assert resume.repair(tmp_path) == 0
    for updates, name in ((5, "checkpoint1"), (9, "checkpoint_2_9"), (9, "checkpoint_best")):
        torch.save(checkpoint(updates, {"a": torch.ones(2)}), tmp_path / f"{name}.pt")
    last = tmp_path / "checkpoint_last.pt"
    for content in (b"", (tmp_path / "checkpoint1.pt").read_bytes()):  # torn, and older
        last.write_bytes(content)
        (tmp_path / "checkpoint_best.pt").write_bytes(b"torn")
        assert resume.repair(tmp_path) == 9
        assert last.read_bytes() == (tmp_path / "checkpoint_2_9.pt").read_bytes()
    torch.save(checkpoint(12, {"a": torch.ones(2)}), last)
    newest = last.read_bytes()
    assert resume.repair(tmp_path) == 12 and last.read_bytes() == newest
    for path in tmp_path.glob("*.pt"):
        path.write_bytes(b"torn")
    with pytest.raises(ValueError, match="truncated or no checkpoint"):
        resume.repair(tmp_path)
    assert last.exists()  # nothing is removed if no checkpoint is whole
