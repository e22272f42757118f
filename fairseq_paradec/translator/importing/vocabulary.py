"""Words of other toolkits' models by number, and the tokens of languages."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import option_error
from ...text.bpe import load_sentencepiece
from .foreign import SPECIAL

#: The languages of M2M-100 in its order; transformers 5 does not save them.
M2M_100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr "
    "ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk "
    "ur uz vi wo xh yi yo zh zu"
).split()


def words_of(numbers: Mapping[str, int], size: int, file: Path) -> list[str | None]:
    """Return the words by number; None: no word has it.

    Raises:
        UsageError: a number is outside the model's, or a special word is missing.
    """
    words: list[str | None] = [None] * size
    for word, number in numbers.items():
        if not isinstance(number, int) or not 0 <= number < size:
            raise option_error(
                str(file),
                f"{word!r} with the number {number}",
                f"numbers from 0 to {size - 1}, for the model has {size}",
            )
        words[number] = word
    for word in ("</s>", "<unk>"):
        if word not in words:
            raise option_error(str(file), f"no word {word}", "a vocabulary with </s> and <unk>")
    return words


def piece_words(file: Path) -> dict[str, int]:
    """Return the numbers of a sentencepiece model's pieces behind fairseq's special words.

    Its first three are special, too; NLLB and mBART-50 number the others from 4 on.
    """
    pieces = load_pieces(file)
    special = {word: number for number, word in enumerate(SPECIAL)}
    return special | {pieces.id_to_piece(i): i + 1 for i in range(3, len(pieces))}


def check_pieces(file: Path, words: Iterable[str | None], vocabulary: Path) -> None:
    """Refuse a sentencepiece model that is another model's.

    Raises:
        UsageError: the file is missing or damaged, or the vocabulary lacks most of its pieces.
    """
    pieces = load_pieces(file)
    known = set(words)
    count = sum(pieces.id_to_piece(i) in known for i in range(len(pieces)))
    if 2 * count < len(pieces):
        raise option_error(
            str(file),
            f"{len(pieces)} pieces, {count} of them in {vocabulary.name}",
            f"the sentencepiece model that {vocabulary} was made with",
        )


def marian_text(
    pieces: tuple[Path, Path],
    words: Sequence[Sequence[str | None]],
    files: Sequence[Path],
    target: str,
) -> dict[str, Any]:
    """Check the text processing of a Marian model, whatever its format.

    Args:
        pieces: the sentencepiece models of sources and of targets.
        words: of both sides, by number.
        files: their files, for errors.
        target: the target language. If the model has its token, sources begin with that.

    Returns:
        ``words``, ``pieces`` and ``before`` of Foreign.

    Raises:
        UsageError: a sentencepiece model is missing or another's.
    """
    for model_file, known, file in zip(pieces, words, files, strict=True):
        check_pieces(model_file, known, file)
    code = f">>{target}<<"
    before = [code] if code in words[0] else []
    return {"words": tuple(words), "pieces": pieces, "before": before}


def load_pieces(file: Path) -> Any:
    """Load a sentencepiece model.

    Raises:
        UsageError: it is missing or damaged.
    """
    if not file.is_file():
        raise option_error(str(file.parent), file.name, "a folder with this file; it is missing")
    return load_sentencepiece(str(file), str(file.parent))


def require_languages(source: str | None, target: str | None) -> tuple[str, str]:
    """Return the language pair.

    Raises:
        UsageError: a language is missing, or cannot be a part of a file's name.
    """
    for flag, language in (("--source", source), ("--target", target)):
        if not isinstance(language, str) or not re.fullmatch(r"[^\s/\0]{1,99}", language):
            allowed = "a language, as a word without '/', where the model's files do not name it"
            raise option_error(flag, language, allowed)
    return str(source), str(target)


def language_token(flag: str, language: str, added: Collection[str]) -> str:
    """Return the token of a language.

    Raises:
        UsageError: there is none.
    """
    if not any(token[:1] != "<" for token in added):
        allowed = "a language of a model whose tokenizer_config.json or tokenizer.json lists them"
        raise option_error(flag, language, allowed)
    for token in (f"__{language}__", language):
        if token in added and token[:1] != "<":
            return token
    known = sorted(name.strip("_") for name in added if name[:1] != "<")
    some = difflib.get_close_matches(language, known) or [*known[:5], "..."]
    raise option_error(flag, language, f"one of the model's {len(known)} tokens: {', '.join(some)}")
