"""Models without torch: their weights are the modules', bit for bit; hostile files are a line."""

import argparse
import functools
import json
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf
from support import builders
from support.builders import SMALL, VARIANTS, tiny_model, tiny_task
from support.commands import DEMO, ROOT
from support.fuzzing import Change, changes, in_a_child, spoil

from fairseq_paradec import load
from fairseq_paradec.config import DecodingConfig
from fairseq_paradec.decoding.helper import move_to, same_encoder
from fairseq_paradec.decoding.provenance import weights_hash
from fairseq_paradec.engine.native import packing
from fairseq_paradec.engine.native.cache import NativeCache
from fairseq_paradec.engine.native.passes import native_pass
from fairseq_paradec.engine.native.stack import NativeHeads
from fairseq_paradec.engine.torch.views import model_of, pack_heads
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods.auto_fast.profile import fingerprint
from fairseq_paradec.methods.build import build_decoder
from fairseq_paradec.methods.configure import configure, for_models
from fairseq_paradec.model import file
from fairseq_paradec.model.checkpoint import BFLOAT16
from fairseq_paradec.model.dictionary import Dictionary
from fairseq_paradec.model.model import HeadWeights, Model
from fairseq_paradec.model.settings import ARCHITECTURES
from fairseq_paradec.model.weights import as_fp32
from fairseq_paradec.model_checks import (
    attends_locally,
    has_heads,
    is_block_nat,
    writes_pairs,
    writes_steps,
)
from fairseq_paradec.model_facts import device_of, dictionaries_of, heads_of
from fairseq_paradec.plugin.models.heads import load_heads
from fairseq_paradec.plugin.models.reordered_transformer import PRESETS
from fairseq_paradec.plugin.tasks.drafters import Drafters
from fairseq_paradec.registry import METHODS, check_models, own_decoding
from fairseq_paradec.target_order import order_of

FOLDERS = [DEMO, ROOT / "data-bin" / "demo-small.en-de"]
WORDS, BIAS = "decoder.embed_tokens.weight", "encoder.layers.0.fc1.bias"
#: Variants that the record does not describe, and what the message names.
OTHERS = {"quant_noise": "quant_noise_pq"}


def words(task: Any) -> tuple[Dictionary, Dictionary]:
    """A task's dictionaries, as the core has them."""
    pair = []
    for theirs in (task.source_dictionary, task.target_dictionary):
        own = Dictionary()
        for symbol in theirs.symbols[len(own) :]:
            own.add(symbol)
        pair.append(own)
    return pair[0], pair[1]


def compare(model: Model, module: torch.nn.Module) -> None:
    """Check that a model has a module's weights, under the same names, and its hash."""
    theirs = {name: p.detach().numpy() for name, p in module.named_parameters()}
    own = {
        name.removeprefix("decoder.heads.") if len(theirs) < 5 else name: weight
        for name, weight in model.weights.items()
    }
    assert sorted(own) == sorted(theirs)
    for name, weight in own.items():
        assert weight.dtype == np.float32 and weight.shape == theirs[name].shape
        assert weight.tobytes() == theirs[name].tobytes(), name
    assert model.hash == weights_hash(module)
    if len(theirs) > 4:
        compare_facts(model, module)
        compare_passes(model, module)


def compare_files(model: Model, task: Any, path: Path) -> None:
    """Check that a model's file is the model again, and that fairseq makes its module of it."""
    own = path.with_suffix(".safetensors")
    model.save(own)
    assert model.source is not None and model.target is not None
    again = Model.read(own, model.source, model.target)
    assert again.architecture == model.architecture and again.hash == model.hash
    loaded, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(own)], task=task)
    compare(again, loaded[0].float().eval())


def compare_facts(model: Model, module: Any) -> None:
    """Check that a model answers what methods ask as its module does."""
    own, theirs = [model], [module]
    assert own_decoding(own) == own_decoding(theirs)
    for check in (is_block_nat, has_heads, writes_steps, writes_pairs):
        assert check(own) == check(theirs), check
    for fact in (order_of, attends_locally, device_of):
        assert fact(model) == fact(module), fact
    assert model.max_positions() == module.max_positions()
    assert model.max_decoder_positions() == module.max_decoder_positions()
    for name in ("block_size", "shares_encoder", "first_target_token"):
        assert (getattr(model, name) or None) == (getattr(module, name, None) or None), name
    symbols = [[words.symbols for words in dictionaries_of(each)] for each in (model, module)]
    assert symbols[0] == symbols[1]
    assert model.block_size is None or model.masks(3) == module.masks(3)
    heads = [getattr(heads_of(each), "block_size", None) for each in (model, module)]
    assert heads[0] == heads[1]
    for decoding in METHODS:
        answers = [why_refused(decoding, each) for each in (model, module)]
        assert (answers[0] is None) == (answers[1] is None), (decoding, answers)
        for asked in ("auto", decoding):
            config = DecodingConfig(decoding=asked)
            assert for_models(config, own) == for_models(config, theirs)


def why_refused(decoding: str, model: Any) -> str | None:
    """Why a method refuses a model."""
    try:
        check_models(decoding, [model], None)
    except UsageError as error:
        return str(error)
    return None


@torch.inference_mode()
def compare_passes(model: Model, module: Any) -> None:
    """Check that a module means what the model does, and that passes are equal to the last bit."""
    view = model_of(module)
    if isinstance(view, str):
        assert view == "its activation has no native form"
        return
    assert model.architecture == view.architecture
    assert packing.why_not(model) == packing.why_not(view)
    if packing.why_not(view) is not None:
        return
    most = min(9, model.max_decoder_positions())
    source = np.array([[1, 1, 7, 8, 9, 2], [11, 12, 13, 14, 15, 2]])
    for form in ("fp32", "int8"):
        states = []
        for own in (model, view):
            packed = packing.packed(own, form)
            assert isinstance(packed, packing.Packed) and packed.encoder is not None
            encoded = packed.encoder(source)
            out = np.ascontiguousarray(encoded["encoder_out"][0].swapaxes(0, 1))
            cache = NativeCache(packed.decoder, out, encoded["encoder_padding_mask"][0])
            tokens = np.arange(2 * most).reshape(2, most) + 4
            hidden = native_pass(packed.decoder, cache, tokens)
            states += [out, hidden]
            if packed.decoder.projection is not None:
                states.append(packed.decoder.projection(hidden))
        half = len(states) // 2
        for mine, other in zip(states[:half], states[half:], strict=True):
            assert mine.tobytes() == other.tobytes()


@functools.cache
def demo(folder: Path) -> tuple[Any, Any, Model]:
    """A folder's task, its module, and its model."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(folder / "model.pt")], arg_overrides={"data": str(folder)}
    )
    own = Dictionary.read(folder / "dict.en.txt"), Dictionary.read(folder / "dict.de.txt")
    return task, models[0].float(), Model.read(folder / "model.pt", *own)


@pytest.mark.parametrize(
    "path",
    [p for f in FOLDERS for p in sorted(f.glob("*.pt"))],
    ids=lambda p: "-".join(p.parts[-2:]),
)
def test_committed_checkpoints_are_the_modules(path: Path, tmp_path: Path) -> None:
    """And their model files, which fairseq loads in the checkpoints' places."""
    task, verifier, base = demo(path.parent)
    assert base.source is not None and base.target is not None
    model = Model.read(path, base.source, base.target, base)
    model.save(tmp_path / "x")
    for one in (str(path), str(tmp_path / "x")):
        if path.stem == "heads":
            module = load_heads(one, verifier)
        elif path.stem in ("assistant", "drafter"):
            kind = "block_nat" if path.stem == "drafter" else "transformer"
            module = Drafters(task).load(one, kind, [verifier])
        else:
            names = {"data": str(path.parent), "source_lang": "en", "target_lang": "de"}
            models, _, _ = checkpoint_utils.load_model_ensemble_and_task([one], names)
            module = models[0].float()
        compare(model, module)


def read(task: Any, model: Any, arch: str, path: Path, form: str = "cfg") -> Model:
    """Save a model as fairseq-train does, with settings in one of its forms, and read it."""
    builders.save_drafter(task, model, path, arch)
    if form != "cfg":
        state = torch.load(path, weights_only=True)
        flags = vars(state["cfg"]["model"])
        state["cfg"] = None
        if form == "args":
            state["args"] = argparse.Namespace(**flags)
        else:
            flags["_name"] = flags.pop("arch")
            if form == "nested":  # as fairseq's later versions have them
                for part in ("encoder", "decoder", "quant_noise"):
                    names = [name for name in flags if name.startswith(f"{part}_")]
                    flags[part] = {n.removeprefix(f"{part}_"): flags.pop(n) for n in names}
            state["cfg"] = OmegaConf.create({"model": flags})
        torch.save(state, path)
    own = Model.read(path, *words(task))
    if form == "cfg":
        compare_files(own, task, path)
    return own


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in OTHERS])
def test_every_transformer_is_read(variant: str, tmp_path: Path) -> None:
    task = builders.task_for(variant)
    model = tiny_model(task, variant, torch.float32)
    for form in ("cfg", "args", "omegaconf", "nested"):
        own = read(task, model, VARIANTS[variant][0], tmp_path / "x.pt", form)
        compare(own, model)
        assert own.max_positions() == model.max_positions()


@pytest.mark.parametrize("options", [{}, {"start_rows": "learned"}, {"start_rows": "zero"}])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_order_is_read(
    preset: str, learned: bool, options: Mapping[str, Any], tmp_path: Path
) -> None:
    task = tiny_task()
    model = builders.tiny_reordered(
        task, f"{preset}_tiny", torch.float32, decoder_learned_pos=learned, **options
    )
    own = read(task, model, f"{preset}_tiny", tmp_path / "x.pt")
    compare(own, model)
    assert own.target_order == model.target_order
    assert own.max_decoder_positions() == model.max_decoder_positions()
    table = own.positions("decoder")
    module = model.decoder.embed_positions
    assert table is not None
    if hasattr(module, "table"):
        theirs = module.table(len(table)).detach().numpy()[: len(table)]
        np.testing.assert_allclose(table, theirs, atol=1e-5)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_name_is_one_of_fairseqs(arch: str) -> None:
    assert arch in ARCH_MODEL_REGISTRY


@pytest.mark.parametrize("attention", ["prefix_causal", "bidirectional"])
@pytest.mark.parametrize("options", [{}, {"soft_copy": True}, {"drafter_positions": "sinusoidal"}])
@pytest.mark.parametrize("shares", [False, True])
def test_drafters_of_masks_are_read(
    attention: str, options: Mapping[str, Any], shares: bool, tmp_path: Path
) -> None:
    task = tiny_task()
    verifier = tiny_model(task, "prenorm", torch.float32) if shares else None
    model = builders.tiny_drafter(task, attention, torch.float32, verifier=verifier, **options)
    own = read(task, model, "block_nat", tmp_path / "x.pt")
    compare(own, model)
    assert own.shares_encoder == shares and [own.masks(n) for n in (2, 9)] == [6, 9]


@pytest.mark.parametrize("variant", ["default", "share_all", "output_dim", "learned_positions"])
@pytest.mark.parametrize("options", [{}, {"head_layer": "per_head", "train_first_head": True}])
def test_heads_are_read(variant: str, options: Mapping[str, Any], tmp_path: Path) -> None:
    task = tiny_task()
    model = builders.tiny_blockwise(task, variant, torch.float32, **options)
    own = read(task, model, "blockwise_transformer", tmp_path / "x.pt")
    compare(own, model)
    given = torch.randn(3, model.block_heads.outer.size(1)).numpy()
    assert own.block_heads is not None
    states = [
        heads(given, [1, 2])
        for heads in (NativeHeads(own.block_heads, "fp32"), pack_heads(model.block_heads, "fp32"))
    ]
    assert states[0].tobytes() == states[1].tobytes()


def test_heads_are_packed_once_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(NativeHeads):
        def __init__(self, heads: HeadWeights, form: str) -> None:
            made.append(form)
            super().__init__(heads, form)

    monkeypatch.setattr(packing, "NativeHeads", Counted)
    model = load(DEMO)
    for text in ("A dog runs.", "A man sleeps."):
        model.translate([text], decoding="blockwise", drafter_path=str(DEMO / "heads.pt"))
    assert len(made) == 1


@pytest.mark.parametrize(("biased", "ends"), [(False, True), (True, True), (True, False)])
def test_imported_models_are_read(biased: bool, ends: bool, tmp_path: Path) -> None:
    task = tiny_task()
    args = argparse.Namespace(
        **SMALL,
        output_bias=biased,
        first_target_token="w3",
        no_source_end=not ends,
        share_decoder_input_output_embed=True,
    )
    ARCH_CONFIG_REGISTRY["imported_transformer"](args)
    model = ARCH_MODEL_REGISTRY["imported_transformer"].build_model(args, task)
    model.flags = args
    own = read(task, model, "imported_transformer", tmp_path / "x.pt")
    compare(own, model)
    assert own.architecture.first_target_token == "w3" and own.architecture.source_end == ends


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_types_become_fp32(dtype: torch.dtype, tmp_path: Path) -> None:
    task = tiny_task()
    model = tiny_model(task, dtype=dtype)
    own = read(task, model, "transformer", tmp_path / "x.pt")
    compare(own, model.float())


def test_older_names_are_read(tmp_path: Path) -> None:
    """Of fairseq 0.6: projections in one, norms in lists, the output's own name."""
    task = tiny_task()
    model = tiny_model(task, "prenorm", torch.float32)
    new = model.state_dict()
    old = {"encoder.version": new["encoder.version"], "decoder.version": torch.tensor([2.0])}
    norms = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")
    for name, weight in new.items():
        start, _, last = name.rpartition(".")
        if ".q_proj" in name:
            parts = [new[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            old[f"{start.removesuffix('.q_proj')}.in_proj_{last}"] = torch.cat(parts)
        elif any(norm in name for norm in norms) and name.startswith("decoder."):
            layer, _, norm = start.rpartition(".")
            old[f"{layer}.layer_norms.{norms.index(norm)}.{last}"] = weight
        elif name == "decoder.output_projection.weight":
            old["decoder.embed_out"] = weight
        elif ".k_proj" not in name and ".v_proj" not in name and not name.endswith("version"):
            old[name] = weight
    path = tmp_path / "x.pt"
    builders.save_drafter(task, model, path, "transformer", old)
    compare(Model.read(path, *words(task)), model)


@pytest.mark.parametrize("side, version", [("decoder", 1.0), ("decoder", 2.0), ("encoder", 1.0)])
def test_older_sides_have_no_last_norm(side: str, version: float, tmp_path: Path) -> None:
    task = tiny_task()
    model = tiny_model(task, "prenorm", torch.float32)
    given = model.state_dict() | {f"{side}.version": torch.tensor([version])}
    given = {name: w for name, w in given.items() if not name.startswith(f"{side}.layer_norm.")}
    builders.save_drafter(task, model, tmp_path / "x.pt", "transformer", given)
    own = Model.read(tmp_path / "x.pt", *words(task))
    assert own.architecture.decoder.final_norm == (side == "encoder")
    assert own.architecture.encoder is not None
    assert own.architecture.encoder.final_norm == (side == "decoder")
    compare_files(own, task, tmp_path / "x.pt")


def refusal(task: Any, model: Any, path: Path, arch: str = "transformer", **options: Any) -> str:
    """The line for a checkpoint with other settings."""
    model.flags = argparse.Namespace(**vars(model.flags) | options)
    with pytest.raises(UsageError) as caught:
        read(task, model, arch, path)
    line = str(caught.value)
    assert "\n" not in line and ": got " in line and "; allowed: " in line
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    "options, start",
    [
        ({"cross_self_attention": True}, "cross_self_attention: got True"),
        ({"scale_heads": True}, "scale_heads: got True"),
        ({"quant_noise_pq": 0.2}, "quant_noise_pq: got 0.2"),
        ({"encoder_layers_to_keep": "0,1"}, "encoder_layers_to_keep: got '0,1'"),
        ({"encoder_layers": "2"}, "encoder_layers: got '2'"),
        ({"encoder_layers": 1 << 40}, "encoder_layers: got 1099511627776"),
        ({"decoder_attention_heads": 5}, "attention_heads: got 5; allowed: a divisor of 16"),
        ({"decoder_embed_dim": 1 << 62}, "decoder_embed_dim: got 4611686018427387904"),
        ({"max_target_positions": 1e9}, "max_target_positions: got 1000000000.0"),
        ({"activation_fn": "sin"}, "activation_fn: got 'sin'"),
        ({"adaptive_softmax_cutoff": "__import__('os')"}, "adaptive_softmax_cutoff: got"),
        ({"adaptive_softmax_cutoff": [20, 12]}, "cutoffs: got (20, 12, 40)"),
        ({"decoder_layers": 3}, "decoder.layers.2.self_attn.q_proj.weight: got none"),
        ({"encoder_ffn_embed_dim": 33}, "encoder.layers.0.fc1.weight: got (32, 16)"),
        ({"encoder_normalize_before": True}, "encoder.layer_norm.weight: got none"),
    ],
)
def test_settings_of_no_use_are_a_line(
    options: Mapping[str, Any], start: str, tmp_path: Path
) -> None:
    task = tiny_task()
    line = refusal(task, tiny_model(task), tmp_path / "x.pt", **options)
    assert line.startswith(start)


def test_other_names_are_a_line(tmp_path: Path) -> None:
    task = tiny_task()
    assert refusal(task, tiny_model(task), tmp_path / "x.pt", "lstm").startswith("arch: got 'lstm'")


@pytest.mark.parametrize(
    "name, weight, start",
    [
        ("decoder.other", torch.zeros(2), "got 'decoder.other'"),
        (
            "decoder.embed_tokens.weight",
            torch.zeros(39, 16),
            "vocabularies: got 40 and 40 words; allowed: 40 and 39, as the model has",
        ),
        (
            "decoder.embed_tokens.weight",
            torch.zeros(40, 15),
            "decoder.embed_tokens.weight: got (40, 15)",
        ),
        (
            "encoder.layers.0.fc1.bias",
            torch.zeros(32).int(),
            "encoder.layers.0.fc1.bias: got int32",
        ),
        ("encoder.layers.0.fc1.bias", "x", "encoder.layers.0.fc1.bias: got str"),
        (7, torch.zeros(2), "got a weight named 7"),
    ],
)
def test_weights_of_no_use_are_a_line(name: Any, weight: Any, start: str, tmp_path: Path) -> None:
    task, path = tiny_task(), tmp_path / "x.pt"
    model = tiny_model(task)
    given = model.state_dict() | {name: weight}
    builders.save_drafter(task, model, path, "transformer", given)
    with pytest.raises(UsageError) as caught:
        Model.read(path, *words(task))
    line = str(caught.value)
    assert line.startswith(f"{path}: {start}") and "\n" not in line and "; allowed: " in line


def test_a_drafter_of_another_base_is_a_line(tmp_path: Path) -> None:
    _, _, base = demo(DEMO)
    assert base.source is not None and base.target is not None
    own = demo(FOLDERS[1])[2]
    path = FOLDERS[1] / "assistant.pt"
    assert own.source is not None and own.target is not None
    other = Model(own.architecture, {name: 1.1 * w for name, w in own.weights.items()})
    drafter = Model.read(path, own.source, own.target, own)
    drafter.save(tmp_path / "x")
    mark = [*Model.read(tmp_path / "x", own.source, own.target, own).marks][-1]
    nearly = Model(own.architecture, {**own.weights, mark: own.weights[mark] + 1})
    for wrong in (None, base, other, nearly):
        said = "got a drafter without its encoder" + ("" if wrong is None else ", of another model")
        for given in (path, tmp_path / "x"):
            with pytest.raises(UsageError, match=f"{said}; allowed: "):
                Model.read(given, own.source, own.target, wrong)


def test_a_drafter_without_marks_of_its_base_is_a_line(tmp_path: Path) -> None:
    own = demo(FOLDERS[1])[2]
    assert own.source is not None and own.target is not None
    drafter = Model.read(FOLDERS[1] / "assistant.pt", own.source, own.target, own)
    weights = {n: w for n, w in drafter.weights.items() if n.startswith("decoder.")}
    file.write(tmp_path / "x", drafter.architecture, weights, None)
    with pytest.raises(UsageError, match="a drafter without its encoder, of another"):
        Model.read(tmp_path / "x", own.source, own.target, own)


@pytest.mark.parametrize("part", ["file", "pickle", "model file"])
@pytest.mark.parametrize("examples", [100, pytest.param(1500, marks=pytest.mark.slow)])
def test_a_spoilt_checkpoint_is_a_model_or_a_line(part: str, examples: int, tmp_path: Path) -> None:
    task, path = tiny_task(), tmp_path / "x.pt"
    model = tiny_model(task, "adaptive_softmax", torch.float16)
    builders.save_drafter(task, model, path)
    state = torch.load(path, weights_only=True)
    flags = {**vars(state["cfg"]["model"]), "arch": "transformer"}
    torch.save({"cfg": {"model": flags}, "model": state["model"]}, path)
    pair = words(task)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if part == "model file":
        Model.read(path, *pair).save(path)
    whole = path.read_bytes()
    outcomes = {"read": 0, "refused": 0}

    def spoilt(given: list[Change]) -> None:
        if part != "pickle":
            path.write_bytes(spoil(whole, given))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in members.items():
                    changed = spoil(content, given) if name.endswith("/data.pkl") else content
                    archive.writestr(name, changed)
        try:
            own = Model.read(path, *pair)
        except UsageError as error:
            line = str(error)
            assert line.startswith(f"{path}: ") and "\n" not in line and len(line) < 1000
            outcomes["refused"] += 1
            return
        assert {n: w.shape for n, w in own.weights.items()} == own.architecture.shapes()
        outcomes["read"] += 1

    def work() -> dict[str, int]:
        settings = hypothesis.settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        settings(hypothesis.given(changes(is_json=False))(spoilt))()
        return outcomes

    result = in_a_child(work, 120)
    assert isinstance(result, dict), result
    assert min(result.values()) > 0, result


# ---- the model file ----------------------------------------------------------------------------


@pytest.mark.parametrize("stem", ["model", "assistant", "drafter", "heads", "ibdecoder_sa"])
def test_a_model_file_stands_alone(stem: str, tmp_path: Path) -> None:
    """It has the same record, weights and hash, and as few bytes; safetensors reads it, too."""
    _, _, base = demo(DEMO)
    assert base.source is not None and base.target is not None
    model = Model.read(DEMO / f"{stem}.pt", base.source, base.target, base)
    model.save(tmp_path / "x")
    assert (tmp_path / "x").stat().st_size < (DEMO / f"{stem}.pt").stat().st_size
    own = Model.read(tmp_path / "x", base.source, base.target, base)
    assert own.architecture == model.architecture and own.hash == model.hash
    theirs = safetensors.torch.load_file(tmp_path / "x")
    assert own.weights.keys() == model.weights.keys() == theirs.keys() - own.marks.keys()
    for name, weight in own.weights.items():
        assert weight.tobytes() == model.weights[name].tobytes()
        assert weight.tobytes() == theirs[name].float().numpy().tobytes()


def test_a_model_file_is_mapped(tmp_path: Path) -> None:
    """But for weights that are in 16 bits, as these hold them."""
    task = tiny_task()
    own = read(task, tiny_model(task, dtype=torch.float32), "transformer", tmp_path / "x.pt")
    Model(own.architecture, {**own.weights, BIAS: np.ones(32)}).save(tmp_path / "x")
    for name, weight in Model.read(tmp_path / "x", *words(task)).weights.items():
        assert weight.flags.writeable == (name == BIAS), name


@pytest.mark.parametrize(
    "values, dtype",
    [
        ([1 + 2.0**-10, -0.0, 2.0**-24], "F16"),
        ([1.0, -0.0, 2.0**100], "BF16"),
        ([65504.0], "F16"),
        ([65505.0], "F32"),
        ([0.1, 1.0], "F32"),
        ([1 + 2.0**-8], "F16"),
        ([1 + 2.0**-20], "F32"),
        ([float("inf"), float("nan")], "BF16"),
        ([float("nan"), 0.1], "F32"),
        ([], "BF16"),
    ],
)
def test_weights_are_written_in_16_bits_that_hold_them(
    values: list[float], dtype: str, tmp_path: Path
) -> None:
    weight = np.array(values, np.float32)
    file.write(tmp_path / "x", demo(DEMO)[2].architecture, {"a": weight}, None)
    header, _ = header_of((tmp_path / "x").read_bytes())
    assert header["a"]["dtype"] == dtype
    assert as_fp32(file.tensors(tmp_path / "x")["a"]).tobytes() == weight.tobytes()


def test_a_model_file_of_weights_packed_alone(tmp_path: Path) -> None:
    """Files of packed maps and it decode as all weights do, and have their hash."""
    _, _, model = demo(DEMO)
    assert model.source is not None and model.target is not None
    packing.save_packed(model, "int8", tmp_path / "packed")
    model.save(tmp_path / "x", packed_only=True)
    own = Model.read(tmp_path / "x", model.source, model.target)
    assert own.is_packed_only and not model.is_packed_only and own.hash == model.hash
    assert (tmp_path / "x").stat().st_size < 0.7 * (DEMO / "model.pt").stat().st_size * 2
    packing.offer(own, "int8", tmp_path / "packed")
    source = np.array([[7, 8, 9, 2]])
    states = []
    for each in (own, model):
        packed = packing.packed(each, "int8")
        assert isinstance(packed, packing.Packed) and packed.encoder is not None
        states.append(packed.encoder(source)["encoder_out"][0])
    assert states[0].tobytes() == states[1].tobytes()
    with pytest.raises(UsageError, match="--engine-dtype: got 'fp32'; allowed: int8, as this"):
        packing.packed(own, "fp32")


def test_encoders_of_models_are_the_same_by_their_weights(tmp_path: Path) -> None:
    _, module, model = demo(DEMO)
    assert model.source is not None and model.target is not None
    model.save(tmp_path / "packed", packed_only=True)
    again = Model.read(tmp_path / "packed", model.source, model.target)
    assert same_encoder(model, again) and same_encoder(again, model)
    changed = dict(model.weights)
    changed[BIAS] = changed[BIAS] + np.float32(0.1)
    other = Model(model.architecture, changed)
    assert not same_encoder(model, other) and not same_encoder(other, model)
    layers = model.architecture.encoder
    assert layers is not None
    fewer = replace(model.architecture, encoder=replace(layers, heads=layers.heads // 2))
    assert not same_encoder(model, Model(fewer, model.weights))
    move_to([model], again)  # it stays where it is
    with pytest.raises(UsageError, match=r"--path: got 'transformer'; allowed: one model of --a"):
        check_models("nat", [model], None)


def test_fairseqs_search_decodes_modules_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, model = demo(DEMO)
    for options, asked in (({"decoding": "beam"}, "--decoding beam"), ({"audit": True}, "--audit")):
        config = DecodingConfig(**{"decoding": "greedy", **options})
        with pytest.raises(UsageError, match=f"^{asked} needs models that fairseq has loaded"):
            build_decoder([model], config)
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "fairseq", None)
            line = rf"^{asked} needs fairseq; install fairseq_paradec\[fairseq\]$"
            with pytest.raises(UsageError, match=line):
                build_decoder([module], config)


@pytest.mark.parametrize("decoding", ["greedy", "multiword_beam"])
def test_an_ensemble_without_torch_is_a_line(
    decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, model = demo(DEMO)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "fairseq_paradec.engine.torch.ensemble", raising=False)
    with pytest.raises(UsageError, match=r"^an ensemble needs torch; install fairseq_paradec\[t"):
        build_decoder([model, model], configure(decoding=decoding))


def test_a_speed_profile_knows_a_model_by_its_weights() -> None:
    _, _, model = demo(DEMO)
    own = fingerprint(model)
    assert own == fingerprint(Model(model.architecture, dict(model.weights)))
    assert own["parameters"] == sum(weight.size for weight in model.weights.values())
    changed = dict(model.weights)
    changed[BIAS] = changed[BIAS] + np.float32(0.1)
    other = fingerprint(Model(model.architecture, changed))
    assert own.pop("digest") != other.pop("digest") and own == other


def test_weights_of_16_bits_are_widened(tmp_path: Path) -> None:
    """As other tools may write them."""
    task = tiny_task()
    own = read(task, tiny_model(task, dtype=torch.float16), "transformer", tmp_path / "x.pt")
    own.save(tmp_path / "x")
    with safetensors.safe_open(tmp_path / "x", "pt") as opened:
        metadata = opened.metadata()
    halves = {name: torch.tensor(weight).bfloat16() for name, weight in own.weights.items()}
    safetensors.torch.save_file(halves, tmp_path / "y", metadata=metadata)
    wide = Model.read(tmp_path / "y", *words(task))
    for name, weight in wide.weights.items():
        assert weight.tobytes() == halves[name].float().numpy().tobytes()


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a model file, and what follows it."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def rewritten(content: bytes, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    """A model file with another header."""
    header, rest = header_of(content)
    about = json.loads(header["__metadata__"]["paradec"])
    change(header, about)
    if "__metadata__" in header:
        header["__metadata__"]["paradec"] = json.dumps(about)
    line = json.dumps(header).encode()
    return len(line).to_bytes(8, "little") + line + rest


BROKEN: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "format": (lambda header, about: about.update(format=2), "another version"),
    "no metadata": (lambda header, about: header.pop("__metadata__"), "does not say"),
    "type": (lambda header, about: header[BIAS].update(dtype="I4"), "of no type or size"),
    "whole numbers": (lambda header, about: header[BIAS].update(dtype="I32"), "got int32"),
    "shape": (lambda header, about: header[BIAS].update(shape=[-1]), "of no type or size"),
    "size": (lambda header, about: header[BIAS].update(shape=[1 << 62]), "of another size"),
    "no place": (lambda header, about: header[BIAS].update(data_offsets=[0]), "in no place"),
    "place": (lambda header, about: header[BIAS].update(data_offsets=[0, 128]), "another size"),
    "missing": (lambda header, about: header.pop([*header][-1]), "bytes that are no weights"),
    "field": (lambda header, about: about["architecture"].pop("heads"), "no Architecture as"),
    "more": (lambda header, about: about["architecture"].update(x=1), "no Architecture as"),
    "twice": (lambda header, about: None, "a name that comes twice"),
    "kind": (lambda header, about: about["architecture"].update(kind="x"), "kind: got 'x'"),
    "words": (
        lambda header, about: about["architecture"].update(target_words=True),
        "another type",
    ),
    "heads": (
        lambda header, about: about["architecture"]["decoder"].update(heads=5),
        "attention_heads: got 5",
    ),
    "count": (
        lambda header, about: about["architecture"]["decoder"].update(count=1 << 60),
        "layers: got 1152921504606846976",
    ),
    "dim": (
        lambda header, about: about["architecture"]["encoder"].update(dim=32),
        "encoder.embed_tokens.weight: got (40, 16)",
    ),
    "scale": (
        lambda header, about: about["architecture"]["decoder"].update(scale=float("inf")),
        "scale inf, of another type",
    ),
    "order": (
        lambda header, about: about["architecture"].update(order={"directions": 1 << 23}),
        "allowed: steps as long as the positions",
    ),
    "option": (lambda header, about: about["architecture"].update(order={"x": 1}), "'x': got 1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_model_file_that_lies_is_a_line(name: str, tmp_path: Path) -> None:
    task = tiny_task()
    own = read(task, tiny_model(task), "transformer", tmp_path / "x.pt")
    own.save(tmp_path / "x")
    change, part = BROKEN[name]
    content = rewritten((tmp_path / "x").read_bytes(), change)
    if name == "twice":  # as no dict can say it: a name of the same length becomes another's
        content = content.replace(b"decoder.layers.0.fc1.bias", BIAS.encode())
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        Model.read(tmp_path / "x", *words(task))
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / 'x'}: ") and part in line and "\n" not in line
    assert "got " in line and "; allowed: " in line


def test_a_truncated_model_file_is_a_line(tmp_path: Path) -> None:
    task, path = tiny_task(), tmp_path / "x"
    read(task, tiny_model(task), "transformer", tmp_path / "x.pt").save(path)
    whole = path.read_bytes()
    for length in (*range(0, 40), 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError, match="got .*; allowed: "):
            Model.read(path, *words(task))


def test_a_model_file_of_other_vocabularies_is_a_line(tmp_path: Path) -> None:
    task = tiny_task()
    read(task, tiny_model(task), "transformer", tmp_path / "x.pt").save(tmp_path / "x")
    with pytest.raises(UsageError, match="vocabularies: got 41 and 41 words; allowed: 40 and 40"):
        Model.read(tmp_path / "x", *words(tiny_task(size=41)))


@pytest.mark.parametrize("kind", ["checkpoint", "model file"])
@pytest.mark.parametrize("change", ["fewer words", "other order"])
def test_shared_vectors_need_equal_dictionaries(change: str, kind: str, tmp_path: Path) -> None:
    """One set of vectors stands for both vocabularies; fairseq refuses two that differ, too."""
    task, path = tiny_task(), tmp_path / "x.pt"
    own = read(task, tiny_model(task, "share_all"), VARIANTS["share_all"][0], path)
    source, _ = words(task)
    symbols = source.symbols[source.nspecial :]
    other = Dictionary.of_words(symbols[:-8] if change == "fewer words" else symbols[::-1])
    if kind == "model file":
        path = tmp_path / "x"
        if change == "fewer words":  # what its record says fits the dictionaries
            own.architecture = replace(own.architecture, target_words=len(other))
        own.save(path)
    with pytest.raises(UsageError, match="dictionaries: got two that differ; allowed: "):
        Model.read(path, source, other)


@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8", "bfloat16"])
def test_a_mapped_weight_is_written_in_blocks_and_its_memory_given_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was released is read anew; a type of the file's own is kept where it holds all."""
    monkeypatch.setattr(file, "_BLOCK", 1000)
    numbers = np.random.default_rng(1).normal(size=(90, 77)).astype("<f4")
    given: np.ndarray = numbers
    if kind == "bfloat16":
        given = (numbers.view("<u4") >> 16).astype("<u2").view(BFLOAT16)
    else:
        given = numbers.astype(kind)
    wanted = as_fp32(given).copy()
    architecture = demo(DEMO)[2].architecture
    file.write(tmp_path / "one", architecture, {"a": given, "b": numbers}, None)
    weights = file.read(tmp_path / "one")[1]
    file.write(tmp_path / "two", architecture, weights, None)
    for weight in weights.values():
        file.release(weight)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    again = file.read(tmp_path / "two")[1]
    for found in (weights, again):
        assert np.array_equal(as_fp32(found["a"]), wanted)
        assert np.array_equal(as_fp32(found["b"]), numbers)
    stored = {"<f2": "<f2", "bfloat16": BFLOAT16}.get(kind, "<f4")
    assert again["a"].dtype == np.dtype(stored)
