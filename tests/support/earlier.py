"""Earlier outputs as drafts: what they are, and their slow twin."""

from collections.abc import Sequence
from typing import Any

import torch
from reference import assisted as drafting
from reference import gad
from reference.given import given
from reference.greedy import Rules

from support.gad import lots

#: What is done to greedy's outputs; each row of "near" and "mixed" is another case.
KINDS = ("perfect", "begun", "near", "random", "wrong", "mixed", "empty")


def _near(tokens: list[int], row: int) -> list[int]:
    """One token replaced, lost, or one more."""
    at = len(tokens) // 2
    return [*tokens[:at], *([] if row % 3 == 1 else [5]), *tokens[at + (row % 3 < 2) :]]


def drafts(kind: str, outputs: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """The drafts of a batch, without `</s>`, from greedy's outputs; `size`: the dictionary's."""
    told = [list(one[:-1]) for one in outputs]
    made = []
    for row, tokens in enumerate(told):
        draws = torch.randint(4, size, (7,), generator=lots(kind, row)).tolist()
        kinds = {
            "perfect": tokens,
            "begun": tokens[: len(tokens) // 2],
            "near": _near(tokens, row),
            "random": draws,
            "wrong": [4 + (t + 1) % (size - 4) for t in tokens],
            "empty": [],
        }
        mixed = ("perfect", "empty", "near", "random")[row % 4]
        made.append(kinds[mixed if kind == "mixed" else kind])
    return made


def otherwise(setting: Any, source: Sequence[int], rules: Rules) -> Any:
    """What drafts where an earlier output gives nothing, as a function of the tokens."""
    flags = dict(setting.case.flags)
    if flags["decoding"] == "greedy":
        return lambda y: []
    itself = flags["decoding"] == "self_draft"
    size = flags.get("block_size", 20 if itself else 12)
    sure = flags.get("draft_confidence", 0 if itself else 0.4)
    say = gad.verifier([setting.models[0] if itself else setting.given], source, rules)
    return lambda y: drafting.said(say, rules, y, size, sure)


def twin(setting: Any, row: int, source: Sequence[int], prefix: Sequence[int]) -> Any:
    """What the algorithm makes of one sentence of a conformance.Setting."""
    rules = setting.rules(source, prefix)
    verify = gad.verifier(setting.models, source, rules)
    earlier = setting.sample["drafts"][row]
    return given(verify, earlier, rules, otherwise(setting, source, rules))
