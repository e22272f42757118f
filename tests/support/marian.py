"""Marian's Transformer by its formulas, one sentence at a time, and its files as it writes them."""

import functools
import json
import math
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support.builders import DEMO

#: What Marian's norms add to a variance.
EPSILON = 1e-9
#: Types of a binary file by number: those of intgemm are Marian's, and Bergamot's.
INT8, FLOAT16, FLOAT32 = 0x101, 0x402, 0x404
INTGEMM8, INTGEMM16, BERGAMOT8, BERGAMOT16 = 0x10001, 0x10002, 0x4101, 0x4102

#: A small Transformer, as its settings stand in its file.
SETTINGS: dict[str, Any] = {
    "type": "transformer",
    "dim-emb": 16,
    "enc-depth": 2,
    "dec-depth": 2,
    "transformer-heads": 4,
    "transformer-dim-ffn": 32,
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
        """The activation; Marian's GELU was one by a sigmoid up to version 1.12.0."""
        kind = self.get("transformer-ffn-activation", "swish")
        if kind == "relu":
            return np.maximum(x, 0)
        if kind == "gelu" and self.get("version").startswith("v1.12.42"):
            return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
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


# ---- models -------------------------------------------------------------------------------------


def random_weights(
    settings: Mapping[str, Any], words: tuple[int, int], seed: int = 0, ending: float = 2.0
) -> dict[str, np.ndarray]:
    """Random weights of a model with these settings, with Marian's names and sizes.

    Args:
        settings: of the model.
        words: how many source and target have.
        seed: of the numbers.
        ending: the bias of ``</s>``, the first word.
    """
    rng, get = np.random.default_rng(seed), settings.get
    width, inner = get("dim-emb"), get("transformer-dim-ffn")
    weights: dict[str, np.ndarray] = {}

    def draw(name: str, *shape: int, mean: float = 0.0, deviation: float = 0.35) -> None:
        weights[name] = rng.normal(mean, deviation, shape).astype(np.float32)

    def norm(name: str, suffix: str) -> None:
        draw(f"{name}_ln_scale{suffix}", 1, width, mean=1.0)
        draw(f"{name}_ln_bias{suffix}", 1, width)

    def norms(name: str) -> None:
        if "n" in get("transformer-preprocess"):
            norm(name, "_pre")
        if "n" in get("transformer-postprocess"):
            norm(name, "")

    shared = get("tied-embeddings-all") or get("tied-embeddings-src")
    for name, count in {"Wemb": words[0]}.items() if shared else zip(_TABLES, words, strict=True):
        draw(name, count, width, deviation=0.8)
    if not (get("tied-embeddings-all") or get("tied-embeddings")):
        draw("decoder_ff_logit_out_Wt", words[1], width)
    if not get("output-omit-bias"):
        draw("decoder_ff_logit_out_b", 1, words[1])
        weights["decoder_ff_logit_out_b"][0, 0] += ending
    if get("transformer-train-positions"):
        draw("Wpos", 64, width)
    tied = get("transformer-tied-layers") or range(1, get("dec-depth") + 1)
    for side, numbers in (("encoder", range(1, get("enc-depth") + 1)), ("decoder", tied)):
        units = (side == "decoder" and get("transformer-decoder-dim-ffn")) or inner
        for layer in (f"{side}_l{number}" for number in sorted({*numbers})):
            for part in ("self", "context")[: 1 + (side == "decoder")]:
                for letter in "qkv" if get("transformer-no-projection") else "qkvo":
                    draw(f"{layer}_{part}_W{letter}", width, width)
                    draw(f"{layer}_{part}_b{letter}", 1, width)
                norms(f"{layer}_{part}_Wo")
            for number, shape in ((1, (width, units)), (2, (units, width))):
                draw(f"{layer}_ffn_W{number}", *shape)
                draw(f"{layer}_ffn_b{number}", 1, shape[1])
            norms(f"{layer}_ffn_ffn")
        if "n" in get("transformer-postprocess-top"):
            norm(f"{side}_top", "")
        if "n" in get("transformer-postprocess-emb"):
            norm(f"{side}_emb", "_pre")
    return weights


_TABLES = ("encoder_Wemb", "decoder_Wemb")


@functools.cache
def own_pieces(size: int = 128) -> Path:
    """A sentencepiece model of the demo's sentences as Marian trains it: ``</s>`` is 0."""
    import sentencepiece

    prefix = str(Path(tempfile.mkdtemp()) / "vocab")
    sentencepiece.SentencePieceTrainer.train(
        input=[str(DEMO / f"raw/demo.{language}") for language in ("en", "de")],
        model_prefix=prefix,
        vocab_size=size,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        minloglevel=2,
    )
    return Path(f"{prefix}.model")


# ---- files --------------------------------------------------------------------------------------


def write_npz(file: Path, weights: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Write MODEL.npz."""
    np.savez(file, **{name: np.asarray(w) for name, w in weights.items()}, **_yaml(settings))


def _yaml(settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The item of the settings, by its name."""
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
    return {"special:model.yml": np.frombuffer(text.encode() + b"\0", np.int8)}


def write_bin(
    file: Path, weights: Mapping[str, Any], settings: Mapping[str, Any], kind: int = FLOAT32
) -> dict[str, np.ndarray]:
    """Write MODEL.bin, matrices by this type: -> the weights that it stands for.

    Of intgemm are maps and tables of words, and what else Bergamot's files have is there, too.
    """
    items: list[tuple[str, int, tuple[int, ...], bytes]] = []
    meant = {}
    for name, given in weights.items():
        weight = np.asarray(given, np.float32)
        is_product = "_W" in name[-3:] or "Wemb" in name
        if kind == FLOAT16:
            content, own = weight.astype(np.float16), kind
            meant[name] = content.astype(np.float32)
        elif kind == FLOAT32 or not is_product:
            content, own = weight, FLOAT32
            meant[name] = weight
        else:
            own, bits = kind, 8 * (kind & 0xFF)
            scale = np.float32(127.0 / np.abs(weight).max() if bits == 8 else 1024.0)
            content = np.rint(weight * scale).astype(f"i{bits // 8}")
            meant[name] = content / scale
            stored = content if "Wemb" in name else content.T
            items.append((name, own, weight.shape, stored.tobytes() + scale.tobytes()))
            if kind in (BERGAMOT8, BERGAMOT16):
                number = np.float32(9.0)
                items.append((f"{name}_QuantMultA", FLOAT32, (1, 1), number.tobytes()))
            continue
        items.append((name, own, weight.shape, content.tobytes()))
    for name, text in _yaml(settings).items():
        items.append((name, INT8, text.shape, text.tobytes()))
    file.write_bytes(binary(items))
    return meant


def binary(
    items: Sequence[tuple[str, int, tuple[int, ...], bytes]], version: int = 1, count: int = -1
) -> bytes:
    """The bytes of a binary file: names, types by number, sizes and bytes, which are padded."""
    padded = [(*one[:3], one[3] + b"\x7f" * (-len(one[3]) % 256)) for one in items]
    parts = [struct.pack("<QQ", version, len(padded) if count < 0 else count)]
    for name, kind, shape, content in padded:
        parts.append(struct.pack("<QQQQ", len(name.encode()) + 1, kind, len(shape), len(content)))
    parts += [name.encode() + b"\0" for name, *_ in padded]
    parts += [struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in padded]
    head = b"".join(parts)
    gap = -(len(head) + 8) % 256
    return b"".join((head, struct.pack("<Q", gap), bytes(gap), *(one[3] for one in padded)))
