"""What an update costs besides products: the quick parts are fairseq's and torch's, or as good."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.optim.adam import FairseqAdam
from omegaconf import OmegaConf
from support.builders import tiny_blockwise, tiny_model, tiny_task
from support.losses import pairs

from fairseq_paradec.errors import UsageError
from fairseq_paradec.memory import keep_memory
from fairseq_paradec.plugin.models.building import EndlessEncoder
from fairseq_paradec.plugin.updates.adam import adam_step
from fairseq_paradec.plugin.updates.dropout import QuickFairseqDropout, dropout, quicken_dropout
from fairseq_paradec.plugin.updates.kept import KeptOutputs, keep_frozen_outputs
from fairseq_paradec.training.criterions.lean_cross_entropy import LeanCrossEntropy


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_drops_its_share_of_every_place_independently(p: float) -> None:
    torch.manual_seed(1)
    draws = dropout(torch.ones(400, 1003), p)  # 1003: rows begin at every place of a word
    kept = draws.ne(0).double()
    assert draws.unique().tolist() == pytest.approx([0, 1 / (1 - p)], rel=1e-4)
    assert draws.mean() == pytest.approx(1, abs=5 * (p / (1 - p) / kept.numel()) ** 0.5)
    error = (p * (1 - p) / kept.numel()) ** 0.5
    assert kept.mean() == pytest.approx(1 - p, abs=5 * error)
    for place in range(4):  # of a word of random bits
        part = kept.flatten()[place::4]
        assert part.mean() == pytest.approx(1 - p, abs=5 * 2 * error)
    for far in (1, 2, 3, 4, 1003):  # neighbours in a word, in the next word, in the next row
        pairs_of = (kept.flatten()[:-far] - 1 + p) * (kept.flatten()[far:] - 1 + p)
        assert abs(pairs_of.mean()) < 5 * p * (1 - p) / kept.numel() ** 0.5


def test_dropouts_gradient_has_its_mask_in_any_layout() -> None:
    for x in (torch.randn(5, 7, 3), torch.randn(5, 7, 3).transpose(0, 1), torch.randn(7)[None]):
        x = x.requires_grad_()
        torch.manual_seed(2)
        out = dropout(x, 0.4)
        grad = torch.randn(out.shape)
        out.backward(grad)
        scale = (out / x).detach()
        assert all(one == pytest.approx(1 / 0.6, rel=1e-4) or not one for one in scale.flatten())
        torch.testing.assert_close(x.grad, grad * out.detach() / x.detach())
        torch.manual_seed(2)
        assert dropout(x, 0.4).equal(out), "a seed gives a mask"
    assert dropout(torch.ones(9), 1.0).equal(torch.zeros(9))


def test_a_models_dropouts_are_replaced_and_silent_in_evaluation() -> None:
    task = tiny_task()
    model = tiny_model(task)
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.2
    names = list(model.state_dict())
    sample = pairs(task)["net_input"]
    before = model.eval()(**sample)[0]
    quicken_dropout(model)
    assert any(type(module) is QuickFairseqDropout for module in model.modules())
    assert list(model.state_dict()) == names and model(**sample)[0].equal(before)
    assert not model.train()(**sample)[0].equal(before)


def weights(seed: int) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((7, 5), (5,), (3, 2, 2), (4,))
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def fairseq_adam(params: list[torch.nn.Parameter], eps: float) -> FairseqAdam:
    cfg = OmegaConf.create(
        {
            "lr": [0.01],
            "adam_betas": "(0.9, 0.98)",
            "adam_eps": eps,
            "weight_decay": 0.1,
            "use_old_adam": False,
            "fp16_adam_stats": False,
            "tpu": False,
        }
    )
    return FairseqAdam(cfg, params)


@pytest.mark.parametrize("eps", [1e-8, 0.1])
def test_adam_in_one_call_is_fairseqs(eps: float) -> None:
    """Also where a weight has no gradient in some updates; and each goes on from the other."""
    ours, theirs = weights(0), weights(0)
    quick, slow = fairseq_adam(ours, eps), fairseq_adam(theirs, eps)
    for update in range(6):
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            grad = None if i == update % 4 else torch.randn(one.shape)
            one.grad, other.grad = (None if grad is None else grad.clone() for _ in "12")
        if update == 3:  # a checkpoint of the one is resumed by the other
            mine, others = quick.state_dict(), slow.state_dict()
            quick.load_state_dict(others)
            slow.load_state_dict(mine)
        assert adam_step(quick)
        slow.step()
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_other_optimizers_make_their_own_step() -> None:
    params = weights(0)
    for one in params:
        one.grad = torch.ones_like(one)
    assert not adam_step(SimpleNamespace(optimizer=torch.optim.SGD(params, lr=0.1)))
    half = [torch.nn.Parameter(one.detach().bfloat16()) for one in params]
    for one in half:
        one.grad = torch.ones_like(one)
    assert not adam_step(fairseq_adam(half, 1e-8))


@pytest.mark.parametrize("reads_end", [True, False])
def test_kept_outputs_are_the_encoders_to_the_last_bit(reads_end: bool) -> None:
    task = tiny_task()
    model = tiny_model(task).eval()
    if not reads_end:
        model.encoder.__class__ = EndlessEncoder
    model.encoder.requires_grad_(False)
    samples = [pairs(task, seed=seed) for seed in (0, 5)]

    def losses() -> list[Any]:
        found = []
        for sample in samples:
            model.zero_grad()
            loss, _, _ = LeanCrossEntropy(task, False, 0.1)(model, sample)
            loss.backward()
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            found.append((loss.detach(), *gradients))
        return found

    plain = losses()
    encodes = count_calls(model.encoder.layers[0], "forward")
    kept = keep_frozen_outputs(model, 1.0)
    for epoch in range(3):
        for one, other in zip(losses(), plain, strict=True):
            assert all(a.equal(b) for a, b in zip(one, other, strict=True)), epoch
    assert len(encodes) == len(samples), "each batch was encoded once"
    model.load_state_dict(model.state_dict())
    assert not kept.states and kept.left == 1e9


def count_calls(owner: Any, name: str) -> list[int]:
    calls: list[int] = []
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    setattr(owner, name, counted)
    return calls


def test_kept_states_of_a_frozen_base_with_heads() -> None:
    task = tiny_task()
    model = tiny_blockwise(task)
    assert model.is_frozen
    sample = pairs(task)["net_input"]
    want = model(**sample, heads=[0, 1]).hidden
    real = sample["prev_output_tokens"].ne(task.target_dictionary.pad())
    keep_frozen_outputs(model, 1.0)
    decodes = count_calls(model.decoder, "forward")
    for _ in range(3):
        assert model(**sample, heads=[0, 1]).hidden[real].equal(want[real])
    assert len(decodes) == 1


def test_outputs_beyond_the_limit_are_computed_each_time() -> None:
    kept = KeptOutputs(6 * 4 * 2 / 1e9)  # six tokens of two numbers
    real = torch.tensor([[True, True], [True, False]])
    states = torch.randn(2, 2, 2)
    work: list[int] = []

    def compute() -> torch.Tensor:
        work.append(1)
        return states

    for keys in ("ab", "ab", "cd", "ab", "cd", "ef", "ef"):  # three tokens each
        found = kept.through(list(keys), real, compute)
        assert found[real].equal(states[real])
    assert len(work) == 4 and set(kept.states) == set("abcd")


def test_nothing_is_kept_where_nothing_is_frozen() -> None:
    with pytest.raises(UsageError, match="^--keep-frozen-outputs: got 1.0; allowed: 0, or a mod"):
        keep_frozen_outputs(tiny_model(tiny_task()), 1.0)


def test_freed_memory_stays_in_the_process() -> None:
    if not keep_memory():
        pytest.skip("not glibc")
    size = 1 << 28

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    block = torch.ones(size, dtype=torch.uint8)
    full = resident()
    del block
    assert resident() > full - size // 2
