"""Drafters that are Transformers, for --decoding assisted, and its slow twin."""

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch
from reference import assisted as paper
from reference import gad

from support.builders import built, tiny_model

#: What a drafter is: the verifier itself, the same with noise in its weights, another model, one
#: that says `</s>` at once, one that never does.
KINDS = ("itself", "noisy", "other", "ends_at_once", "never_ends")


def noisy(model: Any, share: float) -> Any:
    """A copy whose decoder's weights have noise of this share of their spread."""
    model, lots = copy.deepcopy(model), torch.Generator().manual_seed(3)
    for weight in model.decoder.parameters():
        noise = torch.randn(weight.shape, generator=lots, dtype=torch.float64)
        weight.data += share * weight.std() * noise.to(weight) if weight.numel() > 1 else 0
    return model


@functools.cache
def drafter(variant: str, kind: str, dtype: torch.dtype) -> Any:
    """A drafter for the verifier of one of VARIANTS: leave it as it is."""
    task, model = built(variant, dtype)
    if kind == "itself":
        return model
    if kind == "noisy":
        return noisy(model, 0.1)
    model = tiny_model(task, seed=9, decoder_layers=1).to(dtype)
    if kind != "other":
        norm = model.decoder.layers[-1].final_layer_norm
        norm.weight.data[0], norm.bias.data[0] = 0, 1  # a state's first number is 1
        sign = 1 if kind == "ends_at_once" else -1
        model.decoder.output_projection.weight.data[2, 0] = sign * 1e4
    return model


def twin(setting: Any, source: Sequence[int], prefix: Sequence[int]) -> Any:
    """What the algorithm makes of one sentence of a conformance.Setting."""
    flags, rules = dict(setting.case.flags), setting.rules(source, prefix)
    del flags["decoding"]
    models = (setting.models, [setting.given])
    verify, draft = (gad.verifier(each, source, rules) for each in models)
    usual = {"block_size": 12, "draft_confidence": 0.4}
    if setting.case.method == "self_draft":
        usual = {"block_size": 20, "draft_confidence": 0}
    return paper.assisted(verify, draft, rules, **usual | flags)
