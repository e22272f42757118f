"""A kept generator decodes by its models' weights as they are now, not as they once were."""

import argparse
import copy

import pytest
import torch
from support import builders
from support.builders import Limits, batch, tiny_model
from support.commands import DEMO

import fairseq_paradec
from fairseq_paradec.decoding.provenance import weights_hash
from fairseq_paradec.engine.torch.watch import Watch

DRAFTED = ("gad", "assisted", "blockwise")
ENGINES = {
    "native": {"engine": "native"},
    "native int8": {"engine": "native", "engine_dtype": "int8"},
    "torch": {"engine": "torch"},
    "a copy": {"engine": "torch", "engine_dtype": "bf16"},
}


def new_values(model, other):
    for weight, new in zip(model.parameters(), other.parameters()):
        torch.no_grad()(weight.copy_)(new)


def through_data(model, other):
    """As fairseq's optimisers do, which torch does not count."""
    for number, (weight, new) in enumerate(zip(model.parameters(), other.parameters())):
        weight.data.copy_(new)
        if number % 2:
            weight.data = new.detach().clone()


def one_matrix(model, other):
    next(weight for weight in model.parameters() if weight.dim() > 1).data.mul_(-1)


def built(decoding, seed):
    """A task, a model that is prepared for inference, and its drafter or heads."""
    task, like = builders.task_for("default"), ("default", torch.float32)
    model, helper = tiny_model(task, *like, seed), tiny_model(task, *like, seed + 1)
    if decoding == "blockwise":
        helper = builders.tiny_blockwise(task, *like, seed).block_heads
    elif decoding == "gad":
        helper = builders.tiny_drafter(task, dtype=torch.float32, seed=seed)
    model._is_generation_fast = helper._is_generation_fast = True
    return task, model, helper


def generator(task, decoding, model, helper, engine):
    flags = Limits().flags() | {"decoding": decoding} | ENGINES[engine]
    if decoding == "self_draft" and engine == "native int8":
        flags["drafter_dtype"] = "bf16"
    if decoding in DRAFTED:
        lend = builders.lend_heads if decoding == "blockwise" else builders.lend
        flags["drafter_path"] = lend(task, model, helper)
    return task.build_generator([model], argparse.Namespace(**flags))


def outputs(made, task, model):
    sample, names = batch(task, [9, 6, 3]), ("tokens", "positional_scores", "num_drafted")
    hypos = [hypo for hypo, *_ in task.inference_step(made, [model], sample)]
    found = [[list(map(float, hypo[name])) for name in names if name in hypo] for hypo in hypos]
    return found, [hypo.get("num_accepted") for hypo in hypos]


@pytest.mark.parametrize("change", [new_values, through_data, one_matrix])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("decoding", ["greedy", "self_draft", *DRAFTED, "multiword_beam"])
def test_changed_weights_are_read(decoding, engine, change):
    task, model, helper = built(decoding, 0)
    _, *others = built(decoding, 5)
    kept = generator(task, decoding, model, helper, engine)
    before = [outputs(kept, task, model)]
    kept_hash = weights_hash(model)
    for part, other in zip((model, helper), others):  # the model, then what drafts for it
        change(part, other)
        fresh = copy.deepcopy(model)
        new = generator(task, decoding, fresh, copy.deepcopy(helper), engine)
        now = outputs(kept, task, model)
        assert now == outputs(new, task, fresh)
        before.append(now)
    assert before[0] != before[1]
    if decoding in DRAFTED:
        assert before[1] != before[2]
    assert weights_hash(model) == weights_hash(fresh) != kept_hash


@pytest.mark.parametrize("kept", [False, True])
def test_a_loaded_model_is_not_asked_each_time(kept, monkeypatch):
    """A folder's model, and its drafter: nobody changes their weights; any other is asked."""
    model = fairseq_paradec.load(DEMO)
    monkeypatch.setattr(model, "_core", None)  # fairseq's modules decode
    options = {"decoding": "assisted", "drafter_path": str(DEMO / "assistant.pt")}
    if not kept:
        monkeypatch.setattr(model.models[0], "paradec_keeps_weights", False)
    found = model.translate(["A dog runs."], **options)
    asked = []
    monkeypatch.setattr(Watch, "changed", lambda self: asked.append(self))
    assert model.translate(["A dog runs."], **options) == found
    assert len(asked) == (0 if kept else 2)
