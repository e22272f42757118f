"""Tokenizers and BPE without fairseq: equal to fairseq's, on odd lines too.

``PYTHONPATH=tests python tests/text/test_text.py --from DIR`` compares every line of a folder's
files, which gzip or zip may have packed.
"""

import argparse
import gzip
import io
import subprocess
import sys
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from fairseq.data import encoders
from hypothesis import strategies as st
from support.commands import DEMO, ROOT, succeed
from support.foreign import pieces
from tqdm import tqdm

from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.data.table import Table
from fairseq_paradec.lab.measure import machine
from fairseq_paradec.text import bpe, tokenizers
from fairseq_paradec.translator.model_folder import ModelFolder
from fairseq_paradec.translator.text_processing import TextProcessing

#: Characters that some library takes for a space, a mark of its own, an end or nothing.
ODD = " \t\n\r\x0b\x0c\x1c\x85\xa0\u200b\u2028\u2029\u3000\ufeff\x00\x7f\xad\u0301\u2581@&<>'\"-|[]"
#: Lines that a library may take for something else.
LINES = [
    "",
    " ",
    "\u2028",
    "a  b\t c\u2028d\u3000e\n",
    "@@ a@@ b @-@ x@@",
    "</w> <unk> <s> &amp; &#124; ",
    "\u2581a \u2581",
    "e\u0301 \x00 \U0001f468\u200d\U0001f469 \xad",
    "It's 1,000.5 -- well-known (e.g. Dr. No) ...",
    "x" * 3000,
    "ab\u00e9" * 500 + " end",
]

Kind = Callable[[], tuple[Any, Any]]


def moses(language: str) -> Kind:
    """Ours of a language, and fairseq's."""

    def both() -> tuple[Any, Any]:
        flags = Namespace(tokenizer="moses", source_lang=language, target_lang=language)
        return tokenizers.build("moses", language), encoders.build_tokenizer(flags)

    return both


def space() -> tuple[Any, Any]:
    return tokenizers.build("space", "en"), encoders.build_tokenizer(Namespace(tokenizer="space"))


def split_by(name: str, flag: str | None = None, file: Callable[[], Path] | None = None) -> Kind:
    """Ours of a name and its file, and fairseq's."""

    def both() -> tuple[Any, Any]:
        files = {flag: str(file())} if flag and file else {}
        return bpe.build(name, files), encoders.build_bpe(Namespace(bpe=name, **files))

    return both


KINDS: dict[str, Kind] = {
    "moses (en)": moses("en"),
    "moses (de)": moses("de"),
    "moses (fr)": moses("fr"),
    "moses (es)": moses("es"),
    "space": space,
    "subword_nmt": split_by("subword_nmt", "bpe_codes", lambda: DEMO / "codes.bpe"),
    "sentencepiece": split_by("sentencepiece", "sentencepiece_model", lambda: pieces("de")),
    "characters": split_by("characters"),
    "bytes": split_by("bytes"),
    "byte_bpe": split_by("byte_bpe", "sentencepiece_model_path", lambda: pieces("de")),
}


def differs(ours: Any, theirs: Any, line: str) -> bool:
    """Whether a line, or what is made of it, has another form or text than by fairseq."""
    symbols = theirs.encode(line)
    if ours.encode(line) != symbols:
        return True
    for given in (symbols, line):
        try:
            text = theirs.decode(given)
        except KeyError:  # of a character that stands for no byte
            ours.decode(given)
            continue
        if ours.decode(given) != text:
            return True
    return False


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Ours of a kind, and fairseq's."""
    return KINDS[request.param]()


every_kind = pytest.mark.parametrize("both", KINDS, indirect=True)


@every_kind
def test_lines_are_as_by_fairseq(both: tuple[Any, Any]) -> None:
    lines = [*LINES]
    for name in ("raw/demo.en", "raw/demo.de", "bpe/demo.de"):
        lines += (DEMO / name).read_text("utf-8").splitlines()
    assert [line for line in lines if differs(*both, line)] == []


@every_kind
def test_any_line_is_as_by_fairseq(both: tuple[Any, Any]) -> None:
    some = st.one_of(
        st.sampled_from(ODD),
        st.sampled_from(["@@ ", "@@", "ein", "\u00e4", "\U0001f600", "&apos;", "\u0192", "\u01c3"]),
        st.characters(codec="utf-8"),
    )

    @hypothesis.settings(
        max_examples=300,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.lists(some, max_size=20).map("".join))
    def any_line(line: str) -> None:
        assert not differs(*both, line)

    any_line()


def test_bytes_that_are_no_utf_8_are_left_out_as_by_fairseq() -> None:
    ours, theirs = KINDS["bytes"]()
    found = set[str]()

    @hypothesis.settings(max_examples=500, derandomize=True, deadline=None, database=None)
    @hypothesis.given(
        st.lists(
            st.one_of(
                st.sampled_from([b"a", "\u00e4".encode(), "\u20ac".encode(), b"\xed\xa0\x80"]),
                st.integers(128, 255).map(lambda byte: bytes([byte])),
            ),
            max_size=8,
        ).map(b"".join)
    )
    def any_bytes(some: bytes) -> None:
        symbols = " ".join(bpe._CHARACTERS[byte] for byte in some)
        assert ours.decode(symbols) == theirs.decode(symbols)
        found.add(ours.decode(symbols))

    any_bytes()
    assert len(found) > 20


def test_nltks_words_are_as_by_fairseq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rules are a download, so its words are made up here."""
    import nltk.tokenize

    monkeypatch.setattr(nltk.tokenize, "word_tokenize", lambda line: line.split(" "))
    ours = tokenizers.build("nltk", "en")
    theirs = encoders.build_tokenizer(Namespace(tokenizer="nltk"))
    assert [line for line in LINES if differs(ours, theirs, line)] == []

    def lacks(line: str) -> None:
        raise LookupError("Resource punkt_tab not found.\n\n")

    monkeypatch.setattr(nltk.tokenize, "word_tokenize", lacks)
    with pytest.raises(UsageError, match=r"^--tokenizer: got 'nltk'; allowed: nltk where .*punkt"):
        tokenizers.build("nltk", "en")


BROKEN = {
    "subword_nmt": ("bpe_codes", b"#version: 0.2\na b c\n", "codes FILE .*invalid line 2"),
    "sentencepiece": ("sentencepiece_model", b"no model", "--sentencepiece-model: got"),
    "byte_bpe": ("sentencepiece_model_path", b"", "--sentencepiece-model-path: got"),
    "sentencepiece_pair": ("sentencepiece_source", b"", "--sentencepiece-source: got"),
    "gpt2": ("gpt2_encoder_json", b"{", "--bpe gpt2 needs its file"),
    "no-such": ("x", b"", "--bpe: got 'no-such'; allowed: .*gpt2"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("there", [True, False])
def test_a_wrong_file_is_named_in_one_line(
    name: str, there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag, content, words = BROKEN[name]
    (tmp_path / "file").write_bytes(content)
    files = {flag: "file" if there else "no-such-file"}
    folder = ModelFolder(source="en", target="de", bpe=name, bpe_files=files)
    with pytest.raises(UsageError, match=words if there else "got|needs its file") as error:
        TextProcessing(tmp_path, folder)
    assert "\n" not in str(error.value) and capsys.readouterr() == ("", "")


def test_codes_are_read_in_utf_8_in_every_locale(tmp_path: Path) -> None:
    code = f"""
from fairseq_paradec.text.bpe import build
import locale, sys
made = build("subword_nmt", {{"bpe_codes": {str(DEMO / "codes.bpe")!r}}})
sys.stdout.buffer.write(made.encode("Ein M\\u00e4dchen f\\u00fcr H\\u00fcgel.").encode())
assert locale.getpreferredencoding(False) != "UTF-8", locale.getpreferredencoding(False)
assert "torch" not in sys.modules and "fairseq" not in sys.modules"""
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, encoding="utf-8"
    )
    ours, _ = KINDS["subword_nmt"]()
    assert succeed(done).stdout == ours.encode("Ein M\u00e4dchen f\u00fcr H\u00fcgel.")


def test_what_the_core_lacks_needs_fairseq(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "fairseq_paradec.plugin.encoders.others"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr("fairseq_paradec.plugin.encoders.others", raising=False)
    monkeypatch.setitem(sys.modules, "fairseq.data.encoders", None)
    monkeypatch.setitem(sys.modules, "fairseq", None)
    folder = ModelFolder(source="en", target="de", bpe="gpt2")
    with pytest.raises(UsageError) as error:
        TextProcessing(Path(), folder)
    assert str(error.value) == "--bpe gpt2 needs fairseq; install fairseq_paradec[fairseq]"


def test_the_plugins_class_is_the_cores() -> None:
    from fairseq_paradec.plugin.encoders.sentencepiece_pair import SentencepiecePair

    files = {f"sentencepiece_{side}": str(pieces("en")) for side in ("source", "target")}
    theirs = SentencepiecePair(SimpleNamespace(**files, sentencepiece_tokens=None))
    ours = bpe.build("sentencepiece_pair", files)
    assert type(theirs).__mro__[1] is type(ours)
    assert [line for line in LINES if differs(ours, theirs, line)] == []


def lines_of(folder: Path) -> Iterator[str]:
    """The lines of a folder's texts; of a table each column but the last, which is its licence."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".gz":
            yield from gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    for line in io.TextIOWrapper(archive.open(name), "utf-8", newline="\n"):
                        yield from line.rstrip("\n").split("\t")[:2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "text-processing.json")
    args = parser.parse_args()
    lines = [*lines_of(args.folder)]
    rows = []
    for name, kind in KINDS.items():
        pair = kind()
        count = sum(differs(*pair, line) for line in tqdm(lines, name, disable=None))
        rows.append({"kind": name, "lines": len(lines), "differences": count})
    note = (
        "Each line is split as fairseq splits it, and the symbols, then the line itself, are "
        "joined as fairseq joins them: all lines of Multi30k, Tatoeba (English and German) and "
        "Python's documentation (English and Spanish)."
    )
    made_by = machine.circumstances([])
    made_by["command"] = "PYTHONPATH=tests python tests/text/test_text.py --from DIR"
    title = "Text processing without fairseq beside fairseq's"
    documents.save(args.out, title, Table.of(rows, notes=[note]), made_by)
    return int(any(row["differences"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
