"""Parts of drafters beside answers worked out by hand; no model is needed."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fairseq_paradec.decoding import assistant
from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.decoding.assistant import AssistantDrafter, TreeAssistant
from fairseq_paradec.decoding.drafting import BlockSizes
from fairseq_paradec.decoding.loop import Verdict
from fairseq_paradec.decoding.trees import Nodes, Trees, branches, likeliest, plant
from fairseq_paradec.decoding.writing import Text, write
from fairseq_paradec.methods.configure import configure
from fairseq_paradec.methods.jacobi import JacobiDrafter
from fairseq_paradec.methods.self_draft import SelfDrafter
from fairseq_paradec.row import Row
from fairseq_paradec.token_rules import Scored, TokenRules

PAD, EOS = 1, 2
RULES = TokenRules(PAD, 3, EOS, EOS, 0, 0.0, 1.0, 0)


# ---- trees -------------------------------------------------------------------------------------

#: 7 with 8 behind it, and 9 beside it.
FORKED = Nodes([7, 8, 9], [-1, 0, -1], [0.5, 0.9, 0.4])


def test_a_planted_node_sees_its_ancestors_and_is_as_deep_as_they_are_many() -> None:
    mask = plant([FORKED], [4]).mask
    assert mask.depths.tolist() == [[0, 1, 2, 1]]
    assert mask.sees.astype(int).tolist() == [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]
    ]


def test_a_path_stays_behind_the_last_committed_token() -> None:
    trees = plant([FORKED, FORKED], [4, 7])
    assert trees.slots([[0, 1], [2]]) == ([5, 8], [[5, 6], [10]])


def test_nothing_is_drafted_behind_the_end() -> None:
    scores = [[-0.1, -1.0], [-0.1, -3.0]]
    found = likeliest([[EOS, 5], [6, 7]], scores, depth=2, most=3, eos=EOS)
    assert (found.tokens, found.parents) == ([EOS, 5, 6], [-1, -1, 1])


def looked_at(trees: Trees, choices: list[int]) -> list[list[int]]:
    """The path of one row's tree, whose verifier chooses these tokens at the chunk's positions."""
    chosen = Scored(np.array([choices]), np.zeros((1, len(choices))))
    scorer: Any = SimpleNamespace(choose=lambda hidden, at: chosen)
    row = Row(0, [], 20, tokens=[5] * 4)
    states: Any = np.zeros((1, len(choices), 2))
    return branches(scorer, states, RULES, [row], trees, ExactMatch(), whole=False).nodes


@pytest.mark.parametrize(
    ("choices", "path"),
    [
        ([7, 8, 0, 0], [0, 1]),
        ([9, 8, 0, 0], [2]),  # 8 is right behind 7, which is wrong
        ([6, 8, 9, 9], [0, 1]),  # nothing is right: the likeliest path
    ],
)
def test_the_path_that_is_looked_at_begins_with_what_the_verifier_chooses(
    choices: list[int], path: list[int]
) -> None:
    assert looked_at(plant([FORKED], [4]), choices) == [path]


# ---- drafters that write token by token ----------------------------------------------------------


class Script:
    """A scorer and its projection: each pass scores by the next line of a script.

    Args:
        lengths: of each row, how many inputs are cached.
        script: of each pass, each row's token and score.
    """

    joined = False
    model = None
    decoder = SimpleNamespace(max_positions=lambda: 99)

    def __init__(self, lengths: list[int], *script: list[tuple[int, float]]) -> None:
        self.cache = SimpleNamespace(lengths=lengths)
        self.script = iter(script)
        self.projection = self
        self.seen: list[Any] = []  # of each pass: the states' places in their chunk, and the starts
        self.gathered: list[Any] = []
        self.picked: list[Any] = []

    def writes(self, projection: Any) -> bool:
        return False

    def step(self, tokens: np.ndarray) -> np.ndarray:
        return np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))[:, :, None]

    def draft(self, hidden: np.ndarray, at: Any, normalised: bool) -> Scored:
        self.seen.append((hidden[:, 0, 0].tolist(), at.starts))
        tokens, scores = zip(*next(self.script), strict=True)
        return Scored(np.array(tokens)[:, None], np.array(scores)[:, None])

    def keep(self, lengths: list[int]) -> None:
        self.cache.lengths = list(lengths)

    def gather(self, starts: list[int], paths: list[list[int]]) -> None:
        self.gathered.append((starts, paths))

    def reorder(self, stay: list[int]) -> None:
        self.picked.append(stay)


def test_each_token_is_written_behind_the_inputs_that_a_row_lacked() -> None:
    """The first row lacks its start and two tokens, the second one token."""
    rows = [Row(0, [], 20, tokens=[4, 5]), Row(1, [], 20, tokens=[4, 5, 6])]
    scorer = Script([0, 3], [(7, -0.1), (8, -0.1)], [(9, -0.1), (9, -0.1)])
    found = write(scorer, scorer, RULES, rows, [2, 2])
    assert found.tokens == [[7, 9], [8, 9]]
    assert scorer.seen == [([2, 0], [2, 3]), ([0, 0], [3, 4])]
    assert scorer.cache.lengths == [4, 5]  # all but the last that was written


def test_a_row_ends_with_its_end_its_count_or_when_its_draft_is_unlikely() -> None:
    """The third row's first two tokens have a probability of 0.25; with less than 0.3 it ends."""
    rows = [Row(b, [], 20) for b in range(4)]
    half = math.log(0.5)
    passes = [[(EOS, -0.01), (7, -0.01), (8, half), (9, -0.01)]]
    passes += [[(5, -0.01), (5, -0.01), (8, half), (9, -0.01)]] * 2
    scorer = Script([0] * 4, *passes)
    found = write(scorer, scorer, RULES, rows, [3, 1, 3, 3], least=math.log(0.3))
    assert found.tokens == [[EOS], [7], [8, 8], [9, 9, 9]]


def test_what_was_accepted_of_a_draft_stays_cached() -> None:
    scorer = Script([6, 6])
    drafter = AssistantDrafter(scorer, None, RULES, BlockSizes(9, 2, adaptive=False), 0.0)
    drafter.read = [3, 3]
    drafter.observe(Verdict([], [1, 3], [2, 4], None))
    assert scorer.cache.lengths == [4, 6]


def test_rows_that_stay_are_picked_in_the_drafters_cache() -> None:
    scorer = Script([6, 7])
    drafter = AssistantDrafter(scorer, None, RULES, BlockSizes(9, 2, adaptive=False), 0.0)
    drafter.read = [3, 4]
    drafter.drop([1])
    assert scorer.picked == [[1]] and drafter.read == [4]


def test_of_a_tree_the_accepted_path_stays_as_far_as_it_was_read() -> None:
    """The second node of the first path lies two slots behind the first; nothing of the second."""
    scorer = Script([8, 4])
    sizes = BlockSizes(9, 2, adaptive=False)
    drafter = TreeAssistant(8, scorer, None, RULES, sizes, 0.0)
    drafter.trees = [SimpleNamespace(read=[[0], [0, 2], []]), SimpleNamespace(read=[[0]])]
    drafter.read = [5, 3]
    drafter.observe(Verdict([], [3, 0], [4, 1], None, paths=[[0, 1, 2], []]))
    assert scorer.gathered == [([5, 3], [[5, 7], []])]


def self_drafter() -> SelfDrafter:
    """One on its verifier's cache."""
    scorer = Script([4, 5])
    scorer.joined = True
    draws = SimpleNamespace(part=lambda *_: None)
    return SelfDrafter(scorer, draws, RULES, BlockSizes(9, 2, adaptive=True), 0.0)


def test_drafts_in_the_verifiers_cache_do_not_count_as_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = self_drafter()

    def written(scorer: Any, *_: Any) -> Text:
        scorer.keep([7, 8])
        return Text([[5, 6], [7, 8]], [[0.0, 0.0]] * 2)

    monkeypatch.setattr(assistant, "write", written)
    rows = [Row(0, [], 20, tokens=[4] * 4), Row(1, [], 20, tokens=[4] * 5)]
    assert drafter.propose(rows).tokens == [[5, 6], [7, 8]]
    assert drafter.scorer.cache.lengths == [4, 5]


def test_the_loop_alone_keeps_what_is_in_the_verifiers_cache() -> None:
    """Of a row whose draft was another's, the drafter would keep too little."""
    drafter = self_drafter()
    drafter.read = [2, 2]
    drafter.observe(Verdict([], [2, 2], [3, 3], None, own=[True, False]))
    assert drafter.scorer.cache.lengths == [4, 5] and drafter.sizes.sizes == [4, 9]


# ---- Jacobi's blocks -----------------------------------------------------------------------------


@pytest.mark.parametrize(("done", "size"), [(0, 3), (3, 1), (4, 2)])
def test_a_known_length_ends_the_block_that_reaches_it(done: int, size: int) -> None:
    """Blocks end at every third token, and at the fourth, the last of greedy search."""
    config = configure(decoding="pgj", block_size=3, jacobi_length="oracle")
    row = Row(0, [], 20, tokens=[5] * done)
    assert JacobiDrafter(config, RULES, [4]).propose([row]).num_scored == [size]
