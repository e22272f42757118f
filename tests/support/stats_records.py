"""Records of sentences, written by hand."""

from collections.abc import Sequence
from typing import Any

HEAD = {"schema": "fairseq_paradec.decoding", "version": 2, "engine_dtype": "fp32"}


def greedy(number: int | None, source: Sequence[str], output: Sequence[str]) -> dict[str, Any]:
    """Return the record of a sentence that was written token by token."""
    return HEAD | {
        "decoding": "greedy",
        "lossless": True,
        "flags": {},
        "source": list(source),
        "output": list(output),
        "score": -1.0,
        "positional_scores": [-0.5] * len(output),
        "num_tokens": len(output),
        "decoder_passes": len(output),
        "mean_accepted": 1.0,
        "num_drafted": [0] * len(output),
        "num_accepted": [0] * len(output),
        "audit": {"identical": True, "position": None, "gap": None, "tie": False},
        "id": number,
        "batch_size": 1,
        "batch_seconds": 0.1,
        "trace": [
            {
                "start": i,
                "num_accepted": 0,
                "num_committed": 1,
                "draft": [],
                "verifier": [token],
                "log_probs": [-0.5],
                "runner_up": ["no"],
                "runner_up_log_probs": [-2.0],
                "draft_log_probs": [],
                "draft_ranks": [],
            }
            for i, token in enumerate(output)
        ],
    }
