"""Images: the task, whose outputs are whole images, and the image Transformer."""

import copy
import itertools
import json
import math
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterionConfig
from fairseq.data import data_utils
from fairseq.modules import MultiheadAttention
from omegaconf import OmegaConf
from reference import local_attention as twin
from support import image_models
from support.builders import task_for, tiny_blockwise, tiny_model
from support.commands import PLUGIN, fairseq, succeed
from support.forward import full_forward
from support.image_data import HIGH, LOW, PAIRS, image_folder, image_task
from support.image_models import GRAY, HEADS, RGB, image_batch, save, task_of, tiny_image_model
from support.losses import build
from torch import Tensor

from fairseq_paradec import images
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Size, image_transformer, super_resolution
from fairseq_paradec.images.image_transformer import LocalSelfAttention, Window
from fairseq_paradec.translator.model_folder import ModelFolder
from fairseq_paradec.translator.translator import Translator

pytestmark = pytest.mark.usefixtures("exact_softmax", "no_gradients")

TASK = ("--user-dir", PLUGIN, "--task", "image_super_resolution")
SMALL, LARGE = Size(2, 2, 3), Size(4, 4, 3)  # 48 intensities
LIMITED = {"max_source_positions": 64, "max_target_positions": LARGE.num_tokens + 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder of images."""
    return image_folder(tmp_path_factory.mktemp("images") / "data")


def set_up(data: Path, **options: Any) -> super_resolution.ImageSuperResolutionTask:
    """The task as a command sets it up."""
    common: dict[str, Any] = {"train_subset": "train", "dataset_impl": None}
    common |= {"required_seq_len_multiple": 1, "num_batch_buckets": 0}
    given = super_resolution.ImageSuperResolutionConfig(data=str(data), **common | options)
    return super_resolution.ImageSuperResolutionTask.setup_task(OmegaConf.structured(given))


@pytest.fixture(scope="module")
def given() -> tuple[Any, Any]:
    """A task, and a stock Transformer with heads, which likes to write other symbols."""
    task = image_task(SMALL, LARGE)
    model = tiny_blockwise(task, seed=3, **LIMITED)
    with torch.no_grad():
        model.decoder.output_projection.weight[:4] *= 8
    return task, model


def decode(given: tuple[Any, Any], sample: dict[str, Any], **flags: Any) -> list[dict[str, Any]]:
    """The best hypotheses, by flags alone."""
    task, model = given
    generator = task.build_generator([model], Namespace(**flags))
    return [hypos[0] for hypos in task.inference_step(generator, [model], sample)]


@pytest.mark.parametrize("decoding", ["hgj", "blockwise", "auto_fast"])
def test_outputs_are_images_and_those_of_fairseq(given, decoding):
    sample = image_batch(given[0], 3, seed=3)
    want = decode(given, sample, decoding="beam", beam=1)
    for ours, theirs in zip(decode(given, sample, decoding=decoding), want, strict=True):
        *tokens, end = ours["tokens"].tolist()
        assert end == 2 and len(tokens) == LARGE.num_tokens and min(tokens) >= 4
        assert len(set(tokens)) > 5 and [*tokens, end] == theirs["tokens"].tolist()
        scores = (one["positional_scores"].float() for one in (ours, theirs))
        torch.testing.assert_close(*scores, atol=1e-3, rtol=0)  # fairseq sums up in fp32


def test_what_is_no_image_is_named_with_its_number(given, caplog):
    """Its output is empty, and its neighbours' are not."""
    for wrong, words in (
        ([0], "sentence 1 has 11 intensities, and an image of 2×2×3 has 12; its output is empty"),
        ([*range(12)], "sentence 1 is empty"),
        ([4], "sentence 1 has 1 symbols that are no intensities (0 to 255)"),
    ):
        sample = image_batch(given[0], 3, seed=3)
        sample["net_input"]["src_tokens"][1, wrong] = 3 if wrong == [4] else 1
        hypos = decode(given, sample, decoding="greedy")
        assert [len(hypo["tokens"]) for hypo in hypos] == [49, 1, 49]
        assert words in caplog.text


def test_a_model_of_images_translates_no_text(tmp_path):
    data = image_folder(tmp_path / "data")
    model = tiny_image_model(image_task())
    path = save(image_task(), model, data / "model.pt", "image_transformer")
    said = f"--model: got '{path}, of --task {images.TASK}'; allowed: a model of --task translation"
    with pytest.raises(UsageError, match=said):
        Translator(data, ModelFolder(*images.LANGUAGES, model="model.pt"))


def test_other_limits_are_refused(given):
    task, model = given
    for name, value in (("max_len_b", 47), ("min_len", 2), ("unkpen", 1.0)):
        said = f"--{name.replace('_', '-')}: got {value}; allowed: n"
        with pytest.raises(UsageError, match=said):
            task.build_generator([model], Namespace(decoding="greedy", **{name: value}))


def test_a_model_to_train_gets_the_positions_of_an_image(monkeypatch):
    """One of other images is refused, and targets that are padded left."""
    task = image_task(SMALL, LARGE)
    model = tiny_model(task, seed=3, **LIMITED)
    args = Namespace(**vars(model.flags) | {"max_target_positions": 7})
    args.arch = args._name = "transformer"
    positions = task.build_model(args).max_positions()
    assert positions == (64, LARGE.num_tokens + 1 + super_resolution.SPARE)
    args.max_target_positions = 7
    with pytest.raises(UsageError, match=r"--path: got 'a TransformerModel with \(64, 7\) posit"):
        task.build_model(args, from_checkpoint=True)
    monkeypatch.setattr(type(model), "image_sizes", task.image_sizes, raising=False)
    monkeypatch.setattr(task, "_model", model)
    monkeypatch.setattr(task.cfg, "left_pad_target", True)
    with pytest.raises(UsageError, match="--left-pad-target"):
        task.build_criterion(CrossEntropyCriterionConfig(_name="cross_entropy"))
    monkeypatch.setattr(type(model), "image_sizes", (LOW, HIGH), raising=False)
    with pytest.raises(UsageError, match="DATA.*4×4×1 and 8×8×1, as the model's.*2×2×3 and 4×4×3"):
        task.build_model(args)


def test_a_folder_tells_languages_and_sizes(data):
    task = set_up(data)
    assert task.image_sizes == (LOW, HIGH) and task.max_positions() == (17, 65)
    assert (task.cfg.source_lang, task.cfg.target_lang) == ("lr", "hr")


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (images.SIZES, "[", "is no JSON"),
        (images.SIZES, {"hr": {"height": 8, "width": 8.0, "channels": 1}}, "lacks the height"),
        (images.SIZES, {"hr": vars(Size(8, 8, 3))}, "do not fit, 4×4×1 and 8×8×3"),
        (images.SIZES, {"lr": vars(Size(2, 2, 1))}, "lr image 0 has 16 intensities; allowed: 4"),
        ("dict.hr.txt", "".join(f"{n} 1\n" for n in reversed(range(256))), "has other words than"),
    ],
)
def test_another_folder_is_named(tmp_path, file, change, words):
    folder = image_folder(tmp_path / "data", pairs={"test": 1})
    path = folder / file
    if isinstance(change, dict):
        change = json.dumps(json.loads(path.read_text()) | change)
    path.unlink()
    path.write_text(change)
    with pytest.raises(UsageError, match=f"DATA: got '{folder}', .*{file}.*") as caught:
        set_up(folder).load_dataset("test")
    assert words in str(caught.value)


def test_flags_for_other_lengths_are_refused(data):
    for name, value in (("max_target_positions", 64), ("truncate_source", True)):
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}: got {value}"):
            set_up(data, **{name: value}).load_dataset("test")
    set_up(data, max_source_positions=17, max_target_positions=65).load_dataset("test")


@pytest.mark.slow
def test_forced_through_the_decoder_images_come_back(data, tmp_path, capsys):
    """Image -> tokens -> binarised data -> decoding, with the truth as the prefix -> image."""
    model = tiny_image_model(image_task(), dtype=torch.float32)
    path = save(image_task(), model, tmp_path / "model.pt", "image_transformer")
    forced = ("--prefix-size", HIGH.num_tokens, "--path", path, "--cpu")
    report = tmp_path / "forced.jsonl"
    how = ("--decoding", "greedy", "--stats-file", report)
    result = succeed(fairseq("generate", data, *TASK, *forced, *how))
    (tmp_path / "forced.txt").write_text(result.stdout, encoding="utf-8")
    given = (data, tmp_path / "forced.txt", "--stats", report, "--out", tmp_path, "--scale", 1)
    assert paradec(["images", "compare", *map(str, given)]) == 0
    # No error counts as one intensity off by one: 48.13 + 10 log10(64).
    assert re.search(r"forced +66\.19", capsys.readouterr().out)
    targets = data_utils.load_indexed_dataset(str(data / "test.lr-hr.hr"))
    for number in range(PAIRS["test"]):
        picture = images.load(tmp_path / f"{number}.png", 1)
        truth = (targets[number][:-1].numpy() - 4).reshape(8, 8)
        middle = picture[:, 8 + images.LINE : 16 + images.LINE]
        assert (middle == truth).all() and (picture[:, -8:] == truth).all()


# ---- the image Transformer ----------------------------------------------------------------------

TOLERANCE = 1e-9


def forwards(task: Any, count: int, *models: Any) -> Iterator[Tensor]:
    """The models' log-probabilities of the same random images."""
    sample = image_batch(task, count)
    inputs = image_models.inputs_for(task, count)
    return (full_forward(model, sample, inputs) for model in models)


#: A sliding window, blocks without memory, T no multiple of l_q, memory or a block beyond T, ...
@pytest.mark.parametrize(
    ("length", "block", "memory"),
    [(1, 1, 0), (9, 1, 3), (13, 4, 0), (14, 4, 3), (11, 3, 7), (10, 3, 40), (10, 30, 2)],
)
@torch.enable_grad()
def test_local_attention_equals_loops_over_positions(length, block, memory):
    """Outputs, and gradients of inputs and weights."""
    torch.manual_seed(0)
    module = LocalSelfAttention(Window(block, memory), 6, 2).double().eval()
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    x = torch.randn(length, 2, 6, dtype=torch.float64, requires_grad=True)
    aim = torch.randn(length, 2, 6, dtype=torch.float64)
    got, shares = module(x, x, x)
    assert shares is None
    want = torch.stack([twin.attend(module, x[:, b], block, memory) for b in (0, 1)], dim=1)
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE)
    inputs = [x, *module.parameters()]
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
    spans = window.block, window.memory
    other.decoder.buffered_future_mask = lambda x: twin.window_mask(len(x), *spans).to(x)
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
    sample, inputs = image_batch(task, 3), image_models.inputs_for(task, 3)
    encoder_out = model.encoder.forward_torchscript(sample["net_input"])
    for t in range(inputs.size(1)):
        out = model.decoder(inputs[:, : t + 1], encoder_out=encoder_out, incremental_state=state)
        got = model.get_normalized_probs(out, log_probs=True)[:, -1]
        assert torch.allclose(got, want[:, t], rtol=0, atol=TOLERANCE), t


def place_vector(down: float, right: float) -> Tensor:
    """Half of 16 dimensions for either coordinate: sines, then cosines."""
    rates = [10000 ** (-n / 3) for n in range(4)]
    waves = [(at, wave) for at in (down, right) for wave in (math.sin, math.cos)]
    return torch.tensor([wave(at * rate) for at, wave in waves for rate in rates])


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


def test_what_it_cannot_honour_is_refused():
    for name, value, message in (
        ("attention_block", 0, "--attention-block: got 0; allowed: a whole number from 1 up"),
        ("decoder_learned_pos", True, "--decoder-learned-pos: .*--arch image_transformer with"),
    ):
        with pytest.raises(UsageError, match=message):
            tiny_image_model(task_of(), **{name: value})


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


def test_heads_on_a_base(base_file):
    task, base, path = base_file
    model = build(task, HEADS, base_path=path, block_size=3)
    assert isinstance(model, image_transformer.BlockwiseImageTransformer)
    assert model.decoder.attention_window == (5, 4) and model.image_sizes == RGB
    heads = [f"decoder.heads.{name}" for name in ("bias", "inner.bias", "inner.weight", "outer")]
    assert sorted(n for n, p in model.named_parameters() if p.requires_grad) == heads
    got, want = forwards(task, 2, model.double().eval(), base.double())
    assert torch.allclose(got, want, rtol=0, atol=TOLERANCE)
    # All heads start as head 0.
    net_input = image_batch(task, 2)["net_input"]
    inputs = image_models.inputs_for(task, 2)
    output = model(**net_input, prev_output_tokens=inputs, heads=[0, 1, 2])
    assert torch.equal(output.hidden[:, :, 1], output.hidden[:, :, 0])
    tuned = build(task, HEADS, base_path=path, fine_tune_base=True)
    assert all(p.requires_grad for p in tuned.parameters())


def test_a_base_of_the_other_kind_is_refused_by_name(base_file):
    task, _, path = base_file
    for other in (task_for("default"), task):
        with pytest.raises(UsageError, match="--base-path: .*of fairseq's own Transformer"):
            build(other, "blockwise_transformer", base_path=path)
