#!/usr/bin/env python3
"""Make a small, shareable copy of a fairseq checkpoint, or of its blockwise heads alone.

Weights are stored as fp16 (fairseq copies them into an fp32 model when loading), optimizer and
other training state is dropped, and paths of the training machine are removed. The configuration
is written as plain dicts and lists, so that ``torch.load`` accepts the file in its safe mode
without any class being allowed first.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

# Settings that hold a path or an address on the machine of training, and their neutral values.
NEUTRAL_PATHS: dict[str, Any] = {
    "data": ".",
    "save_dir": "checkpoints",
    "restore_file": "checkpoint_last.pt",
    "plasma_path": None,
    "user_dir": None,
    "log_file": None,
    "tensorboard_logdir": None,
    "aim_repo": None,
    "aim_run_hash": None,
    "wandb_project": None,
    "azureml_logging": False,
    "results_path": None,
    "path": None,
    "finetune_from_model": None,
    "quantization_config_path": None,
    "ema_seed_model": None,
    "encoder_embed_path": None,
    "decoder_embed_path": None,
    "lm_path": None,
    "distributed_init_method": None,
    "base_path": "base.pt",  # a model that was started from one goes on saying so
}


def plain_config(value: Any) -> Any:
    """Return a configuration as dicts, lists and scalars, with every path neutralised.

    Args:
        value: a dict, an omegaconf node turned into a container, an ``argparse.Namespace``, or
            a leaf.
    """
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, dict):
        return {
            key: NEUTRAL_PATHS[key]
            if key in NEUTRAL_PATHS and item is not None
            else plain_config(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [plain_config(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"the configuration holds a {type(value).__name__}, which is not plain data")


def half_weights(weights: dict[str, Any]) -> dict[str, Any]:
    """Convert floating-point tensors to fp16; tensors that share memory go on sharing it.

    Sharing keeps the file small: a tied embedding appears under three names.
    """
    import torch

    halves: dict[tuple[int, tuple[int, ...]], Any] = {}
    result = {}
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            result[name] = tensor.clone()
            continue
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key not in halves:
            half = tensor.to(torch.float16)
            if not torch.isfinite(half).all():
                raise ValueError(f"{name} has weights outside fp16's range")
            halves[key] = half.contiguous()
        result[name] = halves[key]
    return result


def shrink(state: dict[str, Any]) -> dict[str, Any]:
    """Return the checkpoint reduced to what decoding needs.

    Args:
        state: a checkpoint as fairseq 0.12 writes it, with ``cfg`` and ``model``.

    Raises:
        ValueError: the checkpoint has no configuration fairseq 0.12 understands.
    """
    if not state.get("cfg") or "model" not in state:
        raise ValueError("not a checkpoint of fairseq 0.10 or later: `cfg` or `model` is missing")
    history = state["optimizer_history"][-1]
    return {
        "args": None,
        "cfg": plain_config(state["cfg"]),
        "model": half_weights(state["model"]),
        "criterion": None,
        # fairseq asks for the last entry; the names and the update count are all it reads.
        "optimizer_history": [
            {
                "criterion_name": history["criterion_name"],
                "optimizer_name": history["optimizer_name"],
                "lr_scheduler_state": {"best": None},
                "num_updates": int(history["num_updates"]),
            }
        ],
        "last_optimizer_state": None,
        "task_state": {},
        "extra_state": {"epoch": int(state.get("extra_state", {}).get("epoch", 0))},
    }


def heads_alone(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a checkpoint of --arch blockwise_transformer without its base.

    Args:
        state: the checkpoint.
        path: its file, for the message.

    Raises:
        UsageError: it has no heads, or they do not fit the base that they were started from.
    """
    from fairseq_paradec.errors import option_error
    from fairseq_paradec.models.blockwise_transformer import heads_only

    options = (state.get("cfg") or {}).get("model") or {}
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    weights = state.get("model") or {}
    if not any(name.startswith("decoder.heads.") for name in weights):
        arch = options.get("arch", "another model")
        raise option_error(
            "--heads-only", f"{path}, of --arch {arch}", "a checkpoint of blockwise_transformer"
        )
    for name, why in (
        ("fine_tune_base", "whose base is its own"),
        ("train_first_head", "whose next token is not the base's"),
    ):
        if options[name]:
            raise option_error(
                "--heads-only", f"{path}, trained with --{name.replace('_', '-')}, {why}",
                "heads on a frozen base; shrink the whole model, without --heads-only",
            )  # fmt: skip
    return state | {"model": heads_only(weights)}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Make a small copy of a fairseq checkpoint: fp16 weights, no training state, "
        "no paths, plain-data configuration.",
        epilog="example: scripts/shrink_checkpoint.py --heads-only checkpoints/k6/model.pt "
        "checkpoints/k6/heads.pt",
    )
    parser.add_argument("source", type=Path, help="full checkpoint (only read)")
    parser.add_argument("target", type=Path, help="file to write")
    parser.add_argument(
        "--max-mb", type=float, default=8.0, help="fail if the result is larger (default: 8)"
    )
    parser.add_argument(
        "--heads-only",
        action="store_true",
        help="of a blockwise_transformer on a frozen base the heads alone, for --drafter-path; "
        "the base is given as --path",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Shrink one checkpoint; return the exit status."""
    args = parse_args(argv)
    if not args.source.is_file():
        print(f"shrink_checkpoint: no such checkpoint: {args.source}", file=sys.stderr)
        return 2
    import torch

    # The only class in a fairseq checkpoint that is not plain data; safe loading stays on.
    torch.serialization.add_safe_globals([argparse.Namespace])
    if not args.target.absolute().parent.is_dir():
        print(f"shrink_checkpoint: no such folder: {args.target.parent}", file=sys.stderr)
        return 2
    try:
        state = torch.load(args.source, map_location="cpu", weights_only=True)
    except Exception:  # whatever a file that is no checkpoint makes of the reader
        print(f"shrink_checkpoint: no checkpoint, or damaged: {args.source}", file=sys.stderr)
        return 2
    if args.heads_only:
        logging.disable(logging.INFO)  # what fairseq says while it is imported
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from fairseq_paradec.errors import UsageError

        try:
            state = heads_alone(state, args.source)
        except UsageError as error:
            print(f"shrink_checkpoint: {error}", file=sys.stderr)
            return 2
    partial = args.target.with_name(args.target.name + ".partial")
    torch.save(shrink(state), partial)
    megabytes = partial.stat().st_size / 1e6
    if megabytes > args.max_mb:
        partial.unlink()
        print(
            f"shrink_checkpoint: the result has {megabytes:.1f} MB; --max-mb allows {args.max_mb}",
            file=sys.stderr,
        )
        return 1
    partial.replace(args.target)
    print(f"{args.target}: {megabytes:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
