"""scripts/train_drafter.sh with real steps, and the preset acceptance on what it makes."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import ROOT, fairseq, preprocess, succeed
from support.tables import refused
from support.training import SCRIPTS, cut_short

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.lab.measure import counts, presets
from fairseq_paradec.training import checkpoints
from tools.site.published import read_result


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data-bin and gad, which was made in two goes: killed, and gone on with."""
    folder = tmp_path_factory.mktemp("gad") / "it's a corpus"
    data, gad = preprocess(folder), folder / "gad"
    command = [SCRIPTS / "train_drafter.sh", data, "--save-dir", gad, "--preset", "tiny"]
    command += ["--kind", "block", "--fast", "--smoke", "--threads", "1"]
    out = cut_short([*map(str, command)], gad / "verifier" / "checkpoint_*.pt")
    steps = re.findall(r"\[(\d)/5\] (\w+)", out)
    assert steps == [*zip("12345", ["teacher", "distilled", "verifier", "drafter", "acceptance"])]
    assert f"already trained: {gad}/teacher/model.pt" in out
    assert f"already made: {gad}/distilled" in out
    updates = re.findall(r"(\d+) updates done", out)
    assert len(updates) == 2 and int(updates[0]) >= 5 and updates[1] == "0"  # verifier, drafter
    assert "gad_pp " in out
    return folder


def model_of(made: Path, name: str) -> Path:
    """A checkpoint: of the drafter or the verifier."""
    return made / "gad" / name / "model.pt"


def options(made: Path, out: str = "report.json", drafter: Any = None) -> list[Any]:
    """Of the preset, for two sentences."""
    given = [made / "data-bin", "--preset", "acceptance", "--path", model_of(made, "verifier")]
    sweep = f"drafter-path={drafter or model_of(made, 'drafter')}"
    return [*given, "--out", made / out, "--sweep", sweep, "--sentences", 2]


def report(made: Path, *more: object, status: int = 0, **given: Any) -> list[Any]:
    """The rows of the preset with these options."""
    words = [*options(made, **given), *more]
    assert paradec(["benchmark", *map(str, words)]) == status, more
    return [] if status else json.loads(words[6].read_text())["rows"]


@pytest.mark.slow
def test_the_frozen_encoder_is_the_verifiers_to_the_bit(made: Path) -> None:
    models = (model_of(made, name) for name in ("drafter", "verifier"))
    drafter, verifier = (checkpoints.read_state(path)["model"] for path in models)
    theirs = {name: weight for name, weight in verifier.items() if name.startswith("encoder.")}
    assert len(theirs) > 20 and {n for n in drafter if n.startswith("encoder.")} == theirs.keys()
    for name, weight in theirs.items():
        assert torch.equal(weight.view(torch.int32), drafter[name].view(torch.int32)), name
    assert drafter["decoder.layers.1.fc1.weight"].shape == (256, 128)
    paths = (made / "gad" / "drafter").glob("checkpoint_*_?0.pt")
    first, second = (checkpoints.read_state(path)["model"] for path in paths)
    assert any(not torch.equal(first[name], second[name]) for name in first), "it is trained"


@pytest.mark.slow
def test_the_report_is_exact_and_can_be_rendered(made: Path) -> None:
    document = json.loads((made / "gad" / "acceptance.json").read_text())
    rows = {row["decoder"]: row for row in document["rows"]}
    labels = {name: row["label"].split(" but for")[0] for name, row in rows.items()}
    assert labels == {"greedy": "exact", "gad": "exact", "gad_pp": "relaxed"}
    assert all(row["sentences"] == presets.SMOKE_SENTENCES for row in rows.values())
    idle = {"model", "epsilon", "l", "mean_accepted_block"}
    assert not idle & set(rows["gad"])  # not of these rows
    assert rows["greedy"]["tokens_per_pass"] == 1.0
    assert (rows["gad"]["k"], rows["gad_pp"]["beta"], rows["gad_pp"]["tau"]) == (8, 3, 1.0)
    portable = document | {"command": "", "notes": [], "title": "T"}
    (made / "portable.json").write_text(json.dumps(portable))
    assert read_result(made / "portable.json").content["rows"] == document["rows"]


@pytest.mark.slow
def test_counts_are_those_of_fairseq_generate(made: Path, capsys: Any) -> None:
    flags = ["--decoding", "gad_pp", "--block-size", 3, "--accept-topk", 5, "--accept-margin", 9]
    raw, stats = ["--reference", made / "valid.de"], made / "stats.jsonl"
    decoder = ["--decoder", " ".join(map(str, flags[1:]))]
    row = report(made, *decoder, *raw, "--sentences", 13, "--batch-sizes", 13)[1]
    assert "BLEU" in capsys.readouterr().out
    arguments = [made / "data-bin", "--path", model_of(made, "verifier"), *flags, "--stats-file"]
    arguments += [stats, "--drafter-path", model_of(made, "drafter"), "--gen-subset", "valid"]
    succeed(fairseq("generate", *arguments, "--user-dir", ROOT / "fairseq_paradec"))
    records = [json.loads(line) for line in stats.read_text().splitlines()]
    tokens = sum(record["num_tokens"] for record in records)
    passes = sum(record["decoder_passes"] for record in records)
    accepted = [n for record in records for n in record["num_accepted"]]
    assert (row["sentences"], row["tokens"]) == (13, tokens)
    assert row["passes_per_sentence"] == round(passes / 13, 3)
    assert row["tokens_per_pass"] == round(tokens / passes, 3)
    assert row["accepted_per_pass"] == round(sum(accepted) / passes, 3)
    shares = list(map(round, row["accepted_histogram"]))
    assert shares == [round(100 * accepted.count(i) / passes) for i in range(max(accepted) + 1)]


@pytest.mark.slow
def test_rows_are_all_combinations_of_what_each_decoding_reads(made: Path, monkeypatch) -> None:
    asked: list[dict[str, Any]] = []
    found = {
        "sentences": 2,
        "tokens": 4,
        "passes": 3,
        "drafted": 8,
        "accepted": [1, 1, 0, 1],
        "blocks": 2,
        "identical": 1,
        "flags": {},
        "ties": None,
        "provenance": dict.fromkeys(("lossless", "model", "drafter", "engine", "engine_dtype")),
        "drafts": None,
    }

    def counted(setting: counts.Setting, *_: Any) -> dict[str, Any]:
        of = {} if setting.spec.path is None else {"path": setting.spec.path}
        asked.append({**setting.spec.options, **of})
        return found

    wanted = {"valid": {"0": [[5, 2]], "1": [[7, 2]]}}
    monkeypatch.setattr(counts, "judged", lambda *_: wanted)
    monkeypatch.setattr(counts, "counted", counted)
    given = "--decoder gad --decoder gad_pp --decoder nat --decoder pgj --sweep block-size=2,4 "
    given += "--sweep accept-topk=1 --sweep accept-margin=1,2 --sweep accept-margin=1"
    row = report(made, *given.split(), out="all.json")[1]
    drafter = {"drafter_path": str(model_of(made, "drafter"))}
    sizes = [{"block_size": 2}, {"block_size": 4}]
    margins = [{"accept_topk": 1, "accept_margin": 1.0}, {"accept_topk": 1, "accept_margin": 2.0}]
    pairs = itertools.product(sizes, margins)
    assert asked == [
        {"decoding": "greedy"},
        *({"decoding": "gad"} | drafter | size for size in sizes),
        *({"decoding": "gad_pp"} | drafter | size | margin for size, margin in pairs),
        *({"decoding": "nat", "path": drafter["drafter_path"]} | size for size in sizes),
        *({"decoding": "pgj"} | size for size in sizes),
    ]
    assert (row["tokens"], row["passes_per_sentence"], row["tokens_per_pass"]) == (4, 1.5, 1.333)
    assert (row["accepted_per_pass"], row["identical"], row["ties"]) == (1.333, 50.0, None)
    assert row["accepted_histogram"] == pytest.approx([100 / 3, 100 / 3, 0, 100 / 3])


@pytest.mark.slow
def test_a_report_cut_short_goes_on_and_changes_are_noticed(made: Path, monkeypatch) -> None:
    real, asked = counts.counted, []

    def counted(setting: counts.Setting, *rest: Any) -> Any:
        asked.append(setting.spec.options["decoding"])
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(setting, *rest)

    monkeypatch.setattr(counts, "counted", counted)
    out = "new folder/cut.json"
    report(made, out=out, status=130)
    assert asked == ["greedy", "gad", "gad_pp"] and not (made / out).exists()
    rows = report(made, out=out)
    assert asked[3:] == ["gad_pp"]
    assert [row["identical"] for row in rows[:2]] == [100.0, 100.0]
    report(made, "--sweep", "block-size=8,2", out=out)
    assert asked[4:] == ["gad", "gad", "gad_pp", "gad_pp"]
    assert report(made, out=out) == rows and len(asked) == 8
    state = checkpoints.read_state(model_of(made, "drafter"))
    torch.save(state | {"extra_state": {}}, made / "other drafter.pt")
    report(made, drafter=made / "other drafter.pt", out=out)
    assert asked[8:] == ["gad", "gad_pp"]  # greedy has no drafter


@pytest.mark.slow
def test_wrong_options_of_the_report_are_named(made: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(counts, "judged", lambda *_: pytest.fail("work has started"))
    short, verifier = made / "short.de", model_of(made, "verifier")
    short.write_text("one line\n")
    for more, message in (
        (
            ["--sweep", f"drafter-path={verifier}"],
            "a checkpoint of --arch block_nat; this hol",
        ),
        (["--decoder", "gad", "--sweep", "accept-topk=2"], "--accept-topk 2 needs --dec"),
        (["--sweep", "block-size=5000"], "--block-size: got 5000; allowed: at most"),
        (["--reference", short], 'short.de with 1 lines"; allowed: a line for each of 13'),
        (["--path", "/none.pt"], "--path: got '/none.pt'; allowed: a fairseq checkpoint"),
        (["--out", made], "a file, not a folder"),
    ):
        assert message in refused(capsys, "benchmark", *options(made, out="no.json"), *more)
    assert not (made / "no.json").exists()
