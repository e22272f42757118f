"""Blockwise decoding in the benchmark, the demo and paradec-lossless, by heads made up here.

The heads are on the demo's own model, and untrained: drafts are bad, and outputs must not mind.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from support.commands import DEMO

from fairseq_paradec.analysis.benchmark_tables import OWN_GREEDY
from fairseq_paradec.analysis.blocks import block_sizes
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure import loading
from fairseq_paradec.measure.systems import FairseqSystem, Models, same_greedy
from fairseq_paradec.models.heads import heads_only

MODEL = str(DEMO / "model.pt")
BLOCK_SIZE = 3


def save_heads(folder: Path) -> dict[str, str]:
    """Write checkpoints: heads alone, the model with them, and two models that are others."""
    state = checkpoint_utils.load_checkpoint_to_cpu(MODEL)
    state["cfg"] = OmegaConf.to_container(state["cfg"], enum_to_str=True)
    settings = state["cfg"]["model"]
    _, task = loading.load(str(DEMO), MODEL)
    paths = {}
    for name in ("heads", "whole", "first", "tuned"):
        args = argparse.Namespace(**settings)
        args.arch = args._name = "blockwise_transformer"
        args.block_size, args.base_path, args.head_layer = BLOCK_SIZE, MODEL, "per_head"
        args.train_first_head, args.fine_tune_base = name == "first", name == "tuned"
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(1)
            ARCH_CONFIG_REGISTRY["blockwise_transformer"](args)
            model = ARCH_MODEL_REGISTRY["blockwise_transformer"].build_model(args, task)
            model.block_heads.outer.normal_(std=0.5)
            if name == "tuned":
                model.decoder.layers[0].fc1.bias.add_(0.5)
        args.base_path = "checkpoints/base.pt"
        weights = model.state_dict()
        state["cfg"]["model"] = args
        state["model"] = heads_only(weights) if name == "heads" else weights
        paths[name] = str(folder / f"{name}.pt")
        torch.save(state, paths[name])
    return paths


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, str]:
    return save_heads(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(str(DEMO), "test", "fp32", "cpu")


@pytest.mark.parametrize(
    ("spec", "promise"),
    [
        ("blockwise --drafter-path {heads}", "exact"),
        ("blockwise --drafter-path {whole} --block-size 2", "exact"),
        ("blockwise --path {whole}", "exact"),  # a frozen base is the benchmark's model
        ("auto --path {whole}", "exact"),
        ("beam --beam 1 --path {whole}", "exact"),
        ("beam --beam 4 --path {whole}", "beam search"),
        ("blockwise --drafter-path {heads} --accept-topk 2", "relaxed"),
        ("blockwise --drafter-path {heads} --min-block 2", "relaxed"),
        ("blockwise --path {whole} --accept-topk 2", "relaxed"),
        ("blockwise --drafter-path {heads} --accept-topk 1 --min-block 1", "exact"),
        ("blockwise --path {tuned}", "other model"),
        ("blockwise --path {first}", "other model"),
        ("greedy --path {tuned}", "other model"),
    ],
)
def test_promises(models, paths, spec, promise):
    system = FairseqSystem(spec.format(**paths), models, MODEL, {})
    assert system.promise == promise


def test_a_model_with_heads_can_be_the_yardstick(models, paths):
    for name in ("whole", "tuned", "first"):
        for spec in ("blockwise", "greedy", "beam --beam 1"):
            assert FairseqSystem(spec, models, paths[name], {}).promise == "exact"


def test_a_base_is_known_by_its_weights(models, paths):
    base = models.load(MODEL)[0]
    for name, same in (("whole", True), ("first", False), ("tuned", False)):
        assert same_greedy(base, models.load(paths[name])[0]) == same
    assert same_greedy(base, base)


def test_heads_are_files_and_parameters_of_the_system(models, paths):
    alone = FairseqSystem("greedy", models, MODEL, {})
    beside = FairseqSystem(f"blockwise --drafter-path {paths['heads']}", models, MODEL, {})
    within = FairseqSystem(f"blockwise --path {paths['whole']}", models, MODEL, {})
    weights = torch.load(paths["heads"], weights_only=False)["model"]
    heads = sum(w.numel() for name, w in weights.items() if "heads" in name)
    assert beside.parameters == within.parameters == alone.parameters + heads > alone.parameters
    assert beside.files == [MODEL, paths["heads"]]
    assert within.files == [paths["whole"]]


@pytest.mark.parametrize("flags", ["", "--min-block 2", "--min-block 3", "--block-size 1"])
def test_blocks_are_counted_as_in_the_reports(models, paths, flags, tmp_path):
    spec = f"blockwise --drafter-path {paths['heads']} {flags}"
    system = FairseqSystem(spec, models, MODEL, {})
    outputs = system.translate(list(range(8)))
    options = {name: value for name, value in vars(system.options).items()
               if name in ("block_size", "min_block") and value is not None}  # fmt: skip
    task, own = models.load(MODEL)[1], models.load(MODEL)[0]
    path = tmp_path / "stats.jsonl"
    generator = loading.generator(
        task, own, decoding="blockwise", drafter_path=paths["heads"], stats_file=str(path),
        **options,
    )  # fmt: skip
    for sample in (system._sample([i]) for i in range(8)):
        task.inference_step(generator, own, sample)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [record["id"] for record in records] == list(range(8))
    for output, record in zip(outputs, records, strict=True):
        sizes = block_sizes(record["num_accepted"], record["num_tokens"])
        assert output.blocks == len(sizes) and sum(sizes) == len(output.tokens) + 1
        assert output.passes == record["decoder_passes"]
    if flags == "--min-block 3":
        assert sum(len(o.tokens) + 1 for o in outputs) / sum(o.blocks for o in outputs) > 2


@pytest.mark.slow
def test_the_benchmark_keeps_blocks(paths, tmp_path):
    out = tmp_path / "b.json"
    assert paradec(["benchmark",
        str(DEMO), "--path", MODEL, "--sentences", "6", "--timed", "2", "--rounds", "1", "--busy",
        "--batch-sizes", "4", "--out", str(out),
        "--decoder", f"heads 3=blockwise --drafter-path {paths['heads']}",
        "--decoder", f"at least 2=blockwise --drafter-path {paths['heads']} --min-block 2",
        "--decoder", f"tuned=blockwise --path {paths['tuned']}",
    ]) == 0  # fmt: skip
    document = json.loads(out.read_text(encoding="utf-8"))
    systems = {system["label"]: system for system in document["systems"]}
    with_blocks = ["heads 3", "at least 2", "tuned"]
    assert [name for name, one in systems.items() if "blocks" in one] == with_blocks
    for name in with_blocks:
        one = systems[name]
        # A pass without a token of its own is the last one of a sentence.
        assert 0 <= one["passes"] - one["blocks"] <= 6
        assert one["tokens"] >= one["blocks"]
    assert systems["at least 2"]["tokens"] / systems["at least 2"]["blocks"] > 1.5
    rows = {row["decoder"]: row for row in document["tables"][0]["rows"]}
    labels = {name: rows[name]["label"] for name in with_blocks}
    assert labels == {"heads 3": "exact", "at least 2": "relaxed", "tuned": "other model"}
    assert rows[OWN_GREEDY]["mean accepted block"] == "-"
    assert rows["heads 3"]["identical to greedy"] == "6/6"


# ---- the demo ----------------------------------------------------------------------------------


def demo_table(capsys: Any, *arguments: str) -> tuple[int, dict[str, list[str]]]:
    threads = torch.get_num_threads()
    status = paradec(["demo", "--sentences", "4", *arguments])
    torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    rule = next(i for i, line in enumerate(lines) if set(line) == {"-"})
    cells = [re.split(r"\s{2,}", line) for line in lines[rule + 1 : lines.index("", rule)]]
    return status, {row[0]: row[1:] for row in cells}


@pytest.fixture
def folder(tmp_path) -> Path:
    """The demo's data and model, and no other models."""
    folder = tmp_path / "demo"
    folder.mkdir()
    for path in DEMO.iterdir():
        if path.suffix != ".pt" or path.name == "model.pt":
            os.symlink(path, folder / path.name)
    return folder


@pytest.mark.slow
def test_the_demo_has_a_row_where_there_are_heads(folder, paths, capsys):
    assert "blockwise" not in demo_table(capsys, "--data", str(folder))[1]
    os.symlink(paths["heads"], folder / "heads.pt")
    status, table = demo_table(capsys, "--data", str(folder))
    assert status == 0 and table["blockwise"][4] == "4/4"
    assert float(table["blockwise"][0]) <= float(table["greedy"][0])


@pytest.mark.slow
def test_the_demo_takes_other_heads(folder, paths, capsys):
    _, table = demo_table(capsys, "--data", str(folder), "--heads-path", paths["heads"])
    assert table["blockwise"][4] == "4/4"
    assert paradec(["demo", "--data", str(folder), "--heads-path", MODEL]) == 2
    assert "--drafter-path: got" in capsys.readouterr().err


# ---- lossless ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [["--path", MODEL, "--drafter-path", "{heads}"], ["--path", "{whole}"], ["--path", "{first}"]],
)
def test_lossless_counts_every_block_size(tmp_path, paths, flags):
    out = tmp_path / "l.json"
    arguments = [str(DEMO), "--decoding", "blockwise", "--limit", "3", "--batch-sizes", "1,3"]
    arguments += [word.format(**paths) for word in flags]
    assert paradec(["lossless", *arguments, "--out", str(out)]) == 0
    table = json.loads(out.read_text(encoding="utf-8"))
    assert table["title"] == "Lossless: blockwise against fairseq greedy"
    assert not any("source-copy" in note for note in table["notes"])
    found = [(row["batch size"], row["decoder"], row["block"]) for row in table["rows"]]
    assert found == [(size, "blockwise", k) for size in (1, 3) for k in range(1, BLOCK_SIZE + 1)]
    assert all(row["identical"] + row["ties"] == row["sentences"] == 3 for row in table["rows"])
