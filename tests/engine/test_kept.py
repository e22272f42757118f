"""Packed weights in the user's cache folder: found again, bounded, and never in the way."""

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import builders
from support.builders import tiny_task
from support.commands import DEMO

from fairseq_paradec.engine.native import kept, packing
from fairseq_paradec.engine.native.packing import Packed
from fairseq_paradec.engine.torch.views import model_of
from fairseq_paradec.engine.torch.watch import keep_weights
from fairseq_paradec.files import Checked, stamp_of
from fairseq_paradec.model.dictionary import Dictionary
from fairseq_paradec.model.model import Model

SOURCE = np.array([[7, 8, 9, 10, 2]])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of packed weights of a user, of models of any size."""
    packing.library()  # which may be in the user's own cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "LEAST", 0)
    return tmp_path / "fairseq_paradec" / "packed"


def demo() -> Model:
    """The demo's model, read anew."""
    words = (Dictionary.read(DEMO / f"dict.{language}.txt") for language in ("en", "de"))
    return Model.read(DEMO / "model.pt", *words)


def states(model: Model, form: str = "int8") -> bytes:
    """What an encoder gives, and whether its maps were mapped, is in ``maps``."""
    packed = packing.packed(model, form)
    assert isinstance(packed, Packed) and packed.encoder is not None
    return packed.encoder(SOURCE)["encoder_out"][0].tobytes()


def maps(model: Model, form: str = "int8") -> bool:
    """Whether a model's packed weights are a file's."""
    packed = packing.packed(model, form)
    assert isinstance(packed, Packed)
    shelf = packed.decoder.stack.shelf
    return shelf is not None and shelf.reads


def test_a_second_model_maps_what_the_first_packed(folder: Path) -> None:
    first, second = demo(), demo()
    before = states(first)
    (file,) = folder.iterdir()
    assert maps(first), "both share the file's pages"
    about = file.stat().st_mtime_ns
    os.utime(file, ns=(1, 1))
    assert states(second) == before and maps(second)
    assert [*folder.iterdir()] == [file]
    assert file.stat().st_mtime_ns >= about, "it is used, and not the oldest"
    states(first, "bf16")
    assert len([*folder.iterdir()]) == 2


def test_other_weights_are_another_file(folder: Path) -> None:
    states(demo())
    module = builders.tiny_model(tiny_task(), dtype=torch.float32)
    keep_weights(module)
    model = model_of(module)
    assert isinstance(model, Model)
    before = states(model)
    with torch.no_grad():
        module.encoder.layers[0].fc1.weight.mul_(2)
    assert states(model) != before
    assert len([*folder.iterdir()]) == 3


def test_another_record_is_another_file(folder: Path) -> None:
    """Heads are padded to whole vectors: weights of a size may lie elsewhere in a map."""
    model = demo()
    decoder = replace(model.architecture.decoder, heads=8)
    other = Model(replace(model.architecture, decoder=decoder), model.weights)
    assert states(model) == states(other)
    assert len([*folder.iterdir()]) == 2


def checked(path: Path) -> Model:
    """The demo's model of a file whose hash a folder knows."""
    words = (Dictionary.read(DEMO / f"dict.{language}.txt") for language in ("en", "de"))
    model = Model.read(path, *words)
    model.checked = Checked(path, stamp_of(path), "0123456789abcdef" * 4)
    return model


def test_a_file_whose_hash_is_known_is_not_read(folder: Path, tmp_path: Path) -> None:
    """Unless it has changed since: then the weights say what they are."""
    path = Path(shutil.copy(DEMO / "model.pt", tmp_path))
    wanted, model = states(demo(), "fp32"), checked(path)
    before = {*folder.iterdir()}
    assert states(model, "fp32") == wanted
    (file,) = {*folder.iterdir()} - before
    assert file.name.startswith("0123456789abcdef-fp32-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "digest", None)
        assert states(second := checked(path), "fp32") == wanted and maps(second, "fp32")
    widened = sum(weight.size for weight in second.weights._wide.values())
    assert 0 < widened < sum(weight.size for weight in second.weights.stored.values()) / 2
    second = checked(path)
    os.utime(path, ns=(1, 1))
    assert states(second, "fp32") == wanted and maps(second, "fp32")
    assert second.checked is not None and not second.checked.is_unchanged
    assert {*folder.iterdir()} == before | {file}


def test_a_file_that_changes_while_it_is_packed_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(DEMO / "model.pt", tmp_path))
    model, pack = checked(path), packing._pack

    def packed(*given: Any) -> Packed:
        os.utime(path, ns=(1, 1))
        return pack(*given)

    monkeypatch.setattr(packing, "_pack", packed)
    states(model)
    assert not folder.exists() and not maps(model)


def test_weights_that_may_change_are_not_kept(folder: Path) -> None:
    module = builders.tiny_model(tiny_task(), dtype=torch.float32)
    model = model_of(module)
    assert isinstance(model, Model)
    states(model)
    assert not folder.exists()


def test_small_models_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LEAST", 1 << 40)
    states(demo())
    assert not folder.exists()


def test_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states(demo(), "int8")
    (first,) = folder.iterdir()
    states(demo(), "int4")
    second = next(file for file in folder.iterdir() if file != first)
    os.utime(second, ns=(1, 1))
    monkeypatch.setattr(kept, "MOST", first.stat().st_size + 2 * second.stat().st_size)
    states(demo(), "bf16")
    assert not second.exists()
    assert sum(file.stat().st_size for file in folder.iterdir()) <= kept.MOST
    monkeypatch.setattr(kept, "MOST", 1000)
    left = {*folder.iterdir()}
    assert not maps(demo(), "fp32"), "one that is too large"
    assert {*folder.iterdir()} == left


def test_a_damaged_file_is_packed_again(folder: Path) -> None:
    before = states(demo())
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for content in (b"", whole[:1000], whole[:-1], b"\xff" * 5000):
        file.write_bytes(content)
        model = demo()
        assert states(model) == before and maps(model)
        assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where the folder would be")
    with caplog.at_level(logging.INFO):
        models = demo(), demo()
        assert states(models[0]) == states(models[1])
    assert not maps(models[0])
    said = [record.getMessage() for record in caplog.records if "not kept" in record.getMessage()]
    assert len(said) == 1 and str(folder) in said[0] and "\n" not in said[0]
