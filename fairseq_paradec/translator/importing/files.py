"""Reads the files of a folder that transformers saved: JSON, weights, added tokens."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ... import extras
from ...errors import UsageError, option_error
from ...model import checkpoint
from ...model.file import tensors
from .foreign import SPECIAL

#: Files of weights, the first that is there; an index names several.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


#: Errors of what reads a file that it does not know.
_FORMS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError),
    *(RuntimeError, TypeError, ValueError),
)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        UsageError: the file is missing, or holds something else.
    """
    if not file.is_file():
        raise option_error(str(file.parent), file.name, "a folder with this file; it is missing")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise option_error(str(file), "a damaged file", f"a JSON object ({error})") from error
    if not isinstance(content, dict):
        raise option_error(str(file), f"a {type(content).__name__}", "a JSON object")
    return content


def whole_number(
    file: Path, settings: Mapping[str, Any], key: str, default: Any = None, most: int = 1 << 31
) -> int:
    """Return a setting that is a whole number from 1 up to ``most``.

    Raises:
        UsageError: it is another value, or is missing without a default.
    """
    value = settings.get(key, default)
    if type(value) is not int or value < 1:
        raise option_error(f"{file}: {key}", value, "a whole number from 1 up")
    if value > most:
        raise option_error(f"{file}: {key}", value, f"{most} at most")
    return value


@contextlib.contextmanager
def known_form(file: Path, allowed: str) -> Iterator[None]:
    """Name a file whose content has another form than what reads it knows; ``allowed``: which."""
    try:
        yield
    except UsageError:
        raise
    except _FORMS as error:
        why = " ".join(str(error).split())[:200]
        given = f"another form ({type(error).__name__}: {why})"
        raise option_error(str(file), given, allowed) from error


def read_weights(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Map or read all weights as they are stored, by their names without ``model.``.

    Returns:
        The file, or the index of the files, and the weights.

    Raises:
        UsageError: there is none, one is missing or damaged, or a pickle is no safe one.
    """
    named = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if named is None:
        raise option_error("DIR", str(folder), f"a folder with one of {', '.join(WEIGHTS)}")
    files = [named]
    if named.suffix == ".json":
        with known_form(named, "a weight_map: the file of each weight"):
            files = [folder / name for name in sorted({*read_json(named)["weight_map"].values()})]
    weights: dict[str, np.ndarray] = {}
    for shard in files:
        for name, weight in _read_file(shard).items():
            if not isinstance(weight, np.ndarray) or weight.dtype.kind == "c":
                given = f"{name}, which is a {type(weight).__name__}"
                raise option_error(str(shard), given, "dense tensors, by name")
            weights[str(name).removeprefix("model.")] = weight
    return named, weights


def _read_file(path: Path) -> dict[str, Any]:
    """Read one file of weights.

    Raises:
        UsageError: it is missing, damaged, or holds more than tensors.
    """
    if not path.is_file():
        raise option_error(str(path.parent), path.name, "a folder with this file; it is missing")
    if path.suffix == ".safetensors":
        try:
            return dict(tensors(path))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
    if not checkpoint.is_archive(path):
        return _by_torch(path)
    whole = checkpoint.read(path)
    if whole.foreign:
        given = f"a pickle that safe loading refuses: {', '.join(whole.foreign)[:200]}"
        raise option_error(str(path), given, "a file of tensors")
    if not isinstance(whole.content, dict):
        raise option_error(str(path), f"a {type(whole.content).__name__}", "tensors, by name")
    return whole.content


def _by_torch(path: Path) -> dict[str, Any]:
    """Read a file as torch wrote it before its version 1.6, with torch; see ``_read_file``."""
    with extras.named(f"{path}, of torch before 1.6,"):
        import torch
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        for name, weight in content.items():
            if weight.numel() * weight.element_size() > weight.untyped_storage().nbytes():
                raise ValueError(f"{name} has fewer numbers than elements")
        return {name: weight.float().numpy() for name, weight in content.items()}
    except Exception as error:  # torch raises many kinds
        reason = str(error).strip().splitlines()[0]
        given = "a pickle that safe loading refuses, or a damaged file"
        allowed = f"an undamaged file of dense tensors, by name ({reason})"
        raise option_error(str(path), given, allowed) from error


def added_tokens(folder: Path, first: int) -> dict[str, int]:
    """Return the tokens that a tokenizer adds to its vocabulary, such as languages: -> numbers.

    Args:
        folder: of the tokenizer's files. Those that name numbers come before lists.
        first: the number of the first added token, if no file names it.
    """
    numbered: dict[str, int] = {}
    listed: dict[str, None] = {}
    for name, numbers in _NUMBERED.items():
        file = folder / name
        if not file.is_file():
            continue
        content = read_json(file)
        with known_form(file, "added tokens as transformers writes them"):
            numbered |= {token: int(number) for token, number in numbers(content)}
            for key in ("additional_special_tokens", "extra_special_tokens"):
                if not isinstance(tokens := content.get(key) or [], list):
                    raise TypeError(f"{key} is no list")
                listed |= {
                    entry if isinstance(entry, str) else entry["content"]: None for entry in tokens
                }
    new = [token for token in listed if token not in numbered and token not in SPECIAL]
    return numbered | {token: first + number for number, token in enumerate(new)}


def ordinary_tokens(folder: Path) -> set[str]:
    """Return the added tokens that a tokenizer's files call not special: they are text.

    transformers' ``skip_special_tokens`` leaves out the others.
    """
    ordinary: set[str] = set()
    for name, key in (
        ("tokenizer_config.json", "added_tokens_decoder"),
        ("tokenizer.json", "added_tokens"),
    ):
        file = folder / name
        if not file.is_file():
            continue
        tokens = read_json(file).get(key) or {}
        with known_form(file, "added tokens as transformers writes them"):
            listed = tokens.values() if isinstance(tokens, dict) else tokens
            ordinary |= {entry["content"] for entry in listed if entry.get("special") is False}
    return ordinary


#: Files that name added tokens, and how each gives their numbers, later ones before others.
_NUMBERED: dict[str, Callable[[dict[str, Any]], Iterable[tuple[str, Any]]]] = {
    "special_tokens_map.json": lambda content: (),
    "tokenizer_config.json": lambda content: (
        (token["content"], number)
        for number, token in (content.get("added_tokens_decoder") or {}).items()
    ),
    "tokenizer.json": lambda content: (
        (token["content"], token["id"]) for token in content.get("added_tokens") or ()
    ),
    "added_tokens.json": lambda content: content.items(),
}
