"""Speed-ups of benchmarks and acceptance of drafts: by hand, as commands, and as pictures."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import builders
from support.benchmarks import benchmark
from support.builders import Limits, batch, decode, lend, lend_heads, tiny_blockwise, tiny_drafter
from support.tables import refused, run
from support.trace_records import read, write

from fairseq_paradec.lab.analysis import acceptance_by_position, speed_ups
from fairseq_paradec.lab.analysis.benchmark_tables import BEAM, GREEDY, OWN_GREEDY
from fairseq_paradec.lab.data.table import Value
from fairseq_paradec.lab.measure import specs

PEER = "CTranslate2 greedy"

#: label -> command, promise, and seconds of four sentences in two rounds, at one thread.
SYSTEMS: dict[str, tuple[str, str, list[list[float]]]] = {
    BEAM: ("beam --beam 5", "beam search", [[4, 4, 8, 8], [6, 6, 6, 6]]),
    GREEDY: ("beam --beam 1", "exact", [[2, 4, 4, 2], [2, 2, 2, 2]]),
    OWN_GREEDY: ("greedy", "exact", [[1, 1, 1, 1], [2, 2, 2, 6]]),
    "wide 2": ("multiword_beam --path x.pt --beam=2", "other model", [[2] * 4, [3] * 4]),
    "wide 1": ("multiword_beam --beam 1 --path x.pt", "other model", [[1] * 4, [1] * 4]),
    "alone": ("multiword_beam --beam 5", "relaxed", [[1] * 4, [1] * 4]),
    PEER: ("--peers", "peer", [[1, 1, 1, 1], [1, 1, 1, 16]]),
}
#: What others took: 2 threads, and batches of 8 and 64.
TWO_THREADS = {BEAM: [[2] * 4, [2] * 4], OWN_GREEDY: [[1] * 4, [2] * 4]}
BATCHES = {
    "8": {BEAM: [[3, 3], [4, 4]], OWN_GREEDY: [[1, 2], [2, 2]]},
    "64": {BEAM: [[6], [5]], OWN_GREEDY: [[4], [5]]},
}


def options_of(command: str) -> dict[str, Any]:
    """What a benchmark's file has of a decoder's command."""
    if command.startswith("--"):
        return {}
    spec = specs.read(command)
    return {**spec.options, **({"path": spec.path} if spec.path else {})}


def document(sweep: bool = True, systems: Any = None) -> dict[str, Any]:
    """A benchmark of twelve sentences; four, of 5, 5, 9 and 12 source tokens, one by one."""
    systems = SYSTEMS if systems is None else systems
    # In the order of words, which is not that of the numbers.
    threads, sizes = ([1, 2], ["64", "8"]) if sweep else ([1], [])
    own = [name for name, (_, promise, _) in systems.items() if promise != "peer"]
    entries = {
        name: {"command": command, "promise": promise, "options": options_of(command)}
        for name, (command, promise, _) in systems.items()
    }
    latency = {"1": {name: times for name, (_, _, times) in systems.items()}}
    if sweep:
        latency["2"] = {name: TWO_THREADS.get(name, [[1] * 4] * 2) for name in own}
    counts = {"8": 2, "64": 1}
    batches = {s: {n: BATCHES[s].get(n, [[1] * counts[s]] * 2) for n in own} for s in sizes}
    setting = {"sentences": 12, "timed sentences": 4, "rounds": 2, "threads": threads}
    return benchmark(entries, {"latency": latency, "throughput": batches}, [5, 5, 9, 12], **setting)


def of(gains: list[speed_ups.SpeedUp], name: str) -> dict[str, tuple[Value, str]]:
    """One system's speed-ups and their baselines, by setting."""
    return {gain.at: (gain.spread, gain.against) for gain in gains if gain.name == name}


def test_by_batch_threads_and_length_by_hand():
    """Batch 1: 24/4 and 24/12; of 8: 6/3 and 8/4; of 64: 6/4 and 5/5. Two threads: 8/4, 8/8.

    The two sentences of 5 tokens: 8/2 and 12/4; that of 9: 8/1 and 6/2; that of 12: 8/1 and 6/6.
    """
    gains = of(speed_ups.in_settings(document(), "batch"), OWN_GREEDY)
    assert list(gains.items()) == [
        ("batch 1", (Value(4, 2, 6, 2), BEAM)),
        ("batch 8", (Value(2, 2, 2, 2), BEAM)),
        ("batch 64", (Value(1.25, 1, 1.5, 2), BEAM)),
    ]
    gains = of(speed_ups.in_settings(document(), "threads"), OWN_GREEDY)
    assert gains == {
        "1 thread": (Value(4, 2, 6, 2), BEAM),
        "2 threads": (Value(1.5, 1, 2, 2), BEAM),
    }
    # Against our own greedy, fairseq's beam is 4/24 and 12/24.
    gains = of(speed_ups.in_settings(document(), "batch", OWN_GREEDY), BEAM)
    assert gains["batch 1"] == (Value(1 / 3, 1 / 6, 1 / 2, 2), OWN_GREEDY)
    assert of(speed_ups.in_settings(document(), "length"), OWN_GREEDY) == {
        "5 tokens": (Value(3.5, 3, 4, 2), BEAM),
        "6-9 tokens": (Value(5.5, 3, 8, 2), BEAM),
        "10-12 tokens": (Value(4.5, 1, 8, 2), BEAM),
    }


def test_by_beam_each_has_its_baseline():
    """Beam 1 against fairseq's beam 1: 12/4, 8/4. Nobody measured fairseq's beam 2: 24/8, 24/12."""
    gains = speed_ups.in_settings(document(), "beam")
    assert [gain.name for gain in gains] == [GREEDY, BEAM, "wide 1", "wide 2"]
    assert of(gains, "wide 1") == {"beam 1": (Value(2.5, 2, 3, 2), GREEDY)}
    assert of(gains, "wide 2") == {"beam 2": (Value(2.5, 2, 3, 2), BEAM)}
    gains = speed_ups.in_settings(document(), "batch-beam")  # nor do batches of it have others
    assert {gain.name for gain in gains} == {"wide 1"}
    assert of(gains, "wide 1")["batch 1"] == (Value(2.5, 2, 3, 2), GREEDY)
    assert of(gains, "wide 1")["batch 8"] == (Value(1, 1, 1, 2), GREEDY)
    # Peers were timed sentence by sentence alone.
    names = [{row["decoder"] for row in table.rows} for table in speed_ups.tables(document())]
    assert [PEER in decoders for decoders in names] == [False, False, False, False, False, True]


def test_histogram_by_hand():
    """Medians of two rounds: 5, 5, 7, 7; of our greedy 1.5, 1.5, 1.5, 3.5; fairseq's 2, 3, 3, 2."""
    own, stock = speed_ups.histograms(document(), [OWN_GREEDY, GREEDY])
    assert own.ratios == pytest.approx([5 / 1.5, 5 / 1.5, 7 / 1.5, 2])
    assert own.counts == {2: 1, 3: 2, 4: 1}  # exactly 2x is in 2-3x
    assert stock.counts == {1: 1, 2: 2, 3: 1}  # 2.5, 1.67, 2.33, 3.5
    assert own.quantile(50) == pytest.approx(5 / 1.5) and own.faster == 1
    (own,) = speed_ups.histograms(document(), [OWN_GREEDY], GREEDY)
    assert own.counts == {0: 1, 1: 1, 2: 2} and own.faster == 0.75  # 1.33, 2, 2, 0.57
    (peer,) = speed_ups.histograms(document(), [PEER])
    assert peer.ratios == pytest.approx([5, 5, 7, 7 / 8.5]) and peer.label == "peer"


def one_pass(draft: str, verifier: str, accepted: int) -> dict[str, Any]:
    return {"draft": draft.split(), "verifier": verifier.split(), "num_accepted": accepted}


def test_acceptance_by_hand():
    """Eight passes; of the last four not all drafts count."""
    passes = [
        one_pass("a b c", "a b x y", 2),
        one_pass("p q", "o q r", 0),
        one_pass("m n", "l n o", 2),  # m was rescued
        one_pass("z </s>", "z </s>", 2),
        one_pass("u v w", "u </s> k l", 1),  # the output ended before w
        one_pass("</s> g", "</s> g", 2),  # and before g
        one_pass("<pad> <pad>", "a b", 0),  # no guesses
        one_pass("s t", "s", 1),  # no answer for t
    ]
    positions = acceptance_by_position.count([{"trace": passes[:3]}, {"trace": passes[3:]}])
    counts = [(p.position, p.drafted, p.reached, p.accepted, p.rescued) for p in positions]
    assert counts == [(1, 7, 7, 6, 1), (2, 5, 4, 3, 0), (3, 1, 1, 0, 0)]
    table = acceptance_by_position.as_table(positions)
    row = table.rows[1]
    assert (row["accepted_share"], row["accepted_share_if_reached"]) == (60.0, 75.0)
    # Where nothing got so far, there is no share.
    rejected = acceptance_by_position.count([{"trace": [one_pass("a b", "x b", 0)]}])
    table = acceptance_by_position.as_table(rejected)
    assert table.rows[1]["accepted_share_if_reached"] is None


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Traces of tiny models by methods that draft, and by greedy search."""
    folder = tmp_path_factory.mktemp("traces")
    task = builders.tiny_task()
    model, drafter, heads = builders.tiny_model(task), tiny_drafter(task), tiny_blockwise(task)
    beside = {"drafter_path": lend(task, model, drafter), "block_size": 5}
    headed = {"drafter_path": lend_heads(task, model, heads.block_heads), "accept_topk": 8}
    paths = {}
    for name, flags in {"gad": beside, "blockwise": headed, "greedy": {}}.items():
        paths[name] = folder / f"{name}.jsonl"
        for seed in range(4):
            options = flags | {"decoding": name, "trace_file": str(paths[name])}
            decode(task, [model], batch(task, [6 + seed], seed), Limits(max_len_b=20), **options)
    return paths


def test_the_commands_print_write_and_draw(tmp_path, traced, capsys):
    out, plot, whole = (tmp_path / name for name in ("t.json", "p.png", "b.json"))
    write(whole, document())
    for arguments, words in (
        (["speed-up", whole, "--by", "batch"], "4.00x (2.00-6.00)  2.00x (2.00-2.00)"),
        (["speed-up", whole, "--by", "length", "--against", "greedy"], "against greedy"),
        (["histogram", whole, "--decoder", "greedy"], "2-3x  3-4x  4-5x"),
        (["acceptance", traced["gad"], traced["blockwise"]], "\nblockwise         1"),
    ):
        status, text, err = run(capsys, "analyse", *arguments, "--out", out, "--plot", plot)
        assert status == 0, err
        assert words in text and plot.read_bytes().startswith(b"\x89PNG")
        written = json.loads(out.read_text(encoding="utf-8"))
        assert written["schema"] == "fairseq_paradec.table" and written["rows"]


def test_mistakes_are_named(tmp_path, traced, capsys):
    plain = {n: system for n, system in SYSTEMS.items() if "wide" not in n}
    names = ("whole.json", "bare.json", "doctored.json", "twisted.jsonl", "cut.jsonl")
    whole, bare, doctored, twisted, cut = (tmp_path / name for name in names)
    write(whole, document())
    write(bare, document(sweep=False, systems=plain))
    write(doctored, document() | {"source_lengths": []})
    write(twisted, read(traced["gad"])[0] | {"output": ["x"]})
    cut.write_bytes(traced["gad"].read_bytes()[:-50])
    for arguments, words in (
        (["speed-up", bare, "--by", "threads"], "--by: got 'threads'; allowed: what"),
        (["speed-up", whole, "--by", "batch", "--against", "me"], "--against: got 'me'; allo"),
        (["speed-up", doctored, "--by", "batch"], "source_lengths: []"),
        (["histogram", whole, "--decoder", "me"], "--decoder: got 'me'; allowed: a decoder of"),
        (["histogram", traced["gad"]], "BENCHMARK: got"),
        (["acceptance", traced["greedy"]], "TRACE: got"),
        (["acceptance", cut], "cut.jsonl, line 4: the file is cut off"),
        (["acceptance", twisted], "twisted.jsonl, line 1: the sentence contradicts itself"),
        (["acceptance", traced["gad"], traced["gad"]], "allowed: each file once"),
    ):
        assert words in refused(capsys, "analyse", *arguments)
