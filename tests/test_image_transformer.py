"""The image Transformer: local attention against loops, positions, sizes, heads, refusals."""

from __future__ import annotations

import copy
import itertools
import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.modules import MultiheadAttention
from reference import local_attention as twin
from support import image_models
from support.builders import task_for, tiny_task
from support.image_models import GRAY, HEADS, RGB, save, task_of, tiny_image_model
from torch import Tensor

from fairseq_paradec.errors import UsageError
from fairseq_paradec.models import image_transformer
from fairseq_paradec.models.image_transformer import LocalSelfAttention, Window

pytestmark = pytest.mark.usefixtures("exact_softmax", "no_gradients")

TOLERANCE = 1e-9


def forwards(task: Any, count: int, *models: Any) -> Iterator[Tensor]:
    """The models' log-probabilities of the same random images."""
    sample = image_models.image_batch(task, count)
    inputs = image_models.inputs_for(task, count)
    return (image_models.full_forward(model, sample, inputs) for model in models)


# ---- local attention ----------------------------------------------------------------------------


#: A sliding window, blocks without memory, T no multiple of l_q, memory or a block beyond T, ...
@pytest.mark.parametrize(
    ("length", "block", "memory"),
    [(1, 1, 0), (7, 1, 0), (9, 1, 3), (13, 4, 0), (14, 4, 3), (11, 3, 7), (10, 3, 40), (10, 30, 2)],
)
@torch.enable_grad()
def test_local_attention_equals_loops_over_positions(length, block, memory):
    """Outputs, and gradients of inputs and weights."""
    torch.manual_seed(0)
    module = LocalSelfAttention(Window(block, memory), 6, 2).double().eval()
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    weights = dict(module.named_parameters())
    x = torch.randn(length, 2, 6, dtype=torch.float64, requires_grad=True)
    aim = torch.randn(length, 2, 6, dtype=torch.float64)
    got, shares = module(x, x, x)
    assert shares is None
    want = torch.stack([twin.attend(x[:, b], weights, 2, block, memory) for b in (0, 1)], dim=1)
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE)
    inputs = [x, *weights.values()]
    ours, theirs = (torch.autograd.grad((y * aim).sum(), inputs) for y in (got, want))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=TOLERANCE)


def stock_twin(model: Any) -> Any:
    """The same model with fairseq's attention, under the window's T×T mask."""
    other = copy.deepcopy(model)
    window = model.decoder.attention_window
    for layer in other.decoder.layers:
        own, dim = layer.self_attn, layer.self_attn.embed_dim
        layer.self_attn = MultiheadAttention(dim, own.num_heads, self_attention=True)
        layer.self_attn.load_state_dict(own.state_dict())
    other.decoder.buffered_future_mask = lambda x: twin.window_mask(
        len(x), window.block, window.memory
    ).to(x)
    return other.double()


@pytest.mark.parametrize(
    ("sizes", "block", "memory"), [(GRAY, 1, 6), (RGB, 5, 4), (GRAY, 8, 0), (RGB, 3, 50)]
)
def test_the_model_is_fairseqs_under_the_windows_mask(sizes, block, memory):
    """At once, and one by one through fairseq's own incremental state."""
    task = task_of(sizes)
    model = tiny_image_model(task, block, memory)
    got, want = forwards(task, 3, model, stock_twin(model))
    assert float(want.std()) > 0.5, "the model is too flat to show an error"
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE)
    state: dict[str, Any] = {}
    sample, inputs = image_models.image_batch(task, 3), image_models.inputs_for(task, 3)
    encoder_out = model.encoder.forward_torchscript(sample["net_input"])
    for t in range(inputs.size(1)):
        out = model.decoder(inputs[:, : t + 1], encoder_out=encoder_out, incremental_state=state)
        got = model.get_normalized_probs(out, log_probs=True)[:, -1]
        assert torch.allclose(got, want[:, t], rtol=0, atol=TOLERANCE), t


# ---- positions ----------------------------------------------------------------------------------


def place_vector(down: float, right: float) -> Tensor:
    """Half of 16 dimensions for either coordinate: sines, then cosines."""
    rates = [10000 ** (-n / 3) for n in range(4)]
    return torch.tensor(
        [wave(at * rate) for at in (down, right) for wave in (math.sin, math.cos) for rate in rates]
    )


@pytest.mark.parametrize("sizes", [GRAY, RGB], ids=["gray", "rgb"])
def test_positions_are_places_in_the_output(sizes):
    high = sizes[1]
    for size in sizes:
        positions = image_transformer.ImagePositions(size, high, 16)
        channels = positions.channels
        places = [*itertools.product(*map(range, (size.height, size.width, size.channels)))]
        want = []
        for row, column, channel in [*places, (size.height, 0, 0)]:
            down = (row + 0.5) * high.height / size.height
            right = (column + 0.5) * high.width / size.width
            vector = place_vector(down, right)
            want.append(vector if channels is None else vector + channels.weight[channel])
        assert (channels is None) == (size.channels == 1)
        assert torch.allclose(positions.table(len(want)), torch.stack(want), atol=1e-5)
        assert positions.max_positions == len(want)
        tokens = torch.ones(2, 5, dtype=torch.long)
        assert torch.equal(positions(tokens), positions.table(5)[None, :5])


# ---- options ------------------------------------------------------------------------------------


def test_what_it_cannot_honour_is_refused():
    for name, value, message in (
        ("attention_block", 0, "--attention-block: got 0; allowed: a whole number from 1 up"),
        ("attention_memory", -1, "--attention-memory: got -1; allowed: a whole number from 0 up"),
        ("decoder_learned_pos", True, "--decoder-learned-pos: .*--arch image_transformer with"),
        ("cross_self_attention", True, "--cross-self-attention"),
    ):
        with pytest.raises(UsageError, match=message):
            tiny_image_model(task_of(), **{name: value})
    with pytest.raises(UsageError, match="--task: got 'translation'; allowed: image_super_res"):
        tiny_image_model(tiny_task())


# ---- checkpoints, and heads on them --------------------------------------------------------------


@pytest.fixture
def base_file(tmp_path: Path) -> tuple[Any, Any, str]:
    task = task_of(RGB)
    base = tiny_image_model(task, dtype=torch.float32)
    return task, base, save(task, base, tmp_path / "base.pt", "image_transformer")


def test_a_checkpoint_knows_its_sizes(base_file):
    task, model, path = base_file
    (loaded,), cfg, _ = checkpoint_utils.load_model_ensemble_and_task([path], task=task)
    assert loaded.image_sizes == RGB and loaded.decoder.attention_window == (5, 4)
    assert cfg.model.low_size == [1, 2, 3] and cfg.model.high_size == [3, 4, 3]
    assert torch.equal(*forwards(task, 2, loaded.eval(), model))
    with pytest.raises(UsageError, match="images of .*as the model's"):
        checkpoint_utils.load_model_ensemble_and_task([path], task=task_of(GRAY))


def with_heads(task: Any, path: str, arch: str = HEADS, **options: Any) -> Any:
    """A new model with heads on the base of this file."""
    args = Namespace(base_path=path, **options)
    ARCH_CONFIG_REGISTRY[arch](args)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    model.flags = args
    return model


def test_heads_on_a_base(base_file):
    task, base, path = base_file
    model = with_heads(task, path, block_size=3)
    assert isinstance(model, image_transformer.BlockwiseImageTransformer)
    assert model.decoder.attention_window == (5, 4) and model.image_sizes == RGB
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        f"decoder.heads.{name}" for name in ("inner.weight", "inner.bias", "outer", "bias")
    }
    got, want = forwards(task, 2, model.double().eval(), base.double())
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE)
    # All heads start as head 0.
    net_input = image_models.image_batch(task, 2)["net_input"]
    inputs = image_models.inputs_for(task, 2)
    output = model(**net_input, prev_output_tokens=inputs, heads=[0, 1, 2])
    assert torch.equal(output.hidden[:, :, 1], output.hidden[:, :, 0])
    tuned = with_heads(task, path, fine_tune_base=True)
    assert all(p.requires_grad for p in tuned.parameters())


def test_a_base_of_the_other_kind_is_refused_by_name(base_file, tmp_path):
    task, _, path = base_file
    wanted = "--base-path: .*a checkpoint of fairseq's own Transformer"
    for other in (task_for("default"), task):
        with pytest.raises(UsageError, match=wanted):
            with_heads(other, path, "blockwise_transformer")
    with pytest.raises(UsageError, match=f"{HEADS}_tiny; --arch {HEADS} takes the base's"):
        with_heads(task, path, f"{HEADS}_tiny")
    heads = tiny_image_model(task, arch=HEADS)
    with pytest.raises(UsageError, match="holds a BlockwiseImageTransformer"):
        with_heads(task, save(task, heads, tmp_path / "heads.pt", HEADS))
