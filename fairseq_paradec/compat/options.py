"""CTranslate2's options of a translation: their names, defaults and meanings in this package."""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..config import LARGEST
from ..errors import excludes, option_error

#: CTranslate2's types of computing, and this package's.
COMPUTE_TYPES = {
    "float32": "fp32",
    "int8": "int8",
    "int8_float32": "int8",
    "bfloat16": "bf16",
    "int8_bfloat16": "int8",
}
#: Options that no decoder here has, and the only values that mean nothing.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "coverage_penalty": ((0,), "0"),
    "end_token": ((None, "</s>", ["</s>"]), "None, or </s>"),
    "prefix_bias_beta": ((0,), "0"),
    "use_vmap": ((False,), "False"),
    "return_logits_vocab": ((False,), "False"),
    "return_alternatives": ((False,), "False"),
    "min_alternative_expansion_prob": ((0,), "0"),
    "callback": ((None,), "None"),
}
#: Whole numbers, and the least of each.
_LEAST = {
    "beam_size": 1,
    "num_hypotheses": 1,
    "no_repeat_ngram_size": 0,
    "max_input_length": 0,
    "max_decoding_length": 1,
    "min_decoding_length": 0,
    "sampling_topk": 0,
}


#: Options that are numbers, whole or not.
_NUMBERS = ("patience", "length_penalty", "repetition_penalty", "sampling_topp")


@dataclass(frozen=True)
class Options:
    """How ``translate_batch`` translates; names and defaults are CTranslate2's.

    Raises:
        UsageError: a value is wrong, contradicts another, or is of an option that is not known
            here.
    """

    beam_size: int = 2
    patience: float = 1
    num_hypotheses: int = 1
    length_penalty: float = 1
    coverage_penalty: float = 0
    repetition_penalty: float = 1
    no_repeat_ngram_size: int = 0
    disable_unk: bool = False
    suppress_sequences: Any = None
    end_token: Any = None
    return_end_token: bool = False
    prefix_bias_beta: float = 0
    max_input_length: int = 1024
    max_decoding_length: int = 256
    min_decoding_length: int = 1
    use_vmap: bool = False
    return_scores: bool = False
    return_logits_vocab: bool = False
    return_attention: bool = False
    return_alternatives: bool = False
    min_alternative_expansion_prob: float = 0
    sampling_topk: int = 1
    sampling_topp: float = 1
    sampling_temperature: float = 1
    replace_unknowns: bool = False
    callback: Any = None

    def __post_init__(self) -> None:
        for name, (idle, allowed) in _REFUSED.items():
            if (value := getattr(self, name)) not in idle:
                raise option_error(name, value, f"{allowed}; nothing else is known here")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= LARGEST:
                raise option_error(name, value, f"a whole number from {least} to {LARGEST}")
        if self.min_decoding_length > self.max_decoding_length:
            allowed = f"at most max_decoding_length, {self.max_decoding_length}"
            raise option_error("min_decoding_length", self.min_decoding_length, allowed)
        for name in _NUMBERS:
            if not isinstance(getattr(self, name), int | float | np.number):
                raise option_error(name, getattr(self, name), "a number")
        if not 0 < self.patience < math.inf:
            raise option_error("patience", self.patience, "a number above 0")
        if self.num_hypotheses > self.enough and not (self.draws and self.beam_size == 1):
            allowed = f"at most beam_size * patience, {self.enough}"
            raise option_error("num_hypotheses", self.num_hypotheses, allowed)
        if not 0 < self.sampling_topp <= 1:
            raise option_error("sampling_topp", self.sampling_topp, "a number above 0, up to 1")
        if self.draws and self.beam_size > 1:
            raise excludes("sampling_topk", self.sampling_topk, f"beam_size {self.beam_size}")

    @property
    def draws(self) -> bool:
        """Whether outputs are drawn."""
        return self.sampling_topk != 1 and self.sampling_temperature != 0

    @property
    def _sequences(self) -> str:
        """The words that are not written one behind the other, as decoders take them.

        Raises:
            UsageError: they are no lists of words.
        """
        lines = []
        for words in self.suppress_sequences or ():
            if isinstance(words, str) or not all(
                isinstance(w, str) and w.split() == [w] for w in words
            ):
                raise option_error("suppress_sequences", words, "lists of words")
            lines.append(" ".join(words))
        return "\n".join(lines)

    @property
    def enough(self) -> int:
        """How many finished hypotheses end the search of a text."""
        return math.floor(min(float(self.beam_size * np.float32(self.patience)) + 0.5, LARGEST))

    def of_decoding(self) -> dict[str, Any]:
        """Return what is given to this package's decoders, but for which one decodes."""
        options: dict[str, Any] = {
            "max_len_b": self.max_decoding_length,
            "min_len": self.min_decoding_length,
            "lenpen": float(self.length_penalty),
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "repetition_penalty": float(self.repetition_penalty),
            "suppress_sequences": self._sequences or None,
        }
        if self.disable_unk:
            options["unkpen"] = math.inf
        if self.beam_size > 1:
            options["beam"] = self.beam_size
        if self.draws:
            options |= {"sampling": True, "temperature": float(self.sampling_temperature)}
            options["sampling_topk"] = self.sampling_topk or -1
            if self.sampling_topp < 1:
                options["sampling_topp"] = float(self.sampling_topp)
        return options


NAMES = frozenset(field.name for field in fields(Options))
