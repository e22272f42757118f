"""Training a drafter over two processes (gloo, CPU) is training in one with twice the batch.

fairseq deals batches out in turn: of two ranks the first takes the 1st, 3rd, 5th, ... and the other
the rest; one rank with ``--update-freq 2`` puts the same two batches into each update. Plain SGD,
because Adam turns rounding errors of gradients that are zero (those of the keys' biases) into full
steps. With all prefixes of a sentence drawn, nothing is left to chance.
"""

import argparse
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.commands import PLUGIN, fairseq, preprocess, succeed

OPTIONS = (
    "--arch block_nat --drafter-attention prefix_causal --drafter-block-size 3 "
    "--criterion block_nat_loss --prefixes-per-sentence 100 --glancing-ratio 0 "
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 "
    "--decoder-embed-dim 16 --encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0 --optimizer sgd --lr 0.5 "
    "--label-smoothing 0.1 --max-tokens 100 "
    "--max-update 6 --disable-validation --no-progress-bar --num-workers 0 --cpu --seed 3"
).split()


def train(data, folder, *options):
    """The weights that come of it; of two ranks only the first one writes a checkpoint."""
    succeed(fairseq("train", data, "--user-dir", PLUGIN, *OPTIONS, "--save-dir", folder, *options))
    path = folder / "checkpoint_last.pt"
    # Not as a context: leaving one would forbid the type to all tests that follow.
    torch.serialization.add_safe_globals([argparse.Namespace])
    return torch.load(path, weights_only=True)["model"] if path.is_file() else {}


@pytest.mark.slow
def test_two_ranks_are_one_with_twice_the_batch(tmp_path):
    data = preprocess(tmp_path / "corpus")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    together = (
        "--distributed-world-size 2 --distributed-backend gloo --distributed-no-spawn "
        f"--distributed-init-method tcp://localhost:{port} --ddp-backend legacy_ddp "
        "--distributed-rank"
    ).split()
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(train, data, tmp_path / f"{n}", *together, n) for n in range(2)]
    two = ranks[0].result() | ranks[1].result()
    one = train(data, tmp_path / "one", "--update-freq", 2)
    half = train(data, tmp_path / "half")
    assert two.keys() == one.keys() and "decoder.mask_vector" in one
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=1e-5, rtol=0, msg=name)
    # A rank alone is another training: what is compared above can tell the two apart.
    assert max((half[name] - weight).abs().max() for name, weight in one.items()) > 1e-3
