"""Outputs that begin with the first token of an imported model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import option_error


def first_token(models: Sequence[Any], words: Any) -> int | None:
    """Return the number of the token that the model's outputs begin with; None: it has none.

    Raises:
        UsageError: the target dictionary does not have it.
    """
    word = getattr(models[0], "first_target_token", None)
    if word is None:
        return None
    token: int = words.index(word)
    if token == words.unk():
        raise option_error(
            "--path",
            f"a model whose outputs begin with {word}",
            "one whose first token is in the target dictionary",
        )
    return token


def drafts_from_first(
    models: Sequence[Any], drafts: Sequence[Sequence[int]], words: Any
) -> list[list[int]]:
    """Put the model's first token before drafts of text, which does not have it."""
    token = first_token(models, words)
    before = [] if token is None else [token]
    return [[*before, *draft] if draft and [*draft[:1]] != before else [*draft] for draft in drafts]


def forced_prefix(
    models: Sequence[Any], src_tokens: Tensor, prefix_tokens: Tensor | None, words: Any
) -> Tensor | None:
    """Put the model's ``first_target_token`` before a prefix that does not begin with it.

    Raises:
        UsageError: the target dictionary does not have the token.
    """
    token = first_token(models, words)
    if token is None:
        return prefix_tokens
    first = torch.full_like(src_tokens[:, :1], token)
    if prefix_tokens is None:
        return first
    if bool(prefix_tokens[:, :1].eq(first).all()):
        return prefix_tokens
    return torch.cat((first, prefix_tokens), dim=1)
