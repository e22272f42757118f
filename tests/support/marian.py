"""Marian's Transformer by its formulas, one sentence at a time, and its files as it writes them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: What Marian's norms add to a variance.
EPSILON = 1e-9
#: Types of a binary file by number: Marian's of its C++, those of intgemm also of Bergamot's.
FLOAT32, FLOAT16, INT8 = 0x404, 0x402, 0x101
INTGEMM8, INTGEMM16, BERGAMOT8 = 0x10001, 0x10002, 0x4101

#: A small Transformer, as its settings stand in its file.
SETTINGS: dict[str, Any] = {
    "type": "transformer",
    "dim-emb": 16,
    "enc-depth": 2,
    "dec-depth": 2,
    "transformer-heads": 4,
    "transformer-dim-ffn": 24,
    "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-tied-layers": [],
    "tied-embeddings-all": True,
    "layer-normalization": False,
    "version": "v1.12.0",
}


class Marian:
    """A model in float64; each function is a formula of Marian's documentation.

    Args:
        weights: by Marian's names.
        settings: of ``special:model.yml``.
        epsilon: what norms add to a variance.
    """

    def __init__(
        self, weights: Mapping[str, Any], settings: Mapping[str, Any], epsilon: float = EPSILON
    ) -> None:
        self.weights = {name: np.asarray(w, np.float64) for name, w in weights.items()}
        self.settings, self.epsilon = settings, epsilon

    def get(self, key: str, default: Any = None) -> Any:
        return self.settings.get(key, default)

    def encode(self, source: Sequence[int]) -> np.ndarray:
        """The encoder's states of a sentence with its end, S×D."""
        x = bottom = self.embedded("encoder", self.table("encoder")[list(source)])
        for number in range(1, self.get("enc-depth") + 1):
            name = f"encoder_l{number}"
            x = self.attention(f"{name}_self", x, None, np.ones((len(x), len(x)), bool))
            x = self.feed_forward(f"{name}_ffn", x, "encoder")
        return self.after("encoder_top", self.get("transformer-postprocess-top", ""), x, bottom)

    def logits(self, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
        """The logits of each word of a target, and of what follows it, (T+1)×V."""
        states = self.encode(source)
        table = self.table("decoder")
        read = np.concatenate((np.zeros((1, table.shape[1])), table[list(target)]))
        x = bottom = self.embedded("decoder", read)
        tied = self.get("transformer-tied-layers") or range(1, self.get("dec-depth") + 1)
        for number in tied:
            name = f"decoder_l{number}"
            x = self.attention(f"{name}_self", x, None, np.tri(len(x), dtype=bool))
            x = self.attention(f"{name}_context", x, states, np.ones((len(x), len(states)), bool))
            x = self.feed_forward(f"{name}_ffn", x, "decoder")
        x = self.after("decoder_top", self.get("transformer-postprocess-top", ""), x, bottom)
        name = "decoder_ff_logit_out"
        output = self.table("decoder")
        if not (self.get("tied-embeddings") or self.get("tied-embeddings-all")):
            legacy = self.weights.get(f"{name}_W")
            output = self.weights[f"{name}_Wt"] if legacy is None else legacy.T
        bias = 0 if self.get("output-omit-bias") else self.weights[f"{name}_b"]
        return x @ output.T + bias

    def greedy(self, source: Sequence[int], most: int, never: Sequence[int] = ()) -> list[int]:
        """The greedy output with its end, of ``most`` words at most before that."""
        words: list[int] = []
        while len(words) < most:
            row = self.logits(source, words)[-1]
            row[list(never)] = -np.inf
            words.append(int(row.argmax()))
            if words[-1] == 0:
                return words
        return [*words, 0]

    def table(self, side: str) -> np.ndarray:
        """The vectors of words, V×D."""
        shared = self.get("tied-embeddings-all") or self.get("tied-embeddings-src")
        return self.weights["Wemb" if shared else f"{side}_Wemb"]

    def embedded(self, side: str, x: np.ndarray) -> np.ndarray:
        """Vectors with their positions, trained or sinusoids, and what follows them."""
        width = x.shape[1]
        if self.get("transformer-train-positions"):
            x = x + self.weights["Wpos"][: len(x)]
        else:
            half = width // 2
            for place in range(len(x)):
                signal = np.zeros(width)
                for i in range(half):
                    angle = place * np.exp(-i * np.log(10000.0) / (half - 1))
                    signal[i], signal[half + i] = np.sin(angle), np.cos(angle)
                x[place] = np.sqrt(width) * x[place] + signal
        return self.before(f"{side}_emb", self.get("transformer-postprocess-emb", "d"), x)

    def attention(
        self, name: str, x: np.ndarray, states: np.ndarray | None, seen: np.ndarray
    ) -> np.ndarray:
        """A sublayer of attention to itself, or to the encoder's states."""
        asked = self.before(f"{name}_Wo", self.get("transformer-preprocess", ""), x)
        known = asked if states is None else states
        q = self.affine(asked, f"{name}_Wq", f"{name}_bq")
        k = self.affine(known, f"{name}_Wk", f"{name}_bk")
        v = self.affine(known, f"{name}_Wv", f"{name}_bv")
        size = q.shape[1] // self.get("transformer-heads", 8)
        parts = []
        for start in range(0, q.shape[1], size):
            head = slice(start, start + size)
            scores = q[:, head] @ k[:, head].T / np.sqrt(size)
            scores = np.where(seen, scores, -np.inf)
            share = np.exp(scores - scores.max(axis=1, keepdims=True))
            parts.append(share / share.sum(axis=1, keepdims=True) @ v[:, head])
        new = np.concatenate(parts, axis=1)
        if not self.get("transformer-no-projection"):
            new = self.affine(new, f"{name}_Wo", f"{name}_bo")
        return self.after(f"{name}_Wo", self.get("transformer-postprocess", "dan"), new, x)

    def feed_forward(self, name: str, x: np.ndarray, side: str) -> np.ndarray:
        """A feed-forward sublayer."""
        new = self.before(f"{name}_ffn", self.get("transformer-preprocess", ""), x)
        new = self.activated(self.affine(new, f"{name}_W1", f"{name}_b1"))
        new = self.affine(new, f"{name}_W2", f"{name}_b2")
        return self.after(f"{name}_ffn", self.get("transformer-postprocess", "dan"), new, x)

    def activated(self, x: np.ndarray) -> np.ndarray:
        """The activation; Marian's GELU is one by a sigmoid."""
        kind = self.get("transformer-ffn-activation", "swish")
        if kind == "relu":
            return np.maximum(x, 0)
        return x / (1 + np.exp(-x * (1.702 if kind == "gelu" else 1.0)))

    def affine(self, x: np.ndarray, weight: str, bias: str) -> np.ndarray:
        """A product and its bias."""
        return x @ self.weights[weight] + self.weights[bias]

    def before(self, name: str, steps: str, x: np.ndarray) -> np.ndarray:
        """What precedes a sublayer: letters, of which d changes nothing here."""
        return self.norm(name, x, "_pre") if "n" in steps else x

    def after(self, name: str, steps: str, new: np.ndarray, old: np.ndarray) -> np.ndarray:
        """What follows a sublayer, letter by letter: add, normalise."""
        for step in steps:
            if step == "a":
                new = new + old
            elif step == "n":
                new = self.norm(name, new, "")
        return new

    def norm(self, name: str, x: np.ndarray, suffix: str) -> np.ndarray:
        """A layer norm."""
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + self.epsilon)
        return (
            x * self.weights[f"{name}_ln_scale{suffix}"] + self.weights[f"{name}_ln_bias{suffix}"]
        )
