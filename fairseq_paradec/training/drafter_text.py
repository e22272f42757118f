"""Raw text and a model's own translations of it as a data folder: what a drafter learns from."""

import dataclasses
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli.translate import read_lines
from ..errors import option_error
from ..files import checksum, replacing
from ..translator.corpus import crews, parts
from ..translator.model_folder import ModelFolder
from ..utf8 import bare
from .distill import merge, plan

if TYPE_CHECKING:  # torch takes seconds to load
    from ..translator.translator import Translator

#: Held out is one line in ``SHARE``, and at most ``MOST`` lines.
SHARE, MOST = 10, 200

#: Longer lines, in tokens, are left out: they would not fit into a batch of training.
LONGEST = 1000

#: Source tokens that are translated together.
MAX_TOKENS = 2000

#: What the source data are made of; written last.
RECORD = "made-of.json"


def made_of(texts: Sequence[Path], path: Path, folder: ModelFolder) -> dict[str, Any]:
    """Return checksums of all that translations depend on: text, model and text processing."""
    bare = dataclasses.replace(folder, drafter=None, checked={})
    settings = dataclasses.asdict(bare) | {"text": [checksum(text) for text in texts]}
    del settings["checked"]
    return settings | {"files": {name: checksum(path / name) for name in bare.files}}


def write_sources(data: Path, texts: Sequence[Path], translator: "Translator", record: Any) -> None:
    """Write the text's different lines as the sources of a data folder: train, and valid.

    Args:
        data: the folder; one that is finished stays as it is.
        texts: files, a sentence a line.
        translator: of the model folder.
        record: what the sources are made of.

    Raises:
        UsageError: there are too few lines, a file is not text in UTF-8, or ``data`` was made of
            other files.
    """
    if (data / RECORD).is_file():
        if json.loads((data / RECORD).read_text("utf-8")) != record:
            allowed = "a new folder, as this was begun with another --text or --model"
            raise option_error("--save-dir", str(data.parent), allowed)
        return
    count = sum(1 for _ in different(read_lines(texts, "--text")))
    if count < SHARE:
        names = " ".join(map(str, texts))
        allowed = f"at least {SHARE} different lines, as one in {SHARE} is held out; found {count}"
        raise option_error("--text", names, allowed)
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    folder = translator.folder
    for language in (folder.source, folder.target):
        shutil.copyfile(translator.path / f"dict.{language}.txt", data / f"dict.{language}.txt")
    _write_subsets(data, different(read_lines(texts, "--text")), translator, count)
    with replacing(data / RECORD) as partial:
        partial.write_text(json.dumps(record), "utf-8")


def _write_subsets(data: Path, lines: Iterable[str], translator: "Translator", count: int) -> None:
    """Write ``count`` lines as train and, evenly spaced, valid."""
    from fairseq.data import indexed_dataset

    folder, words = translator.folder, translator.task.source_dictionary
    stems = {
        subset: str(data / f"{subset}.{folder.source}-{folder.target}.{folder.source}")
        for subset in ("train", "valid")
    }
    builders = {
        subset: indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=len(words))
        for subset, stem in stems.items()
    }
    step = max(SHARE, count // MOST)
    for number, line in enumerate(lines):
        tokens = words.encode_line(translator.encode(line), add_if_not_exist=False)
        if len(tokens) <= LONGEST:
            held_out = number % step == 0 and number // step < MOST
            builders["valid" if held_out else "train"].add_item(tokens)
    for subset, stem in stems.items():
        builders[subset].finalize(f"{stem}.idx")


def different(lines: Iterable[str]) -> Iterator[str]:
    """Yield each line once, without blank ones."""
    seen = set()
    for line in map(bare, lines):
        key = hash(line)  # a long text's lines would not fit into memory
        if line and key not in seen:
            seen.add(key)
            yield line


class Subset:
    """A subset of sources, and its greedy translations in a folder of their own.

    Args:
        data: with the sources.
        name: ``train`` or ``valid``.
        dest: the folder with the translations as targets, and DATA's other subsets.
        translator: of the model folder.
    """

    def __init__(self, data: Path, name: str, dest: Path, translator: "Translator") -> None:
        self.data, self.dest = data, dest
        self.model = str(translator.path / translator.folder.model)
        request = plan.Request(data, name, self.model, beam=1, max_tokens=MAX_TOKENS)
        self.settings = plan.settings_of(request) | {"decoding": "greedy"}
        self.sources = plan.load_sources(data, self.settings)
        self.translate = plan.by_number(
            translator.task,
            translator.models,
            translator.generator({"decoding": "greedy"}),
            self.sources,
            translator.device,
        )

    @property
    def tokens(self) -> int:
        """The number of source tokens."""
        return int(self.sources.sizes.sum())

    def finish(self) -> None:
        """Translate what is not translated yet, part by part, and make the folder.

        Raises:
            UsageError: no sentence has a translation.
        """
        self.dest.mkdir(exist_ok=True)
        parts.begin(self.dest, self.settings, "--save-dir", plan.FILES)
        report = self.dest / merge.REPORT
        if not report.is_file():
            work = partial(plan.content, self.translate)
            todo = list(plan.parts_of(self.sources, self.settings))
            parts.make(self.dest, todo, crews.alone(lambda: work), lambda: len(self.sources))
            merge.merge(self.data, self.dest, self.settings, self.sources, todo)
        counts = json.loads(report.read_text(encoding="utf-8"))
        if counts["sentences"] == counts["left out"]:
            allowed = "a model that translates the text; all of its translations are empty"
            raise option_error("--model", self.model, allowed)
