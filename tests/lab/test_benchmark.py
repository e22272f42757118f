"""paradec benchmark: what it measures, what it says of it, and that it cannot be fooled.

The real runs are on a few sentences of the demo; what has to be exact is timed by a clock of the
tests' own.
"""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jsonschema
import numpy as np
import pytest
import torch
from pytest import approx
from support.builders import sources, task_for, tiny_model
from support.commands import DEMO

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding import audit
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.analysis import quality
from fairseq_paradec.lab.analysis.benchmark_tables import BEAM, GREEDY, OWN_GREEDY, label, tables
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.data.journal import Journal
from fairseq_paradec.lab.data.table import Value
from fairseq_paradec.lab.measure import benchmark, judge, loading, machine, own
from fairseq_paradec.lab.measure.outputs import Output
from fairseq_paradec.lab.measure.peers import numbers_of_threads
from fairseq_paradec.lab.measure.specs import Spec, read, read_sweeps, split_label, swept
from fairseq_paradec.lab.measure.systems import FairseqSystem, Models
from fairseq_paradec.lab.measure.timings import Benchmark, Plan
from fairseq_paradec.lab.measure.transformers_peer import converted, transformers_systems

MODEL = str(DEMO / "model.pt")
SCHEMA = Path(documents.__file__).with_name("benchmark.schema.json")


@pytest.fixture
def quiet(monkeypatch):
    """Do not look for other work on the machine, which takes half a second a round."""
    monkeypatch.setattr(machine, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(machine, "Others", lambda: SimpleNamespace(cores=lambda: 0.0))


@pytest.fixture(scope="module")
def models():
    return Models(str(DEMO), "test", "fp32", "cpu")


@pytest.fixture(scope="module")
def always(models):
    specs = [Spec.of(options, label) for label, options in benchmark.ALWAYS.items()]
    return [FairseqSystem(spec, models, MODEL, {}) for spec in specs]


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """What a small benchmark writes."""
    out = tmp_path_factory.mktemp("a folder") / "new" / "b.json"
    other = shutil.copy(MODEL, out.parent.parent / "other's.pt")
    few = "--sentences 10 --timed 3 --rounds 3 --batch-sizes 5,10,99 --threads 1,2 --busy --peers"
    arguments = [str(DEMO), "--path", MODEL, *few.split(), "--out", str(out)]
    for decoder in (
        "pgj --block-size 3",
        "six wide=hgj --block-size 6 --jacobi-window sliding",
        f'student=beam --beam 1 --path "{other}"',
        "eighth=pj --engine-dtype int8",
    ):
        arguments += ["--decoder", decoder]
    assert paradec(["benchmark", *arguments]) == 0
    assert sorted(p.name for p in out.parent.iterdir()) == ["b.json", "b.md", "b.png"]
    return json.loads(out.read_text(encoding="utf-8"))


def test_the_document_fits_its_schema(document):
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    for system in document["systems"]:
        engine = "fairseq" if system["command"].startswith("beam") else "native"
        assert system["engine"] == ("ctranslate2" if system["promise"] == "peer" else engine)
        assert system["engine_dtype"] == system["dtype"]
        exact = system["promise"] in ("exact", "other dtype")
        assert system["lossless"] == exact or system["promise"] == "peer"


def table(document, title):
    """The rows of one table."""
    (found,) = (one.rows for one in tables(document) if one.title.startswith(title))
    return found


def by_decoder(document, title):
    return {row["decoder"]: row for row in table(document, title)}


def is_spread(cell, samples):
    """Whether a cell tells the median of the rounds and their range."""
    wanted = [np.median(samples), min(samples), max(samples)]
    return [cell.middle, cell.low, cell.high] == approx(wanted) and cell.count == len(samples)


def test_ratios_are_recomputed_from_the_raw_samples(document):
    raw = {n: np.array(times) for n, times in document["seconds"]["latency"]["1"].items()}
    assert {times.shape for times in raw.values()} == {(3, 3)}  # rounds, sentences
    heads = {"x_beam_5": BEAM, "x_fairseq_greedy": GREEDY, "x_our_greedy": OWN_GREEDY}
    rows = by_decoder(document, "Latency")
    assert len(rows) == 7
    for shown, row in rows.items():
        name = shown.partition(" [")[0]
        for head, base in heads.items():
            assert is_spread(row[head], raw[base].sum(axis=1) / raw[name].sum(axis=1))
        assert is_spread(row["ms_per_sentence"], 1000 * np.median(raw[name], axis=1))
        p95 = np.percentile(np.median(raw[name], axis=0), 95)
        assert row["p95"] == approx(1000 * p95, abs=0.006)
    sweep = document["seconds"]["throughput"]
    assert list(sweep) == ["5", "10"][: len(sweep)]  # 99 is more than there are sentences
    for row in table(document, "Throughput"):
        times = sweep[str(row["batch"])]
        names = row["decoder"].partition(" [")[0], GREEDY
        ours, greedys = (np.array(times[name]).sum(axis=1) for name in names)
        assert np.array(times[GREEDY]).shape == (3, 10 / row["batch"])
        assert is_spread(row["sentences_per_second"], 10 / ours)
        assert is_spread(row["x_fairseq_greedy"], greedys / ours)


def test_outputs_are_told_apart(document):
    rows = by_decoder(document, "Output")
    assert {name: row["label"] for name, row in rows.items()} == {
        BEAM: "beam search",
        GREEDY: "exact",
        "greedy [native fp32]": "exact",
        "pgj --block-size 3 [native fp32]": "exact",
        "six wide [native fp32]": "exact",
        "student [fairseq fp32]": "exact",
        "eighth [native int8]": "other dtype",
    }


def test_outputs_are_counted_and_judged(document):
    rows = {name.partition(" [")[0]: row for name, row in by_decoder(document, "Output").items()}
    assert rows["six wide"]["identical_to_greedy"] == Value.share(10, 10)
    # A copy of the model is known by its weights.
    same = Value(0.0, 0.0, 0.0)
    assert rows["student"]["BLEU_less_greedy"] == rows[BEAM]["BLEU_less_beam_5"] == same
    assert rows["pgj --block-size 3"]["passes_per_sentence"] < rows[GREEDY]["passes_per_sentence"]


def test_numbers_of_threads():
    assert numbers_of_threads(6, [3, 1]) == [1, 2, 3, 4, 6]


def test_peers_have_a_table_of_their_own(document):
    """The same model, converted right, says the same words."""
    found = {row["peer"]: row for row in table(document, "Peers")}
    assert [*found] == [
        f"CTranslate2 {search}, {dtype}, {count} thread{'s' * (count > 1)}"
        for dtype in ("float32", "int8")
        for search in ("greedy", "beam 5")
        for count in numbers_of_threads(len(os.sched_getaffinity(0)), [1, 2])
    ]
    assert found["CTranslate2 greedy, float32, 1 thread"]["identical"] == Value.share(10, 10)
    beam = by_decoder(document, "Output")[BEAM]
    assert found["CTranslate2 beam 5, float32, 2 threads"]["BLEU"] == beam["BLEU"]


def test_a_peer_with_as_many_threads_is_among_the_others(document):
    assert "CTranslate2 greedy, int8, 1 thread" in by_decoder(document, "Throughput")
    assert "2 threads" not in str(table(document, "Throughput"))


def test_threads_of_a_peer_are_timed(document):
    two = np.array(document["seconds"]["latency"]["2"]["CTranslate2 beam 5, int8, 2 threads"])
    cell = by_decoder(document, "Threads")["CTranslate2 beam 5, int8"]["threads_2_ms"]
    assert is_spread(cell, 1000 * np.median(two, axis=1))


def test_a_doctored_file_is_refused(document):
    documents.check(document, "b.json")
    for change, words in (
        (lambda d: d["seconds"]["latency"]["1"]["greedy"][0].__setitem__(0, 0), r"0 is less than"),
        (lambda d: d["systems"][0].update(promise="fast"), r"\$\.systems\[0\]\.promise: 'fast'"),
        (lambda d: d["systems"][1].update(dtype="fp16"), "several dtypes or threads"),
        (lambda d: d["setting"].update(threads=[4, 2]), "not of the threads that the setting"),
        (lambda d: d["setting"].update(rounds=50), "other numbers of samples than rounds"),
        (lambda d: d["seconds"]["throughput"]["5"]["greedy"][1].pop(), "numbers of samples"),
        (lambda d: d["source_lengths"].append(9), "source lengths"),
        (lambda d: d["systems"][3].update(label="greedy"), "the same label"),
        (lambda d: d["seconds"]["latency"]["2"].pop("student"), "latency 2 is not of the systems"),
    ):
        other = copy.deepcopy(document)
        change(other)
        with pytest.raises(UsageError, match=words):
            documents.check(other, "b.json")


class Fake:
    """A system that takes as long as told, and notes when it was called."""

    command, parameters, dtype, threads, promise = "fake", 1, "fp32", None, "exact"
    models, task = (), None

    def __init__(self, name, clock, seconds, calls):
        self.label, self.clock, self.seconds, self.calls = name, clock, seconds, calls

    def translate(self, sentences):
        self.calls.append((self.label, tuple(sentences)))
        self.clock.now += self.seconds(sentences)
        return [Output([f"w{i}"], f"w{i}", 1) for i in sentences]

    def provenance(self):
        return {}


@pytest.fixture
def clock(monkeypatch, quiet):
    """A clock that only fakes move."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr("fairseq_paradec.lab.measure.rounds.time", clock)
    return clock


def bench(some, journal=None, sentences=6, timed=None, **changes):
    """A benchmark in two rounds."""
    usual = {"batch_sizes": (), "threads": (1,), "rounds": 2, "busy": True}
    count = [*range(sentences)]
    plan = Plan(**(usual | {"sentences": count, "timed": count[:timed]} | changes))
    return Benchmark(some, plan, journal or Journal(None, {}))


def test_each_translation_is_timed_alone_in_changing_orders(clock):
    calls = []
    costs = {"a": 1.0, "b": 2.0, "c": 4.0}
    fakes = [Fake(n, clock, lambda s, c=c: c + s[0], calls) for n, c in costs.items()]
    whole = bench(fakes, sentences=40)
    whole.run()
    wanted = {name: [[cost + i for i in range(40)]] * 2 for name, cost in costs.items()}
    assert whole.seconds("latency/1") == wanted
    timed = calls[-240:]
    turns = [timed[i : i + 3] for i in range(0, 240, 3)]
    assert [{items for _, items in turn} for turn in turns] == [{(i,)} for i in range(40)] * 2
    orders = ["".join(name for name, _ in turn) for turn in turns]
    assert set(orders) == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert all(4 < orders.count(order) < 30 for order in orders), "one is preferred by far"


def test_the_sweep_ends_where_nobody_gains(clock):
    fakes = [Fake("a", clock, lambda s: max(len(s) / 4, 1), []), Fake("b", clock, len, [])]
    found = bench(fakes, sentences=16, timed=2, batch_sizes=(2, 4, 8, 16))
    found.run()
    assert found.settings("throughput") == [f"throughput/{size}" for size in (2, 4, 8)]
    assert found.seconds("throughput/4")["a"] == [[1.0] * 4] * 2


def test_all_that_a_user_waits_for_is_timed(clock, monkeypatch):
    models = Models(str(DEMO), "test", "fp32", "cpu")
    a_call_a_token = read("greedy=greedy --engine torch")
    greedy = FairseqSystem(a_call_a_token, models, MODEL, {})
    scorer = greedy.generator.scorer

    def slow_down(place, name, seconds):
        original = getattr(place, name)

        def wrapped(*args, **kwargs):
            clock.now += seconds
            return original(*args, **kwargs)

        monkeypatch.setattr(place, name, wrapped)

    slow_down(greedy.dataset, "collater", 1)
    slow_down(scorer.passes, "encode", 10)
    slow_down(scorer, "choose", 100)
    slow_down(own, "plain_text", 10_000)
    whole = bench([greedy], rounds=1)
    whole.run()
    passes = whole.journal.entries["outputs/1/greedy"]["passes"]
    assert whole.seconds("latency/1")["greedy"][0] == [10_011 + 100 * p for p in passes]


class Wrong(FairseqSystem):
    """Promises greedy's tokens, and changes one of them in the sentence 3."""

    def translate(self, sentences):
        outputs = super().translate(sentences)
        if 3 in sentences:
            outputs[[*sentences].index(3)].tokens[2] = "Katze"
        return outputs


class Cheating(FairseqSystem):
    """Is greedy search as long as it is watched."""

    watched = 6 + 12 + 2  # warm-up, all sentences, and the warm-up of the timed round

    def translate(self, sentences):
        self.watched -= 1
        if self.watched >= 0:
            return super().translate(sentences)
        return [Output(["x"], "x", 1) for _ in sentences]


def report_of(some, **changes):
    """What is reported of a benchmark on twelve sentences, and its systems by their labels."""
    whole = bench(some, sentences=12, timed=2, rounds=1, **changes)
    whole.run()
    texts, source = judge.references(str(DEMO), "test", 100, None)
    setting = {"subset": "test", "threads": [1], "dtype": "fp32", "sentences": 12}
    scores = quality.TranslationQuality(texts[:12], resamples=20)
    document = benchmark.report(whole, scores, setting | {"reference": source})
    return document, {system["label"]: system for system in document["systems"]}


@pytest.mark.slow
def test_a_changed_token_is_never_called_exact(models, always, quiet, monkeypatch):
    wrong = Wrong(read("w=greedy"), models, MODEL, {})
    assert wrong.promise == "exact"
    document, found = report_of([*always, wrong], batch_sizes=(4,))
    counts = {"sentences": 12, "identical": 11, "ties": 0, "beyond ties": 1}
    assert found["w"]["agreement"]["4"] == counts
    assert label(found["w"]) == "NOT EXACT (2 of 24)"  # at both batch sizes
    assert label(found[OWN_GREEDY]) == label(found[GREEDY]) == "exact"
    for row in (row for one in tables(document) for row in one.rows):
        assert (row["label"] == "exact") == (row["decoder"] in (GREEDY, OWN_GREEDY))
    monkeypatch.setattr(audit, "TIE_GAP", 1e9)  # all are ties
    assert label(report_of([*always, wrong])[1]["w"]) == "exact but for 1 ties of 12"


def test_outputs_are_compared_when_they_are_timed_too(models, always, quiet):
    _, found = report_of([*always, Cheating(read("c=greedy"), models, MODEL, {})])
    system = found.pop("c")
    assert system["agreement"]["1"]["identical"] == 12 and system["changed"] > 0
    assert label(system) == f"NOT EXACT ({system['changed']} outputs changed when timed)"
    assert {s["changed"] for s in found.values()} == {0}


def test_transformers_says_the_same(models, always, document):
    own = FairseqSystem(read(f"a=assisted --drafter-path {DEMO}/assistant.pt"), models, MODEL, {})
    peers, left_out = transformers_systems([*always, own], models, MODEL, {})
    assert not left_out and [peer.label for peer in peers] == [
        f"transformers {name}, float32" for name in ("greedy", "beam 5", "assisted as a")
    ]
    for peer, wanted in zip(peers, (always[1], always[0], always[1])):
        got = [output.text for output in peer.translate([2, 60])]
        assert got == [output.text for output in wanted.translate([2, 60])]
    # It has the run's threads.
    document = copy.deepcopy(document)
    system = next(one for one in document["systems"] if one["promise"] == "peer")
    system["threads"], document["setting"]["threads"] = None, [2]
    document["seconds"]["latency"] = {"2": document["seconds"]["latency"]["1"]}
    row = table(document, "Peers")[0]
    assert (row["peer"], row["threads"]) == (system["label"], 2)


@pytest.mark.parametrize(
    "variant, refused",
    [
        ("learned_positions", None),
        ("prenorm", None),
        ("mbart", None),
        ("separate", None),
        ("layernorm_embedding", None),
        ("no_scale", None),
        ("no_positions", None),
        ("gelu", None),
        ("adaptive_softmax", "decoder.adaptive_softmax.head"),
        ("other_dims", "size (16,)"),
        ("no_final_norm", "decoder.layer_norm.bias of size None"),
    ],
)
def test_layouts_of_transformers_have_the_same_logits(variant, refused):
    task = task_for(variant)
    model, words = tiny_model(task, variant, torch.float32), task.target_dictionary
    if refused:
        with pytest.raises(UsageError) as caught:
            converted(model.encoder, model.decoder, words)
        assert "--peers: got 'transformers" in str(caught.value) and refused in str(caught.value)
        return
    there = converted(model.encoder, model.decoder, words)
    fed = torch.cat((torch.tensor([words.eos()]), torch.randint(4, 30, (10,))))[None]
    for source in sources(task, (5, 9)):
        with torch.no_grad():
            ours = model(source[None], torch.tensor([len(source)]), fed)[0]
            theirs = there(input_ids=source[None], decoder_input_ids=fed).logits
        torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=0)


def test_references_are_the_raw_text_of_the_data_folder(tmp_path):
    detokenised, source = judge.references(str(DEMO), "test", 100, None)
    assert (len(detokenised), source) == (100, "DATA, detokenised")
    given = DEMO / "raw" / "demo.de"
    lines = given.read_text(encoding="utf-8").splitlines()
    assert judge.references(str(DEMO), "test", 100, given)[0] == lines
    (tmp_path / "raw").mkdir()
    shutil.copy(given, tmp_path / "raw" / "test.de")
    for file in DEMO.glob("test.en-de.*"):
        shutil.copy(file, tmp_path)
    assert judge.references(str(tmp_path), "test", 100, None)[0] == lines


def test_a_broken_off_run_goes_on_and_measures_nothing_twice(clock, tmp_path, monkeypatch):
    memory = (
        "fairseq_paradec.lab.measure.machine.with_peak_memory"  # of real processes: never the same
    )
    monkeypatch.setattr(memory, lambda work, device: (work(), 1.0))

    def run(journal, most=10**9):
        """Run, and stop after so many calls."""
        calls = []

        def seconds(sentences):
            if len(calls) > most:
                raise EOFError
            return 1.0 + sentences[0]

        try:
            bench([Fake(n, clock, seconds, calls) for n in "ab"], journal, batch_sizes=(3,)).run()
        finally:
            journal.close()

    whole, path, stops = Journal(None, {}), tmp_path / "j.jsonl", 0
    run(whole)
    while True:
        journal = Journal(path, {"run": 1})
        try:
            run(journal, 30)  # more than a round's 12 and a warm-up's 12
            break
        except EOFError:
            stops += 1
    assert stops > 2 and json.dumps(journal.entries) == json.dumps(whole.entries)
    keys = [json.loads(line).get("key") for line in path.read_bytes().splitlines()]
    assert len(keys) == len(set(keys))


def test_a_torn_line_is_dropped_and_another_run_refused(tmp_path):
    path, run = tmp_path / "new" / "j.jsonl", {"threads": [1], "versions": {"torch": "2"}}
    journal = Journal(path, run)
    journal.put("b", [2.5])
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"key": "c", "val')
    again = Journal(path, run)
    again.put("c", 3)
    assert again.entries == {"b": [2.5], "c": 3}
    with pytest.raises(UsageError, match="another process measures into"):
        Journal(path, run)
    again.close()
    with pytest.raises(UsageError, match=r"other versions torch: got '3'; allowed: '2'"):
        Journal(path, run | {"versions": {"torch": "3"}})
    path.write_bytes(b"not JSON\n")
    with pytest.raises(UsageError, match="is damaged"):
        Journal(path, run)


def test_a_wrong_decoder_is_named(models):
    for spec, words in {
        "greedy --max-len-b 20": "--max-len-b is no flag of one decoder; allowed: --max-len-b",
        "greedy --block-size 3": "--block-size: got 3, which --decoding greedy does not use",
        "pgj 'x": "No closing quotation",
    }.items():
        with pytest.raises(UsageError) as caught:
            FairseqSystem(read(spec), models, MODEL, {})
        assert words in str(caught.value)


def test_labels_and_promises(models):
    assert split_label(" my  label = pj") == ("my label", "pj")
    spec = "gad --drafter-path=a=b.pt"
    assert split_label(spec) == (spec, spec)
    for spec, promise in {
        "beam --beam 1 --sampling": "relaxed",
        "beam --beam 1 --match-source-len": "relaxed",
        "beam --beam 4 --lenpen 0.6": "beam search",
        f"gad_pp --drafter-path {DEMO}/drafter.pt --engine-dtype int8": "relaxed",
        f"greedy --path '{DEMO}/../{DEMO.name}/model.pt'": "exact",
    }.items():
        assert FairseqSystem(read(spec), models, MODEL, {}).promise == promise


def test_a_busy_machine_is_not_timed(monkeypatch):
    loads = [1.9, 0.7, 0.02]
    monkeypatch.setattr(machine, "busy_cores", lambda: loads.pop(0) if loads else 1.9)
    assert machine.wait_until_idle() == 0.02
    with pytest.raises(UsageError, match=r"others use 1\.9 cores; allowed: .*--busy"):
        machine.wait_until_idle()
    # In four seconds all used five seconds of a core, this process three.
    monkeypatch.setattr(machine, "_cpu_seconds", iter([100.0, 105.0]).__next__)
    clock = mock.Mock()
    clock.process_time.side_effect = [10.0, 13.0]
    clock.monotonic.side_effect = [1000.0, 1004.0]
    monkeypatch.setattr(machine, "time", clock)
    monkeypatch.setattr(machine, "_childrens_seconds", lambda: 0.0)
    assert machine.Others().cores() == 0.5


def test_children_and_theirs_are_no_others():
    """While they run, and when they have ended."""
    work = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {work!r}])"
    before = machine._childrens_seconds()
    child = [sys.executable, "-S", "-c", f"{parent}; input()"]
    with subprocess.Popen(child, stdin=subprocess.PIPE) as process:
        while machine._childrens_seconds() < before + 0.3:
            assert process.poll() is None
        process.communicate(b"\n")
    assert 0.3 <= machine._childrens_seconds() - before < 0.9


def test_the_order_of_sentences_is_always_the_same(always, monkeypatch):
    """fairseq shuffles sentences of equal length in every subset but ``test``."""
    dataset = always[0].dataset
    order = dataset.ordered_indices().tolist()  # a test set: not shuffled
    monkeypatch.setattr(dataset, "shuffle", True)
    assert any(dataset.ordered_indices().tolist() != order for _ in range(5))
    assert loading.from_short_to_long(dataset) == order


def test_a_decoder_gets_every_combination_of_what_it_reads():
    sweeps = read_sweeps(["block-size=3,5", "accept-margin=1,2.5", "block-size=5,8", "beam=1"])
    assert sweeps == {"block_size": [3, 5, 8], "accept_margin": [1.0, 2.5], "beam": [1]}
    labels = {
        "greedy": ["greedy"],
        "pgj": ["pgj --block-size 3", "pgj --block-size 5", "pgj --block-size 8"],
        "pgj --block-size 4": ["pgj --block-size 4"],  # its own stays
        "wide=hgj": ["wide, block-size 3", "wide, block-size 5", "wide, block-size 8"],
        "beam": ["beam --beam 1"],
    }
    for text, wanted in labels.items():
        assert [spec.label for spec in swept(read(text), sweeps)] == wanted
    relaxed = swept(read("gad_pp"), sweeps)
    assert len(relaxed) == 6 and relaxed[1].options == {
        "decoding": "gad_pp",
        "block_size": 3,
        "accept_margin": 2.5,
    }
    (drafter,) = swept(read("nat"), read_sweeps([f"drafter-path={MODEL}"]))
    assert (drafter.path, drafter.options) == (MODEL, {"decoding": "nat"})
    on, off = swept(read("pgj"), read_sweeps(["adaptive-block=yes,no"]))
    assert on.options == {"decoding": "pgj", "adaptive_block": True}
    assert off.options == {"decoding": "pgj"}
    with pytest.raises(UsageError, match="--sweep: got 'adaptive-block=2'; allowed: yes or no"):
        read_sweeps(["adaptive-block=2"])
