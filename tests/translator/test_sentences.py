"""Where texts are split: the plain rule, which holds without sentencex, and cuts of long ones."""

from types import SimpleNamespace

import pytest

from fairseq_paradec.translator import sentences
from fairseq_paradec.translator.sentences import MOST_WORDS, split


@pytest.fixture
def plainly(monkeypatch):
    monkeypatch.setattr(sentences, "_sentencex", lambda: None)


@pytest.mark.parametrize(
    "parts",
    [
        ["One. ", "Two! ", "Three? ", "Four… ", "Five"],
        ["He met J. Smith. ", "He left."],  # one letter is no sentence's last word
        ["Am 24. Mai. ", "So."],  # nor is a number
        ["It has approx. Five parts. ", "Yes."],  # nor is what is short for another word
        ["See “Dr. Smith”. ", "Yes."],  # whatever stands before it
        ["See (St. Mary) now. ", "Yes."],
        ["He said no! ", "He left."],  # only a full stop is of an abbreviation
        ["He said go! and left. ", "Yes."],  # no small letter begins a sentence
        ["She said “Go!” ", "He left."],
        ["你好。", "再见！", "好"],
    ],
)
def test_sentences_end_where_the_plain_rule_says(parts, plainly):
    assert split("".join(parts), "en") == parts


def test_a_splitter_that_loses_something_is_not_believed(monkeypatch):
    lossy = SimpleNamespace(segment=lambda language, text: text.split(" "))
    monkeypatch.setattr(sentences, "_sentencex", lambda: lossy)
    assert split("One. Two.", "en") == ["One. ", "Two."]


def numbered(count: int, *pauses: int) -> str:
    """So many words; there is a comma behind those of these numbers, which count from 1."""
    return " ".join(f"w{n}," if n in pauses else f"w{n}" for n in range(1, count + 1))


@pytest.mark.parametrize(
    ("count", "pauses", "sizes"),
    [
        (120, (), [120]),
        (121, (), [120, 1]),
        (240, (), [120, 120]),
        (121, (120,), [120, 1]),
        (130, (100, 110), [110, 20]),  # the latest pause
        (121, (60,), [120, 1]),  # in the first half there is none
        (121, (61,), [61, 60]),
        (250, (100,), [100, 120, 30]),  # the next part is counted from the cut
        (250, (100, 170), [100, 70, 80]),
    ],
)
def test_a_long_sentence_is_cut_behind_a_pause_of_its_second_half(count, pauses, sizes, plainly):
    assert MOST_WORDS == 120
    parts = split(numbered(count, *pauses), "en")
    assert [len(part.split()) for part in parts] == sizes
    assert "".join(parts) == numbered(count, *pauses)


def test_a_long_sentence_is_cut_in_no_number_and_no_address(plainly):
    for word in ("3,000", "https://example.org"):
        text = " ".join([word] * 130)
        assert [len(part.split()) for part in split(text, "en")] == [120, 10]
    text = "，".join(["猫 狗"] * 130)
    assert "".join(split(text, "zh")) == text
    assert {part[-1] for part in split(text, "zh")[:-1]} == {"，"}
