"""Compares an imported model with transformers, on sentences in ten scripts: one verdict."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ... import extras
from ...batch import Batch
from ...engine.chunk import ChunkScorer
from ...engine.settings import Engine
from ...errors import option_error
from ...model.dictionary import EOS, PAD
from ...text.bpe import SPACE
from ..translator import Translator
from . import hugging_face, writing
from .foreign import Foreign, dictionary_order

#: Twenty sentences in each of ten scripts.
SENTENCES = Path(__file__).with_name("sentences.txt")

#: Log-probabilities that are closer are equal: sums of fp32 in another order.
CLOSE = 1e-3

#: Tokens of an output at most, and sentences that are decoded together.
LONGEST, BATCH = 100, 20


@dataclass
class Count:
    """Of one comparison: sentences that are equal, and differ by a tie alone; the first others."""

    name: str
    same: int = 0
    ties: int = 0
    others: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        ties = f" and {self.ties} ties" if self.ties else ""
        total = self.same + self.ties + len(self.others)
        return f"{self.name} {self.same}{ties} of {total}"


class There:
    """The model in transformers, which reads and writes its own numbers of words.

    Raises:
        UsageError: transformers is not installed, or does not load the model.
    """

    def __init__(self, folder: Path, given: Foreign) -> None:
        with extras.named("--selftest"):
            import transformers
        transformers.utils.logging.set_verbosity_error()
        self.version = f"transformers {transformers.__version__}"
        try:
            loaded: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # it raises many kinds
            why = " ".join(str(error).split())[:300]
            allowed = f"a model and a tokenizer that transformers loads ({why})"
            raise option_error("--selftest", str(folder), allowed) from error
        self.model = loaded.float().eval()
        self.first = None if given.first is None else given.words[1].index(given.first)
        if self.first is not None:
            self.tokenizer.src_lang = given.before[0].strip("_")
        self.before = "" if given.first is not None else "".join(f"{w} " for w in given.before)
        if given.sides is not None:  # pieces of a text
            self.before = "".join(given.before).replace(SPACE, " ").lstrip() + " "

    def read(self, line: str) -> list[int]:
        """Split a sentence."""
        numbers: list[int] = self.tokenizer(self.before + line)["input_ids"]
        return numbers

    def arguments(self, sources: Sequence[list[int]]) -> dict[str, Tensor]:
        """Return sources as the model takes them."""
        rows = [torch.tensor(row) for row in sources]
        mask = pad_sequence([torch.ones_like(row) for row in rows], True)
        return {
            "input_ids": pad_sequence(rows, True, self.model.config.pad_token_id),
            "attention_mask": mask,
        }

    def generate(self, sources: Sequence[list[int]], beam: int, longest: int) -> list[list[int]]:
        """Return the best outputs, up to ``</s>``."""
        config = self.model.config
        outputs = self.model.generate(
            **self.arguments(sources),
            do_sample=False,
            num_beams=beam,
            early_stopping=beam > 1,
            length_penalty=1.0 if self.first is None else 0.0,
            max_new_tokens=longest + 1,
            min_length=0,
            forced_bos_token_id=self.first,
            forced_eos_token_id=config.eos_token_id,
            bad_words_ids=[[config.pad_token_id]],
        )
        rows = [row[1:] for row in outputs.tolist()]
        return [row[: row.index(config.eos_token_id) + 1] for row in rows]

    def logits(self, sources: Sequence[list[int]], fed: Tensor) -> Tensor:
        """Return the logits behind what the decoder is fed, B×T×V."""
        logits: Tensor = self.model(**self.arguments(sources), decoder_input_ids=fed).logits
        return logits


class Here:
    """The imported model; numbers of words are those of transformers."""

    def __init__(self, translator: Translator, given: Foreign) -> None:
        self.translator, self.unnormalized = translator, given.first is not None
        assert translator.core is not None, "native passes know what is imported"
        self.model = translator.core.model
        self.sources, self.targets = map(dictionary_order, given.words)
        self.places = {there: here for here, there in enumerate(self.sources)}
        self.fed = {there: here for here, there in enumerate(self.targets)}

    def read(self, line: str) -> list[int | None]:
        """Split a sentence."""
        numbers = self.translator.sources.encode_line(self.translator.encode(line))
        return [self.sources[number] for number in numbers]

    def tokens(self, sources: Sequence[list[int]]) -> np.ndarray:
        """Return sources as the model takes them, padded on the left."""
        rows = [torch.tensor([self.places[number] for number in row]) for row in sources]
        tokens: np.ndarray = pad_sequence(rows, True, PAD, padding_side="left").numpy()
        return tokens

    def generate(
        self, sources: Sequence[list[int]], beam: int, longest: int
    ) -> list[list[int | None]]:
        """Return the best outputs, up to ``</s>``."""
        options: dict[str, Any] = {"decoding": "greedy", "max_len_b": longest}
        if beam > 1:
            options |= {"decoding": "multiword_beam", "beam": beam}
            options |= {"unnormalized": self.unnormalized}
        batch = Batch(self.tokens(sources), np.arange(len(sources)))
        outputs = self.translator.decode(self.translator.generator(options), batch)
        return [[self.targets[token] for token in row[0]["tokens"].tolist()] for row in outputs]

    def logits(self, sources: Sequence[list[int]], fed: Tensor) -> Tensor:
        """Return the logits behind what the decoder is fed, B×T×V; it begins with ``</s>``."""
        own = [[EOS, *(self.fed[token] for token in row[1:])] for row in fed.tolist()]
        scorer = ChunkScorer(self.model, Engine(kind="native"))
        scorer.encode(self.tokens(sources))
        states, name = scorer.step(np.array(own)), "decoder.output_projection"
        logits = torch.from_numpy(states @ self.model.weight(f"{name}.weight").T)
        if self.model.architecture.output_bias:
            logits += torch.from_numpy(self.model.weight(f"{name}.bias"))
        known = [number is not None for number in self.targets]
        order = torch.tensor([number for number in self.targets if number is not None])
        return logits.new_zeros(*logits.shape[:2], len(order)).index_copy(
            2, order, logits[..., torch.tensor(known)]
        )


@torch.no_grad()
def selftest(given: Path, source: str | None, target: str | None) -> tuple[bool, list[str]]:
    """Import a model, and compare logits, greedy outputs and those of beam 5 with transformers.

    Returns:
        Whether all is equal, and what to print; the last line is the verdict.

    Raises:
        UsageError: it cannot be imported, or transformers does not load it.
    """
    model = hugging_face.read(given, source, target)
    there = There(given, model)
    with tempfile.TemporaryDirectory() as folder:
        writing.write(model, Path(folder))
        here = Here(Translator(Path(folder)), model)
    config = there.model.config
    most = min(here.model.max_positions())
    longest = min(LONGEST, most - 3)
    split, greedy, beams = Count("sources"), Count("greedy"), Count("beam 5")
    lines, sources = [], []
    for line in SENTENCES.read_text("utf-8").splitlines():
        wanted, read = there.read(line), here.read(line)
        _add(split, line, read == wanted)
        if len(wanted) < most:
            lines.append(line)
            sources.append(wanted)
    furthest = 0.0
    order = sorted(range(len(lines)), key=lambda number: len(sources[number]))
    for begin in range(0, len(order), BATCH):
        some = [sources[number] for number in order[begin : begin + BATCH]]
        for beam, count in ((1, greedy), (5, beams)):
            wanted_rows = there.generate(some, beam, longest)
            rows = here.generate(some, beam, longest)
            scores = _scores(there, some, wanted_rows), _scores(there, some, rows)
            if beam == 1:
                fed = _fed(wanted_rows, config)
                apart = there.logits(some, fed) - here.logits(some, fed)
                apart[..., config.pad_token_id] = 0  # which may be left out of the softmax
                for row, output in zip(apart, wanted_rows, strict=True):
                    furthest = max(furthest, float(row[: len(output)].abs().max()))
            for at, row in enumerate(rows):
                best = wanted_rows[at]
                if beam > 1 and max(len(row), len(best)) > longest:
                    continue  # at the limit the two count </s> differently
                tie = _tie(row, best, scores[1][at], scores[0][at], beam, there.first is None)
                _add(count, lines[order[begin + at]], row == best, tie)
    passed = furthest < CLOSE and not (split.others or greedy.others or beams.others)
    said = [
        f"{tally.name}: {line}" for tally in (split, greedy, beams) for line in tally.others[:3]
    ]
    said.append(
        f"selftest {'passed' if passed else 'FAILED'}: {type(there.model).__name__} "
        f"{model.source}-{model.target}, {there.version}: {split}, logits to {furthest:.0e}, "
        f"{greedy}, {beams}"
    )
    return passed, said


def _add(count: Count, line: str, is_same: bool, is_tie: bool = False) -> None:
    """Count a sentence."""
    if is_same:
        count.same += 1
    elif is_tie:
        count.ties += 1
    else:
        count.others.append(line)


def _fed(outputs: Sequence[Sequence[int | None]], config: Any) -> Tensor:
    """Return what the decoder is fed for these outputs, padded by ``</s>``."""
    rows = [torch.tensor([config.decoder_start_token_id, *row[:-1]]) for row in outputs]
    return pad_sequence(rows, True, config.eos_token_id)


def _scores(
    there: There, sources: Sequence[list[int]], outputs: Sequence[Sequence[int | None]]
) -> list[Tensor]:
    """Return the log-probabilities of each output's tokens."""
    log_probs = there.logits(sources, _fed(outputs, there.model.config)).log_softmax(-1)
    return [
        row[: len(output)].gather(1, torch.tensor(output)[:, None]).flatten()
        for row, output in zip(log_probs, outputs, strict=True)
    ]


def _tie(
    row: Sequence[int | None],
    wanted: Sequence[int],
    own: Tensor,
    theirs: Tensor,
    beam: int,
    by_length: bool,
) -> bool:
    """Return whether two outputs are equally good: greedy's where they part, a beam's as wholes."""
    if beam == 1:
        at = next((i for i, pair in enumerate(zip(row, wanted)) if pair[0] != pair[1]), 0)
        return abs(float(own[at] - theirs[at])) < CLOSE
    sums = [float(scores.sum()) / (len(scores) if by_length else 1) for scores in (own, theirs)]
    return abs(sums[0] - sums[1]) < CLOSE
