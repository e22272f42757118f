"""Reads a package of Argos Translate: a zip of a CTranslate2 folder and its text processing.

In it are one folder's ``metadata.json``, ``model/``, and ``sentencepiece.model`` or ``bpe.model``.
Its ``stanza/``, which splits texts into sentences, is not read.
"""

import contextlib
import posixpath
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import UsageError, option_error
from ...files import check_unpacked
from . import ctranslate2
from .files import read_json
from .foreign import Foreign

#: The description, by which a package is known.
METADATA = "metadata.json"
#: What splits words: sentencepiece, or BPE behind Argos' own use of Moses' rules.
_PIECES, _CODES = "sentencepiece.model", "bpe.model"
_ALLOWED = "a package of Argos Translate, whose files all lie in it"


@contextlib.contextmanager
def opened(given: Path, source: str | None = None, target: str | None = None) -> Iterator[Foreign]:
    """Read a package, or the folder of one that is installed; its files are there in the body.

    Args:
        given: the file ``.argosmodel``, or a folder with ``metadata.json``.
        source: the source language; None: as the package says.
        target: the target language; None: as the package says.

    Raises:
        UsageError: a file is missing or wrong, one lies outside of the package, or the package is
            of another kind.
    """
    with contextlib.ExitStack() as stack:
        folder = given
        if given.is_file():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _unpack(given, folder)
        try:
            model = _read(given, folder, source, target)
        except UsageError as error:
            raise UsageError(str(error).replace(str(folder), str(given))) from error
        yield model


def _read(given: Path, folder: Path, source: str | None, target: str | None) -> Foreign:
    """Read an unpacked package; errors name it as it was given."""
    about = read_json(folder / METADATA)
    kind: Any = about.get("type", "translate")
    if kind != "translate":
        raise option_error(f"{given}: type", kind, "translate")
    source, target = source or about.get("from_code"), target or about.get("to_code")
    pieces, codes = folder / _PIECES, folder / _CODES
    if pieces.is_file():
        splitting = ctranslate2.Splitting(source=pieces)
    elif codes.is_file():
        splitting = ctranslate2.Splitting(codes=codes, tokenizer="argos")
    else:
        raise option_error(str(given), "a package without both", f"{_PIECES}, or {_CODES}")
    return replace(ctranslate2.read(folder / "model", source, target, splitting), file=given)


def _unpack(given: Path, folder: Path) -> None:
    """Unpack what is read of a package.

    Raises:
        UsageError: it is no zip, is damaged, holds much more than its size, or a file in it lies
            outside of it.
    """
    try:
        with zipfile.ZipFile(given) as archive:
            check_unpacked(archive, given)
            names = [info.filename for info in archive.infolist()]
            for name in names:
                if _is_outside(name):
                    raise option_error(str(given), name, _ALLOWED)
            if len({*names}) < len(names):
                raise zipfile.BadZipFile("a name that comes twice")
            roots = [posixpath.dirname(n) for n in names if posixpath.basename(n) == METADATA]
            root = min(roots, key=len, default="")
            (folder / "model").mkdir()
            for name in names:
                own = posixpath.relpath(name, root or ".")
                if own in (METADATA, _PIECES, _CODES) or posixpath.dirname(own) == "model":
                    if name.endswith("/"):
                        continue
                    with archive.open(name) as read, open(folder / own, "xb") as written:
                        shutil.copyfileobj(read, written)
    except UsageError:
        raise
    except Exception as error:  # zipfile and what unpacks raise many kinds
        why = " ".join(str(error).split())[:200]
        raise option_error(str(given), f"no whole zip ({why})", _ALLOWED) from error


def _is_outside(name: str) -> bool:
    """Return whether a name leads out of the folder that it is unpacked into."""
    parts = name.replace("\\", "/").split("/")
    return name.startswith("/") or ".." in parts or "\0" in name or ":" in parts[0]
