"""Packed weights in a model folder: mapped, shared by processes, never misread."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import DEMO, ROOT
from support.tables import run

import fairseq_paradec
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding.provenance import weights_hash
from fairseq_paradec.engine.native import shelf
from fairseq_paradec.errors import UsageError
from fairseq_paradec.files import checksum
from fairseq_paradec.model.dictionary import Dictionary
from fairseq_paradec.model.model import Model
from fairseq_paradec.plugin.tasks.loading import load_paths

SENTENCES = (DEMO / "raw" / "demo.en").read_text(encoding="utf-8").splitlines()[:5]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder, with weights in two forms."""
    folder = tmp_path_factory.mktemp("packed") / "model"
    made = [str(DEMO), str(folder), "--path", str(DEMO / "model.pt"), "--tokenizer", "moses"]
    more = ["--bpe", "subword_nmt", "--bpe-codes", str(DEMO / "codes.bpe")]
    assert paradec(["pack", *made, *more, "--engine-dtype", "int8,bf16"]) == 0
    return folder


def test_a_model_folder_is_packed_with_what_it_says(packed: Path, tmp_path: Path) -> None:
    """Its settings, and what splits text, unless flags say it; also in place."""
    given = tmp_path / "given"
    shutil.copytree(packed, given)
    about = json.loads((given / "paradec.json").read_text())
    about["settings"] = {"max_len_b": 3, "repetition_penalty": 2.0}
    (given / "paradec.json").write_text(json.dumps(about))
    words = [str(given), "--path", str(given / "model.safetensors"), "--engine-dtype", "bf16"]
    for out in (tmp_path / "out", given):
        assert paradec(["pack", words[0], str(out), *words[1:]]) == 0
        made = json.loads((out / "paradec.json").read_text())
        for key in ("settings", "tokenizer", "bpe"):
            assert made[key] == about[key]
        assert list(made["packed"]) == ["bf16"]
        assert (
            max(len(one.text.split()) for one in fairseq_paradec.load(out).results(SENTENCES)) < 5
        )
    other = tmp_path / "other"
    assert paradec(["pack", words[0], str(other), *words[1:], "--tokenizer", "space"]) == 0
    made = json.loads((other / "paradec.json").read_text())
    assert (made["tokenizer"], made["bpe"], made["settings"]) == ("space", None, about["settings"])


PACK = (
    "import sys; from fairseq_paradec.cli.main import main; sys.exit(main(['pack', *sys.argv[1:]]))"
)


def outputs(folder: Path, dtype: str) -> list[Any]:
    return decoded(fairseq_paradec.load(folder), dtype)


def decoded(model: Any, dtype: str) -> list[Any]:
    found = model.results(SENTENCES, decoding="greedy", engine_dtype=dtype)
    return [(one.text, one.score) for one in found]


def mapped(name: str) -> bool:
    """Whether this process has mapped a file of this name."""
    return any(line.rstrip().endswith(name) for line in open("/proc/self/maps", encoding="utf-8"))


@pytest.mark.parametrize("dtype", ["int8", "bf16", "fp32"])
def test_outputs_are_those_of_weights_packed_in_memory(packed: Path, dtype: str) -> None:
    """Of fp32, which is not in the folder, too."""
    model = fairseq_paradec.load(packed)
    assert decoded(model, dtype) == outputs(DEMO, dtype)
    if dtype != "fp32":
        assert mapped(str(packed / f"packed.{dtype}"))


SHARED = """
import subprocess, sys
import fairseq_paradec
model = fairseq_paradec.load(sys.argv[1])  # which has the file as long as it is there
found = list(model.results(["A dog runs."], decoding="greedy", engine_dtype="int8"))
if len(sys.argv) > 2:  # the second process, while the first has the file
    smaps = open("/proc/self/smaps").read().split("packed.int8\\n", 1)[1]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in smaps.splitlines()[:20]
             if line.endswith(" kB")}
    # "dirty" is a page that the system has not written to the disk yet
    shared = sizes["Shared_Clean"] + sizes["Shared_Dirty"]
    assert shared > 1000 and sizes["Anonymous"] == 0 == sizes["Private_Dirty"], sizes
    assert shared >= 0.9 * sizes["Rss"], sizes
else:
    subprocess.run([sys.executable, sys.argv[0], sys.argv[1], "second"], check=True)
print("REPORT", found[0].text)
"""


def test_two_processes_share_one_copy(packed: Path, tmp_path: Path) -> None:
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    done = subprocess.run(
        [sys.executable, str(script), str(packed)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and done.stdout.count("REPORT") == 2, done.stderr


def changed(packed: Path, folder: Path, change: Any) -> Path:
    """A copy of the folder with other packed weights, which ``paradec.json`` knows."""
    shutil.copytree(packed, folder)
    file, index = folder / "packed.int8", folder / "paradec.json"
    file.write_bytes(change(file.read_bytes()))
    content = json.loads(index.read_text("utf-8"))
    content["sha256"]["packed.int8"] = checksum(file)
    index.write_text(json.dumps(content), "utf-8")
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda old: old.replace(b'"format": 1', b'"format": 2', 1), "it is not of format 1"),
        (lambda old: old.replace(b"tiles ", b"tilez ", 1), "another instruction set's"),
        (lambda old: old[: len(old) // 2], "it is cut short"),
        (lambda old: old[:10], "it cannot be read"),
        (lambda old: old.replace(b'"maps": [[', b'"maps": [[1', 1), "it is cut short"),
    ],
)
def test_what_does_not_fit_is_packed_again(
    packed: Path, tmp_path: Path, change: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = changed(packed, tmp_path / "model", change)
    with caplog.at_level(logging.WARNING):
        assert outputs(folder, "int8") == outputs(DEMO, "int8")
    (said,) = [one.getMessage() for one in caplog.records if "packed again" in one.getMessage()]
    assert reason in said and "\n" not in said


def test_a_file_that_has_changed_is_refused(packed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(packed, folder)
    with open(folder / "packed.int8", "r+b") as file:
        file.truncate(5000)
    with pytest.raises(fairseq_paradec.errors.UsageError, match="packed.int8.*another sha256"):
        fairseq_paradec.load(folder)


def test_weights_that_have_changed_are_packed_again(packed: Path) -> None:
    model = fairseq_paradec.load(packed)
    model._core = None  # fairseq's modules decode
    for weight in model.models[0].parameters():
        with torch.no_grad():
            weight.zero_()
    found = list(model.results(SENTENCES[:1], decoding="greedy", engine_dtype="int8"))
    assert found[0].text != outputs(DEMO, "int8")[0][0]


def test_maps_of_another_model_are_not_taken() -> None:
    with pytest.raises(ValueError, match="those of another model"):
        shelf.Shelf("int8", 2, None, [[32, 64]]).place(32, 65, 2)
    with pytest.raises(ValueError, match="those of another model"):
        shelf.Shelf("drafts", 3, None, [[32, 64]]).place(32, 64, 4)


def test_a_mistake_is_named(capsys: Any, tmp_path: Path) -> None:
    arguments = [str(DEMO), str(tmp_path / "out"), "--path", str(DEMO / "model.pt")]
    status, _, err = run(capsys, "pack", *arguments, "--engine-dtype", "int4")
    assert status == 2 and "--engine-dtype: got 'int4'; allowed: fp32, bf16, int8" in err


# ---- packed weights alone ------------------------------------------------------------------------


SMALL = DEMO.with_name("demo-small.en-de")


@pytest.fixture(scope="module", params=["model file", "checkpoint"])
def alone(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder, with weights in two forms and no others: today's, and an earlier one."""
    folder = tmp_path_factory.mktemp("alone") / "model"
    made = [str(DEMO), str(folder), "--path", str(DEMO / "model.pt"), "--tokenizer", "moses"]
    more = ["--bpe", "subword_nmt", "--bpe-codes", str(DEMO / "codes.bpe")]
    more += ["--drafter-path", str(DEMO / "drafter.pt")]
    assert paradec(["pack", *made, *more, "--engine-dtype", "int8,bf16", "--packed-only"]) == 0
    if request.param == "checkpoint":
        as_before(folder)
    return folder


def as_before(folder: Path) -> None:
    """Give a folder the checkpoint that ``paradec pack --packed-only`` wrote before model files."""
    state = torch.load(DEMO / "model.pt", weights_only=True)
    (model,), _, _ = load_paths([str(DEMO / "model.pt")], data=str(DEMO))
    linear = (name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear))
    names = [f"{name}.weight" for name in linear if ".layers." in name]
    kept = {name: weight for name, weight in model.state_dict().items() if name not in names}
    about = {"names": names, "hash": weights_hash(model)}
    torch.save(state | {"model": kept, "packed_only": about}, folder / "model.pt")
    (folder / "model.safetensors").unlink()
    content = json.loads((folder / "paradec.json").read_text("utf-8"))
    content["model"] = "model.pt"
    del content["sha256"]["model.safetensors"]
    content["sha256"]["model.pt"] = checksum(folder / "model.pt")
    (folder / "paradec.json").write_text(json.dumps(content), "utf-8")


def test_the_model_has_no_map_of_a_layer(alone: Path) -> None:
    words = [Dictionary.read(alone / f"dict.{language}.txt") for language in ("en", "de")]
    (path,) = alone.glob("model.*")
    model, whole = Model.read(path, *words), Model.read(DEMO / "model.pt", *words)
    assert model.is_packed_only and model.hash == whole.hash
    gone = whole.weights.keys() - model.weights.keys()
    assert gone == {n for n, w in whole.weights.items() if ".layers." in n and w.ndim == 2}


@pytest.mark.parametrize(
    "options",
    [
        {"decoding": "greedy"},
        {"decoding": "self_draft", "engine_dtype": "bf16"},
        {"decoding": "multiword_beam", "beam": 3},
        {"decoding": "assisted", "drafter_path": str(DEMO / "assistant.pt")},
        {"decoding": "gad", "drafter_path": str(DEMO / "drafter.pt")},
        {"decoding": "blockwise", "drafter_path": str(DEMO / "heads.pt"), "engine_dtype": "bf16"},
        {},
    ],
)
def test_weights_packed_alone_decode_as_all_weights_do(
    alone: Path, options: dict[str, Any], tmp_path: Path
) -> None:
    """By the first dtype of the list unless another is given; records have the model's hash."""
    runs = []
    for folder, dtype in ((alone, {}), (DEMO, {"engine_dtype": "int8"})):
        stats = tmp_path / f"{len(runs)}.jsonl"
        given: dict[str, Any] = dtype | options | {"stats_file": str(stats)}
        found = fairseq_paradec.load(folder).results(SENTENCES, **given)
        texts = [(one.text, one.score) for one in found]
        models = {json.loads(line)["model"] for line in stats.read_text("utf-8").splitlines()[1:]}
        runs.append((texts, models))
    assert runs[0] == runs[1] and len(runs[0][1]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "torch"}, "--engine torch with --engine-dtype int8 needs torch's weights"),
        ({"engine_dtype": "fp32"}, "got 'fp32'; allowed: int8 or bf16, as this model folder"),
        ({"engine_dtype": "fp16"}, "--engine-dtype fp16 needs torch's weights"),
        ({"decoding": "greedy", "audit": True}, "--audit needs torch's weights"),
        ({"decoding": "beam", "engine_dtype": None}, "got 'fp32'; allowed: int8 or bf16, as this"),
        (
            {"decoding": "beam", "engine_dtype": None, "match_source_len": True},
            "--decoding beam needs torch's weights",
        ),
    ],
)
def test_what_needs_torchs_weights_is_refused(
    alone: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        fairseq_paradec.load(alone).translate(SENTENCES[:1], **options)
    assert "\n" not in str(error.value)


def test_a_drafter_without_its_encoder_drafts_for_weights_packed_alone(tmp_path: Path) -> None:
    """The verifier encodes for both."""
    models = ["--path", str(SMALL / "model.pt"), "--drafter-path", str(SMALL / "assistant.pt")]
    bpe = ["--bpe", "subword_nmt", "--bpe-codes", str(SMALL / "codes.bpe"), "--tokenizer", "moses"]
    made = [str(SMALL), str(tmp_path / "x"), *models, *bpe]
    assert paradec(["pack", *made, "--engine-dtype", "int8", "--packed-only"]) == 0
    options: dict[str, Any] = {"decoding": "assisted", "engine_dtype": "int8"}
    found, wanted = (
        [(one.text, one.score, one.passes) for one in model.results(SENTENCES, **options)]
        for model in map(fairseq_paradec.load, (tmp_path / "x", SMALL))
    )
    assert found == wanted


def test_loaders_of_all_weights_refuse_a_model_without_maps(
    alone: Path, tmp_path: Path, capsys: Any
) -> None:
    (path,) = alone.glob("model.*")
    with pytest.raises(UsageError, match="a checkpoint with all weights"):
        load_paths([str(path)], data=str(alone))
    status, _, err = run(capsys, "pack", str(DEMO), str(tmp_path / "out"), "--path", str(path))
    assert status == 2 and "a model with all weights" in err and err.count("\n") == 1
    with pytest.raises(UsageError, match="a checkpoint with all weights"):
        fairseq_paradec.load(alone).models[0]
    with pytest.raises(UsageError, match="--device: got 'cuda'; allowed: cpu, for this folder's"):
        fairseq_paradec.load(alone, device="cuda")


def test_weights_packed_alone_for_another_cpu_are_refused(alone: Path, tmp_path: Path) -> None:
    folder = changed(alone, tmp_path / "model", lambda old: old.replace(b"tiles ", b"tilez ", 1))
    with pytest.raises(UsageError, match="another instruction set's.*pack it here again"):
        outputs(folder, "int8")
    assert outputs(folder, "bf16") == outputs(DEMO, "bf16")


def test_mistakes_of_packing_alone_are_named(capsys: Any, tmp_path: Path) -> None:
    given = ["--path", str(DEMO / "model.pt"), "--packed-only"]
    status, _, err = run(capsys, "pack", str(DEMO), str(tmp_path / "out"), *given)
    assert status == 2 and "--packed-only needs --engine-dtype" in err
    status, _, err = run(capsys, "pack", str(DEMO), str(DEMO), *given, "--engine-dtype", "int8")
    assert status == 2 and "allowed: a new folder with --packed-only" in err


@pytest.mark.parametrize("name, dtype", [("packed.int8", "int8"), ("model.safetensors", "fp32")])
def test_weights_that_are_written_over_are_refused(
    name: str, dtype: str, packed: Path, tmp_path: Path
) -> None:
    """The file of a loaded model may go or be another one; its maps must not change."""
    folder = shutil.copytree(packed, tmp_path / "model")
    words = [Dictionary.read(folder / f"dict.{language}.txt") for language in ("en", "de")]
    model = Model.read(folder / "model.safetensors", *words)
    model.weights = {key: weight * np.float32(1.0001) for key, weight in model.weights.items()}
    model.save(folder / "model.safetensors")  # in 32 bits, which are mapped
    about = json.loads((folder / "paradec.json").read_text("utf-8"))
    about["sha256"]["model.safetensors"] = checksum(folder / "model.safetensors")
    (folder / "paradec.json").write_text(json.dumps(about), "utf-8")
    content = (folder / name).read_bytes()

    loaded = fairseq_paradec.load(folder)
    wanted = decoded(loaded, dtype)
    (tmp_path / "new").write_bytes(bytes(len(content)))
    (tmp_path / "new").replace(folder / name)
    assert decoded(loaded, dtype) == wanted
    (folder / name).unlink()
    assert decoded(loaded, dtype) == wanted

    (folder / name).write_bytes(content)
    loaded = fairseq_paradec.load(folder)
    assert decoded(loaded, dtype) == wanted
    for change in (bytes(len(content)), content[:-1], b""):  # the last two end a process by SIGBUS
        (folder / name).write_bytes(change)
        with pytest.raises(UsageError, match=f"{name}: got a file that was written to .*; allowed"):
            decoded(loaded, dtype)
