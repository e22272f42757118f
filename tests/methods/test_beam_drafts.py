"""Beam search with drafts: fairseq's n-best lists, and the passes of its slow twin."""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import beam_drafts as paper
from reference.greedy import Rules, rules_for
from support import assisted
from support.beam_drafts import assert_fairseqs, assert_same, decoder, fairseqs, twin
from support.builders import BANNED, DEMO, Limits, batch, built, lend, source_rows, tiny_model
from support.exact import watched
from support.image_models import RGB, task_of, tiny_image_model
from support.multiword import PREFIXES

from fairseq_paradec.batch import Batch
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding.audit import Audit
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.measure import counts, specs
from fairseq_paradec.lab.measure.outputs import BEAM
from fairseq_paradec.lab.measure.systems import FairseqSystem, Models
from fairseq_paradec.lab.show import beam_tree
from fairseq_paradec.lab.show.trace_records import read_sentence
from fairseq_paradec.plugin.generators import batch_of
from fairseq_paradec.records import read

RAGGED = (3, 7, 5, 2)
LIMITS = {
    "16": Limits(),
    "model's": Limits(max_len_b=200),
    "0": Limits(max_len_b=0, min_len=0),
    "short": Limits(max_len_b=5, lenpen=0.6),
    "early": Limits(min_len=0, max_len_b=9),
    "late": Limits(min_len=6, max_len_b=9, unnormalized=True),
    "penalties": Limits(unkpen=3.0, temperature=1.7, lenpen=1.6, max_len_b=9),
    "negative": Limits(unkpen=-6.0, lenpen=-1.0, max_len_b=11),
    "no repeats": Limits(no_repeat_ngram_size=1),
    "bigrams": Limits(no_repeat_ngram_size=2, max_len_b=200, min_len=5),
    "trigrams": Limits(no_repeat_ngram_size=3, unkpen=-6.0),
    "penalty": Limits(repetition_penalty=1.5, max_len_b=200, min_len=5),
    "reward": Limits(repetition_penalty=0.6),
    "banned": Limits(banned=BANNED, min_len=5),
}


@pytest.mark.parametrize("kind", assisted.KINDS)
@pytest.mark.parametrize("beam", [2, 4, 5, 10])
def test_hypotheses_and_passes_are_the_twins(kind: str, beam: int) -> None:
    """Drafters that are perfect, noisy and always wrong; each row of a ragged batch."""
    limits, depth = Limits(max_len_b=11), 1 + beam % 4
    found, task, model = decoder("default", kind, torch.float64, beam, limits, block_size=depth)
    sample = batch(task, RAGGED, seed=beam)
    seen: list[Any] = []
    make_rows = found._make_rows
    found._make_rows = lambda *args: seen.extend(make_rows(*args)) or seen
    hypos = task.inference_step(found, [model], sample)
    drafter = assisted.drafter("default", kind, torch.float64)
    for row, got, source in zip(seen, hypos, source_rows(sample), strict=True):
        want, passes = twin(task, (model, drafter), source, beam, depth, limits)
        assert [one["tokens"].tolist() for one in got] == [list(h.tokens) for h, _ in want]
        for one, (hypothesis, score) in zip(got, want, strict=True):
            assert float(one["score"]) == pytest.approx(score, abs=1e-4)
            assert one["positional_scores"].tolist() == pytest.approx(hypothesis.scores, abs=1e-4)
            assert one["steps"] == len(passes)
        ours = [(p.num_drafted, p.num_nodes) for p in row.passes]
        assert ours == [(p.depth, p.nodes) for p in passes]
        if kind == "itself":
            assert all(p.steps == depth + 1 for p in passes[:-1])


@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("kind", ["noisy", "other"])
def test_limits_are_fairseqs(kind: str, limits: Limits) -> None:
    for beam in (2, 5):
        found, task, model = decoder("default", kind, torch.float64, beam, limits, block_size=4)
        assert_fairseqs(found, task, [model], batch(task, RAGGED, seed=beam), beam, limits)


@pytest.mark.parametrize("decoding", ["assisted", "self_draft"])
@pytest.mark.parametrize("prefixes", [None, PREFIXES], ids=["free", "prefixes"])
@pytest.mark.parametrize("variant", ["default", "adaptive_softmax", "mbart"])
def test_in_fp32_by_native_passes_and_torchs(
    decoding: str, variant: str, prefixes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one sentence alone. Drafts by int8 share the cache if passes are native."""
    limits = Limits(max_len_b=12)
    _, model = built(variant, torch.float32)
    drafter = assisted.drafter(variant, "noisy", torch.float32)
    for one in (model, drafter):
        monkeypatch.setattr(one, "_is_generation_fast", True, raising=False)
    for engine in ("auto", "torch"):
        for lengths in (RAGGED, (6,)):
            given = {"decoding": decoding, "engine": engine, "block_size": 4}
            found, task, _ = decoder(variant, "noisy", torch.float32, 5, limits, **given)
            sample = batch(task, lengths, seed=4)
            forced = None if prefixes is None else prefixes[: len(lengths)]
            assert_fairseqs(found, task, [model], sample, 5, limits, forced)
            native = engine == "auto" and found.scorer.native
            assert found.draft_scorer.joined == (decoding == "self_draft" and native)


@pytest.mark.usefixtures("exact_softmax")
def test_an_ensemble_averages_probabilities() -> None:
    """Its first model drafts."""
    limits = Limits(max_len_b=11, temperature=1.3)
    task, first = built("default")
    models = [first, built("default", seed=4)[1]]
    given = {"decoding": "self_draft", "drafter_dtype": "fp32", "beam": 4, "nbest": 4}
    found = task.build_generator(models, argparse.Namespace(**limits.flags(), **given))
    assert_fairseqs(found, task, models, batch(task, RAGGED, seed=1), 4, limits)


def test_without_a_beam_the_methods_are_greedy() -> None:
    task, model = built("default")
    for beam in ({}, {"beam": 1}):
        flags = {"decoding": "self_draft", "drafter_dtype": "fp32"} | beam
        args = argparse.Namespace(**Limits().flags(), **flags)
        found = task.build_generator([model], args).decoder
        assert type(found).__name__ == "SelfDraftDecoder" and found.lossless


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"sampling": True, "nbest": 2}, "--sampling: got True; .*--beam 1"),
        ({"adaptive_block": True}, "--adaptive-block: got True; .*--beam 1"),
        ({"draft_tree": 8}, "--draft-tree: got 8; .*--beam 1"),
        ({"draft_confidence": 0.5}, "--draft-confidence: got 0.5; .*--beam 1"),
        ({"accept_topk": 2}, "--accept-topk: got 2; .*--beam 1"),
        ({"diverse_beam_groups": 2}, "--diverse-beam-groups: got 2"),
        ({"diversity_rate": 0.5}, "--diversity-rate: got 0.5"),
        ({"constraints": "ordered"}, "--constraints: got 'ordered'"),
        ({"match_source_len": True}, "--match-source-len: got True"),
    ],
)
def test_what_it_cannot_honour_is_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        decoder("default", "itself", torch.float64, 4, Limits(), **flags)


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_a_shortlist_has_more_words_than_the_beam(engine: str) -> None:
    flags = {"drafter_dtype": "fp32", "engine": engine}
    with pytest.raises(UsageError, match=r"^--drafter-shortlist: got 5; .*more than --beam \(5\)"):
        decoder("default", "other", torch.float32, 5, Limits(), drafter_shortlist=5, **flags)
    found, task, model = decoder(
        "default", "other", torch.float32, 5, Limits(), drafter_shortlist=6, **flags
    )
    assert_fairseqs(found, task, [model], batch(task, RAGGED, seed=2), 5, Limits())


def test_local_attention_is_refused() -> None:
    """Its cache has no trees."""
    task = task_of(RGB)
    model, drafter = tiny_image_model(task, 5, 4), tiny_model(task, max_target_positions=2000)
    flags = {"decoding": "assisted", "beam": 2, "drafter_path": lend(task, model, drafter)}
    with pytest.raises(UsageError, match="--beam 2 excludes a model whose attention is local"):
        task.build_generator([model], argparse.Namespace(**flags))


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("decoding", ["self_draft", "assisted", "multiword_beam"])
def test_a_forced_end_ends_all_hypotheses(decoding: str, engine: str) -> None:
    """fairseq copies the one hypothesis; prefixes of other rows and the limit stay as they are."""
    limits = Limits(max_len_b=3)
    prefixes = torch.tensor([[7, 2, 1, 1], [5, 1, 1, 1], [8, 3, 2, 1], [6, 6, 6, 2]])
    task, model = built("default", torch.float32)
    flags = {"decoding": decoding, "beam": 4, "nbest": 4, "engine": engine}
    if decoding == "assisted":
        flags["drafter_path"] = lend(task, model, model)
    found = task.build_generator([model], argparse.Namespace(**limits.flags(), **flags))
    sample = batch(task, RAGGED, seed=2)
    found = assert_fairseqs(found, task, [model], sample, 4, limits, prefixes)
    assert [len(each) for each in found] == [4, 4, 4, 1]


def test_a_depth_beyond_every_limit_is_that_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native search makes no room for steps that cannot be taken."""
    runs = []
    for one in (
        built("default", torch.float32)[1],
        assisted.drafter("default", "noisy", torch.float32),
    ):
        monkeypatch.setattr(one, "_is_generation_fast", True, raising=False)
    for depth in (20, 10**9):
        found, task, model = decoder(
            "default", "noisy", torch.float32, 5, Limits(), block_size=depth
        )
        assert found.scorer.native and found.draft_scorer.native
        hypos = task.inference_step(found, [model], batch(task, RAGGED, seed=2))
        runs.append([[one["tokens"].tolist() for one in each] for each in hypos])
    assert runs[0] == runs[1]


def test_the_twin_by_hand() -> None:
    """Tokens 0 and 1, `</s>` is 2; the drafter swaps 0 and 1 behind (0,)."""
    rules = Rules(pad=9, unk=9, eos=2, max_len=9)
    table = {0: [-1.0, -2.0, -9.0], 1: [-1.0, -2.0, -5.0], 2: [-3.0, -4.0, -0.1]}

    def verify(tokens: tuple[int, ...]) -> list[float]:
        return table[min(len(tokens), 2)]

    def draft(tokens: tuple[int, ...]) -> list[float]:
        scores = verify(tokens)
        return [scores[1], scores[0], scores[2]] if tokens == (0,) else scores

    finished, passes = paper.search(verify, draft, rules, beam=2, depth=2)
    # Live: (0) and (1), then (0 0) and (0 1) of -2 and -3, which both end at once.
    assert [one.tokens for one in finished] == [(0, 0, 2), (0, 1, 2)]
    assert [one.total for one in finished] == pytest.approx([-2.1, -3.1])
    # The first pass reads the start, (0), (1), and (0 1) and (0 0): the drafter's other order.
    assert passes == [paper.Pass(0, 2, 3, 5)]
    finished, passes = paper.search(verify, draft, rules, beam=2, depth=1)
    assert passes == [paper.Pass(0, 1, 2, 3), paper.Pass(2, 1, 1, 2)]


def test_the_audit_compares_all_hypotheses(caplog: pytest.LogCaptureFixture) -> None:
    """With fairseq's of the same beam; prefixes and limits by source length are the same."""
    limits = Limits(max_len_a=1.0, max_len_b=3)
    found, task, model = decoder("default", "noisy", torch.float32, 4, limits, audit=True)
    sample = batch(task, RAGGED, seed=2)
    hypos = task.inference_step(found, [model], sample, prefix_tokens=PREFIXES)
    assert (found.audit.sentences, found.audit.identical) == (4, 4)
    assert found.audit.closing_line().startswith(
        "audit: 4 of 4 sentences identical to fairseq's --beam 4"
    )
    hypos[1][2], hypos[1][3] = hypos[1][3], hypos[1][2]
    del hypos[2][3]
    verdicts = found.audit.compare(batch_of(sample, PREFIXES), hypos)
    assert [one["identical"] for one in verdicts] == [True, False, False, True]
    assert [one.get("hypothesis") for one in verdicts] == [None, 2, 3, None]
    assert verdicts[2]["position"] == 0
    assert not any(one.get("tie") for one in verdicts) and found.audit.beyond == 2
    assert "differs from fairseq's --beam 4 from hypothesis 3, token" in caplog.text


def test_an_audit_calls_a_close_decision_a_tie() -> None:
    """Of equal words any may be the first: the model's rows of two words are made the same."""
    task, model = built("default", torch.float32)
    model = copy.deepcopy(model)
    words = model.decoder.output_projection.weight
    words.data[4:] = words.data[4:].repeat_interleave(2, dim=0)[: len(words) - 4]
    flags = {"decoding": "self_draft", "beam": 3, "audit": True, "drafter_dtype": "fp32"}
    limits = Limits(max_len_b=6)
    flags |= {"engine_dtype": "bf16"}
    args = argparse.Namespace(**limits.flags(), **flags)
    found = task.build_generator([model], args).decoder
    sample = batch(task, RAGGED, seed=2)
    hypos = fairseqs(task, [model], sample, 3, limits)
    hypos[0][0], hypos[0][1] = hypos[0][1], hypos[0][0]
    (first, *_) = found.audit.compare(batch_of(sample), hypos)
    assert first["tie"] and first["gap"] < 1e-4 and found.audit.ties == 1


CLOSE = 5e-5


@pytest.mark.parametrize(
    ("scores", "tokens", "finished", "gap"),
    [
        ([-1.0, -1 - CLOSE, -3.0, -4.0], [2, 2, 5, 6], [-0.5, -0.9], CLOSE),  # which end is better
        ([-1.0, -2.0, -2 - CLOSE, -4.0], [5, 6, 7, 8], [-0.5, -0.9], CLOSE),  # who goes on
        (
            [-1.0, -2.0, -2 - CLOSE, -4.0],
            [5, 2, 6, 7],
            [-0.5, -0.9],
            CLOSE,
        ),  # whether an end counts
        (
            [-1.0, -2.0, -3.0, -4.0],
            [5, 6, 7, 8],
            [-0.5, -0.5 - CLOSE],
            CLOSE,
        ),  # the order of the list
        ([-1.0, -1 - CLOSE, -3.0, -4.0], [5, 6, 7, 8], [-0.5, -0.9], 0.4),  # both go on
    ],
)
def test_a_tie_is_a_close_decision(
    scores: list[float], tokens: list[int], finished: list[float], gap: float
) -> None:
    """One step of a beam of 2, by hand."""
    task, model = built("default")
    audit = Audit([model], task.target_dictionary, 2)
    audit.judge.search.step = lambda: (torch.tensor([scores]), torch.tensor([tokens]), None)
    steps = audit.judge.search

    def search(*of: Any) -> Any:
        steps.step()
        return [[{"score": torch.tensor(one)} for one in finished]]

    audit._search = search  # type: ignore[method-assign]
    assert audit._closest(Batch(np.zeros((1, 1), np.int64))) == pytest.approx(gap, abs=1e-6)


def test_a_trace_is_the_best_hypothesis_pass_by_pass(tmp_path: Path) -> None:
    """What was drafted of it was accepted; passes after its end are for other hypotheses."""
    path = tmp_path / "trace.jsonl"
    flags = {"trace_file": str(path), "block_size": 3}
    found, task, model = decoder("default", "noisy", torch.float64, 4, Limits(), **flags)
    hypos = task.inference_step(found, [model], batch(task, RAGGED, seed=2))
    for (_, record), (best, *_) in zip(read(str(path)), hypos, strict=True):
        assert not record["lossless"] and record["decoder_passes"] == best["steps"]
        sentence = read_sentence(record, "here")
        assert sentence.output == record["output"]
        scores = [score for one in record["trace"] for score in one["log_probs"]]
        assert scores == pytest.approx(best["positional_scores"].tolist(), abs=1e-4)
        for one in record["trace"]:
            assert one["draft"] == one["verifier"][:-1]
            assert all(own >= 0 for own in one["draft_ranks"]) and one["num_nodes"] > 0
            apart = zip(one["log_probs"], one["runner_up_log_probs"], strict=True)
            assert all(ours != other for ours, other in apart)


@pytest.mark.parametrize("kind", ["noisy", "other"])
def test_a_pass_reads_what_is_new_alone(kind: str) -> None:
    """Paths of live hypotheses stay cached, and so do drafts behind them."""
    limits = Limits(max_len_b=14)
    found, task, model = decoder("default", kind, torch.float64, 5, limits, block_size=5)
    widths: list[int] = []
    step = found.scorer.step
    found.scorer.step = lambda tokens, mask: widths.append(tokens.shape[1]) or step(tokens, mask)
    for seed in range(4):
        widths.clear()
        rows = watched(task, found, [model], batch(task, (6,), seed=seed))
        assert widths == [one.num_nodes for one in rows[0].row.passes]
        assert len(widths) > 2


@pytest.mark.parametrize("kind", ["self_draft", "noisy", "other", "never_ends"])
@pytest.mark.parametrize("beam", [2, 5, 10])
def test_one_native_call_is_the_search_on_lists(
    kind: str, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hypotheses and its passes; a trace lets the search on lists run, by the same passes."""
    own = {"decoding": "self_draft"} if kind == "self_draft" else {}
    of = "itself" if kind == "self_draft" else kind
    pair = built("default", torch.float32)[1], assisted.drafter("default", of, torch.float32)
    for one in pair:
        monkeypatch.setattr(one, "_is_generation_fast", True, raising=False)
    for name, limits in LIMITS.items():
        found, task, model = decoder(
            "default", of, torch.float32, beam, limits, block_size=3, **own
        )
        assert found.scorer.native and found.draft_scorer.native
        sample = batch(task, (4, 9, 6, 7, 5), seed=beam)
        forced = PREFIXES[[0, 1, 2, 3, 3]] if name in ("16", "late") else None
        runs = []
        for traced in (False, True):
            found.record_tokens = traced
            rows = watched(task, found, [model], sample, forced)
            hypos = task.inference_step(found, [model], sample, prefix_tokens=forced)
            passes = [[(p.start, p.num_drafted, p.num_nodes) for p in r.row.passes] for r in rows]
            runs.append((hypos, passes))
        for got, other in zip(runs[0][0], runs[1][0], strict=True):
            assert_same(got, other)
        assert runs[0][1] == runs[1][1], name


def test_lossless_counts_n_best_lists(tmp_path: Path) -> None:
    """By beam, batch and engine; and it refuses a decoder without a beam."""
    model, out = str(DEMO / "model.pt"), str(tmp_path / "lossless.json")
    words = ["benchmark", str(DEMO), "--preset", "lossless", "--path", model, "--sentences", "3"]
    words += ["--sweep", "engine=native,torch", "--sweep", "beam=2,3", "--batch-sizes", "3"]
    words += ["--out", out, "--decoder"]
    assert paradec([*words, "self_draft"]) == 0
    rows = json.loads(Path(out).read_text(encoding="utf-8"))["rows"]
    assert [(row["beam"], row["engine"]) for row in rows] == [
        (beam, f"{engine} fp32") for engine in ("native", "torch") for beam in (2, 3)
    ]
    assert all(row["identical"] + row["ties"] == row["sentences"] == 3 for row in rows)
    assert all(row["passes"] >= 1 and row["block"] == 8 for row in rows)
    assert paradec([*words, "pgj"]) == 2


def test_lossless_goes_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fairseq's search of a beam runs once; finished rows are not decoded again."""
    out, judged, rows = tmp_path / "lossless.json", [], []
    words = ["benchmark", str(DEMO), "--preset", "lossless", "--path", str(DEMO / "model.pt")]
    words += ["--sweep", "beam=2,3", "--sentences", "3", "--batch-sizes", "1,3"]
    judge, measure = counts.judged, counts.counted
    monkeypatch.setattr(counts, "judged", lambda *a: (judged.append(a[1]), judge(*a))[1])

    def counted(setting: counts.Setting, *more: Any) -> dict[str, Any]:
        rows.append((setting.batch_size, setting.beam))
        if len(rows) == 3:
            raise KeyboardInterrupt
        return measure(setting, *more)

    monkeypatch.setattr(counts, "counted", counted)
    words += ["--decoder", "self_draft", "--out", str(out)]
    assert paradec(words) == 130
    assert paradec(words) == 0
    assert (judged, rows) == ([2, 3], [(1, 2), (1, 3), (3, 2), (3, 2), (3, 3)])
    found = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [(row["batch_size"], row["beam"]) for row in found] == rows[:2] + rows[3:]
    assert all(row["identical"] + row["ties"] == 3 for row in found)


def test_what_a_benchmark_calls_a_drafted_beam() -> None:
    """Its output is that of a beam search, as of the plain one."""
    models = Models(str(DEMO), "test", "fp32", "cpu")
    for command in ("self_draft --beam 3", "multiword_beam --beam 3"):
        assert (
            FairseqSystem(specs.read(command), models, str(DEMO / "model.pt"), {}).promise == BEAM
        )


@pytest.mark.parametrize("kind", ["itself", "other"])
def test_a_trace_has_the_tree_and_a_picture_of_it(kind: str, tmp_path: Path) -> None:
    """Each live hypothesis of the twin's search is a kept node, and no other node is."""
    path, limits = tmp_path / "trace.jsonl", Limits(max_len_b=11)
    flags = {"trace_file": str(path), "block_size": 3}
    found, task, model = decoder("default", kind, torch.float64, 3, limits, **flags)
    task.inference_step(found, [model], sample := batch(task, RAGGED, seed=2))
    words = task.target_dictionary
    for source, (_, record) in zip(source_rows(sample), read(str(path)), strict=True):
        nodes = beam_tree.read_tree(record, "here")
        assert [one.number for one in nodes] == [
            number for number, one in enumerate(record["trace"], 1) for _ in one["tree"]
        ]
        texts: list[tuple[int, ...]] = []
        for one in nodes:
            before = () if one.parent < 0 else (*texts[one.parent], words.index(one.word))
            texts.append(before)
        assert len(set(texts)) == len(texts)
        rules = rules_for(words, [model], len(source), **limits.reference())
        search, lived = paper.Search(rules, 3), set()
        while not search.ends:
            lived |= {one.tokens for one in search.live}
            search.advance(paper.asker([model], source, rules))
        kept = {text for text, one in zip(texts, nodes, strict=True) if one.kept}
        assert kept == lived
        assert kind == "other" or len(kept) == len(nodes)
        best = beam_tree.best_path(nodes, record["output"])
        assert len(best) == len(record["output"])
        where = beam_tree.places(nodes, best)
        assert len(set(where)) == len(where) and {where[n][1] for n in best} == {0}
    assert (
        paradec(["trace", str(path), "--kind", "tree", "--picture", str(tmp_path / "tree.svg")])
        == 0
    )
    assert (tmp_path / "tree.svg").read_text(encoding="utf-8").count("<path") > len(nodes)
    greedy = tmp_path / "greedy.jsonl"
    plain = argparse.Namespace(**limits.flags(), decoding="greedy", trace_file=str(greedy))
    task.inference_step(task.build_generator([model], plain), [model], sample)
    assert (
        paradec(["trace", str(greedy), "--kind", "tree", "--picture", str(tmp_path / "no.svg")])
        == 2
    )
