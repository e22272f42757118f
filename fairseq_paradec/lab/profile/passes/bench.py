"""All passes, searches and products that are timed, in interleaved rounds."""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from ....decoding.helper import same_encoder
from ....decoding.provenance import FAIRSEQ, NATIVE, TORCH
from ....engine.block import BlockScorer
from ....engine.chunk import ChunkScorer
from ....engine.projection import DraftProjection
from ....engine.settings import Engine
from ....model_checks import BLOCK_NAT, TRANSFORMER
from ....plugin.tasks import loading
from ....registry import HEADS
from ....row import Row
from ....token_rules import TokenRules
from ...analysis.pass_costs import LOOPED, PLAIN, dtype_of
from ...data.journal import Journal
from ...measure import CTRANSLATE2, machine
from ...measure.peers import translator
from ..asked import Passes
from ..harness import in_rounds
from .cells import Cell, Search, Steps, pass_call, product_call
from .models import DRAFTS, Pair, parse_engine
from .pieces import Call, decoder_pieces, encoder_pieces, heads_pieces, piece_calls, refuse_unknown

REPETITIONS = 20  # of a pass in a round
SOURCE_LENGTH = 14  # of the sentence, with </s>
CACHED = 10  # tokens in front of a chunk
PEER_TOKENS = 2 * CACHED + 1  # of CTranslate2's longer output: half of it is about CACHED
READ_MIB = 1024  # size of the large tensor that is read
MATRIX = 1024  # rows and columns of the matrices that are multiplied
NEW_TOKENS = 5  # of the prefix, in a drafter's pass
SEARCH_TOKENS = 20  # that whole searches are forced to, without </s>


def drafting(engine: Engine) -> Engine:
    """Return the engine of a drafter's passes."""
    return replace(engine, dtype=DRAFTS) if engine.kind == NATIVE else engine


class Bench:
    """All that is timed, and the part of the document that comes of it.

    Args:
        pair: the models.
        asked: what is timed, and how often.
        peer: a folder with the model as CTranslate2 reads it, or None.

    Raises:
        UsageError: an engine that is none, or a model of other pieces.
    """

    def __init__(self, pair: Pair, asked: Passes, peer: str | None) -> None:
        refuse_unknown(pair.model)
        self.pair, self.asked = pair, asked
        #: What is timed, by list of the document: its facts, and the cell.
        self.timed: dict[str, list[tuple[dict[str, Any], Cell]]] = {
            name: [] for name in ("bandwidth", "peak", "passes", "searches")
        }
        self._make_batch()
        engines = {name: parse_engine(name) for name in asked.engines}
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
        """Make a random sentence, and random target tokens."""
        words, chance = self.pair.task.target_dictionary, torch.Generator().manual_seed(1)

        def tokens(count: int, size: int) -> np.ndarray:
            return torch.randint(words.nspecial, size, (1, count), generator=chance).numpy()

        self.source = tokens(SOURCE_LENGTH, len(self.pair.task.source_dictionary))
        self.source[:, -1] = words.eos()
        self.target = tokens(CACHED + max(NEW_TOKENS + 1, *self.asked.chunks), len(words))
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
        )
        self.rows = [Row(0, [], 10**6, tokens=[0] * CACHED)]

    # ---- passes ------------------------------------------------------------------------------

    def _add_pass(
        self, part: str, engine: str, chunk: int | None, pieces: Any, whole: Call, **calls: Any
    ) -> None:
        """Add a pass; see ``Cell`` for ``calls``."""
        head = {"part": part, "engine": engine, "chunk": chunk}
        self.timed["passes"].append((head, Cell(whole, pieces=pieces, **calls)))

    def _add_engine(self, name: str, engine: Engine) -> None:
        """Add the passes of an engine."""
        scorer = ChunkScorer(self.pair.model, engine)
        encode = partial(scorer.encode, self.source)
        prepare = self._behind(scorer, encode)
        prepare()
        counts = encoder_pieces(scorer, SOURCE_LENGTH)
        self._add_pass("encoder", name, None, counts, encode)
        for width in self.asked.chunks:
            tokens = self.target[:, CACHED : CACHED + width]
            scorer.step(tokens)  # so that there is room in the cache, and in the causal mask
            seen = CACHED + width
            counts = decoder_pieces(scorer, SOURCE_LENGTH, width, seen)
            whole = pass_call(scorer, tokens, self.rules, self.rows)
            # A native pass is not made of pieces.
            calls = {} if scorer.native else piece_calls(scorer, torch.from_numpy(tokens))
            self._add_pass("decoder", name, width, counts, whole, prepare=prepare, alone=calls)
        if (drafter := self.pair.helper(BLOCK_NAT)) is not None:
            self._add_drafter(drafter, name, engine, scorer, prepare)
        if (drafter := self.pair.helper(TRANSFORMER)) is not None:
            self._add_token_drafter(drafter, name, engine, scorer, prepare)
        if (heads := self.pair.helper(HEADS)) is not None:
            self._add_heads(heads, name, scorer)

    def _behind(self, scorer: Any, *before: Call) -> Call:
        """Return what puts a scorer that encodes behind CACHED tokens."""

        def prepare() -> None:
            for call in before:
                call()
            scorer.step(self.target[:, :CACHED])
            scorer.keep([CACHED])

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
                draft.encode(self.source)

        encode()
        begin()
        counts = encoder_pieces(draft, SOURCE_LENGTH, not shared)
        self._add_pass(f"{part}'s encoder", name, None, counts, begin, prepare=encode)
        return begin

    def _add_drafter(
        self, drafter: Any, name: str, engine: Engine, scorer: Any, encode: Call
    ) -> None:
        """Add the drafting passes of an engine, and what comes before them."""
        draft = BlockScorer(drafter, drafting(engine))
        (row,) = self.target[:, 1:].tolist()  # a drafter needs no start symbol
        cached, prefixes = [row[:CACHED]], [row[: CACHED + NEW_TOKENS]]
        shared = drafter.shares_encoder
        begin = self._add_encoder("drafter", name, draft, scorer, shared, encode)

        def prepare(masks: int) -> None:
            encode()
            begin()
            draft.fill(cached, masks)

        def fill(masks: int) -> np.ndarray:
            draft.keep([CACHED])
            states = draft.fill(prefixes, masks)
            return draft.projection.draft(states, self.rules.at(self.rows)).tokens

        for masks in self.asked.block_sizes:
            filled = drafter.masks(masks)
            seen = CACHED + NEW_TOKENS + filled
            width = NEW_TOKENS + filled if draft.caches_prefix else seen
            counts = decoder_pieces(draft, SOURCE_LENGTH, width, seen, masks)
            whole, before = partial(fill, masks), partial(prepare, masks)
            self._add_pass("drafter", name, masks, counts, whole, prepare=before)

    def _add_token_drafter(
        self, drafter: Any, name: str, engine: Engine, scorer: Any, encode: Call
    ) -> None:
        """Add the pass of a drafter for one token, and what comes before."""
        draft = ChunkScorer(drafter, drafting(engine))
        shared = same_encoder(self.pair.model, drafter)
        begin = self._add_encoder("token drafter", name, draft, scorer, shared, encode)
        prepare = self._behind(draft, encode, begin)
        prepare()
        counts = decoder_pieces(draft, SOURCE_LENGTH, 1, CACHED + 1)
        tokens = self.target[:, CACHED : CACHED + 1]
        whole = pass_call(draft, tokens, self.rules, self.rows)
        self._add_pass("token drafter", name, 1, counts, whole, prepare=prepare)

    def _add_heads(self, modules: Any, name: str, scorer: Any) -> None:
        """Add the heads of an engine: all of them at once, behind one state of each sentence."""
        dtype = DRAFTS if scorer.native else None
        heads = scorer.heads(modules, dtype)
        words = self.pair.task.target_dictionary
        drafts = DraftProjection(self.pair.model, None, words, dtype)
        projection = drafts.part(scorer.projection, self.rules)
        last = self.target[:, CACHED : CACHED + 1]
        states = scorer.step(last)[:, -1]
        count = modules.block_size - 1

        def draft() -> np.ndarray:
            following = scorer.embed(last[:, 0]) if heads.seen else None
            drafted = heads(states, range(1, count + 1), following)
            return projection.draft(drafted, self.rules.at(self.rows)).tokens

        counts = heads_pieces(scorer, modules, projection)
        self._add_pass("heads", name, count, counts, draft)

    # ---- searches ------------------------------------------------------------------------------

    def _add_search(self, name: str, engine: str, options: dict[str, Any]) -> None:
        """Add a whole search; options are those of fairseq-generate."""
        pair = self.pair
        limits = {"min_len": SEARCH_TOKENS, "max_len_a": 0, "max_len_b": SEARCH_TOKENS}
        generator = loading.decoder(pair.task, [pair.model], **options | limits)
        net_input = {
            "src_tokens": torch.from_numpy(self.source),
            "src_lengths": torch.tensor([SOURCE_LENGTH]),
        }
        sample = {"id": torch.arange(1), "net_input": net_input}
        search = Search(pair.task, generator, pair.model, sample)
        self.timed["searches"].append(({"name": name, "engine": engine}, search))

    def _add_peer(self, folder: str) -> None:
        """Add CTranslate2's steps, behind as many tokens as a pass has cached, on average."""
        words = self.pair.task.source_dictionary
        sources = [[words[i] for i in row[:-1]] for row in self.source.tolist()]
        for kind, engine in (("float32", CTRANSLATE2), ("int8", f"{CTRANSLATE2}-int8")):
            loaded = translator(folder, kind, self.asked.threads)
            steps = Steps(loaded, sources, 1, PEER_TOKENS)
            head = {"name": "CTranslate2 greedy", "engine": engine}
            self.timed["searches"].append((head, steps))

    # ---- the machine ---------------------------------------------------------------------------

    def _add_reading(self) -> None:
        """Add reading a large tensor, and as much as a decoder's pass reads in each dtype."""
        amounts = {"large": READ_MIB * machine.MIB}
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
        engines = self.asked.engines
        kinds = [kind for kind in (NATIVE, TORCH) if any(kind in name for name in engines)]
        dtypes = {PLAIN: None} | dict.fromkeys(map(dtype_of, engines))
        if NATIVE in kinds:
            dtypes[DRAFTS] = None
        for dtype, kind in product(dtypes, kinds):
            call = product_call(kind, dtype, MATRIX)
            if call is not None:
                head = {"engine": kind, "dtype": dtype, "flops": 2 * MATRIX**3}
                self.timed["peak"].append((head, Cell(call, slow=True)))

    # ---- rounds --------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, journal: Journal) -> str:
        """Time everything; return a note on what others used of the machine.

        Raises:
            UsageError: the machine is busy.
        """
        cells = [cell for timed in self.timed.values() for _, cell in timed]
        for cell in cells:  # untimed: what is built at a first call
            cell.run(1)
        results, others = in_rounds(self.asked, journal, "cells", cells, [REPETITIONS], Cell.run)
        for cell, by_round in zip(cells, results, strict=True):
            cell.keep([timed for (timed,) in by_round])
        return others

    def report(self) -> dict[str, Any]:
        """Return what was measured, raw."""
        return {
            name: [head | cell.report() for head, cell in timed]
            for name, timed in self.timed.items()
        }
