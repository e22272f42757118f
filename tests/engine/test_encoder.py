"""LeanEncoder against fairseq's own encoder: every kind of Transformer, padding on either side."""

import copy
import itertools

import pytest
import torch
from fairseq.modules.quant_noise import quant_noise
from support import builders
from support.builders import VARIANTS, batch, built, collate, task_for, tiny_drafter, tiny_model
from torch.nn.utils import prune

from fairseq_paradec.engine.torch.encoder import LeanEncoder, lean_encoder
from fairseq_paradec.engine.torch.weights import best_form

pytestmark = pytest.mark.usefixtures("no_gradients")

TOLERANCE = 1e-10  # float64, two layers: far under any real difference
STOCK = [name for name in VARIANTS if name != "quant_noise"]
BATCHES = ([7], [1], [9, 6, 3, 1], [5, 5])


def both(model, net_input, form="plain"):
    lean = lean_encoder(model, form)
    assert isinstance(lean, LeanEncoder)
    return model.encoder.forward_torchscript(net_input), lean(net_input["src_tokens"])


def difference(want, got):
    """The largest difference, at padding too; masks and embeddings must be the same."""
    for name in ("encoder_padding_mask", "encoder_embedding"):
        assert torch.equal(want[name][0], got[name][0]), name
    theirs, ours = want["encoder_out"][0].detach(), got["encoder_out"][0]  # S×B×D
    assert theirs.std() > 0.5, "the model is too flat to show an error"
    assert theirs.shape == ours.shape and theirs.dtype == ours.dtype
    return float((theirs - ours).abs().max())


@pytest.mark.parametrize("variant", STOCK)
def test_equal_to_fairseq(variant):
    task, model = built(variant)
    for lengths, left_pad in itertools.product(BATCHES, (True, False)):
        net_input = batch(task, lengths, left_pad=left_pad)["net_input"]
        for form in ("plain", "columns"):
            assert difference(*both(model, net_input, form)) < TOLERANCE
    low = built(variant, torch.float32)[1]
    assert difference(*both(low, net_input, form)) < 1e-5


def test_other_shapes_activations_and_this_packages_own_models():
    task, gelu = builders.tiny_task(), "gelu_accurate"
    for model in (
        tiny_model(task, activation_fn="relu_squared"),
        tiny_model(task, activation_fn=gelu, encoder_layers=5, encoder_attention_heads=8),
        tiny_model(task, encoder_layers=0, encoder_normalize_before=True),
        tiny_model(task, no_scale_embedding=True, no_token_positional_embeddings=True),
        tiny_model(task, checkpoint_activations=True),
        tiny_model(task, encoder_embed_dim=15, encoder_attention_heads=3, decoder_embed_dim=16),
        builders.tiny_blockwise(task),
        builders.tiny_reordered(task),
        tiny_drafter(task, soft_copy=True),
        tiny_drafter(task, verifier=tiny_model(task, "learned_positions")),
    ):
        net_input = batch(task, [9, 5, 1])["net_input"]
        assert difference(*both(model, net_input)) < TOLERANCE, model.flags


@pytest.mark.parametrize("left_pad", [True, False], ids=["left", "right"])
def test_sinusoids_grow(left_pad):
    task = task_for("default")
    model = tiny_model(task)
    places = model.encoder.embed_positions
    places.weights = places.weights[:20].clone()
    lean = lean_encoder(model)
    net_input = batch(task, [90, 65], left_pad=left_pad)["net_input"]
    got = lean(net_input["src_tokens"])
    assert len(places.weights) == 20, "the model's own table is not touched"
    assert difference(model.encoder.forward_torchscript(net_input), got) < TOLERANCE


def test_a_source_beyond_the_learned_positions():
    """An error as in fairseq; padding that reaches beyond them is none."""
    task = task_for("learned_positions")
    model = tiny_model(task, "learned_positions", max_source_positions=64)
    net_input = batch(task, [65, 4])["net_input"]
    with pytest.raises(IndexError):
        model.encoder.forward_torchscript(net_input)
    with pytest.raises(IndexError):
        lean_encoder(model)(net_input["src_tokens"])
    tokens = torch.nn.functional.pad(net_input["src_tokens"][:, -4:], (0, 70), value=1)
    wide = {"src_tokens": tokens, "src_lengths": tokens.ne(1).sum(1)}
    assert difference(*both(model, wide)) < TOLERANCE


def test_layerdrop_draws_no_random_numbers():
    task = task_for("layerdrop")
    model = tiny_model(task, "layerdrop", encoder_layerdrop=0.9)
    net_input = batch(task, [6, 4])["net_input"]
    before = torch.random.get_rng_state()
    lean = lean_encoder(model)
    lean(net_input["src_tokens"])
    assert torch.equal(before, torch.random.get_rng_state())
    model.train()
    lean.gather("plain")
    model.eval()
    assert (
        difference(model.encoder.forward_torchscript(net_input), lean(net_input["src_tokens"]))
        < TOLERANCE
    )


def relative_error(want, got):
    """Length of the error by length of what is right, over real positions."""
    real = ~want["encoder_padding_mask"][0].t()
    theirs, ours = want["encoder_out"][0][real].float(), got["encoder_out"][0][real].float()
    return float((ours - theirs).norm() / theirs.norm())


#: dtype, form -> how far from fairseq's in fp32 it may be. Measured on the demo: 0.006, 0.006,
#: 0.0006 and 0.023; with two layers in each other's place it is 0.25 and more.
BOUNDS = {
    (torch.bfloat16, "packed"): 0.02,
    (torch.bfloat16, "plain"): 0.02,
    (torch.float16, "plain"): 0.003,
    (torch.float32, "int8"): 0.05,
}


@pytest.mark.filterwarnings("ignore")  # torch's notices that quantisation moves elsewhere
@pytest.mark.parametrize(("dtype", "form"), BOUNDS, ids=str)
def test_low_precision_on_a_trained_model(dtype, form):
    if form == "packed" and best_form(dtype, torch.device("cpu"), True) != "packed":
        pytest.skip("no bfloat16 kernels on this processor")
    if form == "int8" and "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("no 8-bit kernels on this processor")
    task, model, sentences = builders.demo()
    low = copy.deepcopy(model).to(dtype)
    lean, wrong = lean_encoder(low, form), lean_encoder(low, form)
    wrong.stack = [wrong.stack[i] for i in (0, 2, 1, 3)]
    for rows in (sentences[:1], sentences[1:2], sentences[:8]):
        net_input = collate(task, rows)["net_input"]
        want = model.encoder.forward_torchscript(net_input)
        got = lean(net_input["src_tokens"])
        assert got["encoder_out"][0].dtype == dtype
        assert relative_error(want, got) < BOUNDS[dtype, form]
        assert relative_error(want, wrong(net_input["src_tokens"])) > 4 * BOUNDS[dtype, form]


def subclass(name):
    def change(encoder):
        module = encoder.get_submodule(name)
        module.__class__ = type("Own", (type(module),), {})

    return change


def put(name, value):
    def change(encoder):
        part, _, attribute = name.rpartition(".")
        setattr(encoder.get_submodule(part), attribute, value() if callable(value) else value)

    return change


def pruned_heads(encoder):
    attention = encoder.layers[0].self_attn
    attention._adaptive_prune_heads([(0, 8)])
    attention._set_skip_embed_dim_check()


PARTS = (
    "",
    "layers.1",
    "layers",
    "layers.0.self_attn",
    "layers.0.self_attn.out_proj",
    "layers.1.fc1",
    "layers.1.final_layer_norm",
    "embed_tokens",
    "embed_positions",
)
STRANGE = {
    **{f"own {name}": subclass(name) for name in PARTS},
    "positions without padding": put("embed_positions", lambda: torch.nn.Embedding(64, 16)),
    "activation": put("layers.0.activation_fn", torch.nn.GELU),  # a module, with what it may hold
    "normformer": put("layers.0.c_attn", lambda: torch.nn.Parameter(torch.ones(2))),
    "adapter": put("layers.0.adapter", lambda: torch.nn.Linear(16, 16)),
    "quant noise": lambda encoder: quant_noise(encoder.layers[0].fc1, 0.1, 8),
    "return_fc": put("return_fc", True),
    "extra keys": put("layers.0.self_attn.bias_k", lambda: torch.nn.Parameter(torch.ones(1))),
    "pruned heads": pruned_heads,
    "pruning": lambda encoder: prune.random_unstructured(encoder.layers[0].fc2, "weight", 0.5),
    "hook": lambda encoder: encoder.layers[0].register_forward_hook(lambda *args: 2 * args[2]),
    "forward": put("layers.0.forward", lambda: lambda x, encoder_padding_mask: x),
    "no bias": put("layers.0.fc1.bias", None),
}


def test_strange_encoders_are_left_to_fairseq():
    assert lean_encoder(built("quant_noise")[1]) is None
    assert lean_encoder(torch.nn.Linear(2, 2)) is None
    for what, spoil in STRANGE.items():
        model = tiny_model(task_for("default"))
        assert lean_encoder(model) is not None
        with torch.enable_grad():
            spoil(model.encoder)
        assert lean_encoder(model) is None, what
