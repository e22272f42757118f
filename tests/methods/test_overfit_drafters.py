"""Drafters and heads learn sentences by heart: drafts are then right, and passes few."""

import functools
from typing import Any

import pytest
import torch
from support import blockwise
from support.builders import Limits, decode, lend, save_drafter
from support.gad import Pair, run
from support.losses import build
from support.overfit import SIZES, learn, sentences, targets_of

from fairseq_paradec.training.criterions.block_nat_loss import BlockNatLoss, BlockNatLossConfig
from fairseq_paradec.training.criterions.blockwise_loss import BlockwiseLoss, BlockwiseLossConfig
from fairseq_paradec.training.criterions.lean_cross_entropy import LeanCrossEntropy

pytestmark = pytest.mark.slow

K = 4
ENDS: dict[str, Any] = {"max_source_positions": 32, "max_target_positions": 32}


@functools.cache
def known() -> tuple[Any, list[dict[str, Any]], Any, float]:
    """A task, sentences, a Transformer that knows them by heart, and its loss."""
    task, samples = sentences()
    torch.manual_seed(1)
    model = build(task, "transformer", **SIZES, **ENDS, share_all_embeddings=True)
    loss = learn(model, LeanCrossEntropy(task, False, 0.0, 0, True), samples, 150, 0.005)
    return task, samples, model, loss


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Transformer's checkpoint."""
    task, _, verifier, _ = known()
    return save_drafter(task, verifier, tmp_path_factory.mktemp("v") / "v.pt", "transformer")


def decoded(model: Any, decoding: str, **flags: Any) -> tuple[list[list[int]], int, int]:
    """Outputs, the number of passes, and the least number with drafts that are all right."""
    task, samples, verifier, _ = known()
    given = Pair(task, (verifier,), model, lend(task, verifier, model))
    outputs = [one for s in samples for one in run(given, s, decoding=decoding, **flags)]
    tokens = [one.tokens for one in outputs]
    block = K + (decoding != "nat")  # the verifier's own token
    return tokens, sum(len(one.passes) for one in outputs), sum(-(-len(t) // block) for t in tokens)


def wanted() -> list[list[int]]:
    return [target for sample in known()[1] for target in targets_of(sample)]


def check(model: Any, decoding: str, **flags: Any) -> None:
    """The outputs are the sentences, and hardly a pass is wasted."""
    tokens, passes, least = decoded(model, decoding, **flags)
    assert tokens == wanted()
    assert least <= passes <= 1.03 * least


def block_loss(prefixes: int) -> BlockNatLoss:
    own = {"position_decay": 0.8, "glancing_ratio": 0, "glancing_updates": 1}
    flags = BlockNatLossConfig(label_smoothing=0, prefixes_per_sentence=prefixes, **own)
    return BlockNatLoss(flags, known()[0])


def test_the_verifier_knows_the_sentences() -> None:
    task, samples, verifier, loss = known()
    assert loss < 0.05
    limits = Limits()
    hypos = [h for s in samples for h in decode(task, [verifier], s, limits, decoding="greedy")]
    assert [hypo["tokens"].tolist() for hypo in hypos] == wanted()


@pytest.mark.parametrize(
    ("attention", "prefixes", "updates"), [("bidirectional", 1, 600), ("prefix_causal", 9, 200)]
)
def test_a_block_model(attention: str, prefixes: int, updates: int) -> None:
    """With an encoder of its own; alone, and as a drafter."""
    task, samples = known()[:2]
    torch.manual_seed(2)
    own = {"share_decoder_input_output_embed": True, "drafter_block_size": K}
    model = build(task, "block_nat", **SIZES, **ENDS, **own, drafter_attention=attention)
    loss = learn(model, block_loss(prefixes), samples, updates, 0.005)
    assert loss < 0.1
    check(model, "nat")
    check(model, "gad")


def test_a_block_model_on_the_verifiers_encoder(path: str) -> None:
    task, samples = known()[:2]
    torch.manual_seed(2)
    model = build(
        task, "block_nat_fast", encoder_from=path, drafter_block_size=K, dropout=0.0, **ENDS
    )
    loss = learn(model, block_loss(9), samples, 150, 0.005)
    assert loss < 0.05
    check(model, "gad")


def test_a_shallow_decoder(path: str) -> None:
    task, samples = known()[:2]
    torch.manual_seed(2)
    model = build(task, "shallow_decoder", encoder_from=path, dropout=0.0, **ENDS)
    loss = learn(model, LeanCrossEntropy(task, False, 0.0, 0, True), samples, 150, 0.005)
    assert loss < 0.05
    check(model, "assisted", block_size=K, draft_confidence=0.0)


@pytest.mark.parametrize("sees", [False, True], ids=["paper", "see the token"])
@pytest.mark.parametrize("tuned", [False, True], ids=["frozen", "fine-tuned"])
def test_heads(tuned: bool, sees: bool, path: str) -> None:
    """Every block is whole: m tokens take 1 + ceil((m - 1) / k) passes."""
    task, samples = known()[:2]
    torch.manual_seed(2)
    own = {"fine_tune_base": tuned, "train_first_head": tuned, "heads_see_token": sees}
    model = build(
        task, "blockwise_transformer", base_path=path, block_size=K, dropout=0.0, **own, **ENDS
    )
    flags = BlockwiseLossConfig(label_smoothing=0, heads_per_update="all")
    loss = learn(model, BlockwiseLoss(flags, task), samples, 200, 0.005)
    assert loss < 0.05
    given = blockwise.Given(task, model, model.block_heads)
    outputs = [one for sample in samples for one in blockwise.run(given, sample)]
    tokens = [one.tokens for one in outputs]
    assert tokens == wanted()
    assert [len(one.passes) for one in outputs] == [1 - (-(len(t) - 1) // K) for t in tokens]
