"""Reordered Transformers learn sentences by heart, and their own search returns them."""

import math
from typing import Any

import pytest
import torch
from support.builders import Limits, decode
from support.losses import build
from support.overfit import SIZES, learn, sentences, targets_of

from fairseq_paradec.training.criterions.lean_cross_entropy import LeanCrossEntropy

pytestmark = pytest.mark.slow

#: Architectures with options of theirs. A flag that is not given is None, as on a command line.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        arch: (arch, {})
        for arch in (
            "ibdecoder",
            "ibdecoder_sa",
            "imdecoder",
            "sa_transformer",
            "transformer_r2l",
            "transformer_both_ends",
            "double_token",
            "double_token_l2r",
            "double_token_r2l",
        )
    },
    "ibdecoder-zero": ("ibdecoder", {"start_rows": "zero"}),
}


@pytest.mark.parametrize("given", MODELS)
def test_sentences_are_learned_by_heart(given: str) -> None:
    """The loss goes to zero, and `--beam 1` writes every sentence in the fewest steps."""
    (arch, options), (task, samples) = MODELS[given], sentences()
    ends = {"max_source_positions": 32, "max_target_positions": 32}
    torch.manual_seed(1)
    model = build(
        task, arch, **SIZES, **ends, share_all_embeddings=True, **{"start_rows": None} | options
    )
    task._model = model
    ordered = [task.in_model_order(sample) for sample in samples]
    criterion = LeanCrossEntropy(task, False, 0.0, 0, True)
    assert learn(model, criterion, ordered, 200, 0.005) < 0.05
    z = model.target_order.tokens_per_step
    for sample in samples:
        wanted = targets_of(sample)
        hypos = decode(task, [model], sample, Limits(), decoding="auto", beam=1)
        assert [hypo["tokens"].tolist() for hypo in hypos] == wanted
        assert [hypo["steps"] for hypo in hypos] == [math.ceil(len(y) / z) for y in wanted]
