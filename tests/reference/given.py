"""Greedy search with an earlier output as the draft, on one sentence. Slow.

No cache, no batch: a full forward of the verifier for every pass. The draft is the earlier output
from where it goes on behind the last two tokens; where it does not, another drafter is asked.
"""

from collections.abc import Callable, Sequence

from .gad import Result, Verify, accept
from .greedy import Rules


def given(
    verify: Verify,
    earlier: Sequence[int],
    rules: Rules,
    otherwise: Callable[[list[int]], list[int]],
) -> Result:
    """Decode; `otherwise` drafts behind tokens where `earlier`, without `</s>`, gives nothing."""
    result = Result()
    y = result.tokens
    whole = [*earlier, rules.eos] if earlier else []
    shift = 0  # how much further on in the earlier output we are than in ours
    while rules.eos not in y:
        best = None
        for goes_on in range(len(whole)):
            seen = whole[:goes_on]
            fits = seen[-2:] == y[-2:] and len(seen) >= 2 if y else goes_on == 0
            far = abs(goes_on - (len(y) + shift))
            if fits and (best is None or far <= best[0]):
                best = (far, goes_on)
        drafted = []
        if best is not None:
            shift = best[1] - len(y)
            drafted = whole[best[1] :][: rules.max_len - len(y)]
        if not drafted:
            drafted = otherwise(y)
        accept(result, verify, drafted, rules, 1, 0.0)
    return result
