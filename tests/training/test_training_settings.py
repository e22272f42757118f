"""What a preset means for an architecture, and the schedule, which follows the length."""

import contextlib
import json
import tomllib

import pytest
from fairseq import options, tasks
from support.commands import DEMO, PLUGIN
from support.training import write_pairs

from fairseq_paradec import register
from fairseq_paradec.errors import UsageError
from fairseq_paradec.training import schedule
from fairseq_paradec.training.folder import NOT_FLAGS
from fairseq_paradec.training.plan import Request, plan
from fairseq_paradec.training.settings import Recipe, data, kind_of, recipe_of, start_of

ARCHS = (
    "transformer",
    "image_transformer",
    "ibdecoder",
    "transformer_r2l",
    "double_token",
    "shallow_decoder",
    "block_nat",
    "block_nat_fast",
    "blockwise_transformer",
)
EVERY = [(arch, preset) for arch in ARCHS for preset in data()["presets"]]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """3,000 pairs of 4 to 33 tokens, and a file that stands for a model."""
    folder = tmp_path_factory.mktemp("settings") / "data"
    write_pairs(folder, [4 + i % 30 for i in range(3000)])
    (folder / "it's a model.pt").touch()
    return folder


@contextlib.contextmanager
def images_if(arch, folder, side=8, channels=1):
    """What makes a data folder one of images, if the architecture is for them."""
    sizes = folder / "sizes.json"
    if "image" in arch:
        large = {"height": side, "width": side, "channels": channels}
        sizes.write_text(json.dumps({"hr": large}))
    try:
        yield
    finally:
        sizes.unlink(missing_ok=True)


def flags(made):
    """The flags of a plan, each with its last value; those without one have an empty one."""
    words = [word for line in made.lines if line[0].startswith("--") for word in line]
    named = [(a[2:], b) for a, b in zip(words, [*words[1:], "--"]) if a.startswith("--")]
    return {name: "" if after.startswith("--") else after for name, after in named}


FAST = "--preset tiny --arch block_nat_fast --start-from V"
IMAGES = "--preset tiny --arch blockwise_image_transformer --start-from V"
HEADS = "--preset small --arch blockwise_transformer --start-from V"
LINEAR = "lr-scheduler=polynomial_decay"


@pytest.mark.parametrize(
    "given, expected",
    [
        (
            "--preset tiny",
            "arch=transformer share-decoder-input-output-embed= max-tokens=4096 cpu= max-epoch=38 "
            "criterion=lean_cross_entropy keep-last-epochs=8 average=8 lr-scheduler=inverse_sqrt "
            "!max-update",
        ),
        ("--preset tiny -- --lr 0.001", "lr=0.001"),  # the last
        # the paper's: glancing lasts as long as the training, by itself
        (
            "--arch block_nat --epochs 9",
            "max-epoch=9 glancing-ratio=0.5 !glancing-updates soft-copy= drafter-block-size=25",
        ),
        ("--preset big --arch block_nat", "drafter-block-size=30 encoder-embed-dim=1024"),
        (
            "--arch block_nat_fast --start-from V",
            "glancing-ratio-end=0.3 !soft-copy encoder-from=V drafter-block-size=8",
        ),
        ("--preset big --arch block_nat_fast --start-from V", "drafter-block-size=8"),
        # the papers' batches are for GPUs
        ("", "max-tokens=4096 update-freq=1 lr=0.0003 max-update=100000 warmup-updates=4000"),
        ("--preset big --arch block_nat", "max-tokens=4096 update-freq=1 max-update=50000"),
        ("--arch block_nat -- --decoder-embed-dim 64", "!soft-copy"),
        (
            "--preset tiny --arch block_nat -- --encoder-from V",
            f"glancing-ratio=0 !soft-copy {LINEAR}",
        ),
        # several prefixes need an attention that allows them
        (
            FAST,
            "arch=block_nat_fast encoder-from=V prefixes-per-sentence=4 position-decay=0.8 "
            "!encoder-layers !decoder-layers",
        ),
        (f"{FAST} -- --drafter-attention bidirectional", "prefixes-per-sentence=1"),
        (
            "--preset tiny --arch shallow_decoder -- --encoder-from V",
            f"max-update=2500 max-tokens=3000 dropout=0 label-smoothing=0 !decoder-layers {LINEAR} "
            "total-num-update=2500 warmup-updates=200",
        ),
        # what small drafters cannot use harms heads alone, too
        (HEADS, f"dropout=0 label-smoothing=0 {LINEAR} base-path=V !encoder-layers"),
        (f"{HEADS} -- --fine-tune-base", "dropout=0 label-smoothing=0 first-head-weight=10"),
        # a size in the name is the size; an encoder needs the preset's
        ("--preset tiny --arch double_token_l2r_tiny", "!encoder-layers lr=0.005"),
        (
            "--preset tiny --arch ibdecoder --start-from V",
            "encoder-embed-dim=128 start-from=V !encoder-from max-epoch=14 "
            f"keep-last-epochs=5 {LINEAR}",
        ),
        (
            "--preset small --arch ibdecoder --updates 600",
            f"{LINEAR} total-num-update=600 warmup-updates=60 lr=0.0015",
        ),
        ("--arch ibdecoder", "lr-scheduler=inverse_sqrt warmup-updates=4000 !total-num-update"),
        ("--arch double_token", "max-update=200000 warmup-updates=45000 average=10"),
        (
            "--preset tiny --updates 5000 --average 3 --seed 7",
            "max-update=5000 !max-epoch save-interval-updates=50 keep-interval-updates=3 "
            "keep-last-epochs=3 seed=7",
        ),
        # flags after -- win, and the schedule follows them
        (
            "--preset tiny --updates 5000 -- --lr-scheduler polynomial_decay --max-update 700",
            "total-num-update=700 warmup-updates=70",
        ),
        # an image in a batch, where sentences have batches of 1,024
        (
            f"{IMAGES} --average 3 -- --fine-tune-base --block-size 4",
            "task=image_super_resolution criterion=blockwise_loss heads-per-update=all "
            "block-size=4 train-first-head= lr=0.0003 first-head-weight=10 "
            "max-epoch=10 max-tokens=3073 label-smoothing=0 !encoder-layers !share-all-embeddings",
        ),
    ],
)
def test_settings(pairs, given, expected):
    """Of each name what it must have, of a !name that it must not be there; V is a model's file."""
    model = pairs / "it's a model.pt"
    words, _, more = given.partition(" -- ")
    words = [str(model) if word == "V" else word for word in words.split()]
    named = {k[2:].replace("-", "_"): v for k, v in zip(words[::2], words[1::2])}
    numbers = {k: int(v) for k, v in named.items() if v.isdecimal()}
    start = {"start_from": model} if "start_from" in named else {}
    after = [str(model) if word == "V" else word for word in more.split()]
    with images_if(given, pairs, side=32, channels=3):
        found = flags(plan(Request(pairs, **(named | numbers | start), flags=after), 0))
    for setting in expected.split():
        name, is_there, value = setting.lstrip("!").partition("=")
        got = found.get(name, "none").replace(str(model), "V")
        assert got == (value if is_there else "none"), name


@pytest.mark.parametrize(("gpus", "processes", "large"), [(0, 3, 4096), (4, 2, 25000)])
def test_a_batch_is_a_batch_whatever_the_processes(pairs, gpus, processes, large):
    for preset, layers, batch in (("iwslt", "6+6", 4096), ("deep-shallow", "12+1", large)):
        request = Request(pairs, preset, "another", updates=9, processes=processes)
        found = flags(plan(request, gpus))
        assert f"{found['encoder-layers']}+{found['decoder-layers']}" == layers
        tokens = int(found["max-tokens"]) * int(found["update-freq"]) * processes
        assert 0.99 * batch < tokens <= batch
        assert ("fp16" in found, "cpu" in found) == (gpus > 0, gpus == 0)
        assert found["distributed-world-size"] == str(processes)
        loss = "label_smoothed_cross_entropy" if gpus else "lean_cross_entropy"
        assert found["criterion"] == loss


def test_on_a_cpu_no_update_takes_minutes():
    """A GPU has the papers' batches; elsewhere they are as large as tiny's, at a lower rate."""
    largest = max(recipe_of(arch, "tiny", {"cpu"}).batch for arch in ARCHS)
    for arch, preset in EVERY:
        here, there = (recipe_of(arch, preset, {device}) for device in ("cpu", "cuda"))
        assert here.batch <= largest, (arch, preset)
        assert (here.batch < there.batch) == (here.flags["lr"] < there.flags["lr"]), (arch, preset)
        # A model is the same wherever it is trained.
        blocks = [each.flags.get("drafter-block-size") for each in (here, there)]
        assert (here.size, blocks[0]) == (there.size, blocks[1]), (arch, preset)


@pytest.mark.parametrize(("arch", "preset"), EVERY)
def test_the_schedule_follows_the_length(pairs, arch, preset):
    """A tenth of warm-up at most, but where a paper has more; a fall that ends with the run."""
    start = pairs / "it's a model.pt" if start_of(arch) else None
    share = 0.225 if arch == "double_token" and preset in ("base", "big") else 0.1
    with images_if(arch, pairs):
        for length in ({}, {"updates": 600}, {"epochs": 3}):
            made = plan(Request(pairs, preset, arch, start, **length), 0)
            found = flags(made)
            usual = recipe_of(arch, preset, {"cpu", "started"})
            warmup = int(found["warmup-updates"])
            assert warmup == min(usual.flags["warmup-updates"], max(1, int(share * made.updates)))
            falls = found["lr-scheduler"] == "polynomial_decay"
            assert found.get("total-num-update") == (str(made.updates) if falls else None)
            small = preset in ("tiny", "small") and kind_of(arch) not in ("translation", "images")
            assert falls == (small or arch == "shallow_decoder")


@pytest.mark.parametrize(("arch", "preset"), EVERY)
def test_fairseq_knows_every_flag_and_the_file_every_word(pairs, arch, preset):
    register()
    start = DEMO / "model.pt" if start_of(arch) else None  # whose settings are read
    with images_if(arch, pairs):
        made = plan(Request(pairs, preset, arch, start, updates=600), 0)
    words = [word for line in made.lines if line[0] not in NOT_FLAGS for word in line]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [str(pairs), *words])
    assert (args.arch, args.max_update, args.optimizer) == (arch, 600, "adam")


def test_the_file_has_no_word_that_nothing_reads():
    words = {"archs", "like", "flags", "when", "size"} | Recipe.__dataclass_fields__.keys()
    conditions = {"cpu", "cuda", "images", "started", "tuned", "fast", "narrow"} | {
        "bidirectional",
        "prefix_causal",
    }

    def check(table, more=frozenset()):
        assert table.keys() <= words | more, table.keys()
        assert table.get("when", {}).keys() <= conditions
        for each in table.get("when", {}).values():
            check(each)

    presets = data()["presets"].keys()
    for kind in data()["kinds"].values():
        check(kind, presets)
        for preset in presets & kind.keys():
            check(kind[preset])
    for arch, preset in EVERY:
        found = recipe_of(arch, preset, {"cpu"})
        assert found.batch and found.length[1] and {"lr", "warmup-updates"} <= found.flags.keys()
    # Written in the package, which a wheel has.
    assert tomllib.loads((PLUGIN / "training" / "presets.toml").read_text("utf-8")) == data()


@pytest.mark.parametrize(("tokens", "pieces", "processes"), [(100, 1, 1), (100, 3, 1), (300, 2, 2)])
def test_the_updates_of_an_epoch_are_fairseqs(pairs, tokens, pieces, processes):
    given = [str(pairs), "-s", "en", "-t", "de", "--arch", "transformer"]
    args = options.parse_args_and_arch(options.get_training_parser(), given)
    task = tasks.setup_task(args)
    task._has_criterion = True  # the plugin's has other batches outside training
    task.load_dataset("train")
    made = task.get_batch_iterator(
        task.dataset("train"),
        max_tokens=tokens,
        required_batch_size_multiple=8,
        num_shards=processes,
    ).next_epoch_itr(shuffle=True)
    updates = -(-len(made) // pieces)
    assert updates > 40
    assert abs(schedule.updates_an_epoch(pairs, tokens, pieces, processes) - updates) <= 2


def test_what_the_data_lack_is_named(tmp_path):
    (tmp_path / "train.en-de.en.idx").write_bytes(b"torn")
    with pytest.raises(UsageError, match="DATA: got '.*', which has no training set"):
        schedule.languages(tmp_path / "none")
    with pytest.raises(UsageError, match="DATA: got '.*', whose train.en-de.en.idx cannot be read"):
        schedule.updates_an_epoch(tmp_path, 100, 1, 1)


def test_sentences_that_do_not_fit_are_refused_or_left_out(tmp_path):
    data = write_pairs(tmp_path / "data", [5] * 16 + [50] * 8)
    assert schedule.updates_an_epoch(data, 50 * 8, 1, 1) == 2
    with pytest.raises(UsageError, match="--max-tokens: got 40; allowed: 50 at least"):
        schedule.updates_an_epoch(data, 40, 1, 1)
    assert schedule.updates_an_epoch(data, 40, 1, 1, skips=True) == 2
    skip = ["--max-tokens", "40", "--skip-invalid-size-inputs-valid-test"]
    assert plan(Request(data, "tiny", epochs=3, flags=skip), 0).updates == 6


def test_a_warm_up_that_does_not_end_is_refused():
    schedule.check(599, 600, "--updates")
    with pytest.raises(UsageError, match="^--warmup-updates: got 600; allowed: fewer than the 600"):
        schedule.check(600, 600, "--updates")
