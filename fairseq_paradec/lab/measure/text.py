"""Outputs as plain text, and their scorer, by the kind of data folder."""

import functools
from collections.abc import Sequence

from sacremoses import MosesDetokenizer

from ...files import language_pair
from ...images import holds_images, read_sizes
from ..analysis.quality import ImageQuality, Quality, SummaryQuality, TranslationQuality

# The names that a data folder of summarisation has for its sides.
DOCUMENT, SUMMARY = "document", "summary"


def target_language(data: str) -> str:
    """Return a data folder's target language."""
    return str(language_pair(data)[1])


def text_language(data: str, language: str) -> str | None:
    """Return the language that the text of one side is detokenised as.

    Documents and summaries are taken to be English, since the folder does not name their language.
    ROUGE counts letters and digits only, so Moses' rules for other languages do not affect it.

    Returns:
        A code such as ``de``; None for images.
    """
    if holds_images(data):
        return None
    return "en" if language in (DOCUMENT, SUMMARY) else language


def quality_of(data: str, language: str, references: Sequence[str]) -> Quality:
    """Return the scorer of outputs for a data folder of images, summaries or translations.

    Raises:
        UsageError: the references are of another kind, or the images' sizes cannot be read.
    """
    if holds_images(data):
        return ImageQuality(references, read_sizes(data)[1])
    return SummaryQuality(references) if language == SUMMARY else TranslationQuality(references)


def plain_text(symbols: Sequence[str], language: str | None) -> str:
    """Join sub-words (subword-nmt's or sentencepiece's) and Moses tokens to plain text.

    Args:
        symbols: of a dictionary, without ``</s>``.
        language: of ``text_language``; None joins them with spaces, as they are.
    """
    line = " ".join(symbols)
    if language is None:
        return line
    if "\u2581" in line:
        return line.replace(" ", "").replace("\u2581", " ").strip()
    return _detokenizer(language).detokenize((line + " ").replace("@@ ", "").split())


@functools.cache
def _detokenizer(language: str) -> MosesDetokenizer:
    return MosesDetokenizer(lang=language)
