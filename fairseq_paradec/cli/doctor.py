"""Tell what a checkpoint is, which decoders fit it, what they lack, and how to get that.

Nothing is decoded or written. Each decoder is built for the model as fairseq-generate builds it, so
that a refusal is fairseq-generate's.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from ..errors import UsageError, needs, option_error
from ..registry import BLOCK_NAT, HEADS, METHODS, TRANSFORMER, own_decoding
from . import arguments

#: The recipe of each kind of drafter.
RECIPES = {
    BLOCK_NAT: (
        "scripts/train_drafter.sh {data} --kind block --fast --verifier {path} --save-dir DIR"
    ),
    TRANSFORMER: "scripts/train_drafter.sh {data} --verifier {path} --save-dir DIR",
    HEADS: "scripts/train_blockwise.sh {data} --base {path} --save-dir DIR",
}

#: The same for a model folder, which holds no data.
_TRAIN = "paradec train-drafter --model {data} --text FILE"
FOLDER_RECIPES = {
    BLOCK_NAT: f"{_TRAIN} --kind block",
    TRANSFORMER: _TRAIN,
    HEADS: RECIPES[HEADS].replace("{data}", "DATA"),
}

#: Names of weights of older versions; fairseq renames them as it loads.
OLD_NAMES = r"in_proj_weight|layer_norms|embed_out"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "example: paradec doctor data-bin/demo.en-de"
    parser.usage = "%(prog)s MODEL DATA [--drafter-path FILE], or %(prog)s DIR"
    add = parser.add_argument
    add("model", metavar="MODEL|DIR", type=Path, help="a checkpoint, or a model folder")
    add("data", metavar="DATA", nargs="?", type=Path, help="the data folder of a checkpoint")
    add("--drafter-path", type=Path, help="a drafter or heads (default: the model folder's)")


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    from ..plugin.tasks.loading import check_inputs, load
    from ..translator.translator import Translator

    with arguments.quiet():
        if args.data is None:
            if not args.model.exists():
                raise option_error("MODEL", str(args.model), "a checkpoint; there is none")
            if not args.model.is_dir():
                raise needs("MODEL", str(args.model), "DATA, the data folder of the checkpoint")
            translator = Translator(args.model, flag="DIR")
            models, task, data = translator.models, translator.task, args.model
            path, own = data / translator.folder.model, translator.folder.drafter
            recipes = FOLDER_RECIPES
            drafter = args.drafter_path or (data / own if own else None)
            decode = "paradec translate --model {data}"
        else:
            path, data, drafter = args.model, args.data, args.drafter_path
            recipes = RECIPES
            check_inputs(str(data), str(path))
            models, task = load(str(data), str(path))
            decode = "fairseq-generate {data} --user-dir fairseq_paradec --path {path}"
        for name, text in (*checkpoint(path), *architecture(models[0], task)):
            print(f"{name:14}{text}")
        print("\n--decoding")
        names = {"data": quote(str(data)), "path": quote(str(path))}
        recipes = {kind: text.format(**names) for kind, text in recipes.items()}
        for name, text in decoders(models, task, drafter, recipes):
            print(f"  {name:18}{text}")
        given = f" --drafter-path {quote(str(args.drafter_path))}" if args.drafter_path else ""
        print(f"\n{decode.format(**names)} --decoding NAME{given}")
        if args.data is not None:
            pack = "paradec pack {data} OUT --path {path}".format(**names)
            print(f"{pack}    for plain text, with its BPE's flags")
    return 0


def checkpoint(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what a file holds: names and texts."""
    from ..plugin.files import read_checkpoint

    state = read_checkpoint(str(path))
    weights, settings = state["model"], state["cfg"].model
    kinds = Counter[str]()
    for weight in weights.values():
        kinds[str(weight.dtype).removeprefix("torch.")] += weight.numel()
    more = "no training state"
    if state.get("last_optimizer_state") is not None:  # or saved without
        more = "with the training's state, which paradec shrink removes"
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    yield "checkpoint", f"{path}: {size}, {kinds.most_common(1)[0][0]}, {more}"
    written = "fairseq 0.10 or newer (cfg)" if state.get("args") is None else "up to 0.9 (args)"
    old = sorted({match[0] for name in weights if (match := re.search(OLD_NAMES, name))})
    yield "written by", written + (f", old names: {', '.join(old)}" if old else "")
    yield "--arch", str(getattr(settings, "arch", None) or getattr(settings, "_name", None))


def architecture(model: Any, task: Any) -> Iterator[tuple[str, str]]:
    """Yield what a model is: names and texts."""
    count = sum(weight.numel() for weight in model.parameters())
    yield "model", f"{type(model).__name__}, {count:,} parameters"
    for side in ("encoder", "decoder"):
        layers: Any = getattr(getattr(model, side, None), "layers", ())
        if len(layers) and hasattr(layers[0], "fc1"):
            layer = layers[0]
            norm = "pre-norm" if layer.normalize_before else "post-norm"
            yield (
                side,
                (
                    f"{len(layers)} layers, {norm}, d = {layer.fc1.in_features}, feed-forward "
                    f"{layer.fc1.out_features}, {layer.self_attn.num_heads} heads"
                ),
            )
    yield "positions", " source, ".join(map(str, model.max_positions())) + " target"
    pair = (task.cfg.source_lang, task.source_dictionary), (task.cfg.target_lang, task.tgt_dict)
    yield "dictionaries", ", ".join(f"{name}: {len(words):,}" for name, words in pair)


def decoders(
    models: Sequence[Any], task: Any, drafter: Path | None, recipes: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield what each decoder says to the models: names and texts.

    Args:
        models: the model.
        task: its task.
        drafter: a drafter or heads to try; None: none.
        recipes: the command that trains each kind of drafter.
    """
    wrong = refusal(models, task, "greedy", engine="torch")
    for name, method in METHODS.items():
        more = {"drafter_path": str(drafter)} if drafter and "drafter_path" in method.reads else {}
        problem = refusal(models, task, name, engine="torch", **more)
        if problem is None:
            yield name, f"fits; greedy's output: {method.exact.words}"
        elif drafter is None and (recipe := recipes.get(str(method.drafter))):
            yield name, f"needs {recipe}" if wrong is None else f"no: {wrong}"
        else:
            yield name, f"no: {problem}"
    problem = refusal(models, task, "beam")
    yield "beam", "fits; fairseq's own search" if problem is None else f"no: {problem}"
    problem = refusal(models, task, own_decoding(models) or "greedy", engine="native")
    yield "--engine native", "fits" if problem is None else f"no: {problem}"


def refusal(models: Sequence[Any], task: Any, name: str, **options: str) -> str | None:
    """Return why a decoder with these options refuses the models; None: it does not."""
    from ..methods.configure import configure

    try:
        task.build_decoder(models, configure(decoding=name, **options))
    except UsageError as error:
        return str(error)
    return None
