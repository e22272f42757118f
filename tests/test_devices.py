"""Every method on every device there is, in every precision: here the CPU, and CUDA where it is."""

from __future__ import annotations

import copy

import pytest
import torch
from builders import Limits, batch, built, decode, source_rows
from reference.greedy import assert_same_or_tie, rules_for, stock_greedy

from fairseq_paradec.decoding.audit import Audit

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
LENGTHS = [9, 6, 4, 2]
METHODS = [
    {"decoding": "greedy"},
    {"decoding": "pj"},
    {"decoding": "pgj", "block_size": 3},
    {"decoding": "hgj", "block_size": 4, "jacobi_window": "sliding", "jacobi_init": "ngram"},
]


def on(device, dtype, variant="learned_positions"):
    """A tiny model and a ragged batch on a device."""
    task, model = built(variant, torch.float32)
    sample = batch(task, LENGTHS)
    net_input = {k: v.to(device) for k, v in sample["net_input"].items() if torch.is_tensor(v)}
    return task, copy.deepcopy(model).to(device, dtype), sample | {"net_input": net_input}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("flags", METHODS, ids=lambda flags: flags["decoding"])
def test_single_precision_equals_fairseq(device, flags):
    task, model, sample = on(device, torch.float32)
    hypos = decode(task, [model], sample, Limits(), **flags)
    wanted = stock_greedy(task, [model], sample, **Limits().stock())
    for row, hypo, want in zip(source_rows(sample), hypos, wanted, strict=True):
        assert hypo["tokens"].device.type == hypo["positional_scores"].device.type == device
        rules = rules_for(task.target_dictionary, [model], len(row), **Limits().reference())
        tokens, theirs = hypo["tokens"].tolist(), want["tokens"].tolist()
        assert_same_or_tie([model], row, rules, tokens, theirs)
        if tokens == theirs:
            difference = hypo["positional_scores"].cpu() - want["positional_scores"].cpu()
            assert difference.abs().max() < 1e-4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("flags", METHODS, ids=lambda flags: flags["decoding"])
def test_low_precision_decodes_and_is_audited(device, dtype, flags):
    """The promise is fp32's: here outputs end, scores are finite, and the audit tells the rate."""
    task, model, sample = on(device, dtype)
    hypos = decode(task, [model], sample, Limits(), **flags)
    audit = Audit([model], task.target_dictionary, max_len_b=Limits().max_len_b)
    verdicts = audit.compare(sample, [[hypo] for hypo in hypos])
    for hypo, verdict in zip(hypos, verdicts, strict=True):
        assert int(hypo["tokens"][-1]) == task.target_dictionary.eos()
        assert hypo["positional_scores"].isfinite().all()
        # In bf16 logits of size 30 are 0.125 apart, and a pass rounds in several places.
        assert verdict["identical"] or verdict["gap"] < 1.0
    assert sum(verdict["identical"] for verdict in verdicts) >= 2
