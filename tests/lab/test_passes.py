"""``paradec profile passes``: what a pass reads and computes, and what comes of it."""

import copy
import json

import pytest
import torch
from support.builders import batch, task_for, tiny_model
from support.commands import DEMO, ROOT
from support.tables import run

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.engine.chunk import ChunkScorer
from fairseq_paradec.engine.settings import Engine
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.analysis import pass_costs
from fairseq_paradec.lab.data import documents
from fairseq_paradec.lab.data.table import Value
from fairseq_paradec.lab.measure.specs import read
from fairseq_paradec.lab.profile.asked import SizedModel
from fairseq_paradec.lab.profile.passes import bench, estimate
from fairseq_paradec.lab.profile.passes.models import SIZES, check_model
from fairseq_paradec.lab.profile.passes.pieces import PIECES, decoder_pieces, encoder_pieces

#: A short run: random weights, one round.
QUICK = ("--arch-size tiny --vocabulary 50 --rounds 1 --chunks 1,5 --block-sizes 4 --busy").split()
BENCHMARK = ROOT / "results" / "benchmark-gad-tiny.json"
OTHER = ROOT / "results" / "modules-tiny.json"


def scorer_of(variant="default", lengths=(7,), **engine):
    """A scorer in fp32, behind an encoder, with 4 tokens cached."""
    task = task_for(variant)
    model = tiny_model(task, variant, torch.float32)
    model.make_generation_fast_()
    scorer = ChunkScorer(model, Engine(**engine))
    with torch.inference_mode():
        scorer.encode(batch(task, lengths)["net_input"]["src_tokens"].numpy())
        scorer.step(torch.full((len(lengths), 12), 5))
        scorer.keep([4] * len(lengths))
    return scorer


def test_pieces_counted_by_hand():
    """2 layers, d=16, ffn 32, 40 words; 3 tokens for each of 2 sentences behind 4 cached ones."""
    pieces = {p["name"]: p for p in decoder_pieces(scorer_of(lengths=(7, 7)), 7, width=3, seen=7)}
    assert tuple(pieces) == PIECES
    for piece in pieces.values():
        assert (piece["dtype"], piece["bytes"]) == ("fp32", 4 * piece["weights"])
    cache = 2 * (2 * 2 * 7 * 16 * 4)
    assert {n: (p["weights"], p["cache_bytes"], p["flops"]) for n, p in pieces.items()} == {
        "embedding": (6 * 16 + 6 * 16, 0, 0),  # a row of words and one of positions for each token
        "self-attention": (
            2 * (4 * 16 * 16 + 4 * 16),
            cache,
            2 * (2 * 6 * 4 * 16 * 16 + 4 * 6 * 7 * 16),
        ),
        "cross-attention":  # keys and values are made by the encoder
        (2 * (2 * 16 * 16 + 2 * 16), cache, 2 * (2 * 6 * 2 * 16 * 16 + 4 * 6 * 7 * 16)),
        "feed-forward": (2 * (2 * 16 * 32 + 32 + 16), 0, 2 * (2 * 6 * 2 * 16 * 32)),
        "norms": (2 * 3 * 2 * 16, 0, 0),
        "projection": (40 * 16, 0, 2 * 6 * 40 * 16),
        "log-softmax and argmax": (0, 0, 0),
    }
    for kind in ("torch", "native"):
        eighth = {p["name"]: p for p in decoder_pieces(scorer_of(dtype="int8", kind=kind), 7, 3, 7)}
        # Weights of products in 8 bits; biases, and what is no product, in fp32.
        assert (eighth["projection"]["bytes"], eighth["projection"]["dtype"]) == (40 * 16, "int8")
        assert eighth["self-attention"]["bytes"] == 2 * (4 * 16 * 16 + 4 * 4 * 16)
        assert eighth["norms"]["bytes"] == 4 * 2 * 3 * 2 * 16


def weights(*modules):
    """The weights of modules, tables and None among them."""
    return sum(p.numel() for module in modules if module is not None for p in module.parameters())


def keys_of(decoder):
    """The weights that make the source's keys and values, which an encoder's pass reads."""
    attentions = [layer.encoder_attn for layer in decoder.layers]
    return weights(*(m for attention in attentions for m in (attention.k_proj, attention.v_proj)))


@pytest.mark.parametrize(
    "variant", ["prenorm", "share_all", "layernorm_embedding", "no_positions", "other_dims"]
)
def test_pieces_hold_every_weight_once(variant):
    """Rows of tables are read, and the tables' other rows are not."""
    scorer, width = scorer_of(variant), 3
    encoder, decoder = scorer.model.encoder, scorer.model.decoder
    tables = [decoder.embed_positions]
    if decoder.embed_tokens.weight is not decoder.output_projection.weight:
        tables.append(decoder.embed_tokens)
    rows = width * decoder.embed_tokens.embedding_dim * (1 if tables[0] is None else 2)
    read = sum(piece["weights"] for piece in decoder_pieces(scorer, 7, width, 7))
    assert read - rows == weights(decoder) - weights(*tables) - keys_of(decoder)
    # The rest of the model is what an encoder's pass reads.
    tables = [encoder.embed_tokens, encoder.embed_positions]
    rows = 7 * encoder.embed_tokens.embedding_dim * (1 if tables[1] is None else 2)
    read = sum(piece["weights"] for piece in encoder_pieces(scorer, 7))
    assert read - rows == weights(encoder) - weights(*tables) + keys_of(decoder)


def made(**changes):
    """A document made by hand: bandwidth 1 GB/s, peak 10 GFLOP/s, passes of round numbers."""

    def timed(part, chunk, ms, read, flops):
        piece = {"name": "all", "weights": 0, "bytes": read, "cache_bytes": 0, "flops": flops}
        return {
            "part": part,
            "engine": "fp32",
            "chunk": chunk,
            "seconds": [[ms / 1000] * 2],
            "pieces": [piece | {"dtype": "fp32"}],
        }

    def search(name, ms, encoder, **more):
        return {
            "name": name,
            "passes": 21,
            "seconds": [[21 * ms / 1000]],
            "encoder_seconds": [[encoder / 1000]],
        } | more

    return {
        "setting": {"engines": ["fp32"]},
        "bandwidth": [
            {"name": "large", "bytes": 10**9, "seconds": [[4.0]]},
            {"name": "fp32", "bytes": 10**6, "seconds": [[0.0005], [0.001], [0.002]]},
        ],
        "peak": [
            {"engine": "native", "dtype": "fp32", "flops": 10**9, "seconds": [[0.1, 0.1]]},
            {"engine": "torch", "dtype": "fp32", "flops": 10**9, "seconds": [[0.3, 0.3]]},
        ],
        "passes": [
            timed("encoder", None, 3.0, 10**6, 10**6),  # floor: 1 ms of reading
            timed("decoder", 1, 4.0, 2 * 10**6, 10**6),  # 2 ms of reading
            timed("decoder", 5, 6.0, 2 * 10**6, 5 * 10**7),  # 5 ms of computing
            timed("drafter's encoder", None, 0.5, 10**5, 1),
            timed("drafter", 4, 2.0, 10**6, 1),
            timed("token drafter's encoder", None, 0.25, 10**5, 1),
            timed("token drafter", 1, 1.0, 10**6, 1),
        ],
        "searches": [
            search("fairseq beam 5", 10.0, 5.0),
            search("fairseq greedy", 8.0, 5.0),
            search("greedy", 4.5, 3.0, loop_seconds=[[21 * 0.0001]]),
            search(pass_costs.LOOPED, 5.0, 3.0, loop_seconds=[[21 * 0.0005]]),
            search("CTranslate2 greedy", 3.0, 1.0, engine="ctranslate2"),
        ],
        "acceptance": None,
    } | changes


def test_the_floor_is_the_larger_of_reading_and_computing():
    document = made()
    first, second = (timed["pieces"][0] for timed in document["passes"][1:3])
    reading = pass_costs.floor(document, "fp32", [first])
    assert (reading.seconds, reading.by) == (pytest.approx(0.002), "reading")
    assert reading.computing == pytest.approx(0.0001)
    computing = pass_costs.floor(document, "fp32", [second])
    assert (computing.seconds, computing.by) == (pytest.approx(0.005), "computing")
    unknown = pass_costs.floor(document, "fp32", [second | {"dtype": "int8"}])
    assert unknown == (pytest.approx(0.002), None)
    with_keys = pass_costs.floor(document, "fp32", [first | {"cache_bytes": 10**6}])
    assert with_keys.seconds == pytest.approx(0.003)
    rows = {row["pass"]: row for row in pass_costs.tables(document)[1].rows}
    assert rows["decoder, 5 tokens"] == {
        "pass": "decoder, 5 tokens",
        "engine": "fp32",
        "ms": Value(6.0, 6.0, 6.0),
        "of_1_token": pytest.approx(1.5),
        "MiB_read": 1.91,
        "MFLOP": 50.0,
        "floor_ms": 5.0,
        "floor_by": "computing",
        "distance": pytest.approx(1.2),
    }


def test_an_estimate_by_hand():
    systems = [
        {
            "label": label,
            "passes": passes,
            "tokens": 14.0,
            "chunk": chunk,
            "masks": masks,
            "search": label if label.startswith("fairseq") else None,
        }
        for label, passes, chunk, masks in (
            ("fairseq beam 5", 15.0, 1, None),
            ("fairseq greedy", 14.0, 1, None),
            ("greedy", 14.0, 1, None),
            ("pgj", 12.0, 4, None),
            ("gad", 5.0, 5, 4),
            ("gad 9", 4.0, 10, 9),
        )
    ]
    systems.append(systems[3] | {"label": "assisted", "passes": 5.0, "chunk": 4, "steps": 3})
    given = {
        "file": "x.json",
        "systems": systems,
        "left_out": ["`pj`: unknown"],
        "block_size": 4,
        "assumed": ["gad"],
    }
    document = made(acceptance=given)
    assert pass_costs.loop_seconds(document, "fp32") == pytest.approx(0.0005)
    assert pass_costs.tables(document)[2].rows[-1] == {
        "decoder": "CTranslate2 greedy",
        "engine": "ctranslate2",
        "ms_per_token": Value(3.0, 3.0, 3.0),
        "loop_ms": None,
        "floor_ms": 2.0,
        "distance": pytest.approx(1.5),
        "encoder_ms": 1.0,
    }
    table = pass_costs.tables(document)[-1]
    assert table.title.startswith("Estimate") and table.notes[0].startswith("An ESTIMATE")
    rows = {row["decoder"]: row for row in table.rows}
    assert {name: row["ms_per_sentence"] for name, row in rows.items()} == {
        "fairseq beam 5": 5 + 15 * 10,
        "fairseq greedy": 5 + 14 * 8,
        "greedy": 60.4,  # 3 + 14 * (4 + 0.1): its own loop
        "pgj": 3 + 12 * (5.5 + 0.5),  # between the chunks of 1 and 5
        "gad": 3 + 0.5 + 5 * (2 + 6 + 0.5),
        "assisted": 3 + 0.25 + 5 * (3 * 1 + 5.5 + 0.5),
    }
    assert rows["gad"]["speed_of_fairseq_beam_5"] == pytest.approx(155 / 46)
    assert rows["gad"]["speed_of_fairseq_greedy"] == pytest.approx(117 / 46)
    assert rows["gad"]["floor_ms"] == 1 + 0.1 + 5 * (1 + 5)
    assert rows["greedy"]["distance"] == pytest.approx(60.4 / (1 + 14 * 2))
    assert {
        "Not estimated: `gad 9` in fp32: its passes were not measured.",
        "Not estimated: `pj`: unknown.",
        "k = 4 is assumed of `gad`: the file does not say it.",
    } <= {*table.notes}


def test_acceptance_is_read_from_a_benchmark():
    acceptance = estimate.read_acceptance(BENCHMARK, 10)
    systems = {system["label"]: system for system in acceptance["systems"]}
    assert systems["fairseq beam 5"]["passes"] == pytest.approx(15.412)
    assert (systems["gad"]["chunk"], systems["gad"]["masks"]) == (11, 10)
    assert "gad" in acceptance["assumed"] and "pgj 5" not in acceptance["assumed"]
    assert acceptance["left_out"] == ["`drafter alone`: another model"]
    for command, said in {
        "hgj --hybrid-length 4 --block-size 8": "its passes differ (--hybrid-length)",
        "assisted --draft-tree 9": "its passes differ (--draft-tree)",
        "beam --beam 4": "not known",
    }.items():
        assert said in estimate.what_passes_need(read(command).options, 10)
    needed = estimate.what_passes_need(read("assisted --drafter-path d.pt").options, 10)
    assert (needed["chunk"], needed["masks"], needed["steps"]) == (13, None, 12)


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    """What the shortest run writes."""
    out = tmp_path_factory.mktemp("passes") / "passes-quick.json"
    argv = [*QUICK, "--engines", "torch,native-bf16", "--peers", "--out", str(out)]
    argv += ["--acceptance", str(BENCHMARK)]
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        assert paradec(["profile", "passes", *argv]) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    return document | {"command": "as typed"}  # the test's own paths are no checkout's


def shorten(patch):
    """Let a run have one repetition, and small memory and matrices."""
    for name, value in (("REPETITIONS", 1), ("READ_MIB", 1), ("MATRIX", 32)):
        patch.setattr(bench, name, value)


def test_the_document(document):
    setting = document["setting"]
    assert (setting["vocabulary"], setting["batch"], setting["threads"]) == (50, 1, 1)
    bf16 = [timed for timed in document["passes"] if timed["engine"] == "native-bf16"]
    named = [(timed["part"], timed["chunk"]) for timed in bf16]
    assert named == [
        ("encoder", None),
        ("decoder", 1),
        ("decoder", 5),
        ("drafter's encoder", None),
        ("drafter", 4),
        ("token drafter's encoder", None),
        ("token drafter", 1),
        ("heads", 4),
    ]
    assert [(timed["engine"], timed["passes"]) for timed in document["searches"]] == [
        ("fairseq", 21),
        ("fairseq", 21),
        ("torch", 21),
        ("native-bf16", 21),
        ("native-bf16", 21),
        ("ctranslate2", 20),
        ("ctranslate2-int8", 20),
    ]
    own = document["searches"][2]
    assert own["name"] == "greedy" and 0 < own["loop_seconds"][0][0] < own["seconds"][0][0]
    rows = pass_costs.tables(document)[3].rows
    assert [row["piece"] for row in rows] == [*PIECES, "other", "whole pass"]
    for chunk in (1, 5):
        *parts, whole = [row[f"chunk_{chunk}_ms"] for row in rows]
        assert whole == pytest.approx(sum(parts), abs=0.002)


def test_the_results_page_refuses_others(document, tmp_path):
    path = tmp_path / "other.json"
    for change, words in (
        (lambda d: d["passes"][1]["seconds"][0].__setitem__(0, -9.0), "-9.0 is less than"),
        (lambda d: d["passes"][1].update(seconds=[[1.0], [1.0]]), "than rounds"),
        (lambda d: d["setting"].update(engines=["torch"]), "engines"),
        (lambda d: d["passes"].pop(1), "one of each chunk"),
        (lambda d: d["bandwidth"].pop(), "bandwidths"),
    ):
        other = copy.deepcopy(document)
        change(other)
        path.write_text(json.dumps(other), encoding="utf-8")
        with pytest.raises(UsageError, match=f"{path}.*{words}"):
            documents.read(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "measured"),
    [("drafter", "drafter, 4 masks"), ("model", "token drafter, 1 token"), ("heads", "heads, ")],
)
def test_a_checkpoint_with_its_drafter(capsys, monkeypatch, drafter, measured):
    shorten(monkeypatch)
    argv = [str(DEMO), "--path", str(DEMO / "model.pt"), *QUICK[4:]]
    assert paradec(["profile", "passes", *argv, "--drafter-path", str(DEMO / f"{drafter}.pt")]) == 0
    printed = capsys.readouterr().out
    assert "vocabulary 7944" in printed and f"| {measured}" in printed


def test_a_size_has_its_vocabulary():
    for size in SIZES:
        nothing = dict.fromkeys(("data", "path", "vocabulary", "drafter_path"))
        model = SizedModel(
            arch_size=size, engines=["native"], threads=1, rounds=1, busy=True, **nothing
        )
        check_model(model)
        assert model.num_words == (256206 if size.startswith("nllb") else 7944)


def test_a_mistake_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, words in (
        ([*QUICK, "--engines", "torch,fp8"], "--engines 'fp8' native-int8"),
        (["--path", "model.pt"], "DATA fairseq-preprocess"),
        ([], "--path --arch-size"),
        ([*QUICK, "--acceptance", str(OTHER)], f"--acceptance {OTHER.name} paradec benchmark"),
        ([str(DEMO), "--path", str(DEMO / "ibdecoder.pt"), *QUICK[4:]], "ReorderedTransformer"),
    ):
        status, out, err = run(capsys, "profile", "passes", *arguments)
        message = err.strip().splitlines()[-1]
        assert (status, out) == (2, "") and message.startswith("paradec profile")
        assert all(word in message for word in words.split()), message
