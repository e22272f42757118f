"""Training of a drafter by fairseq in this process: settings, estimate, and going on."""

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..errors import option_error
from ..translator.batches import from_short_to_long
from . import schedule
from .checkpoints import average, last_checkpoints, repair
from .commands.shrink import alone, plain_config, shrink
from .settings import Flags, Recipe, data, recipe_of, words

#: Checkpoints that are averaged, the last ones; one is written in each hundredth of the updates.
LAST = 5

#: Up to this width a model is small.
SMALL = 256

#: The architecture of each kind of drafter, and the --decoding that it is for.
KINDS = {"shallow": ("shallow_decoder", "assisted"), "block": ("block_nat_fast", "gad")}


class Training(NamedTuple):
    """A drafter's training."""

    kind: str  # of the drafter
    verifier: Path  # the model's checkpoint
    small: bool  # whether the model is
    updates: int | None  # how many; None: as the preset says, for the text's length
    seed: int  # of the drafter and of the order of batches
    device: str  # ``cpu`` or ``cuda``
    more: Sequence[str]  # flags of fairseq-train that win over the others

    @property
    def usual(self) -> Recipe:
        """How such a drafter is trained."""
        conditions = {self.device, "started", "fast", "prefix_causal"}
        return recipe_of(KINDS[self.kind][0], "tiny" if self.small else "iwslt", conditions)

    def length(self, tokens: int) -> int:
        """Return the number of updates for a text with so many target tokens."""
        text, usual = data()["text"], self.usual
        most = usual.updates or text["updates"]
        return self.updates or max(1, min(most, text["epochs"] * tokens // usual.batch))

    @property
    def pieces(self) -> int:
        """Return the number of pieces that a batch is made of, as each must fit into memory."""
        return -(-self.usual.batch // self.usual.piece)

    def flags(self, updates: int) -> list[str]:
        """Return the flags of fairseq-train, without the data and the architecture."""
        usual = self.usual
        flags: Flags = {"encoder-from": self.verifier} | usual.flags
        flags |= schedule.fit(usual.flags, updates, usual.warmup_share)
        flags |= {"max-tokens": usual.batch // self.pieces, "update-freq": self.pieces}
        flags |= {"max-update": updates, "seed": self.seed, "num-workers": 0}
        flags |= {"skip-invalid-size-inputs-valid-test": True, "distributed-world-size": 1}
        flags |= {"cpu" if self.device == "cpu" else "fp16": True}
        return [*words(flags), *self.more]

    def measure(self, folder: Path, pair: Sequence[str], tokens: int) -> tuple[float, float]:
        """Make some updates on held-out lines of middle length, as often as fills a batch.

        Args:
            folder: with the held-out lines.
            pair: the languages.
            tokens: of the whole text, which may be shorter than a batch.

        Returns:
            The seconds of an update, and the bytes of a checkpoint.
        """
        from .trainee import Trainee

        flags = ["-s", pair[0], "-t", pair[1], *self.flags(self.length(tokens))]
        trainee = Trainee(str(folder), KINDS[self.kind][0], flags, self.device)
        trainee.task.load_dataset("valid")
        lines = trainee.task.dataset("valid")
        order = from_short_to_long(lines)
        middle = order[len(order) // 4 : len(order) - len(order) // 4]
        wanted = min(self.usual.batch, tokens) // self.pieces
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
        from tqdm import tqdm

        from ..plugin.files import saving

        folder.mkdir(exist_ok=True)
        done = repair(folder)
        flags: Flags = {"save-dir": folder, "no-epoch-checkpoints": True}
        # Epochs of a short text are shorter than what is worth a checkpoint.
        flags |= {"save-interval": 1000000, "validate-interval": 1000000}
        flags |= {"save-interval-updates": -(-updates // 100), "keep-interval-updates": LAST}
        flags |= {"log-interval": -(-updates // 200), "no-progress-bar": True, "log-format": "json"}
        with tqdm(
            desc="training", total=updates, initial=done, unit=" updates", disable=None
        ) as bar:
            if done < updates:
                with _logged(folder / "train.log", bar):
                    self._train(data, pair, updates, words(flags))
        state = average(last_checkpoints(folder, LAST))
        state["cfg"] = plain_config(state["cfg"])
        with saving("--save-dir", folder / "drafter.pt", shrink(alone(state, folder))):
            pass
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

        given = [str(data), "-s", pair[0], "-t", pair[1], "--arch", KINDS[self.kind][0]]
        parser = options.get_training_parser()
        parser.error = refuse
        return options.parse_args_and_arch(parser, [*given, *self.flags(updates), *more])

    def _train(self, data: Path, pair: Sequence[str], updates: int, more: Sequence[str]) -> None:
        """Train as fairseq-train does."""
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf
        from fairseq_cli import train  # type: ignore[import-untyped]

        given = self.parse(data, pair, updates, more)
        if "--warmup-updates" in self.more:
            schedule.check(given.warmup_updates, updates, "--updates")
        train.main(convert_namespace_to_omegaconf(given))


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
