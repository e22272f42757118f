"""scripts/train_gad.sh, paradec acceptance, and the drafters' settings of train.sh."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import ROOT, fairseq, preprocess, succeed, wait_until
from support.training import ENV, SCRIPTS, SETTINGS, TRANSLATE, Recipe, names

from fairseq_paradec.cli import average
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure import acceptance
from fairseq_paradec.measure.documents import read_document

GREEDY = {"decoding": "greedy"}


# ---- the recipe, with steps that only write down what they are told ------------------------------


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path)


def test_all_steps_in_their_order(recipe: Recipe) -> None:
    verifier = "gad/verifier/model.pt"
    assert recipe.steps() == [
        f"train.sh [data] [--save-dir] [gad/teacher] {SETTINGS}",
        f"distill.sh [data] [gad/distilled] {TRANSLATE} [--path] [gad/teacher/model.pt]",
        f"train.sh [gad/distilled] [--save-dir] [gad/verifier] {SETTINGS}",
        f"distill.sh [data] [gad/greedy.train] {TRANSLATE} [--path] [{verifier}] [--beam] [1]",
        f"distill.sh [gad/greedy.train] [gad/greedy] {TRANSLATE} [--path] [{verifier}] [--beam] "
        "[1] [--subset] [valid]",
        f"train.sh [gad/greedy] [--save-dir] [gad/drafter] {SETTINGS} [--arch] [block_nat] "
        f"[--] [--encoder-from] [{verifier}]",
        f"acceptance.sh [data] [--path={verifier}] [--drafter-path=gad/drafter/model.pt] "
        "[--decoding] [gad] [--decoding] [gad_pp] [--accept-topk] [3] [--accept-margin] [1.0] "
        "[--subset] [valid] [--device] [cpu] "
        "[--title=Acceptance: block_nat, base, on own-greedy] [--out=gad/acceptance.json]",
    ]


def test_what_is_given_is_not_made(recipe: Recipe) -> None:
    drafter = ["train.sh [gad/drafter]", "acceptance.sh [--out=gad/acceptance.json]"]
    greedy = ["distill.sh [gad/greedy.train]", "distill.sh [gad/greedy]"]
    given: Any
    for given, wanted in (
        (["--verifier", recipe.verifier], greedy + drafter),
        (["--verifier", recipe.verifier, "--draft-on", "references"], drafter),
        (
            ["--verifier", recipe.verifier, "--draft-on", "teacher", "--teacher", recipe.teacher],
            ["distill.sh [gad/distilled]", *drafter],
        ),
        (
            ["--teacher", f"{recipe.teacher}:{recipe.verifier}", "--draft-on", "teacher"],
            ["distill.sh [gad/distilled]", "train.sh [gad/verifier]", *drafter],
        ),
    ):
        steps = recipe.steps(*given)
        assert names(steps) == wanted, given
        trained = {"references": "[data]", "teacher": "[gad/distilled]"}.get(given[-1])
        if "--draft-on" in given and trained:
            assert f"train.sh {trained} [--save-dir] [gad/drafter]" in steps[-2]
    assert "[--path] [teacher.pt:verifier.pt]" in steps[0]
    assert "[--encoder-from] [gad/verifier/model.pt]" in steps[-2]


def test_options_reach_the_steps_that_they_are_for(recipe: Recipe) -> None:
    steps = recipe.steps(
        "--preset", "tiny", "--fast", "--updates", 7, "--seed", 3, "--threads", 2, "--processes", 4,
        "--", "--soft-copy", "--lr", "1e-3; rm",
        DEVICE="cuda",
    )  # fmt: skip
    for step in steps:
        assert ("[--updates] [7]" in step) == ("drafter]" in step and "train.sh" in step), step
        assert ("[--soft-copy] [--lr] [1e-3; rm]" in step) == ("[--updates]" in step)
        if step.startswith("train.sh"):
            assert "[--preset] [tiny] [--seed] [3] [--processes] [4]" in step
            assert "[--threads] [2]" in step
        if step.startswith("distill.sh"):
            assert "[--device] [cuda] [--processes] [4]" in step
            assert "[--max-tokens] [16000]" in step
    assert "[--arch] [block_nat_fast] [--updates]" in steps[-2]
    assert "[--device] [cuda]" in steps[-1]


def test_a_try_out_leaves_nothing(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    env = recipe.env({"TMPDIR": str(tmp_path / "tmp")})
    result = subprocess.run(recipe.command("--smoke"), env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all("[--smoke]" in step for step in recipe.record.read_text().splitlines())
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("sent, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_step_and_the_same_command_goes_on(
    recipe: Recipe, sent: signal.Signals, status: int
) -> None:
    command = recipe.command("--save-dir", recipe.folder / "gad")
    process = subprocess.Popen(
        command, env=recipe.env({"WAIT": "gad/verifier"}), text=True, stderr=subprocess.PIPE
    )
    wait_until(recipe.is_waiting, process)
    process.send_signal(sent)
    assert process.wait(300) == status
    assert process.stderr is not None
    with process.stderr as stream:
        assert "the same command goes on" in stream.read()
    assert "terminated" in recipe.record.read_text().splitlines()[-1]
    assert not (recipe.folder / "gad" / "greedy.train").exists()
    assert len(recipe.steps()) == 7


def test_a_step_that_fails_ends_it(recipe: Recipe) -> None:
    result = recipe.run(FAIL="gad/distilled")
    assert result.returncode == 3
    assert result.stderr.endswith("train_gad: stopped by an error in distill.sh\n")
    assert "[3/5]" not in result.stderr


@pytest.mark.slow
def test_two_at_once_are_refused(recipe: Recipe) -> None:
    command = recipe.command("--save-dir", recipe.folder / "gad")
    first = subprocess.Popen(
        command, env=recipe.env({"WAIT": "gad/teacher"}), stderr=subprocess.DEVNULL
    )
    wait_until(recipe.is_waiting, first)
    result = recipe.run()
    assert result.returncode == 2
    assert f"--save-dir: got '{recipe.folder}/gad', in which another process" in result.stderr
    first.terminate()
    assert first.wait(300) == 143


def test_mistakes_are_named_before_work_starts(recipe: Recipe) -> None:
    data, verifier = recipe.data, ["--verifier", recipe.verifier]
    out = ["--save-dir", recipe.folder / "no"]
    empty = recipe.folder / "empty"
    empty.mkdir()
    program = recipe.folder / "scripts" / "train_gad.sh"
    for args, message in (
        ([*out], "got 0 paths; needed: DATA"),
        ([data], "--save-dir is missing"),
        ([data, "--save-dir", "a:b"], "--save-dir: got 'a:b'; allowed: a path without ':'"),
        ([recipe.folder / "none", *out], "missing DATA: "),
        ([empty, *out], "which has no validation set (valid.*.idx)"),
        ([data, *out, "--preset", "deep-shallow"], "--preset: got 'deep-shallow'; allowed: tiny"),
        ([data, *out, "--arch", "transformer"], "--arch: got 'transformer'; allowed: a drafter's"),
        ([data, *out, "--arch", "block_nat", "--fast"], "--fast and --arch: only one of them"),
        ([data, *out, "--draft-on", "x"], "--draft-on: got 'x'; allowed: own-greedy teacher ref"),
        ([data, *out, "--epochs", "1", "--updates", "1"], "only one of them"),
        ([data, *out, "--updates", "x"], "--updates: got 'x'; allowed: a whole number from 1 up"),
        ([data, *out, "--smoke", "--epochs", "1"], "--smoke sets --epochs"),
        ([data, *out, "--verifier", "/none.pt"], "missing verifier (--verifier): /none.pt"),
        ([data, *out, "--teacher", f"{verifier[1]}:/none.pt"], "missing teacher (--teacher): /non"),
        ([data, *out, "--teacher", recipe.teacher, *verifier], "of which nothing would be learned"),
        ([data, *out, "--lr", "1"], "unknown option: --lr (see --help; fairseq's own flags"),
        ([data, *out, "--seed"], "--seed needs a value"),
    ):
        command = [program, *args]
        env = recipe.env({})
        result = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True)
        assert result.returncode == 2, args
        assert message in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not recipe.record.exists() and not (recipe.folder / "no").exists()


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    words = "DATA --save-dir --preset --fast --arch --teacher --verifier --draft-on --epochs"
    words += " --updates --seed --threads --processes --smoke [1/5] [5/5] acceptance.json"
    command = [SCRIPTS / "train_gad.sh", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [word for word in words.split() if word not in text] == []
    words = "DATA --path --drafter-path --decoding --block-size --accept-topk --accept-margin"
    words += " --accept-distance --min-block blockwise examples:"
    words += " --subset --raw --batch-size --sentences --dtype --device --smoke --title --out"
    with pytest.raises(SystemExit):
        paradec(["acceptance", "--help"])
    text = capsys.readouterr().out
    assert [word for word in words.split() if word not in text] == []


def test_the_list_of_experiments_can_be_read(tmp_path: Path) -> None:
    """Also those that are commented out."""
    lines = (SCRIPTS / "experiments.queue").read_text().splitlines()
    lines = [line.removeprefix("# ") if "  scripts/" in line else line for line in lines]
    lines = [line.removeprefix("# ") if "  .venv/bin/" in line else line for line in lines]
    queue = tmp_path / "queue"
    queue.write_text("\n".join(lines) + "\n")
    command = [SCRIPTS / "queue.sh", queue, "--list", "--runs", tmp_path / "runs"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stderr == ""
    table = result.stdout.splitlines()[1:]
    assert len(table) == sum("  " in line and not line.startswith("#") for line in lines)
    assert any(line.startswith("wmt14-base-gad-fast ") for line in table)


# ---- the real thing, once ------------------------------------------------------------------------


def weights(path: Path, part: str = "") -> dict[str, torch.Tensor]:
    model = average.read(path)["model"]
    return {name: tensor for name, tensor in model.items() if name.startswith(part)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data-bin and gad, which was made in two goes: killed, and gone on with."""
    folder = tmp_path_factory.mktemp("gad") / "it's a corpus"
    data, gad = preprocess(folder), folder / "gad"
    command = [SCRIPTS / "train_gad.sh", data, "--save-dir", gad, "--preset", "tiny", "--fast"]
    command += ["--smoke", "--threads", "1"]
    process = subprocess.Popen(
        [*map(str, command)], env=ENV, stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_until(lambda: list((gad / "verifier").glob("checkpoint_*.pt")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (gad / "verifier" / "model.pt").exists()
    result = subprocess.run([*map(str, command)], env=ENV, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    said = [line.split(": ")[1] for line in result.stderr.splitlines() if "/5] " in line]
    assert said == ["[1/5] teacher", "[2/5] distilled data", "[3/5] verifier", "[4/5] drafter",
                    "[5/5] acceptance"]  # fmt: skip
    assert f"already trained: {gad}/teacher/model.pt" in result.stderr
    assert f"already made: {gad}/distilled" in result.stderr
    updates = re.findall(r"(\d+) updates done", result.stderr)
    assert len(updates) == 2 and int(updates[0]) >= 10 and updates[1] == "0"  # verifier, drafter
    assert "gad_pp " in result.stdout
    return folder


@pytest.mark.slow
def test_the_frozen_encoder_is_the_verifiers_to_the_bit(made: Path) -> None:
    drafter, verifier = (made / "gad" / name / "model.pt" for name in ("drafter", "verifier"))
    theirs = weights(verifier, "encoder.")
    ours = weights(drafter, "encoder.")
    assert ours.keys() == theirs.keys() and len(ours) > 20
    for name, weight in theirs.items():
        assert torch.equal(weight.view(torch.int32), ours[name].view(torch.int32)), name
    assert weights(drafter)["decoder.layers.1.fc1.weight"].shape == (256, 128)
    first, second = (
        weights(path, "decoder.") for path in (made / "gad" / "drafter").glob("checkpoint_*_?0.pt")
    )
    assert any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_the_report_is_exact_and_can_be_rendered(made: Path) -> None:
    document = json.loads((made / "gad" / "acceptance.json").read_text())
    rows = {row["decoder"]: row for row in document["rows"]}
    assert list(rows) == ["greedy", "gad", "gad_pp"]
    assert all(row["sentences"] == acceptance.SMOKE_SENTENCES for row in rows.values())
    for name in ("greedy", "gad"):
        row = rows[name]
        same = round(row["identical, %"] * row["sentences"] / 100)
        assert same + row["ties"] == row["sentences"] and row["label"].startswith("exact")
    assert rows["gad_pp"]["label"] == "relaxed"
    assert not {"model", "epsilon", "l", acceptance.BLOCK} & set(rows["gad"])  # not of these rows
    assert rows["greedy"]["tokens per pass"] == 1.0
    assert (rows["gad"]["k"], rows["gad_pp"]["beta"], rows["gad_pp"]["tau"]) == (8, 3, 1.0)
    portable = document | {"command": "", "notes": [], "title": "T"}
    (made / "portable.json").write_text(json.dumps(portable))
    assert read_document(made / "portable.json")["rows"] == document["rows"]


def options_for(made: Path, *more: object) -> list[str]:
    drafter, verifier = (made / "gad" / name / "model.pt" for name in ("drafter", "verifier"))
    given = [made / "data-bin", "--path", verifier, "--drafter-path", drafter]
    return [*map(str, (*given, "--sentences", 2, *more))]


@pytest.mark.slow
def test_counts_are_those_of_fairseq_generate(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, stats = made / "one.json", made / "stats.jsonl"
    flags = ["--decoding", "gad_pp", "--block-size", 3, "--accept-topk", 5, "--accept-margin", 9]
    command = options_for(made, *flags, "--sentences", 13, "--raw", made / "valid.de")
    assert paradec(["acceptance", *command, "--out", str(out), "--batch-size", "13"]) == 0
    assert "BLEU" in capsys.readouterr().out
    row = json.loads(out.read_text())["rows"][1]
    arguments = [*options_for(made)[:5], *flags, "--gen-subset", "valid", "--stats-file", stats]
    succeed(fairseq("generate", *arguments, "--user-dir", ROOT / "fairseq_paradec"))
    records = [json.loads(line) for line in stats.read_text().splitlines()]
    tokens = sum(record["num_tokens"] for record in records)
    passes = sum(record["decoder_passes"] for record in records)
    accepted = [n for record in records for n in record["num_accepted"]]
    assert (row["sentences"], row["tokens"]) == (13, tokens)
    assert row["passes per sentence"] == round(passes / 13, 3)
    assert row["tokens per pass"] == round(tokens / passes, 3)
    assert row["accepted per pass"] == round(sum(accepted) / passes, 3)
    shares = list(map(int, row["% of passes that accept 0, 1, 2, ... tokens"].split()))
    assert shares == [round(100 * accepted.count(i) / passes) for i in range(max(accepted) + 1)]


# ---- combinations, and rows that are finished ----------------------------------------------------


@pytest.mark.slow
def test_rows_are_all_combinations_of_what_each_decoding_reads(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    found = {
        "tokens": [[5, 2], [6, 2]], "passes": [1, 2], "drafted": [[3], [3, 2]],
        "accepted": [[3], [0, 1]], "flags": {}, "ties": None,
    }  # fmt: skip
    monkeypatch.setattr(acceptance, "judged", lambda *_: {"tokens": [[5, 2], [7, 2]]})
    monkeypatch.setattr(acceptance, "counted", lambda _, o, *__: (asked.append(o), found)[1])
    out = str(made / "all.json")
    flags: list[object] = ["--decoding", "gad", "--decoding", "gad_pp", "--decoding", "nat"]
    flags += ["--decoding", "pgj", "--block-size", 2, "--block-size", 4, "--accept-topk", 1]
    flags += ["--accept-margin", 1, "--accept-margin", 2, "--accept-margin", 1]
    assert paradec(["acceptance", *options_for(made, *flags), "--out", out]) == 0
    drafter = {"drafter_path": options_for(made)[4]}
    sizes = [{"block_size": 2}, {"block_size": 4}]
    margins = [{"accept_margin": 1.0}, {"accept_margin": 2.0}]
    assert asked == [
        GREEDY,
        *({"decoding": "gad"} | drafter | size for size in sizes),
        *(
            {"decoding": "gad_pp"} | drafter | size | {"accept_topk": 1} | margin
            for size, margin in itertools.product(sizes, margins)
        ),
        *({"decoding": "nat"} | drafter | size for size in sizes),
        *({"decoding": "pgj"} | size for size in sizes),
    ]
    row = json.loads(Path(out).read_text())["rows"][1]
    assert (row["tokens"], row["passes per sentence"], row["tokens per pass"]) == (4, 1.5, 1.333)
    assert (row["accepted per pass"], row["identical, %"], row["ties"]) == (1.333, 50.0, "-")
    assert row["% of passes that accept 0, 1, 2, ... tokens"] == "33 33 0 33"


@pytest.mark.slow
def test_a_report_cut_short_goes_on_and_changes_are_noticed(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = acceptance.counted, []

    def counted(test: Any, options: dict[str, Any], *rest: Any) -> Any:
        asked.append(options["decoding"])
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(test, options, *rest)

    monkeypatch.setattr(acceptance, "counted", counted)
    out = made / "new folder" / "cut.json"
    command = [*options_for(made), "--out", str(out)]
    assert paradec(["acceptance", *command]) == 130
    assert asked == ["greedy", "gad", "gad_pp"] and not out.exists()
    assert paradec(["acceptance", *command]) == 0
    assert asked[3:] == ["gad_pp"]
    rows = json.loads(out.read_text())["rows"]
    assert [row["identical, %"] for row in rows[:2]] == [100.0, 100.0]
    assert paradec(["acceptance", *command, "--block-size", "8", "--block-size", "2"]) == 0
    assert asked[4:] == ["gad", "gad", "gad_pp", "gad_pp"]
    assert paradec(["acceptance", *command]) == 0
    assert len(asked) == 8 and json.loads(out.read_text())["rows"] == rows
    drafter = made / "other drafter.pt"
    state = average.read(Path(options_for(made)[4]))
    torch.save(state | {"extra_state": {}}, drafter)
    command[4] = str(drafter)
    assert paradec(["acceptance", *command]) == 0
    assert asked[8:] == ["gad", "gad_pp"]  # greedy has no drafter


@pytest.mark.slow
def test_the_same_sentences_in_every_process(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq shuffles the sentences of one length, unless the subset is called test."""
    found: list[list[int]] = []

    def judged(test: Any, *_: Any) -> Any:
        found.append(test.numbers)
        raise KeyboardInterrupt

    monkeypatch.setattr(acceptance, "judged", judged)
    command = options_for(made, "--sentences", 6, "--out", made / "same.json")
    for seed in range(3):
        np.random.seed(seed)
        assert paradec(["acceptance", *command]) == 130
    sizes = [len(line.split()) for line in (made / "valid.en").read_text().splitlines()]
    order = sorted(range(13), key=lambda i: (sizes[i], i))
    assert found == [[order[i] for i in (0, 2, 4, 6, 8, 10)]] * 3


@pytest.mark.slow
def test_the_drafter_alone(made: Path) -> None:
    out = made / "nat.json"
    flags = ["--decoding", "nat", "--block-size", 16, "--out", out]
    assert paradec(["acceptance", *options_for(made, *flags)]) == 0
    row = json.loads(out.read_text())["rows"][1]
    assert (row["decoder"], row["k"], row["accepted per pass"]) == ("nat", 16, "-")
    assert row["label"] == "other model"
    assert row["ties"] == "-" and row["tokens per pass"] > 1


@pytest.mark.slow
def test_wrong_options_of_the_report_are_named(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(acceptance, "judged", lambda *_: pytest.fail("work has started"))
    out = ["--out", made / "no.json"]
    short = made / "short.de"
    short.write_text("one line\n")
    verifier = options_for(made)[2]
    for more, message in (
        (["--drafter-path", "/none.pt"], "--drafter-path: got '/none.pt'; allowed: a fairseq ch"),
        (["--drafter-path", verifier], "a checkpoint of --arch block_nat; this holds a Transf"),
        (["--decoding", "gad", "--accept-topk", 2], "--accept-topk: got 2; allowed: it with --dec"),
        (["--min-block", 2], "--min-block: got 2; allowed: it with --decoding blockwise"),
        (["--accept-margin", -1], "--accept-margin: got -1.0; allowed: a number from 0 up"),
        (["--block-size", 5000], "--block-size: got 5000; allowed: at most"),
        (["--subset", "dev"], "--subset: got 'dev'; allowed: one that DATA"),
        (["--raw", short], 'short.de with 1 lines"; allowed: a line for each of 13'),
        (["--raw", "/none"], "--raw: got '/none'; allowed: a file"),
        (["--path", "/none.pt"], "--path: got '/none.pt'; allowed: a fairseq checkpoint"),
    ):
        assert paradec(["acceptance", *options_for(made, *out, *more)]) == 2, more
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    alone = [options_for(made)[0], "--path", verifier, *map(str, out)]
    for decoding in ("nat", "gad"):
        assert paradec(["acceptance", *alone, "--decoding", decoding]) == 2
        assert (
            "--drafter-path: got None; allowed: a checkpoint of --arch" in capsys.readouterr().err
        )
    assert paradec(["acceptance", *options_for(made, "--out", made)]) == 2
    assert "a file, not a folder" in capsys.readouterr().err
    assert not (made / "no.json").exists()
