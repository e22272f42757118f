"""A batch of sentences as decoders take it, and who is told of it while it is decoded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import option_error
from .records import PassRecord

Numbers = npt.NDArray[np.int64]


class AsCTranslate2(NamedTuple):
    """How a sentence's beam ends by CTranslate2's rules."""

    hypotheses: int  # so many are asked for: without a length penalty it ends with its best one
    enough: int  # else it ends when so many are finished: the beam times ``patience``


@dataclass(frozen=True)
class Hooks:
    """What is called while a batch is decoded. An error that a hook raises ends the batch.

    Attributes:
        on_pass: for each sentence who is told its passes so far, after each of them if the method
            is the loop, and at the end; None: nobody. Empty: nobody for any.
        on_finish: for each sentence who may be told its hypothesis as soon as it is finished, while
            others are still written; None: nobody. Empty: nobody for any.
        admit: is asked for up to so many sentences that enter the batch where others have left it,
            if the method can; None: none do. It gives them as a batch with ``on_finish``, by which
            alone their hypotheses are told, or None.
    """

    on_pass: Sequence[Callable[[Sequence[PassRecord]], None] | None] = ()
    on_finish: Sequence[Callable[[dict[str, Any]], None] | None] = ()
    admit: "Callable[[int], Batch | None] | None" = None

    def take(self, rows: Sequence[int]) -> "Hooks":
        """Return the hooks of some sentences, in the order of ``rows``."""
        return replace(
            self,
            on_pass=[self.on_pass[row] for row in rows] if self.on_pass else (),
            on_finish=[self.on_finish[row] for row in rows] if self.on_finish else (),
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Sentences that are decoded together.

    Attributes:
        tokens: of the sources, B×S, with ``</s>``, padded on either side.
        ids: B numbers by which logs and records name the sentences; None: they have none.
        drafts: for each sentence an earlier output of it, or of one that is nearly the same; an
            empty one: there is none. Empty: there is none for any.
        prefix: tokens that the outputs begin with, B×P, padded at the end; None: any.
        start: the decoder's first input; None: ``</s>``.
        as_ctranslate2: how a beam ends by the rules of CTranslate2, whose log-probabilities are of
            the tokens that limits allow, and whose beams keep all that a step ends; None: the rules
            are fairseq's.
        constraints: fairseq's, B×C, which its own search alone takes; None: there are none.
        hooks: what is called while the batch is decoded.
        pad: the padding symbol; it has this number in all of fairseq's dictionaries.
    """

    tokens: Numbers
    ids: Numbers | None = None
    drafts: Sequence[Sequence[int]] = ()
    prefix: Numbers | None = None
    start: int | None = None
    as_ctranslate2: AsCTranslate2 | None = None
    constraints: Any = None
    hooks: Hooks = field(default_factory=Hooks)
    pad: int = 1

    def __post_init__(self) -> None:
        """Refuse parts that do not fit each other.

        Raises:
            UsageError: an array has no whole numbers, or other dimensions; a part is of more or
                fewer sentences than ``tokens``.
        """
        for name, array, shape in (("tokens", self.tokens, "BxS"), ("prefix", self.prefix, "BxP")):
            if array is None and name == "prefix":
                continue
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim != 2:
                raise option_error(f"Batch: {name}", array, f"an array of whole numbers, {shape}")
        parts: dict[str, Any] = {"ids": self.ids, "drafts": self.drafts, "prefix": self.prefix}
        parts |= {"on_pass": self.hooks.on_pass, "on_finish": self.hooks.on_finish}
        for name, part in parts.items():
            if part is None or (name != "prefix" and len(part) == 0):
                continue
            if len(part) != len(self):
                allowed = f"{len(self)}, one for each row of tokens"
                raise option_error(f"Batch: {name}", len(part), allowed)

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.tokens)

    @property
    def lengths(self) -> Numbers:
        """Tokens of each sentence, without padding: B."""
        return (self.tokens != self.pad).sum(1)

    @property
    def numbers(self) -> list[int | None]:
        """``ids`` as a list; None for each sentence if there are none."""
        return [None] * len(self) if self.ids is None else self.ids.tolist()

    def take(self, rows: Sequence[int]) -> "Batch":
        """Return a batch of some rows, in that order, without columns of padding only."""
        index = list(rows)
        tokens = self.tokens[index]
        return replace(
            self,
            tokens=tokens[:, (tokens != self.pad).any(0)],
            ids=None if self.ids is None else self.ids[index],
            drafts=[self.drafts[row] for row in index] if self.drafts else (),
            prefix=None if self.prefix is None else self.prefix[index],
            constraints=None if self.constraints is None else self.constraints[index],
            hooks=self.hooks.take(index),
        )
