"""The way of a sentence: docs/design.md names the files that a translation passes, in order."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.commands import DEMO, PLUGIN, ROOT

import fairseq_paradec
from fairseq_paradec.cli import translate
from fairseq_paradec.cli.main import main

#: Files that a file of the way asks for something small, or tells: a setting that is checked, a
#: fact of a row, a count.
BESIDES = {
    "batch.py": "sentences that are decoded together",
    "decoding/acceptance.py": "how many tokens of a draft are right",
    "decoding/drafting.py": "the length of the next block",
    "decoding/helper.py": "a drafter on the verifier's device",
    "decoding/hypotheses.py": "fairseq's form of an output",
    "engine/native/cache.py": "the keys and values of native passes",
    "engine/native/library.py": "the library in C++",
    "engine/native/packing.py": "the native encoder",
    "engine/native/passes.py": "rules of tokens as the library reads them",
    "engine/native/projection.py": "the map to all words",
    "engine/native/scoring.py": "native passes, as a scorer calls them",
    "engine/native/stack.py": "addresses of arrays, errors of the library",
    "engine/projection.py": "the map to the drafter's words",
    "engine/slots.py": "the memory of a cache, before it is taken",
    "files.py": "whether a mapped file was written to",
    "forks.py": "whether this process may compute",
    "methods/reports.py": "counts of the closing line",
    "model/architecture.py": "how many tokens a step writes",
    "model/dictionary.py": "numbers of symbols, and back",
    "model/model.py": "how many positions a model has",
    "model_facts.py": "whether a drafter is torch's",
    "registry.py": "what the method promises",
    "row.py": "a sentence's tokens and its limit",
    "target_order.py": "the order of a model's words",
    "text/bpe.py": "symbols of words",
    "text/tokenizers.py": "words of a text",
    "threads.py": "how many threads a pass takes",
    "token_rules.py": "what fairseq's limits allow at a position",
    "translator/batches.py": "sentences side by side",
    "translator/loading.py": "the files that weights are mapped from",
    "translator/pipe.py": "lines as they come, and are counted",
    "translator/sentences.py": "whether a line has several sentences",
    "translator/text_processing.py": "a text as a model's symbols, and back",
    "translator/translation.py": "what became of a line, as a value",
    "utf8.py": "a line without byte order marks",
}
#: Calls up the list: from, to, the functions. Each is a property of an object that was handed down.
UP = {
    ("methods/drafted.py", "methods/base.py"): {"lossless"},
}


def listed() -> list[str]:
    """The Python files of the page's list."""
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    block = page.split("### The way of a sentence")[1].split("```")[1]
    return [line.split()[0] for line in block.strip().splitlines() if ".py " in line]


@contextmanager
def recorded(calls: dict[tuple[str, str], set[str]]) -> Iterator[None]:
    """Add what ``print_translations`` and those below it call: files and functions."""

    def ours(frame: FrameType | None) -> str | None:
        while frame is not None:
            if (path := Path(frame.f_code.co_filename)).is_relative_to(PLUGIN):
                return path.relative_to(PLUGIN).as_posix()
            frame = frame.f_back
        return None

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal inside
        code = frame.f_code
        if code is translate.print_translations.__code__ and event in ("call", "return"):
            inside = event == "call"
        if event == "call" and inside and Path(code.co_filename).is_relative_to(PLUGIN):
            pair = ours(frame.f_back), ours(frame)
            if pair[0] is not None and pair[1] is not None and pair[0] != pair[1]:
                calls.setdefault((pair[0], pair[1]), set()).add(code.co_name)

    inside = False
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def calls() -> dict[tuple[str, str], set[str]]:
    """The calls between files while a sentence is translated, by a model that is in memory."""
    drafter = str(DEMO / "assistant.pt")
    model = fairseq_paradec.load(str(DEMO))
    model.translate(["A dog."], decoding="assisted", drafter_path=drafter, engine="native")
    found: dict[tuple[str, str], set[str]] = {}
    flags = ["--decoding", "assisted", "--drafter-path", drafter, "--engine", "native"]
    with pytest.MonkeyPatch.context() as patch, recorded(found):
        patch.setattr(translate, "load", lambda args: model)
        main(["translate", "--model", str(DEMO), "--text", "A dog runs.", *flags])
    return found


def test_the_way_has_at_most_twelve_files():
    assert 0 < len(listed()) <= 12


def test_a_sentence_passes_every_file_of_the_way(calls):
    entered = {file for pair in calls for file in pair}
    assert set(listed()) - entered == set()


def test_calls_go_down_the_way(calls):
    way = listed()
    up = {
        pair: names
        for pair, names in calls.items()
        if set(pair) <= set(way) and way.index(pair[0]) > way.index(pair[1])
    }
    assert up == UP


def test_what_else_is_entered_is_named(calls):
    entered = {file for pair in calls for file in pair}
    assert entered - set(listed()) == BESIDES.keys()
