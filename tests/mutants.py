"""Seed faults into a copy of the package, one at a time, and see whether the fast tests notice.
    make mutants                          all; their rows on stdout, and in docs/testing.md
    make mutants ARGS="--only cache"      those of one area, or whose name contains a word
    make mutants ARGS=--untried           those whose row has a dash
    make mutants ARGS=--check             only: every anchor is found exactly once
    make mutants ARGS=--page              only: the rows of docs/testing.md, of a changed list
A mutant is killed when a fast test fails. The tests that are named are run first, in their order,
up to the first failure. A mutant whose old text is not found exactly once is an error.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "fairseq_paradec"
COPIED = (PACKAGE, "tests", "scripts", "docs", "results")
LINKED = ("data-bin", ".venv")

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

TABLE, CORPUS = ("test_conformance.py",), "test_corpus.py"
ORDERS = ("test_target_order.py", "test_reordered_transformer.py", "test_multiword_beam.py")


@dataclass(frozen=True)
class Mutant:
    """A fault: ``old`` becomes ``new`` in ``file``; ``tests`` are files of tests/."""

    area: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = TABLE


def m(area: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    """A mutant, by default for the conformance table."""
    return Mutant(area, file, old, new, tests or TABLE)


LOOP, ROW, GIVEN = "decoding/loop.py", "row.py", "decoding/given.py"
RULES, ACCEPT = "token_rules.py", "decoding/acceptance.py"
CACHE, MASKS = "engine/cache.py", "engine/masks.py"
LOCAL, BLOCK = "engine/local.py", "engine/block.py"
ENSEMBLE, PROJECTION = "engine/scorers.py", "engine/projection.py"
KNOWN, BEAM = "engine/known.py", "decoding/written.py"
NATIVE_CACHE, NATIVE = "engine/native/cache.py", ("test_native.py", *TABLE)
SEARCH, SEARCHES = "engine/csrc/search.h", ("test_native_search.py",)
STEP, SEARCHING = "engine/csrc/beam.h", "engine/native/beam.py"
STEPS = ("test_beam_steps.py", *SEARCHES)
TREES = ("test_tree_passes.py",)
JACOBI, GAD, HEADS = "methods/jacobi.py", "methods/gad.py", "methods/blockwise.py"
DRAFTING, ORDER = "decoding/drafting.py", "target_order.py"
GUESSES, SAMPLING = "decoding/guesses.py", "decoding/sampling.py"
GROWN, ASSISTED = "decoding/trees.py", "decoding/assistant.py"
SELF_DRAFT = "methods/self_draft.py"
WRITING = "decoding/writing.py"
DOCUMENTS, MARKUP = "translator/documents.py", "translator/markup.py"
TEXT = "test_documents.py"
SERVE, SERVED = "serve/scheduler.py", "test_scheduler.py"
TRACE, REPORTS, AUDIT = "decoding/trace.py", "methods/reports.py", "decoding/audit.py"
RECORDS = "records.py"
DRAFTS = "decoding/beam_drafts.py"
DRAFTED = ("test_beam_settings.py", "test_beam_drafts.py")
NATIVE_DRAFTS = "engine/csrc/search_drafts.h"
DEPTH, DEEP = "decoding/depth.py", ("test_beam_depth.py",)

MUTANTS = [
    # corpora in parts
    m(
        "corpus",
        "translator/corpus/parts.py",
        "for name in before | settings",
        "for name in settings",
        CORPUS,
    ),
    m("corpus", "cli/translate_corpus.py", "if path.is_file():", "if False:", CORPUS),
    # imported models
    m(
        "import",
        "translator/importing/foreign.py",
        "read[end] = 0.0 if",
        "read[end] *= 0.5 if",
        "test_importing.py",
    ),
    m(
        "import",
        "translator/importing/hugging_face.py",
        'given.get("renormalize_logits") else None',
        'given.get("renormalise") else None',
        "test_importing.py",
    ),
    # commits
    m(
        "commit",
        ACCEPT,
        "return min(num_accepted + 1, num_scored)",
        "return min(num_accepted + 2, num_scored)",
    ),
    m(
        "commit",
        ACCEPT,
        "return min(num_accepted + 1, num_scored)",
        "return max(1, min(num_accepted, num_scored))",
    ),
    m(
        "commit",
        ACCEPT,
        "return num_scored if num_accepted == num_drafted else 0",
        "return num_scored if num_accepted + 1 >= num_drafted else 0",
    ),
    m(
        "commit",
        LOOP,
        "row.commit(final[b][: committed[b]], scores[b], rules.eos)",
        "row.commit(final[b][: committed[b]], scores[b][1:], rules.eos)",
    ),
    m(
        "commit",
        ROW,
        "tokens = tokens[: tokens.index(eos) + 1]",
        "tokens = tokens[: tokens.index(eos) + 2]",
    ),
    m(
        "commit",
        ROW,
        "return self.limit + 1 - len(self.tokens)",
        "return self.limit - len(self.tokens)",
    ),
    # earlier outputs as drafts
    m("given", GIVEN, "if not tokens:\n        return 0", "if not tokens:\n        return 1"),
    m("given", GIVEN, "given[at - 2 : at]) == last", "given[at - 2 : at])[-1:] == last[-1:]"),
    m("given", GIVEN, "(abs(at - place), -at)", "-at"),
    m("given", GIVEN, "(abs(at - place), -at)", "(abs(at - place), at)", "test_given.py"),
    m("given", GIVEN, "given[at : at + row.room - 1]", "given[at : at + row.room]"),
    m("given", GIVEN, "return [*given[:end], self.eos]", "return [*given[:end]]"),
    m("given", GIVEN, "[at + n for at, n in zip(", "[at for at, n in zip("),
    m("given", GIVEN, "verdict._replace(own=self.own)", "verdict"),
    m("given", GIVEN, "self.places = [self.places[b] for b in stay]", "pass"),
    m("given", LOOP, "[n if own else 0 for n, own", "[n for n, own", "test_given.py"),
    m(
        "given",
        SELF_DRAFT,
        "if self.scorer.joined:\n            self.sizes",
        "if False:\n            self.sizes",
    ),
    m(
        "given",
        "methods/base.py",
        "self.lossless and type(self.acceptance()) is ExactMatch",
        "True",
        "test_given.py",
    ),
    # long texts and markup
    m("text", DOCUMENTS, "if atom.kind == THING or atom.plain != atom.raw", "if False", TEXT),
    m("text", DOCUMENTS, "if len(found[text]) != count:", "if not found[text]:", TEXT),
    m("text", DOCUMENTS, "most = gaps[k] - apart[k]", "most = gaps[k]", TEXT),
    m("text", MARKUP, "depth += -1 if found[1] else", "depth += -1 if found[1] or True else", TEXT),
    m("text", MARKUP, "if can_close and raw in opened:", "if can_close:", TEXT),
    # rollback, rows that leave
    m(
        "rollback",
        LOOP,
        "scorer.keep(starts_of(rows))",
        "scorer.keep([len(row.tokens) - 1 for row in rows])",
    ),
    m(
        "rollback",
        LOOP,
        "scorer.keep(starts_of(rows))",
        "scorer.keep([max(len(row.tokens) for row in rows)] * len(rows))",
    ),
    m("rollback", LOOP, "                drafter.drop(stay)\n", "                pass\n"),
    m(
        "rollback",
        CACHE,
        "self.lengths = [self.lengths[i] for i in index]",
        "self.lengths = [self.lengths[i] for i in range(len(index))]",
    ),
    m(
        "rollback",
        CACHE,
        "self.source = self.source.index_select(2, picked)",
        "self.source = self.source[:, :, : len(index)]",
    ),
    m(
        "rollback",
        DRAFTING,
        "self.states = self.states[list(stay)]",
        "self.states = self.states[: len(stay)]",
    ),
    m(
        "rollback",
        JACOBI,
        "self.guesses = [self.guesses[b] for b in stay]",
        "self.guesses = self.guesses[: len(stay)]",
    ),
    m(
        "rollback",
        BLOCK,
        "self.keep([len(p) for p in prefixes])",
        "self.keep([len(p) + 1 for p in prefixes])",
    ),
    # cache, masks, positions
    m(
        "mask",
        CACHE,
        "device=positions.device) > positions[:, :, None]",
        "device=positions.device) >= positions[:, :, None]",
        "test_engine.py",
    ),
    m("mask", MASKS, "device=device).triu(1)", "device=device).triu(2)"),
    m(
        "mask",
        MASKS,
        ">= (first + seen)[:, :, None]",
        "> (first + seen)[:, :, None]",
        "test_gad.py",
        *TABLE,
    ),
    m(
        "mask",
        MASKS,
        "first: Tensor | int = min(cache.lengths)",
        "first: Tensor | int = 0",
        "test_gad.py",
        *TABLE,
    ),
    m(
        "mask",
        CACHE,
        "self.source_bias = self.source_bias.index_select(0, picked)",
        "self.source_bias = self.source_bias[: len(index)]",
    ),
    m(
        "mask",
        BLOCK,
        "sees_block = (index < end) & (index >= (first if causal else 0))",
        "sees_block = (index < end) & (index > (first if causal else 0))",
        "test_gad.py",
        *TABLE,
    ),
    m(
        "mask",
        BLOCK,
        "return torch.where(sees_block, end, index + 1)",
        "return torch.where(sees_block, end - 1, index + 1)",
        "test_gad.py",
        *TABLE,
    ),
    m("position", KNOWN, "first = places.padding_idx + 1", "first = places.padding_idx + 2"),
    m(
        "position",
        CACHE,
        "first[:, None] + torch.arange(width, device=self.keys.device)",
        "first[:, None] + 1 + torch.arange(width, device=self.keys.device)",
    ),
    m(
        "cache",
        CACHE,
        "larger[:, :, : self.capacity] = self.keys",
        "larger[:, :, 1 : self.capacity] = self.keys[:, :, 1:]",
        "test_scorer.py",
    ),
    m(
        "ring",
        CACHE,
        "return positions % capacity",
        "return positions % (capacity - 1)",
        "test_local_scorer.py",
    ),
    m(
        "ring",
        CACHE,
        "return (held > here) | (held < self.window.first(here).clamp(min=0))",
        "return (held > here) | (held <= self.window.first(here).clamp(min=0))",
        "test_local_scorer.py",
    ),
    m(
        "ring",
        LOCAL,
        "most = self.window.block - 1 + self.window.memory",
        "most = self.window.block - 2 + self.window.memory",
        "test_local_scorer.py",
    ),
    m(
        "ring",
        CACHE,
        "last = torch.tensor(self.lengths, device=device)[:, None] - 1",
        "last = torch.tensor(self.lengths, device=device)[:, None] - 2",
        "test_local_scorer.py",
    ),
    # <pad>, limits, prefixes, penalties
    m(
        "<pad>",
        RULES,
        "log_probs[:, :, rules.pad] = -math.inf",
        "pass",
        "test_token_rules.py",
        *TABLE,
    ),
    m("limit", RULES, "last = positions >= ends[:, None]", "last = positions > ends[:, None]"),
    m(
        "limit",
        RULES,
        "if any(start + reach > row.limit for start, row",
        "if all(start + reach > row.limit for start, row",
    ),
    m(
        "limit",
        RULES,
        "early = (positions < rules.min_len)",
        "early = (positions <= rules.min_len)",
    ),
    m("limit", RULES, "& (positions >= rules.forced_len)", "& (positions > rules.forced_len)"),
    m(
        "limit",
        RULES,
        "log_probs[:, :, rules.unk] -= rules.unk_penalty",
        "log_probs[:, :, rules.unk] += rules.unk_penalty",
    ),
    m("limit", RULES, "(r.prefix[: r.limit] + filler)", "(r.prefix + filler)"),
    m(
        "limit",
        RULES,
        "positions < rules.forced_len if rules.suppressed",
        "positions <= rules.forced_len if rules.suppressed",
    ),
    m(
        "limit",
        RULES,
        "tokens = tokens[: bisect.bisect_left(suppressed, log_probs.size(2))]",
        "tokens = tokens[: bisect.bisect_right(suppressed, log_probs.size(2))]",
        "test_token_rules.py",
        "test_shortlist.py",
    ),
    # a search in one call
    m("search", SEARCH, "(t + 1) * z > to.limits", "(t + 2) * z > to.limits", *SEARCHES),
    m("search", SEARCH, "a.first > b.first", "a.first < b.first", *SEARCHES),
    m("search", SEARCH, "/ to.divisors[length]", "/ to.divisors[1]", *SEARCHES),
    m("search", SEARCH, "parents[e]].size() - z +", "parents[e]].size() +", *SEARCHES),
    m("search", SEARCH, "to.counts[s] == to.beam) return", "false) return", *SEARCHES),
    m(
        "search",
        SEARCH,
        "size_t i = z; i < path.size()",
        "size_t i = 1; i < path.size()",
        *SEARCHES,
    ),
    m(
        "search",
        SEARCH,
        "to.limits[tree.sentence] || !lives",
        "to.limits[tree.sentence]",
        *SEARCHES,
    ),
    m("search", SEARCH, "path.data(), (int)path.size()}", "path.data(), t * z + 1}", *SEARCHES),
    # a search's steps of several words
    m("search", SEARCHING, "(max(self._limits) // z + 1) * z", "max(self._limits) + 1", *SEARCHES),
    m("search", SEARCHING, "length**how.len_penalty", "length", *SEARCHES),
    m("search", SEARCHING, "pairs=how.pairs,", "pairs=False,", *SEARCHES),
    m(
        "search",
        "decoding/beam.py",
        "penalty if self.results.normalise else None",
        "penalty",
        *SEARCHES,
    ),
    m("search", STEP, "std::min(3 * B,", "std::min(2 * B,", *STEPS),
    m("search", STEP, "!ends || n >= B", "!ends", *STEPS),
    m("search", STEP, "(both ? right : 0)", "0", *STEPS),
    m("search", STEP, "find_largest(lefts, 2 * B", "find_largest(lefts, B", *STEPS),
    m("search", STEP, "(ends ? end_score : ", "(", *STEPS),
    m("search", STEP, "k == 0 ? step.end_scores", "true ? step.end_scores", *STEPS),
    m("search", STEP, " || ended.words[2 * at + 1] == step.end", "", *STEPS),
    m("search", STEP, "both ? step.end : step.tokens", "step.tokens", *STEPS),
    m("search", STEP, "if (!ends && alive_count < kept)", "if (alive_count < kept)", *STEPS),
    m("search", STEP, "tokens[k] == step.end ? -INFINITY : total", "total", *STEPS),
    m("search", STEP, "next.take(at, now, (size_t)w * each + ", "next.take(at, now, ", *STEPS),
    m("search", STEP, "parent = of / each;", "parent = of;", *STEPS),
    m("search", STEP, "places[n] < W * each;", "true;", *STEPS),
    m("search", STEP, "less(at[-1], i)", "!less(i, at[-1])", *STEPS),
    m("search", SEARCH, "to.counts[tree.sentence] == B ||", "", *SEARCHES),
    m("search", SEARCH, "used[slot] = 1", "used[slot] = 0", *SEARCHES),
    m("search", SEARCH, "copy_store(stack, own, before);", "", *SEARCHES),
    m("search", SEARCH, "bits[i] = to.bits[at]", "bits[i] = 0", *SEARCHES),
    m("search", SEARCH, "forced[i] = to.forced[at]", "forced[i] = rules.pad", *SEARCHES),
    # trees
    m(
        "tree",
        GROWN,
        "starts = [base + 1 for base in self.mask.bases]",
        "starts = [base for base in self.mask.bases]",
    ),
    m("tree", GROWN, "depth.append(depth[parent + 1] + 1)", "depth.append(node + 1)"),
    m("tree", GROWN, "if at + 1 < depth and token != eos:", "if at + 1 < depth:"),
    m("tree", GROWN, "if passes[node] and parent in paths:", "if passes[node]:"),
    m("tree", GROWN, "tokens[i] == choices[parent + 1]", "tokens[i] == choices[i]"),
    m("tree", ASSISTED, "key=len, default=[])", "key=len, default=[0])"),
    m(
        "tree",
        ASSISTED,
        "kept.append([start + slot for slot in read])",
        "kept.append([start + at for at, _ in enumerate(read)])",
    ),
    # acceptance
    m(
        "acceptance",
        ACCEPT,
        "return passes.to(torch.long).cumprod(dim=1).sum(dim=1)",
        "return passes.to(torch.long).sum(dim=1)",
    ),
    m("acceptance", ACCEPT, "(higher < self.topk) & near", "(higher <= self.topk) & near"),
    m("acceptance", ACCEPT, "- drafted <= self.margin", "- drafted < self.margin - 0.25"),
    m(
        "acceptance",
        ACCEPT,
        "& near & (drafted > -math.inf)",
        "& near",
        "test_gad.py",
        "test_blockwise.py",
        *TABLE,
    ),
    m("acceptance", ACCEPT, ".abs() <= self.limit", ".abs() < self.limit", "test_blockwise.py"),
    m(
        "acceptance",
        ACCEPT,
        "return self.rule.accept(draft, scored).maximum(forced)",
        "return self.rule.accept(draft, scored).minimum(forced)",
    ),
    m(
        "acceptance",
        SAMPLING,
        "draw(residual(probs, draft_probs))",
        "draw(probs)",
        "test_sampling.py",
    ),
    m(
        "acceptance",
        SAMPLING,
        "rand_like(p) < acceptance(p, q)",
        "rand_like(p) < p",
        "test_sampling.py",
    ),
    m(
        "acceptance",
        SAMPLING,
        "device=rows.device) <= last",
        "device=rows.device) < last",
        "test_sampling.py",
    ),
    m(
        "acceptance",
        "decoding/writing.py",
        "drawn_from[-1][live] = probs[live]",
        "drawn_from[-1][:] = probs",
        "test_sampling.py",
    ),
    m(
        "acceptance",
        LOOP,
        "is_drafted = index < num_accepted[:, None]",
        "is_drafted = index <= num_accepted[:, None]",
    ),
    m(
        "acceptance",
        LOOP,
        "        if drafted != chosen:\n            break\n",
        "        if drafted != chosen:\n            continue\n",
    ),
    # drafters
    m("drafter", DRAFTING, "min(self.most, count + 2)", "min(self.most, count + 1)"),
    m(
        "drafter",
        DRAFTING,
        "counts = [min(row.room - 1, self.sizes[b])",
        "counts = [min(row.room, self.sizes[b])",
    ),
    m("drafter", DRAFTING, "draft[: draft.index(eos) + 1] if eos in draft else draft", "draft"),
    m(
        "drafter",
        HEADS,
        "self.heads(self.states, range(1, count + 1), following)",
        "self.heads(self.states, range(0, count), following)",
        "test_blockwise.py",
        *TABLE,
    ),
    m(
        "drafter",
        HEADS,
        "sizes = BlockSizes(self.config.block_size - 1,",
        "sizes = BlockSizes(self.config.block_size,",
        "test_blockwise.py",
        *TABLE,
    ),
    m(
        "drafter",
        GUESSES,
        "self.tokens = predicted[num_final:]",
        "self.tokens = predicted[num_final + 1 :]",
    ),
    m("drafter", JACOBI, "end = (done // size + 1) * size", "end = done + size"),
    m("drafter", JACOBI, "return end if last is None else min(end, last)", "return end"),
    m("drafter", JACOBI, "last = self.lengths[row.index]", "last = 2 * self.lengths[row.index]"),
    m("drafter", GUESSES, "following = self.seen[where + 1 :", "following = self.seen[where :"),
    m("drafter", GAD, "self.scorer.reorder(stay)", "self.scorer.reorder(range(len(stay)))"),
    # assisted
    m(
        "assisted",
        ASSISTED,
        "self.scorer.keep(list(map(min, self.scorer.cache.lengths, wanted)))",
        "pass",
    ),
    m("assisted", WRITING, "and sum(scores[b]) >= least", "and scores[b][-1] >= least"),
    m("assisted", WRITING, "and written[b][-1] != rules.eos\n", "\n"),
    m(
        "assisted",
        ASSISTED,
        "min(row.room - 1, last - len(row.tokens))",
        "row.room - 1",
        "test_assisted.py",
    ),
    m("assisted", WRITING, "[len(tokens) - 1 for tokens in new]", "[width - 1 for tokens in new]"),
    m("assisted", WRITING, "starts = [start + 1 for start in starts]", "pass"),
    m("assisted", "engine/csrc/write.h", "!(sums[b] >= to.least)", "!(sums[b] > -9e9f)"),
    m("assisted", ASSISTED, "self.scorer.reorder(stay)", "self.scorer.reorder(range(len(stay)))"),
    m("assisted", SELF_DRAFT, "self.scorer.keep(lengths)", "pass"),
    m("assisted", "engine/chunk.py", "if not self.joined:", "if True:"),
    m(
        "assisted",
        "engine/chunk.py",
        "if self._joined_at != other.gathered:",
        "if self._joined_at is None:",
        "test_changed_weights.py",
    ),
    # native passes
    m(
        "native",
        "engine/csrc/stack.h",
        "token.place + 1 : start + seen[j];",
        "token.place + 2 : start + seen[j];",
        *NATIVE,
    ),
    m(
        "native",
        "engine/csrc/stack.h",
        "own_row = chunk.own_rows == nullptr ? b : chunk.own_rows[b];",
        "own_row = b;",
        *NATIVE,
    ),
    m(
        "native",
        "engine/csrc/stack.h",
        "begin = begins == nullptr ? 0 : begins[row];",
        "begin = 0;",
        *NATIVE,
    ),
    m("native", "engine/csrc/layers.h", "if (seen.mask[t + i] == 0)", "if (false)", *NATIVE),
    m("native", "engine/csrc/layers.h", "(size_t)seen.at(first + i) * size", "0", *NATIVE),
    m("native", "engine/csrc/choose.h", "if (limits & ONLY_END) only(rules.end);", "", *NATIVE),
    m(
        "native",
        "engine/csrc/choose.h",
        "load(y + v) > splat(score)",
        "load(y + v) >= splat(score)",
        *NATIVE,
    ),
    m(
        "native",
        "engine/csrc/choose.h",
        "return peak + std::log(sum(total));",
        "return peak;",
        *NATIVE,
    ),
    m("native", "engine/csrc/linear.h", "load(scales + h * LANES)", "load(scales)", *NATIVE),
    m(
        "native",
        NATIVE_CACHE,
        "self.source_rows = [self.source_rows[i] for i in index]",
        "pass",
        *NATIVE,
    ),
    m(
        "native",
        NATIVE_CACHE,
        "max(self.lengths),\n            )\n\n\n",
        "min(self.lengths) - 1,\n            )\n\n\n",
        *NATIVE,
    ),
    # trees
    m("tree", MASKS, "tree.sees.scatter(2, own[:, :, None], True)", "tree.sees", *TREES),
    m(
        "tree",
        "engine/csrc/stack.h",
        "slot == token.place) path[extra++]",
        "false) path[extra++]",
        *TREES,
    ),
    m("tree", "engine/csrc/layers.h", "i < until ? i : path[i - until]", "i", *TREES),
    m(
        "tree",
        "engine/csrc/layers.h",
        "i < seen.extra; ++i) add(seen.until + i, seen.path[i])",
        "i < seen.extra; ++i) add(seen.until + i, seen.until + i)",
        *TREES,
    ),
    m("tree", NATIVE_CACHE, "array_of([self.rows[row] for row in rows])", "array_of(rows)", *TREES),
    m("tree", "engine/csrc/choose.h", "        look(part);\n    }\n}", "    }\n}", *TREES),
    m("tree", RULES, "int(depths.max()) + 1", "int(depths.max())", *TREES),
    # scores
    m(
        "score",
        ENSEMBLE,
        "return torch.logsumexp(each, dim=0) - math.log(len(self.scorers))",
        "return each.mean(dim=0)",
    ),
    m("score", PROJECTION, "            logits = logits / temperature\n", "            pass\n"),
    m(
        "score",
        "decoding/hypotheses.py",
        "score = score / len(row.tokens) ** len_penalty",
        "score = score / (len(row.tokens) - 1 or 1) ** len_penalty",
    ),
    m(
        "score",
        BEAM,
        "return hypo.score / length**self.len_penalty",
        "return hypo.score / len(hypo.words) ** self.len_penalty if hypo.words else 0.0",
        "test_multiword_beam.py",
    ),
    m("score", BEAM, "((5 + length) / 6)", "((6 + length) / 6)", "test_multiword_beam.py"),
    m(
        "score",
        BEAM,
        "tokens = torch.tensor([*(hypo.words[t] for t in kept), self.eos]",
        "tokens = torch.tensor([*hypo.words, self.eos]",
        "test_multiword_beam.py",
    ),
    # orders
    m("order", ORDER, "middle = (n + 1).div(2", "middle = n.div(2", *ORDERS),
    m("order", ORDER, "size = share + (g < rest)", "size = share + (g <= rest)", *ORDERS),
    m("order", ORDER, "first = g * share + torch.minimum(g, rest)", "first = g * share", *ORDERS),
    m(
        "order",
        ORDER,
        "return torch.where(t < n, word, t)",
        "return torch.where(t <= n, word, t)",
        *ORDERS,
    ),
    m("order", ORDER, "+ 1) * (1 - 2 * (t % 2))", ") * (1 - 2 * (t % 2))", *ORDERS),
    m(
        "order",
        ORDER,
        "seen = step[:, None] >= step[None, :]",
        "seen = step[:, None] > step[None, :]",
        *ORDERS,
    ),
    # records, audit
    m(
        "record",
        LOOP,
        "record = PassRecord(len(row.tokens), len(drafts[b]),",
        "record = PassRecord(len(row.tokens) + 1, len(drafts[b]),",
    ),
    m(
        "record",
        TRACE,
        "other = 1 if top[0] == choice else 0",
        "other = 1",
        "test_reports.py",
        "test_audit_reference.py",
        "test_trace_view.py",
        "test_gad.py",
        "test_blockwise.py",
    ),
    m("record", RECORDS, "if key not in _begun:", "if True:", "test_reports.py"),
    m(
        "record",
        REPORTS,
        '"mean_accepted": len(row.tokens) / len(row.passes)',
        '"mean_accepted": (len(row.tokens) - 1) / len(row.passes)',
        "test_reports.py",
    ),
    m(
        "record",
        REPORTS,
        "self.stats.seconds += seconds",
        "self.stats.seconds = seconds",
        "test_reports.py",
    ),
    m(
        "audit",
        AUDIT,
        "tie = gap < TIE_GAP",
        "tie = gap <= 1.0",
        "test_audit_reference.py",
        "test_reports.py",
    ),
    m(
        "audit",
        AUDIT,
        "log_probs[self.judge.unk] -= self.judge.unk_penalty",
        "pass",
        "test_audit_reference.py",
        "test_reports.py",
    ),
    # beams with drafts
    m("beams", DEPTH, "each[best] <= MAX_RATIO * each[0]", "True", *DEEP),
    m("beams", DEPTH, "drafted += min(steps, depth)", "drafted += depth", *DEEP),
    m("beams", DEPTH, "slope * (d - short)", "slope * d", *DEEP),
    m(
        "beams",
        DRAFTS,
        "behind.union(*map(self.tree.path, self.nodes))",
        "behind",
        *DRAFTED,
    ),
    m("beams", DRAFTS, "if parent in behind:", "if False:", *DRAFTED),
    m("beams", "row.py", "self.prefix[1 : self.limit]", "self.prefix[1:]", *DRAFTED),
    m("beams", BEAM, "finished *= beam_size", "finished *= 1", *DRAFTED),
    m(
        "beams",
        DRAFTS,
        "sees[b, i, [slots[n] for n in tree.path(node)]] = True",
        "sees[b, i, : len(held)] = True",
        *DRAFTED,
    ),
    m(
        "beams",
        DRAFTS,
        "full or beam.written > beam.row.limit or not beam.nodes",
        "full or beam.written >= beam.row.limit or not beam.nodes",
        *DRAFTED,
    ),
    m(
        "beams",
        DRAFTS,
        "key=self.rank, reverse=True)[: self.beam_size - len(done)]",
        "key=self.rank, reverse=True)",
        *DRAFTED,
    ),
    m("beams", DRAFTS, "for level in range(self.depth + 1):", "for level in range(2):", *DRAFTED),
    m("beams", DRAFTS, "self.verifier.roll_back()", "pass", *DRAFTED),
    m("beams", AUDIT, "if self._same(ours == theirs):", "if self._same(True):", *DRAFTED),
    # drafts of a search in one call
    m("beams", NATIVE_DRAFTS, "if (m == DRAFTER && tree.known[node]) continue;", "", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "if (real) finish(", "finish(", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "one.written > to.limits", "one.written >= to.limits", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "own[node] = -1;", "", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "bits[i] = to.bits[at]", "bits[i] = 0", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "forced[i] = to.forced[at]", "forced[i] = rules.pad", *DRAFTED),
    m(
        "beams",
        NATIVE_DRAFTS,
        "if (before.slots > 0) copy_store",
        "if (false) copy_store",
        *DRAFTED,
    ),
    m("beams", NATIVE_DRAFTS, "while (!one.ends && std", "if (!one.ends && std", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "if (!trees[s].known[node]) wanted", "wanted", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "one.finished == B || ", "", *DRAFTED),
    m("beams", NATIVE_DRAFTS, " || one.nodes.empty();", ";", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "e < B && one.finished < B", "e < B", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "needed[node] |= needed[tree.parents[node]]", "", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "n >= 0 && !needed[n]", "false", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "if (tokens[node] == token) return node;", "", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "level <= how.depth", "level <= 1", *DRAFTED),
    m("beams", NATIVE_DRAFTS, "(n == node || own[n] < 0)", "n == node", *DRAFTED),
    m("beams", AUDIT, "(among, goes_on, edge)", "(among,)", *DRAFTED),
    m("beams", AUDIT, "gaps += [a - b for a, b in pairwise(scores)]", "", *DRAFTED),
    m("audit", AUDIT, "self.identical += 1", "self.identical += 0", "test_reports.py"),
    # the server
    m("serve", SERVE, "job.way == first.way and job is not first", "job is not first", SERVED),
    m("serve", SERVE, "self._clock + k,", "self._clock,", SERVED),
    m("serve", SERVE, "0 if first.way.traced else size - 1", "size - 1", SERVED),
    m("serve", SERVE, "job.future.set_running_or_notify_cancel()", "True", SERVED),
    m("serve", "serve/work.py", "min(place, len(one.others))", "0", "test_serve.py"),
]


PAGE = ROOT / "docs" / "testing.md"
HEAD = "| area | file | old | new | killed by | s |\n|---|---|---|---|---|---|\n"
#: Killer and seconds of a mutant that no run has tried since it stands in the list.
UNTRIED = "- | -"


def row(mutant: Mutant) -> str:
    """A mutant's row of the table, without killer and seconds."""
    code = (f"`{' '.join(text.split())}`" for text in (mutant.old, mutant.new))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (mutant.area, mutant.file, *code))


def split_page() -> tuple[str, dict[str, str], str]:
    """The page before the table, killer and seconds by row, and the page behind the table."""
    before, table = PAGE.read_text("utf-8").split(HEAD)
    table, gap, behind = table.partition("\n\n")
    cells = [line.removesuffix(" |").rsplit(" | ", 2) for line in table.splitlines()]
    return before, {first: " | ".join(last) for first, *last in cells}, gap + behind


def write_page(found: dict[str, str]) -> None:
    """Write the list into the page, with what this run and earlier ones found."""
    before, known, behind = split_page()
    known |= found
    rows = [f"{row(one)} | {known.get(row(one), UNTRIED)} |" for one in MUTANTS]
    PAGE.write_text(before + HEAD + "\n".join(rows) + behind, "utf-8")


def find(mutant: Mutant) -> str | None:
    """The file's text; None if the anchor is not in it exactly once."""
    path = ROOT / PACKAGE / mutant.file
    text = path.read_text("utf-8") if path.exists() else ""
    return text if text.count(mutant.old) == 1 else None


def copy_of_the_checkout(folder: Path) -> None:
    """Copy what tests read; link what is large."""
    for name in COPIED:
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    for name in LINKED:
        if (ROOT / name).exists():
            (folder / name).symlink_to((ROOT / name).resolve())
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)


def killed_by(folder: Path, mutant: Mutant) -> str | None:
    """The first failing test; None if all pass."""
    for name in mutant.tests:
        command = [
            sys.executable,
            "-B",
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n0",
            "--tb=no",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            f"tests/{name}",
        ]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        if result.returncode == 0:
            continue
        if -result.returncode in CRASHES:  # of native code
            return f"{name}, by signal {-result.returncode}"
        failed = [one for one in result.stdout.splitlines() if one.startswith(("FAILED", "ERROR"))]
        assert failed, result.stdout[-2000:] + result.stderr[-2000:]
        return failed[0].split(" - ")[0].split(" ", 1)[1].removeprefix("tests/")
    return None


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="an area, or a part of a file's name")
    parser.add_argument("--untried", action="store_true", help="those that no run has tried")
    parser.add_argument("--check", action="store_true", help="only look for the anchors")
    parser.add_argument("--page", action="store_true", help="only write the list into the page")
    args = parser.parse_args()
    chosen = [one for one in MUTANTS if args.only in one.area or args.only in one.file]
    if args.untried:
        _, known, _ = split_page()
        chosen = [one for one in chosen if known.get(row(one), UNTRIED) == UNTRIED]
    lost = [one for one in chosen if find(one) is None]
    for one in lost:
        print(f"mutants: not found exactly once in {one.file}: {one.old!r}", file=sys.stderr)
    if lost or args.check:
        print(f"{len(chosen) - len(lost)} of {len(chosen)} anchors found", file=sys.stderr)
        return int(bool(lost))
    if args.page:
        write_page({})
        return 0
    survived = 0
    print(HEAD, end="")
    with tempfile.TemporaryDirectory(prefix="paradec-mutants-") as name:
        folder = Path(name)
        copy_of_the_checkout(folder)
        for one in chosen:
            text = find(one)
            assert text is not None
            path = folder / PACKAGE / one.file
            path.write_text(text.replace(one.old, one.new), "utf-8")
            began = time.monotonic()
            killer = killed_by(folder, one)
            path.write_text(text, "utf-8")
            survived += killer is None
            said = (killer or "**SURVIVED**").replace("|", "\\|")
            last = f"{said} | {time.monotonic() - began:.0f}"
            print(f"{row(one)} | {last} |", flush=True)
            write_page({row(one): last})
    print(f"mutants: {len(chosen) - survived} of {len(chosen)} killed", file=sys.stderr)
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
