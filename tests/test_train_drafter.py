"""``paradec train-drafter``: a model folder gets a drafter, from text alone."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from support.builders import save_drafter, tiny_model, tiny_task
from support.commands import ROOT

import fairseq_paradec
from fairseq_paradec import model_folder
from fairseq_paradec.cli import drafter_text, train_drafter
from fairseq_paradec.cli.distill import parts
from fairseq_paradec.cli.drafter_training import KINDS, SETTINGS
from fairseq_paradec.cli.main import main as paradec

DRAW = random.Random(1)
TEXT = [" ".join(f"w{DRAW.randrange(35)}" for _ in range(2 + i % 7)) for i in range(60)]


@pytest.fixture
def model(tmp_path):
    """A folder with a random model, and a text beside it."""
    task, path = tiny_task(), tmp_path / "model"
    path.mkdir()
    verifier = tiny_model(task, "share_all", torch.float32)
    for language in ("xx", "yy"):
        task.source_dictionary.save(str(path / f"dict.{language}.txt"))
    languages = {"source_lang": "xx", "target_lang": "yy"}
    save_drafter(task, verifier, path / "model.pt", "transformer", **languages)
    model_folder.write(path, model_folder.ModelFolder("xx", "yy"))
    (tmp_path / "text").write_text("\n".join([*TEXT[:40], "", *TEXT[30:], TEXT[0]]))
    return path


def train(model: Path, *more: str) -> int:
    words = ["train-drafter", "--model", str(model), "--text", str(model.with_name("text"))]
    return paradec([*words, "--updates", "7", "--threads", "1", *more])


def weights(model: Path) -> dict[str, torch.Tensor]:
    return torch.load(model / "drafter.pt", weights_only=True)["model"]


def test_a_folder_gets_a_drafter_from_text(model, capsys):
    wanted = fairseq_paradec.load(model).translate(TEXT, decoding="greedy")
    assert len({*wanted}) > 30 and train(model) == 0
    captured = capsys.readouterr()
    assert re.search(r"assisted +exact .* 6 ", captured.out), captured.out
    assert re.search(r"54 lines, 6 more held out: about \d+ s of .* \(7 updates\)", captured.err)
    made = model.with_name("model.drafter")
    texts = [made / "valid/text/valid.xx", *sorted((made / "greedy/text").glob("train.*"))]
    held_out, *sides = (path.read_text().splitlines() for path in texts)
    assert held_out == TEXT[::10] and not [*made.rglob("checkpoint*.pt")]
    assert dict(zip(*sides)) == {a: b for a, b in zip(TEXT, wanted) if a not in held_out}
    assert fairseq_paradec.load(model).translate(TEXT, decoding="assisted") == wanted
    first, seen = weights(model), texts[1].stat().st_mtime_ns
    assert train(model) == 0 and "already made" in capsys.readouterr().err
    assert train(model, "--kind", "block") == 2 and "--replace" in capsys.readouterr().err
    assert train(model, "--kind", "block", "--replace") == 0
    assert texts[1].stat().st_mtime_ns == seen and weights(model).keys() != first.keys()
    assert fairseq_paradec.load(model).translate(TEXT, decoding="gad") == wanted


@pytest.mark.slow
def test_a_stopped_run_goes_on(model, monkeypatch):
    """Stopped while it translates, trains and puts the drafter there."""
    stops = {(parts, "format_batch"): 9, (checkpoint_utils, "save_checkpoint"): 4}
    monkeypatch.setattr(drafter_text, "MAX_TOKENS", 30)
    for (owner, name), calls in (stops | {(train_drafter, "write"): 2}).items():
        with monkeypatch.context() as patch:
            left, usual = [*range(calls - 1)], getattr(owner, name)

            def stop(*given, left=left, usual=usual):
                if not left:
                    raise KeyboardInterrupt
                left.pop()
                return usual(*given)

            patch.setattr(owner, name, stop)
            assert train(model) == 130 and not left, name
        assert model_folder.read(model).drafter is None
    assert train(model) == 0 and fairseq_paradec.load(model).folder.drafter == "drafter.pt"
    made = model.with_name("model.drafter")
    assert len((made / "greedy/parts/0-of-1.jsonl").read_text().splitlines()) > 9
    (log,) = made.glob("*/train.log")
    assert "(epoch 4 @ 3 updates)" in log.read_text()


#: What is done to the files, more flags, and the message.
MISTAKES = {
    "text": ("rm text", "", "--text: .* allowed: a text file"),
    "bytes": (r"printf '\377' > text", "", "--text: .* in UTF-8"),
    "short": ("printf 'a\nb\n\na' > text", "", "--text: .* at least 10 .* found 2$"),
    "folder": ("rm model/paradec.json", "", "--model: got .* paradec pack"),
    "colon": ("", "--save-dir a:b", "--save-dir: got 'a:b'; allowed: .* without"),
    "flag": ("", "-- --none 3", "--: got '--none 3'; allowed: .* --none 3"),
    "size": ("", "-- --encoder-layers 3", "--encoder-layers: got 3; allowed: 2"),
    "stray": ("touch model/drafter.pt", "", "--model: .* without drafter.pt; --replace"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_change_nothing(kind, model, capsys):
    spoil, flags, said = MISTAKES[kind]
    subprocess.check_call(spoil, shell=True, cwd=model.parent)
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    assert train(model, *flags.split()) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.match(f"paradec train-drafter: error: .*{said}", line), line
    assert before == {path.name: path.read_bytes() for path in model.iterdir()}


@pytest.mark.parametrize("kind, small", SETTINGS)
def test_settings_are_those_of_the_script(kind, small):
    env = {"preset": "tiny" if small else "iwslt", "arch": KINDS[kind][0], "gpus": "0"}
    code = 'more=() epochs= updates=; . scripts/train_settings.sh; echo "$batch ${training[*]@Q}"'
    said = subprocess.check_output(["bash", "-c", code], env=env, text=True, cwd=ROOT)
    batch, *words = shlex.split(said)
    theirs = dict(zip(words[::2], words[1::2]))
    usual = SETTINGS[kind, small]
    assert (usual.batch, usual.warmup) == (int(batch), int(theirs["--warmup-updates"]))
    for flag in theirs.keys() & {*shlex.split(usual.flags)}:
        assert f"{flag} {shlex.quote(theirs[flag])}" in usual.flags
