"""FLOPs: counted by hand, and against torch's own counter, part by part and method by method.

Torch's counter knows matrix products. Attention is run as plain products (SDPBackend.MATH), and
models are in fp64, which no kernel of oneDNN takes; ``test_the_counter_misses_nothing`` shows that
a linear map and attention are then counted. Sizes are uneven, so that no mistake cancels out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import LanguagePairDataset
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from support.builders import (
    DEMO,
    DEMO_DRAFTER,
    Limits,
    batch,
    collate,
    decode,
    demo,
    lend,
    lend_heads,
    sources,
    tiny_drafter,
    tiny_model,
    tiny_reordered,
    tiny_task,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fairseq_paradec.analysis import flops, training_flops
from fairseq_paradec.analysis.flops import Count, Heads, Shape, Stack
from fairseq_paradec.analysis.training_flops import Update
from fairseq_paradec.cli import analyse_flops
from fairseq_paradec.cli.analyse_flops import BLOCK_NAT, BLOCKWISE, Checkpoint
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.criterions.block_nat_loss import BlockNatLoss
from fairseq_paradec.criterions.blockwise_loss import BlockwiseLoss
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods.registry import METHODS

#: The outputs' limit.
LONGEST = 16

#: The counts here are exact but for one guess: see `check`.
TOLERANCE = 0.02

#: Means of whole numbers are rounded.
EXACT = 1e-12

WORDS = 53
UNEVEN = {
    "encoder_layers": 3, "encoder_embed_dim": 12, "encoder_ffn_embed_dim": 20,
    "encoder_attention_heads": 3, "decoder_layers": 2, "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 28, "decoder_attention_heads": 2, "max_target_positions": 64,
}  # fmt: skip
RESIZED = UNEVEN | {"decoder_output_dim": 10}  # an input of 16, states of 16, 10 to the vocabulary


def counted(run: Any) -> int:
    """What torch counts while something runs."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def sizes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """The sizes of a model's weights."""
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def shape_of(model: Any, **settings: Any) -> Shape:
    """The shape of a model."""
    return flops.read_shape(sizes(model), **settings)


# ---- what torch counts ---------------------------------------------------------------------------


def test_the_counter_misses_nothing():
    """2 · 5 · 7 · 3 of a linear map; 2 · 2 · 5 · 6 · 4 · 2 of 2 heads of 4, 5 rows and 6 keys."""
    x, weight = torch.randn(5, 7).double(), torch.randn(3, 7).double()
    with torch.inference_mode():
        assert counted(lambda: F.linear(x, weight, weight[:, 0])) == 210
        query, key = torch.randn(1, 2, 5, 4).double(), torch.randn(1, 2, 6, 4).double()
        assert counted(lambda: F.scaled_dot_product_attention(query, key, key)) == 960
    assert flops.product(5, 7, 3) == 210 and flops.attention(5, 6, 8) == 960


# ---- by hand -------------------------------------------------------------------------------------

#: One layer each: an encoder of 2 and 3, a decoder of 4 and 5; 7 words.
SMALL = Shape(Stack(1, 2, 3), Stack(1, 4, 5), 4, 4, 7)


def test_a_pass_by_hand():
    """S = 3. The encoder: 2·3·2·8 + 4·3·3·2 + 2·(2·3·2·3) = 96 + 72 + 72; keys: 2·3·2·8 = 96.

    2 rows that see 5 keys: 2·2·4·16 + 4·2·5·4 = 416; 2·2·4·8 + 4·2·3·4 = 224; 2·(2·2·4·5) = 160;
    one of them to the vocabulary: 2·1·4·7 = 56.
    """
    assert flops.encoder(SMALL, 3) == 240 and flops.source_keys(SMALL, 3) == 96
    assert flops.decoder_pass(SMALL, 2, 5, 3, 1) == {
        "embedding": 0, "self-attention": 416, "cross-attention": 224, "feed-forward": 160,
        "projection": 56,
    }  # fmt: skip


def test_decoding_by_hand():
    """Greedy: passes of 1 row and 1, 2 keys: self 128 + 16, 128 + 32; cross 112; ffn 80; 56.

    Jacobi: the same output by 2 rows at once, and once more: keys 2, 2. As the table above, with
    256 + 64 of self-attention and 112 of projection.
    """
    found = flops.greedy(SMALL, 3, 2)
    assert found == Count(336, (144 + 112 + 80) + (160 + 112 + 80), 112) and found.total == 1136
    record = {
        "decoding": "pgj", "source": list("abc"), "output": list("xy"), "flags": {},
        "trace": [
            {"start": 0, "draft": ["<pad>"] * 2, "verifier": list("xz")},
            {"start": 0, "draft": list("xz"), "verifier": list("xy")},
        ],
    }  # fmt: skip
    assert flops.verifying(record, SMALL) == Count(336, 2 * (320 + 224 + 160), 2 * 112)


def test_a_draft_that_was_cut_cost_as_much_as_a_whole_one():
    """Blocks of 6, adaptive: 1 accepted, so the next has 3, of which ``</s>`` cut one off.

    Always 6 masks: the second pass has 2 new tokens and 6 masks. 6 and 3 masks are projected.
    """
    trace = [
        {"start": 0, "draft": list("abcdef"), "verifier": list("axbcdef"), "num_accepted": 1},
        {"start": 2, "draft": ["g", "</s>"], "verifier": ["g", "</s>"], "num_accepted": 2},
    ]
    flags = {"block_size": 6, "adaptive_block": True, "drafter_shortlist": None}
    record = {"decoding": "gad", "source": list("abc"), "flags": flags, "trace": trace}
    drafter = Shape(SMALL.encoder, SMALL.decoder, 4, 4, 7, caches_prefix=True, shares_encoder=True)
    passes = [(6, 6, 6), (8, 8, 3)]
    wanted = flops.source_keys(drafter, 3) + sum(
        sum(flops.decoder_pass(drafter, rows, keys, 3, projected).values())
        for rows, keys, projected in passes
    )
    assert flops.drafting(record, SMALL, drafter).drafter == wanted
    flags["adaptive_block"] = False
    assert flops.drafting(record, SMALL, drafter).drafter == wanted + flops.product(3, 4, 7)


def test_training_by_hand():
    """S = 3, T = 2: 336 as above, a pass of 2 rows and keys 704, 112; twice that backwards.

    In steps of 3 a target of 2 fills 3 rows: self 384 + 144, cross 192 + 144, ffn 240, 168.
    """
    assert training_flops.transformer_update(SMALL, 3, 2) == Update(1152, 2304)
    steps = Shape(SMALL.encoder, SMALL.decoder, 4, 4, 7, tokens_per_step=3)
    assert training_flops.transformer_update(steps, 3, 2).forward == 336 + 528 + 336 + 240 + 168
    # Blocks of 2 behind 0 to 3 of 4 tokens have 2, 2, 2 and 1 of them.
    assert training_flops.block_positions(4, 2) == 7 / 4
    assert training_flops.block_positions(4, 9) == (4 + 3 + 2 + 1) / 4


# ---- passes alone --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ({"decoding": "greedy"}, UNEVEN),
        ({"decoding": "pgj", "block_size": 4, "jacobi_stop": "unchanged"}, RESIZED),
        (
            {"decoding": "hgj", "block_size": 3, "jacobi_window": "sliding", "hybrid_length": 11},
            UNEVEN,
        ),
        ({"decoding": "multiword_beam", "beam": 5}, UNEVEN),
    ],
    ids=lambda flags: flags.get("decoding"),
)
def test_decoding_by_the_model_alone_is_what_torch_counts(tmp_path, flags, options):
    task = tiny_task(size=WORDS)
    model = tiny_model(task, "default", **options)
    needed = {"shape": shape_of(model)} | ({"beam": flags["beam"]} if "beam" in flags else {})
    check(tmp_path / "t", task, model, needed, **flags)


# ---- decoding ------------------------------------------------------------------------------------


def blockwise_on(base: Any, task: Any, **options: Any) -> Any:
    """A model with heads, of the sizes of ``base``."""
    settings = dict(vars(base.flags)) | {"base_path": "the base", "base_copied": True}
    args = argparse.Namespace(**settings | {"block_size": 4} | options)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        ARCH_CONFIG_REGISTRY["blockwise_transformer"](args)
        model = ARCH_MODEL_REGISTRY["blockwise_transformer"].build_model(args, task)
        for weight in model.block_heads.parameters():
            weight.normal_(std=0.4)
    model.load_state_dict(base.state_dict(), strict=False)
    model.flags = args
    return model.to(torch.float64).eval()


def check(path: Path, task: Any, model: Any, needed: dict[str, Any], **flags: Any) -> None:
    """Decode two sentences one by one; compare each record's count with torch's.

    The first has as many tokens as it may, so that no ``</s>`` cuts a draft. The other is free: if
    the limit left no room behind a drafted ``</s>``, which a record does not tell, the count may be
    above torch's.
    """
    model.make_generation_fast_()
    for seed, least in enumerate((LONGEST, 1)):
        sample, options = batch(task, [7 + 2 * seed], seed), flags | {"trace_file": str(path)}
        limits = Limits(max_len_b=LONGEST, min_len=least)
        found = counted(lambda s=sample, o=options, n=limits: decode(task, [model], s, n, **o))
        record = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        assert record["decoding"] == flags["decoding"]
        told = METHODS[record["decoding"]].flops(record, **needed).total
        ends = [one["start"] for one in record["trace"] if one["draft"][-1:] == [flops.EOS]]
        if least == LONGEST or all(start + 6 <= LONGEST for start in ends):  # 6: a whole draft
            assert told == found
        assert found <= told <= (1 + TOLERANCE) * found


#: Of another size than the verifier in all that may differ.
DRAFTER = {
    "decoder_embed_dim": 20, "decoder_ffn_embed_dim": 36, "encoder_embed_dim": 20,
    "encoder_ffn_embed_dim": 44,
}  # fmt: skip


RELAXED = {"accept_topk": 9, "accept_margin": 9.0, "adaptive_block": True, "drafter_shortlist": 31}


BOTH = {"soft_copy": True, "decoder_output_dim": 14}


@pytest.mark.parametrize(
    ("attention", "extra"),
    [("prefix_causal", {}), ("bidirectional", BOTH)],
    ids=["cached", "bidirectional, all"],
)
def test_drafting_is_what_torch_counts(tmp_path, attention, extra):
    """gad, gad_pp with all flags, and the drafter alone."""
    task = tiny_task(size=WORDS)
    model, drafter = tiny_model(task, **UNEVEN), tiny_drafter(task, attention, **DRAFTER | extra)
    own = shape_of(drafter, caches_prefix=attention == "prefix_causal")
    needed = {"shape": shape_of(model), "drafter": own}
    flags = {"drafter_path": lend(task, model, drafter), "block_size": 6}
    check(tmp_path / "a", task, model, needed, decoding="gad", **flags)
    check(tmp_path / "b", task, model, needed, decoding="gad_pp", **flags | RELAXED)
    check(tmp_path / "c", task, drafter, {"shape": own}, decoding="nat", block_size=5)


@pytest.mark.parametrize(("layer", "first"), [("dense", True), ("per_head", False)])
def test_blockwise_is_what_torch_counts(tmp_path, layer, first):
    """Heads in the model, with all flags, and beside it."""
    task = tiny_task(size=WORDS)
    base = tiny_model(task, **RESIZED)
    model = blockwise_on(base, task, head_layer=layer, train_first_head=first)
    heads = flops.read_heads(sizes(model), 4)
    needed = {"shape": shape_of(model, heads=heads)}
    flags = {"decoding": "blockwise", "block_size": 4}
    more = {"accept_topk": 9, "adaptive_block": True, "drafter_shortlist": 31}
    check(tmp_path / "b", task, model, needed, **flags | more)
    if not first:
        beside = flags | {"drafter_path": lend_heads(task, base, model.block_heads)}
        needed = {"shape": shape_of(base), "drafter": heads}
        check(tmp_path / "c", task, base, needed, **beside)


@pytest.mark.parametrize(
    ("arch", "decoding", "step"),
    [
        ("ibdecoder_sa_tiny", "multiword_beam", 4),
        ("double_token_tiny", "double_token_beam", 2),
    ],
)
def test_reordered_models_are_what_torch_counts(tmp_path, arch, decoding, step):
    task = tiny_task(size=WORDS)
    model = tiny_reordered(task, arch, **UNEVEN)
    needed = {"shape": shape_of(model, tokens_per_step=step), "beam": 4}
    check(tmp_path / "t", task, model, needed, decoding=decoding, beam=4)


@pytest.mark.parametrize("step", [1, 4])
def test_training_a_translator_is_what_torch_counts(step):
    task = tiny_task(size=WORDS)
    model = (
        tiny_model(task, **RESIZED)
        if step == 1
        else tiny_reordered(task, "ibdecoder_sa_tiny", **UNEVEN)
    )
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    shape = shape_of(model, tokens_per_step=step)
    check_update(
        task, model, criterion, lambda _: training_flops.transformer_update(shape, SOURCE, TARGET)
    )


# ---- training ------------------------------------------------------------------------------------

SOURCE, TARGET, ROWS = 9, 7, 3


class Backward:
    """What fairseq's tasks want of an optimizer."""

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def pairs(task: Any) -> dict[str, Any]:
    """A batch of sentences of one length each side, without padding."""
    words = task.source_dictionary
    source, target = (sources(task, [n] * ROWS, n) for n in (SOURCE, TARGET))
    lengths = [SOURCE] * ROWS, [TARGET] * ROWS
    dataset = LanguagePairDataset(
        source, lengths[0], words, target, lengths[1], words, shuffle=False
    )
    sample: dict[str, Any] = dataset.collater([dataset[i] for i in range(ROWS)])
    return sample


def check_update(
    task: Any, model: Any, criterion: Any, told: Callable[[dict[str, Any]], Update]
) -> None:
    """Compare an update, and its forward passes alone, with torch's count.

    Args:
        told: returns the count of one sentence; it is given what the loss logged.
    """
    log: dict[str, Any] = {}
    model.train()
    task_batch = pairs(task)

    def update() -> None:
        log.update(task.train_step(pairs(task), model, criterion, Backward(), 0)[2])

    def forward() -> None:
        with torch.no_grad():
            log.update(criterion(model, task_batch)[2])

    whole = counted(update)
    assert whole == pytest.approx((told(log) * ROWS).total, rel=EXACT)
    if not hasattr(model, "target_order"):  # the task reorders targets inside its step
        assert counted(forward) == pytest.approx((told(log) * ROWS).forward, rel=EXACT)


@pytest.mark.parametrize("glancing", [0.0, 0.9])
@pytest.mark.parametrize("shared", [False, True])
def test_training_a_drafter_is_what_torch_counts(shared, glancing):
    """Every prefix of a sentence in one pass, so that the first pass' positions are known."""
    task = tiny_task(size=WORDS)
    verifier = tiny_model(task, **UNEVEN) if shared else None
    sizes_ = {n: v for n, v in DRAFTER.items() if not shared or n.startswith("decoder_")}
    if shared:  # a soft copy needs equal embeddings
        sizes_ |= {"decoder_embed_dim": UNEVEN["encoder_embed_dim"], "soft_copy": True}
    else:  # on a verifier's encoder its embeddings are the projection: not resized
        sizes_["decoder_output_dim"] = 14
    model = tiny_drafter(task, verifier=verifier, **sizes_)
    shape = shape_of(model, caches_prefix=True, shares_encoder=shared)
    criterion = BlockNatLoss(task, 0.1, 99, 0, glancing, glancing, 300)

    def told(log: dict[str, Any]) -> Update:
        return training_flops.drafter_update(
            shape, SOURCE, TARGET, 99, model.block_size, glancing > 0, log["sample_size"] / ROWS
        )

    check_update(task, model, criterion, told)


@pytest.mark.parametrize(
    ("layer", "first", "fine_tuned"), [("dense", False, True), ("per_head", True, False)]
)
def test_training_heads_is_what_torch_counts(layer, first, fine_tuned):
    """One head at a time, head 0 among them where it learns, and all at once."""
    task = tiny_task(size=WORDS)
    options = {"head_layer": layer, "train_first_head": first, "fine_tune_base": fine_tuned}
    model = blockwise_on(tiny_model(task, **RESIZED), task, **options)
    shape = shape_of(model, heads=flops.read_heads(sizes(model), 4))
    trained = model.trained_heads
    for chosen in (trained[:1], trained[-1:], trained):
        criterion = BlockwiseLoss(task, 0.1, "one" if len(chosen) == 1 else "all")
        if len(chosen) == 1:
            criterion.draw_heads = lambda _, c=chosen: list(c)  # type: ignore[method-assign]
        check_update(
            task, model, criterion,
            lambda _, c=chosen: training_flops.heads_update(
                shape, SOURCE, TARGET, c, not fine_tuned
            ),
        )  # fmt: skip


# ---- checkpoints and commands --------------------------------------------------------------------


def test_what_a_checkpoint_tells():
    """Of the demo's: 4+4 layers, d = 128, 256; heads of 256 units each, without their base."""
    demo_shape = Shape(Stack(4, 128, 256), Stack(4, 128, 256), 128, 128, 7944)
    found = analyse_flops.read_checkpoint("--path", str(DEMO / "model.pt"))
    assert found.shape == demo_shape and found.heads is None
    drafter = analyse_flops.read_checkpoint("--drafter-path", str(DEMO_DRAFTER))
    assert drafter.kind == BLOCK_NAT and drafter.shape is not None
    assert drafter.shape.decoder == Stack(2, 128, 256)
    assert drafter.shape.caches_prefix and drafter.shape.shares_encoder
    heads = analyse_flops.read_checkpoint("--drafter-path", str(DEMO / "heads.pt"))
    assert heads.kind == BLOCKWISE and heads.shape is None
    assert heads.heads == Heads(5, 128, 1280, True, False)
    both = analyse_flops.read_checkpoint("--path", str(DEMO / "ibdecoder_sa.pt"))
    assert both.shape is not None and both.shape.tokens_per_step == 4
    with pytest.raises(UsageError, match="adaptive softmax; allowed: one without"):
        shape_of(tiny_model(tiny_task(), "adaptive_softmax"))


@pytest.fixture(scope="module")
def demo_traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], dict[str, int]]:
    """A sentence of the demo by each of three methods, and what torch counted."""
    folder = tmp_path_factory.mktemp("traces")
    task, model, given = demo()
    model.make_generation_fast_()
    paths, operations = {}, {}
    for name, flags in {
        "greedy": {},
        "gad": {"drafter_path": str(DEMO_DRAFTER)},
        "blockwise": {"drafter_path": str(DEMO / "heads.pt")},
    }.items():
        paths[name] = folder / f"{name}.jsonl"
        options = flags | {"decoding": name, "trace_file": str(paths[name])}
        sample, limits = collate(task, given[:1]), Limits(max_len_b=200)
        operations[name] = counted(
            lambda o=options, s=sample, n=limits: decode(task, [model], s, n, **o)
        )
    return paths, operations


def table(capsys: Any, folder: Path, *arguments: object) -> list[dict[str, Any]]:
    """Run an analysis; return its rows as they are written."""
    out = folder / "t.json"
    status = paradec(["analyse", *map(str, arguments), "--out", str(out)])
    _, err = capsys.readouterr()
    assert status == 0, err
    rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["rows"]
    return rows


def test_the_command_agrees_with_torch_on_the_demo(tmp_path, demo_traces, capsys):
    paths, operations = demo_traces
    rows = []
    for names, drafter in ((("greedy", "gad"), DEMO_DRAFTER), (("blockwise",), DEMO / "heads.pt")):
        files = [paths[name] for name in names]
        models = ["--path", DEMO / "model.pt", "--drafter-path", drafter]
        rows += table(capsys, tmp_path, "flops", *files, *models)
    assert [row["trace"] for row in rows] == ["greedy", "gad", "blockwise"]
    for row in rows:
        assert row["sentences"] == 1 and row["decoding"] == row["trace"]
        assert row["GFLOP"] == pytest.approx(operations[row["trace"]] / 1e9, abs=5.1e-5)
        parts = sum(row[part] for part in ("encoder", "decoder", "projection", "drafter"))
        assert parts == pytest.approx(row["GFLOP"], abs=3e-4)
        wanted = operations[row["trace"]] / operations["greedy"]
        assert row["x greedy"] == pytest.approx(wanted, abs=0.0051)


def test_training_on_the_demos_lengths_by_hand(tmp_path, capsys):
    """The sum over its 100 pairs, written out: 4 layers of 128 and 256, 7944 words."""
    task, _, _ = demo()
    dataset = task.dataset("test")
    forward = tokens = 0
    for s, t in zip(dataset.src_sizes.tolist(), dataset.tgt_sizes.tolist(), strict=True):
        linear = 128 * (4 * 128 + 2 * 256)  # weights of an encoder layer
        forward += 4 * (2 * s * linear + 4 * s * s * 128) + 4 * 2 * s * 128 * 256
        layer = 2 * t * 128 * (4 * 128 + 2 * 128 + 2 * 256) + 4 * t * t * 128 + 4 * t * s * 128
        forward += 4 * layer + 2 * t * 128 * 7944
        tokens += t
    (row,) = table(
        capsys, tmp_path, "training-flops", DEMO / "model.pt", "--data", DEMO, "--subset", "test",
        "--epochs", "10",
    )  # fmt: skip
    assert row == {
        "checkpoint": "model", "architecture": "transformer",
        "forward, MFLOP per token": round(forward / tokens / 1e6, 2),
        "training, MFLOP per token": round(3 * forward / tokens / 1e6, 2),
        "epochs": 10, "FLOP": f"{30 * forward:.3e}",
    }  # fmt: skip


def test_updates_follow_the_losss_flags():
    """Heads: the mean over those that are drawn, or all at once. Drafters: glancing, prefixes."""
    heads = Heads(3, 4, 15, True, False)
    shape = Shape(SMALL.encoder, SMALL.decoder, 4, 4, 7, heads=heads)

    def learning(kind: str, model: dict[str, Any], criterion: dict[str, Any]) -> Update:
        found = Checkpoint(kind, shape, heads if kind == BLOCKWISE else None, model, criterion)
        return analyse_flops.updates(found, "path")(3, 5)

    model = {"block_size": 4, "fine_tune_base": False}
    each = [training_flops.heads_update(shape, 3, 5, [head], True).total for head in (1, 2, 3)]
    assert learning(BLOCKWISE, model, {}).total == pytest.approx(sum(each) / 3)
    whole = training_flops.heads_update(shape, 3, 5, [1, 2, 3], True)
    assert learning(BLOCKWISE, model, {"heads_per_update": "all"}) == whole
    drafter = {"drafter_block_size": 2}
    for end in (0.0, 0.3):
        flags = {"glancing_ratio": 0.0, "glancing_ratio_end": end, "prefixes_per_sentence": 3}
        for spacing, prefixes in ((1, 5), (2, 3), (4, 3)):  # of 5 tokens, at least 3 prefixes
            wanted = training_flops.drafter_update(shape, 3, 5, prefixes, 2, end > 0)
            assert learning(BLOCK_NAT, drafter, flags | {"tokens_per_prefix": spacing}) == wanted


def test_mistakes_are_named(tmp_path, demo_traces, capsys):
    paths, _ = demo_traces
    model, heads = DEMO / "model.pt", DEMO / "heads.pt"
    record = json.loads(paths["greedy"].read_text(encoding="utf-8").splitlines()[0])
    made = {}
    for name, changes in {
        "fast": {"decoding": "auto_fast"}, "beam": {"decoding": "multiword_beam"},
        "no": {"source": None},
    }.items():  # fmt: skip
        made[name] = tmp_path / f"{name}.jsonl"
        made[name].write_text(json.dumps(record | changes) + "\n", encoding="utf-8")
    gad = paths["gad"]
    # The demo's data with a word less in the target's dictionary.
    for path in DEMO.iterdir():
        if path.name.startswith(("test.", "dict.")):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = (tmp_path / "dict.de.txt").read_text(encoding="utf-8").splitlines()
    (tmp_path / "dict.de.txt").write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    for arguments, words in (
        (["flops", gad, "--path", model], "--drafter-path: got None; allowed: a block_nat model"),
        (["flops", gad, "--path", model, "--drafter-path", heads], "got 'blockwise heads'; allowe"),
        (["flops", paths["blockwise"], "--path", model], "allowed: blockwise heads, for"),
        (["flops", gad, "--path", DEMO_DRAFTER], "--path: got 'a block_nat model'; allowed: a Tra"),
        (["flops", made["fast"], "--path", model], "by auto_fast'; allowed: greedy, pj, "),
        (["flops", made["beam"], "--path", DEMO / "ibdecoder.pt", "--beam", 1], "2 tokens a step'"),
        (["flops", made["beam"], "--path", model], "--beam: got None; allowed: the beam that"),
        (["flops", made["no"], "--path", model], "allowed: what --trace-file wrote, with sources"),
        (["flops", gad, gad, "--path", model], "allowed: each file once"),
        (["training-flops", heads, "--data", DEMO, "--subset", "test"], "heads with their base"),
        (["training-flops", model, "--data", DEMO], "--subset: got 'train'; allowed: a part of"),
        (["training-flops", tmp_path / "none", "--data", DEMO], "which does not exist"),
        (["training-flops", model, "--data", tmp_path, "--subset", "test"], "dictionary has 7943"),
    ):
        assert paradec(["analyse", *map(str, arguments)]) == 2
        out, err = capsys.readouterr()
        last = err.splitlines()[-1]
        assert out == "" and last.startswith("paradec analyse: error: ") and words in last, err
