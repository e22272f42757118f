"""Training over two processes (gloo, CPU) is training in one with twice the batch.

fairseq deals batches out in turn: of two ranks the first takes the 1st, 3rd, 5th, ... and the other
the rest; one rank with ``--update-freq 2`` puts the same two batches into each update. Plain SGD,
because Adam turns rounding errors of gradients that are zero (those of the keys' biases) into full
steps.
"""

from __future__ import annotations

import argparse
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from support.commands import PLUGIN, fairseq, preprocess, succeed

pytestmark = pytest.mark.slow

UPDATES = 6

OPTIONS = (
    "--arch transformer --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 "
    "--decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0 --optimizer sgd --lr 0.5 "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 100 "
    f"--max-update {UPDATES} --disable-validation --no-progress-bar --num-workers 0 --cpu --seed 3"
).split()

#: Prints what the log rounds to three digits: the loss per token of each update, over all ranks.
PRINT_LOSSES = """
from fairseq.criterions import label_smoothed_cross_entropy as module
cls = module.LabelSmoothedCrossEntropyCriterion
original = cls.reduce_metrics.__func__
def reduce_metrics(cls, outputs):
    total = sum(float(o["loss"]) for o in outputs)
    count = sum(int(o["sample_size"]) for o in outputs)
    print("UPDATE", count, total / count, flush=True)
    return original(cls, outputs)
cls.reduce_metrics = classmethod(reduce_metrics)
"""


class Trained(NamedTuple):
    losses: list[float]
    tokens: list[int]
    weights: dict[str, torch.Tensor]


def train(data, folder, *options):
    argv = [data, "--user-dir", PLUGIN, *OPTIONS, "--save-dir", folder, *options]
    result = succeed(fairseq("train", *argv, before=PRINT_LOSSES))
    updates = [line.split()[1:] for line in result.stdout.splitlines() if line.startswith("UPDATE")]
    path = folder / "checkpoint_last.pt"
    # Not as a context: leaving one would forbid the type to all tests that follow.
    torch.serialization.add_safe_globals([argparse.Namespace])
    weights = torch.load(path, weights_only=True)["model"] if path.is_file() else {}
    return Trained([float(u[1]) for u in updates], [int(u[0]) for u in updates], weights)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return preprocess(tmp_path_factory.mktemp("corpus"))


def train_together(data, folder, *options):
    """Two processes; only the first one writes a checkpoint."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    together = (
        "--distributed-world-size 2 --distributed-backend gloo --distributed-no-spawn "
        f"--distributed-init-method tcp://localhost:{port} --ddp-backend legacy_ddp"
    ).split()
    together += [*options, "--distributed-rank"]
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(train, data, folder / f"{n}", *together, n) for n in range(2)]
    return [rank.result() for rank in ranks]


#: With all prefixes of a sentence drawn, nothing is left to chance.
DRAFTER = (
    "--arch block_nat --drafter-attention prefix_causal --drafter-block-size 3 "
    "--criterion block_nat_loss --prefixes-per-sentence 100 --glancing-ratio 0"
).split()


@pytest.mark.parametrize("options", [[], DRAFTER], ids=["translator", "drafter"])
def test_two_ranks_are_one_with_twice_the_batch(data, tmp_path, options):
    two, other = train_together(data, tmp_path, *options)
    one = train(data, tmp_path / "one", *options, "--update-freq", 2)
    half = train(data, tmp_path / "half", *options)

    assert two.weights.keys() == one.weights.keys()
    assert ("decoder.mask_vector" in one.weights) == bool(options)
    for name, weight in one.weights.items():
        torch.testing.assert_close(two.weights[name], weight, atol=1e-5, rtol=0, msg=name)
    # A rank alone is another training: what is compared above can tell the two apart.
    far = max((half.weights[n] - w).abs().max() for n, w in one.weights.items())
    assert far > (1e-3 if options else 1e-2)
    if options:  # only the translator's losses are printed
        return
    assert len(one.losses) == UPDATES
    assert two.tokens == other.tokens == one.tokens
    assert two.losses == other.losses == pytest.approx(one.losses, abs=1e-5)
    assert one.losses[-1] < one.losses[0] - 0.1  # they learn
    assert all(a < b for a, b in zip(half.tokens, one.tokens))
    assert all(abs(a - b) > 1e-3 for a, b in zip(half.losses[1:], one.losses[1:]))
