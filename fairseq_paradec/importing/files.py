"""Reads the files of a folder that transformers saved: JSON, weights, added tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError, option_error

#: Files of weights, the first that is there; an index names several.
WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)  # fmt: skip


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        UsageError: the file is missing, or holds something else.
    """
    if not file.is_file():
        raise option_error(str(file.parent), file.name, "a folder with this file; it is missing")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise option_error(str(file), "a damaged file", f"a JSON object ({error})") from error
    if not isinstance(content, dict):
        raise option_error(str(file), f"a {type(content).__name__}", "a JSON object")
    return content


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """Read all weights in fp32, by their names without ``model.``.

    Returns:
        The file, or the index of the files, and the weights.

    Raises:
        UsageError: there is none, one is missing or damaged, or a pickle is no safe one.
    """
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise option_error("DIR", str(folder), f"a folder with one of {', '.join(WEIGHTS)}")
    files = [file]
    if file.suffix == ".json":
        parts = read_json(file).get("weight_map") or {}
        files = [folder / name for name in sorted(set(parts.values()))]
    weights: dict[str, Tensor] = {}
    for one in files:
        for name, weight in _read_file(one).items():
            weights[name.removeprefix("model.")] = weight.float()
    return file, weights


def _read_file(file: Path) -> dict[str, Tensor]:
    """Read one file of weights.

    Raises:
        UsageError: it is missing, damaged, or holds more than tensors.
    """
    if not file.is_file():
        raise option_error(str(file.parent), file.name, "a folder with this file; it is missing")
    allowed = "an undamaged file of tensors"
    if file.suffix == ".safetensors":
        try:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        except ImportError as error:
            raise UsageError(
                f"{file}: safetensors is not installed; "
                "allowed: it after pip install 'fairseq_paradec[import]'"
            ) from error
        try:
            return load_file(file)
        except SafetensorError as error:
            raise option_error(str(file), "no such file", f"{allowed} ({error})") from error
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds
        reason = str(error).strip().splitlines()[0]
        given = "a pickle that safe loading refuses, or a damaged file"
        raise option_error(str(file), given, f"{allowed} ({reason})") from error
    if not isinstance(content, dict) or not all(map(torch.is_tensor, content.values())):
        raise option_error(str(file), f"a {type(content).__name__}", f"{allowed}, by name")
    return content


def added_tokens(folder: Path, first: int) -> dict[str, int]:
    """Return the tokens that a tokenizer adds to its vocabulary, such as languages: -> numbers.

    Args:
        folder: of the tokenizer's files. Those that name numbers come before lists.
        first: the number of the first added token, if no file names it.
    """
    found: dict[str, int] = {}
    about = folder / "tokenizer_config.json"
    settings = read_json(about) if about.is_file() else {}
    for number, token in (settings.get("added_tokens_decoder") or {}).items():
        found[token["content"]] = int(number)
    fast = folder / "tokenizer.json"
    if fast.is_file():
        added = read_json(fast).get("added_tokens") or []
        found |= {token["content"]: int(token["id"]) for token in added}
    plain = folder / "added_tokens.json"
    if plain.is_file():
        found |= read_json(plain)
    special = folder / "special_tokens_map.json"
    listed = read_json(special) if special.is_file() else {}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = listed.get(key) or settings.get(key) or []
        new = [one if isinstance(one, str) else one["content"] for one in tokens]
        new = [one for one in new if one not in found]
        found |= {one: first + number for number, one in enumerate(new)}
    return found
