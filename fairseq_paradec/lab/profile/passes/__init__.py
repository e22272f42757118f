"""``profile passes``: what a pass costs here, and how far that is from the least."""

from collections.abc import Mapping
from typing import Any

import torch

from ....engine.torch.views import model_of
from ....errors import UsageError, option_error
from ....model_checks import BLOCK_NAT, TRANSFORMER
from ....registry import HEADS
from ...data.documents import PASSES, VERSION, check
from ...data.journal import Journal
from ...data.table import Result
from ...measure import machine
from ...measure.peers import converted_model
from ..asked import Passes
from .bench import (
    CACHED,
    NEW_TOKENS,
    PEER_TOKENS,
    REPETITIONS,
    SEARCH_TOKENS,
    SOURCE_LENGTH,
    Bench,
)
from .estimate import read_acceptance
from .models import DRAFTS, Pair, check_model, make_pair, sizes


def _check_positions(asked: Passes, pair: Pair) -> None:
    """Refuse passes beyond a model's positions."""
    target = pair.model.max_positions()[1]
    longest = max(CACHED + max(asked.chunks), SEARCH_TOKENS + 2, PEER_TOKENS + 1)
    for kind in (BLOCK_NAT, TRANSFORMER):
        if (drafter := pair.helper(kind)) is not None:
            target = min(target, drafter.decoder.max_positions())
    if pair.helper(BLOCK_NAT) is not None:
        longest = max(longest, CACHED + NEW_TOKENS + max(asked.block_sizes))
    if longest > target:
        raise option_error("--chunks, --block-sizes", f"{longest} positions", f"at most {target}")


def measure(asked: Passes, journal: Journal) -> Result:
    """Measure; return the document, which holds raw samples.

    Raises:
        UsageError: flags do not go together, or files are not there.
    """
    check_model(asked)
    acceptance = None
    if asked.acceptance is not None:
        acceptance = read_acceptance(asked.acceptance, asked.block_sizes[0])
    torch.set_num_threads(asked.threads)
    pair = make_pair(asked, asked.block_sizes[0])
    _check_positions(asked, pair)
    peer = None
    if asked.peers:
        model = model_of(pair.model)
        if isinstance(model, str):
            raise UsageError(f"--peers: CTranslate2 cannot convert {asked.name}: {model}")
        words = pair.task.source_dictionary, pair.task.target_dictionary
        peer = converted_model(model, [each.symbols for each in words])
    with torch.inference_mode():
        bench = Bench(pair, asked, peer)
        others = bench.run(journal)
    named, drafter = asked.drafter_path or "as block_nat_fast", pair.helper(BLOCK_NAT)
    heads = pair.helper(HEADS)
    setting = {
        "model": asked.name,
        "sizes": sizes(pair.model),
        "vocabulary": len(pair.task.target_dictionary),
        "drafter": "none" if drafter is None else named,
        "heads": 0 if heads is None else heads.block_size - 1,
        "drafter sizes": sizes(drafter),
        "token drafter": sizes(pair.helper(TRANSFORMER)),
        "batch": 1,
        "source length": SOURCE_LENGTH,
        "cached": CACHED,
        "chunks": asked.chunks,
        "block sizes": asked.block_sizes,
        "engines": asked.engines,
        "rounds": asked.rounds,
        "repetitions": REPETITIONS,
        "threads": asked.threads,
    }
    document = {
        "schema": PASSES,
        "version": VERSION,
        "title": asked.title or f"Passes of {asked.name}",
        "notes": notes(setting, others),
        **machine.circumstances(asked.argv),
        "setting": setting,
        **bench.report(),
        "acceptance": acceptance,
    }
    return check(document, str(asked.out))


def notes(setting: Mapping[str, Any], others: str) -> list[str]:
    """Return what a reader must know to read the numbers right."""
    drafter = "" if setting["drafter"] == "none" else f", {setting['drafter sizes']}"
    return [
        f"{setting['model']}: {setting['sizes']}, vocabulary {setting['vocabulary']}. Drafter: "
        f"{setting['drafter']}{drafter}; token by token: {setting['token drafter']}. Heads: "
        f"{setting['heads'] or 'none'}. Native drafters and heads are in {DRAFTS}; assisted "
        "itself drafts in int4, unless told otherwise.",
        f"Batch 1, sources of {SOURCE_LENGTH} tokens, {CACHED} cached; cpu, {setting['threads']} "
        f"thread(s). Medians and quartiles of {setting['rounds']} interleaved rounds of "
        f"{REPETITIONS} after a warm-up; {others}.",
    ]
