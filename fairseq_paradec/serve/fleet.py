"""The models of a server, by languages."""

import importlib.util
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UsageError, option_error
from ..registry import METHODS
from ..translator import model_folder
from ..translator.model_folder import ModelFolder
from ..translator.translator import Translator

logger = logging.getLogger(__name__)

#: Names of languages in English; others are called by their codes.
NAMES = dict(
    pair.split(":")
    for pair in (
        "ar:Arabic bg:Bulgarian bn:Bengali ca:Catalan cs:Czech da:Danish de:German el:Greek "
        "en:English es:Spanish et:Estonian fa:Persian fi:Finnish fr:French he:Hebrew hi:Hindi "
        "hr:Croatian hu:Hungarian id:Indonesian it:Italian ja:Japanese ko:Korean lt:Lithuanian "
        "lv:Latvian nb:Norwegian nl:Dutch pl:Polish pt:Portuguese ro:Romanian ru:Russian "
        "sk:Slovak sl:Slovenian sr:Serbian sv:Swedish sw:Swahili th:Thai tr:Turkish "
        "uk:Ukrainian ur:Urdu vi:Vietnamese zh:Chinese"
    ).split()
)

#: What ``source: auto`` and ``/detect`` need.
NO_DETECTOR = "languages are not detected here: lingua is not installed (fairseq_paradec[detect])"


#: Lossless decoders that a page has no use for: they choose others, or are beam search.
NOT_SHOWN = ("auto_fast", "multiword_beam")


def fitting(translator: Translator) -> list[str]:
    """Return the lossless decoders that fit a model; they are built for that."""
    names = []
    for name, method in METHODS.items():
        if not method.is_lossless_by_default or name in NOT_SHOWN:
            continue
        try:
            translator.generator({"decoding": name})
        except UsageError:
            continue
        names.append(name)
    return names


class Fleet:
    """Loaded model folders.

    Args:
        folders: one or several, each of another pair of languages.

    Raises:
        UsageError: one is no model folder, or two are of the same languages.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        models: dict[tuple[str, str], tuple[Path, ModelFolder]] = {}
        for path in map(Path, folders):
            folder = model_folder.read(path)
            pair = folder.source, folder.target
            if pair in models:
                given = f"{path}, a second one from {pair[0]} to {pair[1]}"
                raise option_error("--model", given, "one model for each pair of languages")
            models[pair] = path, folder
        self.models = {pair: Translator(path, own) for pair, (path, own) in models.items()}

    def warm_up(self, options: dict[str, Any]) -> None:
        """Build what takes seconds, before the first request needs it.

        Args:
            options: of requests that name none.

        Raises:
            UsageError: they are wrong, or do not fit a model.
        """
        for pair, translator in self.models.items():
            translator.generator(options)
            name = "-".join(pair)
            decoders = self.decoders[name] or [translator.usual("auto_fast")]
            logger.info("%s: %s", name, ", ".join(decoders))
        if self.detector is not None:
            logger.info("languages are detected")

    @property
    def names(self) -> list[str]:
        """The pairs, as models are called in answers."""
        return [f"{source}-{target}" for source, target in self.models]

    @cached_property
    def decoders(self) -> dict[str, list[str]]:
        """The lossless decoders that fit each model, by its name; they are built for that."""
        return {"-".join(pair): fitting(translator) for pair, translator in self.models.items()}

    def languages(self) -> list[dict[str, Any]]:
        """Return the source languages, each with its targets."""
        targets: dict[str, list[str]] = {}
        for source, target in self.models:
            targets.setdefault(source, []).append(target)
        return [
            {"code": code, "name": NAMES.get(code, code), "targets": sorted(others)}
            for code, others in sorted(targets.items())
        ]

    @cached_property
    def detector(self) -> Any:
        """Lingua's detector of the languages that it knows; None: it is not installed."""
        if importlib.util.find_spec("lingua") is None:
            return None
        from lingua import LanguageDetectorBuilder

        return LanguageDetectorBuilder.from_all_languages().with_low_accuracy_mode().build()

    def detect(self, text: str) -> list[dict[str, Any]]:
        """Return languages that a text may be in, the likeliest first.

        Raises:
            LookupError: there is no detector.
        """
        if self.detector is None:
            raise LookupError(NO_DETECTOR)
        guesses = self.detector.compute_language_confidence_values(text)
        likely = [guess for guess in guesses if guess.value >= 0.01] or guesses[:1]
        return [
            {
                "language": guess.language.iso_code_639_1.name.lower(),
                "confidence": 100 * guess.value,
            }
            for guess in likely
        ]

    def source_of(self, text: str, target: str) -> tuple[str, float | None]:
        """Return the language of a text that is to be translated, and how sure that is.

        Where one model alone has the target, its source is the answer, and None the sureness.

        Raises:
            LookupError: no model has the target, or the text's language, or there is no detector.
        """
        sources = [source for source, other in self.models if other == target]
        if not sources:
            allowed = ", ".join(sorted({other for _, other in self.models}))
            raise LookupError(f"target: {target!r} is not supported; allowed: {allowed}")
        if len(sources) == 1 and self.detector is None:
            return sources[0], None
        for guess in self.detect(text):
            if guess["language"] in sources:
                return guess["language"], guess["confidence"]
        if len(sources) == 1:
            return sources[0], None
        raise LookupError(f"source: the text is in none of {', '.join(sources)}")
