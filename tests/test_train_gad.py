"""scripts/train_gad.sh with real steps, and paradec acceptance on what it makes."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import ROOT, fairseq, preprocess, succeed
from support.training import SCRIPTS, cut_short

from fairseq_paradec.cli import average
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure import acceptance
from fairseq_paradec.measure.documents import read_document


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
    out = cut_short([*map(str, command)], gad / "verifier" / "checkpoint_*.pt")
    said = [line.split(": ")[1] for line in out.splitlines() if "/5] " in line]
    assert said == ["[1/5] teacher", "[2/5] distilled data", "[3/5] verifier", "[4/5] drafter",
                    "[5/5] acceptance"]  # fmt: skip
    assert f"already trained: {gad}/teacher/model.pt" in out
    assert f"already made: {gad}/distilled" in out
    updates = re.findall(r"(\d+) updates done", out)
    assert len(updates) == 2 and int(updates[0]) >= 10 and updates[1] == "0"  # verifier, drafter
    assert "gad_pp " in out
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
        {"decoding": "greedy"},
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
def test_wrong_options_of_the_report_are_named(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(acceptance, "judged", lambda *_: pytest.fail("work has started"))
    out = ["--out", made / "no.json"]
    short = made / "short.de"
    short.write_text("one line\n")
    verifier = options_for(made)[2]
    for more, message in (
        (["--drafter-path", verifier], "a checkpoint of --arch block_nat; this holds a Transf"),
        (["--decoding", "gad", "--accept-topk", 2], "--accept-topk: got 2; allowed: it with --dec"),
        (["--min-block", 2], "--min-block: got 2; allowed: it with --decoding blockwise"),
        (["--accept-margin", -1], "--accept-margin: got -1.0; allowed: a number from 0 up"),
        (["--block-size", 5000], "--block-size: got 5000; allowed: at most"),
        (["--raw", short], 'short.de with 1 lines"; allowed: a line for each of 13'),
        (["--path", "/none.pt"], "--path: got '/none.pt'; allowed: a fairseq checkpoint"),
    ):
        assert paradec(["acceptance", *options_for(made, *out, *more)]) == 2, more
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    alone = [options_for(made)[0], "--path", verifier, "--decoding", "nat", *map(str, out)]
    assert paradec(["acceptance", *alone]) == 2
    assert "--drafter-path: got None; allowed: a checkpoint" in capsys.readouterr().err
    assert paradec(["acceptance", *options_for(made, "--out", made)]) == 2
    assert "a file, not a folder" in capsys.readouterr().err
    assert not (made / "no.json").exists()
