"""Translate some shards of a subset with beam search: the working step of distill.sh.

Finished batches are appended to the shard's file in DEST/parts; batches that are there already are
not translated again.
"""

from __future__ import annotations

import argparse
import fcntl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ...errors import UsageError
from . import parts

if TYPE_CHECKING:  # torch takes seconds to load
    import torch

Translate = Callable[[list[int]], list[list[int]]]


def load_sources(data: Path, settings: dict[str, Any], dictionary: Any) -> Any:
    """Load the source side of the subset, with all the pieces of a training set."""
    from fairseq.data import ConcatDataset, data_utils

    paths = parts.source_paths(data, settings["subset"], settings["languages"])
    return ConcatDataset([data_utils.load_indexed_dataset(str(p), dictionary) for p in paths])


def batches_of(sizes: Sequence[int], settings: dict[str, Any]) -> list[list[int]]:
    """Divide the subset into batches by the settings."""
    sizes = sizes[: parts.SMOKE_SENTENCES] if settings["smoke"] else sizes
    return parts.make_batches(sizes, settings["max-tokens"], settings["batch-size"])


def translator(
    data: Path, path: str, settings: dict[str, Any], device: torch.device
) -> tuple[Translate, Any]:
    """Load the teachers.

    Args:
        data: fairseq's data folder.
        path: the checkpoint, or several with ``:`` between them.
        settings: of the parts.
        device: where to translate.

    Returns:
        A function from numbers of sentences to their best translations, and the sources.

    Raises:
        UsageError: a checkpoint does not load or was trained for other languages.
    """
    from ...measure import loading

    models, task = loading.load(str(data), path)
    trained = [task.cfg.source_lang, task.cfg.target_lang]
    if trained != settings["languages"]:
        raise UsageError(
            f"--path: got a teacher for {'-'.join(trained)}; allowed: one for "
            f"{'-'.join(settings['languages'])}, as DATA's files are named"
        )
    models = [(m.half() if settings["fp16"] else m).to(device) for m in models]
    generator = loading.generator(
        task, models, decoding=decoding(models, settings["beam"]), beam=settings["beam"],
        lenpen=settings["lenpen"],
    )  # fmt: skip
    sources = load_sources(data, settings, task.source_dictionary)
    return by_number(task, models, generator, sources, device), sources


def decoding(models: Sequence[Any], beam: int) -> str:
    """Return the fastest method whose outputs are those of fairseq's beam search."""
    from ...methods.registry import own_decoding

    if len(models) > 1 or own_decoding(models) is not None:
        return "beam"
    return "greedy" if beam == 1 else "multiword_beam"


def by_number(
    task: Any, models: list[Any], generator: Any, sources: Any, device: torch.device
) -> Translate:
    """Return a function from numbers of sentences to their best translations.

    Args:
        task: the models' task.
        models: on the device.
        generator: of the task.
        sources: all sentences' tokens.
        device: where to translate.
    """
    from fairseq.data import LanguagePairDataset

    dataset = LanguagePairDataset(
        sources, sources.sizes, task.source_dictionary, left_pad_source=task.cfg.left_pad_source
    )
    eos = task.target_dictionary.eos()

    def translate(ids: list[int]) -> list[list[int]]:
        sample = dataset.collater([dataset[i] for i in ids])
        order = sample["id"].tolist()
        for name, tensor in sample["net_input"].items():
            sample["net_input"][name] = tensor.to(device)
        hypos = task.inference_step(generator, models, sample)
        found = {
            i: [t for t in best[0]["tokens"].tolist() if t != eos] for i, best in zip(order, hypos)
        }
        return [found[i] for i in ids]

    return translate


def resume(stream: IO[bytes], path: Path, batches: list[list[int]]) -> list[list[int]]:
    """Cut off an incomplete line of a killed process; return the remaining batches.

    Raises:
        UsageError: another process holds the file, or it was made from other batches.
    """
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"another process is at work on {path}") from error
    found = list(parts.read_part(path))
    done = {tuple(batch.ids) for batch, _ in found}
    stream.truncate(found[-1][1] if found else 0)
    if not done <= set(map(tuple, batches)):
        raise UsageError(f"{path} holds other batches than these settings give; remove it")
    return [ids for ids in batches if tuple(ids) not in done]


def run_shard(path: Path, batches: list[list[int]], translate: Translate, line: int = 0) -> None:
    """Translate the remaining batches of a shard.

    Args:
        path: of the part.
        batches: those of the shard.
        translate: from numbers of sentences to translations.
        line: of the terminal, for the progress bar.
    """
    from tqdm import tqdm

    with path.open("ab") as stream:
        todo = resume(stream, path, batches)
        total = sum(map(len, batches))
        with tqdm(
            desc=f"shard {path.stem}",
            total=total,
            initial=total - sum(map(len, todo)),
            unit=" sentences",
            position=line,
            mininterval=0.5,
            disable=None,
        ) as bar:
            for ids in todo:
                stream.write(parts.format_batch(parts.Batch(ids, translate(ids))))
                stream.flush()
                bar.update(len(ids))


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, which distill.sh has checked."""
    parser.set_defaults(plugin=True)
    parser.add_argument("data", type=Path)
    parser.add_argument("dest", type=Path)
    parser.add_argument("shards", type=int, nargs="+")
    parser.add_argument("--path", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--worker", type=int, required=True, help="GPU and line of the terminal")


def run(args: argparse.Namespace) -> int:
    """Translate the shards."""
    import torch

    torch.set_num_threads(1)
    device = torch.device("cpu")
    if args.device == "cuda":
        if not torch.cuda.is_available():
            raise UsageError("--device: got 'cuda', and torch sees no GPU; allowed: cpu")
        device = torch.device("cuda", args.worker % torch.cuda.device_count())
    settings = parts.read_settings(args.dest)
    translate, sources = translator(args.data, args.path, settings, device)
    batches = batches_of(sources.sizes.tolist(), settings)
    shards = settings["num-shards"]
    for shard in args.shards:
        path = parts.part_path(args.dest, shard, shards)
        run_shard(path, batches[shard::shards], translate, args.worker)
    return 0
