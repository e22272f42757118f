"""Writes a model of another toolkit as a model folder."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf
from torch import Tensor

from ...errors import option_error
from ...plugin.models.imported_transformer import ImportedTransformer
from .. import model_folder
from .foreign import Foreign, convert, dictionary_order, names

_SOURCE, _TARGET, _TOKENS = "source.spm", "target.spm", "tokens.json"


def write(model: Foreign, folder: Path) -> None:
    """Write the files of a model folder.

    Args:
        model: the model.
        folder: an empty folder.

    Raises:
        UsageError: a weight is missing or has another size than the settings say, or two
            dictionaries would have one name.
    """
    if model.source == model.target and model.words[0] != model.words[1]:
        allowed = "another language than --source, as the vocabularies are two"
        raise option_error("--target", model.target, allowed)
    options, weights = convert(model)
    words = [_dictionary(one) for one in model.words]
    weights = _checked(model.file, options, weights, words)
    for language, one in zip((model.source, model.target), words, strict=True):
        one.save(str(folder / f"dict.{language}.txt"))
    torch.save(_checkpoint(model, options, weights), folder / "model.pt")
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


def _dictionary(words: Any) -> Dictionary:
    """Return fairseq's dictionary of a side."""
    found = Dictionary()
    for name in names(words, dictionary_order(words)):
        found.add_symbol(name)
    return found


def _checked(
    file: Path, options: Mapping[str, Any], weights: Mapping[str, Tensor], words: list[Dictionary]
) -> dict[str, Tensor]:
    """Compare names and sizes of weights with those of the model that they are for.

    Returns:
        The weights, with fairseq's numbers of versions.

    Raises:
        UsageError: a weight is missing, unknown, or of another size.
    """
    for side in ("encoder", "decoder"):
        numbers = (name.split(".")[2] for name in weights if name.startswith(f"{side}.layers."))
        count = 1 + max((int(one) for one in numbers if one.isdecimal()), default=-1)
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


def _checkpoint(
    model: Foreign, options: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return a checkpoint as fairseq-train writes it, without the state of a training."""
    cfg: Any = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    task = asdict(TranslationConfig(data=".", source_lang=model.source, target_lang=model.target))
    cfg["task"] = OmegaConf.to_container(OmegaConf.create(task), enum_to_str=True)
    cfg["task"]["_name"] = "translation"
    cfg["model"] = dict(options)
    history = {
        "criterion_name": "label_smoothed_cross_entropy",
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {"best": None},
        "num_updates": 0,
    }
    return {
        "args": None,
        "cfg": cfg,
        "model": dict(weights),
        "criterion": None,
        "optimizer_history": [history],
        "last_optimizer_state": None,
        "task_state": {},
        "extra_state": {"epoch": 0},
    }
