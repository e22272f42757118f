"""The core decodes where neither torch nor fairseq can be imported: what it decodes with them."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from support.builders import DEMO
from support.commands import ROOT
from support.foreign import save_marian, saved

from fairseq_paradec import load
from fairseq_paradec.batch import Batch
from fairseq_paradec.cli.main import main
from fairseq_paradec.methods.configure import configure
from fairseq_paradec.plugin.tasks import loading

SMALL = DEMO.with_name("demo-small.en-de")
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


#: Runs ``paradec`` where neither can be imported, nor what reads weights with torch.
COMMAND = """
import sys
sys.modules["torch"] = sys.modules["fairseq"] = None
sys.modules["transformers"] = sys.modules["safetensors"] = None
from fairseq_paradec.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def paradec(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command without torch and fairseq."""
    given = [sys.executable, "-c", COMMAND, *words]
    return subprocess.run(given, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--decoding", "greedy", "--engine-dtype", "int8"],
        ["--decoding", "beam", "--beam", "2"],
    ],
)
def test_translate_needs_neither(options: list[str]) -> None:
    done = paradec("translate", "--model", str(DEMO), "--text", "A dog runs.", *options)
    assert (done.returncode, done.stdout) == (0, "Ein Hund rennt.\n"), done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--decoding", "greedy", "--audit"],
        ["--device", "cuda"],
        ["--decoding", "greedy", "--engine", "torch"],
    ],
)
def test_what_needs_them_is_one_line(options: list[str]) -> None:
    done = paradec("translate", "--model", str(DEMO), "--text", "A dog runs.", *options)
    assert done.returncode == 2 and "install fairseq_paradec[" in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout, done.stderr


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
    done = paradec("translate", "--model", str(tmp_path), "--text", "A dog runs.")
    assert done.returncode == 2 and "model.pt" in done.stderr and "fairseq;" not in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


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
    done = paradec(*packing(folder, tmp_path / "x", model, *drafts, *flags))
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert sorted(tmp_path.glob("x/*.safetensors")) and not [*tmp_path.glob("x/*.pt")]
    lines = (DEMO / "raw" / "demo.en").read_text("utf-8").splitlines()[:6]
    (tmp_path / "text").write_text("\n".join(lines), "utf-8")
    done = paradec("translate", "--model", str(tmp_path / "x"), *options, str(tmp_path / "text"))
    assert done.returncode == 0, done.stderr
    assert main(packing(folder, tmp_path / "y", model)) == 0
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
    done = paradec("import", "hf", str(given), str(tmp_path / "x"), "--target", "de")
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
    done = paradec("import", kind, str(given), str(out), "--source", "en", "--target", "de")
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = (DEMO / "raw" / "demo.en").read_text("utf-8").splitlines()[:6]
    (tmp_path / "text").write_text("\n".join(lines), "utf-8")
    given_text = ["--decoding", "greedy", str(tmp_path / "text")]
    done = paradec("translate", "--model", str(out), *given_text)
    assert done.returncode == 0, done.stderr
    wanted = load(out).translate(lines, decoding="beam", beam=1)
    assert done.stdout.splitlines() == wanted and any(wanted)
