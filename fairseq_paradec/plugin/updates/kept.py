"""Outputs of a model's frozen part, kept from one epoch to the next.

A frozen encoder in evaluation mode gives a sentence the same states in every epoch. They are kept
in memory, by the sentence's tokens, up to a number of gigabytes; sentences beyond that are computed
each time. In the batch in which a sentence was first seen, and fairseq's batches are the same in
all epochs, its states are the same to the last bit; in another batch they differ by rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import option_error

FLAG = "--keep-frozen-outputs"


class KeptOutputs:
    """States of sentences, by keys, of at most so many gigabytes (10^9 bytes)."""

    def __init__(self, gigabytes: float) -> None:
        self.left = gigabytes * 1e9
        self.states: dict[Any, Tensor] = {}
        self.size = self.left

    def clear(self) -> None:
        """Forget all, as the frozen weights have changed."""
        self.states.clear()
        self.left = self.size

    def through(self, keys: Sequence[Any], real: Tensor, work: Callable[[], Tensor]) -> Tensor:
        """Return a batch's states, kept or computed.

        Args:
            keys: B, of the sentences.
            real: B×T, whether a position is one of a token; states of others are 0 if kept.
            work: computes B×T×D.
        """
        kept = [self.states.get(key) for key in keys]
        if all(state is not None for state in kept):
            rows = torch.cat(kept)  # type: ignore[arg-type]
            # In fairseq's order in memory, T×B×D, so that products round as they did.
            states = rows.new_zeros(*real.t().shape, rows.size(-1)).transpose(0, 1)
            states[real] = rows
            return states
        states = work()
        cost = int(real.sum()) * states.size(-1) * states.element_size()
        if cost <= self.left:
            self.left -= cost
            rows = states.detach()[real].split(real.sum(dim=1).tolist())
            self.states.update(zip(keys, (row.clone() for row in rows), strict=True))
        return states


def keys_of(pad: int, *tokens: Tensor) -> list[Any]:
    """Return a key for each row of a batch: its tokens without padding."""
    # Under autocast states have another precision.
    precision = torch.is_autocast_enabled(tokens[0].device.type)
    columns = [[row[row != pad].tobytes() for row in each.cpu().numpy()] for each in tokens]
    return [(precision, *key) for key in zip(*columns, strict=True)]


def keep_frozen_outputs(model: Any, gigabytes: float) -> KeptOutputs:
    """Let a model keep the outputs of its frozen part.

    Args:
        model: one with ``base_states`` (heads on a frozen base), or with a frozen encoder.
        gigabytes: at most.

    Raises:
        UsageError: nothing of the model is frozen.
    """
    kept = KeptOutputs(gigabytes)
    if getattr(model, "is_frozen", False):
        _keep_states(model, kept)
    elif _is_frozen(getattr(model, "encoder", None)):
        _keep_encoder(model.encoder, kept)
    else:
        raise option_error(
            FLAG,
            gigabytes,
            "0, or a model that trains without its encoder, such as --arch "
            "shallow_decoder, or heads on a frozen base",
        )
    return kept


def _is_frozen(encoder: Any) -> bool:
    """Return whether no weight of an encoder learns."""
    return isinstance(encoder, nn.Module) and not any(p.requires_grad for p in encoder.parameters())


def _keep_encoder(encoder: Any, kept: KeptOutputs) -> None:
    """Let fairseq's Transformer encoder look its outputs up, in evaluation mode.

    Its layers' states, which no decoder of ours reads, are left out of what is looked up.
    """
    compute = encoder.forward

    def forward(src_tokens: Tensor, *args: Any, **kwargs: Any) -> Any:
        if encoder.training:
            return compute(src_tokens, *args, **kwargs)
        outputs: dict[str, Any] = {}

        def work() -> Tensor:
            outputs.update(compute(src_tokens, *args, **kwargs))
            states: Tensor = outputs["encoder_out"][0]
            return states.transpose(0, 1)

        if hasattr(encoder, "without_end"):
            src_tokens = encoder.without_end(src_tokens)
        real = src_tokens.ne(encoder.padding_idx)
        states = kept.through(keys_of(encoder.padding_idx, src_tokens), real, work)
        if not outputs:
            outputs |= {
                "encoder_out": [states.transpose(0, 1)],
                "encoder_padding_mask": [~real],
                "encoder_embedding": [encoder.forward_embedding(src_tokens)[1]],
                "encoder_states": [],
                "fc_results": [],
                "src_tokens": [],
                "src_lengths": [real.sum(dim=1, dtype=torch.int32).reshape(-1, 1)],
            }
        return outputs

    encoder.forward = forward
    encoder.register_load_state_dict_post_hook(lambda *_: kept.clear())


def _keep_states(model: Any, kept: KeptOutputs) -> None:
    """Let a model with heads look its base's states up."""
    compute = model.base_states

    def base_states(src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor) -> Tensor:
        pad = model.decoder.padding_idx
        return kept.through(
            keys_of(pad, src_tokens, prev_output_tokens),
            prev_output_tokens.ne(pad),
            lambda: compute(src_tokens, src_lengths, prev_output_tokens),
        )

    model.base_states = base_states
    model.register_load_state_dict_post_hook(lambda *_: kept.clear())
