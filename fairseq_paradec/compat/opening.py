"""A model that is opened for words: one of our folders, or one that CTranslate2 converted."""

import copy
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UsageError, option_error
from ..files import MODEL_FOLDER
from ..translator.importing import ctranslate2, writing
from ..translator.importing.files import known_form
from ..translator.translator import Translator

#: The file by which a folder of CTranslate2's is known.
CTRANSLATE2 = ctranslate2.NAME
__all__ = ["CTRANSLATE2", "MODEL_FOLDER", "Opened", "open_model"]

#: Of numpy's types of weights the type that CTranslate2 computes with, where none is asked for.
_STORED = {"int8": "int8", "bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Opened:
    """A model, and what becomes of words before it reads them."""

    translator: Translator
    source_begin: bool = False  # whether <s> precedes sources
    source_end: bool = True  # whether </s> follows them
    layer: int = -1  # by which outputs are aligned
    heads: int = 0  # of so many of its first heads; 0: of all
    stored: str = "float32"  # how weights are stored, by CTranslate2's name

    def twin(self) -> "Opened":
        """Return another one for another thread, with the same weights."""
        return replace(self, translator=copy.copy(self.translator))


def open_model(path: Path) -> Opened:
    """Open a folder.

    A model of CTranslate2's is imported into a temporary folder, which is gone when it is mapped.

    Raises:
        UsageError: it holds no model, or one that the core does not read.
    """
    if (path / MODEL_FOLDER).is_file():
        opened = Opened(Translator(path, flag="model_path"))
    elif (path / CTRANSLATE2).is_file():
        with known_form(path, "a whole model, undamaged"):
            bare = ctranslate2.read_bare(path)
        with tempfile.TemporaryDirectory(prefix="paradec-") as name:
            writing.write(bare.model, Path(name))
            translator = Translator(Path(name), flag="model_path")
        stored = _STORED.get(bare.stored, "float32")
        ends = bare.source_begin, bare.source_end
        opened = Opened(translator, *ends, *bare.alignment, stored)
    else:
        allowed = f"a folder with {MODEL_FOLDER} or {CTRANSLATE2}"
        raise option_error("model_path", str(path), allowed)
    if opened.translator.core is None:
        raise UsageError(
            f"model_path: got {str(path)!r}, which needs torch; allowed: a model that "
            "the core reads"
        )
    return opened
