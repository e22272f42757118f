"""Settings of the methods that auto_fast tries.

Each function returns options of its method, without ``decoding`` and ``drafter_path``.
"""

from typing import Any, NamedTuple

from .model_checks import drafts_for_itself

OptionSets = list[dict[str, Any]]

# Words in a drafter's shortlist; it saves little for a vocabulary under twice this.
SHORTLIST = 2000


class Offer(NamedTuple):
    """What a method's settings for auto_fast may depend on."""

    block: int  # the block size of the drafter's training; 0 without a drafter
    vocabulary: int  # the target dictionary's size
    dtype: str | None  # ``--engine-dtype``
    halves: bool  # whether the engine has drafts in fewer bits than 8
    model: Any  # the model, or the first of an ensemble


def plain(offer: Offer) -> OptionSets:
    """Return the default settings only."""
    return [{}]


def in_fewer_bits(offer: Offer) -> OptionSets:
    """Return the candidates of ``self_draft``: none where drafts would be as dear as passes."""
    return [{}] if drafts_for_itself(offer.dtype, offer.halves, offer.model) else []


def sliding_windows(offer: Offer) -> OptionSets:
    """Return the candidates of ``hgj``."""
    sliding = {"jacobi_window": "sliding"}
    blocks: OptionSets = [
        {"block_size": 3},
        {"block_size": 5},
        {"block_size": 5, "adaptive_block": True},
    ]
    return [block | sliding for block in blocks]


def drafts(offer: Offer) -> OptionSets:
    """Return the candidates of a lossless method with a drafter."""
    block, vocabulary = offer.block, offer.vocabulary
    whole = {"block_size": block}
    settings: OptionSets = [whole]
    if 2 <= block // 2 < block:
        settings.append({"block_size": block // 2})
    settings.append(whole | {"adaptive_block": True})
    if vocabulary > 2 * SHORTLIST:
        settings.append(whole | {"adaptive_block": True, "drafter_shortlist": SHORTLIST})
    return settings


def assists(offer: Offer) -> OptionSets:
    """Return the candidates of ``assisted``."""
    sizes: OptionSets = [{"block_size": size} for size in (4, 12)]
    if offer.vocabulary > 2 * SHORTLIST:
        sizes.append({"drafter_shortlist": SHORTLIST})
    return sizes


def relaxed_drafts(offer: Offer) -> OptionSets:
    """Return the candidates of ``gad_pp``, a stricter and a faster one."""
    rules = ((3, 1.0), (5, 3.0))
    return [{"block_size": offer.block, "accept_topk": k, "accept_margin": tau} for k, tau in rules]
