"""What the core writes alone, beside what fairseq's modules and fairseq's own search write."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .commands import DEMO, ROOT, environment, succeed

#: Options of ``translate`` by the name of a run.
Runs = Mapping[str, Mapping[str, Any]]
#: A line's text; tokens and score of each of its hypotheses.
Output = tuple[str, list[tuple[list[int], float]]]

SMALL = ROOT / "data-bin" / "demo-small.en-de"
OWN: Runs = {"its own": {"decoding": "auto"}, "its own, beam 5": {"decoding": "auto", "beam": 5}}
#: fairseq's own search, and the run that writes the same.
FAIRSEQS: Runs = {
    "greedy": {"decoding": "beam", "beam": 1},
    "beam 5": {"decoding": "beam", "beam": 5},
}


class Pair(NamedTuple):
    """A demo's folder, the model of it that decodes, and how."""

    folder: Path
    model: str
    runs: Runs
    printed: Sequence[str]  # the runs that the command does, too


def _runs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what both pairs are decoded by; the tiny one, which is quick, by more."""
    assistant = {"drafter_path": str(folder / "assistant.pt")}
    return {
        "greedy": {"decoding": "greedy"},
        "self_draft": {"decoding": "self_draft"},
        "assisted": {"decoding": "assisted", **assistant},
        "beam 5": {"decoding": "multiword_beam", "beam": 5},
        "drafted beam 5": {"decoding": "self_draft", "beam": 5},
    }


_DRAFTERS = {"gad": "drafter.pt", "gad_pp": "drafter.pt", "blockwise": "heads.pt"}
_TINY = (
    _runs(DEMO)
    | {name: {"decoding": name} for name in ("pj", "pgj", "hgj", "auto_fast")}
    | {name: {"decoding": name, "drafter_path": str(DEMO / _DRAFTERS[name])} for name in _DRAFTERS}
)
PAIRS = {
    "tiny": Pair(DEMO, "model.pt", _TINY, [*_TINY]),
    "small": Pair(SMALL, "model.pt", _runs(SMALL), ["assisted"]),
    "ibdecoder": Pair(DEMO, "ibdecoder.pt", OWN, [*OWN]),
    "ibdecoder_sa": Pair(DEMO, "ibdecoder_sa.pt", OWN, ["its own"]),
}

#: Lines that nobody expects, but users send; the last one is longer than a model takes.
ODD = [
    "",
    "   ",
    "\t \t",
    "\ufeff",
    "\ufeffA dog runs.",
    "A \ufeffdog runs.",
    "\u200b\u200e\u00ad",
    "😀",
    "A 🐕‍🦺 runs 👩‍👩‍👧!",
    "A\x00dog\x07runs\x1b[0m.",
    "A\x1cdog\x85runs\u2028here.",
    "A\rdog runs.\r",
    "Собака бежит.",
    "一只狗在跑。",
    "สุนัขวิ่ง",
    "كلب يركض في الحديقة.",
    "A dog שלום runs.",
    "e\u0301 ﬁ ½",
    "<s> <unk> </s> <pad> @@ -@-",
    "&amp; &lt;b&gt; | [x] `$HOME`",
    "a" * 12_000,
    "." * 50,
    "A dog runs. " * 60,
    "dog " * 3_000,
]

#: Translates lines by a folder; prints text, tokens and scores of each line, of each run.
_WRITE = """
import json, sys
import fairseq_paradec
folder, runs, lines, by_fairseq = json.load(sys.stdin)
model = fairseq_paradec.load(folder)
if by_fairseq:
    model._core = None  # fairseq's modules decode
decode, outputs = model.decode, {}
def told(generator, batch):
    rows = decode(generator, batch)
    for number, row in zip(batch.ids.tolist(), rows):
        hypotheses[number] = [[[*map(int, h["tokens"])], float(h["score"])] for h in row]
    return rows
model.decode = told
for name, options in runs.items():
    hypotheses = {}
    texts = [*model.translate(lines, **options)]
    outputs[name] = [[text, hypotheses.get(n, [])] for n, text in enumerate(texts)]
print(json.dumps([outputs, "torch" in sys.modules, "fairseq" in sys.modules]))
"""


def written(
    python: str | os.PathLike[str], folder: Path, runs: Runs, lines: Sequence[str], by_fairseq: bool
) -> dict[str, list[Output]]:
    """Return what an environment's Python writes, by fairseq's modules or by the core."""
    given = json.dumps([str(folder), runs, lines, by_fairseq])
    command = [str(python), "-I", "-c", _WRITE]
    done = subprocess.run(command, input=given, env=environment(), capture_output=True, text=True)
    outputs, *loaded = json.loads(succeed(done).stdout)
    assert loaded == [by_fairseq, by_fairseq]
    return {name: [(text, [*map(tuple, some)]) for text, some in o] for name, o in outputs.items()}


def with_model(pair: Pair, folder: Path) -> Path:
    """Make a copy of a pair's folder, whose model is the pair's, without a drafter of its own."""
    shutil.copytree(pair.folder, folder)
    about = json.loads((folder / "paradec.json").read_text("utf-8"))
    about |= {"model": pair.model, "drafter": None}
    about["sha256"][pair.model] = hashlib.sha256((folder / pair.model).read_bytes()).hexdigest()
    (folder / "paradec.json").write_text(json.dumps(about), "utf-8")
    return folder


def check_same(name: str, lines: Sequence[str], ours: list[Output], others: list[Output]) -> None:
    """Assert that texts and tokens are equal, and scores but for rounding."""
    for line, (text, hypotheses), (other, wanted) in zip(lines, ours, others, strict=True):
        where = f"{name}: {line[:200]!r}"
        assert text == other, where
        assert [tokens for tokens, _ in hypotheses] == [tokens for tokens, _ in wanted], where
        scores = [score for _, score in wanted]
        assert [score for _, score in hypotheses] == pytest.approx(scores, abs=1e-5, rel=0), where
