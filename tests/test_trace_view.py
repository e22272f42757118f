"""paradec trace: the cells of hand-written passes, text, the command, and real traces.

Its pages are tested in test_viewer.py.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys

import pytest
import torch
from gpu.gates import collate
from support.builders import HEADS_BLOCK_SIZE, Limits, batch, built, decode, demo, tiny_blockwise
from support.commands import ROOT
from support.trace_records import FACTS, FROM_BOTH_ENDS, GOOD, one_pass, record, write, written

from fairseq_paradec.analysis import page as pages
from fairseq_paradec.analysis import trace_text, viewer
from fairseq_paradec.analysis.symbols import printable
from fairseq_paradec.analysis.trace_text import MARKS, sentence_text, steps_text
from fairseq_paradec.analysis.trace_view import (
    EOS,
    MEANINGS,
    OPEN,
    Cell,
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


# ---- cells -------------------------------------------------------------------------------------


def test_exact_acceptance():
    """Table 11, example 1, shortened: accept, bifurcate, throw away, and end at </s>."""
    assert lines(
        "Nach den vor war . </s>",
        one_pass(0, "Nach den Ang Ang war", "Nach den vor war war nicht", 2, 3),
        one_pass(3, "war . und so", "war . </s> nicht", 2, 3),
    ) == [
        ("Nach/a den/a Ang/b Ang/x war/x", "Nach/a den/a vor/b war/x war/x nicht/x"),
        ("Nach/p den/p vor/p war/a ./a und/b", "Nach/p den/p vor/p war/a ./a </s>/b"),
    ]


def test_relaxed_acceptance_rescues():
    """GAD++: ``Ang`` is not the verifier's first choice; the output takes it all the same."""
    assert lines(
        "den Ang war in </s>",
        one_pass(0, "den Ang war zu in", "den Ein war in nicht x", 3, 4),
        one_pass(4, "</s>", "</s>", 1, 1),
    ) == [
        ("den/a Ang/r war/a zu/b in/x", "den/a Ein/x war/a in/b nicht/x x/x"),
        ("den/p Ang/p war/p in/p </s>/a", "den/p Ang/p war/p in/p </s>/a"),
    ]


def test_bonus_token():
    assert lines("a b c", one_pass(0, "a b", "a b c", 2, 3)) == [("a/a b/a", "a/a b/a c/+")]
    assert lines("a b", one_pass(0, "a b", "a b c", 2, 2)) == [("a/a b/a", "a/a b/a c/x")]


def test_a_block_that_waits_until_it_is_unchanged():
    assert lines(
        "a b c",
        one_pass(0, "a x y", "a b z", 1, 0),
        one_pass(0, "a b c", "a b c", 3, 3),
    ) == [("a/w x/b y/x", "a/w b/b z/x"), ("a/a b/a c/a", "a/a b/a c/a")]
    # agreed on by relaxed acceptance, and not committed: the verifier's own is not what is kept
    assert lines("", one_pass(0, "a b", "c d", 1, 0)) == [("a/w b/b", "c/x d/b")]


@pytest.mark.parametrize(
    ("passed", "output", "expected"),
    [
        # accepted and final: nothing after it counts in either line, whatever was counted
        (("a </s> b c", "a </s> b d e", 3, 4), "a </s>", ("a/a </s>/a", "a/a </s>/a")),
        # the verifier's replacement ends it
        (("a b c", "a </s> d e", 1, 2), "a </s>", ("a/a b/b", "a/a </s>/b")),
        # rejected in D, not reached in V: each line up to its own
        (("a </s> c", "a b </s> e", 1, 2), "a b", ("a/a </s>/b", "a/a b/b </s>/x")),
        # the verifier's own </s> was overruled: the sentence goes on
        (("a b c", "a </s> d e", 2, 3), "a b d", ("a/a b/r c/b", "a/a </s>/x d/b e/x")),
        # a drafted </s> was let pass against the verifier's first choice
        (("a </s> c", "a b d e", 2, 3), "a </s>", ("a/a </s>/r", "a/a b/x")),
        # a waiting block says why it waits, even behind </s>
        (("a </s> c d", "a </s> e f", 2, 0), "", ("a/w </s>/w c/b d/x", "a/w </s>/w e/b f/x")),
    ],
)
def test_end_of_sentence(passed, output, expected):
    assert lines(output, one_pass(0, *passed)) == [expected]


def test_summary_counts_what_came_into_the_output():
    one = read_sentence(
        record(
            "a b c d </s>",
            one_pass(0, "a x", "a b", 1, 0),
            one_pass(0, "a b", "z b c", 2, 3),
            one_pass(3, "d </s> e f", "d </s> e f g", 4, 5),
        ),
        "sentence 3",
    )
    assert one.summary == (
        "tokens: 5, passes: 3, tokens per pass: 1.67, drafted tokens accepted: 4 (rescued: 1)"
    )
    assert [p.committed for p in one.passes] == [[], ["a", "b", "c"], ["d", "</s>"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": ["a", "c"]}, "s 3 contradicts itself.*position 1 on"),
        ({"output": ["a"]}, "s 3 contradicts itself.*position 1 on"),
        ({"output": ["a", "b", "c"]}, "s 3 contradicts itself.*position 2 on"),
        ({"trace": None}, "s 3: 'trace' is missing or no list"),
        ({"output": "a b"}, "s 3: 'output' is missing or no list"),
        ({"source": [1]}, "s 3: 'source' holds other things than tokens"),
        ({"trace": [7]}, "s 3, pass 1: got 7"),
        ({"trace": [one_pass(1, "a x", "a b", 1, 2)]}, "pass 1 starts at 1, after 0 committed"),
        ({"trace": [one_pass(0, "a x", "a b", 3, 2)]}, "pass 1 accepts 3 of 2"),
        ({"trace": [one_pass(0, "a x", "a b", -1, 2)]}, "pass 1 accepts -1 of 2"),
        ({"trace": [one_pass(0, "a x", "a b", 1, 3)]}, "pass 1 commits 3 tokens, which"),
        ({"trace": [one_pass(0, "a x", "a b", 1, -1)]}, "pass 1 commits -1 tokens, which"),
        ({"trace": [one_pass(0, "a x", "a b", 1, "2")]}, "'num_committed' is missing or no int"),
        ({"trace": [{"start": 0}]}, "pass 1: 'draft' is missing"),
    ],
)
def test_contradictions_are_refused(changes, message):
    assert read_sentence(GOOD, "s 3").output == ["a", "b"]
    with pytest.raises(UsageError, match=message):
        read_sentence(GOOD | changes, "s 3")


# ---- real traces -------------------------------------------------------------------------------

WAYS = [
    {"decoding": "greedy"},
    {"decoding": "pj"},
    {"decoding": "pgj", "block_size": 4},
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
    found = list(sentences_of(path))
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(found) == len(records) == 4
    for sentence, data in zip(found, records, strict=True):
        output = []
        scores = [one.log_prob for one in sentence.origins]
        assert scores == pytest.approx(data["positional_scores"], abs=1e-9)
        for one in sentence.passes:
            assert [cell.token for cell in one.draft[: one.start]] == output
            assert [sentence.origins[at].pass_number for at in one.places] == [
                one.number for _ in one.committed
            ]
            new = [c.token for c in one.draft[one.start :] if c.state in ("accepted", "rescued")]
            own = [c.token for c in one.verifier if c.state in ("bifurcation", "bonus")]
            output += new + own[: len(one.committed) - len(new)]
            assert [c.state for c in one.draft].count("bifurcation") <= 1
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


def text_of(output, *passes, color=False, width=None):
    sentence = read_sentence(record(output, *passes), "sentence 3")
    return sentence_text(sentence, color, width).split("\n")


ALL_STATES = (
    "den Ang war in b c",
    one_pass(0, "den Ang war zu in", "den Ein war in nicht", 3, 0),
    one_pass(0, "den Ang war zu in", "den Ein war in nicht", 3, 4),
    one_pass(4, "b", "b c", 1, 2),
)


def test_every_state_can_be_told_without_colour():
    """Marks alone give the states back, and the legend explains each of them."""
    states = {(left, right): state for state, (left, right) in MARKS.items()}
    sentence = read_sentence(record(*ALL_STATES), "sentence 3")
    seen = set()
    shown = [line[8:].split() for line in text_of(*ALL_STATES)[2:-2]]
    wanted = [line for one in sentence.passes for line in (one.draft, one.verifier)]
    for words, cells in zip(shown, wanted, strict=True):
        bar = words.index("|") if "|" in words else 0
        read = ["previous"] * bar
        for word in words[bar + bool(bar) :]:
            left = word[0] if not word[0].isalpha() else ""
            right = word[-1] if not word[-1].isalpha() else ""
            read.append(states.get((left, right), "accepted"))
        assert read == [cell.state for cell in cells]
        seen |= set(read)
    assert seen == set(MEANINGS) - {OPEN}  # of models that write in another order: below
    for state, meaning in MEANINGS.items():
        line = next(x for x in trace_text.legend(False).split("\n") if x.endswith(meaning))
        assert line.split()[0] == state.join(MARKS.get(state, ("", "")))


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("width", [None, 50, 9])
def test_real_lines_are_aligned_and_folded(tmp_path, color, width):
    """Token by token D and V start in the same column; folding loses none and fits."""
    path = tiny_trace(tmp_path, decoding="pgj", block_size=4)
    for sentence in sentences_of(path):
        text = re.sub("\x1b\\[[0-9;]*m", "", sentence_text(sentence, color, width))
        lines = [line for line in text.split("\n") if re.match(r" *\d+ [DV]  ", line)]
        tokens = {"D": [], "V": []}
        for d, v in zip(lines[::2], lines[1::2], strict=True):
            assert d[:5] == v[:5] and d[5:8] + v[5:8] == "D  V  "
            starts = [[m.start() for m in re.finditer(r"\S+", x[8:])] for x in (d, v)]
            assert all(a == b for a, b in zip(*starts, strict=False))
            tokens["D"] += d[8:].split()
            tokens["V"] += v[8:].split()
            assert width is None or max(len(d), len(v)) <= width or len(v[8:].split()) <= 1
        for letter, index in (("D", 0), ("V", 1)):
            cells = [lines_of(sentence)[n][index].split() for n in range(len(sentence.passes))]
            assert len([t for t in tokens[letter] if t != "|"]) == sum(map(len, cells))


def test_tokens_do_not_command_the_terminal():
    assert printable("a\x1b[2J\n\u202eb\ud800") == r"a\x1b[2J\n\u202eb\ud800"
    assert printable("\ufffe\uffff\ufdd0\U0001ffff") == r"\ufffe\uffff\ufdd0\U0001ffff"
    assert printable("\ufffd") == "\ufffd"
    assert printable("क\u200dष é 中") == "क\u200dष é 中"  # joiners and letters stay
    text = "\n".join(text_of("a", one_pass(0, "", "a", 0, 1)))
    assert "\x1b" not in text
    evil = record("\x1b[2J", one_pass(0, "", "\x1b[2J", 0, 1), source=["\x9b"], decoding="\x07")
    for shown in (
        sentence_text(read_sentence(evil, "sentence \x1b"), color=False),
        viewer.head("\x1b") + viewer.sentence([read_sentence(evil, "sentence \x1b")], [evil]),
    ):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)


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
    assert (sentence.drafted, sentence.accepted, sentence.rescued) == (5, 2, 1)
    assert sentence.flags == {"block_size": 2} and sentence.tokens_per_pass == 5 / 4
    # an older trace: of an accepted draft, what is known of the verifier's same token
    old = one_pass(0, "a", "a b", 1, 2, log_probs=[-0.5, -1])
    assert read_sentence(record("a b", old), "s").origins[0].log_prob == -0.5
    assert read_sentence(record("a b", old, flags=7), "s").flags == {}


def test_origins_in_another_order_have_directions():
    ends = [*FROM_BOTH_ENDS, written(4, [EOS], [4])]
    named = [one | {"directions": ["1→", "2←"][: len(one["verifier"])]} for one in ends]
    sentence = read_sentence(record("A B C D </s>", *named), "s")
    assert [(one.pass_number, one.by, one.direction) for one in sentence.origins] == [
        (1, "bonus", "1→"), (2, "bonus", "1→"), (2, "bonus", "2←"), (1, "bonus", "2←"),
        (3, "bonus", "1→"),
    ]  # fmt: skip
    assert [one.places for one in sentence.passes] == [[0, 3], [1, 2], [4]]
    assert {one.log_prob for one in sentence.origins} == {-0.5}
    # as before the traces had them
    old = read_sentence(record("A B C D </s>", *ends), "s").origins
    assert [one.direction for one in old] == [None] * 5
    assert [one.pass_number for one in old] == [1, 2, 2, 1, 3]


# ---- the command -------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path):
    """A file of three sentences, numbers 3, 1 and none."""
    path = tmp_path / "trace.jsonl"
    write(path, GOOD, GOOD | {"id": 1}, GOOD | {"id": None})
    return path


def shown(out):
    return re.findall(r"^sentence .*(?= \()", out, flags=re.MULTILINE)


def test_everything_is_shown_with_one_legend(trace, capsys):
    assert paradec(["trace", str(trace)]) == 0
    out = capsys.readouterr().out
    assert shown(out) == ["sentence 3", "sentence 1", "sentence of line 3"]
    assert out.startswith(trace_text.legend(color=False) + "\n\nsentence 3 (any)\n")
    assert out.count("~discarded~") == 1
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--sentence", "1"], ["sentence 1"]),
        (["--sentence", "1", "3"], ["sentence 3", "sentence 1"]),
        (["--sentence", "1", "--sentence", "3"], ["sentence 3", "sentence 1"]),
        (["--limit", "2"], ["sentence 3", "sentence 1"]),
        (["--sentence", "1", "9", "--limit", "1"], ["sentence 1"]),
    ],
)
def test_some_are_shown(trace, capsys, arguments, names):
    assert paradec(["trace", str(trace), *arguments]) == 0
    assert shown(capsys.readouterr().out) == names


def without(record, key):
    return {name: value for name, value in record.items() if name != key}


@pytest.mark.parametrize(
    ("content", "message", "before"),
    [
        (None, "FILE: got '{path}'; allowed: a file that --trace-file wrote (No such file", 0),
        ("", "FILE: got '{path}'; allowed: a file that --trace-file wrote; this one is empty", 0),
        ([without(GOOD, "trace")], "{path}, line 1: got statistics without passes; allowed: a", 0),
        ([GOOD, {"schema": "x"}], "{path}, line 2: got no record of a decoder; allowed: a f", 1),
        ([[1]], "{path}, line 1: got no record of a decoder; allowed: a file that --trace-f", 0),
        ([GOOD | {"version": 99}], "{path}, line 1: got version 99; allowed: version 1", 0),
        ([GOOD, "torn"], "{path}, line 2: the file is cut off in the middle of this line, as ", 1),
        ([GOOD, "torn", GOOD], "{path}, line 2: got no JSON, or a part of it (", 1),
        ("\x00\xff", "{path}, line 1: got no JSON, or a part of it (", 0),
        ([GOOD, GOOD | {"output": []}], "{path}, line 2: sentence 3 contradicts itself", 1),
    ],
)
def test_bad_files_end_in_one_line(tmp_path, capsys, content, message, before):
    path = tmp_path / "trace.jsonl"
    if isinstance(content, str):
        path.write_text(content, encoding="latin-1")
    elif content is not None:
        write(path, *content)
        text = path.read_text(encoding="utf-8")
        if text.endswith('"torn"\n'):
            text = text.removesuffix("\n")
        path.write_text(text.replace('"torn"', text[:50]), encoding="utf-8")
    page, good = tmp_path / "page.html", tmp_path / "good.jsonl"
    write(good, GOOD)
    for files, shown_before in (([path], before), ([good, path], 0)):
        assert paradec(["trace", *map(str, files), "--html", str(page)]) == 2
        out, err = capsys.readouterr()
        # of any file but the first, all lines are read before anything is shown
        if "contradicts" not in message or len(files) == 1:
            assert err.startswith("paradec trace: error: " + message.format(path=path))
            assert len(shown(out)) == shown_before
        assert err.count("\n") == 1
        assert not page.exists()


BLOCK = '<script type="application/json" class="sentence">'


def test_page_is_written_whole_or_not_at_all(trace, tmp_path, capsys, monkeypatch):
    page = tmp_path / "page.html"
    assert paradec(["trace", str(trace), "--html", str(page), "--limit", "2"]) == 0
    first = page.read_text(encoding="utf-8")
    assert first.startswith(pages.MARK) and first.endswith(pages.TAIL)
    assert first.count(BLOCK) == 2 and "<h1>Trace trace.jsonl</h1>" in first
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(page.stat().st_mode) == 0o666 & ~umask

    during = []
    original = viewer.sentence

    def interrupted(*args):
        during.append(page.read_text(encoding="utf-8"))
        if len(during) == 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(viewer, "sentence", interrupted)
    assert paradec(["trace", str(trace), "--html", str(page)]) == 130
    assert during == [first, first]
    assert page.read_text(encoding="utf-8") == first
    monkeypatch.undo()
    write(trace, GOOD, GOOD | {"output": []})
    assert paradec(["trace", str(trace), "--html", str(page)]) == 2
    assert page.read_text(encoding="utf-8") == first
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
    special = tmp_path / "socket"  # no plain file, and in nobody's way should it be replaced
    os.mknod(special, stat.S_IFSOCK | 0o600)
    for path in (other, trace, folder, folder / "none" / "x.html", special, ""):
        assert paradec(["trace", str(trace), "--html", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"paradec trace: error: --html: got {str(path)!r}; all")
    assert other.read_text(encoding="utf-8") == "<!DOCTYPE html>\n<p>mine"
    assert trace.read_bytes() == content
    assert stat.S_ISSOCK(special.stat().st_mode)
    empty, link = tmp_path / "empty.html", tmp_path / "link.html"
    empty.touch()
    link.symlink_to(empty)
    assert paradec(["trace", str(trace), "--html", str(link)]) == 0
    assert link.is_symlink() and empty.read_text(encoding="utf-8").startswith(pages.MARK)


@pytest.mark.slow
@pytest.mark.parametrize("with_page", [False, True])
def test_a_reader_that_leaves_ends_it_quietly(trace, tmp_path, with_page):
    """As with ``| head -1``; a page that was asked for is finished."""
    count = 3000  # far more than a pipe holds
    write(trace, *[GOOD | {"id": i} for i in range(count)])
    page = tmp_path / "page.html"
    arguments = ["--html", str(page)] if with_page else []
    process = subprocess.Popen(
        [sys.executable, "-m", "fairseq_paradec", "trace", str(trace), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith("D is what")
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert "Error" not in errors and "Traceback" not in errors and "error" not in errors
    if with_page:
        assert page.read_text(encoding="utf-8").count(BLOCK) == count


def test_another_order_fills_the_output_from_its_places():
    passes = (*FROM_BOTH_ENDS, written(4, [EOS], [4]))
    one = record("A B C D </s>", *passes)
    sentence = read_sentence(one, "sentence 3")
    lines = sentence_text(sentence, color=False, width=None).splitlines()
    assert [line[8:] for line in lines if " V " in line] == [
        "+A · · +D ·", "A +B +C D ·", "A B C D +</s>",
    ]  # fmt: skip
    states = [[cell.state for cell in one.verifier] for one in sentence.passes]
    assert states[0] == ["bonus", OPEN, OPEN, "bonus", OPEN]
    assert sentence.passes[0].verifier[3] == Cell("D", "bonus", 3, log_prob=-0.5)
    assert "tokens: 5, passes: 3" in sentence.summary


@pytest.mark.parametrize(
    "last",
    [
        written(4, [EOS], [5]),  # leaves position 4 open
        written(4, [EOS], [3]),  # there is something
        written(4, [EOS], []),  # does not say where
        written(4, [EOS], [4.0]),  # nor here
        written(4, [EOS], [[4]]),
        written(4, ["E"], [4]),  # is not the output
    ],
)
def test_an_order_that_contradicts_itself_is_refused(last):
    one = record("A B C D </s>", *FROM_BOTH_ENDS, last)
    with pytest.raises(UsageError, match="sentence 3"):
        read_sentence(one, "sentence 3")


# ---- steps -------------------------------------------------------------------------------------

#: stern2018, section 7.4: an output in blocks of 10, 5, 4, 10, 2 and 3 tokens; k = 10.
PAPER = (
    "Das_ James_ Web b_ Space_ Tele sko p_ (_ J W ST_ )_ wird_ bis_ späte stens_ 2018_ an_ Bord_ "
    "einer_ Ari ane 5_ -_ Rak ete_ in_ den_ Weltraum _ gestartet_ . </s>"
)


def test_the_listing_of_the_paper():
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
    one = record(PAPER, *passes, source=source, decoding="blockwise")
    text = steps_text(read_sentence(one, "sentence 3")).split("\n")
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


BLOCKWISE = (
    "den Ang war in </s>",
    one_pass(0, "", "den", 0, 1),
    # among the two best, and the model's own; rejected
    one_pass(1, "Ang war zu", "Ein war in x", 2, 3, draft_ranks=[1, 0, 7]),
    one_pass(4, "", "</s>", 0, 1),
)


def steps_of(*args, **more):
    sentence = read_sentence(record(*args, **more), "sentence 3")
    return [" ".join(tokens) for tokens in sentence.steps]


def test_blocks_of_a_minimum_size():
    """With --min-block 3 two drafts pass that are nowhere near the best, and end the sentence."""
    passes = (
        one_pass(0, "", "a", 0, 1),
        one_pass(1, "b c d", "x c y z", 2, 3, draft_ranks=[39, 0, 12]),
        one_pass(4, "e </s>", "y z", 2, 2, draft_ranks=[20, 9]),
    )
    assert lines("a b c y e </s>", *passes) == [
        ("", "a/+"),
        ("a/p b/r c/a d/b", "a/p x/x c/a y/b z/x"),
        ("a/p b/p c/p y/p e/r </s>/r", "a/p b/p c/p y/p y/x z/x"),
    ]
    assert steps_of("a b c y e </s>", *passes, decoding="blockwise") == ["a b c", "y e </s>"]


@pytest.mark.parametrize("flags", [{}, {"accept_topk": 3}, {"min_block": 2}, {"block_size": 1}])
def test_steps_of_real_traces(tmp_path, flags):
    """Blocks make up the output; each but the last has what the rule lets pass."""
    task, _ = built("share_all")
    model = tiny_blockwise(task, "share_all")
    sample = batch(task, [8, 5, 3, 11])
    path = real_trace(tmp_path, task, model, sample, Limits(), decoding="blockwise", **flags)
    most = flags.get("block_size", HEADS_BLOCK_SIZE)
    for sentence in sentences_of(path):
        assert [token for step in sentence.steps for token in step] == sentence.output
        sizes = [len(step) for step in sentence.steps]
        assert flags.get("min_block", 1) <= min(sizes[:-1], default=9) and max(sizes) <= most
        # The last pass finds no token of its own where it accepts a drafted </s>.
        last = sentence.passes[-1]
        drafted = last.accepted > 0 and len(last.committed) == last.accepted
        assert len(sizes) == len(sentence.passes) - drafted
        states = {cell.state for one in sentence.passes for cell in one.draft}
        assert ("rescued" in states) <= bool({"accept_topk", "min_block"} & set(flags))


def test_the_command_lists_steps(trace, tmp_path, capsys):
    page = tmp_path / "steps.html"
    write(trace, record(*BLOCKWISE, decoding="blockwise"), GOOD | {"id": 4})
    assert paradec(["trace", str(trace), "--steps", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "sentence 3 (blockwise)\nInput:  s1 s2\nOutput: den Ang war in\nStep 1   3 "
    )
    assert shown(out) == ["sentence 3", "sentence 4"] and "\n\nsentence 4 (any)\n" in out
    assert "discarded" not in out
    assert 'data-view="steps"' in page.read_text(encoding="utf-8")
    # an earlier page of either kind may be written over
    assert paradec(["trace", str(trace), "--html", str(page)]) == 0
    assert 'data-view="output"' in page.read_text(encoding="utf-8")


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
    assert out.count("one.jsonl:\nsentence") == out.count("two.jsonl:\nsentence") == 3
    assert paradec(["trace", *two, "--sentence", "5", "1"]) == 0
    assert [line[:10] for line in headings(capsys.readouterr().out)] == [
        "sentence 1", "sentence 1", "one.jsonl:", "sentence 5",
    ]  # fmt: skip
    assert paradec(["trace", *two, "--limit", "1"]) == 0
    assert len(headings(capsys.readouterr().out)) == 2
    assert paradec(["trace", *two, "--sentence", "9"]) == 2
    assert "--sentence: got '9'; allowed: numbers (id) of s" in capsys.readouterr().err


def test_another_source_is_refused(two, tmp_path, capsys):
    write(tmp_path / "two.jsonl", GOOD | {"id": 8, "source": ["s8"]}, GOOD | {"id": 1})
    assert paradec(["trace", *two]) == 2
    out, err = capsys.readouterr()
    assert headings(out) == ["sentence 3 (first)", "two.jsonl: does not have sentence 3"]
    assert err == (
        f"paradec trace: error: {two[1]}, line 2: sentence 1 has another source than in {two[0]}, "
        "line 2; allowed: traces of the same data\n"
    )
    write(tmp_path / "two.jsonl", GOOD | {"id": 1, "source": None})  # it does not tell
    assert paradec(["trace", *two, "--sentence", "1"]) == 0
    three = [str(tmp_path / f"{name}.jsonl") for name in "abc"]
    for path, source in zip(three, (None, ["s1"], ["s2"]), strict=True):
        write(tmp_path / os.path.basename(path), GOOD | {"id": 1, "source": source})
    capsys.readouterr()
    assert paradec(["trace", *three]) == 2
    assert "c.jsonl, line 1: sentence 1 has another source" in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert paradec(["trace", *three[:2], "--html", str(page)]) == 0
    assert re.search(r'"source":\[\d+\],', page.read_text(encoding="utf-8"))


def test_the_picture_is_of_the_first_sentence(two, tmp_path, capsys):
    """Of those chosen, from all files; what no font has is said in a line."""
    paths = [tmp_path / name for name in ("first.svg", "other.svg", "third.svg")]
    for path, chosen in zip(paths, (["1", "2"], ["1"], ["2"]), strict=True):
        assert paradec(["trace", *two, "--sentence", *chosen, "--picture", str(path)]) == 0
    first, other, third = (path.read_bytes() for path in paths)
    assert first == other != third and first.startswith(b"<?xml")
    assert "warning" not in capsys.readouterr().err
    write(tmp_path / "two.jsonl", record("\U0010fffd", one_pass(0, "", "\U0010fffd", 0, 1)))
    assert paradec(["trace", two[1], "--picture", str(paths[0])]) == 0
    warning = "paradec trace: warning: no font of this machine has U+10FFFD; "
    assert capsys.readouterr().err.startswith(warning)
    assert paradec(["trace", *two, "--picture", str(tmp_path / "one.gif")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("paradec trace: error: --picture: got") and ".png or .svg" in error
