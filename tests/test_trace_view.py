"""paradec trace: the cells of hand-written passes, text, the command, and real traces.

Its pages are tested in test_viewer.py.
"""

from __future__ import annotations

import json
import re

import pytest
import torch
from gpu.gates import collate
from support.builders import HEADS_BLOCK_SIZE, Limits, batch, built, decode, demo, tiny_blockwise
from support.commands import ROOT
from support.trace_records import FACTS, FROM_BOTH_ENDS, GOOD, one_pass, record, write, written

from fairseq_paradec.analysis import page as pages
from fairseq_paradec.analysis import trace_text, viewer
from fairseq_paradec.analysis.trace_text import sentence_text
from fairseq_paradec.analysis.trace_view import (
    EOS,
    OPEN,
    Origin,
    Sentence,
    read_sentence,
)
from fairseq_paradec.cli import trace as command
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError

LETTERS = {"p": "previous", "a": "accepted", "r": "rescued", "b": "bifurcation", "+": "bonus"}
LETTERS |= {"x": "discarded", "w": "pending"}


def lines_of(sentence: Sentence) -> list[tuple[str, str]]:
    """Of each pass its D and V line, as ``token/letter`` words."""
    letters = {state: letter for letter, state in LETTERS.items()}
    return [
        tuple(
            " ".join(f"{cell.token}/{letters[cell.state]}" for cell in line)
            for line in (one.draft, one.verifier)
        )
        for one in sentence.passes
    ]


def sentences_of(path):
    """The sentences of one file."""
    for (entry,) in command.groups([str(path)]):
        yield entry.sentence


def lines(output, *passes):
    return lines_of(read_sentence(record(output, *passes), "sentence 3"))


def broken(last):
    """Changes to the good record: both ends first, and then this pass."""
    return {"output": "A B C D </s>".split(), "trace": [*FROM_BOTH_ENDS, last]}


@pytest.mark.parametrize(
    ("output", "passes", "expected"),
    [
        (  # Table 11, example 1, shortened: accept, bifurcate, throw away, and end at </s>
            "Nach den vor war . </s>",
            [(0, "Nach den Ang Ang war", "Nach den vor war war nicht", 2, 3),
             (3, "war . und so", "war . </s> nicht", 2, 3)],
            [("Nach/a den/a Ang/b Ang/x war/x", "Nach/a den/a vor/b war/x war/x nicht/x"),
             ("Nach/p den/p vor/p war/a ./a und/b", "Nach/p den/p vor/p war/a ./a </s>/b")],
        ),
        (  # GAD++: ``Ang`` is not the verifier's first choice; the output takes it all the same
            "den Ang war in </s>",
            [(0, "den Ang war zu in", "den Ein war in nicht x", 3, 4),
             (4, "</s>", "</s>", 1, 1)],
            [("den/a Ang/r war/a zu/b in/x", "den/a Ein/x war/a in/b nicht/x x/x"),
             ("den/p Ang/p war/p in/p </s>/a", "den/p Ang/p war/p in/p </s>/a")],
        ),
        # a bonus token, and one that is not used
        ("a b c", [(0, "a b", "a b c", 2, 3)], [("a/a b/a", "a/a b/a c/+")]),
        ("a b", [(0, "a b", "a b c", 2, 2)], [("a/a b/a", "a/a b/a c/x")]),
        (  # a block that waits until it is unchanged
            "a b c",
            [(0, "a x y", "a b z", 1, 0), (0, "a b c", "a b c", 3, 3)],
            [("a/w x/b y/x", "a/w b/b z/x"), ("a/a b/a c/a", "a/a b/a c/a")],
        ),
        # agreed on by relaxed acceptance, and not committed: the verifier's own is not what is kept
        ("", [(0, "a b", "c d", 1, 0)], [("a/w b/b", "c/x d/b")]),
        # accepted and final: nothing after it counts in either line, whatever was counted
        ("a </s>", [(0, "a </s> b c", "a </s> b d e", 3, 4)], [("a/a </s>/a", "a/a </s>/a")]),
        # the verifier's replacement ends it
        ("a </s>", [(0, "a b c", "a </s> d e", 1, 2)], [("a/a b/b", "a/a </s>/b")]),
        # rejected in D, not reached in V: each line up to its own
        ("a b", [(0, "a </s> c", "a b </s> e", 1, 2)], [("a/a </s>/b", "a/a b/b </s>/x")]),
        # the verifier's own </s> was overruled: the sentence goes on
        ("a b d", [(0, "a b c", "a </s> d e", 2, 3)], [("a/a b/r c/b", "a/a </s>/x d/b e/x")]),
        # a drafted </s> was let pass against the verifier's first choice
        ("a </s>", [(0, "a </s> c", "a b d e", 2, 3)], [("a/a </s>/r", "a/a b/x")]),
        # a waiting block says why it waits, even behind </s>
        ("", [(0, "a </s> c", "a </s> e f", 2, 0)], [("a/w </s>/w c/b", "a/w </s>/w e/b f/x")]),
    ],
)  # fmt: skip
def test_cells(output, passes, expected):
    """The states of D and V by hand."""
    assert lines(output, *(one_pass(*one) for one in passes)) == expected


# ---- cells -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": ["a", "c"]}, "s 3 contradicts itself.*position 1 on"),
        ({"output": ["a", "b", "c"]}, "s 3 contradicts itself.*position 2 on"),
        ({"trace": None}, "s 3: 'trace' is missing or no list"),
        ({"source": [1]}, "s 3: 'source' holds other things than tokens"),
        ({"trace": [7]}, "s 3, pass 1: got 7"),
        ({"trace": [one_pass(1, "a x", "a b", 1, 2)]}, "pass 1 starts at 1, after 0 committed"),
        ({"trace": [one_pass(0, "a x", "a b", 3, 2)]}, "pass 1 accepts 3 of 2"),
        ({"trace": [one_pass(0, "a x", "a b", 1, 3)]}, "pass 1 commits 3 tokens, which"),
        ({"trace": [one_pass(0, "a x", "a b", 1, "2")]}, "'num_committed' is missing or no int"),
        ({"trace": [{"start": 0}]}, "pass 1: 'draft' is missing"),
        (broken(written(4, [EOS], [5])), "s 3"),  # leaves position 4 open
        (broken(written(4, [EOS], [3])), "s 3"),  # there is something
        (broken(written(4, [EOS], [])), "s 3"),  # does not say where
        (broken(written(4, [EOS], [4.0])), "s 3"),  # nor here
        (broken(written(4, ["E"], [4])), "s 3"),  # is not the output
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        read_sentence(GOOD | changes, "s 3")


# ---- real traces -------------------------------------------------------------------------------

WAYS = [
    {"decoding": "pj"},
    {"decoding": "pgj", "block_size": 4, "jacobi_stop": "unchanged"},
    {"decoding": "hgj", "block_size": 4, "jacobi_window": "sliding", "jacobi_init": "ngram"},
]


def real_trace(folder, task, model, sample, limits, **flags):
    """A trace file as --trace-file writes it."""
    path = folder / "trace.jsonl"
    decode(task, [model], sample, limits, trace_file=str(path), **flags)
    return path


def tiny_trace(folder, **flags):
    task, model = built("share_all")
    return real_trace(folder, task, model, batch(task, [8, 5, 3, 11]), Limits(), **flags)


@pytest.mark.parametrize("flags", WAYS, ids=str)
def test_real_traces_add_up(tmp_path, flags):
    """The cells that count, read off their states alone, are the output."""
    path = tiny_trace(tmp_path, **flags)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for sentence, data in zip(sentences_of(path), records, strict=True):
        output = []
        scores = [one.log_prob for one in sentence.origins]
        assert scores == pytest.approx(data["positional_scores"], abs=1e-9)
        for one in sentence.passes:
            assert [cell.token for cell in one.draft[: one.start]] == output
            assert all(sentence.origins[at].pass_number == one.number for at in one.places)
            new = [c.token for c in one.draft[one.start :] if c.state in ("accepted", "rescued")]
            own = [c.token for c in one.verifier if c.state in ("bifurcation", "bonus")]
            output += new + own[: len(one.committed) - len(new)]
        assert output == data["output"]
        assert f"tokens: {data['num_tokens']}, passes: {data['decoder_passes']}" in sentence.summary


def test_the_example_in_the_documentation(tmp_path):
    """docs/trace.md shows what the command prints for this sentence of the demo."""
    task, model, rows = demo(torch.float64)
    sample = collate(task, [rows[7]])
    path = real_trace(tmp_path, task, model, sample, Limits(max_len_b=200), decoding="pgj")
    (sentence,) = sentences_of(path)
    text = sentence_text(sentence, color=False).partition("\n")[2]
    page = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
    assert text in page
    assert trace_text.legend(color=False) in page


# ---- text --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [None, 50, 9])
def test_real_lines_are_aligned_and_folded(tmp_path, width):
    """Token by token D and V start in the same column; folding loses none and fits."""
    path = tiny_trace(tmp_path, decoding="pgj", block_size=4)
    for sentence in sentences_of(path):
        text = re.sub("\x1b\\[[0-9;]*m", "", sentence_text(sentence, True, width))
        lines = [line for line in text.split("\n") if re.match(r" *\d+ [DV]  ", line)]
        tokens = {"D": [], "V": []}
        for d, v in zip(lines[::2], lines[1::2], strict=True):
            starts = [[m.start() for m in re.finditer(r"\S+", x[8:])] for x in (d, v)]
            assert all(a == b for a, b in zip(*starts, strict=False))
            tokens["D"] += d[8:].split()
            tokens["V"] += v[8:].split()
            assert width is None or max(len(d), len(v)) <= width or len(v[8:].split()) <= 1
        for letter, index in (("D", 0), ("V", 1)):
            cells = [lines_of(sentence)[n][index].split() for n in range(len(sentence.passes))]
            assert len([t for t in tokens[letter] if t != "|"]) == sum(map(len, cells))


# ---- what is known of tokens ------------------------------------------------------------------


def test_origins_say_who_wrote_each_token():
    passes = (
        one_pass(0, "", "q", 0, 1, log_probs=[-0.5], runner_up=["p"], runner_up_log_probs=[-1.0]),
        one_pass(1, "a x", "a y", 1, 0, log_probs=[-9, -9]),  # agreed on, not committed
        one_pass(1, "a b", "a z c", 2, 3, **FACTS | {"log_probs": [-0.5, -1.5, -2.5]}),
        one_pass(4, "d", "e", 0, 1, log_probs=[-0.125], draft_ranks=[4], draft_log_probs=[-3.0]),
    )
    sentence = read_sentence(record("q a b c e", *passes, flags={"block_size": 2}), "s")
    assert sentence.origins == [
        Origin(1, "bonus", -0.5, "p", -1.0, None, None),
        Origin(3, "accepted", -0.25, "x", -2.0, 0, None),
        Origin(3, "rescued", -float("inf"), "z", -1.5, 39, None),  # z: what was overruled
        Origin(3, "bonus", -2.5, "y", -3.0, None, None),
        Origin(4, "bifurcation", -0.125, None, None, None, None),
    ]
    assert sentence.summary == (
        "tokens: 5, passes: 4, tokens per pass: 1.25, drafted tokens accepted: 2 (rescued: 1)"
    )
    # an older trace: of an accepted draft, what is known of the verifier's same token
    old = one_pass(0, "a", "a b", 1, 2, log_probs=[-0.5, -1])
    assert read_sentence(record("a b", old), "s").origins[0].log_prob == -0.5


def test_origins_in_another_order_have_directions():
    ends = [*FROM_BOTH_ENDS, written(4, [EOS], [4])]
    named = [one | {"directions": ["1→", "2←"][: len(one["verifier"])]} for one in ends]
    sentence = read_sentence(record("A B C D </s>", *named), "s")
    assert [(one.pass_number, one.by, one.direction) for one in sentence.origins] == [
        (1, "bonus", "1→"), (2, "bonus", "1→"), (2, "bonus", "2←"), (1, "bonus", "2←"),
        (3, "bonus", "1→"),
    ]  # fmt: skip
    assert [one.places for one in sentence.passes] == [[0, 3], [1, 2], [4]]
    lines = sentence_text(sentence, color=False, width=None).splitlines()
    assert [line[8:] for line in lines if " V " in line] == [
        "+A · · +D ·", "A +B +C D ·", "A B C D +</s>",
    ]  # fmt: skip
    states = [[cell.state for cell in one.verifier] for one in sentence.passes]
    assert states[0] == ["bonus", OPEN, OPEN, "bonus", OPEN]
    # as before the traces had directions
    old = read_sentence(record("A B C D </s>", *ends), "s").origins
    assert [(one.pass_number, one.direction) for one in old] == [(n, None) for n in (1, 2, 2, 1, 3)]


# ---- the command -------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path):
    """A file of three sentences, numbers 3, 1 and none."""
    path = tmp_path / "trace.jsonl"
    write(path, GOOD, GOOD | {"id": 1}, GOOD | {"id": None})
    return path


def shown(out):
    return re.findall(r"^sentence .*(?= \()", out, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["sentence 3", "sentence 1", "sentence of line 3"]),
        (["--sentence", "1", "--sentence", "3"], ["sentence 3", "sentence 1"]),
        (["--limit", "2"], ["sentence 3", "sentence 1"]),
        (["--sentence", "1", "9", "--limit", "1"], ["sentence 1"]),
    ],
)
def test_some_are_shown(trace, capsys, arguments, names):
    assert paradec(["trace", str(trace), *arguments]) == 0
    out = capsys.readouterr().out
    assert shown(out) == names
    assert out.startswith(trace_text.legend(color=False) + "\n\nsentence ") and "\x1b" not in out


@pytest.mark.parametrize(
    ("content", "message", "before"),
    [
        (None, "FILE: got '{path}'; allowed: a file that --trace-file wrote (No such file", 0),
        ("", "FILE: got '{path}'; allowed: a file that --trace-file wrote; this one is empty", 0),
        ([GOOD, {"schema": "x"}], "{path}, line 2: got no record of a decoder; allowed: a f", 1),
        ([GOOD | {"version": 99}], "{path}, line 1: got version 99; allowed: version 1", 0),
        ([GOOD, "torn"], "{path}, line 2: the file is cut off in the middle of this line, as ", 1),
        ([GOOD, "torn", GOOD], "{path}, line 2: got no JSON, or a part of it (", 1),
        ("\x00\xff", "{path}, line 1: got no JSON, or a part of it (", 0),
        ([GOOD, GOOD | {"output": []}], "{path}, line 2: sentence 3 contradicts itself", 1),
    ],
)
def test_bad_files_end_in_one_line(tmp_path, capsys, content, message, before):
    path, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    if isinstance(content, str):
        path.write_text(content, encoding="latin-1")
    elif content is not None:
        write(path, *content)
        text = path.read_text(encoding="utf-8")
        if text.endswith('"torn"\n'):
            text = text.removesuffix("\n")
        path.write_text(text.replace('"torn"', text[:50]), encoding="utf-8")
    assert paradec(["trace", str(path), "--html", str(page)]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("paradec trace: error: " + message.format(path=path))
    assert len(shown(out)) == before and err.count("\n") == 1
    assert not page.exists()


BLOCK = '<script type="application/json" class="sentence">'


def test_page_is_written_whole_or_not_at_all(trace, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    assert paradec(["trace", str(trace), "--html", str(page), "--limit", "2"]) == 0
    first = page.read_text(encoding="utf-8")
    assert first.startswith(pages.MARK) and first.endswith(pages.TAIL) and first.count(BLOCK) == 2
    during = []
    original = viewer.sentence

    def interrupted(*args):
        during.append(page.read_text(encoding="utf-8"))
        if len(during) == 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(viewer, "sentence", interrupted)
    assert paradec(["trace", str(trace), "--html", str(page)]) == 130
    monkeypatch.undo()
    assert during == [first, first] and page.read_text(encoding="utf-8") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "trace.jsonl"]

    write(trace, GOOD | {"id": 77})
    assert paradec(["trace", str(trace), "--html", str(page)]) == 0
    second = page.read_text(encoding="utf-8")
    assert "sentence 77" in second and "sentence 3" not in second


def test_other_files_are_not_written_over(trace, tmp_path, capsys):
    other, folder = tmp_path / "thesis.html", tmp_path / "folder"
    other.write_text("<!DOCTYPE html>\n<p>mine", encoding="utf-8")
    folder.mkdir()
    content = trace.read_bytes()
    for path in (other, trace, folder, folder / "none" / "x.html", ""):
        assert paradec(["trace", str(trace), "--html", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"paradec trace: error: --html: got {str(path)!r}; all")
    assert other.read_text(encoding="utf-8") == "<!DOCTYPE html>\n<p>mine"
    assert trace.read_bytes() == content
    empty, link = tmp_path / "empty.html", tmp_path / "link.html"
    empty.touch()
    link.symlink_to(empty)
    assert paradec(["trace", str(trace), "--html", str(link)]) == 0
    assert link.is_symlink() and empty.read_text(encoding="utf-8").startswith(pages.MARK)


# ---- steps -------------------------------------------------------------------------------------

#: stern2018, section 7.4: an output in blocks of 10, 5, 4, 10, 2 and 3 tokens; k = 10.
PAPER = (
    "Das_ James_ Web b_ Space_ Tele sko p_ (_ J W ST_ )_ wird_ bis_ späte stens_ 2018_ an_ Bord_ "
    "einer_ Ari ane 5_ -_ Rak ete_ in_ den_ Weltraum _ gestartet_ . </s>"
)


def test_the_listing_of_the_paper(trace, capsys):
    """Each pass accepts the rest of a block, and finds the next one's first token."""
    passes = (
        one_pass(0, "", "Das_", 0, 1),
        one_pass(1, "James_ Web b_ Space_ Tele sko p_ (_ J",
                 "James_ Web b_ Space_ Tele sko p_ (_ J W", 9, 10),
        one_pass(11, "ST_ )_ wird_ bis_ an_ Bord_ 2018_", "ST_ )_ wird_ bis_ späte x x x", 4, 5),
        one_pass(16, "stens_ 2018_ an_ die", "stens_ 2018_ an_ Bord_ x", 3, 4),
        one_pass(20, "einer_ Ari ane 5_ -_ Rak ete_ in_ den_",
                 "einer_ Ari ane 5_ -_ Rak ete_ in_ den_ Weltraum", 9, 10),
        one_pass(30, "_ . </s>", "_ gestartet_ x", 1, 2),
        one_pass(32, ". </s>", ". </s>", 2, 2),
    )  # fmt: skip
    source = "The James Webb Space Telescope (JWST) will be launched </s>".split()
    write(trace, record(PAPER, *passes, source=source, decoding="blockwise"))
    assert paradec(["trace", str(trace), "--steps"]) == 0
    text = capsys.readouterr().out.splitlines()
    assert "\n".join(text[3:]) in (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
    assert text == [
        "sentence 3 (blockwise)",
        "Input:  The James Webb Space Telescope (JWST) will be launched",
        "Output: " + PAPER.removesuffix(" </s>"),
        "Step 1   10 tokens   [Das_, James_, Web, b_, Space_, Tele, sko, p_, (_, J]",
        "Step 2    5 tokens   [W, ST_, )_, wird_, bis_]",
        "Step 3    4 tokens   [späte, stens_, 2018_, an_]",
        "Step 4   10 tokens   [Bord_, einer_, Ari, ane, 5_, -_, Rak, ete_, in_, den_]",
        "Step 5    2 tokens   [Weltraum, _]",
        "Step 6    3 tokens   [gestartet_, ., </s>]",
        "tokens: 34, steps: 6, tokens per step: 5.67, passes: 7",
    ]


def test_blocks_of_a_minimum_size():
    """With --min-block 3 two drafts pass that are nowhere near the best, and end the sentence."""
    passes = (
        one_pass(0, "", "a", 0, 1),
        one_pass(1, "b c d", "x c y z", 2, 3, draft_ranks=[39, 0, 12]),
        one_pass(4, "e </s>", "y z", 2, 2, draft_ranks=[20, 9]),
    )
    sentence = read_sentence(record("a b c y e </s>", *passes, decoding="blockwise"), "sentence 3")
    assert lines_of(sentence) == [
        ("", "a/+"),
        ("a/p b/r c/a d/b", "a/p x/x c/a y/b z/x"),
        ("a/p b/p c/p y/p e/r </s>/r", "a/p b/p c/p y/p y/x z/x"),
    ]
    assert [" ".join(tokens) for tokens in sentence.steps] == ["a b c", "y e </s>"]


@pytest.mark.parametrize("flags", [{}, {"accept_topk": 3}, {"min_block": 2}])
def test_steps_of_real_traces(tmp_path, flags):
    """Blocks make up the output; each but the last has what the rule lets pass."""
    task, _ = built("share_all")
    model, sample = tiny_blockwise(task, "share_all"), batch(task, [8, 5, 3, 11])
    path = real_trace(tmp_path, task, model, sample, Limits(), decoding="blockwise", **flags)
    for sentence in sentences_of(path):
        assert [token for step in sentence.steps for token in step] == sentence.output
        sizes = [len(step) for step in sentence.steps]
        assert flags.get("min_block", 1) <= min(sizes[:-1], default=9)
        assert max(sizes) <= HEADS_BLOCK_SIZE
        states = {cell.state for one in sentence.passes for cell in one.draft}
        assert ("rescued" in states) <= bool(flags)


# ---- several files -----------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path):
    """Two traces of the same data in different orders; each lacks a sentence of the other."""
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    mine = [GOOD | {"id": i, "source": [f"s{i}"], "decoding": "first"} for i in (3, 1, 2)]
    other = [GOOD | {"id": i, "source": [f"s{i}"], "decoding": "second"} for i in (5, 1, 3)]
    for path, records in zip(paths, (mine, other), strict=True):
        write(path, *records)
    return list(map(str, paths))


def headings(out):
    """Of each sentence, and of each file that lacks it, the first line."""
    return re.findall(r"^sentence .*|^.* does not have .*", out, flags=re.MULTILINE)


def test_files_are_matched_by_number(two, capsys):
    assert paradec(["trace", *two]) == 0
    out = capsys.readouterr().out
    assert headings(out) == [
        "sentence 3 (first)", "sentence 3 (second)",
        "sentence 1 (first)", "sentence 1 (second)",
        "sentence 2 (first)", "two.jsonl: does not have sentence 2",
        "one.jsonl: does not have sentence 5", "sentence 5 (second)",
    ]  # fmt: skip
    assert re.findall(r"^source  (\S+)$", out, flags=re.MULTILINE) == [
        "s3", "s3", "s1", "s1", "s2", "s5",
    ]  # fmt: skip
    assert paradec(["trace", *two, "--sentence", "5", "1"]) == 0
    assert [line[:10] for line in headings(capsys.readouterr().out)] == [
        "sentence 1", "sentence 1", "one.jsonl:", "sentence 5",
    ]  # fmt: skip
    assert paradec(["trace", *two, "--sentence", "9"]) == 2
    assert "--sentence: got '9'; allowed: numbers (id) of s" in capsys.readouterr().err


def test_another_source_is_refused(tmp_path, capsys):
    three = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path, source in zip(three, (None, ["s1"], ["s2"]), strict=True):  # the first does not tell
        write(path, GOOD | {"id": 1, "source": source})
    assert paradec(["trace", *map(str, three)]) == 2
    assert capsys.readouterr().err == (
        f"paradec trace: error: {three[2]}, line 1: sentence 1 has another source than in "
        f"{three[1]}, line 1; allowed: traces of the same data\n"
    )
    page = tmp_path / "page.html"
    assert paradec(["trace", *map(str, three[:2]), "--html", str(page)]) == 0
    assert re.search(r'"source":\[\d+\],', page.read_text(encoding="utf-8"))
