"""Earlier translations as drafts: where they go on, what takes them, what is told of them."""

import argparse
import json
from types import SimpleNamespace

import pytest
from reference.greedy import stock_greedy
from support.builders import batch, built, collate, demo
from support.commands import DEMO
from support.exact import watched

import fairseq_paradec
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding.assistant import AssistantDrafter
from fairseq_paradec.decoding.drafting import BlockSizes
from fairseq_paradec.decoding.given import GivenDrafter, taken_up
from fairseq_paradec.decoding.loop import Drafter, Verdict, no_draft
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.show.trace_records import read_sentence
from fairseq_paradec.methods.base import refuse_drafts
from fairseq_paradec.row import Row

TEXT = ["Two men sit on a bench in the park and eat ice cream.", "", "A dog runs.", "A man."]
FIRST = 30
EDITED = ["Two women sit on a bench in the park and eat ice cream.", "A cat.", "A dog runs.", "A"]


@pytest.mark.parametrize(
    ("given", "tokens", "place", "at"),
    [
        ([5, 6, 2], [], 0, 0),
        ([5, 6, 2], [7], 1, None),
        ([5, 6, 7, 2], [9, 5, 6], 3, 2),
        ([5, 6, 7, 2], [5, 6, 7], 3, 3),
        ([5, 6, 7, 5, 6, 8, 2], [9, 5, 6], 3, 2),
        ([5, 6, 7, 5, 6, 8, 2], [9, 9, 9, 5, 6], 5, 5),
        ([5, 6, 5, 6, 5, 6, 2], [9, 5, 6], 3, 4),  # 2 is as near
        ([5, 6, 2], [6, 5], 2, None),
        ([7, 6, 8, 2], [5, 6], 2, None),  # the last token alone is not enough
    ],
)
def test_a_draft_goes_on_at_the_nearest_place_behind_the_last_two_tokens(given, tokens, place, at):
    assert taken_up(given, tokens, place) == at


class Behind(Drafter):
    """Drafts nothing, and keeps what it is told."""

    def __init__(self):
        self.verdicts, self.stayed = [], []

    def propose(self, rows):
        return no_draft(len(rows))

    def observe(self, verdict):
        self.verdicts.append(verdict)

    def drop(self, stay):
        self.stayed.append(stay)


def drafter_of(*rows):
    """A drafter from the rows' earlier outputs; 2 is `</s>`."""
    return GivenDrafter(Behind(), rows, 2)


@pytest.mark.parametrize(
    ("limit", "drafted"), [(9, [5, 6, 7, 2]), (4, [5, 6, 7, 2]), (3, [5, 6, 7]), (0, [])]
)
def test_an_earlier_output_is_drafted_to_its_end_or_to_the_last_position_before_the_limit(
    limit, drafted
):
    row = Row(0, [], limit, given=[5, 6, 7])
    proposal = drafter_of(row).propose([row])
    assert proposal.tokens == [drafted] and proposal.given == [bool(drafted)]


def test_the_place_in_an_earlier_output_moves_on_with_what_is_committed():
    """Behind 8, 9 either place could be meant; the output is at the second one."""
    row = Row(0, [], 20, given=[8, 9, 4, 4, 4, 8, 9, 6], tokens=[3, 3, 3, 3, 3, 8, 9])
    drafter = drafter_of(row)
    drafter.observe(Verdict([], [0], [7], None))
    assert drafter.propose([row]).tokens == [[6, 2]]


def test_the_other_drafter_is_told_which_drafts_were_its_own():
    rows = [Row(0, [], 9, given=[5, 6]), Row(1, [], 9)]
    drafter = drafter_of(*rows)
    drafter.propose(rows)
    drafter.observe(Verdict([], [2, 0], [3, 1], None))
    assert [one.own for one in drafter.behind.verdicts] == [[False, True]]


def test_rows_that_stay_keep_their_earlier_outputs_and_places():
    first = Row(0, [], 20, given=[4])
    second = Row(1, [], 20, given=[8, 9, 4, 4, 4, 8, 9, 6], tokens=[3, 3, 3, 3, 3, 8, 9])
    drafter = drafter_of(first, second)
    drafter.observe(Verdict([], [0, 0], [1, 7], None))
    drafter.drop([1])
    assert drafter.propose([second]).tokens == [[6, 2]] and drafter.behind.stayed == [[1]]


@pytest.mark.parametrize("decoding", ["greedy", "self_draft", "pgj"])
def test_a_sentence_that_did_not_change_costs_one_pass(decoding):
    task, model, rows = demo()
    sample = collate(task, rows[:8])
    found = stock_greedy(task, [model], sample)
    sample["drafts"] = [hypo["tokens"].tolist()[:-1] for hypo in found]
    generator = task.build_generator([model], argparse.Namespace(decoding=decoding))
    for ours in watched(task, generator, [model], sample):
        assert len(ours.row.passes) == 1 and ours.row.passes[0].given


def test_the_other_drafter_is_not_asked_where_every_row_has_a_draft():
    task, model, rows = demo()
    sample = collate(task, rows[:3])
    sample["drafts"] = [hypo["tokens"].tolist() for hypo in stock_greedy(task, [model], sample)]
    generator = task.build_generator([model], argparse.Namespace(decoding="self_draft")).decoder
    make, asked = generator.make_drafter, []

    def watch(*args):
        drafter = make(*args)
        drafter.propose = lambda rows: asked.append(rows)
        return drafter

    generator.make_drafter = watch
    task.inference_step(generator, [model], sample)
    assert not asked


def test_a_drafter_keeps_no_drafts_of_its_own_where_an_earlier_output_was_drafted():
    kept = []
    scorer = SimpleNamespace(cache=SimpleNamespace(lengths=[5, 5]), keep=kept.append)
    drafter = AssistantDrafter(scorer, None, None, BlockSizes(9, 2, adaptive=True), 0.0)
    drafter.read = [2, 2]
    drafter.observe(Verdict([], [2, 2], [3, 3], None, own=[True, False]))
    assert kept == [[4, 2]] and drafter.sizes.sizes == [4, 9]
    drafter.observe(Verdict([], [2, 2], [3, 3], None, own=[False, False]))
    assert len(kept) == 1  # it was not asked, and has cached nothing


def test_the_models_first_token_precedes_a_draft():
    task, model = built("default")
    sample = batch(task, (3, 5), seed=1)
    generator = task.build_generator([model], argparse.Namespace(decoding="greedy"))
    model.first_target_token = task.target_dictionary[FIRST]
    try:
        found = watched(task, generator, [model], sample)
        outputs = [one.tokens for one in found]
        assert all(tokens[0] == FIRST != tokens[1] for tokens in outputs)
        drafts = [tokens[1:-1] for tokens in outputs]
        again = watched(task, generator, [model], sample | {"drafts": drafts})
    finally:
        del model.first_target_token
    assert [one.tokens for one in again] == outputs
    assert drafts[0] and len(again[0].row.passes) == 1


def test_text_with_drafts_is_the_same_text_in_fewer_passes(tmp_path, capsys):
    """From Python and from the command; by auto_fast too, which measures nothing then."""
    translator = fairseq_paradec.load(DEMO)
    before = translator.translate(EDITED, decoding="greedy")
    plain = list(translator.results(TEXT, decoding="greedy"))
    for decoding in ("greedy", "self_draft", "auto_fast"):
        found = list(translator.results(TEXT, drafts=before, decoding=decoding))
        assert [one.text for one in found] == [one.text for one in plain], decoding
        assert found[2].passes == 1 and found[2].rejected == 0
        assert found[0].passes < plain[0].passes and found[0].accepted > 0
    assert not translator.generator({"decoding": "auto_fast"})._trials
    text, drafts = tmp_path / "text", tmp_path / "drafts"
    text.write_text("\n".join(TEXT) + "\n")
    drafts.write_text("\n".join(before) + "\n")
    stats = tmp_path / "stats.jsonl"
    words = ["translate", "--model", str(DEMO), str(text), "--decoding", "greedy", "--audit"]
    more = ["--drafts", str(drafts), "--stats-file", str(stats)]
    assert paradec([*words, *more]) == 0
    assert capsys.readouterr().out.splitlines() == [one.text for one in plain]
    del translator
    records = [json.loads(line) for line in stats.read_text().splitlines()]
    assert [one["given"] for one in records if one["id"] == 2] == [[True]]
    assert all(one["audit"]["identical"] for one in records)


def test_a_trace_says_which_tokens_an_earlier_translation_gave(tmp_path):
    trace = tmp_path / "trace.jsonl"
    translator = fairseq_paradec.load(DEMO)
    options = {"decoding": "assisted", "drafter_path": str(DEMO / "assistant.pt")}
    before = translator.translate(EDITED[:1], **options)
    translator.translate(TEXT[:1], drafts=before, trace_file=str(trace), **options)
    record = json.loads(trace.read_text())
    sentence = read_sentence(record, "sentence 0")
    given = {one.number for one, was in zip(sentence.passes, record["given"]) if was}
    assert given and {one.state for one in sentence.origins} > {"given"}
    assert {one.pass_number for one in sentence.origins if one.state == "given"} <= given
    assert all("draft_confidences" not in one for one in record["trace"] if one.get("given"))


@pytest.mark.parametrize(
    "flags",
    [
        {"decoding": "beam"},
        {"decoding": "multiword_beam", "beam": 1},
        {"decoding": "gad_pp"},
        {"decoding": "pgj", "jacobi_stop": "unchanged"},
        {"decoding": "assisted", "accept_topk": 3, "drafter_path": str(DEMO / "assistant.pt")},
        {"decoding": "assisted", "sampling": True, "drafter_path": str(DEMO / "assistant.pt")},
        {"decoding": "auto_fast", "latency_budget_ms": 9.0},
    ],
    ids=str,
)
def test_a_decoder_whose_output_a_draft_could_change_refuses_it(flags):
    translator = fairseq_paradec.load(DEMO)
    said = "--drafts needs .* got --decoding " + flags["decoding"]
    if "sampling" in flags:
        said = "--drafts excludes --sampling"
    with pytest.raises(UsageError, match=said):
        translator.translate(["A dog runs."], drafts=["Ein Hund rennt."], **flags)
    refuse_drafts(translator.generator({"decoding": "greedy"}), None)


def test_there_is_a_draft_for_each_line(tmp_path, capsys):
    translator = fairseq_paradec.load(DEMO)
    wrong = {"1 lines": ["a"], "more than 4 lines": ["a"] * 5, "got 3": ["a", "b", 3, "c"]}
    for said, drafts in wrong.items():
        with pytest.raises(UsageError, match="--drafts: .*" + said):
            translator.translate(TEXT, drafts=drafts, decoding="greedy")
    for name, wrong in {"on_pass": 3, "on_finish": [None] * 3}.items():
        with pytest.raises(UsageError, match=f"{name}: got .*; allowed: .*one for each line"):
            list(translator.results(TEXT, decoding="greedy", **{name: wrong}))
    words = ["translate", "--model", str(DEMO), "--text", "a", "--drafts"]
    assert paradec([*words, str(tmp_path / "none")]) == 2
    assert "--drafts: got" in capsys.readouterr().err
    (tmp_path / "some").write_text("a\n")
    assert paradec([*words, str(tmp_path / "some"), "--out", str(tmp_path / "out")]) == 2
    assert "excludes --out" in capsys.readouterr().err
