"""Writes a model of another toolkit as a model folder."""

import json
import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...errors import option_error
from ...plugin.files import new_checkpoint, new_dictionary, saving
from ...plugin.models.imported_transformer import ImportedTransformer
from .. import model_folder
from .foreign import Foreign, convert, dictionary_order, names

_SOURCE, _TARGET, _TOKENS = "source.spm", "target.spm", "tokens.json"


def write(model: Foreign, folder: Path) -> None:
    """Write the files of a model folder.

    Raises:
        UsageError: a weight is missing or has another size than the settings say, or two
            dictionaries would have one name.
    """
    if model.source == model.target and model.words[0] != model.words[1]:
        allowed = "another language than --source, as the vocabularies are two"
        raise option_error("--target", model.target, allowed)
    options, weights = convert(model)
    words = [new_dictionary(names(known, dictionary_order(known))) for known in model.words]
    weights = _checked(model.file, options, weights, words)
    for language, dictionary in zip((model.source, model.target), words, strict=True):
        dictionary.save(str(folder / f"dict.{language}.txt"))
    checkpoint = new_checkpoint(model.source, model.target, options, weights)
    with saving("OUT", folder / "model.pt", checkpoint):
        pass
    files = {"sentencepiece_source": _SOURCE, "sentencepiece_target": _SOURCE}
    shutil.copyfile(model.pieces[0], folder / _SOURCE)
    if model.pieces[1] != model.pieces[0]:
        files["sentencepiece_target"] = _TARGET
        shutil.copyfile(model.pieces[1], folder / _TARGET)
    if model.before or model.dropped:
        files["sentencepiece_tokens"] = _TOKENS
        tokens = {"source": list(model.before), "target": list(model.dropped)}
        (folder / _TOKENS).write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    about = model_folder.ModelFolder(
        source=model.source,
        target=model.target,
        bpe="sentencepiece_pair",
        bpe_files=files,
        settings={"min_len": 0},  # an output may be empty, which fairseq's default forbids
    )
    model_folder.write(folder, about)


def _checked(
    file: Path, options: Mapping[str, Any], weights: Mapping[str, Tensor], words: list[Any]
) -> dict[str, Tensor]:
    """Compare names and sizes of weights with those of the model that they are for.

    Returns:
        The weights, with fairseq's numbers of versions.

    Raises:
        UsageError: a weight is missing, unknown, or of another size.
    """
    for side in ("encoder", "decoder"):
        numbers = (name.split(".")[2] for name in weights if name.startswith(f"{side}.layers."))
        count = 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)
        if options[f"{side}_layers"] > count:  # before so many are built
            allowed = f"those of {options[f'{side}_layers']} layers"
            raise option_error(f"{file}: {side}.layers.{count}", "no weight", allowed)
    sides = SimpleNamespace(source_dictionary=words[0], target_dictionary=words[1])
    with torch.device("meta"):
        wanted = ImportedTransformer.build_model(Namespace(**options), sides).state_dict()
    made = {name for name in wanted if name.endswith(".version")}
    for name in sorted(wanted.keys() - made | weights.keys()):
        shapes = [tuple(side[name].shape) if name in side else None for side in (weights, wanted)]
        if shapes[0] != shapes[1]:
            given = "no weight" if shapes[0] is None else f"a weight of size {shapes[0]}"
            allowed = "none of this name" if shapes[1] is None else f"one of size {shapes[1]}"
            raise option_error(f"{file}: {name}", given, allowed)
    return {**weights, **{name: torch.tensor([3.0]) for name in made}}
