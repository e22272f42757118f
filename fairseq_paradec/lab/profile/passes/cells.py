"""What is timed: calls in turn, whole searches, products of matrices."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ....decoding.provenance import NATIVE
from ....engine.native.stack import FORMS, NativeMap
from ....row import Row
from ....token_rules import TokenRules
from ...measure.clock import Clock, Parts
from .pieces import DTYPES, Call

WARM_UP = 3  # untimed calls before each cell's timed ones
SLOW = 4  # whole searches and large tensors: one repetition for so many of a pass

# Of a search: what a clock tells apart.
OWN_PARTS: Parts = {
    "encoder": ("scorer", ("encode",)),
    "passes": ("scorer", ("step", "choose", "log_probs", "write")),
}
STOCK_PARTS: Parts = {"encoder": ("model", ("forward_encoder",))}


class Cell:
    """Calls that are timed in turn, so that each finds the caches as the others leave them.

    Args:
        whole: the call whose time is the cell's.
        prepare: to be called before every round's repetitions.
        slow: one repetition in place of SLOW.
        pieces: what the call reads and computes.
        alone: by a piece's name, a call that runs it alone.
    """

    def __init__(
        self,
        whole: Call,
        prepare: Call | None = None,
        slow: bool = False,
        pieces: Sequence[dict[str, Any]] = (),
        alone: Mapping[str, Call] | None = None,
    ) -> None:
        self.calls = {"seconds": whole} | dict(alone or {})
        self.prepare, self.slow, self.pieces = prepare, slow, pieces
        self.rounds: dict[str, list[list[float]]] = {}

    def once(self) -> dict[str, float]:
        """Run every call; return their seconds."""
        return {name: seconds_of(call) for name, call in self.calls.items()}

    def run(self, wanted: int) -> dict[str, list[float]]:
        """Time one round; return the seconds of each call."""
        if self.prepare is not None:
            self.prepare()
        for _ in range(1 if self.slow else WARM_UP):
            self.once()
        repetitions = -(-wanted // SLOW) if self.slow else wanted
        timed = [self.once() for _ in range(repetitions)]
        return {name: [round(seconds[name], 8) for seconds in timed] for name in timed[0]}

    def keep(self, by_round: Sequence[Mapping[str, list[float]]]) -> None:
        """Keep what ``run`` returned in each round."""
        self.rounds = {name: [timed[name] for timed in by_round] for name in by_round[0]}

    def report(self) -> dict[str, Any]:
        """Return the samples, as the document has them."""
        samples: dict[str, Any] = {"seconds": self.rounds["seconds"]}
        if self.pieces:
            own = {name: {"seconds": rounds} for name, rounds in self.rounds.items()}
            samples["pieces"] = [piece | own.get(piece["name"], {}) for piece in self.pieces]
        return samples


class Search(Cell):
    """A whole search, its encoder timed apart; of this package's also what passes leave out."""

    def __init__(self, task: Any, generator: Any, model: Any, sample: dict[str, Any]) -> None:
        super().__init__(self._search, slow=True)
        self._own = hasattr(generator, "scorer")
        timed = (generator, OWN_PARTS) if self._own else (generator.search, STOCK_PARTS)
        self._clock = Clock(*timed)
        self._work = lambda: task.inference_step(generator, [model], sample)
        self.passes = 0

    def _search(self) -> None:
        self._clock.restart()
        self.passes = self._work()[0][0]["steps"]

    def once(self) -> dict[str, float]:
        """Search; return the seconds of the encoder, of the rest, and of the rest's loop."""
        whole = seconds_of(self._search)
        spent = self._clock.seconds
        rest = whole - spent["encoder"]
        seconds = {"seconds": rest, "encoder_seconds": spent["encoder"]}
        return seconds | ({"loop_seconds": rest - spent["passes"]} if self._own else {})

    def report(self) -> dict[str, Any]:
        """Return the samples, as the document has them."""
        return {"passes": self.passes, **self.rounds}


class Steps(Search):
    """CTranslate2's greedy search: outputs of two lengths, which differ by the steps' time."""

    def __init__(
        self, translator: Any, sources: Sequence[Sequence[str]], short: int, long: int
    ) -> None:
        def translate(length: int) -> None:
            translator.translate_batch(
                sources, beam_size=1, min_decoding_length=length, max_decoding_length=length
            )

        Cell.__init__(self, partial(translate, long), slow=True)
        self.passes, self._short = long - short, short
        self._lengths = [partial(translate, length) for length in (short, long)]

    def once(self) -> dict[str, float]:
        """Search twice; return the seconds of the steps between, and of all but the steps."""
        short, long = map(seconds_of, self._lengths)
        steps = max(0.0, long - short)
        rest = max(0.0, short - self._short * steps / self.passes)
        return {"seconds": steps, "encoder_seconds": rest}


def seconds_of(call: Call) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def pass_call(scorer: Any, tokens: np.ndarray, rules: TokenRules, rows: Sequence[Row]) -> Call:
    """Return a decoder's pass, with the choice of a token at every position."""
    return lambda: scorer.choose(scorer.step(tokens), rules.at(rows))


def product_call(engine: str, dtype: str, size: int) -> Call | None:
    """Return a product of two square matrices; None if the engine has none in this dtype here."""
    left, right = torch.rand(2, size, size)
    if engine == NATIVE:
        linear = NativeMap(left.numpy(), None, dtype) if dtype in FORMS else None
        return None if linear is None else partial(linear, right.numpy())
    if dtype == "int8":
        first, second = ((100 * matrix).to(torch.int8) for matrix in (left, right))

        def call() -> object:
            return torch._int_mm(first, second)
    else:
        third, fourth = (matrix.to(DTYPES[dtype]) for matrix in (left, right))

        def call() -> object:
            return third @ fourth

    try:
        call()
    except (RuntimeError, AttributeError):
        return None
    return call
