"""Blockwise decoding in the benchmark's systems, by heads made up here.

The heads are on the demo's own model, and untrained: drafts are bad, and outputs must not mind.
"""

from types import SimpleNamespace

import pytest
import torch
from support.builders import save_drafter
from support.commands import DEMO
from support.losses import build

from fairseq_paradec.lab.data.table import Table
from fairseq_paradec.lab.measure import count_rows
from fairseq_paradec.lab.measure.specs import read
from fairseq_paradec.lab.measure.systems import FairseqSystem, Models
from fairseq_paradec.plugin.models.heads import heads_only
from fairseq_paradec.plugin.tasks import loading

MODEL, ARCH = str(DEMO / "model.pt"), "blockwise_transformer"


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, str]:
    """Checkpoints: heads alone, the model with them, and two models that are others."""
    folder, (_, task) = tmp_path_factory.mktemp("heads"), loading.load(str(DEMO), MODEL)
    found = {}
    for name in ("heads", "whole", "first", "tuned"):
        own = {"train_first_head": name == "first", "fine_tune_base": name == "tuned"}
        own |= {"block_size": 3, "head_layer": "per_head"}
        model = build(task, ARCH, base_path=MODEL, **own)
        with torch.no_grad():
            torch.manual_seed(1)
            model.block_heads.outer.normal_(std=0.5)
            if name == "tuned":
                model.decoder.layers[0].fc1.bias.add_(0.5)
        model.flags.base_path = "checkpoints/base.pt"
        weights = heads_only(model.state_dict()) if name == "heads" else None
        found[name] = save_drafter(task, model, folder / f"{name}.pt", ARCH, weights)
    return found


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(str(DEMO), "test", "fp32", "cpu")


def test_promises(models, paths):
    """A frozen base is the benchmark's model; a model with heads can be the yardstick."""
    for spec, promise in (
        ("blockwise --drafter-path {heads}", "exact"),
        ("blockwise --drafter-path {whole} --block-size 2", "exact"),
        ("blockwise --path {whole}", "exact"),
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
    ):
        assert FairseqSystem(read(spec.format(**paths)), models, MODEL, {}).promise == promise, spec
    for name in ("whole", "tuned", "first"):
        for spec in ("blockwise", "greedy", "beam --beam 1"):
            assert FairseqSystem(read(spec), models, paths[name], {}).promise == "exact"


def test_heads_are_files_and_parameters_of_the_system(models, paths):
    alone = FairseqSystem(read("greedy"), models, MODEL, {})
    beside = FairseqSystem(read(f"blockwise --drafter-path {paths['heads']}"), models, MODEL, {})
    within = FairseqSystem(read(f"blockwise --path {paths['whole']}"), models, MODEL, {})
    weights = torch.load(paths["heads"], weights_only=False)["model"]
    heads = sum(w.numel() for name, w in weights.items() if "heads" in name)
    assert beside.parameters == within.parameters == alone.parameters + heads > alone.parameters
    assert (beside.files, within.files) == ([MODEL, paths["heads"]], [paths["whole"]])


def test_a_row_says_how_long_outputs_are():
    """By the first model's: a block may be long because outputs run on."""
    entry = {
        "sentences": 2,
        "tokens": 8,
        "passes": 5,
        "drafted": 6,
        "accepted": [3, 1, 1],
        "blocks": 5,
        "flags": {"block_size": 4},
        "identical": 2,
        "ties": 0,
        "promise": "exact",
    }
    setting = SimpleNamespace(spec=read("blockwise"))
    (row,) = Table.of([count_rows.acceptance(setting, entry, 5, several=False)]).rows
    assert (row["tokens"], row["length_ratio"], row["passes_per_sentence"]) == (8, 1.6, 2.5)
    assert (row["label"], row["k"], row["accepted_per_pass"]) == ("exact", 4, 0.6)
    assert row["mean_accepted_block"] == round(8 / 5, 3)
