"""Prediction heads over a decoder's states, in a model or beside it (Stern et al. 2018, section 6).

Heads that are trained on a frozen base can be saved without it, and are then loaded for the base.

Beyond the paper: heads may also see the token that head 0 predicts, which the verifier has chosen
before they draft. The idea is that of Hydra (Ankner et al. 2024) and EAGLE (Li et al. 2024).
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import checkpoint_utils, utils
from torch import Tensor, nn

from ...errors import option_error
from ..compat.loading import named
from ..files import options_of
from .building import marks

PREFIX = "decoder.heads."  # of the names of the heads' weights in a model


class BlockHeads(nn.Module):
    """k heads over a decoder's states.

    Args:
        block_size: k.
        dim: D, the dimension of the decoder's states.
        hidden: hidden units per learned head.
        layer: ``dense`` (each output reads all hidden units) or ``per_head`` (only its own).
        first: whether head 0 is learned; else it is the identity, and the layer has k-1 outputs.
        activation: fairseq's name of the activation function.
        dropout: of the outputs, before the residual.
        activation_dropout: of the hidden units.
        seen: E, the dimension of the embedding of the token after the state, which all heads but
            head 0 see; 0: they do not see it.
    """

    def __init__(
        self,
        block_size: int,
        dim: int,
        hidden: int,
        layer: str,
        first: bool,
        activation: str,
        dropout: float = 0.0,
        activation_dropout: float = 0.0,
        seen: int = 0,
    ) -> None:
        super().__init__()
        self.block_size, self.seen = block_size, seen
        self.learned = list(range(0 if first else 1, block_size))  # the heads of the layer
        count = len(self.learned)
        if count:
            self.inner = nn.Linear(dim + seen, count * hidden)
            nn.init.xavier_uniform_(self.inner.weight)
            nn.init.zeros_(self.inner.bias)
        else:  # torch warns when it initialises a layer without outputs
            self.inner = nn.utils.skip_init(nn.Linear, dim + seen, 0)
        width = count * hidden if layer == "dense" else hidden
        self.outer = nn.Parameter(torch.zeros(count, dim, width))  # all heads start as identities
        self.bias = nn.Parameter(torch.zeros(count, dim))
        self.is_dense = layer == "dense"
        self.activation = utils.get_activation_fn(activation)
        self.dropout = nn.Dropout(dropout)
        self.activation_dropout = nn.Dropout(activation_dropout)

    def forward(
        self, states: Tensor, heads: Sequence[int], following: Tensor | None = None
    ) -> Tensor:
        """Compute some heads' outputs from a decoder's states.

        Args:
            states: ...×D.
            heads: N of 0..k-1, in ascending order.
            following: ...×E, the embeddings of the tokens after the states, for heads that see
                them; None for others.

        Returns:
            ...×N×D, for the decoder's projection.
        """
        first = self.block_size - len(self.learned)  # 1 if head 0 is the identity
        slots = [head - first for head in heads if head >= first]
        if following is None or heads[-1] == 0:
            return self._outputs(states, heads, slots, states)
        inputs = torch.cat((states, following), dim=-1)
        if heads[0] > 0 or first:
            return self._outputs(states, heads, slots, inputs)
        own = self._outputs(states, [0], [0], states)  # it predicts the token that others see
        return torch.cat((own, self._outputs(states, heads[1:], slots[1:], inputs)), dim=-2)

    def _outputs(
        self, states: Tensor, heads: Sequence[int], slots: list[int], inputs: Tensor
    ) -> Tensor:
        """Compute the outputs of heads that see the same; see ``forward``.

        Args:
            states: ...×D.
            heads: N.
            slots: the places of the learned ones in the layer.
            inputs: ...×(D+E), or ...×D: the heads do not see the token.
        """
        outputs = [states.unsqueeze(-2)] * (len(heads) - len(slots))
        if slots:
            whole = len(slots) == len(self.learned)
            outer = self.outer if whole else self.outer[slots]  # N×D×W
            bias = self.bias if whole else self.bias[slots]
            inner = self.inner.weight[:, : inputs.size(-1)]
            if self.is_dense:
                hidden = self._hidden(F.linear(inputs, inner, self.inner.bias))  # ...×W
                out = hidden @ outer.flatten(0, 1).t()
                out = out.unflatten(-1, bias.shape)  # ...×N×D
            else:
                weight = inner.unflatten(0, (len(self.learned), -1))
                inner_bias = self.inner.bias.view(len(self.learned), -1)
                if not whole:
                    weight, inner_bias = weight[slots], inner_bias[slots]
                hidden = inputs @ weight.flatten(0, 1).t() + inner_bias.flatten()
                hidden = self._hidden(hidden).unflatten(-1, inner_bias.shape)  # ...×N×H
                out = torch.einsum("...nh,ndh->...nd", hidden, outer)
            outputs.append(states.unsqueeze(-2) + self.dropout(out + bias))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-2)

    def first(self, states: Tensor) -> Tensor:
        """Apply head 0, the head of the next token: ...×D -> ...×D."""
        return states if self.learned[:1] != [0] else self(states, [0]).squeeze(-2)

    @torch.no_grad()
    def start_from(self, others: "BlockHeads") -> None:
        """Copy heads of the same k and layer.

        A head 0 that only these learn stays the identity, and its new hidden units are not read by
        the others yet; a token that only these see has weights of zero: the outputs are the same.
        """
        new = len(self.learned) - len(others.learned)  # 0 or 1
        units = len(self.inner.weight) - len(others.inner.weight)
        self.inner.weight[units:].zero_()[:, : others.inner.in_features] = others.inner.weight
        self.inner.bias[units:] = others.inner.bias
        self.outer.zero_()
        self.outer[new:, :, units if self.is_dense else 0 :] = others.outer
        self.bias[new:] = others.bias

    def _hidden(self, x: Tensor) -> Tensor:
        """Apply activation and dropout to the hidden units."""
        return self.activation_dropout(self.activation(x))


def build_heads(args: Any, decoder: Any) -> BlockHeads:
    """Build the heads of a model's options, for the states and embeddings of a decoder."""
    dim = decoder.output_projection.weight.size(1)
    # Older checkpoints do not say the one, and model files not the others.
    sees = getattr(args, "heads_see_token", False)
    return BlockHeads(
        args.block_size,
        dim,
        args.decoder_ffn_embed_dim,
        args.head_layer,
        args.train_first_head,
        args.activation_fn,
        getattr(args, "dropout", 0.0),
        getattr(args, "activation_dropout", 0.0),
        decoder.embed_tokens.embedding_dim if sees else 0,
    )


def heads_only(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Select a model's heads, and enough of its base's weights to identify the base."""
    heads = {name: weight for name, weight in weights.items() if name.startswith(PREFIX)}
    return marks(weights, "decoder") | heads


def load_heads(path: str, base: Any) -> BlockHeads:
    """Load the heads of a checkpoint, for another model's states.

    Args:
        path: a checkpoint of --arch blockwise_transformer, whole or heads only.
        base: the Transformer that they were trained on.

    Raises:
        UsageError: the checkpoint has no heads, or was trained on another base.
    """
    flag = "--drafter-path"
    with named(flag):
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
    args, weights = Namespace(**options_of(state["cfg"]["model"])), state["model"]
    if not any(name.startswith(PREFIX) for name in weights):
        raise option_error(
            flag,
            path,
            "a checkpoint of --arch blockwise_transformer, with --decoding blockwise; this is "
            f"{getattr(args, 'arch', 'another model')}",
        )
    if args.train_first_head:
        raise option_error(
            flag,
            path,
            "heads without --train-first-head, whose next token is another than the base's; give "
            "the whole model as --path",
        )
    own = base.state_dict()
    others = {name: w for name, w in weights.items() if not name.startswith(PREFIX)}
    # The tolerance admits files in half precision.
    same = others and all(
        name in own
        and own[name].shape == w.shape
        and torch.allclose(own[name].float().cpu(), w.float(), rtol=4e-3, atol=1e-4)
        for name, w in others.items()
    )
    if not same:
        raise option_error(flag, path, "heads that were trained on the model of --path, frozen")
    heads = build_heads(args, base.decoder)
    learned = {name[len(PREFIX) :]: w for name, w in weights.items() if name.startswith(PREFIX)}
    try:
        heads.load_state_dict(learned)
    except RuntimeError as error:
        raise option_error(
            flag, path, f"an undamaged checkpoint ({str(error).splitlines()[-1].strip()})"
        ) from error
    return heads.eval()
