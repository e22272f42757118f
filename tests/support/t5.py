"""Random T5s as transformers stores them, in the shapes of T5, mT5 and MADLAD-400."""

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from support.builders import DEMO

#: Sizes of all; in none are the heads together as wide as the states. Few buckets end early, so
#: that the sentences of the tests are longer.
SIZES = {
    "vocab_size": 170,
    "d_model": 24,
    "d_kv": 5,
    "d_ff": 40,
    "num_heads": 3,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
TASKS = {"translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 4}}
#: Of each family: what its config.json says besides, the numbers of <pad>, </s>, <unk> and <s> in
#: its sentencepiece model, the words that stand in that besides, and how long </s>'s vector is.
FAMILIES: Mapping[str, tuple[dict[str, Any], tuple[int, int, int, int], list[str], float]] = {
    "t5": (
        {"model_type": "t5", "feed_forward_proj": "relu", "task_specific_params": TASKS},
        (0, 1, 2, -1),
        [],
        1.3,
    ),
    "mt5": (
        {
            **{"model_type": "mt5", "feed_forward_proj": "gated-gelu", "d_kv": 16},
            **{"tie_word_embeddings": False, "num_decoder_layers": 3},
        },
        (0, 1, 2, -1),
        [],
        3.0,
    ),
    "madlad": (
        {
            **{"model_type": "t5", "feed_forward_proj": "gated-gelu", "d_kv": 8, "num_heads": 4},
            **{"tie_word_embeddings": False, "decoder_start_token_id": 0, "pad_token_id": 1},
            **{"eos_token_id": 2, "layer_norm_epsilon": 1e-5},
        },
        (-1, 2, 0, 1),
        ["<2de>", "<2en>", "<2fr>"],
        3.0,
    ),
}


def pieces(folder: Path, family: str) -> None:
    """Write the family's sentencepiece model of the demo's English sentences."""
    import sentencepiece

    pad, end, unknown, begin = FAMILIES[family][1]
    sentencepiece.SentencePieceTrainer.train(
        input=str(DEMO / "raw/demo.en"),
        model_prefix=str(folder / "spiece"),
        vocab_size=160,
        **{"pad_id": pad, "eos_id": end, "unk_id": unknown, "bos_id": begin},
        user_defined_symbols=FAMILIES[family][2],
        minloglevel=2,
    )
    (folder / "spiece.vocab").unlink()


def _deviation(name: str, is_tied: bool) -> float:
    """Of a weight's numbers: where those of queries, or of gates, are large, roundings are, too."""
    if "layer." not in name:
        return 0.3
    if "relative" in name:
        return 1.0
    if name.endswith(("Attention.q.weight", "wi_1.weight")):
        return 0.1
    return 0.6 if is_tied else 0.35


@functools.cache
def saved(family: str) -> tuple[Path, Any]:
    """A folder as on the hub, and the model in transformers: leave them as they are."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM
    from transformers.utils import logging

    more, (_, end, _, _), _, ending = FAMILIES[family]
    logging.disable_progress_bar()
    folder = Path(tempfile.mkdtemp()) / family
    folder.mkdir()
    pieces(folder, family)
    about = {"decoder_start_token_id": 0, **SIZES, **more}
    (folder / "config.json").write_text(json.dumps(about))
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    is_tied = about.get("tie_word_embeddings", True)
    if not is_tied:  # transformers 5 ties what it makes, and keeps apart what it reads
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    chance = torch.Generator().manual_seed(sum(map(ord, family)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(std=_deviation(name, is_tied), generator=chance)
            if name.endswith("layer_norm.weight"):
                weight.add_(1.0)
        model.lm_head.weight[end] *= ending  # so that some outputs end early
    state = {
        name: weight.contiguous()
        for name, weight in model.state_dict().items()
        if "embed_tokens" not in name and not (is_tied and "lm_head" in name)
    }
    save_file(state, folder / "model.safetensors")
    return folder, model
