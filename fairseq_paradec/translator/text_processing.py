"""A model folder's text processing: plain text to a model's symbols, and back."""

import functools
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..utf8 import bare
from .model_folder import ModelFolder

#: Characters of a word after which it is cut, each a token then: BPE takes hours for long words.
WORD = 10_000


class TextProcessing:
    """The tokenizers and the BPE of a folder; without them, plain text is symbols already.

    Args:
        path: the folder.
        folder: what it holds.
        task: builds fairseq's parts.
    """

    def __init__(self, path: Path, folder: ModelFolder, task: Any) -> None:
        self.folder, self.task = folder, task
        self.tokenizer = self._tokenizer_of(folder.source)
        here = path.absolute()  # subword_nmt would read a name with a dash as a flag
        files = {name: str(here / file) for name, file in folder.bpe_files.items()}
        name = folder.bpe
        self.bpe = (
            task.build_bpe(Namespace(**files | {"_name": name, "bpe": name})) if name else None
        )

    def encode(self, line: str) -> str:
        """Return the symbols of a line, with spaces between them."""
        return _split(line, self.tokenizer, None if self.bpe is None else self.bpe.encode)

    def encode_output(self, line: str) -> str:
        """Return the symbols of a line in the target language; see ``Translator``."""
        split = None if self.bpe is None else getattr(self.bpe, "encode_target", self.bpe.encode)
        return _split(line, self._target_tokenizer, split)

    def decode(self, symbols: str) -> str:
        """Return symbols of the target language as plain text."""
        text = symbols if self.bpe is None else self.bpe.decode(symbols)
        return text if self.tokenizer is None else self.tokenizer.decode(text)

    @functools.cached_property
    def _target_tokenizer(self) -> Any:
        """The folder's tokenizer for texts in the target language."""
        return self._tokenizer_of(self.folder.target)

    def _tokenizer_of(self, language: str) -> Any:
        """Build the folder's tokenizer for texts in a language; None: it has none."""
        name = self.folder.tokenizer
        if name is None:
            return None
        return self.task.tokenizer_of(name, language, self.folder.target)


def _split(line: str, tokenizer: Any, bpe: Callable[[str], str] | None) -> str:
    """Tokenise a line and split its words; None: no such step."""
    line = bare(line)
    line = line if tokenizer is None else tokenizer.encode(line)
    if bpe is None:
        return line
    return bpe(re.sub(rf"\S{{{WORD},}}", lambda word: " ".join(word[0][:WORD]), line))
