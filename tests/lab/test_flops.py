"""FLOPs: against torch's own counter, method by method and loss by loss.

Torch's counter knows matrix products. Attention is run as plain products (SDPBackend.MATH), and
models are in fp64, which no kernel of oneDNN takes; ``test_the_counter_misses_nothing`` shows that
a linear map and attention are then counted. Sizes are uneven, so that no mistake cancels out.
"""

import copy
import json
import statistics
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from support import builders
from support.builders import DEMO, DEMO_DRAFTER, Limits, decode, demo, tiny_drafter, tiny_task
from support.commands import ROOT
from support.losses import pairs
from support.tables import refused, run
from support.trace_records import read
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fairseq_paradec.lab.analysis import flops, training_flops
from fairseq_paradec.lab.analysis.decoding_flops import EOS, Decoded
from fairseq_paradec.lab.analysis.flops import Heads, Shape, Stack
from fairseq_paradec.lab.commands import analyse_flops
from fairseq_paradec.lab.commands.flops_files import (
    BLOCK_NAT,
    BLOCKWISE,
    Checkpoint,
    read_checkpoint,
)
from fairseq_paradec.lab.measure.traits import traits
from fairseq_paradec.training.criterions.block_nat_loss import BlockNatLoss, BlockNatLossConfig
from fairseq_paradec.training.criterions.blockwise_loss import BlockwiseLoss, BlockwiseLossConfig

#: The outputs' limit.
LONGEST = 16

#: The counts here are exact but for one guess: see `test_decoding_is_what_torch_counts`.
TOLERANCE = 0.02

WORDS = 53
UNEVEN = {
    "encoder_layers": 3,
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_attention_heads": 3,
    "decoder_layers": 2,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 28,
    "decoder_attention_heads": 2,
    "max_target_positions": 64,
}


def counted(run):
    """What torch counts while something runs; it does not know products that are added in place."""
    more = {torch.ops.aten.addmm_: lambda sums, a, b, **_: 2 * a[0] * a[1] * b[1]}
    count = FlopCounterMode(display=False, custom_mapping=more)
    with sdpa_kernel(SDPBackend.MATH), count as counter:
        run()
    return counter.get_total_flops()


def sizes(model):
    """The sizes of a model's weights."""
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def shape_of(model, **settings):
    return flops.read_shape(sizes(model), **settings)


#: Of another size than the verifier in all that may differ.
DRAFTER = {
    "decoder_embed_dim": 20,
    "decoder_ffn_embed_dim": 36,
    "encoder_embed_dim": 20,
    "encoder_ffn_embed_dim": 44,
}


def plain(task):
    model = builders.tiny_model(task, **UNEVEN)
    return model, {"shape": shape_of(model)}, {}


def drafted(task, attention="prefix_causal", **extra):
    model = builders.tiny_model(task, **UNEVEN)
    drafter = tiny_drafter(task, attention, **DRAFTER | extra)
    own = shape_of(drafter, caches_prefix=attention == "prefix_causal", block=drafter.block_size)
    needed = {"shape": shape_of(model), "drafter": own}
    return model, needed, {"drafter_path": builders.lend(task, model, drafter), "block_size": 6}


def assisted(task, **sizes):
    """A drafter of other sizes; or the verifier with other weights in its decoder."""
    model = builders.tiny_model(task, **UNEVEN)
    drafter = builders.tiny_model(task, **sizes) if sizes else copy.deepcopy(model)
    for weight in () if sizes else drafter.decoder.parameters():
        weight.data += 0.02 * weight.data.roll(1, -1)
    own = shape_of(drafter, shares_encoder=not sizes)
    path = builders.lend(task, model, drafter)
    return model, {"shape": shape_of(model), "drafter": own}, {"drafter_path": path}


def drafter_alone(task):
    model = tiny_drafter(task, **DRAFTER)
    return model, {"shape": shape_of(model, caches_prefix=True, block=model.block_size)}, {}


def headed(task, variant, beside=False, **options):
    model = builders.tiny_blockwise(task, variant, **options)
    heads = flops.read_heads(sizes(model), 4)
    if not beside:
        return model, {"shape": shape_of(model, heads=heads)}, {}
    base = builders.tiny_model(task, variant)
    flags = {"drafter_path": builders.lend_heads(task, base, model.block_heads)}
    return base, {"shape": shape_of(base), "drafter": heads}, flags


def reordered(task, arch, step):
    model = builders.tiny_reordered(task, arch, **UNEVEN)
    return model, {"shape": shape_of(model, tokens_per_step=step)}, {}


RELAXED = {"accept_topk": 9, "adaptive_block": True, "drafter_shortlist": 31}
PER_HEAD = {"head_layer": "per_head", "train_first_head": False}


@pytest.mark.parametrize(
    ("make", "flags"),
    [
        (plain, {"decoding": "greedy"}),
        (plain, {"decoding": "pgj", "block_size": 4, "jacobi_stop": "unchanged"}),
        (
            plain,
            {"decoding": "hgj", "block_size": 3, "jacobi_window": "sliding", "hybrid_length": 11},
        ),
        (plain, {"decoding": "multiword_beam", "beam": 5}),
        (drafted, {"decoding": "gad"}),
        (drafted, {"decoding": "gad_pp", "accept_margin": 9.0} | RELAXED),
        (
            partial(drafted, attention="bidirectional", soft_copy=True, decoder_output_dim=14),
            {"decoding": "gad"},
        ),
        (assisted, {"decoding": "assisted", "draft_confidence": 0.02}),
        (
            partial(assisted, **DRAFTER, decoder_layers=1, decoder_output_dim=14),
            {"decoding": "assisted", "accept_margin": 9.0} | RELAXED,
        ),
        (drafter_alone, {"decoding": "nat", "block_size": 5}),
        (
            partial(headed, variant="output_dim", head_layer="dense", train_first_head=True),
            {"decoding": "blockwise", "block_size": 4} | RELAXED,
        ),
        (
            partial(headed, variant="other_dims", beside=True, **PER_HEAD),
            {"decoding": "blockwise", "block_size": 4},
        ),
        (
            partial(headed, variant="other_dims", heads_see_token=True, train_first_head=True),
            {"decoding": "blockwise", "block_size": 4},
        ),
        (
            partial(reordered, arch="ibdecoder_sa_tiny", step=4),
            {"decoding": "multiword_beam", "beam": 4},
        ),
        (
            partial(reordered, arch="double_token_tiny", step=2),
            {"decoding": "double_token_beam", "beam": 4},
        ),
    ],
)
def test_decoding_is_what_torch_counts(tmp_path, make, flags):
    """Decode two sentences one by one; compare each record's count with torch's.

    The first has as many tokens as it may, so that no ``</s>`` cuts a draft. The other is free: if
    the limit left no room behind a drafted ``</s>``, which a record does not tell, the count may be
    above torch's.
    """
    task, path = tiny_task(size=WORDS), tmp_path / "t"
    model, needed, more = make(task)
    needed |= {"beam": flags["beam"]} if "beam" in flags else {}
    model.make_generation_fast_()
    for seed, least in enumerate((LONGEST, 1)):
        limits = Limits(max_len_b=LONGEST, min_len=least)
        options = flags | more | {"trace_file": str(path)}
        sample = builders.batch(task, [7 + 2 * seed], seed)
        operations = counted(partial(decode, task, [model], sample, limits, **options))
        record = read(path)[-1]
        count = traits(flags["decoding"]).flops(Decoded(record, **needed)).total()
        ends = [entry["start"] for entry in record["trace"] if entry["draft"][-1:] == [EOS]]
        if least == LONGEST or all(start + 6 <= LONGEST for start in ends):  # 6: a whole draft
            assert count == operations
        assert operations <= count <= (1 + TOLERANCE) * operations


@pytest.mark.parametrize(("arch", "step"), [("ibdecoder_sa", 4), ("transformer_both_ends", 1)])
def test_a_step_is_read_from_the_checkpoint(tmp_path, arch, step):
    task, path = tiny_task(size=WORDS), tmp_path / "a.pt"
    builders.save_drafter(task, builders.tiny_reordered(task, arch), path, arch)
    assert read_checkpoint("--path", str(path)).shape.tokens_per_step == step


SOURCE, TARGET, ROWS = 9, 7, 3


def check_update(task, model, criterion, count_of):
    """Compare an update, and its forward passes alone, with torch's count.

    Args:
        count_of: returns the count of one sentence; it is given what the loss logged.
    """
    optimizer = SimpleNamespace(backward=lambda loss: loss.backward())
    log, given = {}, {"source_lengths": [SOURCE] * ROWS, "target_lengths": [TARGET] * ROWS}
    model.train()

    def update():
        log.update(task.train_step(pairs(task, **given), model, criterion, optimizer, 0)[2])

    def forward():
        with torch.no_grad():
            log.update(criterion(model, pairs(task, **given))[2])

    assert counted(update) == pytest.approx((count_of(log) * ROWS).total, rel=1e-12)
    if not hasattr(model, "target_order"):  # the task reorders targets inside its step
        assert counted(forward) == pytest.approx((count_of(log) * ROWS).forward, rel=1e-12)


@pytest.mark.parametrize(("step", "shared"), [(1, False), (4, False), (1, True)])
def test_training_a_translator_is_what_torch_counts(step, shared):
    """Also on an encoder that does not learn, as a shallow decoder is trained."""
    task = tiny_task(size=WORDS)
    make = partial(reordered, arch="ibdecoder_sa_tiny", step=4) if step == 4 else plain
    model, needed, _ = make(task)
    model.encoder.requires_grad_(not shared)
    shape = replace(needed["shape"], shares_encoder=shared)
    wanted = training_flops.transformer_update(shape, SOURCE, TARGET)
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    check_update(task, model, criterion, lambda _: wanted)


@pytest.mark.parametrize(("glancing", "errors"), [(0.0, 0.5), (0.9, 0.0)])
@pytest.mark.parametrize("shared", [False, True])
def test_training_a_drafter_is_what_torch_counts(shared, glancing, errors):
    """Every prefix of a sentence in one pass, so that the first pass' positions are known."""
    task = tiny_task(size=WORDS)
    verifier = builders.tiny_model(task, **UNEVEN) if shared else None
    sizes_ = {n: v for n, v in DRAFTER.items() if not shared or n.startswith("decoder_")}
    if shared:  # a soft copy needs equal embeddings
        sizes_ |= {"decoder_embed_dim": UNEVEN["encoder_embed_dim"], "soft_copy": True}
    else:  # on a verifier's encoder its embeddings are the projection: not resized
        sizes_["decoder_output_dim"] = 14
    model = tiny_drafter(task, verifier=verifier, **sizes_)
    shape = shape_of(model, caches_prefix=True, shares_encoder=shared)

    def count_of(log):
        return training_flops.drafter_update(
            shape,
            SOURCE,
            TARGET,
            99,
            model.block_size,
            glancing > 0,
            log["sample_size"] / ROWS,
            tries=99 if errors else 0,
        )

    settings = BlockNatLossConfig(
        prefixes_per_sentence=99,
        prefixes_after_errors=errors,
        position_decay=0.8,
        glancing_ratio=glancing,
        glancing_ratio_end=glancing,
        glancing_updates=300,
    )
    criterion = BlockNatLoss(settings, task)
    check_update(task, model, criterion, count_of)
    # Blocks of 2 behind 0 to 3 of 4 tokens have 2, 2, 2 and 1 of them.
    assert training_flops.block_positions(4, 2) == 7 / 4


@pytest.mark.parametrize(
    ("variant", "layer", "first", "fine_tuned", "sees"),
    [
        ("output_dim", "dense", False, True, False),
        ("other_dims", "per_head", True, False, False),
        ("output_dim", "dense", True, True, True),
    ],
)
def test_training_heads_is_what_torch_counts(variant, layer, first, fine_tuned, sees):
    """One head at a time, head 0 among them where it learns, and all at once."""
    task = tiny_task(size=WORDS)
    options = {"head_layer": layer, "train_first_head": first, "fine_tune_base": fine_tuned}
    options["heads_see_token"] = sees
    model, needed, _ = headed(task, variant, **options)
    trained = model.trained_heads
    for chosen in (trained[:1], trained[-1:], trained):
        drawn = "one" if len(chosen) == 1 else "all"
        criterion = BlockwiseLoss(BlockwiseLossConfig(heads_per_update=drawn), task)
        if len(chosen) == 1:
            criterion.draw_heads = lambda _, c=chosen: list(c)
        given = needed["shape"], SOURCE, TARGET
        wanted = training_flops.heads_update(*given, chosen, not fine_tuned)
        check_update(task, model, criterion, lambda _, wanted=wanted: wanted)


def table(capsys, folder, *arguments):
    """Run an analysis; return its rows as they are written."""
    status, _, errors = run(capsys, "analyse", *arguments, "--out", folder / "t.json")
    assert status == 0, errors
    return json.loads((folder / "t.json").read_text(encoding="utf-8"))["rows"]


def test_the_command_agrees_with_torch_on_the_demo(tmp_path, capsys):
    """A sentence by each of four methods; and what it refuses."""
    task, model, given = demo()
    model.make_generation_fast_()
    paths, operations, rows = {}, {}, []
    heads, path = DEMO / "heads.pt", ["--path", DEMO / "model.pt"]
    helpers = {"gad": DEMO_DRAFTER, "blockwise": heads, "assisted": path[1]}
    for name, drafter in ({"greedy": None} | helpers).items():
        paths[name] = tmp_path / f"{name}.jsonl"
        flags = {"decoding": name, "trace_file": str(paths[name]), "engine": "torch"}
        flags |= {} if drafter is None else {"drafter_path": str(drafter)}
        sample, limits = builders.collate(task, given[:1]), Limits(max_len_b=200)
        operations[name] = counted(partial(decode, task, [model], sample, limits, **flags))
    for name, drafter in helpers.items():
        files = [paths[name] for name in (["greedy", name] if name == "gad" else [name])]
        rows += table(capsys, tmp_path, "flops", *files, *path, "--drafter-path", drafter)
    assert [row["trace"] for row in rows] == ["greedy", *helpers]
    for row in rows:
        assert row["sentences"] == 1 and row["decoding"] == row["trace"]
        assert row["GFLOP"] == pytest.approx(operations[row["trace"]] / 1e9, abs=5.1e-5)
        parts = sum(row[part] for part in ("encoder", "decoder", "projection", "drafter"))
        assert parts == pytest.approx(row["GFLOP"], abs=3e-4)
        passes = row["passes_per_sentence"]  # one sentence
        assert row["drafter_MFLOP_per_pass"] * passes == pytest.approx(row["drafter"] * 1e3, 0.01)
        wanted = operations[row["trace"]] / operations["greedy"]
        assert row["x_greedy"] == pytest.approx(wanted, abs=0.0051)

    measured = ROOT / "results/benchmark-native-tiny.json"  # FLOPs beside its speeds
    beside = ["--benchmark", measured, "--training-flops", "2e9", "--drafter-training-flops", "1e9"]
    files, drafter = [paths["greedy"], paths["gad"]], ["--drafter-path", DEMO_DRAFTER]
    rounds = json.loads(measured.read_text())["seconds"]["latency"]["1"]
    ratios = [sum(a) / sum(b) for a, b in zip(rounds["greedy"], rounds["gad"], strict=True)]
    for row, trained, speed in zip(
        table(capsys, tmp_path, "flops", *files, *path, *drafter, *beside),
        (2e9, 3e9),
        (1.0, statistics.median(ratios)),
        strict=True,
    ):
        cost = operations[row["trace"]] + trained
        assert row["training_FLOP"] == trained
        assert row["FLOP_with_training"] == pytest.approx(cost)
        assert row["speed"]["middle"] == pytest.approx(speed)
        assert row["FLOP_by_speed"] == pytest.approx(cost / speed)

    unnamed = paths["greedy"].rename(tmp_path / "unnamed.jsonl")
    for arguments, words in (
        (["flops", unnamed, *path, *beside], "allowed: names of the benchmark's decoders with"),
        (["flops", paths["gad"], *path, *beside[2:4]], "--benchmark: got None; allowed: a file"),
        (["flops", paths["gad"], *path], "--drafter-path: got None; allowed: a block_nat"),
        (["flops", paths["blockwise"], *path], "allowed: blockwise heads, for"),
        (
            ["flops", paths["assisted"], *path, *drafter],
            "--drafter-path: got 'a block_nat model'; allowed: a Transformer, for",
        ),
        (["flops", paths["gad"], "--path", DEMO_DRAFTER], "--path: got 'a block_nat model'"),
        (["training-flops", heads, "--data", DEMO, "--subset", "test"], "heads with their base"),
    ):
        assert words in refused(capsys, "analyse", *arguments)


def test_training_on_the_demos_lengths(tmp_path, capsys):
    """The sum over its 100 pairs."""
    task, model, _ = demo()
    dataset = task.dataset("test")
    pairs = zip(dataset.src_sizes.tolist(), dataset.tgt_sizes.tolist(), strict=True)
    each = [training_flops.transformer_update(shape_of(model), *pair) for pair in pairs]
    forward, total = sum(update.forward for update in each), sum(update.total for update in each)
    tokens = sum(dataset.tgt_sizes.tolist())
    data = ["--data", DEMO, "--subset", "test", "--epochs", "10"]
    (row,) = table(capsys, tmp_path, "training-flops", DEMO / "model.pt", *data)
    assert row["forward_MFLOP_per_token"] == round(forward / tokens / 1e6, 2)
    assert row["training_MFLOP_per_token"] == round(total / tokens / 1e6, 2)
    assert row["FLOP"] == 10 * total


def test_updates_follow_the_losss_flags():
    """Heads: the mean over those that are drawn, or all at once. Drafters: prefixes."""
    heads = Heads(3, 4, 15, True, False)
    shape = Shape(Stack(1, 2, 3), Stack(1, 4, 5), 4, 4, 7, heads=heads)

    def learning(kind, model, **criterion):
        checkpoint = Checkpoint(kind, shape, heads if kind == BLOCKWISE else None, model, criterion)
        return analyse_flops.updates(checkpoint, "path")(3, 5)

    model = {"block_size": 4, "fine_tune_base": False}
    each = [training_flops.heads_update(shape, 3, 5, [head], True).total for head in (1, 2, 3)]
    assert learning(BLOCKWISE, model).total == pytest.approx(sum(each) / 3)
    whole = training_flops.heads_update(shape, 3, 5, [1, 2, 3], True)
    assert learning(BLOCKWISE, model, heads_per_update="all") == whole
    flags = {"glancing_ratio": 0.0, "glancing_ratio_end": 0.3, "prefixes_per_sentence": 3}
    for spacing, prefixes in ((1, 5), (2, 3), (4, 3)):  # of 5 tokens, at least 3 prefixes
        wanted = training_flops.drafter_update(shape, 3, 5, prefixes, 2, True)
        update = learning(BLOCK_NAT, {"drafter_block_size": 2}, tokens_per_prefix=spacing, **flags)
        assert update == wanted
    # Four prefixes are tried for each. K or, as often, 1 to K masks: of 2 three quarters are whole.
    half, whole = (training_flops.drafter_update(shape, 3, 5, 1, k, False, tries=4) for k in (1, 2))
    random = {"drafter_block_size": 2, "random_block_size": True}
    flags = {"prefixes_after_errors": 0.5, "glancing_ratio_end": 0.3, "max_epoch": 9}
    update = learning(BLOCK_NAT, random, **flags)
    assert update.total == pytest.approx(half.total / 4 + whole.total * 3 / 4)
