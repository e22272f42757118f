"""paradec trace: the cells of hand-written passes, text, the command, and real traces.

Its pages are tested in test_viewer.py.
"""

import re

import pytest
import torch
from support import builders
from support.builders import HEADS_BLOCK_SIZE, Limits, batch, built, decode
from support.commands import ROOT
from support.tables import refused, run
from support.trace_records import FACTS, FROM_BOTH_ENDS, GOOD, one_pass, record, write, written

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Size
from fairseq_paradec.lab.commands.trace_files import groups
from fairseq_paradec.lab.show import page as pages
from fairseq_paradec.lab.show import trace_text, viewer
from fairseq_paradec.lab.show.raster_plot import maps
from fairseq_paradec.lab.show.trace_records import read_sentence
from fairseq_paradec.lab.show.trace_view import EOS, Cell, Pass, Sentence, State

LETTERS = {"previous": "p", "accepted": "a", "rescued": "r", "bifurcation": "b", "bonus": "+"}
LETTERS |= {"discarded": "x", "pending": "w"}


@pytest.mark.parametrize(
    ("output", "passes", "expected"),
    [
        (  # Table 11, example 1, shortened: accept, bifurcate, throw away, and end at </s>
            "Nach den vor war . </s>",
            [
                (0, "Nach den Ang Ang war", "Nach den vor war war nicht", 2, 3),
                (3, "war . und so", "war . </s> nicht", 2, 3),
            ],
            [
                ("Nach/a den/a Ang/b Ang/x war/x", "Nach/a den/a vor/b war/x war/x nicht/x"),
                ("Nach/p den/p vor/p war/a ./a und/b", "Nach/p den/p vor/p war/a ./a </s>/b"),
            ],
        ),
        (  # GAD++: ``Ang`` is not the verifier's first choice; the output takes it all the same
            "den Ang war in </s>",
            [(0, "den Ang war zu in", "den Ein war in nicht x", 3, 4), (4, "</s>", "</s>", 1, 1)],
            [
                ("den/a Ang/r war/a zu/b in/x", "den/a Ein/x war/a in/b nicht/x x/x"),
                ("den/p Ang/p war/p in/p </s>/a", "den/p Ang/p war/p in/p </s>/a"),
            ],
        ),
        # a bonus token that is not used
        ("a b", [(0, "a b", "a b c", 2, 2)], [("a/a b/a", "a/a b/a c/x")]),
        # a block that waits until it is unchanged
        (
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
        # the verifier's own </s> was overruled: the sentence goes on
        ("a b d", [(0, "a b c", "a </s> d e", 2, 3)], [("a/a b/r c/b", "a/a </s>/x d/b e/x")]),
        # a drafted </s> was let pass against the verifier's first choice
        ("a </s>", [(0, "a </s> c", "a b d e", 2, 3)], [("a/a </s>/r", "a/a b/x")]),
        # a waiting block says why it waits, even behind </s>
        ("", [(0, "a </s> c", "a </s> e f", 2, 0)], [("a/w </s>/w c/b", "a/w </s>/w e/b f/x")]),
    ],
)
def test_cells(output, passes, expected):
    """The states of D and V by hand."""
    sentence = read_sentence(record(output, *(one_pass(*one) for one in passes)), "s")
    assert expected == [
        tuple(
            " ".join(f"{cell.token}/{LETTERS[cell.state]}" for cell in line)
            for line in (one.draft, one.verifier)
        )
        for one in sentence.passes
    ]


def broken(*last):
    """Changes to the good record: both ends first, and then this pass."""
    return {"output": "A B C D </s>".split(), "trace": [*FROM_BOTH_ENDS, written(4, *last)]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": ["a", "c"]}, "s 3 contradicts itself.*position 1 on"),
        ({"output": ["a", "b", "c"]}, "s 3 contradicts itself.*position 2 on"),
        ({"trace": None}, "s 3: 'trace' is missing or no list"),
        ({"trace": [one_pass(1, "a x", "a b", 1, 2)]}, "pass 1 starts at 1, after 0 committed"),
        ({"trace": [one_pass(0, "a x", "a b", 3, 2)]}, "pass 1 accepts 3 of 2"),
        ({"trace": [one_pass(0, "a x", "a b", 1, 3)]}, "pass 1 commits 3 tokens, which"),
        ({"trace": [one_pass(0, "a x", "a b", 1, "2")]}, "'num_committed' is missing or no int"),
        (broken([EOS], [5]), "s 3"),  # leaves position 4 open
        (broken([EOS], [3]), "s 3"),  # there is something
        (broken([EOS], []), "s 3"),  # does not say where
        (broken(["E"], [4]), "s 3"),  # is not the output
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        read_sentence(GOOD | changes, "s 3")


def real_sentences(folder, task, model, sample, limits, **flags):
    """What --trace-file writes, and what is read of it."""
    path = folder / "trace.jsonl"
    decode(task, [model], sample, limits, trace_file=str(path), **flags)
    for (entry,) in groups([str(path)]):
        yield entry.record, entry.sentence


@pytest.mark.parametrize(
    "flags",
    [
        {"decoding": "pgj", "block_size": 4, "jacobi_stop": "unchanged"},
        {"decoding": "hgj", "block_size": 4, "jacobi_window": "sliding", "jacobi_init": "ngram"},
        {"decoding": "blockwise", "accept_topk": 3},
        {"decoding": "blockwise", "min_block": 2},
    ],
    ids=str,
)
def test_real_traces_add_up(tmp_path, flags):
    """The cells that count, read off their states alone, are the output; steps are, too."""
    task, _ = built("share_all")
    model, sample = builders.tiny_blockwise(task, "share_all"), batch(task, [8, 5, 3, 11])
    for data, sentence in real_sentences(tmp_path, task, model, sample, Limits(), **flags):
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
        if flags["decoding"] == "blockwise":  # each block but the last has what the rule lets pass
            places = [place for step in sentence.steps for place in step.places]
            assert [sentence.output[place] for place in places] == output
            sizes = [len(step.places) for step in sentence.steps]
            assert flags.get("min_block", 1) <= min(sizes[:-1], default=9)
            assert max(sizes) <= HEADS_BLOCK_SIZE


def test_the_example_in_the_documentation(tmp_path):
    """docs/trace.md shows what the command prints for this sentence of the demo."""
    task, model, rows = builders.demo(torch.float64)
    sample, limits = builders.collate(task, [rows[7]]), Limits(max_len_b=200)
    ((_, sentence),) = real_sentences(tmp_path, task, model, sample, limits, decoding="pgj")
    text = trace_text.sentence_text(sentence, False, None).partition("\n")[2]
    page = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
    assert text in page
    assert trace_text.legend(color=False) in page


def test_origins_say_who_wrote_each_token():
    passes = (
        one_pass(0, "", "q", 0, 1, log_probs=[-0.5], runner_up=["p"], runner_up_log_probs=[-1.0]),
        one_pass(1, "a x", "a y", 1, 0, log_probs=[-9, -9]),  # agreed on, not committed
        one_pass(1, "a b", "a z c", 2, 3, **FACTS | {"log_probs": [-0.5, -1.5, -2.5]}),
        one_pass(4, "d", "e", 0, 1, log_probs=[-0.125], draft_ranks=[4], draft_log_probs=[-3.0]),
    )
    sentence = read_sentence(record("q a b c e", *passes, flags={"block_size": 2}), "s")
    assert sentence.origins == [
        Cell("q", State.BONUS, 0, -0.5, None, "p", -1.0, pass_number=1),
        Cell("a", State.ACCEPTED, 1, -0.25, 0, "x", -2.0, pass_number=3),
        # z: what was overruled
        Cell("b", State.RESCUED, 2, -float("inf"), 39, "z", -1.5, pass_number=3),
        Cell("c", State.BONUS, 3, -2.5, None, "y", -3.0, pass_number=3),
        Cell("e", State.BIFURCATION, 4, -0.125, pass_number=4),
    ]
    said = "tokens: 5, passes: 4, tokens per pass: 1.25, drafted tokens accepted: 2 (rescued: 1)"
    assert sentence.summary == said


def test_origins_in_another_order_have_directions():
    ends = [*FROM_BOTH_ENDS, written(4, [EOS], [4])]
    named = [one | {"directions": ["1→", "2←"][: len(one["verifier"])]} for one in ends]
    sentence = read_sentence(record("A B C D </s>", *named), "s")
    assert [(one.pass_number, one.state, one.direction) for one in sentence.origins] == [
        (1, "bonus", "1→"),
        (2, "bonus", "1→"),
        (2, "bonus", "2←"),
        (1, "bonus", "2←"),
        (3, "bonus", "1→"),
    ]
    assert [one.places for one in sentence.passes] == [[0, 3], [1, 2], [4]]
    lines = trace_text.sentence_text(sentence, False, None).splitlines()
    found = [line[8:] for line in lines if " V " in line]
    assert found == ["+A · · +D ·", "A +B +C D ·", "A B C D +</s>"]
    states = [cell.state for cell in sentence.passes[0].verifier]
    assert states == ["bonus", State.OPEN, State.OPEN, "bonus", State.OPEN]


# ---- the command -------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    write(path, GOOD, GOOD | {"id": None})
    return path


def headings(out):
    """Of each sentence, and of each file that lacks it, the first line."""
    return re.findall(r"^sentence .*|^.* does not have .*", out, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("content", "message", "before"),
    [
        (None, "FILE: got '{path}'; allowed: a file that --trace-file wrote (No such file", 0),
        ([GOOD, {"schema": "x"}], "{path}, line 2: got no record of a decoder; allowed: a f", 1),
        ([GOOD | {"version": 99}], "{path}, line 1: got version 99; allowed: version 1", 0),
        ('{"schema"', "{path}, line 1: the file is cut off in the middle of this line, as ", 0),
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
    status, out, err = run(capsys, "trace", path, "--html", page)
    assert status == 2 and err.startswith("paradec trace: error: " + message.format(path=path))
    assert len(headings(out)) == before and err.count("\n") == 1
    assert not page.exists()


def test_page_is_written_whole_or_not_at_all(trace, tmp_path, monkeypatch):
    """And never over another file."""
    page, during, original = tmp_path / "page.html", [], viewer.block
    assert paradec(["trace", str(trace), "--html", str(page), "--limit", "2"]) == 0
    first = page.read_text(encoding="utf-8")
    assert first.startswith(pages.MARK) and first.endswith("</main>\n</body>\n</html>\n")

    def interrupted(*args):
        during.append(page.read_text(encoding="utf-8"))
        if len(during) == 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(viewer, "block", interrupted)
    content = trace.read_bytes()
    assert paradec(["trace", str(trace), "--html", str(page)]) == 130
    assert paradec(["trace", str(trace), "--html", str(trace)]) == 2
    assert during == [first, first] and page.read_text(encoding="utf-8") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "trace.jsonl"]
    assert trace.read_bytes() == content


def test_files_are_matched_by_number(tmp_path, capsys):
    """Two traces of the same data in different orders; each lacks a sentence of the other."""
    two, other = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"], tmp_path / "other.jsonl"
    for path, name, ids in zip(two, ("first", "second"), ((3, 1, 2), (5, 1, 3)), strict=True):
        write(path, *(GOOD | {"id": i, "source": [f"s{i}"], "decoding": name} for i in ids))
    for arguments, names in (
        (
            [],
            [
                "3 (first)",
                "3 (second)",
                "1 (first)",
                "1 (second)",
                "2 (first)",
                "2",
                "5",
                "5 (second)",
            ],
        ),
        (["--sentence", "5", "1"], ["1 (first)", "1 (second)", "5", "5 (second)"]),
    ):
        status, out, _ = run(capsys, "trace", *two, *arguments)
        assert status == 0
        assert [line.split("sentence ")[1] for line in headings(out)] == names
    said = refused(capsys, "trace", *two, "--sentence", "9")
    assert "--sentence: got '9'; allowed: numbers (id) of s" in said
    write(other, GOOD | {"id": 2, "source": None})  # does not tell
    assert run(capsys, "trace", *two, other)[0] == 0
    write(other, GOOD | {"id": 2, "source": ["s9"]})
    _, _, said = run(capsys, "trace", *two, other)
    assert said == (
        f"paradec trace: error: {other}, line 1: sentence 2 has another source than in "
        f"{two[0]}, line 3; allowed: traces of the same data\n"
    )


GREY = Size(2, 2, 1)


def image_of(decoding, output, passes, accepted):
    """A sentence of which only this is known: the pass of each token, and what passes accepted."""
    tokens = zip(output.split(), passes, strict=True)
    origins = [Cell(token, State.ACCEPTED, pass_number=number) for token, number in tokens]
    places = [
        [i for i, n in enumerate(passes) if n == number + 1] for number in range(len(accepted))
    ]
    each = [Pass(i + 1, 0, [], [], [], places[i], count) for i, count in enumerate(accepted)]
    return Sentence("sentence 0", decoding, None, output.split(), each, origins, {})


#: The passes write 1, then 2 3 4, then </s>; the blocks are 1 2 3, then 4, then </s>.
BLOCKS = image_of("blockwise", "10 20 30 40 </s>", [1, 2, 2, 2, 3], [0, 2, 0])
#: A Jacobi decoder's passes, the second of which writes nothing.
PASSES = image_of("pgj", "10 20 30 40 </s>", [1, 1, 3, 3, 3], [1, 0, 2])


def test_steps_by_hand():
    pixels, steps, sizes = maps(BLOCKS, GREY)
    assert pixels.tolist() == [[10, 20], [30, 40]]
    assert steps.tolist() == [[1, 1], [1, 2]] and sizes.tolist() == [[3, 3], [3, 1]]
    _, steps, sizes = maps(PASSES, GREY)
    assert steps.tolist() == [[1, 1], [3, 3]] and sizes.tolist() == [[2, 2], [3, 3]]
    with pytest.raises(UsageError, match=r"--image-size: got 1x3x1; .*sentence 0, pgj: tokens"):
        maps(PASSES, Size(1, 3, 1))
    # The intensities of a pixel stand side by side.
    one = image_of("greedy", "1 2 3 4 5 6 </s>", [1, 2, 3, 4, 5, 6, 7], [0] * 7)
    pixels, steps, _ = maps(one, Size(1, 2, 3))
    assert pixels.tolist() == [[[1, 2, 3], [4, 5, 6]]] and steps.tolist() == [[1, 2, 3, 4, 5, 6]]


def test_pictures(tmp_path):
    """Another one where the output is said to be an image."""
    words, path, drawn = "10 20 30 40 </s>", tmp_path / "a.jsonl", []
    write(path, record(words, *(one_pass(i, "", w, 0, 1) for i, w in enumerate(words.split()))))
    for size in ([], ["--image-size", "2x2"]):
        assert paradec(["trace", str(path), "--picture", str(tmp_path / "a.png"), *size]) == 0
        drawn.append((tmp_path / "a.png").read_bytes())
    assert drawn[0] != drawn[1] and drawn[0].startswith(b"\x89PNG")
