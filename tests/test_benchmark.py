"""paradec benchmark: what it measures, what it says of it, and that it cannot be fooled.

The real runs are on a few sentences of the demo; what has to be exact is timed by a clock of the
tests' own.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jsonschema
import numpy as np
import pytest
import sacrebleu
import torch
from support.commands import DEMO

from fairseq_paradec.analysis import quality, timing
from fairseq_paradec.analysis.benchmark_tables import BEAM, GREEDY, OWN_GREEDY, label
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding import audit
from fairseq_paradec.errors import UsageError
from fairseq_paradec.measure import (
    benchmark,
    documents,
    judge,
    loading,
    machine,
    peers,
    rounds,
    specs,
    systems,
)
from fairseq_paradec.measure.benchmark import ALWAYS
from fairseq_paradec.measure.journal import Journal
from fairseq_paradec.measure.systems import FairseqSystem, Models, Output
from fairseq_paradec.measure.text import plain_text
from fairseq_paradec.measure.timings import Benchmark, Plan

MODEL = str(DEMO / "model.pt")
SCHEMA = Path(documents.__file__).with_name("benchmark.schema.json")
BAR = SimpleNamespace(update=lambda count: None)


@pytest.fixture
def quiet(monkeypatch):
    """Do not look for other work on the machine, which takes half a second a round."""
    monkeypatch.setattr(machine, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(machine, "Others", lambda: SimpleNamespace(cores=lambda: 0.0))


@pytest.fixture(scope="module")
def models() -> Models:
    """The demo's model and test set."""
    return Models(str(DEMO), "test", "fp32", "cpu")


@pytest.fixture(scope="module")
def always(models: Models) -> list[FairseqSystem]:
    """The rows that every benchmark has."""
    return [FairseqSystem(spec, models, MODEL, {}, name) for name, spec in ALWAYS.items()]


# ---- the whole command -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[dict[str, Any], Path]:
    """A small benchmark, and the file it wrote."""
    out = tmp_path_factory.mktemp("a folder") / "new" / "b.json"
    other = shutil.copy(MODEL, out.parent.parent / "other's.pt")
    arguments = [
        str(DEMO), "--path", MODEL, "--sentences", "12", "--timed", "6", "--rounds", "3",
        "--batch-sizes", "4,12,99", "--threads", "1,2", "--busy", "--peers", "--out", str(out),
        "--decoder", "pgj --block-size 3",
        "--decoder", "six wide=hgj --block-size 6 --jacobi-window sliding",
        "--decoder", f'student=beam --beam 1 --path "{other}"',
    ]  # fmt: skip
    assert paradec(["benchmark", *arguments]) == 0
    return json.loads(out.read_text(encoding="utf-8")), out


def test_the_document_fits_its_schema(run):
    document, out = run
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    for system in document["systems"]:
        engine = "fairseq" if system["command"].startswith("beam") else "torch"
        engine = "ctranslate2" if system["promise"] == "peer" else engine
        assert system["engine"] == engine
        assert system["engine_dtype"] == system["dtype"] and not system["compiled"]
        if system["promise"] in ("exact", "beam search"):
            assert system["lossless"] == (system["promise"] == "exact")
    # Benchmarks of version 1 do not say so, and are read all the same.
    older = copy.deepcopy(document) | {"version": 1}
    for system in older["systems"]:
        del system["lossless"]
    jsonschema.validate(older, schema)
    with pytest.raises(jsonschema.ValidationError, match="lossless"):
        jsonschema.validate(older | {"version": 2}, schema)
    assert sorted(p.name for p in out.parent.iterdir()) == ["b.json", "b.md", "b.png"]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    page = out.with_suffix(".md").read_text(encoding="utf-8")
    assert all(f"## {one['title']}" in page for one in document["tables"])
    assert document["setting"]["sentences"] == 12
    assert document["machine"]["threads"] == 1


def rows_of(document: dict[str, Any], title: str, head: str) -> dict[str, dict[str, Any]]:
    """Return one table's rows by the cell in the column ``head``."""
    (found,) = (one for one in document["tables"] if one["title"].startswith(title))
    return {row[head]: row for row in found["rows"]}


def numbers(text: str) -> list[float]:
    """Read ``1.52x (1.50-1.53)``."""
    return [float(part) for part in text.replace("x", "").replace("(", "").strip(")")
            .replace("-", " ").split()]  # fmt: skip


def test_ratios_are_recomputed_from_the_raw_samples(run):
    document, _ = run
    raw = document["seconds"]["latency"]["1"]
    assert {len(rounds) for rounds in raw.values()} == {3}
    assert {len(times) for rounds in raw.values() for times in rounds} == {6}
    heads = {"x beam 5": BEAM, "x fairseq greedy": GREEDY, "x our greedy": OWN_GREEDY}
    rows = rows_of(document, "Latency", "decoder")
    assert len(rows) == 6
    for name, row in rows.items():
        for head, base in heads.items():
            ratios = []
            for turn in range(3):
                theirs = ours = 0.0
                for sentence in range(6):
                    theirs += raw[base][turn][sentence]
                    ours += raw[name][turn][sentence]
                ratios.append(theirs / ours)
            ratios.sort()
            assert numbers(row[head]) == pytest.approx([ratios[1], ratios[0], ratios[2]], abs=0.006)
        per_sentence = sorted(sorted(raw[name][r][i] for r in range(3))[1] for i in range(6))
        place = 0.95 * 5
        p95 = per_sentence[4] + (place - 4) * (per_sentence[5] - per_sentence[4])
        assert row["p95"] == pytest.approx(1000 * p95, abs=0.006)
        middles = sorted((sorted(t)[2] + sorted(t)[3]) / 2 for t in raw[name])
        expected = [1000 * middles[1], 1000 * middles[0], 1000 * middles[2]]
        assert numbers(row["ms per sentence"]) == pytest.approx(expected, abs=0.006)
    sweep = document["seconds"]["throughput"]
    assert list(sweep) == ["4", "12"][: len(sweep)]  # 99 is more than there are sentences
    assert [len(times) for times in sweep["4"]["greedy"]] == [3] * 3
    (table,) = (t for t in document["tables"] if t["title"].startswith("Throughput"))
    for row in table["rows"]:
        times = sweep[str(row["batch"])]
        rates = sorted(12 / sum(batches) for batches in times[row["decoder"]])
        expected = [rates[1], rates[0], rates[2]]
        assert numbers(row["sentences/s"]) == pytest.approx(expected, abs=0.06)
        gains = [sum(a) / sum(b) for a, b in zip(times[GREEDY], times[row["decoder"]], strict=True)]
        assert numbers(row["x fairseq greedy"])[0] == pytest.approx(sorted(gains)[1], abs=0.006)


def test_outputs_are_told_apart(run):
    document, _ = run
    rows = rows_of(document, "Output", "decoder")
    assert {name: row["label"] for name, row in rows.items()} == {
        BEAM: "beam search",
        GREEDY: "exact",
        OWN_GREEDY: "exact",
        "pgj --block-size 3": "exact",
        "six wide": "exact",
        "student": "exact",
    }
    assert rows["six wide"]["identical to greedy"] == "12/12"
    assert (
        rows["student"]["BLEU - greedy"] == "+0.00 [+0.00, +0.00]"
    )  # a copy of the model: known by its weights
    assert rows[BEAM]["BLEU - beam 5"] == "+0.00 [+0.00, +0.00]"
    assert rows["pgj --block-size 3"]["passes per sentence"] < rows[GREEDY]["passes per sentence"]
    assert rows[GREEDY]["tokens per pass"] == rows[OWN_GREEDY]["tokens per pass"] == 1.0
    expected = sum(p.numel() for p in loading.load(str(DEMO), MODEL)[0][0].parameters())
    assert {row["parameters"] for row in rows.values()} == {expected}
    assert "nrefs:1|case:mixed|eff:no|tok:13a" in document["signatures"]["BLEU"]


def test_peers_have_a_table_of_their_own(run):
    document, _ = run
    peers = rows_of(document, "Peers", "peer")
    assert len(peers) == 4
    assert {row["dtype"] for row in peers.values()} == {"float32", "int8"}
    assert all(row["threads"] in (1, 2) for row in peers.values())
    # The same model, converted right: the same words.
    assert peers["CTranslate2 greedy, float32"]["identical"] == "12/12"
    beam = rows_of(document, "Output", "decoder")[BEAM]
    assert peers["CTranslate2 beam 5, float32"]["BLEU"] == beam["BLEU"]
    for title in ("Output", "Latency", "Throughput", "Threads", "Speed-up"):
        (table,) = (one for one in document["tables"] if one["title"].startswith(title))
        assert not any("CTranslate2" in row["decoder"] for row in table["rows"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["seconds"]["latency"]["1"]["greedy"][0].__setitem__(0, 1e-6), "raw samples"),
        (lambda d: d["systems"][0].update(promise="fast"), r"\$\.systems\[0\]\.promise: 'fast'"),
        (lambda d: d["systems"][1].update(dtype="fp16"), "several dtypes or threads"),
        (lambda d: d["systems"][2].update(threads=8), "several dtypes or threads"),
        (lambda d: d["setting"].update(threads=[4, 2]), "not of the threads that the setting"),
        (lambda d: d["setting"].update(rounds=50), "other numbers of samples than rounds"),
        (lambda d: d["seconds"]["throughput"]["4"]["greedy"][1].pop(), "numbers of samples"),
        (lambda d: d["source_lengths"].append(9), "source lengths"),
        (lambda d: d["systems"][3].update(label="greedy"), "the same label"),
        (lambda d: d["seconds"]["latency"]["2"].pop("student"), "latency 2 is not of the systems"),
    ],
)
def test_a_doctored_file_is_refused(run, change, words):
    document = json.loads(json.dumps(run[0]))
    documents.check(document, "b.json")
    change(document)
    with pytest.raises(UsageError, match=words):
        documents.check(document, "b.json")


# ---- what is timed -----------------------------------------------------------------------------


class Clock:
    """Stands for the module ``time`` in the benchmark."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Fake:
    """A system that takes as long as told, and notes when it was called."""

    command, parameters, dtype, threads, promise = "fake", 1, "fp32", None, "exact"
    models: list[Any] = []
    task = None

    def __init__(self, name: str, clock: Clock, seconds: Any, calls: list[Any]) -> None:
        self.label, self.clock, self.seconds, self.calls = name, clock, seconds, calls

    def translate(self, sentences: list[int]) -> list[Output]:
        self.calls.append((self.label, tuple(sentences)))
        self.clock.now += self.seconds(sentences)
        return [Output([f"w{i}"], f"w{i}", 1) for i in sentences]

    def tie(self, sentence: int, ours: list[str], theirs: list[str]) -> bool:
        return False

    def provenance(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def clock(monkeypatch, quiet) -> Clock:
    """A clock that only fakes move."""
    clock = Clock()
    monkeypatch.setattr(rounds, "time", clock)
    return clock


def plan(**changes: Any) -> Plan:
    """Six sentences, two rounds."""
    usual: dict[str, Any] = {
        "sentences": list(range(6)), "timed": list(range(6)), "batch_sizes": (), "threads": (1,),
        "rounds": 2, "busy": True,
    }  # fmt: skip
    return Plan(**(usual | changes))


def test_each_translation_is_timed_alone_in_changing_orders(clock):
    calls: list[Any] = []
    costs = {"a": 1.0, "b": 2.0, "c": 4.0}
    fakes = [Fake(n, clock, lambda s, c=c: c + s[0], calls) for n, c in costs.items()]
    many = list(range(40))
    bench = Benchmark(fakes, plan(sentences=many, timed=many), Journal(None, {}), BAR)
    bench.run()
    assert bench.seconds("latency/1") == {
        name: [[cost + i for i in range(40)]] * 2 for name, cost in costs.items()
    }
    timed = calls[-240:]
    turns = [timed[i : i + 3] for i in range(0, 240, 3)]
    assert [{sentences for _, sentences in turn} for turn in turns] == [{(i,)} for i in many] * 2
    orders = ["".join(name for name, _ in turn) for turn in turns]
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    # Each order is one of six; none is left out, or preferred by far.
    assert all(4 < orders.count(order) < 30 for order in ("abc", "acb", "bac", "bca", "cab", "cba"))


def test_the_sweep_ends_where_nobody_gains(clock):
    def gains_until_four(sentences: list[int]) -> float:
        return 1.0 if len(sentences) <= 4 else len(sentences) / 4

    fakes = [Fake("a", clock, gains_until_four, []), Fake("b", clock, len, [])]
    many = list(range(16))
    bench = Benchmark(
        fakes,
        plan(sentences=many, timed=many[:2], batch_sizes=(2, 4, 8, 16)),
        Journal(None, {}),
        BAR,
    )
    bench.run()
    assert list(bench.measured("throughput")) == ["2", "4", "8"]
    assert bench.seconds("throughput/4")["a"] == [[1.0] * 4] * 2


def test_all_that_a_user_waits_for_is_timed(clock, always, monkeypatch):
    greedy = FairseqSystem("greedy", Models(str(DEMO), "test", "fp32", "cpu"), MODEL, {})

    def slower(function: Any, seconds: float) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            clock.now += seconds
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(greedy.dataset, "collater", slower(greedy.dataset.collater, 1))
    encoder = greedy.generator.scorer._encoder
    monkeypatch.setattr(encoder, "layers", slower(encoder.layers, 10))
    scorer = greedy.generator.scorer
    monkeypatch.setattr(scorer, "log_probs", slower(scorer.log_probs, 100))
    monkeypatch.setattr(systems, "plain_text", slower(plain_text, 10_000))
    bench = Benchmark([greedy], plan(rounds=1), Journal(None, {}), BAR)
    bench.run()
    passes = bench.journal.entries["outputs/1/greedy"]["passes"]
    assert bench.seconds("latency/1")["greedy"][0] == [10_011 + 100 * p for p in passes]


# ---- what is said of the output ----------------------------------------------------------------


class OneTokenWrong(FairseqSystem):
    """Promises greedy's tokens, and changes one of them in the sentence 3."""

    def translate(self, sentences: Any) -> list[Output]:
        outputs = super().translate(sentences)
        for number, output in zip(sentences, outputs, strict=True):
            if number == 3:
                output.tokens[2] = "Katze"
        return outputs


def document_of(systems: list[Any], **changes: Any) -> dict[str, Any]:
    """Run a benchmark on twelve sentences and return what is reported."""
    sentences = list(range(12))
    chosen = plan(sentences=sentences, timed=sentences[:2], rounds=1, **changes)
    bench = Benchmark(systems, chosen, Journal(None, {}), BAR)
    bench.run()
    texts, source = judge.references(str(DEMO), "test", 100, None)
    setting = {
        "subset": "test", "threads": [1], "dtype": "fp32", "sentences": 12, "reference": source,
    }  # fmt: skip
    return benchmark.report(bench, quality.TranslationQuality(texts[:12], resamples=20), setting)


@pytest.mark.slow
def test_a_changed_token_is_never_called_exact(models, always, quiet, monkeypatch):
    wrong = OneTokenWrong("w=greedy", models, MODEL, {})
    assert wrong.promise == "exact"
    document = document_of([*always, wrong], batch_sizes=(4,))
    found = {system["label"]: system for system in document["systems"]}
    assert found["w"]["agreement"]["4"] == {
        "sentences": 12, "identical": 11, "ties": 0, "beyond ties": 1,
    }  # fmt: skip
    assert label(found["w"]) == "NOT EXACT (2 of 24)"  # at both batch sizes
    monkeypatch.setattr(audit, "TIE_GAP", 1e9)  # all are ties
    excused = document_of([*always, OneTokenWrong("w=greedy", models, MODEL, {})])
    assert label(excused["systems"][-1]) == "exact but for 1 ties of 12"
    assert label(found[OWN_GREEDY]) == label(found[GREEDY]) == "exact"
    for one in document["tables"]:
        for row in one["rows"]:
            assert (row["label"] == "exact") == (row["decoder"] in (GREEDY, OWN_GREEDY))


class Cheating(FairseqSystem):
    """Is greedy search as long as it is watched."""

    watched = 6 + 12 + 2  # warm-up, all sentences, and the warm-up of the timed round

    def translate(self, sentences: Any) -> list[Output]:
        if self.watched > 0:
            self.watched -= 1
            return super().translate(sentences)
        return [Output(["x"], "x", 1) for _ in sentences]


def test_outputs_are_compared_when_they_are_timed_too(models, always, quiet):
    document = document_of([*always, Cheating("c=greedy", models, MODEL, {})])
    system = document["systems"][-1]
    assert system["agreement"]["1"]["identical"] == 12
    assert system["changed"] > 0
    assert label(system) == f"NOT EXACT ({system['changed']} outputs changed when timed)"
    assert {s["label"]: s["changed"] for s in document["systems"][:3]} == dict.fromkeys(ALWAYS, 0)


def test_sentences_that_cannot_be_decoded_are_left_out(always):
    system = SimpleNamespace(task=always[0].task, models=always[0].models)
    dataset = always[0].dataset
    sizes = dataset.src_sizes.copy()
    sizes[[5, 7]] = 1, 5000
    pretend = SimpleNamespace(src_sizes=sizes, tgt_sizes=dataset.tgt_sizes)
    system.task = SimpleNamespace(dataset=lambda subset: pretend)
    args = SimpleNamespace(subset="test", sentences=None, timed=10, batch_sizes=[4, 400],
                           threads=[1], rounds=1, device="cpu", busy=True)  # fmt: skip
    chosen = benchmark.make_plan(system, args)
    assert sorted(chosen.sentences) == [i for i in range(100) if i not in (5, 7)]
    assert (len(chosen.timed), chosen.batch_sizes) == (10, (4,))


def test_references_are_the_raw_text_of_the_data_folder(tmp_path):
    detokenised, source = judge.references(str(DEMO), "test", 100, None)
    assert (len(detokenised), source) == (100, "DATA, detokenised")
    given = DEMO / "raw" / "demo.de"
    lines, source = judge.references(str(DEMO), "test", 100, given)
    assert lines == given.read_text(encoding="utf-8").splitlines()
    assert sum(a == b for a, b in zip(lines, detokenised, strict=True)) > 80
    (tmp_path / "raw").mkdir()
    shutil.copy(given, tmp_path / "raw" / "test.de")
    for file in DEMO.glob("test.en-de.*"):
        shutil.copy(file, tmp_path)
    assert judge.references(str(tmp_path), "test", 100, None)[0] == lines
    short = tmp_path / "short"
    short.write_text("Ein Satz.\n", encoding="utf-8")
    with pytest.raises(UsageError, match="--reference.* with 1 lines.* each of 100"):
        judge.references(str(DEMO), "test", 100, short)
    with pytest.raises(UsageError, match="--reference.*no-file"):
        judge.references(str(DEMO), "test", 100, tmp_path / "no-file")


# ---- broken off and gone on with ---------------------------------------------------------------


class Stop(Exception):
    """What breaks a run off."""


def test_a_broken_off_run_goes_on_and_measures_nothing_twice(clock, tmp_path):
    wanted: list[Any] = []

    def make(calls: list[Any], last: int) -> Benchmark:
        def seconds(sentences: list[int]) -> float:
            if len(calls) > last:
                raise Stop
            return 1.0 + sentences[0]

        fakes = [Fake(name, clock, seconds, calls) for name in "ab"]
        journal = Journal(tmp_path / "j.jsonl", {"run": 1})
        return Benchmark(fakes, plan(batch_sizes=(3,)), journal, BAR)

    whole = Benchmark([Fake(n, clock, lambda s: 1.0 + s[0], wanted) for n in "ab"],
                      plan(batch_sizes=(3,)), Journal(None, {}), BAR)  # fmt: skip
    whole.run()
    calls: list[Any] = []
    stops = 0
    while True:
        before = len(calls)
        bench = make(calls, before + 30)  # more than a round's 12 and a warm-up's 12
        try:
            bench.run()
            break
        except Stop:
            stops += 1
            bench.journal.close()
    assert stops > 2
    assert bench.journal.entries == whole.journal.entries
    keys = [
        json.loads(line).get("key") for line in (tmp_path / "j.jsonl").read_bytes().splitlines()
    ]
    assert len(keys) == len(set(keys))


def test_a_torn_line_is_dropped_and_another_run_refused(tmp_path):
    path = tmp_path / "new" / "j.jsonl"
    journal = Journal(path, {"threads": [1], "versions": {"torch": "2"}})
    journal.put("a", 1)
    journal.put("b", [2.5])
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"key": "c", "val')
    again = Journal(path, {"threads": [1], "versions": {"torch": "2"}})
    assert again.entries == {"a": 1, "b": [2.5]}
    again.put("c", 3)
    with pytest.raises(UsageError, match="another process measures into"):
        Journal(path, again.fingerprint)
    again.close()
    assert Journal(path, again.fingerprint).entries == {"a": 1, "b": [2.5], "c": 3}
    with pytest.raises(UsageError, match=r"other versions torch: got '3'; allowed: '2'"):
        Journal(path, {"threads": [1], "versions": {"torch": "3"}})
    path.write_bytes(b"not JSON\n")
    with pytest.raises(UsageError, match="is damaged"):
        Journal(path, again.fingerprint)


# ---- what a user types -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("=pj", "LABEL"),
        ("beam --fp16", "--dtype fp16"),
        ("greedy --max-len-b 20", "--max-len-b is no flag of one decoder; allowed: --max-len-b"),
        ("greedy --source-lang de", "--source-lang is no flag of one decoder"),
        ("greedy --block-size 3", "--block-size: got 3, which --decoding greedy does not use"),
        ("pgj --block-size three", "invalid int value: 'three'"),
        ("pgj --blocksize 3", "--blocksize"),
        ("pgj 'x", "No closing quotation"),
    ],
)
def test_a_wrong_decoder_is_named(models, spec, words):
    with pytest.raises(UsageError) as caught:
        FairseqSystem(spec, models, MODEL, {})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "b.txt"], ".json"),
        (["--out", "b.json", "--path", "no.pt"], "--path: got 'no.pt'"),
        (["--out", "b.json", "--decoder", "greedy"], "LABEL= of its own"),
        (["--out", "b.json", "--peers", "--unkpen", "2"], "--peers"),
        (["--out", "b.json", "--subset", "exam"], "'exam'"),
        (["--out", "b.json", "--temperature", "0"], "a number above 0"),
        (["--out", "b.json", "--peers", "--decoder", "CTranslate2 greedy, int8=pj"], "LABEL="),
    ],
)
def test_a_mistake_is_named(arguments, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    try:
        status = paradec(["benchmark", str(DEMO), "--path", MODEL, *arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert words in capsys.readouterr().err.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_labels_and_promises(models):
    assert specs.split_label(" my  label = pj") == ("my label", "pj")
    spec = "gad --drafter-path=a=b.pt"
    assert specs.split_label(spec) == (spec, spec)
    for spec, promise in {
        "beam --beam 1 --sampling": "relaxed",
        "beam --beam 1 --no-repeat-ngram-size 3": "relaxed",
        "beam --beam 4 --lenpen 0.6": "beam search",
        f"greedy --path '{DEMO}/../{DEMO.name}/model.pt'": "exact",
    }.items():
        assert FairseqSystem(spec, models, MODEL, {}).promise == promise


def test_limits_hold_for_all(models):
    common = {"max_len_b": 4, "min_len": 4}
    rows = [FairseqSystem(spec, models, MODEL, common) for spec in (*ALWAYS.values(), "pj")]
    rows.append(peers.CTranslate2System(1, "float32", models, MODEL, common))
    assert {len(row.translate([8])[0].tokens) for row in rows} == {4}


# ---- the machine -------------------------------------------------------------------------------


def test_a_busy_machine_is_not_timed(monkeypatch):
    loads = iter([1.9, 0.7, 0.02])
    monkeypatch.setattr(machine, "busy_cores", lambda: next(loads))
    assert machine.wait_until_idle() == 0.02
    monkeypatch.setattr(machine, "busy_cores", lambda: 1.9)
    with pytest.raises(UsageError, match=r"others use 1\.9 cores; allowed: .*--busy"):
        machine.wait_until_idle()


def test_this_process_is_none_of_the_others(monkeypatch):
    """In four seconds all used five seconds of a core, this process three."""
    monkeypatch.setattr(machine, "_cpu_seconds", iter([100.0, 105.0]).__next__)
    clock = mock.Mock()
    clock.process_time.side_effect = [10.0, 13.0]
    clock.monotonic.side_effect = [1000.0, 1004.0]
    monkeypatch.setattr(machine, "time", clock)
    assert machine.Others().cores() == 0.5


def test_peak_memory_is_what_was_needed_at_once():
    held = torch.ones(20 * 2**20)
    result, peak = machine.with_peak_memory(
        lambda: (torch.ones(10 * 2**20) + 1).sum().item(), "cpu"
    )
    assert result == 2 * 10 * 2**20
    assert 78 < peak < 100  # two times 40 MiB at once; not the 80 MiB that were held before
    assert held[0] == 1


# ---- numbers -----------------------------------------------------------------------------------


def test_paired_bootstrap_against_a_loop():
    references = [f"the cat number {i} sits on mat {i * i} and sleeps there" for i in range(9)]
    ours = [r.replace("cat", "dog") if i % 3 else r for i, r in enumerate(references)]
    theirs = [r.replace("sleeps there", "sleeps") if i % 2 else r for i, r in enumerate(references)]
    judge = quality.TranslationQuality(references, resamples=40)
    draws = np.random.default_rng(quality.SEED).choice(9, size=(40, 9), replace=True)
    metrics = {"BLEU": sacrebleu.BLEU(), "chrF": sacrebleu.CHRF()}
    for name, (difference, low, high) in judge.differences(ours, theirs).items():
        sampled = []
        for draw in [range(9), *draws]:
            texts = [[lines[i] for i in draw] for lines in (ours, theirs, references)]
            a, b = (metrics[name].corpus_score(texts[k], [texts[2]]).score for k in (0, 1))
            sampled.append(a - b)
        assert difference == pytest.approx(sampled[0])
        assert [low, high] == pytest.approx(list(np.percentile(sampled[1:], [2.5, 97.5])))
        assert low < difference < high
    assert judge.differences(ours, ours)["BLEU"] == (0, 0, 0)


def test_times_by_hand():
    slow, fast = [[2.0, 4.0], [6.0, 6.0], [9.0, 1.0]], [[1.0, 1.0], [2.0, 2.0], [2.0, 3.0]]
    assert timing.speed_up(slow, fast) == timing.Spread(3.0, 2.0, 3.0)
    assert timing.speed_up(slow, fast, items=[1]) == timing.Spread(3.0, 1 / 3, 4.0)
    assert timing.round_medians(slow) == timing.Spread(5.0, 3.0, 6.0)
    assert timing.percentile(slow, 50) == 5.0  # of the sentences' medians, 6 and 4
    bins = {"2-3": [2, 5], "4-5": [0, 7], "6-7": [3, 4], "8-9": [1, 6]}
    assert timing.length_bins([5, 9, 2, 7, 7, 3, 8, 4], 4) == bins
    assert timing.length_bins([1, 1, 1, 9], 2) == {"1": [0, 1, 2], "2-9": [3]}


def test_the_order_of_sentences_is_always_the_same(always):
    """fairseq shuffles sentences of equal length in every subset but ``test``."""
    dataset = always[0].dataset
    order = loading.by_length(dataset)
    assert order == dataset.ordered_indices().tolist()  # a test set: as fairseq
    sizes = [dataset.src_sizes[i] for i in order]
    assert sizes == sorted(sizes) and sorted(order) == list(range(len(dataset)))
    dataset.shuffle = True
    try:
        assert any(dataset.ordered_indices().tolist() != order for _ in range(5))
        assert loading.by_length(dataset) == order
    finally:
        dataset.shuffle = False
