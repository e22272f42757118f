"""Files from nowhere: a spoilt one is one line, and takes little memory and time.

``PYTHONPATH=tests python tests/cli/test_fuzz.py --minutes 60`` is the long form of the slow test.
"""

import argparse
import io
import json
import re
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data import indexed_dataset
from support import stats_records, trace_records
from support.builders import save_drafter, tiny_model, tiny_task
from support.commands import DEMO, Spoil, put
from support.converted import argos_folder, save, small_spec, zipped
from support.foreign import pieces, save_marian, saved, words_of
from support.fuzzing import HEADER, SECONDS, Found, Target, hunt, in_a_child, outcome, rehash
from support.marian import BERGAMOT8, SETTINGS, own_pieces, random_weights, write_bin

from fairseq_paradec.cli.main import main as paradec

TRANSLATE = "translate --model {} --text a --decoding greedy --max-len-b 9 --device cpu"
IMPORT = "import hf {} {out} --source en --target de"
IMPORT_NLLB = "import hf {} {out} --source eng_Latn --target deu_Latn"
MARIAN = "import marian {}/model.npz {out} --source en --target de"
BINARY = "import {}/model.bin {out} --source en --target de"

CT2 = "import ct2 {} {out} --source en --target de --tokenizer space"
ARGOS = "import argos {}/x.argosmodel {out}"

#: A model file.
FILE = "model.safetensors"

#: What is spoilt: the folder of ``FOLDERS``, the command, and the file.
TARGETS: dict[str, tuple[str, Target]] = {
    "paradec.json": ("bpe", Target(TRANSLATE, "paradec.json", is_json=True)),
    "dictionary": ("bpe", Target(TRANSLATE, "dict.de.txt")),
    "codes": ("bpe", Target(TRANSLATE, "codes.bpe")),
    "model file": ("bpe", Target(TRANSLATE, FILE)),
    "its header": ("bpe", Target(TRANSLATE, FILE, HEADER, True)),
    "model file of doctor": ("bpe", Target(f"doctor {{}}/{FILE} {{}}", FILE, HEADER, True)),
    "checkpoint": ("old", Target(TRANSLATE, "model.pt")),
    "pickle": ("old", Target(TRANSLATE, "model.pt", "data.pkl")),
    "checkpoint of doctor": ("old", Target("doctor {}/model.pt {}", "model.pt", "data.pkl")),
    "packed": ("bpe", Target(f"{TRANSLATE} --engine-dtype int8", "packed.int8", is_json=True)),
    "packed only": ("packed", Target(TRANSLATE, FILE, HEADER, True)),
    "sentencepiece": ("pieces", Target(TRANSLATE, "source.spm")),
    "index": ("data", Target("generate {}", "test.en-de.en.idx")),
    "data": ("data", Target("generate {}", "test.en-de.de.bin")),
    "config.json": ("hf", Target(IMPORT, "config.json", is_json=True)),
    "generation_config": ("hf", Target(IMPORT, "generation_config.json", is_json=True)),
    "tokenizer_config": ("nllb", Target(IMPORT_NLLB, "tokenizer_config.json", is_json=True)),
    "vocab.json": ("hf", Target(IMPORT, "vocab.json", is_json=True)),
    "safetensors": ("hf", Target(IMPORT, "model.safetensors")),
    "header": ("hf", Target(IMPORT, "model.safetensors", HEADER, True)),
    "npz": ("npz", Target(MARIAN, "model.npz")),
    "npy": ("npz", Target(MARIAN, "model.npz", "decoder_ff_logit_out_b.npy")),
    "model.yml": ("npz", Target(MARIAN, "model.npz", "special:model.yml.npy")),
    "decoder.yml": ("npz", Target(MARIAN, "decoder.yml")),
    "words.yml": ("npz", Target(MARIAN, "words.yml")),
    "binary": ("binary", Target(BINARY, "model.bin")),
    "vocab.spm": ("binary", Target(BINARY, "vocab.spm")),
    "model.bin": ("ct2", Target(CT2, "model.bin")),
    "config of ct2": ("ct2", Target(CT2, "config.json", is_json=True)),
    "vocabulary": ("ct2", Target(CT2, "shared_vocabulary.json", is_json=True)),
    "argosmodel": ("argos", Target(ARGOS, "x.argosmodel")),
    "metadata.json": ("argos", Target(ARGOS, "x.argosmodel", "metadata.json", True)),
    "trace": ("traces", Target("trace {}/t.jsonl", "t.jsonl", is_json=True)),
    "stats": ("traces", Target("report {} --out {out}.html", "s.jsonl", is_json=True)),
    "document": ("traces", Target("report {} --out {out}.html", "b.json", is_json=True)),
}


# ---- the folders -------------------------------------------------------------------------------


def with_bpe(folder: Path, *more: str, in_place: bool = False) -> None:
    """A model folder of a tiny model, with BPE codes and packed weights; or with its checkpoint."""
    raw = folder if in_place else folder.with_name(f"{folder.name}.raw")
    _data(raw)
    codes = (DEMO / "codes.bpe").read_text("utf-8").splitlines()[:30]
    (raw / "codes.bpe").write_text("\n".join(codes) + "\n", "utf-8")
    words = ["pack", str(raw), str(folder), "--path", str(raw / "model.pt"), "-s", "en", "-t", "de"]
    words += ["--bpe", "subword_nmt", "--bpe-codes", str(raw / "codes.bpe")]
    assert paradec([*words, "--engine-dtype", "int8", *more]) == 0


def _data(folder: Path) -> None:
    """A data folder of a tiny model."""
    folder.mkdir()
    task = tiny_task()
    task.target_dictionary.save(str(folder / "dict.en.txt"))
    task.target_dictionary.save(str(folder / "dict.de.txt"))
    languages = {"source_lang": "en", "target_lang": "de"}
    save_drafter(task, tiny_model(task), folder / "model.pt", "transformer", **languages)
    for language in ("en", "de"):
        prefix = folder / f"test.en-de.{language}"
        made = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", len(task.target_dictionary))
        for row in ([5, 6, 2], [9, 2], [7, 8, 9, 10, 2]):
            made.add_item(torch.tensor(row))
        made.finalize(f"{prefix}.idx")


def _imported(folder: Path) -> None:
    """A model folder with sentencepiece models."""
    given = str(saved("marian").folder)
    assert paradec(["import", "hf", given, str(folder), "--source", "en", "--target", "de"]) == 0


def _foreign(family: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        shutil.copytree(saved(family).folder, folder)

    return make


def _binary(folder: Path) -> None:
    """A binary model of Marian, with a vocabulary of sentencepiece."""
    folder.mkdir()
    shutil.copy(own_pieces(), folder / "vocab.spm")
    write_bin(folder / "model.bin", random_weights(SETTINGS, (128, 128)), SETTINGS, BERGAMOT8)


def _argos(folder: Path) -> None:
    """A package of Argos Translate."""
    package = argos_folder(folder / "package", words_of(pieces("en")))
    shutil.copy(pieces("en"), package / "sentencepiece.model")
    zipped(package, folder / "x.argosmodel")


def _traces(folder: Path) -> None:
    """A trace, statistics and a benchmark's document."""
    folder.mkdir()
    trace_records.write(folder / "t.jsonl", trace_records.GOOD | {"id": 1}, trace_records.GOOD)
    record = stats_records.greedy(1, ["a", "b", "</s>"], ["c", "</s>"])
    del record["trace"]
    trace_records.write(folder / "s.jsonl", record, record | {"id": 2})
    shutil.copy(DEMO.parents[1] / "results" / "lossless-batch-1.json", folder / "b.json")


FOLDERS: dict[str, Callable[[Path], object]] = {
    "bpe": with_bpe,
    "old": lambda folder: with_bpe(folder, in_place=True),
    "packed": lambda folder: with_bpe(folder, "--packed-only"),
    "pieces": _imported,
    "data": _data,
    "hf": _foreign("marian"),
    "nllb": _foreign("nllb"),
    "npz": lambda folder: save_marian(saved("marian"), folder),
    "binary": _binary,
    "ct2": lambda folder: save(small_spec(), folder, "int8"),
    "argos": _argos,
    "traces": _traces,
}


def made_folder(kind: str, root: Path) -> Path:
    """A folder of ``FOLDERS``."""
    folder = root / kind
    if not folder.exists():
        FOLDERS[kind](folder)
    return folder


def look(name: str, root: Path, examples: int, number: int = 0) -> Found:
    """Spoil a file so many times; see ``hunt``."""
    kind, target = TARGETS[name]
    return hunt(target, made_folder(kind, root), examples, number, seconds=60 * SECONDS)


def said(found: Found) -> str:
    """Return what goes wrong, a line each."""
    return "\n".join(f"{wrong}\n    by {given}" for wrong, given in found.values())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


# ---- made by hand, or found -------------------------------------------------------------------


def _state(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Change what a checkpoint holds."""

    def apply(folder: Path) -> None:
        state = torch.load(folder / "model.pt", weights_only=True)
        change(state)
        torch.save(state, folder / "model.pt")
        rehash(folder, "model.pt")

    return apply


def _weight(weight: torch.Tensor) -> Spoil:
    return _state(lambda state: state["model"].update({"decoder.embed_tokens.weight": weight}))


def _setting(**given: Any) -> Spoil:
    return _state(lambda state: vars(state["cfg"]["model"]).update(given))


def _bin(folder: Path) -> None:
    """Weights as a pickle, one of them a terabyte."""
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": TERABYTES["expanded"]}, folder / "pytorch_model.bin")


def _json(file: str, **given: Any) -> Spoil:
    return put(file, lambda was: json.dumps(json.loads(was) | given).encode())


def _bomb(file: str) -> Spoil:
    """Add 32 MB of zeros, which take 32 KB, to an archive."""

    def apply(folder: Path) -> None:
        with zipfile.ZipFile(folder / file, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros.npy", bytes(1 << 25))
        rehash(folder, file)

    return apply


def _settings(name: str, value: Any) -> Spoil:
    return lambda folder: _again(folder, **{name: value})


def _again(folder: Path, **given: Any) -> None:
    shutil.rmtree(folder)
    save_marian(saved("marian"), folder, **given)


def _byte(file: str, at: int, value: int) -> Spoil:
    return put(file, lambda was: was[:at] + bytes([value]) + was[at + 1 :])


def _codes(folder: Path) -> None:
    (folder / "codes.bpe").write_bytes(b"#version: 0.2\na b c\n")
    rehash(folder, "codes.bpe")


def _npy(folder: Path) -> None:
    """An array that says it has a terabyte."""
    head = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (1 << 38,)}
    np.lib.format.write_array_header_1_0(head, about)
    with zipfile.ZipFile(folder / "model.npz", "a") as archive:
        archive.writestr("large.npy", head.getvalue())


#: Nine lines of YAML that are a billion settings.
LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 10)
)
DEEP = b"[" * 10**5
TERABYTES = {
    "sparse": torch.sparse_coo_tensor(
        torch.zeros(2, 1), torch.ones(1), (10**6, 10**6), check_invariants=True
    ),
    "expanded": torch.zeros(1).expand(10**6, 10**6),
    "meta": torch.zeros(10**6, 10**6, device="meta"),
}
TORN = "is cut off or damaged"

#: The folder, the command, what is done to the folder, and what the command says.
MADE: dict[str, tuple[str, str, Spoil, str]] = {
    "a zip bomb": ("npz", MARIAN, _bomb("model.npz"), "unpacks to 34 MB"),
    "a zip bomb of torch": ("old", TRANSLATE, _bomb("model.pt"), "its contents is wrong"),
    "a terabyte of an array": ("npz", MARIAN, _npy, "MODEL: got .*Marian's file"),
    "a sparse terabyte": ("old", TRANSLATE, _weight(TERABYTES["sparse"]), "is sparse"),
    "an expanded one": ("old", TRANSLATE, _weight(TERABYTES["expanded"]), "has fewer numbers"),
    "one that is not there": (
        "old",
        TRANSLATE,
        _weight(TERABYTES["meta"]),
        "has fewer numbers",
    ),
    "one in a pickle": ("hf", IMPORT, _bin, "got a tensor with fewer numbers than elements"),
    "a billion layers": (
        "old",
        TRANSLATE,
        _setting(encoder_layers=10**9, encoder_ffn_embed_dim=2**14),  # large ones, to end sooner
        "of more than .* MB",
    ),
    "wide layers": (
        "old",
        TRANSLATE,
        _setting(decoder_ffn_embed_dim=10**8),
        "gives no model|MB",
    ),
    "positions": ("old", TRANSLATE, _setting(max_source_positions=10**9), "source positions"),
    "places": ("hf", IMPORT, _json("config.json", max_position_embeddings=10**9), "at most"),
    "layers": ("hf", IMPORT, _json("config.json", encoder_layers=10**9), "encoder_layers: got 1"),
    "words": ("hf", IMPORT, _json("config.json", vocab_size=10**9), "embeddings of size"),
    "width": ("hf", IMPORT, _json("config.json", d_model=10**9), "embeddings of size"),
    "inner": ("hf", IMPORT, _json("config.json", encoder_ffn_dim=10**9), "ffn_embed_dim: got 1"),
    "dim-emb": ("npz", MARIAN, _settings("dim-emb", 10**9), "dim-emb: got 1000000000"),
    "deep JSON": ("hf", IMPORT, put("config.json", DEEP), "config.json: got 'a damaged file'"),
    "deep paradec.json": ("bpe", TRANSLATE, put("paradec.json", DEEP), "a JSON object"),
    "a deep trace": ("traces", "trace {}/t.jsonl", put("t.jsonl", DEEP + b"\n"), "got no JSON"),
    "deep YAML": ("npz", MARIAN, put("decoder.yml", DEEP), "damaged YAML"),
    "laughs": ("npz", MARIAN, put("decoder.yml", LAUGHS.encode()), "damaged YAML"),
    "codes": ("bpe", TRANSLATE, _codes, "codes.bpe|invalid"),
    "no index": ("data", "generate {}", put("test.en-de.en.idx", b"MMIDIDY" * 9), TORN),
    "version 2": ("data", "generate {}", _byte("test.en-de.en.idx", 9, 2), TORN),
    "real tokens": ("data", "generate {}", _byte("test.en-de.en.idx", 17, 6), TORN),
    "less than no token": ("data", "generate {}", _byte("test.en-de.en.idx", 29, 255), TORN),
    "a place beyond": ("data", "generate {}", _byte("test.en-de.en.idx", 46, 255), TORN),
}


@pytest.mark.parametrize("name", MADE)
def test_a_file_that_is_small_here_and_large_in_memory_is_one_line(name: str, root: Path) -> None:
    """Those that were made by hand; and what hypothesis found."""
    kind, words, spoilt, wanted = MADE[name]
    folder = root / "made" / "folder"
    shutil.rmtree(folder.parent, ignore_errors=True)
    shutil.copytree(made_folder(kind, root), folder)
    spoilt(folder)
    said = in_a_child(lambda: outcome(words, folder), seconds=60 * SECONDS)
    assert said.count("\n") == 1 and re.search(wanted, said), said


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_spoilt_file_is_one_line(name: str, root: Path) -> None:
    found = look(name, root, examples=40)
    assert not found, said(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--examples", type=int, default=100, help="of a target at a time")
    parser.add_argument("--target", choices=TARGETS, action="append")
    args = parser.parse_args()
    bad: Found
    end, number, bad, tried = time.monotonic() + 60 * args.minutes, time.time_ns(), {}, 0
    with tempfile.TemporaryDirectory() as made:
        while time.monotonic() < end:
            for name in args.target or TARGETS:
                number += 1
                found = look(name, Path(made), args.examples, number)
                tried += args.examples
                for kind in found.keys() - bad.keys():
                    bad[kind] = found[kind]
                    print(f"{name}: {said({kind: found[kind]})}", flush=True)
    print(f"{tried} files, {len(bad)} faults")
    sys.exit(bool(bad))
