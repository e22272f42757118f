"""Outputs that begin with the first token of an imported model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import option_error


class FirstToken:
    """A part of the task: forces a model's ``first_target_token``, with any method."""

    tgt_dict: Any

    def inference_step(
        self,
        generator: Any,
        models: Sequence[Any],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch; a prefix follows the first token, or begins with it.

        Raises:
            UsageError: the target dictionary does not have the token.
        """
        word = getattr(models[0], "first_target_token", None)
        if word is not None:
            token = self.tgt_dict.index(word)
            if token == self.tgt_dict.unk():
                raise option_error(
                    "--path", f"a model whose outputs begin with {word}",
                    "one whose first token is in the target dictionary",
                )  # fmt: skip
            first = torch.full_like(sample["net_input"]["src_tokens"][:, :1], token)
            if prefix_tokens is None:
                prefix_tokens = first
            elif not bool(prefix_tokens[:, :1].eq(first).all()):
                prefix_tokens = torch.cat((first, prefix_tokens), dim=1)
        return super().inference_step(  # type: ignore[misc]
            generator, models, sample, prefix_tokens, constraints
        )
