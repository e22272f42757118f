"""scripts/train_blockwise.sh, its table and its heads; paradec shrink and prepare_demo.sh."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import DEMO, ROOT, fairseq, preprocess, succeed, wait_until
from support.training import ENV, SCRIPTS, SETTINGS, TRANSLATE, Blockwise, Stubbed, names

from fairseq_paradec.analysis.blocks import block_sizes
from fairseq_paradec.cli import average, shrink
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure import acceptance
from fairseq_paradec.measure.documents import read_document


@pytest.fixture
def recipe(tmp_path: Path) -> Blockwise:
    return Blockwise(tmp_path)


@pytest.fixture
def stubbed(tmp_path: Path) -> Stubbed:
    return Stubbed(tmp_path)


def model(data: str, flags: str, base: str = "gad/base/model.pt") -> str:
    return (
        f"train.sh [{data}] [--save-dir] [gad/model] {SETTINGS} [--arch] [blockwise_transformer] "
        f"[--] [--base-path] [{base}]{flags}"
    )


def report(setting: str, heads: str, base: str = "gad/base/model.pt") -> str:
    return (
        f"acceptance.sh [data] [--path={base}] [{heads}] [--decoding] [blockwise] [--accept-topk] "
        "[1] [--accept-topk] [2] [--accept-topk] [3] [--subset] [valid] [--raw=data/raw/valid.de] "
        f"[--device] [cpu] [--title=Blockwise: {setting}, base] [--out=gad/acceptance.json]"
    )


BASE = f"train.sh [data] [--save-dir] [gad/base] {SETTINGS}"
DISTILL = f"distill.sh [data] [gad/data.en-de] {TRANSLATE} [--path] [gad/base/model.pt]"
HEADS = "--drafter-path=gad/heads.pt"
SHRINK = "shrink [--heads-only] [--max-mb] [10000] [--] [gad/model/model.pt] [gad/heads.pt]"


@pytest.mark.slow
def test_the_steps_of_the_four_settings(recipe: Blockwise) -> None:
    tuned = " [--fine-tune-base]"
    for setting, wanted in (
        ("regular", [BASE, model("data", ""), SHRINK, report("regular", HEADS)]),
        (
            "distillation",
            [BASE, DISTILL, model("gad/data.en-de", ""), SHRINK, report("distillation", HEADS)],
        ),
        (
            "fine-tuning",
            [BASE, model("data", tuned), report("fine-tuning", "--path=gad/model/model.pt")],
        ),
        (
            "both",
            [
                BASE,
                DISTILL,
                model("gad/data.en-de", tuned),
                report("both", "--path=gad/model/model.pt"),
            ],
        ),
    ):
        shutil.rmtree(recipe.folder / "gad", ignore_errors=True)
        assert recipe.steps("--setting", setting) == wanted, setting
    shutil.rmtree(recipe.folder / "gad")
    assert recipe.steps()[-1] == report("regular", HEADS)


def test_what_is_given_is_not_made(recipe: Blockwise) -> None:
    base: list[Any] = ["--base", recipe.base]
    last = ["train.sh [gad/model]", "acceptance.sh [--out=gad/acceptance.json]"]
    both = [*base, "--setting", "both"]
    steps = recipe.steps(*both, "--distilled", recipe.distilled)
    assert names(steps) == last
    assert steps[0] == model("distilled", " [--fine-tune-base]", "base.pt")
    assert steps[1] == report("both", "--path=gad/model/model.pt", "base.pt")
    steps = recipe.steps(*both, "--teacher", f"{recipe.teacher}:{recipe.base}")
    assert names(steps) == ["distill.sh [gad/data.en-de]", *last]
    assert steps[0].endswith("[--path] [teacher.pt:base.pt]")
    assert recipe.steps(*both)[0].endswith("[--path] [base.pt]")
    (recipe.data / "raw" / "valid.de").unlink()
    assert "--raw" not in recipe.steps(*base)[-1]


def test_heads_are_taken_out_again_only_of_a_newer_model(recipe: Blockwise) -> None:
    base = ["--base", recipe.base]
    recipe.steps(*base)
    heads, whole = recipe.folder / "gad" / "heads.pt", recipe.folder / "gad/model/model.pt"
    for age, wanted in ((5, False), (-5, True)):
        # The stub of train.sh touches the model, as the real one does only when it trains.
        (recipe.folder / "scripts" / "train.sh").write_text("#!/bin/sh\n")
        os.utime(whole, (heads.stat().st_mtime - age,) * 2)
        assert (SHRINK in recipe.steps(*base)) == wanted
    first = recipe.steps(*base, "--", "--train-first-head")
    assert len(first) == 1 and "[--path=gad/model/model.pt]" in first[0]  # heads of their own


def test_options_reach_the_steps_that_they_are_for(recipe: Blockwise) -> None:
    steps = recipe.steps(
        "--preset", "tiny", "--setting", "distillation", "--block-size", 4, "--updates", 7,
        "--seed", 3, "--threads", 2, "--processes", 4, "--subset", "test",
        "--", "--head-layer", "per_head", "--lr", "1e-3; rm -rf $HOME",
        DEVICE="cuda",
    )  # fmt: skip
    for step in steps:
        assert ("[--updates] [7]" in step) == ("gad/model] " in step), step
        assert ("[--lr] [1e-3; rm -rf $HOME]" in step) == ("gad/model] " in step), step
        if step.startswith("train.sh"):
            assert "[--preset] [tiny] [--seed] [3] [--processes] [4]" in step
            assert "[--threads] [2]" in step
        if step.startswith("distill.sh"):
            assert "[--device] [cuda] [--processes] [4]" in step
    assert "[--base-path] [gad/base/model.pt] [--block-size] [4] [--head-layer]" in steps[2]
    assert "[--subset] [test] [--device] [cuda]" in steps[-1]


def test_a_try_out_leaves_nothing(recipe: Blockwise, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    env = recipe.env({"TMPDIR": str(tmp_path / "tmp")})
    command = recipe.command("--smoke", "--setting", "distillation")
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    steps = recipe.record.read_text().splitlines()
    assert [step.split()[0] for step in steps if "[--smoke]" not in step] == ["shrink"]
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
def test_a_step_stopped_or_failed(recipe: Blockwise) -> None:
    process = subprocess.Popen(
        recipe.command("--save-dir", recipe.folder / "gad"),
        env=recipe.env({"WAIT": "gad/model"}), text=True, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_until(recipe.is_waiting, process)
    other = recipe.run()
    assert other.returncode == 2 and "in which another process works" in other.stderr
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 143
    assert process.stderr is not None
    with process.stderr as stream:
        assert "train_blockwise: stopped; what was made is kept" in stream.read()
    assert not (recipe.folder / "gad" / "heads.pt").exists()
    result = recipe.run(FAIL="gad/model")
    assert result.returncode == 3
    assert result.stderr.endswith("train_blockwise: stopped by an error in train.sh\n")
    assert len(recipe.steps()) == 4


def test_mistakes_are_named_before_work_starts(recipe: Blockwise) -> None:
    data, teacher, done = recipe.data, ["--teacher", recipe.teacher], ["--distilled", recipe.data]
    out = ["--save-dir", recipe.folder / "no"]
    both = ["--setting", "both"]
    empty = recipe.folder / "empty"
    empty.mkdir()
    other = recipe.folder / "other"
    shutil.copytree(data, other)
    (other / "dict.de.txt").write_text("a 1\n")
    small = recipe.folder / "small"
    small.mkdir()
    (small / "train.en-de.de.idx").touch()
    program = recipe.folder / "scripts" / "train_blockwise.sh"
    for args, message in (
        ([*out], "got 0 paths; needed: DATA"),
        ([data], "--save-dir is missing"),
        ([recipe.folder / "none", *out], "missing DATA: "),
        ([empty, *out], "which has no training set (train.*.idx)"),
        ([small, *out], "--subset: got 'valid'; allowed: one that DATA has"),
        ([data, *out, "--subset", "test1"], "--subset: got 'test1'; allowed: valid test"),
        ([data, *out, "--preset", "deep-shallow"], "--preset: got 'deep-shallow'; allowed: tiny"),
        (
            [data, *out, "--setting", "frozen"],
            "--setting: got 'frozen'; allowed: regular distillation fine-tuning both",
        ),
        ([data, *out, "--block-size", "0"], "--block-size: got '0'; allowed: a whole number"),
        ([data, *out, "--block-size", "1"], "--block-size: got '1'; allowed: from 2 up with --set"),
        ([data, *out, "--base", "/none.pt"], "missing base (--base): /none.pt"),
        ([data, *out, "--base", "a:b"], "--base: got 'a:b'; allowed: a path without ':'"),
        ([data, *out, *done], "of which nothing would be learned; allowed: with --setting dist"),
        ([data, *out, *teacher], "of which nothing would be learned; allowed: with --setting dist"),
        ([data, *out, *both, *done, *teacher], "--teacher: got"),
        ([data, *out, *both, "--teacher", "/none.pt"], "missing teacher (--teacher): /none.pt"),
        ([data, *out, *both, "--distilled", "/none"], "missing distilled data (--distilled): /no"),
        ([data, *out, *both, "--distilled", empty], "missing training set (--distilled)"),
        ([data, *out, *both, "--distilled", other], "a folder with DATA's dict.de.txt"),
        ([data, *out, "--", "--fine-tune-base"], "--fine-tune-base: got it after --; allowed: --s"),
        ([data, *out, "--", "--base-path", "x"], "--base-path: got it after --; allowed: --base"),
        ([data, *out, "--", "--block-size=4"], "--block-size=4: got it after --; allowed: it bef"),
        ([data, *out, "--epochs", "1", "--updates", "1"], "only one of them"),
        ([data, *out, "--smoke", "--epochs", "1"], "--smoke sets --epochs"),
        ([data, *out, "--lr", "1"], "unknown option: --lr (see --help; fairseq's own flags"),
        ([data, *out, "--seed"], "--seed needs a value"),
    ):
        command = [*map(str, [program, *args])]
        result = subprocess.run(command, env=recipe.env({}), capture_output=True, text=True)
        assert result.returncode == 2, args
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not recipe.record.exists() and not (recipe.folder / "no").exists()
    one = ["--base", recipe.base, "--block-size", 1]
    assert recipe.run(*one, "--", "--train-first-head").returncode == 0
    assert recipe.run(*one, "--setting", "fine-tuning").returncode == 0


def test_help_teaches() -> None:
    command = [str(SCRIPTS / "train_blockwise.sh"), "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = "DATA --save-dir --setting regular distillation fine-tuning both frozen --block-size"
    words += " --preset --base --teacher --distilled --subset --epochs --updates --seed --threads"
    words += " --processes --smoke --python [1/5] [5/5] heads.pt acceptance.json examples: --head-"
    words += " --drafter-path"
    assert [word for word in words.split() if word not in text] == []
    assert max(map(len, text.splitlines())) <= 101


# ---- what fairseq-train is told, and the experiments ---------------------------------------------


def test_the_base_says_the_size_and_is_part_of_the_settings(stubbed: Stubbed) -> None:
    base = stubbed.data / "base.pt"
    arch = ["--preset", "tiny", "--arch", "blockwise_transformer"]
    flags = ["--", "--base-path", base, "--block-size", "4"]
    assert "missing base (--base-path): " in stubbed.run(*arch, *flags).stderr
    base.write_text("one")
    found = stubbed.flags(*arch, *flags)
    assert found["criterion"] == "blockwise_loss" and found["block-size"] == "4"
    assert not {"encoder-layers", "decoder-embed-dim", "share-all-embeddings"} & set(found)
    (stubbed.save_dir / "model.pt").touch()
    base.write_text("another")
    result = stubbed.run(*arch, *flags)
    assert result.returncode == 2 and "has other settings: before: BASE " in result.stderr


def test_the_list_of_experiments_has_table_1() -> None:
    lines = (SCRIPTS / "experiments.queue").read_text().splitlines()
    commands = dict(line.split("  ", 1) for line in lines if "  scripts/train" in line)
    commands = {name.split("[")[0]: command for name, command in commands.items()}
    for k in (2, 4, 6, 8, 10):
        for setting in ("", "-distillation", "-fine-tuning", "-both"):
            distilled = setting in ("-distillation", "-both")
            trained = setting in ("-fine-tuning", "-both")
            name = f"multi30k-tiny-blockwise-{k}{setting}"
            data = f"data-bin/multi30k{'-distilled' * distilled}.en-de"
            assert commands[name] == (
                f"scripts/train.sh {data} --save-dir checkpoints/{name} --preset tiny --arch "
                "blockwise_transformer -- --base-path checkpoints/multi30k-tiny/model.pt"
                f"{' --fine-tune-base' * trained} --block-size {k}"
            )
            words = shlex.split(commands[f"# wmt14-base-blockwise-{k}{setting}"])
            assert words[words.index("--setting") + 1] == (setting[1:] or "regular")
            assert words[words.index("--block-size") + 1] == str(k)
            assert ("--distilled" in words) == distilled
    tables = [line for line in lines if "acceptance" in line and "--decoding blockwise" in line]
    assert len(tables) == 9  # of images one
    for line in tables:
        waits = re.findall(r"\[after=(\S+)\]", line)[0].split(",")
        paths = re.findall(r"--path checkpoints/([\w-]+-blockwise-[\w-]+)/", line)
        assert paths and set(paths) == set(waits), line


# ---- the demo's heads, by steps that only write down what they are told --------------------------

DEMO_PYTHON = """#!/usr/bin/env bash
case "$*" in
    *find_spec*) ;;
    *sacremoses* | *apply_bpe*) cat ;;
    *preprocess*)
        while [ "$1" != --destdir ]; do shift; done
        mkdir -p "$2" && touch "$2"/test.en-de.{en,de}.{bin,idx}
        ;;
    *"paradec shrink"*) printf '[%s]' "${@:5}" >>"$RECORD"; echo >>"$RECORD" ;;
esac
"""


def test_the_demo_gets_heads(tmp_path: Path) -> None:
    dest, heads = tmp_path / "it's a demo", tmp_path / "-heads.pt"
    python, record = tmp_path / "python", tmp_path / "record"
    python.write_text(DEMO_PYTHON)
    python.chmod(0o755)
    heads.touch()
    (dest / "raw").mkdir(parents=True)
    for name in ("codes.bpe", "dict.en.txt", "dict.de.txt", "raw/demo.en", "raw/demo.de"):
        (dest / name).write_text("a\n")

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        command = [SCRIPTS / "prepare_demo.sh", "--dest", dest, "--python", python, *args]
        env = ENV | {"RECORD": str(record)}
        command = [*map(str, command)]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    result = run("--heads", "-heads.pt", "--drafter", heads)
    assert result.returncode == 0, result.stderr
    assert record.read_text().splitlines() == [
        f"[--][{heads}][{dest}/drafter.pt]",
        f"[--heads-only][--][-heads.pt][{dest}/heads.pt]",
    ]
    assert "model.pt: no checkpoint given" in result.stderr
    record.unlink()
    assert "heads.pt: no checkpoint given, left as it is" in run().stderr
    assert "missing checkpoint (--heads): /none.pt" in run("--heads", "/none.pt").stderr
    assert not record.exists()
    assert "--heads FILE" in run("--help").stdout


# ---- the real thing, once ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data-bin and k3, which was made in two goes: killed, and gone on with."""
    folder = tmp_path_factory.mktemp("blockwise") / "it's a corpus"
    data, out = preprocess(folder), folder / "k3"
    (data / "raw").mkdir()
    shutil.copy(folder / "valid.de", data / "raw" / "valid.de")
    command = [str(SCRIPTS / "train_blockwise.sh"), str(data), "--save-dir", str(out)]
    command += "--preset tiny --block-size 3 --smoke --threads 1".split()
    process = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + 600  # the machine may be busy
        while not (out / "base" / "model.pt").exists() and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (out / "model" / "model.pt").exists()
    result = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert f"already trained: {out}/base/model.pt" in result.stderr
    assert acceptance.BLOCK in result.stdout
    return folder


def changed(made: Path, name: str, **options: Any) -> Path:
    """The model with other options in its configuration, in a new file."""
    state = average.read(made / "k3" / "model" / "model.pt")
    for option, value in options.items():
        setattr(state["cfg"]["model"], option, value)
    torch.save(state, made / name)
    return made / name


@pytest.fixture(scope="module")
def tuned(made: Path) -> Path:
    """As if its base had been fine-tuned: another model, and shrunk, without a base to be read."""
    state = average.read(made / "k3" / "model" / "model.pt")
    options = state["cfg"]["model"]
    assert options.base_copied and options.base_path == str(made / "k3" / "base" / "model.pt")
    options.fine_tune_base = True
    state["model"]["decoder.layers.0.fc2.bias"] += 0.5
    torch.save(state, made / "full.pt")
    assert paradec(["shrink", str(made / "full.pt"), str(made / "tuned.pt")]) == 0
    return made / "tuned.pt"


@pytest.mark.slow
def test_the_frozen_base_is_the_base(made: Path) -> None:
    base, whole = (
        average.read(made / "k3" / name / "model.pt")["model"] for name in ("base", "model")
    )
    heads = {name for name in whole if name.startswith("decoder.heads.")}
    assert heads and set(whole) - heads == set(base)
    for name, weight in base.items():
        assert torch.equal(weight, whole[name]), name
    assert whole["decoder.heads.outer"].shape[0] == 2 and whole["decoder.heads.outer"].any()


@pytest.mark.slow
def test_the_report_of_the_recipe(made: Path) -> None:
    document = json.loads((made / "k3" / "acceptance.json").read_text())
    greedy, blockwise = document["rows"]
    assert (greedy["decoder"], greedy["label"], greedy[acceptance.BLOCK]) == ("greedy", "exact", 1)
    assert blockwise["label"].startswith("exact") and blockwise["k"] == 3
    assert blockwise["drafter"] == str(made / "k3" / "heads.pt")
    assert 1 <= blockwise[acceptance.BLOCK] <= 3 and "BLEU" in blockwise
    assert "tau" not in blockwise and "model" not in blockwise
    portable = document | {"command": "", "notes": [], "title": "T"}
    (made / "portable.json").write_text(json.dumps(portable))
    assert read_document(made / "portable.json")["rows"] == document["rows"]


def table(made: Path, *args: object, sentences: int = 2) -> list[dict[str, Any]]:
    out = made / "table.json"
    given = [made / "data-bin", "--decoding", "blockwise", "--sentences", sentences, "--out", out]
    assert paradec(["acceptance", *map(str, given), *map(str, args)]) == 0
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    return rows


@pytest.mark.slow
def test_heads_alone_decode_and_blocks_are_counted_as_in_the_reports(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, numbers = acceptance.counted, set()

    def counted(test: Any, *rest: Any) -> Any:
        numbers.update(test.numbers)
        return real(test, *rest)

    monkeypatch.setattr(acceptance, "counted", counted)
    base, heads = made / "k3" / "base" / "model.pt", made / "k3" / "heads.pt"
    state = torch.load(heads, weights_only=True)  # plain data
    assert not any(name.startswith("encoder.") for name in state["model"])
    assert heads.stat().st_size < 800_000 and str(made) not in repr(state["cfg"])
    (made / "table.partial.jsonl").unlink(missing_ok=True)
    row = table(made, "--path", base, "--drafter-path", heads, sentences=3)[1]
    stats = made / "stats.jsonl"
    elsewhere = made / "elsewhere"
    elsewhere.mkdir()
    result = fairseq(
        "generate", made / "data-bin", "--user-dir", ROOT / "fairseq_paradec", "--path", base,
        "--drafter-path", heads, "--decoding", "blockwise", "--gen-subset", "valid",
        "--stats-file", stats, "--batch-size", 1, cwd=elsewhere,
    )  # fmt: skip
    succeed(result)
    records = [json.loads(line) for line in stats.read_text().splitlines()]
    records = [one for one in records if one["id"] in numbers]
    assert len(records) == row["sentences"] == 3
    sizes = [n for one in records for n in block_sizes(one["num_accepted"], one["num_tokens"])]
    assert row[acceptance.BLOCK] == round(sum(sizes) / len(sizes), 3)
    passes = sum(one["decoder_passes"] for one in records)
    assert row["tokens per pass"] == round(row["tokens"] / passes, 3)
    assert row["tokens"] == sum(sizes) > len(sizes)


@pytest.mark.slow
def test_rows_of_several_models_and_what_they_are_called(made: Path, tuned: Path) -> None:
    base, whole = (made / "k3" / name / "model.pt" for name in ("base", "model"))
    same = changed(made, "same.pt", fine_tune_base=True)  # what was trained has come out the same
    paths = [option for path in (base, whole, tuned, same) for option in ("--path", path)]
    raw = made / "data-bin" / "raw" / "valid.de"
    rows = table(made, *paths, "--accept-topk", 1, "--accept-topk", 2, "--raw", raw)
    assert [row["model"] for row in rows] == [
        *map(str, [base, *[whole] * 3, *[tuned] * 3, *[same] * 3])
    ]
    labels = [row["label"].replace(" but for 1 ties of 2", "") for row in rows]
    own = ["exact", "exact", "relaxed"]
    assert labels == ["exact", *own, *(f"other model: {label}" for label in own), *own]
    assert [row["decoder"] for row in rows] == ["greedy", *["greedy", "blockwise", "blockwise"] * 3]
    assert [row["beta"] for row in rows[1:4]] == ["-", 1, 2]
    assert rows[2]["BLEU - first"].startswith("+0.00 [") and rows[0]["BLEU - first"] == "-"
    assert rows[4]["BLEU - greedy"] == "-" and rows[4]["BLEU - first"] != "-"
    for row in rows:
        if row["label"].endswith("exact"):
            assert row["identical, %"] == 100.0
    document = json.loads((made / "table.json").read_text())
    assert any("Stern" in note for note in document["notes"])


def test_the_mean_block_is_over_all_blocks_of_all_sentences() -> None:
    """The last pass of the first output only verified: 4 tokens in a block, then 1 and 1."""
    entry = {"tokens": [[5, 6, 7, 2], [5, 2]], "accepted": [[0, 3], [0, 0]]}
    assert acceptance.mean_block(entry) == 2.0


def test_a_broken_promise_is_said() -> None:
    options = {"decoding": "blockwise"}
    entry: dict[str, Any] = {"tokens": [[5, 2], [6, 2], [7, 2]], "ties": 1}
    assert acceptance.label(options, entry | {"ties": 0}, entry["tokens"]) == "exact"
    assert acceptance.label(options, entry, [[5, 2], [6, 2], [8, 2]]) == "exact but for 1 ties of 3"
    assert acceptance.label(options, entry, [[5, 2], [9, 2], [8, 2]]) == "NOT EXACT (1 of 3)"
    assert acceptance.label(options, entry | {"ties": None}, [[5, 2]] * 3) == "relaxed"


@pytest.mark.slow
def test_the_minimum_block_and_the_distance_are_combined(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = made / "k3" / "model" / "model.pt"
    rows = table(made, "--path", whole, "--min-block", 1, "--min-block", 3, "--block-size", 3)
    assert [(row["k"], row["l"], row["label"]) for row in rows[1:]] == [
        (3, 1, rows[1]["label"]), (3, 3, "relaxed"),
    ]  # fmt: skip
    assert (rows[1]["identical, %"], rows[2]["ties"]) == (100.0, "-")
    assert "epsilon" not in rows[0] and "model" not in rows[0]
    # The corpus is of words, which have no distance: that is said before any work.
    capsys.readouterr()
    monkeypatch.setattr(acceptance, "judged", lambda *_: pytest.fail("work has started"))
    heads = ["--drafter-path", made / "k3" / "heads.pt"]
    data, out = made / "data-bin", made / "no.json"
    for more, message in (
        (["--path", whole, "--accept-distance", 2], "--accept-distance: got 2; allowed: it with a"),
        (["--path", whole, "--block-size", 4], "--block-size: got 4; allowed: at most 3"),
        (["--path", whole, "--min-block", 4], "--min-block: got 4; allowed: at most the block"),
        (
            ["--path", whole, *heads],
            'heads.pt"; allowed: it with a --path that has no heads of its own',
        ),
        (["--path", whole, "--accept-margin", 1], "--accept-margin: got 1.0; allowed: it with --d"),
        (["--path", made / "k3" / "base" / "model.pt"], "allowed: a model of --arch blockwise_tra"),
        (["--path", whole, "--path", "/none.pt"], "--path: got '/none.pt'; allowed: a fairseq ch"),
    ):
        given = [data, "--decoding", "blockwise", "--out", out, *more]
        assert paradec(["acceptance", *map(str, given)]) == 2, more
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    assert not out.exists()


# ---- heads alone ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_heads_only_keeps_heads_and_little_else(made: Path) -> None:
    source, target = made / "k3" / "model" / "model.pt", made / "again.pt"
    assert paradec(["shrink", "--heads-only", str(source), str(target)]) == 0
    again = torch.load(target, weights_only=True)
    full = average.read(source)["model"]
    heads = {name for name in full if name.startswith("decoder.heads.")}
    assert heads <= set(again["model"])
    for name, weight in again["model"].items():
        assert torch.equal(weight, full[name].half() if weight.is_floating_point() else full[name])
        assert name in heads or name.startswith("decoder.layers.3.")
    options = again["cfg"]["model"]
    assert (options["block_size"], options["base_path"], options["base_copied"]) == (
        3, "base.pt", True,
    )  # fmt: skip
    # What is heads alone can be taken once more, for the demo.
    assert paradec(["shrink", "--heads-only", str(target), str(made / "more.pt")]) == 0
    twice = torch.load(made / "more.pt", weights_only=True)
    assert set(twice["model"]) == set(again["model"]) and twice["cfg"] == again["cfg"]


@pytest.mark.slow
def test_heads_only_refuses_what_is_no_drafter(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = made / "refused.pt"
    for source, message in (
        (DEMO / "model.pt", "of --arch transformer'; allowed: a checkpoint of blockwise_transf"),
        (changed(made, "t.pt", fine_tune_base=True), "t.pt, trained with --fine-tune-base, whose"),
        (changed(made, "f.pt", train_first_head=True), "f.pt, trained with --train-first-head, "),
        (made / "none.pt", 'none.pt"; allowed: a checkpoint'),
    ):
        assert paradec(["shrink", "--heads-only", str(source), str(target)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
        assert not target.exists()


def test_a_path_that_was_not_given_stays_none() -> None:
    """From nothing there is no base: a name in its place would be looked for."""
    given = argparse.Namespace(base_path=None, data="/here", user_dir="/there", block_size=3)
    assert shrink.plain_config(given) == {
        "base_path": None, "data": ".", "user_dir": None, "block_size": 3,
    }  # fmt: skip
    given.base_path = "/my/base.pt"
    assert shrink.plain_config(given)["base_path"] == "base.pt"
