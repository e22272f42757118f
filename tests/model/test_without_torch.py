"""The core decodes where neither torch nor fairseq can be imported: what it decodes with them."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from support.builders import DEMO
from support.commands import ROOT, WITHOUT_TORCH, alone, environment
from support.foreign import save_marian, saved

from fairseq_paradec import load
from fairseq_paradec.batch import Batch
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.methods.configure import configure
from fairseq_paradec.plugin.tasks import loading

SMALL = DEMO.with_name("demo-small.en-de")
LINES = (DEMO / "raw" / "demo.en").read_text("utf-8").splitlines()

#: Method and drafter, by its name; further flags.
RUNS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "greedy": ("greedy", None, {}),
    "pj": ("pj", None, {}),
    "pgj": ("pgj", None, {}),
    "hgj": ("hgj", None, {}),
    "self_draft": ("self_draft", None, {}),
    "assisted": ("assisted", "assistant.pt", {}),
    "gad": ("gad", "drafter.pt", {}),
    "gad_pp": ("gad_pp", "drafter.pt", {}),
    "tree": ("assisted", "assistant.pt", {"draft_tree": 8}),
    "blockwise": ("blockwise", "heads.pt", {}),
    "auto_fast": ("auto_fast", None, {}),
    "beam 5": ("multiword_beam", None, {"beam": 5, "nbest": 5}),
    "drafted beam 5": ("self_draft", None, {"beam": 5, "nbest": 5}),
    "samples": ("greedy", None, {"sampling": True, "seed": 1, "nbest": 3}),
    "drafted samples": (
        "assisted",
        "assistant.pt",
        {"sampling": True, "sampling_topp": 0.9, "seed": 1},
    ),
    "int8": ("greedy", None, {"engine_dtype": "int8"}),
    "ibdecoder": ("multiword_beam", None, {}),
}
#: Reads folder, runs and sources; prints the outputs of each run.
ALONE = """
import json, sys
sys.modules["torch"] = sys.modules["fairseq"] = None
from pathlib import Path
import numpy as np
from fairseq_paradec.batch import Batch
from fairseq_paradec.methods.base import Context
from fairseq_paradec.methods.build import build_decoder
from fairseq_paradec.methods.configure import configure
from fairseq_paradec.model.dictionary import Dictionary
from fairseq_paradec.model.model import Model

folder, runs, sources = json.load(sys.stdin)
words = [Dictionary.read(f"{folder}/dict.{language}.txt") for language in ("en", "de")]
verifier, outputs = Model.read(f"{folder}/model.pt", *words), {}
for name, (decoding, helper, flags) in runs.items():
    drafter = None
    model = verifier
    if name == "ibdecoder":
        model = Model.read(f"{folder}/ibdecoder.pt", *words)
    if helper is not None:
        drafter = Model.read(f"{folder}/{helper}", *words, base=verifier)
        flags["drafter_path"] = helper
    config = configure(decoding=decoding, engine="native", **flags)
    decoder = build_decoder([model], config, Context(words[1], words[0], drafter))
    hypos = decoder.decode(Batch(np.array(sources)))
    outputs[name] = [[(h["tokens"].tolist(), float(h["score"])) for h in row] for row in hypos]
print(json.dumps(outputs))
"""


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    """Three sources, padded on the left."""
    chance = torch.Generator().manual_seed(1)
    rows = torch.randint(4, 3000, (3, 9), generator=chance).tolist()
    return [[1] * pad + row[pad:-1] + [2] for pad, row in zip((0, 2, 5), rows, strict=True)]


def test_tokens_and_scores_are_those_with_torch(sources: list[list[int]]) -> None:
    """Each method of the core by native passes: of a Model, and of fairseq's modules."""
    given = json.dumps([str(DEMO), RUNS, sources])
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    alone = json.loads(done.stdout)
    pairs = {
        name: loading.load(str(DEMO), str(DEMO / name)) for name in ("model.pt", "ibdecoder.pt")
    }
    batch = Batch(np.array(sources))
    for name, (decoding, helper, flags) in RUNS.items():
        models, task = pairs["ibdecoder.pt" if name == "ibdecoder" else "model.pt"]
        more = {} if helper is None else {"drafter_path": str(DEMO / helper)}
        config = configure(decoding=decoding, engine="native", **flags, **more)
        hypos = task.build_decoder(models, config).decode(batch)
        wanted = [[(h["tokens"].tolist(), float(h["score"])) for h in row] for row in hypos]
        for got, want in zip(alone[name], wanted, strict=True):
            assert [tokens for tokens, _ in got] == [tokens for tokens, _ in want], name
            assert [s for _, s in got] == pytest.approx([s for _, s in want], abs=1e-6), name


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--decoding greedy --engine-dtype int8",
        "--decoding beam",
        "--sampling --sampling-topk 1 --seed 1",
    ],
)
def test_translate_needs_neither(options: str) -> None:
    done = alone("translate", "--model", str(DEMO), "--text", "A dog runs.", *options.split())
    assert (done.returncode, done.stdout) == (0, "Ein Hund rennt.\n"), done.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--decoding greedy --audit", "--audit"),
        ("--device cuda", "--device cuda"),
        ("--decoding greedy --engine torch", "--engine torch"),
        ("--decoding greedy --engine-dtype fp16", "--engine-dtype fp16"),
        ("--decoding auto_fast --latency-budget-ms 9", "--latency-budget-ms"),
    ],
)
def test_what_needs_them_is_one_line(options: str, named: str) -> None:
    done = alone("translate", "--model", DEMO, "--text", "A dog runs.", *options.split())
    said = f"paradec translate: error: {named} needs fairseq; install fairseq_paradec[fairseq]\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize(
    ("decoding", "drafter", "said"),
    [
        ("gad", "heads.pt", "a checkpoint of --arch block_nat; this holds a set of heads: use "),
        ("assisted", "drafter.pt", "this holds a block_nat model: use --decoding gad or gad_pp"),
        ("blockwise", "assistant.pt", "this holds a shallow model: use --decoding assisted"),
        ("auto_fast", "ibdecoder.pt", "one Transformer for text .* this holds a reordered model"),
        ("gad", "none.pt", "which does not exist"),
        ("gad", "codes.bpe", "a file that is cut short, or no model file"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused_without_them(
    decoding: str, drafter: str, said: str
) -> None:
    words = ("--decoding", decoding, "--drafter-path", DEMO / drafter, "--text", "a")
    done = alone("translate", "--model", DEMO, *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "--drafter-path: " in done.stderr and re.search(said, done.stderr), done.stderr


def test_a_drafter_of_other_languages_is_refused_without_them(tmp_path: Path) -> None:
    state = torch.load(DEMO / "drafter.pt", weights_only=False)
    state["cfg"]["task"]["source_lang"] = "fr"
    torch.save(state, path := tmp_path / "other.pt")
    done = alone("translate", "--model", DEMO, "--decoding", "gad", "--drafter-path", path)
    assert done.returncode == 2 and "a drafter for en-de; this was trained for fr" in done.stderr


@pytest.fixture(params=["processes", pytest.param("ray", marks=pytest.mark.slow)])
def workers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, ...]]:
    """The flags of two workers that can import neither."""
    if request.param == "processes":
        yield "--processes", "2"
        return
    clusters = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("PYTHONPATH", WITHOUT_TORCH["PYTHONPATH"])
    small = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 10**8}
    nodes = clusters.Cluster(True, head_node_args=small)
    yield "--cluster", nodes.address
    nodes.shutdown()


def test_a_corpus_needs_neither(workers: tuple[str, ...], tmp_path: Path) -> None:
    """By two workers: the rows of one with both, by torch."""
    text = tmp_path / "text"
    text.write_text("\n".join(LINES[:24]) + "\n", "utf-8")
    words = ("translate", "--model", DEMO, text, "--buffer-size", "8")
    done = alone(*words, "--out", tmp_path / "alone", *workers)
    assert done.returncode == 0, done.stderr
    with_both = [*map(str, words), "--engine", "torch", "--out", str(tmp_path / "both")]
    assert paradec(with_both) == 0
    found, wanted = (
        [
            json.loads(row)["translation"]
            for part in sorted((tmp_path / name / "parts").glob("*.jsonl"))
            for row in part.read_text("utf-8").splitlines()
        ]
        for name in ("alone", "both")
    )
    assert found == wanted and len({*found}) > 20


def test_a_command_that_needs_fairseq_logs_what_others_do() -> None:
    """The import of fairseq would log its dictionaries, and the closing line of a generator."""
    words = ["translate", "--model", str(DEMO), "--text", "A dog runs."]
    given = [
        sys.executable,
        "-m",
        "fairseq_paradec",
        *words,
        "--decoding",
        "greedy",
        "--engine",
        "torch",
    ]
    done = subprocess.run(given, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "Ein Hund rennt.\n", "")


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    """Though fairseq, which would say it, is not there."""
    for file in DEMO.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    model = tmp_path / "model.pt"
    model.write_bytes(model.read_bytes()[:1000])
    about = json.loads((tmp_path / "paradec.json").read_text("utf-8"))
    about["sha256"]["model.pt"] = hashlib.sha256(model.read_bytes()).hexdigest()
    (tmp_path / "paradec.json").write_text(json.dumps(about), "utf-8")
    done = alone("translate", "--model", str(tmp_path), "--text", "A dog runs.")
    assert done.returncode == 2 and "model.pt" in done.stderr and "fairseq;" not in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_a_model_for_fairseq_alone_is_named_with_the_extra(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(DEMO, data)
    content = torch.load(DEMO / "model.pt", weights_only=False)
    content["cfg"]["model"]["quant_noise_pq"] = 0.1
    torch.save(content, model := data / "model.pt")
    about = json.loads((data / "paradec.json").read_text("utf-8"))
    about["sha256"]["model.pt"] = hashlib.sha256(model.read_bytes()).hexdigest()
    (data / "paradec.json").write_text(json.dumps(about), "utf-8")
    done = alone("translate", "--model", data, "--text", "A dog runs.")
    said = "quant_noise_pq: got 0.1; allowed: a model without it, or one in torch"
    line = f"paradec translate: error: {model}: {said}: it needs fairseq_paradec[fairseq]\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_a_corpus_on_a_gpu_names_the_extra(tmp_path: Path) -> None:
    words = ("translate", "--model", DEMO, DEMO / "raw", "--out", tmp_path / "out")
    done = alone(*words, "--device", "cuda")
    line = "--device cuda needs fairseq; install fairseq_paradec[fairseq]\n"
    assert (done.returncode, done.stderr) == (2, f"paradec translate: error: {line}")


def test_threads_that_need_fairseq_at_once_get_it() -> None:
    """Of two models, which each asks fairseq for its own."""
    code = f"""
import threading
from concurrent.futures import ThreadPoolExecutor
from fairseq_paradec import load
folders = {[str(DEMO), str(DEMO.with_name("demo-small.en-de"))] * 2!r}
barrier = threading.Barrier(len(folders))
models = [load(folder) for folder in folders]
def work(model):
    barrier.wait()
    return model.translate(["A dog runs."], engine="torch")
with ThreadPoolExecutor(len(folders)) as pool:
    print(*(text for texts in pool.map(work, models) for text in texts))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == " ".join(["Ein Hund rennt."] * 4) + "\n", done.stderr


def packing(folder: Path, out: Path, model: str, *more: str) -> list[str]:
    """The words of ``paradec pack``."""
    bpe = ["--tokenizer", "moses", "--bpe", "subword_nmt", "--bpe-codes", str(folder / "codes.bpe")]
    return ["pack", str(folder), str(out), "--path", str(folder / model), *bpe, *more]


#: The folder, its model and drafter; how they are packed, and flags of translate.
PACKED: dict[str, tuple[Path, str, str | None, list[str], list[str]]] = {
    "drafter": (DEMO, "model.pt", "drafter.pt", [], ["--decoding", "gad"]),
    "heads": (DEMO, "model.pt", "heads.pt", [], ["--decoding", "blockwise"]),
    "without encoder": (SMALL, "model.pt", "assistant.pt", [], ["--decoding", "assisted"]),
    "order": (DEMO, "ibdecoder_sa.pt", None, [], []),
    "packed only": (
        *(DEMO, "model.pt", "drafter.pt"),
        ["--engine-dtype", "fp32,int8", "--packed-only"],
        ["--decoding", "gad"],
    ),
}


@pytest.mark.parametrize("name", PACKED)
def test_pack_needs_neither(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it packs translates as the checkpoints do by fairseq's modules."""
    folder, model, drafter, flags, options = PACKED[name]
    drafts = [] if drafter is None else ["--drafter-path", str(folder / drafter)]
    done = alone(*packing(folder, tmp_path / "x", model, *drafts, *flags))
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert sorted(tmp_path.glob("x/*.safetensors")) and not [*tmp_path.glob("x/*.pt")]
    lines = LINES[:6]
    (tmp_path / "text").write_text("\n".join(lines), "utf-8")
    done = alone("translate", "--model", str(tmp_path / "x"), *options, str(tmp_path / "text"))
    assert done.returncode == 0, done.stderr
    assert paradec(packing(folder, tmp_path / "y", model)) == 0
    wanted = load(tmp_path / "y")
    monkeypatch.setattr(wanted, "_core", None)
    how = {} if name == "order" else {"decoding": "greedy"}
    assert done.stdout.splitlines() == wanted.translate(lines, **how)


def test_weights_of_old_torch_need_torch(tmp_path: Path) -> None:
    given = tmp_path / "given"
    shutil.copytree(saved("marian").folder, given)
    (given / "model.safetensors").unlink()
    old = {"_use_new_zipfile_serialization": False}
    torch.save({"a": torch.ones(1)}, given / "pytorch_model.bin", **old)
    done = alone("import", "hf", str(given), str(tmp_path / "x"), "--target", "de")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "before 1.6, needs torch; install fairseq_paradec[torch]" in done.stderr


@pytest.mark.parametrize("form", ["safetensors", "bin", "npz"])
def test_import_needs_neither(form: str, tmp_path: Path) -> None:
    """The imported model translates as fairseq's own search does with it."""
    made, out = saved("marian"), tmp_path / "out"
    given, kind = made.folder, "hf"
    if form == "npz":
        given, kind = save_marian(made, tmp_path / "npz"), "marian"
    elif form == "bin":
        given = tmp_path / "bin"
        shutil.copytree(made.folder, given)
        weights = safetensors.torch.load_file(given / "model.safetensors")
        (given / "model.safetensors").unlink()
        torch.save(weights, given / "pytorch_model.bin")
    done = alone("import", kind, str(given), str(out), "--source", "en", "--target", "de")
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = LINES[:6]
    (tmp_path / "text").write_text("\n".join(lines), "utf-8")
    given_text = ["--decoding", "greedy", str(tmp_path / "text")]
    done = alone("translate", "--model", str(out), *given_text)
    assert done.returncode == 0, done.stderr
    wanted = load(out).translate(lines, decoding="beam", beam=1)
    assert done.stdout.splitlines() == wanted and any(wanted)
