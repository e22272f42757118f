"""Training of a drafter by fairseq in this process: settings, estimate, and going on."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..errors import option_error
from .average import average, last_checkpoints
from .resume import repair
from .shrink import alone, plain_config, shrink

#: A text is gone through at most so many times.
EPOCHS = 60

#: Checkpoints that are averaged, the last ones; one is written in each hundredth of the updates.
LAST = 5

#: Up to this width a model is small.
SMALL = 256


class Settings(NamedTuple):
    """How a drafter is trained.

    Attributes:
        updates: at most.
        batch: target tokens of an update.
        warmup: updates; of a shorter training a tenth.
        flags: more of fairseq-train.
    """

    updates: int
    batch: int
    warmup: int
    flags: str


_SHALLOW = "--adam-betas '(0.9, 0.98)' --label-smoothing 0"
_BLOCK = (
    "--criterion block_nat_loss --lr-scheduler inverse_sqrt --clip-norm 5 --weight-decay 0.01 "
    "--best-checkpoint-metric accepted --maximize-best-checkpoint-metric"
)

#: The architecture of each kind of drafter, and the --decoding that it is for.
KINDS = {"shallow": ("shallow_decoder", "assisted"), "block": ("block_nat_fast", "gad")}

#: By kind, and whether the model is small: as the presets tiny and iwslt of scripts/train.sh.
SETTINGS = {
    ("shallow", True): Settings(2500, 3000, 200, f"{_SHALLOW} --lr 0.005 --dropout 0"),
    ("shallow", False): Settings(20000, 25000, 1000, f"{_SHALLOW} --lr 0.0007 --dropout 0.1"),
    ("block", True): Settings(
        12000, 2048, 500,
        f"{_BLOCK} --adam-betas '(0.9, 0.98)' --lr 0.002 --drafter-block-size 8 "
        "--prefixes-per-sentence 4 --position-decay 0.8 --glancing-ratio 0 --dropout 0 "
        "--label-smoothing 0",
    ),
    ("block", False): Settings(
        50000, 8192, 4000,
        f"{_BLOCK} --adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --lr 0.0005 --drafter-block-size 25 "
        "--dropout 0.1 --label-smoothing 0.1 --glancing-ratio 0.5 --glancing-ratio-end 0.3",
    ),
}  # fmt: skip


class Training(NamedTuple):
    """A drafter's training.

    Attributes:
        kind: of the drafter.
        verifier: the model's checkpoint.
        small: whether the model is.
        updates: how many; None: as ``SETTINGS`` say, for the text's length.
        seed: of the drafter and of the order of batches.
        device: ``cpu`` or ``cuda``.
        more: flags of fairseq-train that win over the others.
    """

    kind: str
    verifier: Path
    small: bool
    updates: int | None
    seed: int
    device: str
    more: Sequence[str]

    def length(self, tokens: int) -> int:
        """Return the number of updates for a text with so many target tokens."""
        usual = SETTINGS[self.kind, self.small]
        return self.updates or max(1, min(usual.updates, EPOCHS * tokens // usual.batch))

    @property
    def pieces(self) -> int:
        """Return the number of pieces that a batch is made of, as each must fit into memory."""
        return -(-SETTINGS[self.kind, self.small].batch // (4096 if self.device == "cpu" else 8192))

    def flags(self, updates: int) -> list[str]:
        """Return the flags of fairseq-train, without the data and the architecture."""
        usual = SETTINGS[self.kind, self.small]
        words = ["--encoder-from", str(self.verifier), "--optimizer", "adam"]
        if self.kind == "shallow":
            loss = "lean_cross_entropy" if self.device == "cpu" else "label_smoothed_cross_entropy"
            words += ["--criterion", loss, "--lr-scheduler", "polynomial_decay"]
            words += ["--total-num-update", str(updates)]
        words += shlex.split(usual.flags)
        words += ["--warmup-updates", str(min(usual.warmup, 1 + updates // 10))]
        words += ["--max-tokens", str(usual.batch // self.pieces), "--update-freq"]
        words += [str(self.pieces), "--max-update", str(updates), "--seed", str(self.seed)]
        words += ["--skip-invalid-size-inputs-valid-test", "--num-workers", "0"]
        words += ["--cpu" if self.device == "cpu" else "--fp16", "--distributed-world-size", "1"]
        return [*words, *self.more]

    def measure(self, data: Path, pair: Sequence[str], tokens: int) -> tuple[float, float]:
        """Make some updates on held-out lines of middle length, as often as fills a batch.

        Args:
            data: with the held-out lines.
            pair: the languages.
            tokens: of the whole text, which may be shorter than a batch.

        Returns:
            The seconds of an update, and the bytes of a checkpoint.
        """
        from ..measure.loading import by_length
        from ..measure.training_speed import Trainee

        flags = ["-s", pair[0], "-t", pair[1], *self.flags(self.length(tokens))]
        trainee = Trainee(str(data), KINDS[self.kind][0], flags, self.device)
        trainee.task.load_dataset("valid")
        lines = trainee.task.dataset("valid")
        order = by_length(lines)
        middle = order[len(order) // 4 : len(order) - len(order) // 4]
        wanted = min(SETTINGS[self.kind, self.small].batch, tokens) // self.pieces
        often = 1 + wanted // int(lines.tgt_sizes[middle].sum())
        batch = trainee.placed(lines.collater([lines[i] for i in middle * often]))
        trainee.update(batch)  # warms up
        seconds = trainee.update(batch) * wanted / batch["ntokens"]
        size = sum(
            parameter.numel() * (12 if parameter.requires_grad else 4)  # Adam has two means
            for parameter in trainee.model.parameters()
        )
        return seconds * self.pieces, size

    def run(self, data: Path, pair: Sequence[str], folder: Path, updates: int) -> None:
        """Train, from the newest whole checkpoint on, and write ``folder/drafter.pt``.

        Args:
            data: the model's translations as a data folder.
            pair: the languages.
            folder: for the checkpoints, which are removed at the end.
            updates: how many.
        """
        import torch
        from tqdm import tqdm

        folder.mkdir(exist_ok=True)
        done = repair(folder)
        words = ["--save-dir", str(folder), "--no-epoch-checkpoints"]
        # Epochs of a short text are shorter than what is worth a checkpoint.
        words += ["--save-interval", "1000000", "--validate-interval", "1000000"]
        words += ["--save-interval-updates", str(-(-updates // 100))]
        words += ["--keep-interval-updates", str(LAST), "--log-interval", str(-(-updates // 200))]
        words += ["--no-progress-bar", "--log-format", "json"]
        with tqdm(
            desc="training", total=updates, initial=done, unit=" updates", disable=None
        ) as bar:
            if done < updates:
                with _logged(folder / "train.log", bar):
                    self._train(data, pair, updates, words)
        state = average(last_checkpoints(folder, LAST))
        state["cfg"] = plain_config(state["cfg"])
        partial = folder / "drafter.pt.partial"
        torch.save(shrink(alone(state, folder)), partial)
        partial.replace(folder / "drafter.pt")
        for path in folder.glob("checkpoint*.pt"):
            path.unlink()

    def parse(self, data: Path, pair: Sequence[str], updates: int, more: Sequence[str]) -> Any:
        """Return fairseq-train's settings.

        Raises:
            UsageError: a flag is unknown or wrong, or the verifier takes no drafter.
        """
        from fairseq import options

        def refuse(message: str) -> NoReturn:
            raise option_error("--", " ".join(self.more), f"flags of fairseq-train ({message})")

        words = [str(data), "-s", pair[0], "-t", pair[1], "--arch", KINDS[self.kind][0]]
        parser = options.get_training_parser()
        parser.error = refuse
        return options.parse_args_and_arch(parser, [*words, *self.flags(updates), *more])

    def _train(self, data: Path, pair: Sequence[str], updates: int, more: Sequence[str]) -> None:
        """Train as fairseq-train does."""
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf
        from fairseq_cli import train  # type: ignore[import-untyped]

        train.main(convert_namespace_to_omegaconf(self.parse(data, pair, updates, more)))


class _Progress(logging.Handler):
    """Moves a bar to the number of updates that fairseq logs."""

    def __init__(self, bar: Any) -> None:
        super().__init__()
        self.bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        """Read a record; the updates' are JSON."""
        if record.name == "train_inner":
            self.bar.update(int(json.loads(record.getMessage())["num_updates"]) - self.bar.n)


@contextlib.contextmanager
def _logged(path: Path, bar: Any) -> Iterator[None]:
    """Let fairseq log to a file and a bar, and not to the terminal."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    with path.open("a", encoding="utf-8") as stream:
        root.handlers = [logging.StreamHandler(stream), _Progress(bar)]
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.handlers = handlers
            root.setLevel(level)
