"""The slow twin of drafts of trees, for the drafter of a conformance.Setting."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from reference import gad as paper
from reference import trees

from support import blockwise, gad
from support.builders import DRAFTER_BLOCK_SIZE


def twin(setting: Any, source: Sequence[int], prefix: Sequence[int]) -> Any:
    """What the algorithm makes of one sentence."""
    flags, rules = dict(setting.case.flags), setting.rules(source, prefix)
    verify = paper.verifier(setting.models, source, rules)
    most, family = flags["draft_tree"], setting.case.family
    usual = {"gad": DRAFTER_BLOCK_SIZE, "assisted": 12}
    if family == "assisted":
        helper = paper.verifier([setting.given], source, rules)

        def offer(y: list[int], path: trees.Path) -> torch.Tensor:
            return helper([*y, *path])[-1]

        size = flags.get("block_size", usual[family])
        least = flags.get("draft_confidence", 0.0)
        grow = functools.partial(trees.grown, least=least)
    elif family == "gad":
        size = flags.get("block_size", usual[family])
        said = gad.said_by(setting.given, tuple(source), size, setting.script)

        def offer(y: list[int], path: trees.Path) -> torch.Tensor:
            return (said(y)[len(path)] / rules.temperature).log_softmax(dim=-1)

        grow = trees.likeliest
    else:
        network = blockwise.network(setting.given, tuple(source))
        size = setting.given.heads.block_size - 1

        def offer(y: list[int], path: trees.Path) -> torch.Tensor:
            state = network.states(y[:-1])[-1]
            return network.log_probs(state, 1 + len(path), rules.temperature)

        grow = trees.likeliest

    def draft(y: list[int], room: int) -> dict[trees.Path, float]:
        if family == "blockwise" and not y:  # no state yet
            return {(): 0.0}
        return grow(offer, y, rules, min(size, room), most)

    relaxed = {name: flags[name] for name in ("accept_topk", "accept_margin") if name in flags}
    if relaxed:
        relaxed.setdefault("accept_margin", float("inf") if family == "blockwise" else 1.0)
    return trees.decode(verify, draft, rules, **relaxed)
