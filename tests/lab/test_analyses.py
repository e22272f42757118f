"""paradec analyse: each analysis on an example counted by hand, what must always hold, mistakes."""

import json
import math
import random

import pytest
from support.benchmarks import benchmark
from support.commands import DEMO, fairseq, succeed
from support.tables import refused, run, table, write

from fairseq_paradec.lab.analysis import likelihood, ngrams, quality
from fairseq_paradec.lab.analysis.agreement import Pair, contrastive_pairs
from fairseq_paradec.lab.analysis.benchmark_tables import (
    BEAM,
    GREEDY,
    OWN_GREEDY,
    block_points,
    tables,
)
from fairseq_paradec.lab.analysis.blocks import block_sizes
from fairseq_paradec.lab.commands import text_files
from fairseq_paradec.lab.data.table import Value

RNG = random.Random(5)
CORPUS = [[RNG.choice("abcdef") for _ in range(RNG.randint(1, 12))] for _ in range(30)]


def test_otem_by_hand():
    """``the`` 3 times for 1: 2 surplus; ``x``, not in the reference, twice: 1 surplus.

    Bigrams: the the (twice; not in the reference): 1; the x, x y, y x: 0.
    Of 6 unigrams 3 are surplus, of 5 bigrams 1; 6 tokens for 4: LP = exp(1 - 4/6).
    """
    surplus = ngrams.over_translation(
        [["the", "the", "the", "x", "y", "x"]], [list("abc") + ["the"]]
    )
    assert surplus.rates == (3 / 6, 1 / 5, 0.0, 0.0)
    assert surplus.length_penalty == pytest.approx(math.exp(1 / 3))
    assert surplus.otem() == pytest.approx(math.exp(1 / 3) * math.sqrt(0.5 * 0.2))
    assert surplus.otem(1) == pytest.approx(math.exp(1 / 3) * 0.5)
    assert surplus.otem(4) == 0.0
    assert surplus.repeated == 2 / 6


def test_repetition_by_hand():
    """Of up to four tokens at once, right behind themselves, within a sentence."""
    for text, count in (
        ("a b c", 0),
        ("a a b", 1),
        ("a a a", 2),
        ("a b a b", 2),
        ("a b a b a", 3),
        ("a b c a", 0),
        ("a b c d a b c d", 4),
        ("a b c d e a b c d e", 0),
    ):
        assert ngrams.repeated_tokens(text.split()) == count
    # ``the the the``: 2; ``a b a b``: none behind itself; across sentences: none. 2 of 8.
    repeats = ngrams.repetition([["the", "the", "the"], list("abab"), ["b"]])
    assert repeats == ngrams.Repetition(tokens=8, repeated=2, sentences=1) and repeats.rate == 2 / 8
    assert ngrams.repetition([[], []]).rate == 0


def test_precision_of_ends_by_hand():
    """First three: a a b; the reference has a once: 2 of 3. Last two: b c: both right."""
    ours, theirs = [["a", "a", "b", "c"]], [["a", "b", "c", "d"]]
    assert ngrams.edge_precision(ours, theirs, 1) == 3 / 4
    assert ngrams.edge_precision(ours, theirs, 1, left=3) == 2 / 3
    assert ngrams.edge_precision(ours, theirs, 1, right=2) == 1
    assert ngrams.edge_precision(ours, theirs, 2) == 2 / 3  # not: a a
    assert ngrams.edge_precision(ours, theirs, 2, left=3) == 1 / 2
    assert ngrams.edge_precision(ours, theirs, 4, left=3) is None


def test_bins_have_equal_counts_in_order():
    assert quality.equal_bins([3, 1, 2, 1, 9], 2) == [[1, 3], [2, 0, 4]]
    lengths = [len(text) for text in CORPUS]
    for count in (1, 4, 7, len(CORPUS)):
        bins = quality.equal_bins(lengths, count)
        assert sorted(i for members in bins for i in members) == list(range(len(CORPUS)))
        assert {len(members) - len(CORPUS) // count for members in bins} <= {0, 1}
        ranked = [lengths[i] for members in bins for i in members]
        assert ranked == sorted(lengths)


def test_pmi_by_hand():
    """Four tokens of 1/2, 1/8, 1/4, 1/4: 2 bits each, perplexity 4. zhang2020, Table 3."""
    assert likelihood.perplexity({7: [-1, -3], 2: [-2, -2]}) == 4
    assert likelihood.perplexity({0: [-1, -3, -2], 1: [-2]}) == 4  # of tokens, not of sentences
    assert likelihood.pmi(40, 4) == pytest.approx(1)
    assert round(likelihood.pmi(6.95, 4.04), 3) == pytest.approx(0.235, abs=0.0011)
    assert round(likelihood.pmi(4.72, 4.86), 3) == pytest.approx(-0.014, abs=0.0011)


def test_contrastive_accuracy_by_hand():
    """Pair 0: -3 > -4. Pair 1: -1 = -1, a tie. Pair 2: -1 < 0, though it has fewer tokens."""
    right = {0: [-1, -2], 1: [-1], 2: [-1]}
    wrong = {0: [-4], 1: [-0.5, -0.5], 2: [0, 0]}
    preferred = likelihood.prefers_right(right, wrong)
    assert preferred == {0: True, 1: False, 2: False}
    groups = likelihood.accuracy_by_distance(preferred, {0: 2, 1: 2, 2: 40}, longest=15)
    assert groups == {"all": (3, 1 / 3), "2": (2, 1 / 2), ">15": (1, 0)}


def test_pairs_by_hand():
    """The wrong number is that of the other verb form; what is unsure is left out."""
    for line, wrong, distance in (
        ("Ein Mann steht auf einer Leiter .", "Ein Mann stehen auf einer Leiter .", 1),
        ("Zwei Kinder am See spielen Ball .", "Zwei Kinder am See spielt Ball .", 3),
        ("Ein kleiner Boston Terrier läuft .", "Ein kleiner Boston Terrier laufen .", 1),
    ):
        assert contrastive_pairs(["", line]) == [Pair(1, line, wrong, distance)]
    for line in (  # the first tells no number; of the second also: stehen
        "Die Frau steht .",
        "Eine Gruppe von Menschen steht da .",
        "Ein Mann jongliert .",
        "Ein Mann und eine Frau stehen .",
        "Ein Mann , der steht , lacht .",
    ):
        assert contrastive_pairs([line]) == []


# ---- the command -------------------------------------------------------------------------------


def test_ngram_precision_of_long_sentences(tmp_path, capsys):
    ref = write(tmp_path / "ref", "a b c d", "z")
    first, second = write(tmp_path / "one", "a b x d", "q"), write(tmp_path / "two", "a b c x", "q")
    options = ["--n", "1", "--n", "2", "--edges", "2", "--min-length", "4"]
    assert table(capsys, "ngram-precision", first, second, ref, *options) == [
        ["all", "75.0", "75.0", "+0.0", "33.3", "66.7", "+33.3"],
        ["left 2", "100.0", "100.0", "+0.0", "100.0", "100.0", "+0.0"],
        ["right 2", "50.0", "50.0", "+0.0", "0.0", "0.0", "+0.0"],
    ]


def stats(number, seconds, batch=1):
    head = {"schema": "fairseq_paradec.decoding", "version": 1, "id": number}
    return json.dumps(head | {"batch_size": batch, "batch_seconds": seconds})


def test_length_bins_with_times(tmp_path, capsys):
    ref = write(tmp_path / "ref", *["a b c d e"] * 4)
    src = write(tmp_path / "src", "1 2 3", "1", "1 2", "1 2 3 4")
    first = write(tmp_path / "one", *["a b c d e"] * 4)
    second = write(tmp_path / "two", "a b c d e", "x", "x", "a b c d e")
    slow = write(tmp_path / "slow", stats(3, 4.0), stats(2, 2.0), stats(1, 1.0), stats(0, 3.0))
    fast = write(tmp_path / "fast", *(stats(i, 0.5) for i in range(4)))
    rows = table(capsys, "length-bins", first, second, ref, src, "--bins", 2, "--stats", slow, fast)
    wanted = ["1-2 2 100.0 0.00 1500.0 500.0 3.0", "3-4 2 100.0 100.00 3500.0 500.0 7.0"]
    assert [" ".join(row) for row in rows[:2]] == wanted
    assert (rows[2][:2], rows[2][4:]) == (["all", "4"], ["2500.0", "500.0", "5.0"])


def test_contrastive_make_writes_pairs(tmp_path, capsys):
    src = write(tmp_path / "src", "A man stands .", "People .", "Two dogs in water run .")
    ref = write(tmp_path / "ref", "Ein Mann steht .", "Leute .", "Zwei Hunde im Wasser laufen .")
    folder = tmp_path / "new" / "pairs"
    assert table(capsys, "contrastive-make", src, ref, folder) == [["3", "2", "1", "3"]]
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    source = "A man stands .\nTwo dogs in water run .\n"
    assert written == {
        "right.en": source,
        "wrong.en": source,
        "distances": "1\n3\n",
        "right.de": "Ein Mann steht .\nZwei Hunde im Wasser laufen .\n",
        "wrong.de": "Ein Mann stehen .\nZwei Hunde im Wasser läuft .\n",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("over-translation one ref", "one: got 1 sentences; allowed: 2, as in ref (REF)"),
        ("over-translation gap ref", "gap: got no line H-0; allowed: all sentences of a test"),
        ("length-bins ref ref1 ref2 --bins 1 --stats four", "four, line 1: got a batch of 4; allo"),
        ("pmi nan.p two.p", "nan.p: got 'nan -1' in line P-0; allowed: one log-probability"),
        ("pmi two.p three.p", "two.p: got 2 tokens for sentence 0; allowed: 3, as in three"),
        ("contrastive two.p more.p", "two.p: got no scores of sentence 1; allowed: scores of"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for path in ("ref", "ref1", "ref2"):
        write(tmp_path / path, "a b", "c")
    write(tmp_path / "one", "a")
    write(tmp_path / "four", stats(0, 1.0, batch=4))
    write(tmp_path / "gap", "H-1\t-0.1\ta", "H-2\t-0.1\tb")
    for path, line in (("two", "-1 -2"), ("three", "-1 -2 -3"), ("nan", "nan -1")):
        write(tmp_path / f"{path}.p", f"P-0\t{line}")
    write(tmp_path / "more.p", "P-0\t-1", "P-1\t-1")
    said = refused(capsys, "analyse", *arguments.split())
    assert said.startswith(f"paradec analyse: error: {message}")


@pytest.mark.slow
def test_what_fairseq_prints_is_understood(tmp_path, capsys):
    """Scores of the demo's references: PMI of a model with itself, and the references as output."""
    flags = ["--user-dir", "fairseq_paradec", "--path", DEMO / "model.pt", "--cpu"]
    result = succeed(fairseq("generate", DEMO, *flags, "--score-reference", "--remove-bpe"))
    path = tmp_path / "scores.txt"
    path.write_text(result.stdout, encoding="utf-8")
    scores = text_files.scores("MODEL", str(path))
    assert list(scores) == list(range(100))
    lines = (DEMO / "bpe" / "demo.de").read_text(encoding="utf-8").splitlines()
    assert [len(tokens) for tokens in scores.values()] == [len(line.split()) + 1 for line in lines]
    (_, model, plain, same), (*_, difference) = table(capsys, "pmi", path, path, 1)
    assert model == plain and float(model) > 1 and float(same) == 0
    assert float(difference) == pytest.approx(math.log10(float(model)), abs=1e-3)
    wanted = [line.replace("@@ ", "") for line in lines]
    assert text_files.sentences("HYP", str(path), text_files.TRANSLATION) == wanted
    assert text_files.sentences("REF", str(path), text_files.REFERENCE) == wanted
    rows = table(capsys, "length-bins", path, path, path, "--bins", 5)
    assert [float(row[2]) for row in rows] == [100] * 6


@pytest.mark.parametrize(
    ("num_accepted", "num_tokens", "sizes"),
    [
        # the paper's section 7.4; the last pass accepts a drafted </s>
        ([0, 9, 4, 3, 9, 1, 2], 34, [10, 5, 4, 10, 2, 3]),
        ([0], 1, [1]),  # </s> at once
        ([0, 2], 4, [3, 1]),  # </s> is the model's own
        ([0, 2], 3, [3]),  # </s> was drafted
        ([0, 5, 5, 5], 18, [6, 6, 6]),  # 1 + ceil((18 - 1) / 6) passes
    ],
)
def test_block_sizes(num_accepted, num_tokens, sizes):
    assert block_sizes(num_accepted, num_tokens) == sizes


#: label -> seconds of two sentences in two rounds, promise, passes, tokens, blocks
SYSTEMS = {
    BEAM: ([[4, 4], [4, 4]], "beam search", 20, 20, None),
    GREEDY: ([[3, 3], [4, 2]], "exact", 20, 20, None),
    OWN_GREEDY: ([[2, 2], [1, 1]], "exact", 20, 20, None),
    "regular 8": ([[1, 1], [1, 1]], "exact", 10, 20, 8),
    "regular 4": ([[1, 3], [1, 1]], "exact", 14, 20, 12),
    "top-2": ([[1, 1], [1, 1]], "relaxed", 9, 18, 6),
    "both 4": ([[0.5, 0.5], [0.5, 0.5]], "other model", 8, 24, 6),
}


def document():
    """A benchmark of two sentences."""
    systems = {}
    for label, (_, promise, passes, tokens, blocks) in SYSTEMS.items():
        facts = {"promise": promise, "passes": passes, "tokens": tokens}
        systems[label] = facts | ({} if blocks is None else {"blocks": blocks})
    latency = {"1": {label: given[0] for label, given in SYSTEMS.items()}}
    setting = {"sentences": 2, "timed sentences": 2, "rounds": 2, "threads": [1]}
    return benchmark(systems, {"latency": latency, "throughput": {}}, [5, 6], **setting)


@pytest.fixture
def points():
    return {point.name: point for point in block_points(document())}


def test_points_by_hand(points):
    assert list(points) == [OWN_GREEDY, "regular 8", "regular 4", "top-2", "both 4"]
    assert [point.block for point in points.values()] == [1, 20 / 8, 20 / 12, 3, 4]
    assert [point.passes for point in points.values()] == [10, 5, 7, 4.5, 4]
    assert [point.length for point in points.values()] == [1, 1, 1, 0.9, 1.2]


def test_a_point_says_what_its_model_is(points):
    assert points["regular 4"].label == "exact" and points["both 4"].label == "other model"


def test_a_point_has_its_speed_ups(points):
    gains = {OWN_GREEDY: Value(1, 1, 1, 2), GREEDY: Value(2.25, 1.5, 3, 2)}
    assert points["regular 4"].speed_ups == gains
    assert points["both 4"].speed_ups[OWN_GREEDY] == Value(3, 2, 4, 2)


def test_a_benchmark_says_the_mean_accepted_block():
    rows = {row["decoder"]: row for row in tables(document())[0].rows}
    assert rows["regular 4"]["mean_accepted_block"] == 1.67
    assert rows[GREEDY]["mean_accepted_block"] is None


def test_the_command_writes_a_table_and_draws_it(tmp_path, capsys):
    path = write(tmp_path / "b.json", json.dumps(document()))
    out, plot = tmp_path / "new" / "f.json", tmp_path / "new" / "f.png"
    given = ("analyse", "blocks", path, "--out", out, "--plot", plot)
    assert run(capsys, *given)[0] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert run(capsys, *given[:-1], plot.with_suffix(".svg"))[0] == 0
    assert b"<svg" in plot.with_suffix(".svg").read_bytes()
    table = json.loads(out.read_text(encoding="utf-8"))
    assert table["rows"][2] == {
        "decoder": "regular 4",
        "label": "exact",
        "mean_accepted_block": 1.67,
        "passes_per_sentence": 7.0,
        "length_ratio": 1.0,
        "x_our_greedy": {"middle": 1.0, "low": 1.0, "high": 1.0, "count": 2},
        "x_fairseq_greedy": {"middle": 2.25, "low": 1.5, "high": 3.0, "count": 2},
    }
    doctored = document()
    doctored["setting"]["rounds"] = 50
    for arguments, words in (
        ([write(tmp_path / "bad.json", json.dumps(doctored))], "numbers of samples than rounds"),
        ([path, path], "'Made up' is twice"),
        ([path, "--plot", tmp_path / "b.gif"], "a name that ends in"),
    ):
        assert words in refused(capsys, "analyse", "blocks", *arguments)


# ---- losses of trainings ------------------------------------------------------------------------


def write_log(path, train, valid):
    """What paradec train leaves: losses by update, as fairseq logs them."""
    path.parent.mkdir()
    logged = [("train_inner", {"num_updates": str(n), "loss": str(x)}) for n, x in train.items()]
    logged += [("valid", {"valid_num_updates": str(n), "valid_loss": x}) for n, x in valid.items()]
    return write(path, "begin", *(f"2026 | INFO | {tag} | {json.dumps(v)}" for tag, v in logged))


def test_losses_by_hand(tmp_path, capsys):
    """Means over tenths of the shorter run, and the last validation that both have."""
    first = write_log(
        tmp_path / "a" / "train.log",
        {n: 9 - n / 20 for n in range(5, 105, 5)},
        {50: 3, 100: 2.5004},
    )
    second = write_log(
        tmp_path / "b" / "train.log", {n: 5 for n in range(20, 220, 20)}, {100: 2.5, 200: 1}
    )
    svg, png = tmp_path / "x.svg", tmp_path / "x.png"
    rows = table(capsys, "losses", first, second, "--plot", svg)
    assert rows[:2] == [
        ["training", "1-10", "8.625", "-", "-"],  # of 8.75 and 8.5
        ["training", "11-20", "8.125", "5.0", "-3.125"],
    ]
    assert rows[10:] == [["validation", "100", "2.500", "2.5", "+0.000"]]
    assert all(
        f">{text}</text>" in svg.read_text() for text in ("a", "b", "a, validation", "updates")
    )
    assert table(capsys, "losses", first, "--plot", png)[9] == ["training", "91-100", "4.125"]
    assert png.read_bytes().startswith(b"\x89PNG")


def test_what_is_no_log_is_refused(tmp_path, capsys):
    short = write_log(tmp_path / "a" / "train.log", {10: 3.0, 90: 2.0}, {})
    for given, words in (
        ([short], "allowed: train.log of paradec train, with"),
        ([short, short], "each file once"),
        ([tmp_path / "no"], "LOG: got"),
        ([short, "--plot", "x.jpg"], "a name that ends in .png or .svg"),
    ):
        assert words in refused(capsys, "analyse", "losses", *given)
