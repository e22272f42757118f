"""What auto_fast chooses among."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...options import DecodingConfig, flag
from ..registry import METHODS

GREEDY = "greedy"
# A drafter's logits over fewer words than twice this are cheap anyway.
SHORTLIST = 2000

# Quality, best first.
BEAM, LOSSLESS, RELAXED = range(3)


@dataclass(frozen=True)
class Candidate:
    """One way to decode.

    Attributes:
        label: its flags as a user types them, but for the drafter's path.
        config: of its generator.
        quality: ``BEAM``, ``LOSSLESS`` or ``RELAXED``.
    """

    label: str
    config: DecodingConfig
    quality: int = LOSSLESS


def candidates(
    config: DecodingConfig,
    blocks: dict[str, int | None],
    drafter_paths: dict[str, str | None],
    vocabulary: int,
    beam: int,
) -> list[Candidate]:
    """List what auto_fast may choose among.

    Args:
        config: auto_fast's own.
        blocks: by drafting method, the block size of its drafter's training; None: no drafter.
        drafter_paths: by drafting method, its ``drafter_path``.
        vocabulary: the target dictionary's size.
        beam: fairseq's ``--beam``; with a latency budget, that search is one of them.
    """
    with_budget = config.latency_budget_ms is not None
    sliding: dict[str, Any] = {"jacobi_window": "sliding"}
    ways: list[tuple[int, str, dict[str, Any]]] = [(LOSSLESS, GREEDY, {})]
    if with_budget:
        ways.insert(0, (BEAM, "beam", {}))
    for more in ({"block_size": 3}, {"block_size": 5}, {"block_size": 5, "adaptive_block": True}):
        ways.append((LOSSLESS, "hgj", more | sliding))
    for decoding, size in blocks.items():
        if size is None:
            continue
        whole = {"block_size": size}
        ways.append((LOSSLESS, decoding, whole))
        if 2 <= size // 2 < size:
            ways.append((LOSSLESS, decoding, {"block_size": size // 2}))
        ways.append((LOSSLESS, decoding, whole | {"adaptive_block": True}))
        if vocabulary > 2 * SHORTLIST:
            short = {"adaptive_block": True, "drafter_shortlist": SHORTLIST}
            ways.append((LOSSLESS, decoding, whole | short))
        if decoding == "gad" and with_budget:
            for topk, margin in ((3, 1.0), (5, 3.0)):
                rule = {"accept_topk": topk, "accept_margin": margin}
                ways.append((RELAXED, "gad_pp", whole | rule))
    found = []
    for quality, decoding, flags in ways:
        words = [f"--beam {beam}"] if decoding == "beam" else []
        words += [flag(n) if value is True else f"{flag(n)} {value}" for n, value in flags.items()]
        label = " ".join((decoding, *words))
        if decoding == "beam":
            found.append(Candidate(label, DecodingConfig(decoding="beam"), quality))
            continue
        path = drafter_paths.get("gad" if decoding == "gad_pp" else decoding)
        given = replace(
            DecodingConfig(**{"decoding": decoding, **METHODS[decoding].defaults}),
            drafter_path=path, engine=config.engine, engine_dtype=config.engine_dtype, **flags,
        )  # fmt: skip
        found.append(Candidate(label, given, quality))
        if config.compile and quality == LOSSLESS:
            found.append(Candidate(f"{label} --compile", replace(given, compile=True)))
    return found
