"""Reads what Marian's models read: vocabularies of YAML, of words or of sentencepiece, and BPE."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ...errors import option_error
from ...text import bpe
from .files import known_form
from .vocabulary import load_pieces, marian_text, words_of

#: Where a folder without decoder.yml has its vocabularies, as Firefox's models.
_NAMES = (("srcvocab*.spm", "trgvocab*.spm"), ("vocab*.spm",) * 2)
#: Truecasing of older models of OPUS-MT, whose file is empty.
_CASES = "source.tcmodel"


class SettingsLoader(yaml.SafeLoader):
    """Reads YAML without aliases, by which a few lines can be gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As yaml, but for aliases."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "an alias", self.peek_event().start_mark)
        return super().compose_node(parent, index)


def parse(file: Path, text: bytes, loader: Any = SettingsLoader) -> dict[str, Any]:
    """Parse YAML in UTF-8 that is a mapping.

    Raises:
        UsageError: it is not.
    """
    try:
        content = yaml.load(text, Loader=loader)
    except Exception as error:  # yaml raises many kinds
        raise option_error(str(file), "damaged YAML", "a mapping of settings") from error
    if not isinstance(content, dict):
        raise option_error(str(file), f"a {type(content).__name__}", "a mapping of settings")
    return content


def vocabularies(file: Path) -> tuple[Path, Path]:
    """Return the vocabularies of a model, which its decoder.yml names, or lie beside it.

    Raises:
        UsageError: there are none, or a file is missing or of no known kind.
    """
    decoders = [file.with_name(name) for name in (f"{file.name}.decoder.yml", "decoder.yml")]
    decoder = next((one for one in decoders if one.is_file()), None)
    if decoder is not None:
        names: Any = parse(decoder, decoder.read_bytes()).get("vocabs")
        with known_form(decoder, "vocabs: two files, of source and target"):
            first, second = (file.with_name(Path(name).name) for name in names)
    else:
        found = ([sorted(file.parent.glob(name)) for name in names] for names in _NAMES)
        pair = next((both for both in found if all(len(one) == 1 for one in both)), None)
        if pair is None:
            allowed = "a model beside its decoder.yml, which is missing, or one vocab*.spm"
            raise option_error("MODEL", str(file), allowed)
        first, second = pair[0][0], pair[1][0]
    for name in (first, second):
        if not name.is_file():
            raise option_error(
                str(file.parent), name.name, "a folder with this file; it is missing"
            )
        if name.suffix == ".fsv":
            raise option_error(str(name), "words of factors", "a vocabulary without factors")
    if (first.suffix == ".spm") != (second.suffix == ".spm"):
        given = f"{first.name} and {second.name}"
        raise option_error(f"{decoder}: vocabs", given, "two of sentencepiece, or none")
    return first, second


def text_of(
    files: tuple[Path, Path], sizes: tuple[int, int], source: str, target: str
) -> tuple[dict[str, Any], list[str]]:
    """Read the vocabularies, and how text is split.

    Args:
        files: of source and target, from ``vocabularies``.
        sizes: how many words the model has on each side.
        source: the source language.
        target: the target language. If the model has its token, sources begin with that.

    Returns:
        Parts of Foreign, and lines about them.

    Raises:
        UsageError: a file is missing, damaged, or another model's.
    """
    folder, is_pieces = files[0].parent, files[0].suffix == ".spm"
    words = [words_of(_numbers(f), size, f) for f, size in zip(files, sizes, strict=True)]
    if is_pieces:
        return marian_text(files, words, files, target), []
    codes = folder / "source.bpe"
    if (folder / "source.spm").is_file() or not codes.is_file():
        pieces = folder / "source.spm", folder / "target.spm"
        return marian_text(pieces, words, files, target), []
    bpe.build("subword_nmt", {"bpe_codes": str(codes)})
    if f">>{target}<<" in words[0]:
        raise option_error(
            str(codes), f"sources that begin with >>{target}<<", "such a model with source.spm"
        )
    notes = ["text: Moses' rules and source.bpe; preprocess.sh makes punctuation plain before that"]
    cases = folder / _CASES
    if cases.is_file() and cases.stat().st_size:
        notes.append(f"{_CASES} is not read: capitals stay as they are")
    text = {"words": tuple(words), "pieces": None, "codes": codes, "tokenizer": "moses"}
    return text, notes


def _numbers(file: Path) -> Mapping[str, int]:
    """Read a vocabulary: the numbers of its words.

    Raises:
        UsageError: it is of no known form.
    """
    if file.suffix == ".spm":
        pieces = load_pieces(file)
        numbers = {pieces.id_to_piece(number): number for number in range(len(pieces))}
        for number, word in ((pieces.eos_id(), "</s>"), (pieces.unk_id(), "<unk>")):
            if number >= 0:
                numbers.pop(pieces.id_to_piece(number))
                numbers[word] = number
        return numbers
    if file.suffix in (".yml", ".yaml", ".json"):
        # BaseLoader leaves words such as "no" and "1" texts.
        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        given = parse(file, file.read_bytes(), loader)
        with known_form(file, "the number of each word"):
            return {word: int(number) for word, number in given.items()}
    with known_form(file, "a word a line, in UTF-8"):
        lines = file.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        return {line.removesuffix("\r"): number for number, line in enumerate(lines)}
