"""--audit, --stats-file, --trace-file and the closing line, on the demo model and tiny ones."""

import argparse
import logging
import subprocess
import sys
from unittest import mock

import pytest
import torch
from reference.block_nat import block_logits
from reference.blockwise import Network, heads_of
from reference.greedy import Rules, full_log_probs
from support import assisted, builders
from support.builders import Limits, batch, built, decode, lend, source_rows, tiny_drafter
from support.commands import ROOT
from support.exact import scored
from support.trace_records import read

from fairseq_paradec.decoding.audit import Audit
from fairseq_paradec.decoding.provenance import weights_hash
from fairseq_paradec.decoding.trace import PassDetails
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods import base
from fairseq_paradec.methods.greedy import GreedyDrafter
from fairseq_paradec.plugin.generators import batch_of
from fairseq_paradec.records import SCHEMA, VERSION, open_report
from fairseq_paradec.registry import METHODS
from fairseq_paradec.token_rules import Best

LENGTHS = [8, 5, 3]
RULES = Rules(pad=1, unk=3, eos=2, max_len=Limits().max_len_b)
BASE = set(
    """schema version decoding flags source output score positional_scores num_tokens decoder_passes
    mean_accepted num_drafted num_accepted audit lossless engine engine_dtype model drafter
    versions id batch_size batch_seconds""".split()
)
PASS = set(
    """start num_accepted num_committed draft verifier log_probs runner_up runner_up_log_probs
    draft_log_probs draft_ranks""".split()
)


def drafter_of(decoding, task):
    if decoding == "assisted":
        return assisted.drafter("share_all", "noisy", torch.float64)
    return tiny_drafter(task, seed=2)


def run(tmp_path, **flags):
    """Decode a ragged batch of three with both reports; the hypotheses and the two files."""
    task, model = built("share_all")
    sample, decoding = batch(task, LENGTHS), flags["decoding"]
    stats, trace = tmp_path / "stats.jsonl", tmp_path / "trace.jsonl"
    flags |= {"stats_file": str(stats), "trace_file": str(trace)}
    if decoding in ("assisted", "gad", "gad_pp"):
        flags["drafter_path"] = lend(task, model, drafter_of(decoding, task))
    if decoding == "nat":
        model = tiny_drafter(task, seed=2)
    if decoding == "double_token_beam":
        model = builders.tiny_reordered(task, "double_token", dtype=torch.float32, seed=3)
    if decoding == "blockwise":
        options = {"dtype": torch.float32, "seed": 3, "train_first_head": True}
        model = builders.tiny_blockwise(task, **options)
    hypos = decode(task, [model], sample, Limits(), **flags)
    return task, model, sample, hypos, read(stats), read(trace)


@pytest.mark.parametrize("decoding", METHODS)
def test_every_method_fills_the_schema(tmp_path, decoding):
    task, _, sample, hypos, stats, trace = run(tmp_path, decoding=decoding)
    words, sources = task.target_dictionary, source_rows(sample)
    assert len(stats) == len(trace) == len(LENGTHS)
    assert list(stats[0]["flags"]) == list(METHODS[decoding].own_flags)
    more = {"positions", "directions"} if METHODS[decoding].beam else set()
    for row, (hypo, short, long) in enumerate(zip(hypos, stats, trace, strict=True)):
        assert set(short) == BASE | ({"chosen"} if decoding == "auto_fast" else set())
        assert set(long) == set(short) | {"trace"}
        assert all(set(p) - {"draft_confidences"} == PASS | more for p in long["trace"])
        count = len(hypo["tokens"])
        wanted = {
            "schema": SCHEMA,
            "version": VERSION,
            "audit": None,
            "num_tokens": count,
            "output": [words[t] for t in hypo["tokens"]],
            "id": sample["id"][row],
            "source": [words[t] for t in sources[row]],
            "batch_size": len(LENGTHS),
            "decoder_passes": hypo["steps"],
            "score": pytest.approx(float(hypo["score"])),
            "mean_accepted": pytest.approx(count / hypo["steps"]),
            "num_accepted": [p["num_accepted"] for p in long["trace"]],
            "num_drafted": [len(p["draft"]) for p in long["trace"]],
        }
        assert {name: short[name] for name in wanted} == wanted
        assert len(long["trace"]) == hypo["steps"]


@pytest.mark.parametrize(
    "flags, lossless, dtype",
    [
        ({"decoding": "greedy", "engine_dtype": "int8"}, True, "int8"),
        ({"decoding": "gad"}, True, "fp64"),
        ({"decoding": "gad_pp"}, False, "fp64"),
        ({"decoding": "gad_pp", "accept_topk": 1, "engine_dtype": "bf16"}, True, "bf16"),
        ({"decoding": "blockwise", "min_block": 2}, False, "fp32"),
    ],
)
def test_a_record_says_what_was_promised_and_what_kept_it(tmp_path, flags, lossless, dtype):
    _, model, _, _, stats, _ = run(tmp_path, **flags)
    drafts = flags["decoding"] in ("gad", "gad_pp")
    for record in stats:
        assert (record["lossless"], record["engine_dtype"]) == (lossless, dtype)
        assert record["engine"] == "torch"
        assert record["model"] == weights_hash(model)
        assert (record["drafter"] is not None) == drafts and record["drafter"] != record["model"]


def test_a_hash_is_of_every_weight_and_dtype():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    found = {weights_hash(model)}
    for weight in model.parameters():
        weight.data.view(-1)[-1] += 1e-6
        found.add(weights_hash(model))
    found.add(weights_hash(model.bfloat16()))
    assert len(found) == 6 and all(len(one) == 16 for one in found)


def test_a_trace_in_another_order_says_what_the_model_does(tmp_path):
    """Against the model's full forward over what was written: tokens, scores, runners-up."""
    task, _ = built("default")
    model = builders.tiny_reordered(task, "ibdecoder", seed=8, dtype=torch.float32)
    path = tmp_path / "trace.jsonl"
    flags = {"decoding": "multiword_beam", "trace_file": str(path), "beam": 3}
    sample, words = batch(task, LENGTHS), task.target_dictionary
    decode(task, [model], sample, Limits(max_len_b=12), **flags)
    names = ("positions", "directions", "verifier", "log_probs", "runner_up", "runner_up_log_probs")
    for source, record in zip(source_rows(sample), read(path), strict=True):
        each = [[fact for p in record["trace"] for fact in p[name]] for name in names]
        places, directions, tokens = each[:3]
        assert directions == [("1→", "2←")[slot % 2] for slot in range(len(tokens))]
        natural = sorted(zip(places, tokens, strict=True))
        assert [token for _, token in natural] == record["output"]
        slots = [words.index(token) for token in tokens]
        inputs = [2, *slots][: len(slots) + len(slots) % 2 - 1]
        table = full_log_probs([model], source, inputs)
        for slot, (token, score, other, other_score) in enumerate([*zip(*each[2:])][:12]):
            allowed = RULES.apply(table[slot], slot, None)
            assert score == pytest.approx(float(allowed[words.index(token)]), abs=1e-4)
            allowed[words.index(token)] = -torch.inf
            assert other_score == pytest.approx(float(allowed.max()), abs=1e-4)
            assert float(allowed[words.index(other)]) == pytest.approx(other_score, abs=1e-4)


@pytest.mark.parametrize(
    "flags",
    [
        {"decoding": "hgj", "block_size": 4, "jacobi_window": "sliding", "jacobi_init": "ngram"},
        {"decoding": "pgj", "block_size": 4, "jacobi_stop": "unchanged"},
        {"decoding": "gad_pp", "block_size": 4, "accept_topk": 20, "accept_margin": 9.0},
    ],
)
def test_the_trace_tells_what_happened(tmp_path, flags):
    """Replayed, its passes give the output; its numbers are a full forward's."""
    task, model, sample, _, _, traces = run(tmp_path, **flags)
    words = task.target_dictionary
    for source, trace in zip(source_rows(sample), traces, strict=True):
        output = []
        for one in trace["trace"]:
            assert one["start"] == len(output)
            accepted = one["num_accepted"]
            if flags["decoding"] != "gad_pp":
                agree = [d == v for d, v in zip(one["draft"], one["verifier"], strict=False)]
                assert accepted == (agree.index(False) if False in agree else len(agree))
            chunk = [words.index(w) for w in [*output, *one["draft"]]]
            chunk = chunk[: one["start"] + len(one["verifier"]) - 1]
            log_probs = full_log_probs(model, source, chunk)[one["start"] :]
            start = one["start"]
            each = [RULES.apply(row.double(), start + j, None) for j, row in enumerate(log_probs)]
            for j, token in enumerate(one["verifier"]):
                if one["start"] + j == Limits().max_len_b:
                    assert (token, one["runner_up"][j]) == ("</s>", None)
                    continue
                best = each[j].topk(2)
                assert [words[int(i)] for i in best.indices] == [token, one["runner_up"][j]]
                told = [one["log_probs"][j], one["runner_up_log_probs"][j]]
                assert told == pytest.approx(best.values.tolist(), abs=1e-4)
            for allowed, word, score, rank in zip(
                each, one["draft"], one["draft_log_probs"], one["draft_ranks"], strict=False
            ):
                own = float(allowed[words.index(word)])
                assert score is None if own == -torch.inf else score == pytest.approx(own, abs=1e-4)
                assert rank == int(allowed.gt(own).sum())
            new = one["draft"][:accepted] + one["verifier"][accepted:]
            output += new[: one["num_committed"]]
            if "</s>" in output:
                output = output[: output.index("</s>") + 1]
        assert output == trace["output"]


@pytest.mark.parametrize("choice", [0, 1])
def test_the_runner_up_of_a_tie_is_the_other_token(choice):
    log_probs = torch.tensor([[[-0.5, -0.5, -2.0]]])
    choices = torch.tensor([[choice]])
    values, tokens = log_probs.topk(2)
    best = Best(tokens.numpy(), values.numpy(), values[..., 0].numpy())
    details = PassDetails(best, scored(log_probs, choices, choices))
    assert details.of_row(0, [choice], [choice]).runner_up == [1 - choice]


@pytest.mark.parametrize("decoding", ["assisted", "gad", "blockwise"])
def test_a_trace_has_the_drafters_own_probabilities(tmp_path, decoding):
    """Against the drafter's slow forward over each draft; a trace changes no draft."""
    task, model, sample, hypos, _, traces = run(tmp_path, decoding=decoding, block_size=4)
    words, flags = task.target_dictionary, {}
    if decoding == "blockwise":
        drafter = model.block_heads
    else:
        drafter = drafter_of(decoding, task)
        flags = {"drafter_path": lend(task, model, drafter)}
    plain = decode(task, [model], sample, Limits(), decoding=decoding, block_size=4, **flags)
    assert [one["steps"] for one in plain] == [one["steps"] for one in hypos]
    for source, trace in zip(source_rows(sample), traces, strict=True):
        output = [words.index(word) for word in trace["output"]]
        for one in filter(lambda one: one["draft"], trace["trace"]):
            before, draft = output[: one["start"]], [words.index(word) for word in one["draft"]]
            if decoding == "assisted":
                table = full_log_probs(drafter, source, [*before, *draft])[one["start"] :]
            elif decoding == "gad":
                masks = [None] * drafter.block_size
                table = block_logits(drafter, source, before, masks, "prefix_causal")
                table = table.log_softmax(dim=-1)
            else:
                network = Network(model, heads_of(drafter, "relu"), source)
                state = network.states(before)[-2]
                table = [network.log_probs(state, head, 1.0) for head in (1, 2, 3)]
            wanted = [float(row[token].exp()) for row, token in zip(table, draft, strict=False)]
            assert one["draft_confidences"] == pytest.approx(wanted, abs=1e-5)


def test_reports_of_one_process_go_on(tmp_path, caplog):
    """A hub user builds a generator per call: the second must not wipe out the first's lines."""
    task, model = built("share_all")
    caplog.set_level(logging.INFO)
    path = tmp_path / "stats.jsonl"
    path.write_text('{"schema": "fairseq_paradec.decoding"}\n')
    flags = {"decoding": "pgj", "stats_file": str(path), "retain_iter_history": True}
    for seed in (1, 2):
        hypos = decode(task, [model], batch(task, LENGTHS, seed=seed), Limits(), **flags)
    assert len(read(path)) == 2 * len(LENGTHS)
    tokens = sum(len(h["tokens"]) for h in hypos)
    passes = sum(h["steps"] for h in hypos)
    lines = [m for m in (r.getMessage() for r in caplog.records) if m.startswith("pgj: 3")]
    wanted = f"pgj: 3 sentences, {tokens} tokens, {passes} passes, {tokens / passes:.2f} tokens"
    assert len(lines) == 2 and lines[1].startswith(wanted)
    for hypo in hypos:
        assert len(hypo["history"]) == hypo["steps"]
        last = hypo["history"][-1]["tokens"].tolist()
        assert last[: len(hypo["tokens"])] == hypo["tokens"].tolist()


def test_audit_passes_what_is_right(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    stats = run(tmp_path, decoding="hgj", audit=True)[4]
    assert [record["audit"] for record in stats] == [{"identical": True}] * 3
    assert "audit: 3 of 3 sentences identical" in caplog.text
    assert "0 differ by a tie (gap < 0.0001), 0 beyond ties" in caplog.text


@pytest.mark.parametrize("members", [("share_all",), ("share_all", "prenorm")])
def test_audit_judges_by_the_same_limits(members, caplog):
    """Under every limit at once it agrees; a changed token it names by row, position and gap."""
    task, _ = built("share_all")
    models = [built(member)[1] for member in members]
    limits = Limits(unkpen=3.0, temperature=1.4, min_len=4, max_len_a=1.0, max_len_b=8)
    sample, prefix = batch(task, LENGTHS), torch.tensor([[7, 9], [8, 1], [11, 12]])
    generator = task.build_generator(models, argparse.Namespace(**limits.flags(), decoding="pgj"))

    def outputs(**flags):
        return [hypo["tokens"].tolist() for (hypo,) in generator.generate(models, sample, **flags)]

    hypos = generator.generate(models, sample, prefix_tokens=prefix, bos_token=5)
    audit = Audit(models, task.target_dictionary, **limits.stock())
    given = batch_of(sample, prefix, bos_token=5)
    assert all(v["identical"] for v in audit.compare(given, hypos))
    found = [hypo["tokens"].tolist() for (hypo,) in hypos]
    assert [tokens[0] for tokens in found] == [7, 8, 11]
    # Without any of them, outputs differ: the agreement above is no accident.
    assert found not in (outputs(prefix_tokens=prefix), outputs(bos_token=5))
    unk, position = task.target_dictionary.unk(), 5
    right = found[0][position]
    assert right != unk
    hypos[0][0]["tokens"][position] = unk
    verdict, *others = audit.compare(given, hypos)
    assert all(v["identical"] for v in others) and "NOT a tie" in caplog.text
    assert "5 of 6 sentences identical" in audit.closing_line()
    assert "1 beyond ties" in audit.closing_line()
    source = source_rows(sample)[0]
    log_probs = full_log_probs(models, source, found[0][:position], 1.4, start=5)[-1]
    gap = float(log_probs[right] - (log_probs[unk] - 3.0))
    assert verdict["position"] == position
    assert verdict["gap"] == pytest.approx(abs(gap), abs=1e-3)


def test_oracle_lengths_are_labelled_and_not_timed(caplog, monkeypatch, tmp_path):
    """Greedy's run, which tells the oracle's length, is slowed down: the clock must not see it."""
    caplog.set_level(logging.INFO)
    original, clock = GreedyDrafter.propose, mock.Mock()
    clock.perf_counter.return_value = 0.0

    def slow(self, rows):
        clock.perf_counter.return_value += 100.0
        return original(self, rows)

    monkeypatch.setattr(base, "time", clock)
    monkeypatch.setattr(GreedyDrafter, "propose", slow)
    stats = run(tmp_path, decoding="pj", jacobi_length="oracle")[4]
    assert "oracle lengths, found outside the timer" in caplog.text
    assert clock.perf_counter.return_value >= 100
    for record in stats:
        assert (record["flags"]["jacobi_length"], record["batch_seconds"]) == ("oracle", 0)


@pytest.mark.parametrize(("nudge", "tie"), [(0.0, True), (0.01, False)])
def test_audit_knows_a_tie(nudge, tie):
    """Two words with one embedding tie exactly; choosing the other is no divergence."""
    task, _ = built("share_decoder")
    model, sample = builders.tiny_model(task, "share_decoder"), batch(task, [6])

    def tokens_of():
        hypos.append([[h] for h in decode(task, [model], sample, Limits(), decoding="greedy")])
        return hypos[-1][0][0]["tokens"]

    hypos, position = [], 1
    token = int(tokens_of()[position])
    twin = 9 if token != 9 else 10
    with torch.no_grad():
        weight = model.decoder.output_projection.weight
        weight[twin] = weight[token] * (1 + nudge)
    tokens = tokens_of()
    tokens[position] = twin if int(tokens[position]) == token else token
    audit = Audit([model], task.target_dictionary, max_len_b=16)
    (verdict,) = audit.compare(batch_of(sample), hypos[-1])
    assert verdict["tie"] == tie == audit.ties
    assert verdict["gap"] < (1e-6 if tie else 1)


def test_seconds_add_up(tmp_path):
    task, model = built("share_all")
    path = tmp_path / "stats.jsonl"
    args = argparse.Namespace(**Limits().flags(), decoding="greedy", stats_file=str(path))
    generator = task.build_generator([model], args)
    for seed in (1, 2):
        task.inference_step(generator, [model], batch(task, [6], seed=seed))
    one, two = (record["batch_seconds"] for record in read(path))
    assert generator.decoder.reports.stats.seconds == pytest.approx(one + two)


def test_a_report_has_one_process(tmp_path):
    path = tmp_path / "stats.jsonl"
    path.write_text('{"schema": "fairseq_paradec.decoding"}\nkept\n')
    code = "import sys; from fairseq_paradec.records import open_report; "
    code += "file = open_report('--stats-file', sys.argv[1]); print('open', flush=True); input()"
    command = [sys.executable, "-c", code, path]
    other = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT)
    try:
        assert other.stdout.readline() == "open\n"
        other_has = path.read_text()
        with pytest.raises(UsageError, match="--stats-file: got .*no other process"):
            open_report("--stats-file", str(path))
        assert path.read_text() == other_has == ""  # begun by the other, not by this one
    finally:
        other.communicate("\n")
    open_report("--stats-file", str(path)).close()
