"""What is timed: calls in turn, whole searches, products of matrices."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ....decoding.provenance import NATIVE
from ....engine.native.stack import FORMS, NativeMap
from ....row import Row
from ....token_rules import TokenRules
from ..clock import Clock, Parts
from ..pieces import DTYPES, Call

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
        calls: by name.
        prepare: to be called before every round's repetitions.
        slow: one repetition in place of SLOW.
    """

    def __init__(
        self, calls: Mapping[str, Call], prepare: Call | None = None, slow: bool = False
    ) -> None:
        self.calls, self.prepare, self.slow = dict(calls), prepare, slow
        self.rounds: dict[str, list[list[float]]] = {}

    def once(self) -> dict[str, float]:
        """Run every call; return their seconds."""
        seconds = {}
        for name, call in self.calls.items():
            begin = time.perf_counter()
            call()
            seconds[name] = time.perf_counter() - begin
        return seconds

    def repetitions(self, wanted: int) -> int:
        """Return how often it is timed in a round."""
        return -(-wanted // SLOW) if self.slow else wanted

    def run(self, wanted: int) -> dict[str, list[float]]:
        """Time one round; return the seconds of each call."""
        if self.prepare is not None:
            self.prepare()
        for _ in range(1 if self.slow else WARM_UP):
            self.once()
        found = [self.once() for _ in range(self.repetitions(wanted))]
        return {name: [round(one[name], 8) for one in found] for name in found[0]}

    def keep(self, found: Mapping[str, list[float]]) -> None:
        """Keep a round's seconds."""
        for name, seconds in found.items():
            self.rounds.setdefault(name, []).append(seconds)


class Search(Cell):
    """A whole search, its encoder timed apart; of this package's also what passes leave out."""

    def __init__(self, task: Any, generator: Any, model: Any, sample: dict[str, Any]) -> None:
        super().__init__({}, slow=True)
        self._own = hasattr(generator, "scorer")
        timed = (generator, OWN_PARTS) if self._own else (generator.search, STOCK_PARTS)
        self._clock = Clock(*timed)
        self._work = lambda: task.inference_step(generator, [model], sample)
        self.passes = 0

    def once(self) -> dict[str, float]:
        """Search; return the seconds of the encoder, of the rest, and of the rest's loop."""
        self._clock.restart()
        begin = time.perf_counter()
        hypos = self._work()
        whole = time.perf_counter() - begin
        self.passes = hypos[0][0]["steps"]
        spent = self._clock.seconds
        seconds = {"encoder": spent["encoder"], "search": whole - spent["encoder"]}
        if self._own:
            seconds["loop"] = seconds["search"] - spent["passes"]
        return seconds


class Steps(Cell):
    """CTranslate2's greedy search: outputs of two lengths, which differ by the steps' time."""

    def __init__(
        self, translator: Any, sources: Sequence[Sequence[str]], short: int, long: int
    ) -> None:
        super().__init__({}, slow=True)
        self.passes, self._short = long - short, short

        def translate(length: int) -> None:
            translator.translate_batch(
                sources, beam_size=1, min_decoding_length=length, max_decoding_length=length
            )

        self._calls = [partial(translate, length) for length in (short, long)]

    def once(self) -> dict[str, float]:
        """Search twice; return the seconds of the steps between, and of all but the steps."""
        seconds = []
        for call in self._calls:
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        steps = max(0.0, seconds[1] - seconds[0])
        rest = max(0.0, seconds[0] - self._short * steps / self.passes)
        return {"encoder": rest, "search": steps}


def pass_call(scorer: Any, tokens: Tensor, rules: TokenRules, rows: Sequence[Row]) -> Call:
    """Return a decoder's pass, with the choice of a token at every position."""
    return lambda: scorer.choose(scorer.step(tokens), rules.at(rows))


def product_call(engine: str, dtype: str, size: int) -> Call | None:
    """Return a product of two square matrices; None if the engine has none in this dtype here."""
    left, right = torch.rand(2, size, size)
    if engine == NATIVE:
        linear = NativeMap(left, None, dtype) if dtype in FORMS else None
        return None if linear is None else lambda: linear(right)
    if dtype == "int8":
        first, second = ((100 * one).to(torch.int8) for one in (left, right))

        def call() -> object:
            return torch._int_mm(first, second)
    else:
        third, fourth = (one.to(DTYPES[dtype]) for one in (left, right))

        def call() -> object:
            return third @ fourth

    try:
        call()
    except (RuntimeError, AttributeError):
        return None
    return call
