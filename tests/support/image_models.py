"""Tiny image Transformers, without data."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_paradec.images import Size
from support.builders import SMALL, _spread, save_drafter
from support.image_data import image_task
from support.losses import build

HEADS = "blockwise_image_transformer"
GRAY = (Size(2, 3, 1), Size(4, 6, 1))  # 6 intensities to 24
RGB = (Size(1, 2, 3), Size(3, 4, 3))  # 6 to 36; not as many times wider as higher


def task_of(sizes: tuple[Size, Size] = GRAY) -> Any:
    """A super-resolution task of these sizes, without data."""
    return image_task(*sizes)


def tiny_image_model(
    task: Any,
    block: int = 5,
    memory: int = 4,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    arch: str = "image_transformer",
    **options: Any,
) -> Any:
    """A tiny random image Transformer in evaluation mode, its weights spread.

    With the architecture blockwise_image_transformer it has the same base at the same seed, and
    random heads.
    """
    given = {**SMALL, "attention_block": block, "attention_memory": memory} | options
    if arch.startswith("blockwise"):
        base = tiny_image_model(task, block, memory, dtype, seed, **options)
        given |= {"block_size": 4, "base_path": "the base", "base_copied": True} | options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(task, arch, **given)
        if arch.startswith("blockwise"):
            heads = model.block_heads
            for weight in (heads.inner.weight, heads.inner.bias, heads.outer, heads.bias):
                weight.normal_(std=0.4)
            missing, unexpected = model.load_state_dict(base.state_dict(), strict=False)
            assert all("heads" in name for name in missing) and not unexpected
        else:
            _spread(model, "default", task.target_dictionary)
    return model.to(dtype).eval()


def image_batch(task: Any, count: int, seed: int = 0) -> dict[str, Any]:
    """A fairseq batch of random small images."""
    generator = torch.Generator().manual_seed(seed)
    width = task.image_sizes[0].num_tokens
    tokens = torch.randint(4, 260, (count, width), generator=generator)
    tokens = torch.cat((tokens, torch.full((count, 1), 2)), dim=1)
    lengths = torch.full((count,), width + 1)
    net_input = {"src_tokens": tokens, "src_lengths": lengths}
    return {"id": torch.arange(count), "nsentences": count, "net_input": net_input}


def inputs_for(task: Any, count: int, seed: int = 1) -> Tensor:
    """Random decoder inputs, B×T, as long as an output."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, 260, (count, task.image_sizes[1].num_tokens + 1), generator=generator)
    tokens[:, 0] = 2
    return tokens


def save(task: Any, model: Any, path: Path, arch: str) -> str:
    """Write a model to a checkpoint as fairseq-train does."""
    return save_drafter(task, model, path, arch, _name="image_super_resolution")
