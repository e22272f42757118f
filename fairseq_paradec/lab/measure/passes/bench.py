"""All passes, searches and products that are timed, in interleaved rounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....decoding.helper import same_encoder
from ....decoding.provenance import FAIRSEQ, NATIVE, TORCH
from ....engine.block import BlockScorer
from ....engine.chunk import ChunkScorer
from ....engine.projection import DraftProjection
from ....engine.settings import Engine
from ....plugin.tasks import loading
from ....row import Row
from ....token_rules import TokenRules
from ...analysis.pass_costs import LOOPED, PLAIN, dtype_of
from ...settings import Timing
from .. import CTRANSLATE2, machine
from ..peers import translator
from ..pieces import Call, decoder_pieces, encoder_pieces, heads_pieces, piece_calls, refuse_unknown
from ..rounds import all_rounds
from .cells import Cell, Search, Steps, pass_call, product_call
from .models import DRAFTS, Pair, SizedModel, parse_engine

NEW_TOKENS = 5  # of the prefix, in a drafter's pass
SEARCH_TOKENS = 20  # that whole searches are forced to, without </s>


def peer_tokens(cached: int) -> int:
    """Return the length of CTranslate2's longer outputs: half of it is about ``cached``."""
    return 2 * cached + 1


def drafting(engine: Engine) -> Engine:
    """Return the engine of a drafter's passes."""
    return replace(engine, dtype=DRAFTS) if engine.kind == NATIVE else engine


@dataclass(frozen=True)
class PassSettings(SizedModel, Timing):
    """Of ``paradec profile passes``."""

    chunks: Sequence[int]  # numbers of tokens in a pass
    block_sizes: Sequence[int]  # numbers of masks in a drafter's pass
    batch: int  # sentences
    source_length: int  # tokens, with ``</s>``
    cached: int  # tokens in front of a chunk
    repetitions: int  # of a pass in a round
    peers: bool  # whether CTranslate2 is measured, too
    memory_mib: int  # of the large tensor
    matrix: int  # rows and columns of the matrices for peaks
    acceptance: Path | None  # a benchmark's JSON; None: no sentences are estimated
    argv: Sequence[str]  # the words after ``paradec``
    out: Path | None  # the JSON file to write; None: none
    title: str | None  # of the document; None: made of the model's name


class Bench:
    """All that is timed, and the part of the document that comes of it.

    Args:
        pair: the models.
        settings: what is timed, and how often.
        peer: a folder with the model as CTranslate2 reads it, or None.

    Raises:
        UsageError: an engine that is none, or a model of other pieces.
    """

    def __init__(self, pair: Pair, settings: PassSettings, peer: str | None) -> None:
        refuse_unknown(pair.model)
        self.pair, self.settings = pair, settings
        #: What is timed, by list of the document: its facts, and the cell.
        self.timed: dict[str, list[tuple[dict[str, Any], Cell]]] = {
            name: [] for name in ("bandwidth", "peak", "passes", "searches")
        }
        self._make_batch()
        engines = {name: parse_engine(name) for name in settings.engines}
        for name, engine in engines.items():
            self._add_engine(name, engine)
        for width, name in ((5, "fairseq beam 5"), (1, "fairseq greedy")):
            self._add_search(name, FAIRSEQ, {"decoding": "beam", "beam": width})
        for name, engine in engines.items():
            options: dict[str, Any] = {"decoding": "greedy", "engine": engine.kind}
            options |= {"engine_dtype": engine.dtype}
            self._add_search("greedy", name, options)
            if engine.kind == NATIVE:  # its greedy search has no loop
                self._add_search(LOOPED, name, options | {"decoding": "pgj", "block_size": 1})
        if peer is not None:
            self._add_peer(peer)
        self._add_reading()
        self._add_products()

    def _make_batch(self) -> None:
        """Make random sentences of one length, and random target tokens."""
        settings, words = self.settings, self.pair.task.target_dictionary
        batch, cached = settings.batch, settings.cached
        chance = torch.Generator().manual_seed(1)

        def tokens(count: int, size: int) -> Tensor:
            return torch.randint(words.nspecial, size, (batch, count), generator=chance)

        source = tokens(settings.source_length, len(self.pair.task.source_dictionary))
        source[:, -1] = words.eos()
        self.inputs: dict[str, Any] = {
            "src_tokens": source,
            "src_lengths": torch.full((batch,), settings.source_length),
            "prev_output_tokens": torch.full((batch, 1), words.eos()),
        }
        self.target = tokens(cached + max(NEW_TOKENS + 1, *settings.chunks), len(words))
        self.target[:, 0] = words.eos()
        self.rules = TokenRules(
            words.pad(),
            words.unk(),
            words.eos(),
            words.eos(),
            min_len=1,
            unk_penalty=0.0,
            temperature=1.0,
            forced_len=0,
            device=torch.device("cpu"),
        )
        self.rows = [Row(i, [], 10**6, tokens=[0] * cached) for i in range(batch)]

    # ---- passes ------------------------------------------------------------------------------

    def _add_pass(
        self, part: str, engine: str, chunk: int | None, pieces: Any, whole: Call, **calls: Any
    ) -> None:
        """Add a pass; see ``Cell`` for ``calls``."""
        head = {"part": part, "engine": engine, "chunk": chunk}
        self.timed["passes"].append((head, Cell(whole, pieces=pieces, **calls)))

    def _add_engine(self, name: str, engine: Engine) -> None:
        """Add the passes of an engine."""
        settings, scorer = self.settings, ChunkScorer(self.pair.model, engine)
        encode = partial(scorer.encode, self.inputs)
        prepare = self._behind(scorer, encode)
        prepare()
        counts = encoder_pieces(scorer, settings.source_length)
        self._add_pass("encoder", name, None, counts, encode)
        for width in settings.chunks:
            tokens = self.target[:, settings.cached : settings.cached + width]
            scorer.step(tokens)  # so that there is room in the cache, and in the causal mask
            seen = settings.cached + width
            counts = decoder_pieces(scorer, settings.source_length, width, seen)
            whole = pass_call(scorer, tokens, self.rules, self.rows)
            # A native pass is not made of pieces.
            calls = {} if scorer.native else piece_calls(scorer, tokens)
            self._add_pass("decoder", name, width, counts, whole, prepare=prepare, alone=calls)
        if self.pair.drafter is not None:
            self._add_drafter(name, engine, scorer, prepare)
        if self.pair.token_drafter is not None:
            self._add_token_drafter(name, engine, scorer, prepare)
        if self.pair.heads is not None:
            self._add_heads(name, scorer)

    def _behind(self, scorer: Any, *before: Call) -> Call:
        """Return what puts a scorer that encodes behind ``cached`` tokens."""

        def prepare() -> None:
            for call in before:
                call()
            scorer.step(self.target[:, : self.settings.cached])
            scorer.keep([self.settings.cached] * self.settings.batch)

        return prepare

    def _add_encoder(
        self, part: str, name: str, draft: Any, scorer: Any, shared: bool, encode: Call
    ) -> Call:
        """Add what gives a drafter the encoded source, and return it.

        Args:
            part: the drafter's name.
            name: of the engine.
            draft: the drafter.
            scorer: the verifier.
            shared: whether the verifier's encoder is the drafter's.
            encode: lets the verifier encode.
        """

        def begin() -> None:
            if shared:
                draft.start(scorer.encoder_out)
            else:
                draft.encode(self.inputs)

        encode()
        begin()
        counts = encoder_pieces(draft, self.settings.source_length, not shared)
        self._add_pass(f"{part}'s encoder", name, None, counts, begin, prepare=encode)
        return begin

    def _add_drafter(self, name: str, engine: Engine, scorer: Any, encode: Call) -> None:
        """Add the drafting passes of an engine, and what comes before them."""
        settings, draft = self.settings, BlockScorer(self.pair.drafter, drafting(engine))
        rows = self.target[:, 1:].tolist()  # a drafter needs no start symbol
        cached = [row[: settings.cached] for row in rows]
        prefixes = [row[: settings.cached + NEW_TOKENS] for row in rows]
        shared = self.pair.drafter.shares_encoder
        begin = self._add_encoder("drafter", name, draft, scorer, shared, encode)

        def prepare(masks: int) -> None:
            encode()
            begin()
            draft.fill(cached, masks)

        def fill(masks: int) -> Tensor:
            draft.keep([settings.cached] * settings.batch)
            states = draft.fill(prefixes, masks)
            return draft.projection.draft(states, self.rules.at(self.rows)).tokens

        for masks in settings.block_sizes:
            filled = self.pair.drafter.masks(masks)
            seen = settings.cached + NEW_TOKENS + filled
            width = NEW_TOKENS + filled if draft.caches_prefix else seen
            counts = decoder_pieces(draft, settings.source_length, width, seen, masks)
            whole, before = partial(fill, masks), partial(prepare, masks)
            self._add_pass("drafter", name, masks, counts, whole, prepare=before)

    def _add_token_drafter(self, name: str, engine: Engine, scorer: Any, encode: Call) -> None:
        """Add the pass of a drafter for one token, and what comes before."""
        settings, draft = self.settings, ChunkScorer(self.pair.token_drafter, drafting(engine))
        shared = same_encoder(self.pair.model, self.pair.token_drafter)
        begin = self._add_encoder("token drafter", name, draft, scorer, shared, encode)
        prepare = self._behind(draft, encode, begin)
        prepare()
        counts = decoder_pieces(draft, settings.source_length, 1, settings.cached + 1)
        tokens = self.target[:, settings.cached : settings.cached + 1]
        whole = pass_call(draft, tokens, self.rules, self.rows)
        self._add_pass("token drafter", name, 1, counts, whole, prepare=prepare)

    def _add_heads(self, name: str, scorer: Any) -> None:
        """Add the heads of an engine: all of them at once, behind one state of each sentence."""
        dtype = DRAFTS if scorer.native else None
        heads = scorer.heads(self.pair.heads, dtype)
        words = self.pair.task.target_dictionary
        drafts = DraftProjection(self.pair.model, None, words, dtype)
        projection = drafts.part(scorer.projection, self.rules)
        last = self.target[:, self.settings.cached : self.settings.cached + 1]
        states = scorer.step(last)[:, -1].clone()
        count = self.pair.heads.block_size - 1

        def draft() -> Tensor:
            following = scorer.embed(last[:, 0]) if heads.seen else None
            drafted = heads(states, range(1, count + 1), following)
            return projection.draft(drafted, self.rules.at(self.rows)).tokens

        counts = heads_pieces(scorer, self.pair.heads, projection)
        self._add_pass("heads", name, count, counts, draft)

    # ---- searches ------------------------------------------------------------------------------

    def _add_search(self, name: str, engine: str, options: dict[str, Any]) -> None:
        """Add a whole search; options are those of fairseq-generate."""
        pair = self.pair
        limits = {"min_len": SEARCH_TOKENS, "max_len_a": 0, "max_len_b": SEARCH_TOKENS}
        generator = loading.decoder(pair.task, [pair.model], **options | limits)
        sample = {"id": torch.arange(self.settings.batch), "net_input": self.inputs}
        search = Search(pair.task, generator, pair.model, sample)
        self.timed["searches"].append(({"name": name, "engine": engine}, search))

    def _add_peer(self, folder: str) -> None:
        """Add CTranslate2's steps, behind as many tokens as a pass has cached, on average."""
        words, settings = self.pair.task.source_dictionary, self.settings
        sources = [[words[i] for i in row[:-1]] for row in self.inputs["src_tokens"].tolist()]
        for kind, engine in (("float32", CTRANSLATE2), ("int8", f"{CTRANSLATE2}-int8")):
            loaded = translator(folder, kind, settings.threads)
            steps = Steps(loaded, sources, 1, peer_tokens(settings.cached))
            head = {"name": "CTranslate2 greedy", "engine": engine}
            self.timed["searches"].append((head, steps))

    # ---- the machine ---------------------------------------------------------------------------

    def _add_reading(self) -> None:
        """Add reading a large tensor, and as much as a decoder's pass reads in each dtype."""
        amounts = {"large": self.settings.memory_mib * machine.MIB}
        for head, cell in self.timed["passes"]:
            if head["part"] == "decoder":
                read = sum(piece["bytes"] for piece in cell.pieces)
                amounts.setdefault(dtype_of(head["engine"]), read)
        for name, amount in amounts.items():
            tensor = torch.ones(-(-amount // 4))
            cell = Cell(tensor.sum, slow=name == "large")
            self.timed["bandwidth"].append(({"name": name, "bytes": 4 * len(tensor)}, cell))

    def _add_products(self) -> None:
        """Add products of matrices, in the dtypes of the engines and of native drafters."""
        engines, size = self.settings.engines, self.settings.matrix
        kinds = [kind for kind in (NATIVE, TORCH) if any(kind in name for name in engines)]
        dtypes = {PLAIN: None} | dict.fromkeys(map(dtype_of, engines))
        if NATIVE in kinds:
            dtypes[DRAFTS] = None
        for dtype, kind in product(dtypes, kinds):
            call = product_call(kind, dtype, size)
            if call is not None:
                head = {"engine": kind, "dtype": dtype, "flops": 2 * size**3}
                self.timed["peak"].append((head, Cell(call, slow=True)))

    # ---- rounds --------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self) -> float | None:
        """Time everything; return how many cores others used at most, None if not to be known.

        Raises:
            UsageError: the machine is busy.
        """
        settings = self.settings
        cells = [cell for timed in self.timed.values() for _, cell in timed]
        for cell in cells:  # untimed: what is built at a first call
            cell.run(1)
        results, used = all_rounds(
            cells, [settings.repetitions], settings.rounds, settings.busy, Cell.run, "cells"
        )
        for of_round in results:
            for cell, (seconds,) in zip(cells, of_round, strict=True):
                cell.keep(seconds)
        known = [cores for cores in used if cores is not None]
        return max(known) if known else None

    def report(self) -> dict[str, Any]:
        """Return what was measured, raw."""
        return {
            name: [head | cell.report() for head, cell in timed]
            for name, timed in self.timed.items()
        }
