"""Draft trees on one sentence (Miao et al. 2024; Cai et al. 2024). Slow.

A tree is a set of paths that holds the beginnings of each; every path is verified by full forwards.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from .gad import Pass, Result, Verify, passes
from .greedy import Rules

Path = tuple[int, ...]
#: y, a path behind it -> the drafter's log-probabilities of the token after the path, V.
Offer = Callable[[list[int], Path], Tensor]

CHOICES = 4  # tokens that a drafter offers behind a path
FRONT = 6  # an autoregressive drafter goes on from at most N / 6 paths of a length


def likeliest(offer: Offer, y: list[int], rules: Rules, depth: int, most: int) -> dict[Path, float]:
    """The `most` likeliest paths of predictions that do not depend on each other."""
    found: dict[Path, float] = {(): 0.0}
    for length in range(depth):
        # All beginnings of a path among the likeliest are among them.
        for path in [p for p in found if len(p) == length and rules.eos not in p]:
            _extend(found, path, offer, y, rules, None if path else y)
        found = _best(found, most)
    return found


def grown(
    offer: Offer, y: list[int], rules: Rules, depth: int, most: int, least: float = 0.0
) -> dict[Path, float]:
    """The likeliest paths that an autoregressive drafter finds, level by level."""
    found: dict[Path, float] = {(): 0.0}
    front = [()] if depth else []
    for length in range(1, depth + 1):
        for path in front:
            _extend(found, path, offer, y, rules, [*y, *path])
        best = [p for p in _best(found, most) if len(p) == length and rules.eos not in p]
        front = [p for p in best if 2.718281828459045 ** found[p] >= least][: max(1, most // FRONT)]
    return _best(found, most)


def _extend(
    found: dict[Path, float],
    path: Path,
    offer: Offer,
    y: list[int],
    rules: Rules,
    text: Sequence[int] | None,
) -> None:
    scores = rules.apply(offer(y, path), len(y) + len(path), text).tolist()
    for token in sorted(range(len(scores)), key=lambda t: -scores[t])[:CHOICES]:
        if scores[token] > float("-inf"):
            found[(*path, token)] = found[path] + min(scores[token], 0.0)  # <unk>'s penalty


def _best(found: dict[Path, float], most: int) -> dict[Path, float]:
    """The empty path and the `most` best others, the best first."""
    rest = sorted((p for p in found if p), key=lambda p: -found[p])[:most]
    return {(): 0.0} | {path: found[path] for path in rest}


def decode(
    verify: Verify,
    draft: Callable[[list[int], int], dict[Path, float]],
    rules: Rules,
    accept_topk: int = 1,
    accept_margin: float = 0.0,
) -> Result:
    """Decode; `draft(y, depth)` makes a tree of at most that depth."""
    result = Result()
    y = result.tokens
    while rules.eos not in y:
        start = len(y)
        tree = draft(y, rules.max_len - start)
        accepted: dict[Path, list[float]] = {(): []}
        for path in sorted(tree, key=len):
            if path and path[:-1] in accepted:
                text = [*y, *path[:-1]]
                scores = rules.apply(verify(text)[-1], len(text), text)
                if passes(scores, path[-1], accept_topk, accept_margin):
                    accepted[path] = [*accepted[path[:-1]], float(scores[path[-1]])]
        kept = max(accepted, key=lambda p: (len(p), sum(accepted[p])))
        chain = kept
        while children := [p for p in tree if p[:-1] == chain and p]:
            chain = children[0]
        result.scores += accepted[kept]
        y += kept
        if rules.eos not in y:
            scores = rules.apply(verify(y)[-1], len(y), y)
            result.scores.append(float(scores.max()))
            y.append(int(scores.argmax()))
        result.passes.append(Pass(start, chain, len(kept)))
    return result
