"""Dictionaries without fairseq: equal to fairseq's, symbol by symbol, on odd files too."""

import re
import sys
from pathlib import Path

import hypothesis
import pytest
from fairseq.data import Dictionary as FairseqDictionary
from fairseq.tokenizer import tokenize_line
from hypothesis import strategies as st
from support.commands import ROOT

from fairseq_paradec.errors import UsageError
from fairseq_paradec.model import dictionary
from fairseq_paradec.model.dictionary import Dictionary

FILES = sorted((ROOT / "data-bin").rglob("dict.*.txt"))
FILES += sorted((ROOT.parent / "shared" / "models").rglob("dict*.txt"))

#: All that Python or Unicode take for a space, and what looks like one.
SPACES = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
ODD = [*SPACES, "\x00", "\u200b", "\ufeff", "\u180e", "\u2060", "\ud800"]


def compare(ours: Dictionary, theirs: FairseqDictionary) -> None:
    """Check that two dictionaries are equal."""
    assert ours.symbols == theirs.symbols and ours.counts == theirs.count
    assert len(ours) == len(theirs)
    assert all(ours.index(symbol) == theirs.index(symbol) for symbol in theirs.indices)
    for special in ("bos", "pad", "eos", "unk"):
        number = getattr(dictionary, special.upper())
        assert number == getattr(ours, special)() == getattr(theirs, special)()
    assert ours.nspecial == theirs.nspecial
    for numbers in ([], [*range(len(ours)), len(ours), 10**6], [2, 5, 2, 0, 1, 3, 3, 4, 2]):
        assert ours.string(numbers) == theirs.string(numbers)
    for line in ("", " ", "a man\tin\u3000a \x1c hat\n", "nobody's <s> </s> <unk> <pad>"):
        same_line(ours, theirs, line)


def same_line(ours: Dictionary, theirs: FairseqDictionary, line: str) -> None:
    """Check that a line has the same numbers, with its end and without."""
    for end in (True, False):
        theirs_numbers = theirs.encode_line(line, add_if_not_exist=False, append_eos=end)
        assert ours.encode_line(line, end) == theirs_numbers.tolist()


def both(path: Path) -> tuple[Dictionary | None, FairseqDictionary | None]:
    """A file as both read it; None: it is refused."""
    try:
        ours = Dictionary.read(path)
    except UsageError as error:
        assert str(error).startswith(f"{path}: ") and "; allowed: " in str(error)
        assert "\n" not in str(error) and len(str(error)) < 1000 + len(str(path))
        ours = None
    try:
        theirs = FairseqDictionary.load(str(path))
    except Exception:  # it raises that class itself
        theirs = None
    return ours, theirs


@pytest.mark.parametrize("path", FILES, ids=lambda path: "-".join(path.parts[-2:]))
def test_a_dictionary_is_as_fairseq_reads_it(path: Path) -> None:
    ours, theirs = both(path)
    assert ours is not None
    compare(ours, theirs)
    for factor in (1, 8, 7):
        ours.pad_to_multiple(factor)
        theirs.pad_to_multiple_(factor)
        compare(ours, theirs)
    assert ours[0] == theirs[0] and ours[10**6] == theirs[10**6] == "<unk>"
    assert "madeupword0000" in ours


def test_there_are_dictionaries_to_compare() -> None:
    assert len(FILES) >= 4


#: Files that are read, and files that are refused.
GOOD = {
    "nothing": b"",
    "no last newline": b"a 1\nb 2",
    "other newlines": b"a 1\r\nb 2\rc 3\n",
    "a mark at its beginning": b"\xef\xbb\xbfa 1\n",
    "a symbol with spaces": b"a b  c 1\n",
    "an empty symbol": b" 1\n",
    "spaces at the end": b"a 1 \t \n",
    "a wide space": "a\u3000 1\n\u3000 2\n".encode(),
    "a symbol of a separator": "a\x1cb 1\n\u2028 2\n".encode(),
    "odd numbers": b"a 1_000\nb +5\nc -3\nd 007\n" + "e \u0663\n".encode(),
    "a second symbol": b"a 1\na 2 #fairseq:overwrite\n",
    "a special one again": b"<s> 1 #fairseq:overwrite\n</s> 2 #fairseq:overwrite\n",
    "a first one, marked": b"a 1 #fairseq:overwrite\n",
    "a mark as symbol": b"#fairseq:overwrite 1\n",
    "made-up words": b"madeupword0000 0\nmadeupword0002 0\n",
}
BAD = {
    "an empty line": b"a 1\n\nb 2\n",
    "no count": b"a\n",
    "a count of words": b"a b\n",
    "a real count": b"a 1.5\n",
    "a long count": b"a " + b"1" * 5000,
    "a tab": b"a\t1\n",
    "a symbol twice": b"a 1\na 2\n",
    "a special symbol": b"</s> 1\n",
    "no UTF-8": b"a 1\n\xff 2\n",
    "half of a pair": b"\xed\xa0\x80 1\n",
    "a mark alone": b"#fairseq:overwrite\n",
    "a mark without count": b"a #fairseq:overwrite\n",
    "marked twice": b"a 1 #fairseq:overwrite #fairseq:overwrite\n",
}


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_an_odd_file_is_as_fairseq_reads_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "dict.txt"
    path.write_bytes((GOOD | BAD)[name])
    ours, theirs = both(path)
    assert (ours is None) == (theirs is None) == (name in BAD)
    if ours is not None:
        compare(ours, theirs)
        for _ in range(2):
            ours.pad_to_multiple(8)
            theirs.pad_to_multiple_(8)
            compare(ours, theirs)


def test_a_line_is_split_at_the_same_characters() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert every.split() == tokenize_line(every)
    assert [c for c in SPACES if not re.match(r"\s", c)] == []


LINES = st.lists(
    st.tuples(
        st.text(st.one_of(st.sampled_from(ODD[:-1]), st.characters(codec="utf-8")), max_size=4),
        st.sampled_from([" ", "\t", "  ", "\u3000", ""]),
        st.sampled_from(["1", "0", "-7", "x", "", "1.0", "1_0"]),
        st.sampled_from(["", "", " #fairseq:overwrite", " "]),
        st.sampled_from(["\n", "\n", "\r\n", "\r"]),
    ).map("".join),
    max_size=6,
)


def test_any_file_and_line_is_as_fairseq_has_it(tmp_path: Path) -> None:
    path = tmp_path / "dict.txt"
    read = []

    @hypothesis.settings(
        max_examples=200,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(LINES, st.text(st.one_of(st.sampled_from(ODD), st.characters()), max_size=12))
    def any_file(lines: list[str], line: str) -> None:
        path.write_bytes("".join(lines).encode())
        ours, theirs = both(path)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            compare(ours, theirs)
            same_line(ours, theirs, " ".join([*ours.symbols, line]))
            read.append(len(ours))

    any_file()
    assert len(read) > 10 and max(read) > 4
