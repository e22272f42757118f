"""The candidates of auto_fast: those of the registry, and fairseq's own search."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...config import RULE_OPTIONS, SEARCH_OPTIONS, DecodingConfig, flag
from ...engine.native.library import halves
from ...registry import METHODS
from ...variants import Offer

GREEDY = "greedy"
#: Steps that drafts of a beam have; see ``self_draft`` with ``--beam``.
DEPTHS = (4, 8, 12)

# Quality, best first.
BEAM, LOSSLESS, RELAXED = range(3)


class Drafter(NamedTuple):
    """An available drafter: the block size of its training, and its path; None: in --path."""

    block_size: int
    path: str | None


@dataclass(frozen=True)
class Candidate:
    """One decoder with its settings."""

    label: str  # its flags, without the drafter's path
    config: DecodingConfig  # the options of its generator
    quality: int = LOSSLESS  # ``BEAM``, ``LOSSLESS`` or ``RELAXED``


def candidates(
    config: DecodingConfig, drafters: Mapping[str, Drafter], vocabulary: int, beam: int, model: Any
) -> list[Candidate]:
    """List the candidates of auto_fast.

    Args:
        config: auto_fast's own options.
        drafters: the available drafters by kind; see the registry.
        vocabulary: the target dictionary's size.
        beam: fairseq's ``--beam``; with a latency budget its search is a candidate.
        model: the model, or the first of an ensemble.
    """
    with_budget = config.latency_budget_ms is not None
    fewer = config.engine != "torch" and halves()
    limits = {name: getattr(config, name) for name in (*SEARCH_OPTIONS, *RULE_OPTIONS)}
    offered = []
    if with_budget:
        offered.append(Candidate(f"beam --beam {beam}", DecodingConfig("beam", **limits), BEAM))
    for name, method in METHODS.items():
        if method.candidates is None or method.drafter not in (None, *drafters):
            continue
        block, path = drafters.get(method.drafter or "", Drafter(0, None))
        offer = Offer(block, vocabulary, config.engine_dtype, fewer, model)
        base = DecodingConfig(**{"decoding": name, **method.defaults, **limits})
        base = replace(
            base, beam=1, drafter_path=path, engine=config.engine, engine_dtype=config.engine_dtype
        )
        for flags in method.candidates(offer):
            words = [
                flag(n) if value is True else f"{flag(n)} {value}" for n, value in flags.items()
            ]
            label, given = " ".join((name, *words)), replace(base, **flags, given=frozenset(flags))
            if not method.is_lossless(given):
                if with_budget:
                    offered.append(Candidate(label, given, RELAXED))
                continue
            offered.append(Candidate(label, given))
    return offered


def beam_candidates(
    config: DecodingConfig, drafters: Mapping[str, Drafter], model: Any
) -> list[Candidate]:
    """List the candidates of auto_fast with ``--beam``: first the plain search, then others."""
    limits = {name: getattr(config, name) for name in (*SEARCH_OPTIONS, *RULE_OPTIONS)}
    limits |= {"engine": config.engine, "engine_dtype": config.engine_dtype}
    plain = DecodingConfig("multiword_beam", **limits)
    fewer = config.engine != "torch" and halves()
    offered = [Candidate(f"multiword_beam --beam {config.beam}", plain)]
    for name, method in METHODS.items():
        if method.candidates is None or not method.beams:
            continue
        if method.drafter not in (None, *drafters):
            continue
        _, path = drafters.get(method.drafter or "", Drafter(0, None))
        if not method.candidates(Offer(0, 0, config.engine_dtype, fewer, model)):
            continue
        for depth in DEPTHS:
            label = f"{name} --beam {config.beam} --block-size {depth}"
            options: dict[str, Any] = {**method.defaults, **limits, "block_size": depth}
            offered.append(Candidate(label, DecodingConfig(name, drafter_path=path, **options)))
    return offered
