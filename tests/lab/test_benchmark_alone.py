"""paradec benchmark where fairseq is not installed: the core's rows, and who judges them.

In the same process the core's systems are compared with those of fairseq's modules; what a user
sees is run where neither torch nor fairseq can be imported.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import jsonschema
import numpy as np
import pytest
import torch
from fairseq.data import data_utils, indexed_dataset
from support import builders
from support.builders import sources, task_for, tiny_model
from support.commands import DEMO, alone

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding import audit
from fairseq_paradec.engine.torch.views import model_of
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.analysis.benchmark_tables import label, tables
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.measure import core
from fairseq_paradec.lab.measure.core import CoreLoader, CoreSystem
from fairseq_paradec.lab.measure.ctranslate2_model import write
from fairseq_paradec.lab.measure.own import NotRun
from fairseq_paradec.lab.measure.sentences import Data, Indexed
from fairseq_paradec.lab.measure.specs import read
from fairseq_paradec.lab.measure.systems import Models
from fairseq_paradec.model.model import Model

MODEL = str(DEMO / "model.pt")
SCHEMA = Path(documents.__file__).with_name("benchmark.schema.json")
NOT_RUN = "not run: needs [fairseq]"


@pytest.fixture(scope="module")
def loaders() -> tuple[CoreLoader, Models]:
    """The core's, and fairseq's."""
    return CoreLoader(str(DEMO), "test", "fp32", "cpu"), Models(str(DEMO), "test", "fp32", "cpu")


# ---- data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mmap", "cached"])
@pytest.mark.parametrize("size", [30, 100_000])
def test_sentences_are_read_as_fairseq_reads_them(kind: str, size: int, tmp_path: Path) -> None:
    """Of numbers of 16 and of 32 bits."""
    chance = torch.Generator().manual_seed(1)
    path, words = str(tmp_path / "test.en-de.en"), builders.dictionary(30)
    builder = indexed_dataset.make_builder(f"{path}.bin", kind, size)
    for length in (5, 1, 9):
        builder.add_item(torch.randint(4, size, (length,), generator=chance).int())
    builder.finalize(f"{path}.idx")
    theirs, ours = data_utils.load_indexed_dataset(path, words), Indexed(Path(path))
    if theirs.supports_prefetch:
        theirs.prefetch(range(3))
    assert len(ours) == 3 and ours.sizes.tolist() == theirs.sizes.tolist() == [5, 1, 9]
    for own, wanted in zip(ours, theirs, strict=True):
        assert own.dtype == np.int64 and own.tolist() == wanted.tolist()


def test_a_data_folder_is_read_as_fairseqs_task_reads_it(
    loaders: tuple[CoreLoader, Models],
) -> None:
    (_, own), (_, task) = (loader.load(MODEL) for loader in loaders)
    ours, theirs = own.dataset("test"), task.dataset("test")
    assert len(ours) == len(theirs) == 100
    assert ours.src_sizes.tolist() == theirs.src_sizes.tolist()
    assert ours.tgt_sizes.tolist() == theirs.tgt_sizes.tolist()
    assert ours[7]["source"].tolist() == theirs[7]["source"].tolist()
    assert own.source_dictionary.symbols == task.source_dictionary.symbols


def cut(folder: Path) -> None:
    file = folder / "test.en-de.en.bin"
    file.write_bytes(file.read_bytes()[:-1])


def without_index(folder: Path) -> None:
    (folder / "test.en-de.en.idx").write_bytes(b"x" * 99)


def with_fewer_words(folder: Path) -> None:
    file = folder / "dict.en.txt"
    file.write_text("".join(file.read_text("utf-8").splitlines(True)[:50]), "utf-8")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut, "test.en-de.en.idx: got a sentence beyond the end; allowed: files of"),
        (without_index, "test.en-de.en.idx: got no index of sentences; allowed: files of"),
        (with_fewer_words, "whose files fit its dictionaries; these have a word .*there are 54"),
    ],
)
def test_damaged_data_are_named(spoil: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    for file in (*DEMO.glob("test.*"), *DEMO.glob("dict.*")):
        shutil.copy(file, tmp_path)
    spoil(tmp_path)
    with pytest.raises(UsageError, match=said):
        Data(str(tmp_path)).dataset("test")


# ---- systems ------------------------------------------------------------------------------------

SPECS = {
    "greedy": "= our greedy",
    "self_draft": "= our greedy",
    "multiword_beam --beam 5": "beam search",
    f"gad --drafter-path {DEMO}/drafter.pt": "= our greedy",
    f"gad_pp --drafter-path {DEMO}/drafter.pt": "relaxed",
    f"assisted --drafter-path {DEMO}/assistant.pt": "= our greedy",
    f"blockwise --drafter-path {DEMO}/heads.pt": "= our greedy",
    "pgj --block-size 3 --engine-dtype int8": "other dtype",
    f"greedy --path '{DEMO}/../{DEMO.name}/model.pt'": "= our greedy",
    f"multiword_beam --path {DEMO}/ibdecoder.pt": "other model",
}


@pytest.mark.parametrize("spec", SPECS)
def test_a_row_is_that_of_fairseqs_modules_but_for_its_judge(
    spec: str, loaders: tuple[CoreLoader, Models]
) -> None:
    """Outputs, passes, drafts, blocks, parameters and hashes; the promise names our greedy."""
    ours, theirs = (loader.system(read(spec), MODEL, {}) for loader in loaders)
    assert ours.promise == SPECS[spec]
    assert theirs.promise == ours.promise.replace("= our greedy", "exact")
    names = "label command options dtype files language lossless drafts_by parameters".split()
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    numbers = [3, 99, 0, 42]
    assert ours.translate(numbers) == theirs.translate(numbers)
    known = ("lossless", "engine", "engine_dtype", "model", "drafter")
    first, second = (system.provenance() for system in (ours, theirs))
    assert [first[name] for name in known] == [second[name] for name in known]


def test_a_copy_is_the_same_model_and_another_is_not(
    loaders: tuple[CoreLoader, Models], tmp_path: Path
) -> None:
    copied = str(shutil.copy(MODEL, tmp_path / "copy.pt"))
    own = loaders[0]
    assert own.system(read(f"greedy --path {copied}"), MODEL, {}).promise == "= our greedy"
    state = torch.load(copied, weights_only=False)
    state["model"]["decoder.layers.0.fc1.bias"][0] += 1
    torch.save(state, tmp_path / "other.pt")
    spec = read(f"greedy --path {tmp_path / 'other.pt'}")
    assert own.system(spec, MODEL, {}).promise == "other model"


def test_ties_are_told_as_the_audit_tells_them(
    loaders: tuple[CoreLoader, Models], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the gap at the first token that differs: with limits between, the verdict turns."""
    ours, theirs = (loader.system(read("greedy"), MODEL, {"unkpen": 0.5}) for loader in loaders)
    (right,) = (output.tokens for output in ours.translate([3]))
    turned = []
    for other in ([*right[:2], "Frau", *right[3:]], ["Die", *right[1:]], right[:-1]):
        verdicts = []
        for gap in (1e-4, 2.0, 4.0, 8.0, 12.0, 16.0, 32.0):
            monkeypatch.setattr(core, "TIE_GAP", gap)
            monkeypatch.setattr(audit, "TIE_GAP", gap)
            verdicts.append(ours.tie(3, other, right))
            assert verdicts[-1] == theirs.tie(3, other, right), (other, gap)
        assert not verdicts[0] and verdicts[-1] and verdicts == sorted(verdicts)
        turned.append(verdicts.index(True))
    assert min(turned) > 0 and len({*turned}) > 1


@pytest.mark.parametrize("spec", ["beam --beam 4", "greedy --engine torch", "auto"])
def test_what_needs_fairseq_is_not_run(spec: str, loaders: tuple[CoreLoader, Models]) -> None:
    with pytest.raises(NotRun, match=r"^needs \[fairseq\]$"):
        loaders[0].system(read(spec), MODEL, {})


def test_a_decoder_that_is_wrong_is_an_error(loaders: tuple[CoreLoader, Models]) -> None:
    with pytest.raises(UsageError, match="--block-size: got 3, which --decoding greedy does not"):
        CoreSystem(read("greedy --block-size 3"), loaders[0], MODEL, {})


# ---- CTranslate2 --------------------------------------------------------------------------------

LAYOUTS = {
    "default": None,
    "prenorm": None,
    "learned_positions": None,
    "share_all": None,
    "separate": None,
    "layernorm_embedding": None,
    "no_scale": None,
    "gelu": None,
    "mbart": None,
    "no_final_norm": None,
    "no_positions": "whose encoder has no positions",
    "other_dims": "whose sides differ in width",
    "adaptive_softmax": "with an adaptive softmax",
}


@pytest.mark.parametrize("variant", LAYOUTS)
def test_layouts_of_ctranslate2_have_the_same_probabilities(variant: str, tmp_path: Path) -> None:
    task = task_for(variant)
    module = tiny_model(task, variant, torch.float32)
    model = model_of(module)
    assert isinstance(model, Model)
    dictionaries = task.source_dictionary, task.target_dictionary
    words = [each.symbols for each in dictionaries]
    if (refused := LAYOUTS[variant]) is not None:
        with pytest.raises(UsageError, match=f"--peers: CTranslate2 cannot convert .*{refused}"):
            write(model, words, str(tmp_path))
        return
    write(model, words, str(tmp_path))
    there = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    target = [4, 9, 7, 12]
    fed = torch.tensor([[task.target_dictionary.eos(), *target]])
    for source in sources(task, (5, 9)):
        with torch.no_grad():
            logits = module(source[None], torch.tensor([len(source)]), fed)[0]
        wanted = logits.log_softmax(-1)[0, range(5), [*target, task.target_dictionary.eos()]]
        texts = [[words[0][token] for token in source[:-1]]], [[words[1][t] for t in target]]
        (scored,) = there.score_batch(*texts)
        assert scored.log_probs == pytest.approx(wanted.tolist(), abs=1e-4)


# ---- the command --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a small benchmark writes where neither torch nor fairseq is."""
    out = tmp_path_factory.mktemp("alone") / "b.json"
    few = (
        "--sentences 6 --timed 2 --rounds 2 --batch-sizes 2 --busy --peers ctranslate2,transformers"
    )
    decoders = ["pgj --block-size 3", "torch=greedy --engine torch"]
    flags = [word for decoder in decoders for word in ("--decoder", decoder)]
    done = alone("benchmark", DEMO, "--path", MODEL, *few.split(), *flags, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "| fairseq greedy | not run: needs [fairseq] |" in done.stdout
    assert sorted(file.name for file in out.parent.iterdir()) == ["b.json", "b.md", "b.png"]
    found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return found


def test_the_document_says_what_was_not_run_and_why(document: dict[str, Any]) -> None:
    jsonschema.validate(document, json.loads(SCHEMA.read_text("utf-8")))
    names = ("fairseq beam 5", "fairseq greedy", "torch", "transformers")
    assert document["not_run"] == dict.fromkeys(names, "needs [fairseq]")
    systems = {system["label"]: system for system in document["systems"]}
    assert [name for name in systems if "CTranslate2" not in name] == [
        "greedy",
        "own beam 5",
        "pgj --block-size 3",
    ]
    assert {systems[name]["engine"] for name in systems} == {"native", "ctranslate2"}
    assert all(not name.startswith("fairseq") for name in systems)


def test_rows_are_compared_with_our_own_searches(document: dict[str, Any]) -> None:
    """No word calls them fairseq's."""
    output, latency = (
        {
            row["decoder"]: row
            for row in next(t for t in tables(document) if t.title[:7] == name).rows
        }
        for name in ("Output", "Latency")
    )
    for rows in (output, latency):
        assert [row["label"] for row in rows.values()] == [
            "= our greedy",
            "beam search",
            "= our greedy",
            *[NOT_RUN] * 4,
        ]
    assert latency["greedy"]["x_our_greedy"].middle == 1
    assert latency["fairseq greedy"]["x_our_greedy"] is None
    assert "x_fairseq_greedy" not in latency["greedy"] and "x_beam_5" not in latency["greedy"]
    whole = "\n".join(f"{one.title} {one.notes} {one.columns}" for one in tables(document))
    assert "fairseq" not in whole and "identical to our greedy" in whole


def test_a_changed_token_breaks_the_promise(document: dict[str, Any]) -> None:
    system = copy.deepcopy(document["systems"][2])
    assert label(system) == "= our greedy"
    system["agreement"]["1"] |= {"identical": 5, "ties": 1}
    assert label(system) == "= our greedy but for 1 ties of 12"
    system["agreement"]["1"] |= {"ties": 0, "beyond ties": 1}
    assert label(system) == "NOT EXACT (1 of 12)"


def test_such_a_benchmark_is_reported_and_its_blocks_are_not(
    document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page needs no fairseq row; a plot against fairseq's greedy search does."""
    file = tmp_path / "b.json"
    file.write_text(json.dumps(document), "utf-8")
    assert paradec(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    assert "against own beam 5" in (tmp_path / "page.html").read_text("utf-8")
    assert paradec(["analyse", "blocks", str(file)]) == 2
    assert "allowed: one in which fairseq greedy was run" in capsys.readouterr().err


def test_passes_are_counted_against_our_greedy(tmp_path: Path) -> None:
    words = ("--preset", "acceptance", "--subset", "test", "--path", MODEL, "--sentences", "5")
    drafter = ("--sweep", f"drafter-path={DEMO / 'drafter.pt'}", "--sweep", "block-size=4")
    done = alone("benchmark", DEMO, *words, *drafter, "--out", tmp_path / "a.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text("utf-8"))
    rows = {row["decoder"]: row for row in found["rows"]}
    assert [rows[name]["label"] for name in rows] == ["= our greedy", "= our greedy", "relaxed"]
    assert rows["gad"]["identical"] == 100 and rows["gad"]["passes_per_sentence"] < 6
    assert "Identical: to our own greedy search" in found["notes"][2]
    assert "fairseq" not in "".join(found["notes"])


def test_exactness_is_counted_against_our_searches(tmp_path: Path) -> None:
    for name, more in (("greedy", ()), ("beam", ("--sweep", "beam=2"))):
        few = ("--sentences", "4", "--batch-sizes", "2", "--decoder", "self_draft", *more)
        out = tmp_path / f"{name}.json"
        done = alone("benchmark", DEMO, "--preset", "lossless", "--path", MODEL, *few, "--out", out)
        assert done.returncode == 0, done.stderr
        found = json.loads(out.read_text("utf-8"))
        assert {row["identical"] for row in found["rows"]} == {4}
        assert found["notes"][0].split("Judge: ")[1].startswith(f"our own {name} search, for")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--dtype bf16", "--dtype bf16 needs fairseq; install fairseq_paradec[fairseq]"),
        ("--device cuda", "--device cuda needs fairseq; install fairseq_paradec[fairseq]"),
        ("--subset dev", f"--subset: got 'dev'; allowed: one that DATA ({DEMO}) holds"),
        (
            "--preset quality --subset test",
            "needs fairseq; install fairseq_paradec[fairseq]",
        ),
    ],
)
def test_what_the_core_cannot_do_is_one_line(words: str, said: str, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "b.json")
    done = alone("benchmark", DEMO, "--path", MODEL, *words.split(), *out)
    assert (done.returncode, done.stderr) == (2, f"paradec benchmark: error: {said}\n")
