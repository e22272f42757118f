"""All passes, searches and products that are timed, in interleaved rounds."""

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

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
from .. import CTRANSLATE2, machine
from ..peers import translator
from ..pieces import Call, decoder_pieces, encoder_pieces, heads_pieces, piece_calls, refuse_unknown
from ..rounds import all_rounds
from .cells import Cell, Search, Steps, pass_call, product_call
from .models import DRAFTS, Pair, parse_engine

NEW_TOKENS = 5  # of the prefix, in a drafter's pass
SEARCH_TOKENS = 20  # that whole searches are forced to, without </s>


def peer_tokens(cached: int) -> int:
    """Return the length of CTranslate2's longer outputs: half of it is about ``cached``."""
    return 2 * cached + 1


def drafting(engine: Engine) -> Engine:
    """Return the engine of a drafter's passes."""
    return replace(engine, dtype=DRAFTS) if engine.kind == NATIVE else engine


class Plan(NamedTuple):
    """What passes are made of."""

    batch: int  # sentences
    source: int  # their length
    cached: int  # target tokens in front of a chunk
    chunks: list[int]  # lengths of chunks
    blocks: list[int]  # numbers of masks in a drafter's pass
    engines: list[str]  # names
    peer: str | None  # a folder with the model as CTranslate2 reads it, or None
    threads: int  # of CTranslate2


class Bench:
    """All that is timed, and the document that comes of it.

    Raises:
        UsageError: an engine that is none, or a model of other pieces.
    """

    def __init__(self, pair: Pair, plan: Plan, memory: int, matrix: int) -> None:
        refuse_unknown(pair.model)
        self.pair, self.plan = pair, plan
        self.cells: list[Cell] = []
        self.passes: list[tuple[dict[str, Any], Cell]] = []
        self.searches: list[tuple[dict[str, str], Search | Steps]] = []
        self._make_batch()
        engines = {name: parse_engine(name) for name in plan.engines}
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
        self._add_peer()
        self._add_machine(memory, matrix)
        self.cells += [cell for _, cell in self.passes] + [cell for _, cell in self.searches]

    def _make_batch(self) -> None:
        """Make random sentences of one length, and random target tokens."""
        plan, words = self.plan, self.pair.task.target_dictionary
        chance = torch.Generator().manual_seed(1)

        def tokens(count: int, size: int) -> Tensor:
            return torch.randint(words.nspecial, size, (plan.batch, count), generator=chance)

        source = tokens(plan.source, len(self.pair.task.source_dictionary))
        source[:, -1] = words.eos()
        lengths = torch.full((plan.batch,), plan.source)
        start = torch.full((plan.batch, 1), words.eos())
        inputs: dict[str, Any] = {
            "src_tokens": source,
            "src_lengths": lengths,
            "prev_output_tokens": start,
        }
        self.sample: dict[str, Any] = {"id": torch.arange(plan.batch), "net_input": inputs}
        self.target = tokens(plan.cached + max(NEW_TOKENS + 1, *plan.chunks), len(words))
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
        self.rows = [Row(i, [], 10**6, tokens=[0] * plan.cached) for i in range(plan.batch)]

    # ---- passes ------------------------------------------------------------------------------

    def _add_engine(self, name: str, engine: Engine) -> None:
        """Add the passes of an engine."""
        plan, scorer = self.plan, ChunkScorer(self.pair.model, engine)
        prepare = self._context(scorer)
        prepare()

        def encode() -> None:
            scorer.encode(self.sample["net_input"])

        counts = encoder_pieces(scorer, plan.source)
        self._add("encoder", name, None, counts, Cell({"whole": encode}))
        for width in plan.chunks:
            tokens = self.target[:, plan.cached : plan.cached + width]
            scorer.step(tokens)  # so that there is room in the cache, and in the causal mask
            counts = decoder_pieces(scorer, plan.source, width, plan.cached + width)
            # A native pass is not made of pieces.
            calls = {} if scorer.native else piece_calls(scorer, tokens)
            whole = pass_call(scorer, tokens, self.rules, self.rows)
            self._add("decoder", name, width, counts, Cell({"whole": whole} | calls, prepare))
        if self.pair.drafter is not None:
            self._add_drafter(name, engine, scorer, prepare)
        if self.pair.token_drafter is not None:
            self._add_token_drafter(name, engine, scorer, prepare)
        if self.pair.heads is not None:
            self._add_heads(name, scorer)

    def _context(self, scorer: Any) -> Call:
        """Return what puts a scorer behind ``cached`` tokens."""

        def prepare() -> None:
            scorer.encode(self.sample["net_input"])
            scorer.step(self.target[:, : self.plan.cached])
            scorer.keep([self.plan.cached] * self.plan.batch)

        return prepare

    def _beginning(self, draft: Any, scorer: Any, shared: bool) -> Call:
        """Return what gives a drafter the encoded source, by the verifier's encoder if shared."""

        def begin() -> None:
            if shared:
                draft.start(scorer.encoder_out)
            else:
                draft.encode(self.sample["net_input"])

        return begin

    def _add_drafter(self, name: str, engine: Engine, scorer: Any, encode: Call) -> None:
        """Add the drafting passes of an engine, and what comes before them."""
        plan, shared = self.plan, self.pair.drafter.shares_encoder
        draft = BlockScorer(self.pair.drafter, drafting(engine))
        rows = self.target[:, 1:].tolist()  # a drafter needs no start symbol
        cached = [row[: plan.cached] for row in rows]
        prefixes = [row[: plan.cached + NEW_TOKENS] for row in rows]
        begin = self._beginning(draft, scorer, shared)

        def prepare_for(masks: int) -> Call:
            def prepare() -> None:
                encode()
                begin()
                draft.fill(cached, masks)

            return prepare

        def fill_for(masks: int) -> Call:
            def fill() -> Tensor:
                draft.keep([plan.cached] * plan.batch)
                states = draft.fill(prefixes, masks)
                return draft.projection.draft(states, self.rules.at(self.rows)).tokens

            return fill

        encode()
        begin()
        counts = encoder_pieces(draft, plan.source, not shared)
        self._add("drafter's encoder", name, None, counts, Cell({"whole": begin}, encode))
        for masks in plan.blocks:
            filled = self.pair.drafter.masks(masks)
            seen = plan.cached + NEW_TOKENS + filled
            width = NEW_TOKENS + filled if draft.caches_prefix else seen
            counts = decoder_pieces(draft, plan.source, width, seen, masks)
            cell = Cell({"whole": fill_for(masks)}, prepare_for(masks))
            self._add("drafter", name, masks, counts, cell)

    def _add_token_drafter(self, name: str, engine: Engine, scorer: Any, encode: Call) -> None:
        """Add the pass of a drafter for one token, and what comes before."""
        plan, draft = self.plan, ChunkScorer(self.pair.token_drafter, drafting(engine))
        shared = same_encoder(self.pair.model, self.pair.token_drafter)
        begin = self._beginning(draft, scorer, shared)

        def prepare() -> None:
            encode()
            begin()
            draft.step(self.target[:, : plan.cached])
            draft.keep([plan.cached] * plan.batch)

        prepare()
        counts = encoder_pieces(draft, plan.source, not shared)
        self._add("token drafter's encoder", name, None, counts, Cell({"whole": begin}, encode))
        tokens = self.target[:, plan.cached : plan.cached + 1]
        counts = decoder_pieces(draft, plan.source, 1, plan.cached + 1)
        whole = pass_call(draft, tokens, self.rules, self.rows)
        self._add("token drafter", name, 1, counts, Cell({"whole": whole}, prepare))

    def _add_heads(self, name: str, scorer: Any) -> None:
        """Add the heads of an engine: all of them at once, behind one state of each sentence."""
        dtype = DRAFTS if scorer.native else None
        heads = scorer.heads(self.pair.heads, dtype)
        words = self.pair.task.target_dictionary
        drafts = DraftProjection(self.pair.model, None, words, dtype)
        projection = drafts.part(scorer.projection, self.rules)
        last = self.target[:, self.plan.cached : self.plan.cached + 1]
        states = scorer.step(last)[:, -1].clone()
        count = self.pair.heads.block_size - 1

        def draft() -> Tensor:
            following = scorer.embed(last[:, 0]) if heads.seen else None
            found = heads(states, range(1, count + 1), following)
            return projection.draft(found, self.rules.at(self.rows)).tokens

        counts = heads_pieces(scorer, self.pair.heads, projection)
        self._add("heads", name, count, counts, Cell({"whole": draft}))

    def _add_search(self, name: str, engine: str, options: dict[str, Any]) -> None:
        """Add a whole search; options are those of fairseq-generate."""
        pair = self.pair
        limits = {"min_len": SEARCH_TOKENS, "max_len_a": 0, "max_len_b": SEARCH_TOKENS}
        generator = loading.decoder(pair.task, [pair.model], **options | limits)
        search = Search(pair.task, generator, pair.model, self.sample)
        self.searches.append(({"name": name, "engine": engine}, search))

    def _add_peer(self) -> None:
        """Add CTranslate2's steps, behind as many tokens as a pass has cached, on average."""
        folder, words = self.plan.peer, self.pair.task.source_dictionary
        if folder is None:
            return
        sources = [
            [words[i] for i in row[:-1]] for row in self.sample["net_input"]["src_tokens"].tolist()
        ]
        for kind, engine in (("float32", CTRANSLATE2), ("int8", f"{CTRANSLATE2}-int8")):
            loaded = translator(folder, kind, self.plan.threads)
            steps = Steps(loaded, sources, 1, peer_tokens(self.plan.cached))
            self.searches.append(({"name": "CTranslate2 greedy", "engine": engine}, steps))

    def _add(
        self, part: str, engine: str, chunk: int | None, counts: list[dict[str, Any]], cell: Cell
    ) -> None:
        head = {"part": part, "engine": engine, "chunk": chunk, "pieces": counts}
        self.passes.append((head, cell))

    # ---- the machine ---------------------------------------------------------------------------

    def _add_machine(self, memory: int, matrix: int) -> None:
        """Add reading of tensors, and products of matrices."""
        amounts = {"large": memory * machine.MIB}
        for head, _ in self.passes:
            if head["part"] == "decoder":
                read = sum(piece["bytes"] for piece in head["pieces"])
                amounts.setdefault(dtype_of(head["engine"]), read)
        self.bandwidth: list[tuple[dict[str, Any], Cell]] = []
        for name, amount in amounts.items():
            tensor = torch.ones(-(-amount // 4))
            cell = Cell({"whole": tensor.sum}, slow=name == "large")
            self.bandwidth.append(({"name": name, "bytes": 4 * len(tensor)}, cell))
        self.peak: list[tuple[dict[str, Any], Cell]] = []
        kinds = [one for one in (NATIVE, TORCH) if any(one in name for name in self.plan.engines)]
        dtypes = {PLAIN: None} | dict.fromkeys(map(dtype_of, self.plan.engines))
        if NATIVE in kinds:
            dtypes[DRAFTS] = None
        for dtype, kind in product(dtypes, kinds):
            call = product_call(kind, dtype, matrix)
            if call is not None:
                head = {"engine": kind, "dtype": dtype, "flops": 2 * matrix**3}
                self.peak.append((head, Cell({"whole": call}, slow=True)))
        self.cells += [cell for _, cell in self.bandwidth + self.peak]

    # ---- rounds --------------------------------------------------------------------------------

    @torch.inference_mode()
    def run(self, rounds: int, repetitions: int, busy: bool) -> float | None:
        """Time everything; return how many cores others used at most, None if not to be known.

        Raises:
            UsageError: the machine is busy.
        """
        for cell in self.cells:  # untimed: what is built at a first call
            cell.run(1)
        found, used = all_rounds(self.cells, [repetitions], rounds, busy, Cell.run, "cells")
        for results in found:
            for cell, (seconds,) in zip(self.cells, results, strict=True):
                cell.keep(seconds)
        known = [cores for cores in used if cores is not None]
        return max(known) if known else None

    def report(self) -> dict[str, Any]:
        """Return what was measured, raw."""
        passes = []
        for head, cell in self.passes:
            pieces = [
                piece | ({"seconds": cell.rounds[piece["name"]]} if len(cell.rounds) > 1 else {})
                for piece in head["pieces"]
            ]
            passes.append(head | {"seconds": cell.rounds["whole"], "pieces": pieces})
        return {
            "bandwidth": [head | {"seconds": c.rounds["whole"]} for head, c in self.bandwidth],
            "peak": [head | {"seconds": cell.rounds["whole"]} for head, cell in self.peak],
            "passes": passes,
            "searches": [
                head
                | {
                    "passes": cell.passes,
                    "seconds": cell.rounds["search"],
                    "encoder_seconds": cell.rounds["encoder"],
                }
                | ({"loop_seconds": cell.rounds["loop"]} if "loop" in cell.rounds else {})
                for head, cell in self.searches
            ],
        }
