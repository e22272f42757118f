"""Writes a model of another toolkit as a model folder."""

import json
import shutil
from pathlib import Path
from typing import Any

from ...errors import option_error
from ...model.dictionary import PAD, Dictionary
from ...model.model import Model
from .. import model_folder
from .foreign import Foreign, convert, dictionary_order, names

_SOURCE, _TARGET, _TOKENS = "source.spm", "target.spm", "tokens.json"
_CODES = "codes.bpe"


def write(model: Foreign, folder: Path) -> None:
    """Write the files of a model folder.

    Raises:
        UsageError: a weight is missing or has another size than the settings say, or two
            dictionaries would have one name.
    """
    if model.source == model.target and model.words[0] != model.words[1]:
        allowed = "another language than --source, as the vocabularies are two"
        raise option_error("--target", model.target, allowed)
    architecture, weights = convert(model)
    for language, known in zip((model.source, model.target), model.words, strict=True):
        words = Dictionary.of_words(names(known, dictionary_order(known)))
        words.save(folder / f"dict.{language}.txt")
    bpe, files = _write_text(model, folder)
    about = model_folder.ModelFolder(
        source=model.source,
        target=model.target,
        tokenizer=model.tokenizer,
        bpe=bpe,
        bpe_files=files,
        settings=_settings(model),
    )
    Model(architecture, weights).save(folder / about.model)
    model_folder.write(folder, about)


def _settings(model: Foreign) -> dict[str, Any]:
    """Return how the model is searched, by the options' names."""
    order = dictionary_order(model.words[1])
    words = Dictionary.of_words(names(model.words[1], order))
    place = {number: words[i] for i, number in enumerate(order)}
    # An output may be empty, which fairseq's default forbids.
    settings = {"min_len": 0} | {name: value for name, value in model.search.items() if value}
    reads_first = settings.get("rules_of") == "transformers" and model.start is not None
    # <pad> is not written, so that no rule but a sequence that begins with it depends on it.
    if reads_first and (
        order[PAD] != model.start or any(model.start in each for each in model.forbidden)
    ):
        settings["rules_first"] = place[model.start]
    lines = [" ".join(place[number] for number in sequence) for sequence in model.forbidden]
    return settings | ({"suppress_sequences": "\n".join(lines)} if lines else {})


def _write_text(model: Foreign, folder: Path) -> tuple[str | None, dict[str, str]]:
    """Write the files that split words: -> fairseq's ``--bpe``, and its files by their flags."""
    if model.pieces is None and model.codes is None:
        return None, {}
    if model.pieces is None:
        shutil.copyfile(str(model.codes), folder / _CODES)
        return "subword_nmt", {"bpe_codes": _CODES}
    files = {"sentencepiece_source": _SOURCE, "sentencepiece_target": _SOURCE}
    shutil.copyfile(model.pieces[0], folder / _SOURCE)
    if model.pieces[1] != model.pieces[0]:
        files["sentencepiece_target"] = _TARGET
        shutil.copyfile(model.pieces[1], folder / _TARGET)
    if model.before or model.dropped:
        files["sentencepiece_tokens"] = _TOKENS
        tokens = {"source": list(model.before), "target": list(model.dropped)}
        (folder / _TOKENS).write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    return "sentencepiece_pair", files
