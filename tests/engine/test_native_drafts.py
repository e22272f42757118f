"""Drafts in one native call beside decoding/loop.py: the same tokens, scores and passes."""

import argparse
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import assisted, earlier
from support.builders import (
    Limits,
    batch,
    lend,
    lend_heads,
    task_for,
    tiny_blockwise,
    tiny_drafter,
    tiny_model,
)
from support.exact import Decoded, watched

from fairseq_paradec.decoding.loop import Drafter, Proposal, native_form, no_draft
from fairseq_paradec.engine.native import drafts
from fairseq_paradec.methods import base
from fairseq_paradec.methods.greedy import GreedyDrafter
from fairseq_paradec.methods.jacobi import FIRST_GUESSES

VARIANTS = ("default", "prenorm", "learned_positions", "no_final_norm", "separate")
LIMITS = (
    Limits(max_len_b=40),
    Limits(max_len_b=60, min_len=20, unkpen=0.7),
    Limits(max_len_b=3),
    Limits(max_len_b=1),
    Limits(max_len_a=0.8, max_len_b=2),
    Limits(max_len_b=9, min_len=6, temperature=1.7, suppressed=(5, 6, 9)),
)
BATCHES = ([9], [2], [5, 9, 2, 7, 3, 8, 3], [6] * 7, [*range(2, 34)] * 2)
PREFIXES = (None, [5], [5, 1, 7], [1, 8], [6, 2])


def jacobi(chance: random.Random) -> dict[str, Any]:
    """Flags of a Jacobi method."""
    flags: dict[str, Any] = {"decoding": chance.choice(["pj", "pgj", "hgj"])}
    flags["jacobi_init"] = chance.choice(FIRST_GUESSES)
    flags["jacobi_stop"] = chance.choice(["prefix", "unchanged"])
    if flags["decoding"] != "pj":
        flags["block_size"] = chance.choice([1, 2, 5, 50])
        flags["jacobi_window"] = chance.choice(["block", "sliding"])
    if flags["decoding"] == "hgj":
        flags["hybrid_length"] = chance.choice([1, 4, 7])
    else:
        flags["jacobi_length"] = chance.choice(["grow", "oracle"])
    if flags.get("jacobi_window") == "sliding":
        flags["jacobi_stop"] = "prefix"
        flags["adaptive_block"] = chance.choice([True, False])
    return flags


def drafted(chance: random.Random) -> dict[str, Any]:
    """Flags of a method whose drafts are written token by token."""
    flags: dict[str, Any] = {"decoding": chance.choice(["self_draft", "assisted"])}
    flags["block_size"] = chance.choice([1, 3, 12, 50])
    flags["adaptive_block"] = chance.choice([True, False])
    if flags["decoding"] == "assisted":
        flags["draft_confidence"] = chance.choice([0, 0.1, 0.6])
        flags["drafter_shortlist"] = chance.choice([None, 8])
    flags["drafter_dtype"] = chance.choice(["int8", "bf16", "int4"])
    return flags


def masked(chance: random.Random) -> dict[str, Any]:
    """Flags of a drafter that fills masks."""
    flags: dict[str, Any] = {"decoding": "gad", "block_size": chance.choice([1, 3, 5, 16])}
    flags["adaptive_block"] = chance.choice([True, False])
    flags["drafter_shortlist"] = chance.choice([None, 8])
    return flags


def headed(chance: random.Random) -> dict[str, Any]:
    """Flags of decoding with heads."""
    flags: dict[str, Any] = {"decoding": "blockwise", "block_size": chance.choice([1, 2, 5])}
    flags["adaptive_block"] = chance.choice([True, False])
    flags["drafter_shortlist"] = chance.choice([None, 8])
    flags["drafter_dtype"] = chance.choice([None, "int8", "bf16"])
    return flags


def heads_for(task: Any, variant: str, chance: random.Random) -> torch.nn.Module:
    """Heads of any kind: random ones, or identities, which are right where a token repeats."""
    model = tiny_blockwise(
        task,
        variant,
        torch.float32,
        block_size=5,
        head_layer=chance.choice(["dense", "per_head"]),
        train_first_head=chance.choice([True, False]),
        heads_see_token=chance.choice([True, False]),
    )
    heads: torch.nn.Module = model.block_heads
    with torch.no_grad():
        heads.outer.mul_(chance.choice([0.0, 0.1, 1.0]))
        heads.bias.mul_(0.1)
    return heads


class Drawn:
    """A model, a method's flags, a batch and its limits, drawn at random."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        variant = chance.choice(VARIANTS)
        self.task = task_for(variant)
        model = tiny_model(self.task, variant, torch.float32, max_target_positions=70)
        self.models = [model]
        kinds: list[Callable[[random.Random], dict[str, Any]]] = [
            jacobi,
            drafted,
            drafted,
            masked,
            headed,
            lambda _: {"decoding": "greedy"},
        ]
        self.flags = chance.choice(kinds)(chance)
        if variant == "separate" and self.flags.get("jacobi_init") == "source-copy":
            self.flags["jacobi_init"] = "bos"
        self.limits = chance.choice(LIMITS)
        drafter = assisted.noisy(model, chance.choice([0.0, 0.05, 1.0]))
        if self.flags["decoding"] == "gad":
            attention = chance.choice(["prefix_causal", "bidirectional"])
            verifier = model if chance.random() < 0.3 else None
            drafter = tiny_drafter(self.task, attention, torch.float32, verifier=verifier)
        elif self.flags["decoding"] == "assisted":
            drafter.decoder.max_target_positions = chance.choice([70, 9])
        for lasting in (model, drafter):
            lasting._is_generation_fast = True
        if self.flags["decoding"] in ("assisted", "gad"):
            self.flags["drafter_path"] = lend(self.task, model, drafter)
        if self.flags["decoding"] == "blockwise":
            heads = heads_for(self.task, variant, chance)
            self.flags["drafter_path"] = lend_heads(self.task, model, heads)
        self.sample = batch(self.task, chance.choice(BATCHES), seed)
        self.prefix = chance.choice(PREFIXES)
        if self.flags.get("jacobi_stop") != "unchanged" and chance.random() < 0.4:
            greedy = [found.row.tokens for found in self.decoded({"decoding": "greedy"})]
            self.sample["drafts"] = earlier.drafts(chance.choice(earlier.KINDS), greedy, 14)

    def decoded(self, flags: dict[str, Any] | None = None) -> list[Decoded]:
        """What a method makes of the batch, and its passes."""
        given = self.limits.flags() | {"engine": "native"} | (flags or self.flags)
        words = self.task.target_dictionary
        generator = self.task.build_generator(
            self.models,
            argparse.Namespace(**{name: flag for name, flag in given.items() if flag is not None}),
            extra_gen_cls_kwargs={"tokens_to_suppress": [words[t] for t in self.limits.suppressed]},
        )
        forced = None
        if self.prefix is not None:
            forced = torch.tensor([self.prefix] * len(self.sample["net_input"]["src_tokens"]))
        return watched(self.task, generator, self.models, self.sample, forced)


def facts(found: list[Decoded]) -> list[Any]:
    """All that a row has of its decoding."""
    return [(one.row.tokens, one.row.scores, one.row.passes) for one in found]


@pytest.mark.parametrize("seed", range(240))
def test_the_library_does_what_the_loop_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(seed)
    monkeypatch.setattr(drafts, "AT_MOST", seed % 2 * 50)  # a call for each round, or few
    calls: list[Drafter] = []

    def form(drafter: Drafter) -> Any:
        calls.append(drafter)
        return native_form(drafter)

    monkeypatch.setattr(base, "native_form", form)
    by_library = drawn.decoded()
    assert all(native_form(drafter) is not None for drafter in calls) and calls
    monkeypatch.setattr(base, "native_form", lambda drafter: None)
    assert facts(by_library) == facts(drawn.decoded())


def test_a_drafter_of_others_is_asked() -> None:
    """One that inherits a known drafter's description, and drafts otherwise."""

    class Other(GreedyDrafter):
        def propose(self, rows: Any) -> Proposal:
            return no_draft(len(rows))

    assert native_form(GreedyDrafter()) is not None
    assert native_form(Other()) is None


def test_memory_that_is_short_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(0)
    real = drafts.library()

    class Short:
        paradec_drafts_new = staticmethod(lambda *_: None)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    monkeypatch.setattr(drafts, "library", Short)
    with pytest.raises(MemoryError, match="no room for a native loop"):
        drawn.decoded()
