"""Passes over trees beside plain passes over their paths; choices at a tree's positions."""

import random
from typing import Any

import pytest
import torch
from support.builders import batch, task_for, tiny_model
from support.forward import difference

from fairseq_paradec.engine.masks import Tree
from fairseq_paradec.engine.projection import DraftProjection
from fairseq_paradec.engine.scorers import build_scorer
from fairseq_paradec.engine.settings import Engine
from fairseq_paradec.row import Row
from fairseq_paradec.token_rules import TokenRules

pytestmark = pytest.mark.usefixtures("no_gradients")

#: Kind -> the models' seeds, their dtype, the engine, the variant, and the allowed difference.
KINDS: dict[str, tuple[list[int], torch.dtype, Engine, str, float]] = {
    "torch": ([0], torch.float64, Engine(), "default", 1e-10),
    "learned": ([0], torch.float64, Engine(), "learned_positions", 1e-10),
    "prenorm": ([0], torch.float64, Engine(), "prenorm", 1e-10),
    "ensemble": ([0, 1], torch.float64, Engine(), "default", 1e-10),
    "native": ([0], torch.float32, Engine(kind="native"), "default", 0),
    "native learned": ([0], torch.float32, Engine(kind="native"), "learned_positions", 0),
    "native int8": ([0], torch.float32, Engine("int8", kind="native"), "prenorm", 0),
}


def scorer_of(kind: str) -> tuple[Any, Any]:
    seeds, dtype, engine, variant, _ = KINDS[kind]
    task = task_for(variant)
    models = [tiny_model(task, variant, dtype, s, max_target_positions=99) for s in seeds]
    for model in models:
        model._is_generation_fast = True
        outputs = model.decoder.output_projection.weight.data
        outputs[20:30] = outputs[10:20]  # for equal scores
    return task, build_scorer(models, engine)


def plain(scorer: Any, sample: Any, rows: list[int], lines: list[list[int]]) -> torch.Tensor:
    """Log-probabilities behind each line, of these rows of a batch, by one causal pass: B×V."""
    scorer.encode(sample["net_input"]["src_tokens"].numpy())
    scorer.reorder(rows)
    tokens = torch.tensor([line + [5] * (max(map(len, lines)) - len(line)) for line in lines])
    scores = scorer.log_probs(scorer.step(tokens))
    return scores[range(len(lines)), [len(line) - 1 for line in lines]]


class Grown:
    """The trees of a batch, node by node: of each row tokens, parents (-1: none) and slots."""

    def __init__(self, prefixes: list[list[int]], rng: random.Random) -> None:
        self.prefixes, self.rng = prefixes, rng
        self.bases = [len(prefix) for prefix in prefixes]
        self.tokens: list[list[int]] = [[] for _ in prefixes]
        self.parents: list[list[int]] = [[] for _ in prefixes]

    def path(self, row: int, node: int) -> list[int]:
        """A node and its ancestors, the first one first."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[row][node]
        return path[::-1]

    def line(self, row: int, node: int) -> list[int]:
        return self.prefixes[row] + [self.tokens[row][n] for n in self.path(row, node)]

    def grow(self, counts: list[int]) -> tuple[torch.Tensor, Tree]:
        """Add so many nodes to each row; what fills up short rows is arbitrary."""
        first, width = [len(tokens) for tokens in self.tokens], max(counts)
        chunk = torch.randint(4, 30, (len(counts), width))
        size = max(first) + width + self.rng.choice((0, 99))
        sees = torch.rand(len(counts), width, size) < self.rng.choice((0, 0.5, 1))
        depths = torch.randint(0, 200, (len(counts), width), dtype=torch.int32)
        for row, count in enumerate(counts):
            for i in range(count):
                node = first[row] + i
                self.parents[row].append(self.rng.randint(-1, node - 1))
                self.tokens[row].append(int(chunk[row, i]))
                path = self.path(row, node)
                sees[row, i] = False
                sees[row, i, path[: len(path) - self.rng.randint(0, 1)]] = True
                depths[row, i] = len(path) - 1
        return chunk, Tree(self.bases, sees.numpy(), depths.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_is_as_on_its_path(kind: str) -> None:
    """Rows of any length, trees over several passes; then a path stays, and a tree follows it."""
    near, rng = KINDS[kind][-1], random.Random(kind)
    torch.manual_seed(3)
    (task, scorer), (_, other) = scorer_of(kind), scorer_of(kind)
    # The first row's tree has the root: nothing is cached before it.
    lines: list[list[int]] = [[], [2, 7, 8, 9], [2, 5]]
    rows = list(range(len(lines)))
    sample = batch(task, [9, 4, 6][: len(rows)])
    scorer.encode(sample["net_input"]["src_tokens"].numpy())
    scorer.step(torch.tensor([line + [4] * (4 - len(line)) for line in lines]))
    scorer.keep(list(map(len, lines)))
    for _ in range(3):
        grown = Grown(lines, rng)
        for turn in range(rng.randint(1, 3)):
            counts = [rng.randint(int(turn == 0), 9) for _ in lines]
            counts[rng.choice(range(len(rows)))] = 9
            first = [len(tokens) for tokens in grown.tokens]
            found = scorer.log_probs(scorer.step(*grown.grow(counts)))
            assert not found.isnan().any()
            for i in range(9):
                nodes = [min(n + i, len(t) - 1) for n, t in zip(first, grown.tokens, strict=True)]
                paths = [grown.line(b, node) for b, node in enumerate(nodes)]
                want = plain(other, sample, rows, paths)
                for b, count in enumerate(counts):
                    assert i >= count or difference(found[b, i], want[b]) <= near, (b, i)
            ends = [s + len(tokens) for s, tokens in zip(grown.bases, grown.tokens, strict=True)]
            scorer.keep(ends)
        kept = [rng.randrange(-1, len(tokens)) for tokens in grown.tokens]
        slots = [[s + n for n in grown.path(b, kept[b])] for b, s in enumerate(grown.bases)]
        scorer.gather(grown.bases, slots)
        lines = [grown.line(b, node) for b, node in enumerate(kept)]
        found = scorer.log_probs(scorer.step(torch.full((len(rows), 2), 6)))
        want = plain(other, sample, rows, [[*line, 6, 6] for line in lines])
        assert difference(found[:, 1], want) <= near
        scorer.keep(list(map(len, lines)))
        order = rng.sample(range(len(rows)), len(rows))
        scorer.reorder(order)
        rows, lines = [rows[b] for b in order], [lines[b] for b in order]


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("kind", ["torch", "native", "native int8", "shortlist"])
def test_choices_at_a_trees_positions(kind: str, count: int) -> None:
    """Every limit, position by position; equal scores; forced tokens leave one candidate."""
    short = 20 if kind == "shortlist" else None
    task, scorer = scorer_of("native" if short else kind)
    torch.manual_seed(count)
    scorer.encode(batch(task, [9, 4, 6])["net_input"]["src_tokens"].numpy())
    hidden = scorer.step(torch.randint(4, 30, (3, 24)))
    starts, depths = [0, 3, 6], torch.randint(0, 9, (3, 24), dtype=torch.int32).numpy()
    depths[2, 0] = 8
    prefixes = ([], [], []) if short else ([7, 25], [4, 5, 6, 7], [])
    rows = [Row(0, [], n, p) for n, p in zip((30, 6 + count, 14), prefixes, strict=True)]
    forced = max(map(len, prefixes))
    rules = TokenRules(1, 3, 2, 2, 5, 0.5, 1.1, forced, (6, 17))
    draws = DraftProjection(scorer.model, short, task.target_dictionary)
    given = (scorer.projection, hidden)
    want = scorer.log_probs(hidden, 1.1)[..., :short]
    want = want.log_softmax(dim=-1) if short else want
    part = draws.part(scorer.projection, rules)
    chosen = part.choose(hidden, rules.at(rows, starts, depths))
    candidates = draws.candidates(*given, rules.at(rows, starts, depths), count)
    tokens, scores = map(torch.from_numpy, candidates)
    for b, row in enumerate(rows):
        for j in range(24):
            one = want[b : b + 1, j : j + 1]
            rules.at([row], [starts[b] + int(depths[b, j])]).restrict(one)
    best, order = want.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(torch.from_numpy(chosen.tokens), order[..., 0])
    torch.testing.assert_close(scores, best[..., :count], atol=1e-5, rtol=0)
    allowed = scores > -torch.inf
    assert torch.equal(tokens[allowed], order[..., :count][allowed])
    assert count == 1 or not bool(allowed.all())
