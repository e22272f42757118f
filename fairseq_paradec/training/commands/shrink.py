"""Make a small, shareable copy of a fairseq checkpoint, or of its blockwise heads alone.

Weights are stored as fp16; fairseq copies them into an fp32 model when it loads them. The
optimizer, other training state and paths of the training machine are dropped. The configuration
becomes plain dicts and lists, which torch.load accepts in its safe mode.
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

from ...errors import UsageError, option_error

# Settings that hold a path or an address of the training machine, and their neutral values.
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
    "base_path": "base.pt",  # it still tells that the model has a base
    "encoder_from": "model.pt",  # and this that its encoder is another model's
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
    """Convert floating-point tensors to fp16; equal tensors of one shape share memory.

    That keeps the file small: a tied embedding appears under three names, and fairseq writes it
    three times where it was trained on a GPU.

    Raises:
        UsageError: a weight is outside fp16's range.
    """
    import torch

    halves: dict[tuple[tuple[int, ...], bytes], Any] = {}
    result = {}
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            result[name] = tensor.clone()
            continue
        half = tensor.to(torch.float16).contiguous()
        if not torch.isfinite(half).all():
            raise UsageError(f"{name} has weights outside fp16's range")
        key = (tuple(half.shape), hashlib.sha256(half.numpy().tobytes()).digest())
        result[name] = halves.setdefault(key, half)
    return result


def shrink(state: dict[str, Any]) -> dict[str, Any]:
    """Return the checkpoint reduced to what decoding needs.

    Raises:
        UsageError: a weight is outside fp16's range.
    """
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

    Raises:
        UsageError: it has no heads, or they do not fit the original base.
    """
    from ...plugin.files import options_of
    from ...plugin.models.heads import PREFIX, heads_only

    options, weights = options_of(state["cfg"]["model"]), state["model"]
    if not any(name.startswith(PREFIX) for name in weights):
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
                "--heads-only",
                f"{path}, trained with --{name.replace('_', '-')}, {why}",
                "heads on a frozen base; shrink the whole model, without --heads-only",
            )
    return state | {"model": heads_only(weights)}


def alone(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a drafter's checkpoint without the encoder, which is its verifier's.

    Raises:
        UsageError: its encoder is its own.
    """
    from ...plugin.files import options_of
    from ...plugin.models.building import without_encoder

    if not options_of(state["cfg"]["model"]).get("share_verifier_encoder"):
        allowed = "a drafter on its verifier's encoder: of --arch shallow_decoder, block_nat_fast"
        raise option_error("--without-encoder", str(path), allowed)
    return state | {"model": without_encoder(state["model"])}


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec shrink --heads-only checkpoints/k6/model.pt checkpoints/k6/heads.pt"
    )
    add = parser.add_argument
    add("source", type=Path, metavar="SOURCE", help="full checkpoint (only read)")
    add("target", type=Path, metavar="TARGET", help="file to write")
    add("--max-mb", type=float, default=8.0, help="fail if the result is larger (default: 8)")
    add(
        "--without-encoder",
        action="store_true",
        help="leave out the encoder of a drafter on its verifier's encoder (shallow_decoder, "
        "block_nat_fast): as --drafter-path it gets the verifier's",
    )
    add(
        "--heads-only",
        action="store_true",
        help="write only the heads of a blockwise_transformer on a frozen base: they are for "
        "--drafter-path, the base for --path",
    )


def run(args: argparse.Namespace) -> int:
    """Shrink one checkpoint."""
    from ...plugin.files import saving
    from ..checkpoints import read_source

    state = read_source(args.source, args.target)
    if args.heads_only:
        state = heads_alone(state, args.source)
    if args.without_encoder:
        state = alone(state, args.source)
    with saving("TARGET", args.target, shrink(state)) as partial:
        megabytes = partial.stat().st_size / 1e6
        if megabytes > args.max_mb:
            least = f"{megabytes:.1f} or more, which the result has"
            raise option_error("--max-mb", args.max_mb, least)
    print(f"{args.target}: {megabytes:.1f} MB")
    return 0
