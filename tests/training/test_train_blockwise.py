"""scripts/train_blockwise.sh with real steps, its table and its heads; paradec shrink."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import DEMO, PLUGIN, fairseq, preprocess, succeed
from support.tables import refused
from support.training import SCRIPTS, cut_short

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.lab.analysis.blocks import block_sizes
from fairseq_paradec.lab.measure import count_rows, counts
from fairseq_paradec.training import checkpoints
from fairseq_paradec.training.commands import shrink


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data-bin and k3, which was made in two goes: killed, and gone on with."""
    folder = tmp_path_factory.mktemp("blockwise") / "it's a corpus"
    data, out = preprocess(folder), folder / "k3"
    (data / "raw").mkdir()
    shutil.copy(folder / "valid.de", data / "raw" / "valid.de")
    command = [str(SCRIPTS / "train_blockwise.sh"), str(data), "--save-dir", str(out)]
    command += "--preset tiny --block-size 3 --smoke --threads 1".split()
    said = cut_short(command, out / "base" / "model.pt")
    assert f"already trained: {out}/base/model.pt" in said and count_rows.BLOCK.name in said
    return folder


def files(made: Path) -> tuple[Path, Path, Path]:
    """Base, the model with heads, and the heads alone."""
    return tuple(made / "k3" / name for name in ("base/model.pt", "model/model.pt", "heads.pt"))


def changed(made: Path, name: str, **options: Any) -> Path:
    """The model with other options in its configuration, in a new file."""
    state = checkpoints.read_state(files(made)[1])
    for option, value in options.items():
        setattr(state["cfg"]["model"], option, value)
    torch.save(state, made / name)
    return made / name


def table(made: Path, *args: object, sentences: int = 2) -> list[dict[str, Any]]:
    out = made / "table.json"
    given = [made / "data-bin", "--preset", "acceptance", "--decoder", "blockwise", "--out", out]
    given += ["--sentences", sentences, *args]
    assert paradec(["benchmark", *map(str, given)]) == 0
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    return rows


@pytest.mark.slow
def test_the_frozen_base_is_the_base_and_the_report_exact(made: Path) -> None:
    base, whole = (checkpoints.read_state(path)["model"] for path in files(made)[:2])
    assert {name for name in whole if not name.startswith("decoder.heads.")} == set(base)
    for name, weight in base.items():
        assert torch.equal(weight, whole[name]), name
    assert whole["decoder.heads.outer"].shape[0] == 2 and whole["decoder.heads.outer"].any()
    greedy, blockwise = json.loads((made / "k3" / "acceptance.json").read_text())["rows"]
    assert (greedy["decoder"], greedy["label"], greedy["mean_accepted_block"]) == (
        "greedy",
        "exact",
        1,
    )
    assert blockwise["label"].startswith("exact") and blockwise["k"] == 3
    assert blockwise["drafter"] == str(files(made)[2])
    assert 1 <= blockwise["mean_accepted_block"] <= 3 and "BLEU" in blockwise


@pytest.mark.slow
def test_heads_alone_decode_and_blocks_are_counted_as_in_the_reports(made: Path) -> None:
    (base, _, heads), stats = files(made), made / "s.jsonl"
    state = torch.load(heads, weights_only=True)  # plain data
    assert not any(name.startswith("encoder.") for name in state["model"])
    assert heads.stat().st_size < 800_000 and str(made) not in repr(state["cfg"])
    given = ["--path", base, "--drafter-path", heads, "--decoding", "blockwise"]
    row = table(made, *given[:2], "--sweep", f"drafter-path={heads}", sentences=13)[1]
    given += ["--gen-subset", "valid", "--stats-file", stats, "--batch-size", 1]
    succeed(fairseq("generate", made / "data-bin", "--user-dir", PLUGIN, *given))
    records = [json.loads(line) for line in stats.read_text().splitlines()]
    assert len(records) == row["sentences"] == 13
    sizes = [n for one in records for n in block_sizes(one["num_accepted"], one["num_tokens"])]
    assert row["mean_accepted_block"] == round(sum(sizes) / len(sizes), 3)
    assert row["tokens"] == sum(sizes) > len(sizes)


@pytest.mark.slow
def test_rows_of_several_models_and_what_they_are_called(made: Path) -> None:
    base, whole, _ = files(made)
    state = checkpoints.read_state(whole)
    assert state["cfg"]["model"].base_copied and state["cfg"]["model"].base_path == str(base)
    # As if its base had been fine-tuned: another model, and shrunk, without a base to be read.
    state["cfg"]["model"].fine_tune_base = True
    state["model"]["decoder.layers.0.fc2.bias"] += 0.5
    torch.save(state, made / "full.pt")
    assert paradec(["shrink", str(made / "full.pt"), str(made / "tuned.pt")]) == 0
    same = changed(made, "same.pt", fine_tune_base=True)  # what was trained has come out the same
    models = [base, whole, made / "tuned.pt", same]
    paths = [option for path in models for option in ("--path", path)]
    raw = made / "data-bin" / "raw" / "valid.de"
    rows = table(made, *paths, "--sweep", "accept-topk=1,2", "--reference", raw)
    wanted = [base, *(model for model in models[1:] for _ in "123")]
    assert [row["model"] for row in rows] == [*map(str, wanted)]
    labels = [row["label"].replace(" but for 1 ties of 2", "") for row in rows]
    own = ["exact", "exact", "relaxed"]
    assert labels == ["exact", *own, *(f"other model: {label}" for label in own), *own]
    assert [row["beta"] for row in rows[1:4]] == [None, 1, 2]
    assert abs(rows[2]["BLEU_less_first"]["middle"]) < 0.005 and rows[0]["BLEU_less_first"] is None
    assert rows[4]["BLEU_less_greedy"] is None and rows[4]["BLEU_less_first"] is not None
    assert all(row["identical"] == 100 for row in rows if row["label"].endswith("exact"))


def test_equal_weights_are_stored_once(tmp_path: Path) -> None:
    """fairseq writes a tied embedding three times where it was trained on a GPU."""
    state = torch.load(DEMO / "model.pt", weights_only=True)
    tied = state["model"]
    state["model"] = {name: weight.clone() for name, weight in tied.items()}
    torch.save(state, tmp_path / "apart.pt")
    assert paradec(["shrink", str(tmp_path / "apart.pt"), str(tmp_path / "small.pt")]) == 0
    small = torch.load(tmp_path / "small.pt", weights_only=True)["model"]
    assert all(torch.equal(small[name], weight) for name, weight in tied.items())
    assert small.keys() == tied.keys()
    sizes = [path.stat().st_size for path in (tmp_path / "small.pt", DEMO / "model.pt")]
    assert sizes[0] <= sizes[1] < 0.8 * (tmp_path / "apart.pt").stat().st_size


def test_blocks_and_broken_promises_by_hand() -> None:
    """The last pass of the first output only verified: 4 tokens in a block, then 1 and 1."""
    assert block_sizes([0, 3], 4) == [4] and block_sizes([0, 0], 2) == [1, 1]
    for identical, ties, label in (
        (3, 0, "exact"),
        (2, 1, "exact but for 1 ties of 3"),
        (1, 1, "NOT EXACT (1 of 3)"),
        (1, None, "relaxed"),
    ):
        entry = {"sentences": 3, "identical": identical, "ties": ties, "promise": "exact"}
        assert count_rows.label("blockwise", entry) == label
        ours = entry | {"promise": "= our greedy"}  # by the core
        assert count_rows.label("blockwise", ours) == label.replace("exact", "= our greedy")
    assert count_rows.label("nat", entry) == "other model"


@pytest.mark.slow
def test_the_minimum_block_and_mistakes(made: Path, monkeypatch: Any, capsys: Any) -> None:
    base, whole, heads = files(made)
    sweeps = ["--sweep", "min-block=1,3", "--sweep", "block-size=3"]
    rows = table(made, "--path", whole, *sweeps)
    assert [(row["k"], row["l"]) for row in rows[1:]] == [(3, 1), (3, 3)]
    assert (rows[1]["identical"], rows[2]["ties"], rows[2]["label"]) == (100.0, None, "relaxed")
    # The corpus is of words, which have no distance: that is said before any work.
    monkeypatch.setattr(counts, "judged", lambda *_: pytest.fail("work has started"))
    out, target = made / "no.json", made / "refused.pt"
    options = ["benchmark", made / "data-bin", "--preset", "acceptance", "--out", out]
    options += ["--decoder", "blockwise"]
    heads_only = ["shrink", "--heads-only"]
    for (name, *command), message in (
        (
            [*options, "--path", whole, "--sweep", "accept-distance=2"],
            "--accept-distance 2 needs a dictionary",
        ),
        (
            [*options, "--path", whole, "--sweep", "block-size=4"],
            "--block-size: got 4; allowed: at most 3",
        ),
        (
            [*options, "--path", whole, "--sweep", "min-block=4"],
            "--min-block: got 4; allowed: at most the",
        ),
        (
            [*options, "--path", whole, "--sweep", f"drafter-path={heads}"],
            "that has no heads of its own",
        ),
        ([*options, "--path", base], "allowed: a model of --arch blockwise_tra"),
        ([*heads_only, DEMO / "model.pt", target], "allowed: a checkpoint of blockwise_transf"),
        ([*heads_only, changed(made, "t.pt", fine_tune_base=True), target], "--fine-tune-base, "),
        ([*heads_only, changed(made, "f.pt", train_first_head=True), target], "--train-first-head"),
        ([*heads_only, made / "none.pt", target], 'none.pt"; allowed: a checkpoint'),
    ):
        assert message in refused(capsys, name, *command)
    assert not out.exists() and not target.exists()


@pytest.mark.slow
def test_heads_only_keeps_heads_and_little_else(made: Path) -> None:
    source, target, more = files(made)[1], made / "again.pt", made / "more.pt"
    assert paradec(["shrink", "--heads-only", str(source), str(target)]) == 0
    again = torch.load(target, weights_only=True)
    full = checkpoints.read_state(source)["model"]
    heads = {name for name in full if name.startswith("decoder.heads.")}
    assert heads <= set(again["model"])
    for name, weight in again["model"].items():
        assert torch.equal(weight, full[name].half() if weight.is_floating_point() else full[name])
        assert name in heads or name.startswith("decoder.layers.3.")
    options = [again["cfg"]["model"][name] for name in ("block_size", "base_path", "base_copied")]
    assert options == [3, "base.pt", True]
    # A base that was not given stays None: a name in its place would be looked for.
    assert shrink.plain_config({"base_path": None}) == {"base_path": None}
    # What is heads alone can be taken once more, for the demo.
    assert paradec(["shrink", "--heads-only", str(target), str(more)]) == 0
    twice = torch.load(more, weights_only=True)
    assert set(twice["model"]) == set(again["model"]) and twice["cfg"] == again["cfg"]
