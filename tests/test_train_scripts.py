"""scripts/train.sh, paradec average, resume and evaluate."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import preprocess, run_python, succeed, wait_until
from support.training import ENV, TRAIN, Stubbed, train

from fairseq_paradec.cli import average, resume
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure import evaluate, judge
from fairseq_paradec.measure.documents import read_document

# ---- what fairseq-train is told, by a Python that only writes it down ----------------------------


@pytest.fixture
def stubbed(tmp_path: Path) -> Stubbed:
    return Stubbed(tmp_path)


def test_tiny_is_the_recipe_of_the_published_tiny_model(stubbed: Stubbed) -> None:
    flags = stubbed.flags("--preset", "tiny", "--threads", "3")
    expected = {
        "arch": "transformer", "encoder-layers": "4", "decoder-layers": "4",
        "encoder-embed-dim": "128", "decoder-embed-dim": "128", "encoder-ffn-embed-dim": "256",
        "decoder-ffn-embed-dim": "256", "encoder-attention-heads": "4",
        "decoder-attention-heads": "4", "share-all-embeddings": "", "dropout": "0.3",
        "criterion": "label_smoothed_cross_entropy", "label-smoothing": "0.1",
        "optimizer": "adam", "adam-betas": "(0.9, 0.98)", "lr": "0.005",
        "lr-scheduler": "inverse_sqrt", "warmup-updates": "2000", "max-tokens": "4096",
        "update-freq": "1", "max-epoch": "38", "keep-last-epochs": "8", "seed": "1",
        "threads": "3",
    }  # fmt: skip
    assert {name: flags.get(name) for name in expected} == expected
    assert "max-update" not in flags and "fp16" not in flags and "cpu" in flags
    assert "--last\n8\n" in Path(f"{stubbed.record}.average").read_text()
    assert (stubbed.save_dir / "settings.txt").exists()


@pytest.mark.parametrize(
    "preset, layers, size, dropout, peak, batch",
    [
        ("iwslt", (6, 6), (512, 1024, 4), "0.3", "0.0005", 4096),
        ("base", (6, 6), (512, 2048, 8), "0.1", "0.0007", 25000),
        ("big", (6, 6), (1024, 4096, 16), "0.3", "0.0005", 25000),
        ("deep-shallow", (12, 1), (512, 2048, 8), "0.1", "0.0007", 25000),
    ],
)
def test_presets_on_any_architecture_and_device(
    stubbed: Stubbed,
    preset: str,
    layers: tuple[int, int],
    size: tuple[int, int, int],
    dropout: str,
    peak: str,
    batch: int,
) -> None:
    for gpus, processes in ((0, 1), (0, 3), (4, 2)):
        stubbed.save_dir = stubbed.save_dir.with_name(f"model-{gpus}-{processes}")
        env = {"GPUS": str(gpus)}
        flags = stubbed.flags(
            "--preset", preset, "--arch", "another", "--processes", processes, **env
        )
        assert flags["arch"] == "another"
        assert (int(flags["encoder-layers"]), int(flags["decoder-layers"])) == layers
        for side in ("encoder", "decoder"):
            names = ("embed-dim", "ffn-embed-dim", "attention-heads")
            assert tuple(int(flags[f"{side}-{name}"]) for name in names) == size
        assert (flags["dropout"], flags["lr"], flags["warmup-updates"]) == (dropout, peak, "4000")
        # Whatever the device and the processes, a batch is a batch.
        tokens = int(flags["max-tokens"]) * int(flags["update-freq"]) * processes
        assert 0.99 * batch < tokens <= batch
        assert ("fp16" in flags, "cpu" in flags) == (gpus > 0, gpus == 0)
        assert flags["distributed-world-size"] == str(processes)


def test_a_drafter_has_the_papers_settings(stubbed: Stubbed) -> None:
    expected = {
        "criterion": "block_nat_loss", "label-smoothing": "0.1", "optimizer": "adam",
        "adam-betas": "(0.9, 0.999)", "adam-eps": "1e-6", "lr": "0.0005", "weight-decay": "0.01",
        "lr-scheduler": "inverse_sqrt", "warmup-updates": "10000", "clip-norm": "5",
        "dropout": "0.1", "drafter-block-size": "25", "glancing-ratio": "0.5",
        "glancing-ratio-end": "0.3", "best-checkpoint-metric": "accepted",
        "maximize-best-checkpoint-metric": "",
    }  # fmt: skip
    for preset, dim in (("base", "512"), ("big", "1024")):
        stubbed.save_dir = stubbed.save_dir.with_name(preset)
        flags = stubbed.flags("--preset", preset, "--arch", "block_nat", GPUS="1")
        assert {name: flags.get(name) for name in expected} == expected
        assert flags["max-update"] == flags["glancing-updates"] == "300000"
        assert int(flags["max-tokens"]) * int(flags["update-freq"]) == 8 * 4 * 4096
        assert flags["encoder-embed-dim"] == flags["decoder-embed-dim"] == dim
        assert "prefixes-per-sentence" not in flags
    stubbed.save_dir = stubbed.save_dir.with_name("shorter")
    flags = stubbed.flags("--arch", "block_nat", "--updates", 5000)
    assert flags["max-update"] == flags["glancing-updates"] == "5000"


def test_a_tiny_drafter_has_the_sizes_of_its_verifier(stubbed: Stubbed) -> None:
    verifier = stubbed.data / "it's a verifier.pt"
    verifier.write_text("1")
    command = ("--preset", "tiny", "--arch", "block_nat_fast", "--", "--encoder-from", verifier)
    flags = stubbed.flags(*command)
    expected = {
        "arch": "block_nat_fast", "encoder-from": str(verifier), "lr": "0.002",
        "adam-betas": "(0.9, 0.98)", "warmup-updates": "500", "clip-norm": "5",
        "weight-decay": "0.01", "dropout": "0", "label-smoothing": "0", "drafter-block-size": "8",
        "prefixes-per-sentence": "4", "glancing-ratio": "0", "max-tokens": "2048",
        "update-freq": "1", "criterion": "block_nat_loss", "keep-last-epochs": "8",
        "best-checkpoint-metric": "accepted",
    }  # fmt: skip
    assert {name: flags.get(name) for name in expected} == expected
    sizes = [f for f in flags if re.match("(en|de)coder-(layers|embed|ffn|attention)", f)]
    assert sizes == [] and flags["max-epoch"] == "60"

    (stubbed.save_dir / "checkpoint_last.pt").touch()
    verifier.write_text("2")
    error = stubbed.run(*command).stderr
    assert "settings: before: ENCODER 6b86b273ff34fce1; now: ENCODER d4735e3a265e16ee" in error


@pytest.mark.parametrize(
    "arch, more, prefixes",
    [
        ("block_nat_tiny", [], "1"),
        ("block_nat_tiny", ["--drafter-attention=prefix_causal"], "4"),
        ("block_nat", ["--lr", "1", "--drafter-attention", "prefix_causal"], "4"),
        ("block_nat_fast", ["--encoder-from=V"], "4"),
        ("block_nat_fast", ["--encoder-from=V", "--drafter-attention", "bidirectional"], "1"),
    ],
)
def test_several_prefixes_need_an_attention_that_allows_them(
    stubbed: Stubbed, tmp_path: Path, arch: str, more: list[str], prefixes: str
) -> None:
    verifier = tmp_path / "verifier.pt"
    verifier.touch()
    more = [word.replace("=V", f"={verifier}") for word in more]
    flags = stubbed.flags("--preset", "tiny", "--arch", arch, "--", *more)
    assert flags["prefixes-per-sentence"] == prefixes
    assert ("encoder-layers" in flags) == (arch != "block_nat_fast")


def test_length_average_seed_and_flags_of_fairseq(stubbed: Stubbed) -> None:
    flags = stubbed.flags(
        "--preset", "tiny", "--updates", 5000, "--average", 3, "--seed", 7, "--", "--lr", "0.001"
    )
    assert flags["max-update"] == "5000" and "max-epoch" not in flags
    assert flags["save-interval-updates"] == "50"
    assert flags["keep-interval-updates"] == flags["keep-last-epochs"] == "3"
    assert flags["seed"] == "7"
    words = stubbed.record.read_text().splitlines()
    rates = [after for word, after in zip(words, words[1:]) if word == "--lr"]
    assert rates == ["0.005", "0.001"]  # argparse takes the last
    stubbed.save_dir = stubbed.save_dir.with_name("other")
    assert stubbed.flags("--preset", "base", "--epochs", 9)["max-epoch"] == "9"


def test_languages_with_dictionaries_of_their_own_share_no_source_embedding(
    stubbed: Stubbed,
) -> None:
    stubbed.dictionary("de", "b 1\n")
    flags = stubbed.flags("--preset", "tiny")
    assert "share-all-embeddings" not in flags
    assert "share-decoder-input-output-embed" in flags


def test_ranks_on_a_cpu_are_processes_that_fail_together(stubbed: Stubbed) -> None:
    cores = int(subprocess.check_output(["nproc"], env=ENV))
    assert stubbed.flags("--preset", "tiny", "--processes", 2)["threads"] == str(max(1, cores // 2))
    words = stubbed.record.read_text().splitlines()
    ranks = [after for word, after in zip(words, words[1:]) if word == "--distributed-rank"]
    assert sorted(ranks) == ["0", "1"]
    stubbed.save_dir = stubbed.save_dir.with_name("failing")
    started = time.monotonic()
    result = stubbed.run("--preset", "tiny", "--processes", 2, FAIL="9")
    assert result.returncode == 1 and "fairseq-train failed with status" in result.stderr
    assert time.monotonic() - started < 300  # rank 0 would sleep for 600 seconds


def test_finished_updates_are_not_exceeded(stubbed: Stubbed) -> None:
    stubbed.save_dir.mkdir()
    assert stubbed.run("--updates", 100, FAIL="").returncode == 0
    (stubbed.save_dir / "checkpoint_last.pt").touch()
    stubbed.record.unlink()
    result = stubbed.run("--updates", 100, UPDATES="100")
    assert "training was finished: 100 updates" in result.stderr
    assert not stubbed.record.exists()


@pytest.mark.slow
def test_a_folder_in_which_another_process_trains_is_refused_and_untouched(
    stubbed: Stubbed,
) -> None:
    assert stubbed.run("--preset", "tiny").returncode == 0
    stubbed.record.unlink()

    def look() -> dict[str, tuple[int, bytes]]:
        return {
            path.name: (path.stat().st_mtime_ns, path.read_bytes())
            for path in stubbed.save_dir.iterdir()
            if path.name != ".lock"
        }

    before = look()
    with (stubbed.save_dir / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = stubbed.run("--preset", "tiny", "--seed", 2)
    assert result.returncode == 2
    waits, refusal = result.stderr.splitlines()
    assert f"waiting for another process that trains in {stubbed.save_dir}" in waits
    assert f"--save-dir: got '{stubbed.save_dir}', in which another process trains" in refusal
    assert look() == before and not stubbed.record.exists()


def test_other_data_are_refused_wherever_they_lie(stubbed: Stubbed, tmp_path: Path) -> None:
    for name in ("train.en-de.en.bin", "valid.en-de.de.idx"):
        (stubbed.data / name).write_text("1")
    assert stubbed.run().returncode == 0
    (stubbed.save_dir / "checkpoint_last.pt").touch()
    assert stubbed.run().returncode == 0
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
    assert stubbed.run().returncode == 0


def test_a_run_begun_before_data_had_checksums_goes_on(stubbed: Stubbed, tmp_path: Path) -> None:
    assert stubbed.run().returncode == 0
    settings = stubbed.save_dir / "settings.txt"
    flags = [line for line in settings.read_text().splitlines() if not line.startswith("DATA ")]
    old = "\n".join([f"DATA {stubbed.data}", *flags]) + "\n"
    settings.write_text(old)
    (stubbed.save_dir / "model.pt").touch()
    result = stubbed.run()
    assert result.returncode == 0 and "already trained" in result.stderr
    assert settings.read_text() == old
    result = stubbed.run("--seed", 2)
    assert "other settings: before: '--seed' '1'; now: '--seed' '2'\n" in result.stderr
    stubbed.data = shutil.copytree(stubbed.data, tmp_path / "other")
    assert f"before: DATA {tmp_path / 'data'}; now: DATA dict" in stubbed.run().stderr


def test_settings_are_free_until_there_is_a_checkpoint(stubbed: Stubbed) -> None:
    assert stubbed.run("--arch", "trasformer", "--processes", 2, FAIL="2").returncode == 1
    assert stubbed.run().returncode == 0
    assert "'--arch' 'transformer'" in (stubbed.save_dir / "settings.txt").read_text()
    (stubbed.save_dir / "checkpoint1.pt").touch()
    assert "before: '--arch'" in stubbed.run("--arch", "another").stderr
    (stubbed.save_dir / "settings.txt").unlink()
    result = stubbed.run()
    assert result.returncode == 2
    assert "has checkpoints of a run that this script did not start" in result.stderr
    assert {path.name for path in stubbed.save_dir.iterdir()} == {
        ".lock", "checkpoint1.pt", "train.log"
    }  # fmt: skip


def test_a_failed_try_out_names_no_file_that_is_gone(stubbed: Stubbed) -> None:
    settings = {"RECORD": str(stubbed.record), "GPUS": "0", "UPDATES": "0", "FAIL": "2"}
    command = [stubbed.data, "--smoke", "--processes", 2, "--python", stubbed.python]
    result = train(*command, **settings)
    assert result.returncode == 1
    assert "fairseq-train failed with status 2\n" in result.stderr
    assert "train.log" not in result.stderr
    assert "(log: " in stubbed.run("--processes", 2, FAIL="2").stderr


def test_mistakes_are_named_before_work_starts(stubbed: Stubbed, tmp_path: Path) -> None:
    data, out = stubbed.data, ["--save-dir", tmp_path / "no"]
    for args, message in (
        ([*out], "got 0 paths; needed: DATA"),
        ([data, data, *out], "got 2 paths; needed: DATA"),
        ([data], "--save-dir is missing"),
        ([tmp_path / "it's not", *out], f"missing DATA: {tmp_path}/it's not"),
        ([tmp_path / "a:b", *out], f"DATA: got '{tmp_path}/a:b'; allowed: a path without ':'"),
        ([tmp_path, *out], "a folder with two dict.LANG.txt"),
        ([data, *out, "--preset", "huge"], "--preset: got 'huge'; allowed: tiny small iwslt base"),
        ([data, *out, "--epochs", "0"], "--epochs: got '0'; allowed: a whole number from 1 up"),
        ([data, *out, "--updates", "x"], "--updates: got 'x'"),
        ([data, *out, "--average", "-1"], "--average: got '-1'"),
        ([data, *out, "--processes", ""], "--processes: got ''"),
        ([data, *out, "--epochs", "1", "--updates", "1"], "only one of them"),
        ([data, *out, "--smoke", "--epochs", "1"], "--smoke sets"),
        ([data, *out, "--lr", "1"], "unknown option: --lr (see --help; fairseq's own flags"),
        ([data, *out, "--seed"], "--seed needs a value"),
        ([data, *out, "--python", "/no/python"], "no such Python: /no/python"),
        ([data, *out, "--arch", "block_nat_fast"], "--encoder-from is missing after --: the ver"),
        (
            [data, *out, "--arch", "block_nat", "--", "--encoder-from", "/no.pt"],
            "missing verifier (--encoder-from): /no.pt",
        ),
    ):
        result = train(*args)
        assert result.returncode == 2, args
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
    result = stubbed.run("--processes", 3, GPUS="2")
    assert "--processes: got '3'; allowed: at most 2" in result.stderr
    assert not (tmp_path / "no").exists() and not stubbed.save_dir.exists()


def test_help_teaches() -> None:
    text = train("--help").stdout
    options = "--preset --arch --epochs --updates --average --seed --threads --processes --smoke"
    for word in ("DATA", "--save-dir", "model.pt", *options.split()):
        assert word in text


# ---- real training ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path has a space and a quote, with text and data-bin."""
    folder = tmp_path_factory.mktemp("train") / "it's a corpus"
    preprocess(folder)
    return folder


def smoke(corpus: Path, name: str) -> list[object]:
    return [corpus / "data-bin", "--save-dir", corpus / name, "--preset", "tiny", "--smoke"]


@pytest.fixture(scope="module")
def trained(corpus: Path) -> Path:
    result = train(*smoke(corpus, "whole run"))
    assert result.returncode == 0, result.stderr
    return corpus / "whole run"


def weights(path: Path) -> dict[str, torch.Tensor]:
    return average.read(path)["model"]


def same_weights(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


@pytest.mark.slow
def test_a_smoke_run_ends_with_the_average_of_its_checkpoints(trained: Path) -> None:
    names = {path.name for path in trained.glob("checkpoint*[0-9].pt")}
    assert names == {"checkpoint_1_10.pt", "checkpoint1.pt", "checkpoint_2_20.pt"}
    last = ("checkpoint1.pt", "checkpoint_2_20.pt")  # the end of an epoch counts, too
    states = [average.read(trained / name) for name in last]
    assert [average.count_updates(state) for state in states] == [14, 20]
    result = average.read(trained / "model.pt")
    assert result["last_optimizer_state"] is None
    for name, weight in result["model"].items():
        total = states[0]["model"][name].double() + states[1]["model"][name].double()
        assert torch.equal(weight, (total / 2).float()), name
    assert result["model"]["encoder.layers.3.fc1.weight"].shape == (256, 128)


@pytest.mark.slow
def test_a_finished_run_is_left_alone_and_other_settings_are_refused(
    corpus: Path, trained: Path
) -> None:
    def look() -> dict[str, tuple[int, int]]:
        return {
            path.name: (path.stat().st_mtime_ns, path.stat().st_size)
            for path in trained.iterdir()
            if path.name != ".lock"
        }

    before = look()
    again = train(*smoke(corpus, "whole run"))
    assert again.returncode == 0 and "already trained" in again.stderr
    result = train(*smoke(corpus, "whole run"), "--seed", "2", "--", "--clip-norm", "0.1")
    assert result.returncode == 2
    assert "settings: before: '--seed' '1'; now: '--seed' '2'; now: '--clip-norm'" in result.stderr
    assert look() == before


@pytest.mark.slow
def test_a_killed_and_a_stopped_run_end_as_an_undisturbed_one(corpus: Path, trained: Path) -> None:
    folder = corpus / "killed run"
    command = [str(TRAIN), *map(str, smoke(corpus, "killed run"))]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=ENV, text=True, stderr=subprocess.PIPE, start_new_session=True
        )

    process = start()
    # In the middle of an epoch; ten more updates would follow.
    wait_until(lambda: list(folder.glob("checkpoint_1_10.pt")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (folder / "model.pt").exists()
    # What a kill in the middle of fairseq's copying leaves, on a machine of any speed:
    whole = (folder / "checkpoint_1_10.pt").read_bytes()
    for name in ("checkpoint1.pt", "checkpoint_best.pt"):
        (folder / name).unlink(missing_ok=True)
    (folder / "checkpoint_last.pt").write_bytes(whole[: len(whole) // 2])

    process = start()
    assert process.stderr is not None
    while "[1/2] training" not in (line := process.stderr.readline()):
        assert line, "ended before it trained"
    assert "10 updates done" in line
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    assert "the same command goes on" in process.stderr.read()
    process.stderr.close()

    result = train(*smoke(corpus, "killed run"))
    assert result.returncode == 0, result.stderr
    assert "averaged, of updates 14, 20" in result.stderr
    assert same_weights(folder / "checkpoint_last.pt", trained / "checkpoint_last.pt")
    assert same_weights(folder / "model.pt", trained / "model.pt")


@pytest.mark.slow
def test_two_processes_train_one_model(corpus: Path) -> None:
    result = train(*smoke(corpus, "two"), "--processes", 2)
    assert result.returncode == 0, result.stderr
    log = (corpus / "two" / "train.log").read_text()
    assert "training on 2 devices" in log
    state = average.read(corpus / "two" / "checkpoint_last.pt")
    assert average.count_updates(state) == 20


@pytest.mark.slow
def test_evaluation_gives_the_number_of_the_sacrebleu_command(
    corpus: Path,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, raw = corpus / "my result.json", corpus / "test.de"
    command = [corpus / "data-bin", "--path", trained / "model.pt", "--out", out, "--raw", raw]
    command += ["--subset", "test"]
    arguments = [*map(str, command), "--", "--decoding", "greedy", "--max-len-b", "7"]
    assert paradec(["evaluate", *arguments]) == 0
    texts = out.with_suffix(".0.test.txt")
    lines = texts.read_text().splitlines()
    assert len(lines) == 40 and max(len(line.split()) for line in lines) <= 7
    document = json.loads(out.read_text())
    # paradec results takes it if no path is of one machine.
    portable = document | {"command": "paradec evaluate data-bin"}
    (corpus / "portable.json").write_text(json.dumps(portable))
    assert read_document(corpus / "portable.json")["rows"] == document["rows"]
    for metric, key in (("bleu", "BLEU"), ("chrf", "chrF")):
        flags = ["-i", texts, "-m", metric, "-w", 2, "-f", "json"]
        code = "from sacrebleu.sacrebleu import main\nmain()"
        official = json.loads(succeed(run_python(code, raw, *flags)).stdout)
        row = document["rows"][0]
        assert (row["subset"], row["sentences"], row[key]) == ("test", 40, official["score"])
        assert f"{key}: {official['signature']}" in document["notes"]

    # Given again, it translates nothing; each change of what it was made of, it does.
    def count() -> int:
        calls: list[Sequence[object]] = []
        with monkeypatch.context() as patch:
            patch.setattr(evaluate, "translate", lambda *a: (calls.append(a), lines)[1])
            assert paradec(["evaluate", *arguments]) == 0
        assert texts.read_text().splitlines() == lines
        return len(calls)

    assert (count(), count()) == (0, 0)
    assert json.loads(out.read_text())["rows"] == document["rows"]
    for changed in (trained / "model.pt", corpus / "data-bin" / "dict.de.txt",
                    corpus / "data-bin" / "test.en-de.en.bin"):  # fmt: skip
        before = changed.read_bytes()
        changed.write_bytes(before + b"\0")
        assert (count(), count()) == (1, 0), changed
        changed.write_bytes(before)
        assert count() == 1
    texts.write_text("changed by hand\n" * 40)
    assert (count(), count()) == (1, 0)
    arguments[-1] = "8"
    assert (count(), count()) == (1, 0)

    monkeypatch.setattr(evaluate, "translate", lambda *_: ["a"] * 39)
    arguments[-1] = "7"
    capsys.readouterr()
    assert paradec(["evaluate", *arguments]) == 2
    assert "gave 39 outputs for test of" in capsys.readouterr().err
    monkeypatch.setattr(evaluate, "translate", lambda *_: pytest.fail("work has started"))
    for i, name in ((0, "DATA"), (2, "--path"), (6, "--raw"), (8, "--subset")):
        wrong = arguments.copy()
        wrong[i] = "/no/such"
        assert paradec(["evaluate", *wrong]) == 2
        error = capsys.readouterr().err
        assert f"{name}: got '/no/such'" in error and error.count("\n") == 1
    assert error.endswith("data-bin) holds: test train valid\n")
    for place, why in ((corpus, "a file, not a folder"), (raw / "x.json", "that can be made")):
        wrong = arguments.copy()
        wrong[4] = str(place)
        assert paradec(["evaluate", *wrong]) == 2
        error = capsys.readouterr().err
        assert "--out: got" in error and why in error


@pytest.mark.slow
def test_an_evaluation_cut_short_goes_on(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [*(corpus / "test.de").read_text().splitlines()[:-1], "a\u2028b\rc"]
    done: list[str] = []

    def translate(data: str, path: str, subset: str, flags: list[str]) -> list[str]:
        assert out.parent.is_dir()
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(flags[-1])
        return lines

    monkeypatch.setattr(evaluate, "translate", translate)
    (corpus / "c.pt").touch()
    out = corpus / "new folder" / "result.json"
    arguments = [corpus / "data-bin", "--path", corpus / "c.pt", "--subset", "test"]
    arguments += ["--raw", corpus / "test.de", "--beam", "1", "--beam", "5", "--out", out]
    assert paradec(["evaluate", *map(str, arguments)]) == 130
    assert not out.exists()
    monkeypatch.setattr(evaluate, "translate", lambda *a: (done.append(a[3][-1]), lines)[1])
    assert paradec(["evaluate", *map(str, arguments)]) == 0
    assert done == ["1", "5"]
    first, second = json.loads(out.read_text())["rows"]
    assert (first["beam"], second["beam"], first["BLEU"]) == (1, 5, second["BLEU"])
    assert not list(out.parent.glob("*.partial"))


@pytest.mark.slow
def test_evaluation_compares_models_in_each_setting(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raws = [corpus / "test.de", corpus / "valid.de"]
    right = {raw.stem: raw.read_text().splitlines() for raw in raws}

    def translate(data: str, path: str, subset: str, flags: list[str]) -> list[str]:
        assert flags[:3] == ["--decoding", "auto", "--beam"]
        worse = 2 * path.endswith("b.pt") + (flags[3] == "1")
        return ["x " * worse + line for line in right[subset]]

    monkeypatch.setattr(evaluate, "translate", translate)
    for name in "ab":
        (corpus / f"{name}.pt").touch()
    out = corpus / "two.json"
    arguments = [corpus / "data-bin", "--path", corpus / "a.pt", "--path", corpus / "b.pt"]
    arguments += ["--subset", "test", "--raw", raws[0], "--subset", "valid", "--raw", raws[1]]
    arguments += ["--beam", "1", "--beam", "5", "--title", "Two", "--out", out]
    assert paradec(["evaluate", *map(str, arguments)]) == 0
    document = json.loads(out.read_text())
    rows = {(Path(r["model"]).stem, r["subset"], r["beam"]): r for r in document["rows"]}
    assert (document["title"], len(rows), len(document["rows"])) == ("Two", 8, 8)
    for subset in ("test", "valid"):
        assert rows["a", subset, 5]["BLEU"] == 100 > rows["a", subset, 1]["BLEU"]
        for beam in (1, 5):
            first, second = rows["a", subset, beam], rows["b", subset, beam]
            assert first["BLEU - first"] == "-"
            difference, low, high = (
                float(part.strip("[],")) for part in second["BLEU - first"].split()
            )
            assert difference == pytest.approx(second["BLEU"] - first["BLEU"], abs=0.011)
            assert low < difference < high < 0
    assert (corpus / "two.1.valid.beam5.txt").read_text().splitlines() == [
        "x x " + line for line in right["valid"]
    ]
    capsys.readouterr()
    assert paradec(["evaluate", *map(str, arguments), "--smoke"]) == 0
    assert json.loads(out.read_text())["rows"] == [
        {k: v for k, v in rows["a", "test", 1].items() if k in document["rows"][0]}
    ]
    capsys.readouterr()
    last = arguments.index(raws[1])
    assert paradec(["evaluate", *map(str, arguments[: last - 1] + arguments[last + 1 :])]) == 2
    assert "--raw" in capsys.readouterr().err


def test_evaluation_keeps_the_order_of_the_data_and_joins_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "S-2\tx\nH-2\t-0.5\tzw@@ ei .\nH-0\t-1.0\teins\u2028\nH-0\t-2.0\tsecond\nH-1\t0\t\n"
    result = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(evaluate.subprocess, "run", lambda *_, **__: result)
    monkeypatch.setattr(judge.data_utils, "infer_language_pair", lambda _: ("en", "de"))
    assert evaluate.translate("data", "model", "test", []) == ["eins", "", "zwei."]


# ---- averaging and mending, on checkpoints made up here ------------------------------------------


def checkpoint(updates: int, model: dict[str, Any], arch: str = "transformer") -> dict[str, Any]:
    return {
        "cfg": {"model": argparse.Namespace(arch=arch)},
        "model": model,
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"m": torch.ones(3)},
    }


def test_average_is_the_mean_number_by_number(tmp_path: Path) -> None:
    torch.manual_seed(1)
    for updates in (10, 20, 30, 40):
        tied = torch.randn(4, 3)
        model = {
            "a": tied, "b": tied, "half": torch.randn(5).half(), "version": torch.tensor([3]),
        }  # fmt: skip
        torch.save(checkpoint(updates, model), tmp_path / f"checkpoint{updates}.pt")
    torch.save(checkpoint(40, model), tmp_path / "checkpoint_last.pt")
    torch.save(checkpoint(99, {}), tmp_path / "checkpoint_best.pt")  # may be of any epoch
    out = tmp_path / "model.pt"
    assert paradec(["average", str(tmp_path), "--last", "3", "--out", str(out)]) == 0

    result = average.read(out)
    used = [average.read(tmp_path / f"checkpoint{n}.pt") for n in (20, 30, 40)]
    for name in ("a", "half"):
        rows = [state["model"][name].flatten().tolist() for state in used]
        for i, value in enumerate(result["model"][name].flatten().tolist()):
            assert value == pytest.approx(sum(row[i] for row in rows) / 3, rel=1e-6, abs=1e-7)
    assert result["model"]["half"].dtype == torch.float32
    assert result["model"]["version"].tolist() == [3]
    assert result["model"]["a"].data_ptr() == result["model"]["b"].data_ptr()
    assert average.count_updates(result) == 40
    assert result["last_optimizer_state"] is None


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_what_was_not_trained_stays_as_it_is_to_the_bit(count: int) -> None:
    """A drafter's frozen encoder is its verifier's."""
    torch.manual_seed(count)
    bits = torch.randint(-(2**31), 2**31 - 1, (4000,), dtype=torch.int32)
    frozen = bits.view(torch.float32)
    frozen = torch.cat([frozen[frozen.isfinite()], torch.tensor([-0.0, 0.0, 1e-45, 3.4e38])])
    half = torch.randn(99).half()
    states = [
        checkpoint(i, {"frozen": frozen.clone(), "half": half.clone(), "a": torch.randn(3)})
        for i in range(count)
    ]
    model = average.average(states)["model"]
    assert torch.equal(model["frozen"].view(torch.int32), frozen.view(torch.int32))
    assert torch.equal(model["half"], half.float()) and model["half"].dtype == torch.float32
    assert model["frozen"].data_ptr() != states[-1]["model"]["frozen"].data_ptr()
    assert count == 1 or not torch.equal(model["a"], states[0]["model"]["a"])


@pytest.mark.parametrize(
    "other, arch, message",
    [
        ({"a": torch.ones(2), "n": torch.tensor(1)}, "lstm", "architectures: transformer and lstm"),
        ({"a": torch.ones(2)}, "transformer", r"n is \(\) in one checkpoint and missing"),
        ({"a": torch.ones(3), "n": torch.tensor(1)}, "transformer", r"a is \(2,\) .* \(3,\)"),
        ({"a": torch.ones(2), "n": torch.tensor(2)}, "transformer", "n holds whole numbers"),
    ],
)
def test_average_refuses_what_does_not_fit(other: dict[str, Any], arch: str, message: str) -> None:
    one = checkpoint(1, {"a": torch.ones(2), "n": torch.tensor(1)})
    with pytest.raises(ValueError, match=message):
        average.average([one, checkpoint(2, other, arch)])


def test_average_names_a_torn_file_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = tmp_path / "checkpoint_last.pt"
    torch.save(checkpoint(1, {"a": torch.ones(9)}), torn)
    torn.write_bytes(torn.read_bytes()[:-50])
    arguments = [str(tmp_path), "--last", "1", "--out", str(tmp_path / "model.pt")]
    assert paradec(["average", *arguments]) == 2
    assert f"{str(torn)!r}, which is truncated or no checkpoint" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [torn.name]
    for state, message in (
        (checkpoint(1, {"a": slice(3)}), "which holds objects that safe loading refuses: builtins"),
        ({"model": {}, "cfg": None}, f"{torn}: no whole checkpoint of fairseq-train"),
    ):
        torch.save(state, torn)
        for words in (["average", *arguments], ["resume", str(tmp_path)]):
            assert paradec(words) == 2
            error = capsys.readouterr().err
            assert message in error and "weights_only" not in error
            own = [line for line in error.splitlines() if "not used: " not in line]
            assert len(own) == 1


def test_mending_takes_the_newest_whole_checkpoint(tmp_path: Path) -> None:
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


def test_nothing_is_removed_if_no_checkpoint_is_whole(tmp_path: Path) -> None:
    last = tmp_path / "checkpoint_last.pt"
    last.write_bytes(b"torn")
    with pytest.raises(ValueError, match="truncated or no checkpoint"):
        resume.mend(tmp_path)
    assert last.exists()
