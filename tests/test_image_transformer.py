"""The image Transformer: local attention against loops, positions, sizes, heads, refusals."""

from __future__ import annotations

import copy
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.modules import MultiheadAttention
from reference import local_attention as twin
from support.builders import task_for, tiny_task
from support.image_models import (
    GRAY,
    HEADS,
    RGB,
    TINY,
    full_forward,
    image_batch,
    inputs_for,
    save,
    task_of,
    tiny_image_model,
)
from torch import Tensor

from fairseq_paradec.errors import UsageError
from fairseq_paradec.models.image_transformer import (
    BlockwiseImageTransformer,
    ImagePositions,
    ImageTransformer,
    LocalSelfAttention,
    Window,
)

pytestmark = pytest.mark.usefixtures("exact_softmax", "no_gradients")

TOLERANCE = 1e-9

#: T, l_q, l_m: a sliding window, blocks without memory, T no multiple of l_q, memory beyond T, ...
SPANS = [
    (1, 1, 0), (7, 1, 0), (9, 1, 3), (13, 4, 0), (13, 4, 4), (14, 4, 3), (11, 3, 7), (10, 3, 40),
    (10, 30, 2), (17, 2, 5),
]  # fmt: skip


# ---- local attention ----------------------------------------------------------------------------


def attention(block: int, memory: int, seed: int = 0) -> LocalSelfAttention:
    """A random attention of 2 heads over 6 dimensions."""
    torch.manual_seed(seed)
    module = LocalSelfAttention(Window(block, memory), 6, 2).double().eval()
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    return module


@pytest.mark.parametrize(("length", "block", "memory"), SPANS)
@torch.enable_grad()
def test_local_attention_equals_loops_over_positions(length, block, memory):
    """Outputs, and gradients of inputs and weights."""
    module = attention(block, memory)
    weights = dict(module.named_parameters())
    x = torch.randn(length, 2, 6, dtype=torch.float64, requires_grad=True)
    aim = torch.randn(length, 2, 6, dtype=torch.float64)
    got, shares = module(x, x, x)
    assert shares is None
    want = torch.stack([twin.attend(x[:, b], weights, 2, block, memory) for b in (0, 1)], dim=1)
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE)
    inputs = [x, *weights.values()]
    ours, theirs = (
        torch.autograd.grad((y * aim).sum(), inputs, retain_graph=True) for y in (got, want)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=TOLERANCE)


def test_dropout_is_of_the_weights():
    module = LocalSelfAttention(Window(4, 4), 6, 2, dropout=0.5)
    x = torch.randn(9, 1, 6)
    assert not torch.equal(module(x, x, x)[0], module(x, x, x)[0])
    module.eval()
    assert torch.equal(module(x, x, x)[0], module(x, x, x)[0])


def stock_twin(model: ImageTransformer) -> Any:
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


@pytest.mark.parametrize("sizes", [GRAY, RGB], ids=["gray", "rgb"])
@pytest.mark.parametrize(("block", "memory"), [(1, 6), (5, 4), (8, 0), (3, 50)])
def test_the_model_is_fairseqs_under_the_windows_mask(sizes, block, memory):
    """At once, and one by one through fairseq's own incremental state."""
    task = task_of(sizes)
    model = tiny_image_model(task, block, memory)
    sample, inputs = image_batch(task, 3), inputs_for(task, 3)
    got, want = (full_forward(m, sample, inputs) for m in (model, stock_twin(model)))
    assert float(want.std()) > 0.5, "the model is too flat to show an error"
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE)
    state: dict[str, Any] = {}
    encoder_out = model.encoder.forward_torchscript(sample["net_input"])
    for t in range(inputs.size(1)):
        out = model.decoder(inputs[:, : t + 1], encoder_out=encoder_out, incremental_state=state)
        got = model.get_normalized_probs(out, log_probs=True)[:, -1]
        assert torch.allclose(got, want[:, t], rtol=0, atol=TOLERANCE), t


# ---- positions ----------------------------------------------------------------------------------


def place_vector(down: float, right: float, dim: int) -> Tensor:
    """Half of the dimensions for either coordinate: sines, then cosines."""
    both = []
    for coordinate in (down, right):
        quarter = dim // 4
        rates = [10000 ** (-n / (quarter - 1)) for n in range(quarter)]
        both += [math.sin(coordinate * rate) for rate in rates]
        both += [math.cos(coordinate * rate) for rate in rates]
    return torch.tensor(both)


@pytest.mark.parametrize("sizes", [GRAY, RGB], ids=["gray", "rgb"])
def test_positions_are_places_in_the_output(sizes):
    dim, high = 16, sizes[1]
    for size in sizes:
        positions = ImagePositions(size, high, dim)
        channels = positions.channels
        rows = [(r, c, k) for r in range(size.height) for c in range(size.width)
                for k in range(size.channels)] + [(size.height, 0, 0)]  # fmt: skip
        want = []
        for row, column, channel in rows:
            down = (row + 0.5) * high.height / size.height
            right = (column + 0.5) * high.width / size.width
            vector = place_vector(down, right, dim)
            want.append(vector if channels is None else vector + channels.weight[channel])
        assert (channels is None) == (size.channels == 1)
        assert torch.allclose(positions.table(len(rows)), torch.stack(want), atol=1e-5)
        assert positions.max_positions == len(rows)
        tokens = torch.ones(2, 5, dtype=torch.long)
        assert torch.equal(positions(tokens), positions.table(5)[None, :5])


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_block": 0}, "--attention-block: got 0; allowed: a whole number from 1 up"),
        ({"attention_memory": -1}, "--attention-memory: got -1; allowed: a whole number from 0 up"),
        ({"decoder_learned_pos": True}, "--decoder-learned-pos: .*--arch image_transformer with"),
        ({"cross_self_attention": True}, "--cross-self-attention"),
    ],
)
def test_options_that_it_cannot_honour_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        tiny_image_model(task_of(), **options)


def test_another_task_is_refused_by_name():
    args = Namespace(**TINY)
    ARCH_CONFIG_REGISTRY["image_transformer"](args)
    wanted = "--task: got 'translation'; allowed: image_super_resolution"
    with pytest.raises(UsageError, match=wanted):
        ARCH_MODEL_REGISTRY["image_transformer"].build_model(args, tiny_task())


def test_a_checkpoint_knows_its_sizes(tmp_path):
    task = task_of(RGB)
    model = tiny_image_model(task)
    path = save(task, model, tmp_path / "model.pt", "image_transformer")
    (loaded,), cfg, _ = checkpoint_utils.load_model_ensemble_and_task([path], task=task)
    assert loaded.image_sizes == RGB and loaded.decoder.attention_window == (5, 4)
    assert cfg.model.low_size == [1, 2, 3] and cfg.model.high_size == [3, 4, 3]
    sample, inputs = image_batch(task, 2), inputs_for(task, 2)
    got, want = (full_forward(m.eval(), sample, inputs) for m in (loaded.double(), model))
    assert torch.equal(got, want)
    with pytest.raises(UsageError, match="images of .*as the model's"):
        checkpoint_utils.load_model_ensemble_and_task([path], task=task_of(GRAY))


# ---- heads --------------------------------------------------------------------------------------


def with_heads(task: Any, path: str, arch: str = HEADS, **options: Any) -> Any:
    """A new model with heads on the base of this file."""
    args = Namespace(base_path=path, **options)
    ARCH_CONFIG_REGISTRY[arch](args)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    model.flags = args
    return model


@pytest.fixture
def base_file(tmp_path: Path) -> tuple[Any, Any, str]:
    task = task_of(RGB)
    base = tiny_image_model(task, dtype=torch.float32)
    return task, base, save(task, base, tmp_path / "base.pt", "image_transformer")


def test_heads_on_a_base(base_file):
    task, base, path = base_file
    model = with_heads(task, path, block_size=3)
    assert isinstance(model, BlockwiseImageTransformer)
    assert model.decoder.attention_window == (5, 4) and model.image_sizes == RGB
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        f"decoder.heads.{name}" for name in ("inner.weight", "inner.bias", "outer", "bias")
    }
    sample, inputs = image_batch(task, 2), inputs_for(task, 2)
    got, want = (full_forward(m.double().eval(), sample, inputs) for m in (model, base))
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE)
    # All heads start as head 0.
    output = model(**sample["net_input"], prev_output_tokens=inputs, heads=[0, 1, 2])
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
