"""fairseq's tokenizers: words and marks of a line, with spaces between them."""

import re
from collections.abc import Callable
from typing import Protocol

from .. import extras
from ..errors import option_error

_WHITE = re.compile(r"\s+")


class Tokenizer(Protocol):
    """Parts the words of a line, and puts them together."""

    def encode(self, line: str) -> str:
        """Return a line's words and marks, with spaces between them."""

    def decode(self, words: str) -> str:
        """Return words and marks as a line."""


class Moses:
    """Moses' rules for a language: sacremoses, with dashes parted and XML's signs escaped."""

    def __init__(self, language: str) -> None:
        from sacremoses import MosesDetokenizer, MosesTokenizer

        self._tokenize = MosesTokenizer(language).tokenize
        self._join = MosesDetokenizer(language).detokenize

    def encode(self, line: str) -> str:
        """Return a line's words and marks, with spaces between them."""
        words: str = self._tokenize(line, aggressive_dash_splits=True, return_str=True, escape=True)
        return words

    def decode(self, words: str) -> str:
        """Return words and marks as a line."""
        line: str = self._join(words.split())
        return line


class Argos(Moses):
    """Moses' rules as Argos Translate has them: signs made plain, no dashes parted."""

    def __init__(self, language: str) -> None:
        from sacremoses import MosesPunctNormalizer

        super().__init__(language)
        self._plain: Callable[[str], str] = MosesPunctNormalizer(language).normalize

    def encode(self, line: str) -> str:
        """Return a line's words and marks, with spaces between them."""
        words: str = self._tokenize(self._plain(line), return_str=True, escape=True)
        return words


class Space:
    """A space for any white space."""

    def __init__(self, language: str) -> None:
        pass

    def encode(self, line: str) -> str:
        """Return the line with one space in the place of each stretch of white space."""
        return _WHITE.sub(" ", line)

    def decode(self, words: str) -> str:
        """Return the words as they are."""
        return words


class Nltk:
    """NLTK's words of English.

    Raises:
        UsageError: NLTK or its rules of sentences are not installed.
    """

    def __init__(self, language: str) -> None:
        with extras.named("--tokenizer nltk"):
            from nltk.tokenize import word_tokenize
        try:
            word_tokenize("A word.")
        except LookupError as error:
            allowed = "nltk where python -m nltk.downloader punkt_tab has run"
            raise option_error("--tokenizer", "nltk", allowed) from error
        self._words: Callable[[str], list[str]] = word_tokenize

    def encode(self, line: str) -> str:
        """Return a line's words and marks, with spaces between them."""
        return " ".join(self._words(line))

    def decode(self, words: str) -> str:
        """Return the words as they are."""
        return words


#: The tokenizers by fairseq's names; Argos' is not one of fairseq's.
KINDS: dict[str, Callable[[str], Tokenizer]] = {
    "moses": Moses,
    "nltk": Nltk,
    "space": Space,
    "argos": Argos,
}


def build(name: str, language: str) -> Tokenizer:
    """Build a tokenizer for texts in a language.

    Args:
        name: fairseq's ``--tokenizer``.
        language: a code such as ``en``.

    Raises:
        UsageError: there is none of this name, or what it needs is not installed.
    """
    if name not in KINDS:
        raise option_error("--tokenizer", name, ", ".join(KINDS))
    return KINDS[name](language)
