"""Comparison of outputs with the judge's, and with references."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import option_error
from ...model.dictionary import Dictionary
from ..analysis.benchmark_tables import difference
from ..analysis.promises import BREAKABLE
from ..analysis.quality import Quality
from ..data.table import Cells, Value
from .outputs import System
from .sentences import Data
from .text import plain_text, target_language, text_language

# The origin of references without raw files: for texts, and for images.
DETOKENISED, TARGETS = "DATA, detokenised", "the targets of DATA"


def agreement(
    system: System, sentences: Sequence[int], ours: Sequence[list[str]], theirs: Sequence[list[str]]
) -> dict[str, int]:
    """Count the outputs that equal those of the judge: fairseq's greedy search, or ours without it.

    Args:
        system: the system; a lossless one decides which differences are ties.
        sentences: the numbers of the sentences.
        ours: the system's tokens.
        theirs: the judge's tokens.
    """
    triples = list(zip(sentences, ours, theirs, strict=True))
    different = [triple for triple in triples if triple[1] != triple[2]]
    ties = sum(system.tie(*triple) for triple in different) if system.promise in BREAKABLE else 0
    return {
        "sentences": len(triples),
        "identical": len(triples) - len(different),
        "ties": ties,
        "beyond ties": len(different) - ties,
    }


def side(data: str, subset: str, language: str) -> list[str]:
    """Return one side of a subset as plain text; of images the intensities.

    Raises:
        UsageError: the data do not have it.
    """
    words = Dictionary.read(Path(data) / f"dict.{language}.txt")
    indexed = Data(data).side(subset, language)
    if indexed is None:
        raise option_error("--subset", subset, "a subset with references, or --reference FILE")
    spoken = text_language(data, language)
    return [plain_text(words.string(tokens.tolist()).split(), spoken) for tokens in indexed]


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
