"""The core decodes where neither torch nor fairseq can be imported: what it decodes with them."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from support.builders import DEMO
from support.commands import ROOT

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
