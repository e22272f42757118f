"""Finds the format of a model of another toolkit, and reads it by that."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ...errors import option_error
from .ctranslate2 import Splitting
from .files import known_form
from .foreign import Foreign
from .marian_files import is_binary, models_of
from .writing import write


def format_of(given: Path) -> str:
    """Return the format of a model, as its files say.

    Raises:
        UsageError: they are of none.
    """
    if is_binary(given / "model.bin" if given.is_dir() else given):
        return "marian"
    by_file = {"metadata.json": "argos", "model.bin": "ct2", "config.json": "hf"}
    for name, kind in by_file.items():
        if (given / name).is_file():
            return kind
    if given.name == "model.bin":
        return "ct2"
    endings = {".argosmodel": "argos", ".npz": "marian"}
    if given.is_file() and given.suffix in endings:
        return endings[given.suffix]
    if models_of(given):  # one is read, and of several none
        return "marian"
    allowed = "a folder with config.json or model.bin, MODEL.npz or MODEL.bin of Marian or the "
    allowed += "folder of one, or FILE.argosmodel"
    raise option_error("PATH", str(given), allowed)


def import_into(
    folder: Path,
    kind: str,
    given: Path,
    languages: tuple[str | None, str | None],
    splitting: Splitting | None = None,
) -> Foreign:
    """Write a model of another toolkit as a model folder.

    Args:
        folder: to write to.
        kind: the format, as ``format_of`` names it.
        given: the model.
        languages: of source and target; None: what the files say.
        splitting: how text of ``ct2`` is split; None: as files beside the model say it.

    Returns:
        The model, as it was read; its files may be gone.

    Raises:
        UsageError: a file is missing, damaged or wrong, or something in it is not known.
    """
    with (
        known_form(given, "a whole model, undamaged"),
        _opened(kind, given, languages, splitting or Splitting()) as model,
    ):
        write(model, folder)
    return model


@contextlib.contextmanager
def _opened(
    kind: str, given: Path, languages: tuple[str | None, str | None], splitting: Splitting
) -> Iterator[Foreign]:
    """Read a model; what it names is there in the body."""
    if kind == "argos":
        from . import argos

        with argos.opened(given, *languages) as model:
            yield model
    elif kind == "ct2":
        from . import ctranslate2

        yield ctranslate2.read(given, *languages, splitting)
    elif kind == "hf":
        from . import hugging_face

        yield hugging_face.read(given, *languages)
    else:
        from . import marian

        yield marian.read(given, *languages)
