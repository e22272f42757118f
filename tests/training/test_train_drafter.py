"""``paradec train-drafter``: a model folder gets a drafter, from text alone."""

import random
import re
import subprocess
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
import torch
from fairseq import checkpoint_utils
from support.builders import save_drafter, tiny_model, tiny_task

import fairseq_paradec
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.model.dictionary import Dictionary
from fairseq_paradec.model.model import Model
from fairseq_paradec.training import drafter_text
from fairseq_paradec.training.distill import plan
from fairseq_paradec.training.drafter_training import Training
from fairseq_paradec.translator import model_folder

DRAW = random.Random(1)
TEXT = [" ".join(f"w{DRAW.randrange(35)}" for _ in range(2 + i % 7)) for i in range(60)]


@pytest.fixture
def model(tmp_path):
    """A folder with a random model, and a text beside it."""
    task, path = tiny_task(), tmp_path / "model"
    path.mkdir()
    for language in ("xx", "yy"):
        task.source_dictionary.save(str(path / f"dict.{language}.txt"))
    verifier, pair = tiny_model(task, "share_all", torch.float32), ("xx", "yy")
    named = dict(zip(("source_lang", "target_lang"), pair))
    save_drafter(task, verifier, tmp_path / "checkpoint", "transformer", **named)
    words = [Dictionary.read(path / f"dict.{language}.txt") for language in pair]
    folder = model_folder.ModelFolder(*pair)
    Model.read(tmp_path / "checkpoint", *words).save(path / folder.model)
    model_folder.write(path, folder)
    (tmp_path / "text").write_text("\n".join([*TEXT[:40], "", *TEXT[30:], TEXT[0]]))
    return path


def train(model: Path, *more: str) -> int:
    words = ["train-drafter", "--model", str(model), "--text", str(model.with_name("text"))]
    return paradec([*words, "--updates", "7", "--threads", "1", *more])


def test_a_folder_gets_a_drafter_from_text(model, capsys):
    wanted = fairseq_paradec.load(model).translate(TEXT, decoding="greedy")
    assert len({*wanted}) > 30 and train(model) == 0
    out, err = capsys.readouterr()
    assert re.search(r"assisted: .* 6 held-out lines; all outputs are greedy's", out)
    assert re.search(r"54 .* 6 more .* \(7 upd", err)
    made = model.with_name("model.drafter")
    texts = [made / "valid/text/valid.xx", *sorted((made / "greedy/text").glob("train.*"))]
    held_out, *sides = (path.read_text().splitlines() for path in texts)
    assert held_out == TEXT[::10] and not [*made.rglob("checkpoint*.pt")]
    assert dict(zip(*sides)) == {a: b for a, b in zip(TEXT, wanted) if a not in held_out}
    assert fairseq_paradec.load(model).translate(TEXT, decoding="assisted") == wanted
    seen = texts[1].stat().st_mtime_ns
    assert train(model) == 0 and "already made" in capsys.readouterr().err
    assert train(model, "--kind", "block") == 2 and "--replace" in capsys.readouterr().err
    assert train(model, "--kind", "block", "--replace") == 0
    assert fairseq_paradec.load(model).translate(TEXT, decoding="gad") == wanted
    assert texts[1].stat().st_mtime_ns == seen  # the same translations


@pytest.mark.slow
def test_a_stopped_run_goes_on(model, monkeypatch, capsys):
    """Stopped while it translates, trains and puts the drafter there."""
    stops = {(plan, "content"): 2, (checkpoint_utils, "torch_persistent_save"): 4}
    monkeypatch.setattr(drafter_text, "MAX_TOKENS", 30)
    for (owner, name), calls in (stops | {(model_folder, "write"): 2}).items():
        usual = getattr(owner, name)
        stop = Mock(side_effect=[DEFAULT] * (calls - 1) + [KeyboardInterrupt], wraps=usual)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stop)
            assert train(model) == 130 and stop.call_count == calls, name
        assert model_folder.read(model).drafter is None
    assert paradec(["doctor", str(model)]) == 0
    assert re.search(r"assisted +needs paradec train-drafter --model", capsys.readouterr().out)
    assert train(model) == 0 and model_folder.read(model).drafter == "drafter.pt"
    (log,) = model.with_name("model.drafter").glob("*/train.log")
    assert "(epoch 4 @ 3 updates)" in log.read_text()


@pytest.mark.parametrize(
    "spoil, flags, said",
    [
        ("rm text", "", "--text: .* allowed: a text file"),
        (r"printf '\377' > text", "", "--text: .* in UTF-8"),
        ("printf 'a\nb\n\na' > text", "", "--text: .* at least 10 .* found 2$"),
        ("touch model/drafter.pt", "", "--model: .* without drafter.pt; --replace"),
        ("", "--save-dir a:b", "--save-dir: got 'a:b'; allowed: .* without"),
        ("", "-- --none 3", "--: got '--none 3'; allowed: .* --none 3"),
        ("", "-- --encoder-layers 3", "--encoder-layers: got 3; allowed: 2"),
    ],
)
def test_mistakes_change_nothing(spoil, flags, said, model, capsys):
    subprocess.check_call(spoil, shell=True, cwd=model.parent)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    assert train(model, *flags.split()) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.match(f"paradec train-drafter: error: .*{said}", line), line
    assert before == {path.name: path.read_bytes() for path in model.iterdir()}


def test_the_schedule_follows_the_length_of_the_text():
    """At most 60 times through the text; a tenth of warm-up; a fall that ends with the run."""
    for kind, small, most, warmup in (
        ("shallow", True, 2500, 200),
        ("shallow", False, 20000, 1000),
        ("block", True, 12000, 500),
        ("block", False, 50000, 4000),
    ):
        training = Training(kind, Path("v.pt"), small, None, 1, "cpu", ["--lr", "9"])
        assert training.length(10**9) == most
        updates = training.length(100_000)
        assert updates == 60 * 100_000 // training.usual.batch < most
        for length in (most, updates, 7):
            words = training.flags(length)
            flags = dict(zip(words, words[1:]))
            assert int(flags["--warmup-updates"]) == min(warmup, max(1, length // 10))
            falls = kind == "shallow" or small
            assert flags.get("--total-num-update") == (str(length) if falls else None)
            assert (flags["--max-update"], words[-2:]) == (str(length), ["--lr", "9"])
            tokens = int(flags["--max-tokens"]) * int(flags["--update-freq"])
            assert 0.99 * training.usual.batch < tokens <= training.usual.batch
