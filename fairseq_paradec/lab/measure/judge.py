"""Comparison of outputs with fairseq's greedy search and with references."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq.data import Dictionary, data_utils

from ...errors import option_error
from ...files import language_pair
from ..analysis.benchmark_tables import difference
from ..analysis.quality import Quality
from ..data.table import Cells, Value
from .systems import EXACT, System
from .text import plain_text, text_language

# The origin of references without raw files: for texts, and for images.
DETOKENISED, TARGETS = "DATA, detokenised", "the targets of DATA"


def agreement(
    system: System, sentences: Sequence[int], ours: Sequence[list[str]], theirs: Sequence[list[str]]
) -> dict[str, int]:
    """Count the outputs that equal those of fairseq's greedy search.

    Args:
        system: the system; a lossless one decides which differences are ties.
        sentences: the numbers of the sentences.
        ours: the system's tokens.
        theirs: the tokens of fairseq's greedy search.
    """
    triples = list(zip(sentences, ours, theirs, strict=True))
    different = [triple for triple in triples if triple[1] != triple[2]]
    ties = sum(system.tie(*triple) for triple in different) if system.promise == EXACT else 0
    return {
        "sentences": len(triples),
        "identical": len(triples) - len(different),
        "ties": ties,
        "beyond ties": len(different) - ties,
    }


def target_language(data: str) -> str:
    """Return a data folder's target language."""
    return str(language_pair(data)[1])


def side(data: str, subset: str, language: str) -> list[str]:
    """Return one side of a subset as plain text; of images the intensities.

    Raises:
        UsageError: the data do not have it.
    """
    words = Dictionary.load(str(Path(data) / f"dict.{language}.txt"))
    path = f"{data}/{subset}.{'-'.join(map(str, language_pair(data)))}.{language}"
    indexed = data_utils.load_indexed_dataset(path, words)
    if indexed is None:
        raise option_error("--subset", subset, "a subset with references, or --reference FILE")
    spoken = text_language(data, language)
    return [plain_text(words.string(tokens).split(), spoken) for tokens in indexed]


def references(
    data: str, subset: str, count: int | None, given: Path | None
) -> tuple[list[str], str]:
    """Return the references of a whole subset as plain text, and their origin in words.

    Args:
        data: the data folder; its ``raw/SUBSET.LANG`` is used if it exists, else its targets.
        subset: the subset's name.
        count: the number of its sentences; None: not known.
        given: ``--reference``.

    Raises:
        UsageError: the file given is missing or does not fit, or there are no references.
    """
    language = target_language(data)
    raw = Path(data) / "raw" / f"{subset}.{language}"
    path = given or (raw if raw.is_file() else None)
    if path is None:
        source = TARGETS if text_language(data, language) is None else DETOKENISED
        return side(data, subset, language), source
    if not path.is_file():
        raise option_error("--reference", str(path), "a file with one reference per line")
    lines = path.read_text(encoding="utf-8").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if count is not None and len(lines) != count:
        given_lines = f"{path} with {len(lines)} lines"
        raise option_error("--reference", given_lines, f"a line for each of {count}")
    return lines, str(path)


def score_columns(
    quality: Quality, texts: Sequence[str], baselines: Mapping[str, Sequence[str]]
) -> Cells:
    """Return the columns of quality, with differences and their 95% intervals.

    Args:
        quality: with the references.
        texts: the outputs.
        baselines: other outputs by name; if they are ``texts`` itself, there is no difference.
    """
    cells: Cells = {k: round(score, 2) for k, score in quality.scores(texts).items()}
    for name, baseline in baselines.items():
        for metric, ends in quality.differences(texts, baseline).items():
            cells[difference(metric, name)] = None if texts is baseline else Value(*ends)
    return cells
