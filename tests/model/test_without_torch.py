"""The core decodes where neither torch nor fairseq can be imported: what it decodes with them."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders import DEMO
from support.commands import ROOT
from support.server import Client

from fairseq_paradec.methods.configure import configure
from fairseq_paradec.plugin.tasks import loading

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
    hypos = decoder.decode({"net_input": {"src_tokens": np.array(sources)}})
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
    batch = {"net_input": {"src_tokens": torch.tensor(sources)}}
    for name, (decoding, helper, flags) in RUNS.items():
        models, task = pairs["ibdecoder.pt" if name == "ibdecoder" else "model.pt"]
        more = {} if helper is None else {"drafter_path": str(DEMO / helper)}
        config = configure(decoding=decoding, engine="native", **flags, **more)
        hypos = task.build_decoder(models, config).decode(batch)
        wanted = [[(h["tokens"].tolist(), float(h["score"])) for h in row] for row in hypos]
        for got, want in zip(alone[name], wanted, strict=True):
            assert [tokens for tokens, _ in got] == [tokens for tokens, _ in want], name
            assert [s for _, s in got] == pytest.approx([s for _, s in want], abs=1e-6), name


#: Runs ``paradec`` where neither can be imported.
COMMAND = """
import sys
sys.modules["torch"] = sys.modules["fairseq"] = None
from fairseq_paradec.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def paradec(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command without torch and fairseq."""
    given = [sys.executable, "-c", COMMAND, *words]
    return subprocess.run(given, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("options", [[], ["--decoding", "greedy", "--engine-dtype", "int8"]])
def test_translate_needs_neither(options: list[str]) -> None:
    done = paradec("translate", "--model", str(DEMO), "--text", "A dog runs.", *options)
    assert (done.returncode, done.stdout) == (0, "Ein Hund rennt.\n"), done.stderr


def test_a_corpus_in_parts_needs_neither(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("A dog runs.\n", "utf-8")
    out = tmp_path / "out"
    done = paradec("translate", "--model", str(DEMO), "--out", str(out), str(tmp_path / "text"))
    assert done.returncode == 0, done.stderr
    (part,) = (out / "parts").glob("*.jsonl")
    assert json.loads(part.read_text("utf-8"))["translation"] == "Ein Hund rennt."


def test_a_server_needs_neither() -> None:
    command = [sys.executable, "-c", COMMAND, "serve", "--model", str(DEMO), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stderr is not None
            said = (re.search(r"serving at .*:(\d+)/$", line) for line in server.stderr)
            port = next(filter(None, said))[1]
            answer = Client(int(port)).translate("A dog runs.")
        finally:
            server.terminate()
    assert answer["translatedText"] == "Ein Hund rennt." and server.returncode == 0


def refused(model: Path, *options: str) -> str:
    """Translate a sentence without torch and fairseq; return the one line that refuses it."""
    done = paradec("translate", "--model", str(model), "--text", "A dog runs.", *options)
    assert done.returncode == 2 and not done.stdout, done.stderr
    (line,) = done.stderr.splitlines()
    return line.removeprefix("paradec translate: error: ")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--decoding", "beam", "--beam", "2"], "--decoding beam"),
        (["--decoding", "greedy", "--audit"], "--audit"),
        (["--device", "cuda"], "--device cuda"),
        (["--device", "cuda", "--out", "no-such-folder", str(DEMO / "raw")], "--device cuda"),
        (["--decoding", "greedy", "--engine", "torch"], "--engine torch"),
        (["--decoding", "greedy", "--engine-dtype", "fp16"], "--engine-dtype fp16"),
        (["--latency-budget-ms", "9"], "--latency-budget-ms 9.0"),
    ],
)
def test_what_needs_them_is_one_line(options: list[str], what: str) -> None:
    words = ["translate", "--model", str(DEMO), *options]
    done = paradec(*words, *([] if "--out" in options else ["--text", "A dog runs."]))
    line = f"paradec translate: error: {what} needs fairseq; install fairseq_paradec[fairseq]\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_a_drafter_that_does_not_fit_is_named() -> None:
    """Though fairseq, which would say it, is not there."""
    for decoding, name, wanted in (
        ("gad", "assistant.pt", "a checkpoint of --arch block_nat"),
        ("blockwise", "drafter.pt", "heads, of --arch blockwise_transformer"),
        ("gad", "none.pt", "a checkpoint that can be read (No such file or directory)"),
    ):
        path = str(DEMO / name)
        line = refused(DEMO, "--decoding", decoding, "--drafter-path", path)
        assert line == f"--drafter-path: got {path!r}; allowed: {wanted}"


def folder_with(model: bytes, folder: Path) -> Path:
    """Make the demo's folder with another model."""
    for file in DEMO.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    (folder / "model.pt").write_bytes(model)
    about = json.loads((folder / "paradec.json").read_text("utf-8"))
    about["sha256"]["model.pt"] = hashlib.sha256(model).hexdigest()
    (folder / "paradec.json").write_text(json.dumps(about), "utf-8")
    return folder


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    """Though fairseq, which would say it, is not there."""
    line = refused(folder_with((DEMO / "model.pt").read_bytes()[:1000], tmp_path))
    assert "model.pt" in line and "install" not in line


def test_a_model_for_fairseq_alone_is_named_with_the_extra(tmp_path: Path) -> None:
    content = torch.load(DEMO / "model.pt", weights_only=False)
    content["cfg"]["model"]["quant_noise_pq"] = 0.1
    torch.save(content, whole := tmp_path / "changed.pt")
    line = refused(folder_with(whole.read_bytes(), tmp_path))
    assert line == (
        f"{tmp_path / 'model.pt'}: quant_noise_pq: got 0.1; allowed: a model without it, or one in "
        "torch; torch computes what native passes do not: install fairseq_paradec[fairseq]"
    )
