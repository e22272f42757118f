"""A loaded model folder: plain text in, plain text out."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ..batch import Batch, Hooks
from ..config import ALL, LARGEST, DecodingConfig
from ..errors import UsageError, excludes, option_error, refuse_unknown
from ..forks import computing
from ..methods.base import Context, refuse_drafts
from ..methods.build import build_decoder
from ..methods.configure import configure, native_decoding
from ..methods.each_sentence import Hypotheses, decode_each, problems_of
from ..methods.stock import StockDecoder
from ..model.dictionary import Dictionary
from ..registry import METHODS, check_models
from ..utf8 import bare
from . import model_folder
from .batches import by_length, collate
from .loading import CoreModels, Modules, read_core
from .model_folder import ModelFolder
from .pipe import take
from .text_processing import TextProcessing
from .translation import Admit, Line, OnFinish, OnPass, Translation, telling, translation_of

if TYPE_CHECKING:
    from .documents import Text
    from .scoring import Score

#: Sentences and source tokens in a batch, and lines that are sorted by length together.
BATCH_SIZE, MAX_TOKENS, BUFFER_SIZE = 32, 4000, 512

#: So many decoders are kept, of as many sets of options; the newest ones.
GENERATORS = 32
#: Options of more than one text, or of what is printed beside it.
UNREAD = ("nbest", "print_alignment", "retain_iter_history")


class Translator:
    """The model of a folder, with its text processing; it decodes as fairseq-interactive does.

    Args:
        path: the folder.
        folder: what it holds; None: as its ``paradec.json`` says.
        device: ``cpu`` or ``cuda``.
        flag: the flag that names the folder or its model, for errors.

    Raises:
        UsageError: it is no model folder, or its files do not fit each other.
    """

    @computing()
    def __init__(
        self,
        path: Path,
        folder: ModelFolder | None = None,
        device: str = "cpu",
        flag: str = "--model",
    ) -> None:
        self.path = path
        self.folder = folder or model_folder.read(path, flag)
        self.device = device
        self._modules = Modules(path, self.folder, device, flag)
        self.processing = TextProcessing(path, self.folder)
        self.sources, self.targets = (
            Dictionary.read(path / f"dict.{language}.txt")
            for language in (self.folder.source, self.folder.target)
        )
        self._core = read_core(path, self.folder, device, (self.sources, self.targets))
        if self._core is not None:
            self._longest = self._core.model.max_positions()[0]
        else:  # torch computes, or fairseq says what is wrong
            self._longest = self.task.positions(self.models)[0]
        self._generators: dict[str, Any] = {}

    @property
    def models(self) -> list[Any]:
        """The folder's model, as fairseq loads it."""
        return self._modules.get()[0]

    @property
    def task(self) -> Any:
        """Fairseq's task of the model."""
        return self._modules.get()[1]

    @property
    def core(self) -> CoreModels | None:
        """The model and its drafters as read without torch; None: fairseq loads them."""
        return self._core

    @property
    def longest(self) -> int:
        """How many tokens a source may have, with ``</s>``."""
        return self._longest

    @property
    def _known(self) -> list[Any]:
        """The model, as far as it is loaded."""
        return self.models if self._core is None else [self._core.model]

    def twin(self) -> "Translator":
        """Return another of the same models, for a thread of its own: it shares their weights."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._generators = {}
        return other

    __copy__ = twin

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the folder's place: who unpickles it, or makes a deep copy, loads it again."""
        from .. import load

        return load, (str(self.path.absolute()), str(self.device))

    @overload
    def translate(self, sentences: str, **options: Any) -> str: ...
    @overload
    def translate(self, sentences: Iterable[str], **options: Any) -> list[str]: ...
    def translate(self, sentences: str | Iterable[str], **options: Any) -> str | list[str]:
        """Translate sentences; an empty one, or one that is too long, gives an empty text.

        Args:
            sentences: plain text, a sentence each; or one sentence, whose translation is returned.
            options: see ``results``; of one sentence see ``of_one_sentence``.
        """
        if isinstance(sentences, str):
            (text,) = self.stream([sentences], **self.of_one_sentence(options))
            return text
        return list(self.stream(sentences, **options))

    def score(
        self,
        sources: Iterable[str],
        targets: Iterable[str],
        batch_size: int = BATCH_SIZE,
        max_tokens: int = MAX_TOKENS,
        buffer_size: int = BUFFER_SIZE,
        **options: Any,
    ) -> Iterator["Score"]:
        """Return what the model says of translations, in their order.

        Args:
            sources: plain text, a sentence each, read ``buffer_size`` at a time.
            targets: a translation of each.
            batch_size: sentences scored together, at most; they are of like length.
            max_tokens: source tokens scored together, at most, padding among them.
            buffer_size: sentences that are sorted by length together.
            options: ``engine``, ``engine_dtype``, ``lenpen``, ``unnormalized`` and others of
                greedy search.

        Raises:
            UsageError: an option is wrong, a sentence no text, there are more sources or more
                targets, or the model does not write from left to right.
        """
        from .scoring import scores_of

        _check_sizes(batch_size=batch_size, max_tokens=max_tokens, buffer_size=buffer_size)
        for texts in (sources, targets):
            _check_list("score()", texts, "lists of sentences")
        sizes = batch_size, max_tokens, buffer_size
        return scores_of(self, sources, targets, *sizes, options)

    def stream(self, lines: Iterable[str], **options: Any) -> Iterator[str]:
        """Return the translations as plain text; see ``results``."""
        return (result.text for result in self.results(lines, **options))

    def results(
        self,
        lines: Iterable[str],
        batch_size: int = BATCH_SIZE,
        max_tokens: int = MAX_TOKENS,
        buffer_size: int = BUFFER_SIZE,
        drafts: Iterable[str] | None = None,
        others: int = 0,
        on_pass: Sequence[OnPass | None] | None = None,
        on_finish: Sequence[OnFinish] | None = None,
        admit: Admit | None = None,
        first: int = 0,
        **options: Any,
    ) -> Iterator[Translation]:
        """Return what becomes of the lines, in their order, each as soon as those before are there.

        Options are checked by the call, lines as they are read.

        Args:
            lines: plain text, a sentence each, read ``buffer_size`` at a time, of a ``Pipe`` as
                many as are there.
            batch_size: sentences decoded together, at most; they are of like length.
            max_tokens: source tokens decoded together, at most, padding among them.
            buffer_size: lines that are sorted by length together.
            drafts: for each line an earlier translation of it, or of one that is nearly the same;
                an empty text: there is none. They change passes, and no output.
            others: so many of the next best outputs of a beam search are returned, too; with
                ``sampling`` so many further draws, the best of all first.
            on_pass: for each line who is told its passes; the decoder then keeps what a trace
                needs, which takes time. None: nobody is. Of several draws no passes are told.
            on_finish: for each line who is told what became of it, if that is known before the
                other lines of its batch are; not every decoder tells. None: nobody is.
            admit: is asked for sentences that enter the batch where others have left it, if the
                lines are one batch; native passes ask. They are told as ``on_finish`` is, and not
                yielded. None: none enter.
            first: the number of the first line; reports name lines so, and a seed's draws of a line
                depend on its number.
            options: the plugin's and fairseq's flags of generation, by their names. ``decoding``
                is ``auto_fast`` unless given, or the method of a model that has one of its own.

        Raises:
            UsageError: an option is wrong, a line or a draft is no text, there are more or fewer
                drafts than lines, or fewer hooks, or the decoder takes no drafts or
                tells no passes.
        """
        _check_sizes(batch_size=batch_size, max_tokens=max_tokens, buffer_size=buffer_size)
        for name, count in (("others", others), ("first", first)):
            if type(count) is not int or count < 0:
                raise option_error(name, count, "a whole number from 0 up")
        _check_list("translate()", lines, "a list of sentences")
        _check_list("--drafts", () if drafts is None else drafts, "a list of texts")
        for name, some in (("on_pass", on_pass), ("on_finish", on_finish)):
            if some is not None and not isinstance(some, Sequence):
                raise option_error(name, some, "a list, with one for each line of text")
        generator = self.generator(options, on_pass is not None, others)
        if drafts is not None:
            named = {**self.folder.settings, **options}.get("decoding")
            refuse_drafts(generator, generator.config, named)
        translate = partial(self._window, generator, batch_size, max_tokens, others, admit, first)
        return self._windows(translate, iter(lines), buffer_size, drafts, on_pass, on_finish)

    def _windows(
        self,
        translate: Callable[[Sequence[Line], int], Iterator[Translation]],
        left: Iterator[str],
        buffer_size: int,
        drafts: Iterable[str] | None,
        on_pass: Sequence[OnPass | None] | None,
        on_finish: Sequence[OnFinish] | None,
    ) -> Iterator[Translation]:
        """Yield what becomes of the lines, by windows; see ``results``, which has checked the rest.

        Args:
            translate: translates a window, whose first line has this number.
            left: the lines.
            buffer_size: lines of a window.
            drafts: for each line.
            on_pass: for each line.
            on_finish: for each line.
        """
        hooks, first = {"on_pass": on_pass, "on_finish": on_finish}, 0
        earlier = None if drafts is None else iter(drafts)
        while texts := take(left, buffer_size):
            for text in texts:
                if not isinstance(text, str):
                    raise option_error("translate()", text, "a list of sentences")
            last = first + len(texts)
            for name, some in hooks.items():
                if some is not None and len(some) < last:
                    raise option_error(name, f"{len(some)}", "one for each line of text")
            nothing = [None] * len(texts)
            window = map(
                Line,
                texts,
                nothing if earlier is None else self._drafts(earlier, len(texts), first),
                nothing if on_pass is None else on_pass[first:last],
                nothing if on_finish is None else on_finish[first:last],
            )
            yield from translate(list(window), first)
            first = last
        if earlier is not None and next(earlier, None) is not None:
            raise option_error("--drafts", f"more than {first} lines", "one for each line of text")

    def texts(
        self,
        texts: Iterable[str],
        format: str = "text",
        drafts: Iterable[str] | None = None,
        together: int = 1,
        **options: Any,
    ) -> Iterator["Text"]:
        """Return the translations of whole texts, put together as the texts are.

        Args:
            texts: plain text of any length, HTML or Markdown.
            format: ``text``, ``html`` or ``markdown``; see ``documents.py``.
            drafts: for each text an earlier translation of it, or of one that is nearly the same.
            together: texts whose sentences are decoded together; of a ``Pipe`` at most.
            options: see ``results``.

        Raises:
            UsageError: as in ``results``; there is no such format.
        """
        _check_list("texts()", texts, "a list of texts")
        _check_sizes(together=together)
        from .markup import parse

        parse("", format)
        self.results((), drafts=drafts, **options)  # checks them
        return self._texts(iter(texts), format, drafts, together, options)

    def _texts(
        self,
        left: Iterator[str],
        format: str,
        drafts: Iterable[str] | None,
        together: int,
        options: dict[str, Any],
    ) -> Iterator["Text"]:
        """Yield the translations; see ``texts``, which has checked the rest."""
        from .documents import Document

        earlier, options = None if drafts is None else iter(drafts), {"first": 0} | options
        while texts := take(left, together):
            documents, known = [], None if earlier is None else list[str]()
            for text in texts:
                if not isinstance(text, str):
                    raise option_error("texts()", text, "a list of texts")
                with computing():  # the first one imports what splits sentences
                    documents.append(Document(text, format, self.folder.source))
                if earlier is not None and known is not None:
                    draft = next(earlier, None)
                    if not isinstance(draft, str):
                        raise option_error("--drafts", draft, "an earlier translation of each text")
                    known += documents[-1].drafts(draft)
            sentences = [sentence for one in documents for sentence in one.sentences]
            results = self.results(sentences, drafts=known, **options)
            options["first"] += len(sentences)
            for document in documents:
                own = islice(results, len(document.sentences))
                yield document.join([None if result.problem else result.text for result in own])

    @computing()
    def generator(self, options: dict[str, Any], traced: bool = False, others: int = 0) -> Any:
        """Return the generator of some options; it is built once, as auto_fast measures once.

        Args:
            options: see ``results``.
            traced: whether passes are told.
            others: further outputs of a sentence, which are drawn if options say so.
        """
        draws = 1 + others if options.get("sampling") else 1
        if traced and draws > 1:
            raise excludes("on_pass", True, f"sampling with others={others}: of one draw alone")
        key = repr((sorted(options.items()), traced, draws))
        if key not in self._generators:
            options = {**self.folder.settings, **options}
            refuse_unknown("translate()", options, ALL)
            for name in UNREAD:
                if options.get(name, ALL[name].default) not in (ALL[name].default, False):
                    raise UsageError(f"{name}: translate() gives one text a sentence, without it")
            usual = "greedy" if options.get("sampling") else "auto_fast"
            options["decoding"] = decoding = options.get("decoding") or self.usual(usual)
            if draws > 1:
                options["nbest"] = draws
            if self._core is not None:
                options["decoding"] = native_decoding(options, [self._core.model])
            method = METHODS.get(decoding) if isinstance(decoding, str) else None
            drafts = method is not None and "drafter_path" in method.reads
            if drafts and self.folder.drafter is not None:
                options.setdefault("drafter_path", str(self.path / self.folder.drafter))
            if traced:
                options["retain_iter_history"] = True
            config = configure(Namespace(**options))
            native = None if self._core is None else self._core.config_of(config)
            if self._core is not None and isinstance(native, DecodingConfig):
                built = self._core.build(native)
            else:
                models, task = self._modules.get(native if isinstance(native, str) else None)
                context = Context(self.targets, self.sources)
                built = build_decoder(models, config, context, task.drafters.load)
            if traced and isinstance(built, StockDecoder):
                raise UsageError(
                    f"passes: got --decoding {decoding}, fairseq's own search, which "
                    "tells none; allowed: another decoder"
                )
            while len(self._generators) >= GENERATORS:
                self._generators.pop(next(iter(self._generators)), None)
            self._generators[key] = built
        return self._generators[key]

    def of_one_sentence(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of ``results`` for one sentence, on which nothing can be measured.

        Where ``auto_fast`` would choose, and native passes decode: ``self_draft``.
        """
        given = {**self.folder.settings, **options}
        chosen = {"decoding", "engine", "engine_dtype", "sampling", *METHODS["auto_fast"].reads}
        chosen -= {"beam"}
        if self._core is None or not chosen.isdisjoint(given):
            return options
        return options | {"decoding": self.usual("self_draft")}

    def usual(self, decoding: str) -> str:
        """Return a decoding, or ``auto`` for a model that only its own method decodes."""
        try:
            check_models(decoding, self._known, None)
        except UsageError:
            return "auto"
        return decoding

    def _drafts(self, earlier: Iterator[str], count: int, first: int) -> list[list[int]]:
        """Return the tokens of the next drafts; ``first``: the number of those before.

        Raises:
            UsageError: there are fewer, or one is no text.
        """
        texts = list(islice(earlier, count))
        if len(texts) < count:
            raise option_error(
                "--drafts", f"{first + len(texts)} lines", "one for each line of text"
            )
        for text in texts:
            if not isinstance(text, str):
                raise option_error("--drafts", text, "a text for each line")
        with computing():
            return [self.targets.encode_line(self.encode_output(text), end=False) for text in texts]

    def _window(
        self,
        generator: Any,
        batch_size: int,
        max_tokens: int,
        others: int,
        admit: Admit | None,
        before: int,
        lines: Sequence[Line],
        first: int,
    ) -> Iterator[Translation]:
        """Translate some lines by batches of like length.

        The number of the first one is ``before`` and ``first`` together.
        """
        empty = Translation("", None, "is empty")
        results = {number: empty for number, line in enumerate(lines) if not bare(line.text)}
        numbers = [number for number in range(len(lines)) if number not in results]
        done, words = 0, self.targets.__getitem__
        sentences = [self._tokens(lines[number].text) for number in numbers]
        batches = by_length(sentences, batch_size, max_tokens, self._longest)
        while len(results) < len(lines):
            with computing():
                taken, batch = next(batches)
                places = [numbers[i] for i in taken]
                here, alone = [lines[place] for place in places], len(places) == len(lines)
                early: dict[int, Translation] = {}
                hooks = Hooks(
                    on_pass=[telling(line.on_pass, words) for line in here],
                    on_finish=[
                        None if line.on_finish is None else partial(self._tell, early, place, line)
                        for place, line in zip(places, here, strict=True)
                    ],
                    admit=partial(self._admit, admit) if admit and alone else None,
                )
                drafts = [line.draft or [] for line in here]
                batch = replace(
                    batch, ids=np.array(places) + before + first, drafts=drafts, hooks=hooks
                )
                hypos = self.decode(generator, batch)
                results |= early
                results |= {
                    place: translation_of(row[: 1 + others], self._plain, lines[place].draft)
                    for place, row in zip(places, hypos, strict=True)
                    if place not in early
                }
            while done in results:
                yield results[done]
                done += 1
        yield from (results[number] for number in range(done, len(lines)))

    def _tokens(self, line: str) -> list[int]:
        """Return the tokens of a line, with ``</s>``."""
        return self.sources.encode_line(self.encode(line))

    def decode(self, generator: Any, batch: Batch) -> Hypotheses:
        """Decode a batch by one of ``generator``'s; see ``methods/each_sentence.py``.

        Raises:
            UsageError: a file that the weights are mapped from was written to.
        """
        if self._core is not None:
            self._core.check_files()
        problems = problems_of(batch, self._longest, self.sources)
        return decode_each(generator.decode, batch, problems, self._known, self.targets)

    def encode(self, line: str) -> str:
        """Return the symbols of a line, with spaces between them."""
        return self.processing.encode(line)

    def encode_output(self, line: str) -> str:
        """Return the symbols of a line in the target language, as outputs have them.

        A model may have split a word otherwise than its BPE does.
        """
        return self.processing.encode_output(line)

    def _tell(
        self, early: dict[int, Translation], place: int, line: Line, hypo: dict[str, Any]
    ) -> None:
        """Tell what became of the line at a place, and keep it; see ``results``."""
        early[place] = translation_of([hypo], self._plain, line.draft)
        if line.on_finish is not None:
            line.on_finish(early[place])

    def _admit(self, admit: Admit, count: int) -> Batch | None:
        """Return a batch of sentences that enter another one; None: there are none."""
        entering = admit(count)
        if not entering:
            return None
        sentences = [self._tokens(line) for line, _ in entering]
        order, batch = collate(sentences, range(len(entering)))
        told = [entering[place][1] for place in order]
        problems = problems_of(batch, self._longest, self.sources)
        for on_finish, problem in zip(told, problems, strict=True):
            if problem is not None:
                on_finish(Translation("", None, problem))
        hooks = Hooks(on_finish=[partial(self._tell_entered, on_finish) for on_finish in told])
        good = [b for b, problem in enumerate(problems) if problem is None]
        return replace(batch, hooks=hooks).take(good) if good else None

    def _tell_entered(self, on_finish: OnFinish, hypo: dict[str, Any]) -> None:
        """Tell what became of a line that entered."""
        on_finish(translation_of([hypo], self._plain))

    def _plain(self, hypo: dict[str, Any]) -> str:
        """Return a hypothesis as plain text."""
        return self.processing.decode(self.targets.string(hypo["tokens"].tolist()))


def _check_sizes(**sizes: Any) -> None:
    """Refuse sizes of batches that are none.

    Raises:
        UsageError: one is no whole number, or out of range.
    """
    for name, size in sizes.items():
        if type(size) is not int or not 1 <= size <= LARGEST:
            raise option_error(name, size, f"a whole number from 1 to {LARGEST}")


def _check_list(name: str, given: Any, allowed: str) -> None:
    """Refuse one text, or what is no list, in place of a list of texts.

    Raises:
        UsageError: it is one; ``name`` and ``allowed`` are for the message.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise option_error(name, given, allowed)
