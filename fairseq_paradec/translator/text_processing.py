"""A model folder's text processing: plain text to a model's symbols, and back."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from .. import extras
from ..text import bpe, tokenizers
from ..utf8 import bare
from .model_folder import ModelFolder

#: Characters of a word after which it is cut, each a token then: BPE takes hours for long words.
WORD = 10_000


class TextProcessing:
    """The tokenizers and the BPE of a folder; without them, plain text is symbols already.

    Args:
        path: the folder.
        folder: what it holds.

    Raises:
        UsageError: a file is missing or wrong, or what a part needs is not installed.
    """

    def __init__(self, path: Path, folder: ModelFolder) -> None:
        self.folder = folder
        self.tokenizer = self._tokenizer_of(folder.source)
        self._target = self._tokenizer_of(folder.target)
        files = {name: str(path / file) for name, file in folder.bpe_files.items()}
        self.bpe = None if folder.bpe is None else _bpe(folder.bpe, files)

    def encode(self, line: str) -> str:
        """Return the symbols of a line, with spaces between them."""
        return _split(line, self.tokenizer, None if self.bpe is None else self.bpe.encode)

    def encode_output(self, line: str) -> str:
        """Return the symbols of a line in the target language; see ``Translator``."""
        split = None if self.bpe is None else getattr(self.bpe, "encode_target", self.bpe.encode)
        return _split(line, self._target, split)

    def decode(self, symbols: str) -> str:
        """Return symbols of the target language as plain text."""
        text = symbols if self.bpe is None else self.bpe.decode(symbols)
        return text if self._target is None else self._target.decode(text)

    def _tokenizer_of(self, language: str) -> tokenizers.Tokenizer | None:
        """Build the folder's tokenizer for texts in a language; None: it has none."""
        name = self.folder.tokenizer
        return None if name is None else tokenizers.build(name, language)


def _bpe(name: str, files: Mapping[str, str]) -> bpe.Bpe:
    """Build the core's BPE of a name, or fairseq's; see ``bpe.build``."""
    if name in bpe.KINDS:
        return bpe.build(name, files)
    with extras.named(f"--bpe {name}"):
        from ..plugin.encoders import others
    return others.build(name, files)


def _split(
    line: str, tokenizer: tokenizers.Tokenizer | None, bpe: Callable[[str], str] | None
) -> str:
    """Tokenise a line and split its words; None: no such step."""
    line = bare(line)
    line = line if tokenizer is None else tokenizer.encode(line)
    if bpe is None:
        return line
    return bpe(re.sub(rf"\S{{{WORD},}}", lambda word: " ".join(word[0][:WORD]), line))
