"""paradec train: folders, children, kill and resume; paradec average; quality of models."""

import argparse
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from support.commands import preprocess, run_python, succeed, wait_until
from support.training import ENV, SCRIPTS, write_pairs

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.lab.measure import generated
from fairseq_paradec.training import checkpoints, child, folder, log, machine, run

TRAIN = SCRIPTS / "train.sh"


def train(*args):
    command = [str(TRAIN), *map(str, args)]
    return subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=300)


#: Stands for fairseq-train: writes down what it is told, and may fail as rank 1 while rank 0 runs.
FAIRSEQ = """
import json, os, sys, time
record, fails, *words = sys.argv[1:]
told = {"words": words, "env": dict(os.environ)}
with open(record, "a") as stream:
    stream.write(json.dumps(told) + "\\n")
if fails:
    rank = words[words.index("--distributed-rank") + 1] if "--distributed-rank" in words else "1"
    while rank == "0" or open(record).read().count("\\n") < words.count("--distributed-rank") + 1:
        time.sleep(0.01)
    print("it has failed")
    sys.exit(int(fails))
"""


class Trainer:
    """paradec train in this process, with such a child, an average that is only noted, no GPU."""

    def __init__(self, folder, monkeypatch, capsys):
        self.data, self.save_dir = folder / "data", folder / "model"
        write_pairs(self.data, [5] * 40)
        self.record, self.fails, self.capsys = folder / "record", "", capsys
        self.averaged, self.pays = [], False
        monkeypatch.setattr(child, "command", self.command)
        monkeypatch.setattr(run, "write_average", lambda _, count, out: self.averaged.append(count))
        monkeypatch.setattr(machine, "gpus", lambda: 0)
        monkeypatch.setattr(machine, "processors", lambda: 4)
        monkeypatch.setattr(machine, "bfloat16_pays", lambda _: (self.pays, 1.0))

    def command(self, data, flags):
        return [sys.executable, "-S", "-c", FAIRSEQ, str(self.record), self.fails, *flags]

    def run(self, *args):
        """Return the status and what is said."""
        status = paradec(["train", *map(str, (self.data, "--save-dir", self.save_dir, *args))])
        return status, self.capsys.readouterr().err

    def told(self, *args):
        """What the children are told."""
        self.record.unlink(missing_ok=True)
        status, said = self.run("--preset", "tiny", *args)
        assert status == 0, said
        return [*map(json.loads, self.record.read_text().splitlines())]

    def checkpoint(self, updates, **options):
        """Leave what a run of so many updates, of a model with such options, leaves."""
        state = checkpoint(updates, {"a": torch.ones(2)})
        vars(state["cfg"]["model"]).update(options)
        torch.save(state, self.save_dir / "checkpoint_last.pt")


@pytest.fixture
def trainer(tmp_path, monkeypatch, capsys):
    return Trainer(tmp_path, monkeypatch, capsys)


def test_ranks_on_a_cpu_are_processes_that_fail_together(trainer):
    told = trainer.told("--processes", 2)
    cores = min(4, int(os.environ.get("OMP_NUM_THREADS", 4)))
    assert {one["env"]["OMP_NUM_THREADS"] for one in told} == {str(max(1, cores // 2))}
    ranks = [one["words"][one["words"].index("--distributed-rank") + 1] for one in told]
    assert sorted(ranks) == ["0", "1"] and trainer.averaged == [8]
    trainer.save_dir, trainer.fails = trainer.save_dir.with_name("failing"), "9"
    trainer.record.unlink()
    # Rank 0 would run for ever.
    status, said = trainer.run("--preset", "tiny", "--processes", 2)
    assert status == 1 and "fairseq-train failed with status 9" in said and "it has failed" in said


def test_a_full_disk_is_named(trainer, monkeypatch):
    trainer.fails = "1"
    assert "is full" not in trainer.run("--preset", "tiny")[1]
    usage = type(shutil.disk_usage("."))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9**9, 9**9, 300_000))
    status, said = trainer.run("--preset", "tiny")
    assert status == 1 and f"the disk of {trainer.save_dir} is full (0.3 MB are left)" in said
    log_file = trainer.save_dir / "train.log"
    log_file.unlink()
    log_file.symlink_to("/dev/full")
    status, said = trainer.run("--preset", "tiny")
    assert status == 2 and f"No space left on device: '{log_file}'" in said


def test_the_child_has_an_environment_that_is_fast_unless_the_user_says_otherwise(
    trainer, monkeypatch
):
    for name in machine.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    (told,) = trainer.told("--threads", 3)
    assert machine.ALLOCATOR.items() <= told["env"].items()
    assert (told["env"]["OMP_NUM_THREADS"], told["env"]["OMP_WAIT_POLICY"]) == ("3", "passive")
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "7")
    (told,) = trainer.told()
    assert told["env"]["MALLOC_MMAP_MAX_"] == "7"
    (told,) = trainer.told("--", "--fairseq-updates")
    assert "MALLOC_TRIM_THRESHOLD_" not in told["env"]


def test_a_run_keeps_the_autocast_that_it_began_with(trainer):
    trainer.pays = True
    (told,) = trainer.told()
    assert "--autocast" in told["words"]
    trainer.checkpoint(5)
    trainer.pays = False  # on another machine
    (told,) = trainer.told()
    assert "--autocast" in told["words"]
    status, said = trainer.run("--preset", "tiny", "--autocast", "off")
    assert status == 2 and "before: --autocast" in said
    trainer.save_dir = trainer.save_dir.with_name("other")
    (told,) = trainer.told("--autocast", "on")
    assert "--autocast" in told["words"]
    assert "--autocast" not in trainer.told("--", "--task", "another")[0]["words"]


def test_a_folder_in_which_another_process_trains_is_refused_and_untouched(trainer, monkeypatch):
    trainer.told()
    trainer.record.unlink()
    monkeypatch.setattr(folder, "PATIENCE", 0.1)
    before = {path: path.read_bytes() for path in trainer.save_dir.iterdir()}
    with (trainer.save_dir / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, said = trainer.run("--preset", "tiny", "--seed", 2)
    waits, refusal = [line for line in said.splitlines() if "autocast" not in line]
    assert status == 2 and f"waiting for another process that trains in {trainer.save_dir}" in waits
    assert f"--save-dir: got '{trainer.save_dir}', in which another process trains" in refusal
    assert {path: path.read_bytes() for path in trainer.save_dir.iterdir()} == before
    assert not trainer.record.exists()


def test_other_data_and_another_encoder_are_refused_wherever_they_lie(trainer, tmp_path):
    encoder = tmp_path / "encoder.pt"
    encoder.write_text("1")
    words = ("--arch", "block_nat_fast", "--start-from", encoder, "--updates", 30)
    trainer.told(*words)
    trainer.checkpoint(5)
    copy = trainer.data = shutil.copytree(trainer.data, tmp_path / "it's a copy")
    (copy / "test.en-de.en.bin").touch()  # no part of the training
    trainer.told(*words)
    for name in ("train.en-de.en.bin", "dict.en.txt", "train1.en-de.en.bin", "encoder.pt"):
        path = encoder if name == "encoder.pt" else copy / name
        before = path.read_bytes() if path.exists() else None
        path.write_text("b 1\n")
        status, said = trainer.run("--preset", "tiny", *words)
        changed = "ENCODER" if path == encoder else f"DATA {name}"
        assert status == 2 and said.splitlines()[-1].count("other settings: ") == 1, name
        assert f"now: {changed} " in said
        path.unlink() if before is None else path.write_bytes(before)


def test_settings_are_free_until_there_is_a_checkpoint_and_updates_are_not_exceeded(trainer):
    trainer.fails = "2"
    assert trainer.run("--arch", "trasformer", "--updates", 100)[0] == 1
    trainer.fails = ""
    assert trainer.run("--updates", 100)[0] == 0
    settings = trainer.save_dir / "settings.txt"
    assert "--arch transformer" in settings.read_text().splitlines()
    trainer.checkpoint(5)
    assert "before: --arch transf" in trainer.run("--updates", 100, "--arch", "another")[1]
    assert "before: PRESET base" in trainer.run("--updates", 100, "--preset", "big")[1]
    trainer.record.unlink()
    trainer.checkpoint(100)
    assert "training was finished: 100 updates" in trainer.run("--updates", 100)[1]
    assert not trainer.record.exists()
    settings.unlink()
    status, said = trainer.run("--updates", 100)
    assert status == 2 and "has checkpoints of a run that this command did not start" in said
    assert not settings.exists()


#: As scripts/train.sh wrote them when it was a program of its own.
OLD = """\
{data}
'--arch' 'ibdecoder'
'--encoder-layers' '4'
'--encoder-embed-dim' '128'
'--encoder-ffn-embed-dim' '256'
'--encoder-attention-heads' '4'
'--decoder-layers' '4'
'--decoder-embed-dim' '128'
'--decoder-ffn-embed-dim' '256'
'--decoder-attention-heads' '4'
'--share-all-embeddings'
'--optimizer' 'adam'
'--adam-betas' '(0.9, 0.98)'
'--lr-scheduler' 'inverse_sqrt'
'--lr' '0.005'
'--warmup-updates' '2000'
'--max-tokens' '4096'
'--update-freq' '1'
'--seed' '1'
'--max-update' '600'
'--save-interval-updates' '6'
'--keep-interval-updates' '8'
'--keep-last-epochs' '8'
'--cpu'
'--distributed-world-size' '1'
'--dropout' '0.2' '--user' 'it'\\''s'
--average 8
"""


@pytest.mark.parametrize("checksums", [False, True])
def test_a_run_of_the_shell_script_goes_on_by_its_own_settings(trainer, checksums):
    shutil.copy(trainer.data / "dict.en.txt", trainer.data / "dict.de.txt")
    data = f"DATA {trainer.data}"
    if checksums:
        data = "\n".join(" ".join(line) for line in folder.data_lines(trainer.data))
    trainer.save_dir.mkdir()
    (trainer.save_dir / "settings.txt").write_text(OLD.format(data=data))
    trainer.checkpoint(50, directions=2)
    given = ["--arch", "ibdecoder", "--updates", 600, "--", "--dropout", "0.2", "--user", "it's"]
    (told,) = trainer.told(*given)
    words = told["words"]
    # Now it would be 60 updates, and a falling rate.
    assert words[words.index("--warmup-updates") + 1] == "2000" and "inverse_sqrt" in words
    # Nor had models start rows of their own.
    assert words[-6:] == [*given[-4:], "--start-rows", "tokens"] and trainer.averaged == [8]
    trainer.checkpoint(60, directions=2, start_rows="learned")
    assert "--start-rows" not in trainer.told(*given)[0]["words"]
    given[3] = 700
    status, said = trainer.run("--preset", "tiny", *given)
    assert status == 2 and "before: --max-update 600; now: --max-update 700" in said


def test_mistakes_are_named_before_work_starts(trainer, tmp_path, monkeypatch):
    for args, message in (
        (["--arch", "block_nat_fast"], "--start-from is missing: the verifier whose encoder blo"),
        (
            ["--arch", "blockwise_transformer", "--", "--base-path", "/no.pt"],
            "missing base (--base-path): /no.pt",
        ),
        (["--start-from", "/no.pt"], "--start-from /no.pt needs a drafter, heads or"),
        (["--arch", "ibdecoder", "--start-from", "/no.pt"], "missing Transformer (--start-from)"),
        (["--arch", "image_transformer"], "--arch image_transformer needs images"),
        (["--smoke", "--epochs", "2"], "--smoke sets --epochs, --updates and --average itself"),
        (
            ["--", "--max-update", "x"],
            "--: argument --max-update: got 'x'; allowed: a whole number",
        ),
        # fairseq takes 0 for no end, and less for none at all
        (["--", "--max-update=0"], "--: argument --max-update: got '0'; allowed: a whole number"),
        (["--", "--max-epoch=-3"], "--: argument --max-epoch: got '-3'; allowed: a whole number"),
        (["--", "--max-tokens", "0"], "--: argument --max-tokens: got '0'; allowed: a whole"),
        (["--", "--batch-size=-2"], "--: argument --batch-size: got '-2'; allowed: a whole number"),
        (["--", "--update-freq", "2,x"], "--: argument --update-freq: got 'x'; allowed: a whole"),
        (["--", "--max-tokens", "3"], "--max-tokens: got 3; allowed: 5 at least: DATA's longest"),
        (
            ["--", "--warmup-updates=-1"],
            "--: argument --warmup-updates: got '-1'; allowed: a whole",
        ),
        (
            ["--", "--warmup-updates", "0"],
            "--warmup-updates: got 0; allowed: a whole number from 1",
        ),
        (["--", "--save-dir", "other"], "--: --save-dir stands before --"),
        (["--processes", "5"], "--processes: got 5; allowed: at most 4, the number of CPU cores"),
        (
            ["--updates", "600", "--", "--warmup-updates", "2000"],
            "--warmup-updates: got 2000; allowed: fewer than the 600 updates of the run",
        ),
        (["--", "--warmup-updates=38"], "fewer than the 38 updates of the run (38 epochs (about"),
    ):
        status, said = trainer.run("--preset", "tiny", *args)
        assert status == 2 and message in said and said.count("\n") == 1, said
    data = trainer.data
    for given, message in (
        ([data], "--save-dir is missing"),
        ([tmp_path / "a:b", "--save-dir", "x"], "/a:b'; allowed: a path without ':'"),
        ([tmp_path, "--save-dir", "x"], "allowed: a folder with two dict.LANG.txt"),
    ):
        assert paradec(["train", *map(str, given)]) == 2
        assert message in trainer.capsys.readouterr().err
    for given, message in (
        (["--save-dir", ""], "argument --save-dir: got ''; allowed: a folder's path"),
        (["--threads", "5000"], "argument --threads: got '5000'; allowed: 1024 at most"),
    ):
        with pytest.raises(SystemExit):
            paradec(["train", str(data), *given])
        assert message in trainer.capsys.readouterr().err
    monkeypatch.setattr(machine, "gpus", lambda: 2)
    assert "--processes: got 3; allowed: at most 2" in trainer.run("--processes", 3)[1]
    assert "--autocast on needs a CPU" in trainer.run("--autocast", "on")[1]
    assert not trainer.save_dir.exists()


def logged(tag, **values):
    return f"2026-01-01 00:00:00 | INFO | {tag} | {json.dumps(values)}\n"


def test_the_estimate_comes_once_twenty_updates_are_timed(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(logged("train_inner", num_updates="990", loss="3"))  # before it was stopped
    follower = log.Follower(path, 1000)
    said = []
    for second in range(6):
        with path.open("a") as stream:
            stream.write(logged("train_inner", num_updates=str(100 + 10 * second), loss="2")[:-1])
            said.append(follower.look(5.0 * second))
            stream.write("\n")
    # A line counts when it is whole: that of update 100 at the second look.
    assert [*map(bool, said)] == [False] * 3 + [True] + [False] * 2
    assert said[3] == "0.5 s an update: about 7 min for the 880 to come"


def test_the_curve_is_drawn_of_what_is_logged(tmp_path, monkeypatch):
    lines = [logged("train_inner", num_updates=str(n), loss=str(9 - n / 10)) for n in (10, 20)]
    lines += [logged("train_inner", num_updates="20", loss="6.5")]  # made again after a kill
    lines += [logged("valid", valid_num_updates="20", valid_loss="7", valid_accepted="1.5"), "x\n"]
    lines += [logged("train", train_num_updates="20", train_loss="7"), "==== it's\n"]
    curves = log.read_curves(lines)
    train = {10: 8.0, 20: 6.5}
    assert curves == {"train loss": train, "valid loss": {20: 7.0}, "valid accepted": {20: 1.5}}
    path, out = tmp_path / "train.log", tmp_path / "curve.png"
    path.write_text("nothing yet\n")
    assert not log.draw(path, out)
    path.write_text("".join(lines))
    assert log.draw(path, out) and out.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not log.draw(path, tmp_path / "no.png")


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
    names = {path.name for path in (corpus / "whole run").glob("checkpoint*.pt")}
    numbered = {"checkpoint_1_10.pt", "checkpoint1.pt", "checkpoint_2_20.pt"}
    assert names == numbered | {"checkpoint_best.pt", "checkpoint_last.pt"}
    assert (corpus / "whole run" / "curve.png").is_file()
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
        first, second = (checkpoints.read_state(path / name)["model"] for path in (folder, trained))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
    curves = [
        log.read_curves((path / "train.log").read_text().splitlines()) for path in (folder, trained)
    ]
    assert curves[0] == curves[1]
    assert {name: [*points] for name, points in curves[1].items()} == {
        "train loss": [10, 20],
        "valid loss": [10, 14, 20],
    }


@pytest.mark.slow
def test_evaluation_gives_the_number_of_the_sacrebleu_command(corpus, trained, monkeypatch, capsys):
    out, raw, data = corpus / "my result.json", corpus / "test.de", corpus / "data-bin"
    command = ["benchmark", data, "--preset", "quality", "--path", trained / "model.pt"]
    arguments = [*map(str, [*command, "--out", out, "--reference", raw]), "--subset", "test"]
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

    monkeypatch.setattr(generated, "translate", lambda *a: (calls.append(a), lines)[1])
    assert count() == 0 and json.loads(out.read_text())["rows"] == document["rows"]
    for changed in (trained / "model.pt", data / "dict.de.txt", data / "test.en-de.en.bin"):
        before = changed.read_bytes()
        changed.write_bytes(before + b"\0")
        assert (count(), count()) == (1, 0), changed
        changed.write_bytes(before)
    arguments[-1] = "8"
    assert (count(), count()) == (1, 0)
    monkeypatch.setattr(generated, "translate", lambda *_: ["a"] * 39)
    arguments[-1] = "9"
    assert paradec(arguments) == 2 and "gave 39 outputs for test of" in capsys.readouterr().err


def test_evaluation_keeps_the_order_of_the_data_and_joins_words(monkeypatch):
    said = "S-2\tx\nH-2\t-0.5\tzw@@ ei .\nH-0\t-1.0\teins\u2028\nH-0\t-2.0\tsecond\nH-1\t0\t\n"
    result = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(generated.subprocess, "run", lambda *_, **__: result)
    monkeypatch.setattr(generated, "target_language", lambda _: "de")
    assert generated.translate("data", "model", "test", []) == ["eins", "", "zwei."]


def checkpoint(updates, model):
    return {
        "cfg": {"model": argparse.Namespace(arch="transformer")},
        "model": model,
        "optimizer_history": [{"num_updates": updates}],
        "last_optimizer_state": {"m": 1},
    }


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
    result = checkpoints.read_state(out)
    found = result["model"]
    for name in ("a", "half"):
        wanted = sum(one[name].double() for one in models[1:]) / 3
        assert found[name].dtype == torch.float32
        assert torch.allclose(found[name].double(), wanted, rtol=1e-6, atol=1e-7)
    assert torch.equal(found["frozen"].view(torch.int32), frozen.view(torch.int32))
    assert found["version"].tolist() == [3]
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert checkpoints.count_updates(result) == 40 and result["last_optimizer_state"] is None
    one, number = checkpoint(1, {"a": torch.ones(2), "n": torch.tensor(1)}), torch.tensor(1)
    for other, message in (
        ({"a": torch.ones(2)}, r"n is \(\) in one checkpoint and missing"),
        ({"a": torch.ones(3), "n": number}, r"a is \(2,\) .* \(3,\)"),
        ({"a": torch.ones(2), "n": number + 1}, "n holds whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            checkpoints.average([one, checkpoint(2, other)])


@pytest.mark.parametrize(
    ("state", "message"),
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
    words = ["average", str(tmp_path), "--last", "1", "--out", str(tmp_path / "model.pt")]
    assert paradec(words) == 2
    error = capsys.readouterr().err
    assert message in error and "Weights only load" not in error and error.count("\n") == 1
    with pytest.raises(ValueError, match=message):
        checkpoints.repair(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [torn.name]


def test_mending_takes_the_newest_whole_checkpoint(tmp_path):
    assert checkpoints.repair(tmp_path) == 0
    for updates, name in ((5, "checkpoint1"), (9, "checkpoint_2_9"), (9, "checkpoint_best")):
        torch.save(checkpoint(updates, {"a": torch.ones(2)}), tmp_path / f"{name}.pt")
    last = tmp_path / "checkpoint_last.pt"
    for content in (b"", (tmp_path / "checkpoint1.pt").read_bytes()):  # torn, and older
        last.write_bytes(content)
        (tmp_path / "checkpoint_best.pt").write_bytes(b"torn")
        assert checkpoints.repair(tmp_path) == 9
        assert last.read_bytes() == (tmp_path / "checkpoint_2_9.pt").read_bytes()
    torch.save(checkpoint(12, {"a": torch.ones(2)}), last)
    newest = last.read_bytes()
    assert checkpoints.repair(tmp_path) == 12 and last.read_bytes() == newest
    for path in tmp_path.glob("*.pt"):
        path.write_bytes(b"torn")
    with pytest.raises(ValueError, match="truncated or no checkpoint"):
        checkpoints.repair(tmp_path)
    assert last.exists()  # nothing is removed if no checkpoint is whole


def test_a_signal_while_a_child_is_started_ends_that_child(tmp_path, monkeypatch):
    """And is not lost; a second one changes nothing."""
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(child.subprocess, "Popen", Popen)
    sleeps = [[sys.executable, "-S", "-c", "import time; time.sleep(600)"]] * 2
    before = [signal.getsignal(number) for number in child.Signals.NUMBERS]
    with (tmp_path / "lock").open("w") as lock, pytest.raises(child.Stopped) as stopped:
        with child.Signals() as signals:
            given = (dict(os.environ), tmp_path / "log", lock.fileno(), signals, 9, print)
            child.run(sleeps, *given)
    assert stopped.value.status == 143 and [each.returncode for each in started] == [-15]
    assert [signal.getsignal(number) for number in child.Signals.NUMBERS] == before
