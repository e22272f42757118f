"""fairseq-train with the losses of drafters and heads: what fits, what is learned, going on."""

import json
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from support.builders import tiny_blockwise, tiny_drafter, tiny_model, tiny_reordered, tiny_task
from support.commands import DEMO, PLUGIN, run_python, succeed
from support.losses import pairs

from fairseq_paradec.errors import UsageError
from fairseq_paradec.training.criterions.lean_cross_entropy import LeanCrossEntropy


def test_models_losses_and_settings_that_do_not_fit_are_refused() -> None:
    task = tiny_task()
    heads, drafter, stock = tiny_blockwise(task), tiny_drafter(task), tiny_model(task)
    bidirectional = tiny_drafter(task, "bidirectional")
    wrong = "--criterion: got 'LabelSmoothedCrossEntropyCriterion'; allowed:"
    for model, criterion, settings, message in (
        (heads, "label_smoothed_cross_entropy", {}, f"{wrong} blockwise_loss with --arch"),
        (drafter, "label_smoothed_cross_entropy", {}, f"{wrong} block_nat_loss with --arch"),
        (stock, "blockwise_loss", {}, "--criterion blockwise_loss needs --arch blockwise_tr"),
        (stock, "block_nat_loss", {}, "--criterion block_nat_loss needs --arch block_nat"),
        (heads, "blockwise_loss", {"left_pad_target": True}, "--left-pad-target excludes --arch"),
        (drafter, "block_nat_loss", {"left_pad_target": True}, "--left-pad-target excludes --arch"),
        (bidirectional, "block_nat_loss", {"tokens_per_prefix": 3}, "--tokens-per-prefix: got 3"),
        (bidirectional, "block_nat_loss", {"prefixes_after_errors": 0.5}, "--prefixes-after-erro"),
        (stock, "label_smoothed_cross_entropy", {"block_size": 3}, "--block-size 3 needs .*own se"),
    ):
        task = tiny_task()
        for name, value in settings.items():
            if hasattr(task.cfg, name):
                setattr(task.cfg, name, value)
        task._model = model
        given = Namespace(criterion=criterion, label_smoothing=0.1, **settings)
        with pytest.raises(UsageError, match=f"^{message}"):
            task.build_criterion(given)


@pytest.mark.parametrize(("ignored", "order"), [(0, None), (1, None), (0, "ibdecoder")])
def test_the_lean_loss_is_fairseqs(ignored: int, order: str | None) -> None:
    task = tiny_task()
    model = (tiny_model(task) if order is None else tiny_reordered(task, order)).eval()
    sample = pairs(task)
    found = []
    for kind in (LabelSmoothedCrossEntropyCriterion, LeanCrossEntropy):
        model.zero_grad()
        loss, size, logging = kind(task, False, 0.1, ignored, True)(model, sample)
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append((size, {k: float(v) for k, v in logging.items()}, gradients))
    assert found[0][0] == found[1][0] and found[1][1] == pytest.approx(found[0][1], rel=1e-5)
    for mine, other in zip(found[1][2], found[0][2], strict=True):  # fairseq's loss is fp32
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("ignored", "order"), [(0, None), (1, None), (0, "ibdecoder")])
def test_a_loss_of_sentence_means_is_the_obvious_one(ignored: int, order: str | None) -> None:
    """--sentence-means: token by token, sentence by sentence; those of short ones weigh more."""
    task = tiny_task()
    model = (tiny_model(task) if order is None else tiny_reordered(task, order)).eval()
    sample, smoothing = pairs(task), 0.1
    criterion = LeanCrossEntropy(task, False, smoothing, ignored, sentence_means=True)
    loss, size, logging = criterion(model, sample)
    loss.backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    scores = model(**sample["net_input"])[0].double().log_softmax(dim=-1)  # B×T×V
    means, tokens = [], []
    for each, targets in zip(scores, sample["target"].tolist(), strict=True):
        losses = []
        for at, word in zip(each[ignored:], targets[ignored:], strict=True):
            if word != 1:
                others = (at.sum() - at[word]) / (len(at) - 1)
                losses.append(-(1 - smoothing) * at[word] - smoothing * others)
                tokens.append(-float(at[word].detach()))
        if losses:
            means.append(sum(losses) / len(losses))
    sum(means).backward()
    assert size == logging["sample_size"] == len(scores)
    assert float(loss.detach()) == pytest.approx(float(sum(means).detach()), rel=1e-5)
    assert float(logging["nll_loss"]) == pytest.approx(sum(tokens), rel=1e-5)
    wanted = [p.grad for p in model.parameters() if p.grad is not None]
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="^--sentence-means excludes --sentence-avg"):
        LeanCrossEntropy(task, True, smoothing, sentence_means=True)


#: Runs fairseq-train several times in one process; prints the heads that are drawn, and the ratios.
TRAIN = """
import json, sys
from fairseq_cli import train  # first: it says where to log
from fairseq.utils import import_user_module
from argparse import Namespace
commands = json.loads(sys.argv[1])
import_user_module(Namespace(user_dir=commands[0][-1]))
from fairseq_paradec.training.criterions import block_nat_loss, blockwise_loss
def spy(cls, name):
    original = getattr(cls, name)
    def function(self, given):
        result = original(self, given)
        print("DREW", json.dumps([given, result]), flush=True)
        return result
    setattr(cls, name, function)
spy(blockwise_loss.BlockwiseLoss, "draw_heads")
spy(block_nat_loss.BlockNatLoss, "glancing_ratio")
for command in commands:
    print("COMMAND", flush=True)
    sys.argv = ["fairseq-train", *command]
    train.cli_main()
"""

COMMON = (
    "--optimizer adam --max-tokens 400 --no-epoch-checkpoints --no-progress-bar --log-format json "
    "--log-interval 1 --num-workers 0 --cpu --seed 3 --train-subset test --valid-subset test"
).split()
HEADS = (
    "--arch blockwise_transformer_tiny --criterion blockwise_loss --lr 0.001 --block-size 3 "
    f"--base-path {DEMO}/model.pt"
).split()
DRAFTER = (
    "--arch block_nat_tiny --encoder-layers 1 --decoder-layers 1 --soft-copy --lr 0.001 "
    "--criterion block_nat_loss --glancing-updates 30 --drafter-block-size 4 "
    "--drafter-attention prefix_causal --prefixes-per-sentence 3 --disable-validation"
).split()
TUNED = "--fine-tune-base --train-first-head --heads-per-update all --disable-validation".split()


@dataclass
class Runs:
    """The folder of all models, and what each command printed."""

    folder: Path
    printed: Mapping[str, str]

    def drawn(self, name: str) -> list[Any]:
        """What was drawn of what, in each update."""
        return [json.loads(m) for m in re.findall(r"^DREW (.*)$", self.printed[name], re.MULTILINE)]

    def updates(self, name: str) -> dict[int, dict[str, str]]:
        """What was logged in training, by number of updates."""
        lines = [json.loads(m) for m in re.findall(r"train_inner \| (.*)", self.printed[name])]
        return {int(line["num_updates"]): line for line in lines}

    def state(self, name: str) -> dict[str, Any]:
        """The last checkpoint of a training."""
        path = self.folder / name / "checkpoint_last.pt"
        return torch.load(path, map_location="cpu", weights_only=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")

    def train(to: str, updates: int, *options: str) -> Sequence[object]:
        where = ["--save-dir", folder / to, "--max-update", updates, "--user-dir", PLUGIN]
        return [*map(str, [DEMO, *COMMON, *options, *where])]

    commands = {
        "heads": train("heads", 5, *HEADS),
        "half heads": train("other heads", 3, *HEADS, "--disable-validation"),
        "other heads": train("other heads", 5, *HEADS, "--disable-validation"),
        "tuned": train("tuned", 1, *HEADS, *TUNED),
        "drafter": train("drafter", 12, *DRAFTER),
        "half a drafter": train("other drafter", 7, *DRAFTER),
        "other drafter": train("other drafter", 12, *DRAFTER),
        "two epochs": train("epochs", 0, *DRAFTER, "--glancing-updates", "0", "--max-epoch", "2"),
    }
    result = succeed(run_python(TRAIN, json.dumps([*commands.values()]), cwd=folder))
    parts = re.split(r"^COMMAND$", result.stdout, flags=re.MULTILINE)[1:]
    return Runs(folder, dict(zip(commands, parts, strict=True)))


@pytest.mark.slow
def test_training_draws_a_head_for_every_update(runs: Runs) -> None:
    """By the update's number, so that going on draws what would have been drawn."""
    want = []
    for update in range(5):
        torch.manual_seed(3 + update)
        want.append([[1, 2], [1 + int(torch.randint(2, ()))]])
    assert runs.drawn("heads") == runs.drawn("half heads") + runs.drawn("other heads") == want
    assert want[0] in want[1:] and want.count(want[0]) < 5
    assert [*runs.updates("half heads")] == [1, 2, 3] and [*runs.updates("other heads")] == [4, 5]
    for update, (_, (head,)) in enumerate(want, start=1):
        line = runs.updates("heads")[update]
        known = [name for name in line if name.startswith("acc_") and line[name] is not None]
        assert known == [f"acc_{head + 1}"]
    for name in ("accepted", "acc_1", "acc_2", "acc_3"):  # of the subset that is called test
        assert f'"test_{name}": ' in runs.printed["heads"]
    assert runs.drawn("tuned") == [[[0, 1, 2], [0, 1, 2]]]


@pytest.mark.slow
def test_glancing_and_losses_go_on_where_they_stopped(runs: Runs) -> None:
    """fairseq deals out other batches, so that losses are near, not equal."""
    straight, half, resumed = (
        {number: float(line["loss"]) for number, line in runs.updates(name).items()}
        for name in ("drafter", "half a drafter", "other drafter")
    )
    assert [*half] == [*range(1, 8)] and [*resumed] == [*range(8, 13)]
    assert half == {number: straight[number] for number in half}
    assert resumed == pytest.approx({number: straight[number] for number in resumed}, abs=0.15)
    want = {number: pytest.approx(0.5 - 0.2 * number / 30) for number in range(12)}
    assert dict(runs.drawn("drafter")) == want
    assert dict(runs.drawn("half a drafter") + runs.drawn("other drafter")) == want
    assert [number for number, _ in runs.drawn("other drafter")] == [*range(7, 12)]
    ratios = [ratio for _, ratio in runs.drawn("two epochs")]
    half = len(ratios) // 2
    assert half > 2 and ratios == [0.5] * half + [0.3] * half, "the run's own epochs"
