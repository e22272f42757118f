"""scripts/train.sh, paradec average, resume and evaluate."""

from __future__ import annotations

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


# ---- what fairseq-train is told, by a Python that only writes it down ----------------------------

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
        self.dictionary("en", "a 1\n")
        self.dictionary("de", "a 1\n")
        self.record = folder / "record"
        self.save_dir = folder / "model"
        self.python = folder / "python"
        self.python.write_text(STUB.replace("REAL", sys.executable))
        self.python.chmod(0o755)

    def dictionary(self, language, text):
        (self.data / f"dict.{language}.txt").write_text(text)

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

    def values(self, flag):
        """What follows a flag wherever it was given to the last run."""
        words = self.record.read_text().splitlines()
        return [after for word, after in zip(words, words[1:]) if word == flag]


@pytest.fixture
def stubbed(tmp_path):
    return Stubbed(tmp_path)


FAST = "--preset tiny --arch block_nat_fast -- --encoder-from V"
HEADS = "--preset tiny --arch blockwise_transformer -- --base-path V"
IMAGE_HEADS = "--preset tiny --arch blockwise_image_transformer -- --base-path V"


@pytest.mark.parametrize(
    "given, expected",
    [
        (
            "--preset tiny --threads 3",
            "arch=transformer encoder-layers=4 decoder-embed-dim=128 decoder-ffn-embed-dim=256 "
            "decoder-attention-heads=4 share-all-embeddings= dropout=0.3 adam-betas=(0.9,0.98) "
            "criterion=label_smoothed_cross_entropy lr=0.005 max-tokens=4096 max-epoch=38 "
            "keep-last-epochs=8 seed=1 cpu= !max-update !fp16 threads=3",
        ),
        (
            "--preset base --arch block_nat",
            "criterion=block_nat_loss adam-betas=(0.9,0.999) lr=0.0005 weight-decay=0.01 "
            "clip-norm=5 drafter-block-size=25 glancing-ratio=0.5 glancing-ratio-end=0.3 "
            "best-checkpoint-metric=accepted max-update=300000 glancing-updates=300000",
        ),
        (
            FAST,
            "arch=block_nat_fast encoder-from=V dropout=0 label-smoothing=0 drafter-block-size=8 "
            "prefixes-per-sentence=4 glancing-ratio=0 max-epoch=60 !encoder-layers",
        ),
        (
            "--preset big --arch double_token",
            "lr=0.0004 adam-betas=(0.9,0.99) weight-decay=0.0001 encoder-normalize-before= "
            "max-update=200000 keep-last-epochs=10 decoder-attention-heads=16",
        ),
        ("--arch block_nat --updates 5000", "max-update=5000 glancing-updates=5000"),
        # several prefixes need an attention that allows them
        ("--preset tiny --arch block_nat_tiny", "prefixes-per-sentence=1"),
        (
            "--preset tiny --arch block_nat -- --drafter-attention=prefix_causal",
            "prefixes-per-sentence=4",
        ),
        (f"{FAST} --drafter-attention bidirectional", "prefixes-per-sentence=1"),
        # a size in the name is the size; an encoder needs the preset's
        ("--preset tiny --arch double_token_l2r_tiny", "!encoder-layers lr=0.005"),
        ("--preset tiny --arch ibdecoder -- --encoder-from V", "encoder-embed-dim=128"),
        (
            f"{HEADS} --block-size 4",
            "criterion=blockwise_loss block-size=4 !encoder-layers !share-all-embeddings",
        ),
        (
            "--preset tiny --updates 5000 --average 3 --seed 7",
            "max-update=5000 !max-epoch save-interval-updates=50 keep-interval-updates=3 "
            "keep-last-epochs=3 seed=7",
        ),
        (
            "--preset tiny --arch image_transformer",
            "task=image_super_resolution label-smoothing=0 decoder-layers=4 max-epoch=20",
        ),
        (IMAGE_HEADS, "task=image_super_resolution label-smoothing=0 heads-per-update=all"),
        # an image in a batch, where sentences have batches of 1,024; a try-out leaves none out
        (f"{IMAGE_HEADS} --fine-tune-base", "lr=0.001 train-first-head= max-tokens=3073"),
        ("--arch image_transformer --smoke", "max-tokens=3073 !max-target-positions"),
    ],
)
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


@pytest.mark.parametrize(
    "preset, sizes, batch",
    [("iwslt", "6 6 512", 4096), ("big", "6 6 1024", 25000), ("deep-shallow", "12 1 512", 25000)],
)
def test_presets_on_any_architecture_and_device(stubbed, preset, sizes, batch):
    names = ("encoder-layers", "decoder-layers", "decoder-embed-dim")
    for gpus, processes in ((0, 3), (4, 2)):
        stubbed.save_dir = stubbed.save_dir.with_name(f"model-{gpus}-{processes}")
        given = ("--preset", preset, "--arch", "another", "--processes", processes)
        flags = stubbed.flags(*given, GPUS=str(gpus))
        assert [flags[name] for name in names] == sizes.split()
        # Whatever the device and the processes, a batch is a batch.
        tokens = int(flags["max-tokens"]) * int(flags["update-freq"]) * processes
        assert 0.99 * batch < tokens <= batch
        assert ("fp16" in flags, "cpu" in flags) == (gpus > 0, gpus == 0)
        assert flags["distributed-world-size"] == str(processes)


def test_flags_of_fairseq_come_last_and_languages_share_what_they_can(stubbed):
    stubbed.dictionary("de", "b 1\n")
    flags = stubbed.flags("--preset", "tiny", "--", "--lr", "0.001")
    assert "share-all-embeddings" not in flags and "share-decoder-input-output-embed" in flags
    assert stubbed.values("--lr") == ["0.005", "0.001"]  # argparse takes the last


def test_ranks_on_a_cpu_are_processes_that_fail_together(stubbed):
    cores = int(subprocess.check_output(["nproc"], env=ENV))
    assert stubbed.flags("--preset", "tiny", "--processes", 2)["threads"] == str(max(1, cores // 2))
    assert sorted(stubbed.values("--distributed-rank")) == ["0", "1"]
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


def test_another_encoder_or_base_is_another_setting(stubbed):
    file = stubbed.data / "base.pt"
    for name, *words in (
        ("ENCODER", "--arch", "block_nat_fast", "--", "--encoder-from", file),
        ("BASE", "--arch", "blockwise_transformer", "--", "--base-path", file),
    ):
        stubbed.save_dir = stubbed.save_dir.with_name(name)
        file.write_text("1")
        stubbed.flags(*words)
        (stubbed.save_dir / "checkpoint_last.pt").touch()
        file.write_text("2")
        error = stubbed.run(*words).stderr
        assert f": before: {name} 6b86b273ff34fce1; now: {name} d4735e3a265e16ee" in error


def test_other_data_are_refused_wherever_they_lie(stubbed, tmp_path):
    for name in ("train.en-de.en.bin", "valid.en-de.de.idx"):
        (stubbed.data / name).write_text("1")
    assert stubbed.run().returncode == 0
    (stubbed.save_dir / "checkpoint_last.pt").touch()
    copy = shutil.copytree(stubbed.data, tmp_path / "it's a copy")
    (copy / "test.en-de.en.bin").touch()  # no part of the training
    stubbed.data = copy
    assert stubbed.run().returncode == 0
    for name in ("train.en-de.en.bin", "valid.en-de.de.idx", "dict.en.txt", "train1.en-de.en.bin"):
        path = copy / name
        before = path.read_text() if path.exists() else None
        path.write_text("b 1\n")
        result = stubbed.run()
        assert result.returncode == 2 and result.stderr.count("\n") == 1, name
        assert "other settings: " in result.stderr and f"now: DATA {name} " in result.stderr
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
    (stubbed.data / "sizes.json").write_text("{}")
    assert "whose sizes.json cannot be read" in stubbed.run("--arch", "image_transformer").stderr
    (stubbed.data / "sizes.json").unlink()
    data, out = stubbed.data, ["--save-dir", tmp_path / "no"]
    for args, message in (
        ([data], "--save-dir is missing"),
        ([tmp_path / "a:b", *out], f"DATA: got '{tmp_path}/a:b'; allowed: a path without ':'"),
        ([data, *out, "--epochs", "0"], "--epochs: got '0'; allowed: a whole number from 1 up"),
        ([data, *out, "--arch", "block_nat_fast"], "--encoder-from is missing after --: the ver"),
        ([data, *out, "--", "--encoder-from", "/no"], "missing verifier (--encoder-from): /no"),
        ([data, *out, "--", "--base-path", "/no.pt"], "missing base (--base-path): /no.pt"),
        ([data, *out, "--arch", "image_transformer"], "allowed: it with images"),
    ):
        result = train(*args)
        assert result.returncode == 2, args
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
    result = stubbed.run("--processes", 3, GPUS="2")
    assert "--processes: got '3'; allowed: at most 2" in result.stderr
    assert not (tmp_path / "no").exists() and not stubbed.save_dir.exists()


# ---- real training ------------------------------------------------------------------------------


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


# ---- evaluation ---------------------------------------------------------------------------------


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
        assert texts.read_text().splitlines() == lines
        return len(calls)

    monkeypatch.setattr(evaluate, "translate", lambda *a: (calls.append(a), lines)[1])
    assert (count(), count()) == (0, 0)
    assert json.loads(out.read_text())["rows"] == document["rows"]
    for changed in (trained / "model.pt", data / "dict.de.txt", data / "test.en-de.en.bin"):
        before = changed.read_bytes()
        changed.write_bytes(before + b"\0")
        assert (count(), count()) == (1, 0), changed
        changed.write_bytes(before)
        assert count() == 1
    arguments[-1] = "8"
    assert (count(), count()) == (1, 0)

    monkeypatch.setattr(evaluate, "translate", lambda *_: ["a"] * 39)
    arguments[-1] = "7"
    assert paradec(arguments) == 2 and "gave 39 outputs for test of" in capsys.readouterr().err


@pytest.mark.slow
def test_an_evaluation_of_two_models_cut_short_goes_on(corpus, monkeypatch):
    raws = [corpus / "test.de", corpus / "valid.de"]
    right = {raw.stem: raw.read_text().splitlines() for raw in raws}
    done = []

    def translate(data, path, subset, flags):
        assert flags[:3] == ["--decoding", "auto", "--beam"] and out.parent.is_dir()
        if len(done) == 3:
            done.append(done[0])
            raise KeyboardInterrupt
        done.append((path, subset, flags[3]))
        worse = 2 * path.endswith("b.pt") + (flags[3] == "1")
        return ["x " * worse + line for line in right[subset]]

    monkeypatch.setattr(evaluate, "translate", translate)
    out = corpus / "new folder" / "two.json"
    arguments = ["evaluate", corpus / "data-bin", "--beam", 1, "--beam", 5, "--out", out]
    for name in "ab":
        (corpus / f"{name}.pt").touch()
        arguments += ["--path", corpus / f"{name}.pt"]
    arguments += ["--subset", "test", "--raw", raws[0], "--subset", "valid", "--raw", raws[1]]
    assert paradec([*map(str, arguments)]) == 130
    assert not out.exists()
    assert paradec([*map(str, arguments)]) == 0
    assert len(done) == 9 == len({*done}) + 1  # the one that stopped, and eight
    document = json.loads(out.read_text())
    rows = {(Path(r["model"]).stem, r["subset"], r["beam"]): r for r in document["rows"]}
    assert len(rows) == 8 == len(document["rows"])
    for subset in ("test", "valid"):
        assert rows["a", subset, 5]["BLEU"] == 100 > rows["a", subset, 1]["BLEU"]
        for beam in (1, 5):
            first, second = rows["a", subset, beam], rows["b", subset, beam]
            assert first["BLEU - first"] == "-"
            gap, low, high = (float(part.strip("[],")) for part in second["BLEU - first"].split())
            assert low < gap < high < 0
    texts = (out.parent / "two.1.valid.beam5.txt").read_text().splitlines()
    assert texts == ["x x " + line for line in right["valid"]]
    assert not list(out.parent.glob("*.partial"))


def test_evaluation_keeps_the_order_of_the_data_and_joins_words(monkeypatch):
    said = "S-2\tx\nH-2\t-0.5\tzw@@ ei .\nH-0\t-1.0\teins\u2028\nH-0\t-2.0\tsecond\nH-1\t0\t\n"
    result = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(evaluate.subprocess, "run", lambda *_, **__: result)
    monkeypatch.setattr(judge.data_utils, "infer_language_pair", lambda _: ("en", "de"))
    assert evaluate.translate("data", "model", "test", []) == ["eins", "", "zwei."]


# ---- averaging and mending, on checkpoints made up here ------------------------------------------


def checkpoint(updates, model, arch="transformer"):
    return {
        "cfg": {"model": argparse.Namespace(arch=arch)},
        "model": model,
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"m": torch.ones(3)},
    }


def test_average_is_the_mean_and_what_was_not_trained_stays_to_the_bit(tmp_path):
    """A drafter's frozen encoder is its verifier's."""
    bits = torch.randint(-(2**31), 2**31 - 1, (4000,), dtype=torch.int32)
    frozen = bits.view(torch.float32)
    frozen = torch.cat([frozen[frozen.isfinite()], torch.tensor([-0.0, 0.0, 1e-45, 3.4e38])])
    same = {"frozen": frozen, "same half": torch.randn(99).half(), "version": torch.tensor([3])}
    for updates in (10, 20, 30, 40):
        tied = torch.randn(4, 3)
        model = {"a": tied, "b": tied, "half": torch.randn(5).half()} | same
        torch.save(checkpoint(updates, model), tmp_path / f"checkpoint{updates}.pt")
    torch.save(checkpoint(40, model), tmp_path / "checkpoint_last.pt")
    torch.save(checkpoint(99, {}), tmp_path / "checkpoint_best.pt")  # may be of any epoch
    out = tmp_path / "model.pt"
    assert paradec(["average", str(tmp_path), "--last", "3", "--out", str(out)]) == 0

    result = average.read(out)
    found = result["model"]
    used = [average.read(tmp_path / f"checkpoint{n}.pt")["model"] for n in (20, 30, 40)]
    for name in ("a", "half"):
        each = zip(*(one[name].flatten().tolist() for one in used))
        wanted = [sum(values) / 3 for values in each]
        assert found[name].flatten().tolist() == pytest.approx(wanted, abs=1e-7)
    assert torch.equal(found["frozen"].view(torch.int32), frozen.view(torch.int32))
    assert torch.equal(found["same half"], same["same half"].float())
    assert found["half"].dtype == found["same half"].dtype == torch.float32
    assert found["version"].tolist() == [3]
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert average.count_updates(result) == 40 and result["last_optimizer_state"] is None


@pytest.mark.parametrize(
    "other, arch, message",
    [
        ({"a": torch.ones(2), "n": torch.tensor(1)}, "lstm", "architectures: transformer and lstm"),
        ({"a": torch.ones(2)}, "transformer", r"n is \(\) in one checkpoint and missing"),
        ({"a": torch.ones(3), "n": torch.tensor(1)}, "transformer", r"a is \(2,\) .* \(3,\)"),
        ({"a": torch.ones(2), "n": torch.tensor(2)}, "transformer", "n holds whole numbers"),
    ],
)
def test_average_refuses_what_does_not_fit(other, arch, message):
    one = checkpoint(1, {"a": torch.ones(2), "n": torch.tensor(1)})
    with pytest.raises(ValueError, match=message):
        average.average([one, checkpoint(2, other, arch)])


@pytest.mark.parametrize(
    "state, message",
    [
        (None, "which is truncated or no checkpoint"),
        (checkpoint(1, {"a": slice(3)}), "which holds objects that safe loading refuses: builtins"),
        ({"model": {}, "cfg": None}, "checkpoint_last.pt: no whole checkpoint of fairseq-train"),
    ],
)
def test_an_unfit_file_is_named_and_nothing_written(tmp_path, capsys, state, message):
    torn = tmp_path / "checkpoint_last.pt"
    torch.save(state or checkpoint(1, {"a": torch.ones(9)}), torn)
    torn.write_bytes(torn.read_bytes()[: -50 if state is None else None])
    for words in (["average", "--last", "1", "--out", str(tmp_path / "model.pt")], ["resume"]):
        assert paradec([*words, str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert message in error and "weights_only" not in error
        assert len([line for line in error.splitlines() if "not used: " not in line]) == 1
    assert [path.name for path in tmp_path.iterdir()] == [torn.name]


def test_mending_takes_the_newest_whole_checkpoint(tmp_path):
    assert resume.mend(tmp_path) == 0
    for updates, name in ((5, "checkpoint1"), (9, "checkpoint_2_9"), (9, "checkpoint_best")):
        torch.save(checkpoint(updates, {"a": torch.ones(2)}), tmp_path / f"{name}.pt")
    last = tmp_path / "checkpoint_last.pt"
    for content in (b"", (tmp_path / "checkpoint1.pt").read_bytes()):  # torn, and older
        last.write_bytes(content)
        (tmp_path / "checkpoint_best.pt").write_bytes(b"torn")
        assert resume.mend(tmp_path) == 9
        assert last.read_bytes() == (tmp_path / "checkpoint_2_9.pt").read_bytes()
    torch.save(checkpoint(12, {"a": torch.ones(2)}), last)
    newest = last.read_bytes()
    assert resume.mend(tmp_path) == 12 and last.read_bytes() == newest
    for path in tmp_path.glob("*.pt"):
        path.write_bytes(b"torn")
    with pytest.raises(ValueError, match="truncated or no checkpoint"):
        resume.mend(tmp_path)
    assert last.exists()  # nothing is removed if no checkpoint is whole
