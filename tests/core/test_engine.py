"""The engine: the local optimiser against torch.optim, batches, buffers, dropout, features, keyed randomness."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift
from undrift.algorithms import create
from undrift.core import rng
from undrift.core.algorithm import Averaging, Broadcast, Trained
from undrift.core.client import one_thread, work
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.loop import Loop
from undrift.core.records import Nothing
from undrift.core.states import Kept
from undrift.core.training import Training
from undrift.core.vector import flatten
from undrift.runtimes.batched import Batched
from undrift.runtimes.serial import Serial


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def federation(module: nn.Module, training: Training, sizes: tuple[int, ...] = (10, 7, 4), seed: int = 5) -> Federation:
    draw = torch.Generator().manual_seed(1)
    total = sum(sizes)
    kind = next(module.parameters()).dtype
    return Federation(
        module=module,
        loss=nn.functional.cross_entropy,
        x=torch.randn(total, 5, generator=draw, dtype=kind),
        y=torch.randint(0, 3, (total,), generator=draw),
        indices=np.arange(total),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        training=training,
        seed=seed,
    )


def batches(fed: Federation, client: int, round: int, steps: int) -> list[Tensor]:
    """The documented batch order, written out: an order of the samples per epoch, cut into batches."""
    rows = fed.rows(client)
    size = fed.training.batch_size or len(rows)
    per_epoch = math.ceil(len(rows) / size)
    found = []
    for k in range(steps):
        epoch, place = divmod(k, per_epoch)
        order = rng.permutation(rng.key(fed.seed, "batches", round, client, epoch), len(rows))
        found.append(rows[torch.from_numpy(order[place * size : (place + 1) * size])])
    return found


OPTIMISERS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.01},
    {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
    {"weight_decay": 0.1},
]


@pytest.mark.parametrize("settings", OPTIMISERS)
def test_descend_is_torch_sgd(settings: dict[str, Any]) -> None:
    training = Training(lr=0.05, batch_size=4, epochs=3, **settings)
    fed = federation(net(), training)
    reply = work(
        "update", create("fedavg"), create("fedavg").broadcast(_server(fed), None), Kept(Nothing()), _local(fed, 0)
    )

    module = copy.deepcopy(fed.module)
    optimiser = torch.optim.SGD(
        module.parameters(),
        lr=0.05,
        momentum=training.momentum,
        nesterov=training.nesterov,
        weight_decay=training.weight_decay,
    )
    for rows in batches(fed, 0, 1, 9):  # 10 samples in batches of 4: three steps an epoch
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(fed.x[rows]), fed.y[rows]).backward()
        optimiser.step()
    assert reply.steps == 9
    assert torch.allclose(reply.up.x, flatten(module), rtol=0, atol=1e-14)


def test_clipping_shortens_the_direction_and_leaves_short_ones() -> None:
    for clip, shortened in ((0.01, True), (1e6, False)):
        fed = federation(net(), Training(lr=1.0, batch_size=0, steps=1, clip=clip))
        start, _ = fed.start()
        moved = (_train(fed, 0) - start).norm()
        free = (_train(federation(net(), Training(lr=1.0, batch_size=0, steps=1)), 0) - start).norm()
        assert moved.item() == pytest.approx(0.01 if shortened else free.item(), rel=1e-9)


def test_steps_instead_of_epochs_go_on_into_the_next_epoch() -> None:
    by_epochs = _train(federation(net(), Training(lr=0.1, batch_size=4, epochs=2)), 0)
    by_steps = _train(federation(net(), Training(lr=0.1, batch_size=4, steps=6)), 0)
    assert torch.equal(by_epochs, by_steps)


def test_learning_rate_schedules() -> None:
    assert Training(lr=0.2, schedule="exponential", lr_decay=0.5).lr_at(3) == pytest.approx(0.05)
    assert Training(lr=0.2, schedule="step", lr_decay=0.1, lr_every=10).lr_at(10) == pytest.approx(0.2)
    assert Training(lr=0.2, schedule="step", lr_decay=0.1, lr_every=10).lr_at(11) == pytest.approx(0.02)
    cosine = Training(lr=0.2, schedule="cosine", lr_rounds=10)
    assert cosine.lr_at(1) == pytest.approx(0.2)
    assert cosine.lr_at(6) == pytest.approx(0.1)
    assert cosine.lr_at(11) == cosine.lr_at(10) > 0  # methods divide by it


@pytest.mark.parametrize("nesterov", [False, True])
def test_travel_is_the_distance_of_a_constant_direction(nesterov: bool) -> None:
    training = Training(lr=0.3, momentum=0.9, nesterov=nesterov, batch_size=0, steps=12)
    fed = federation(net(), training)
    local = _local(fed, 0)
    start, _ = fed.start()
    one = torch.ones_like(start)
    with torch.no_grad():
        moved = start - local.descend(lambda x, b: one, start)
    assert torch.allclose(moved, one * 0.3 * local.travel, rtol=1e-12)
    if not nesterov:
        assert local.travel == pytest.approx(55.4187, abs=1e-4)  # A_12 of the specification


# --- buffers, dropout, features ---------------------------------------------------------------------------------------


def normed() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def test_batch_norm_statistics_are_averaged_and_counters_take_the_maximum() -> None:
    fed = federation(normed(), Training(lr=0.1, batch_size=4, epochs=2), sizes=(10, 7, 4))
    loop = Loop(fed, create("fedavg"), Serial(fed), 3)
    after = loop.play(loop.start()).snapshot.buffers

    module = copy.deepcopy(fed.module)
    floats, counts = [], []
    for client, steps in ((0, 6), (1, 4), (2, 2)):
        single = copy.deepcopy(module).train()
        optimiser = torch.optim.SGD(single.parameters(), lr=0.1)
        for rows in batches(fed, client, 1, steps):
            optimiser.zero_grad()
            nn.functional.cross_entropy(single(fed.x[rows]), fed.y[rows]).backward()
            optimiser.step()
        norm = single[1]
        floats.append(torch.cat([norm.running_mean, norm.running_var]).double())
        counts.append(int(norm.num_batches_tracked))
    expected = (10 * floats[0] + 7 * floats[1] + 4 * floats[2]) / 21
    assert torch.allclose(after.floats.double(), expected, atol=1e-6)
    assert after.counts.tolist() == [max(counts)] == [6]


def test_only_the_first_pass_over_a_batch_moves_the_statistics() -> None:
    fed = federation(normed(), Training(lr=0.1, batch_size=4, epochs=1))
    start, _ = fed.start()

    def statistics(passes: int) -> Tensor:
        local = _local(fed, 0)
        with torch.no_grad():
            for _ in range(3):
                b = local._next()
                for extra in range(passes):
                    local.grad(start + 0.1 * extra, b)
                local.features(start, b)
        buffers = local.buffers()
        assert buffers is not None
        return buffers.floats

    assert torch.equal(statistics(1), statistics(3))


def test_dropout_is_keyed_by_the_batch() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    fed = federation(module, Training(lr=0.1, batch_size=4, epochs=2))
    start, _ = fed.start()
    local = _local(fed, 0)
    with torch.no_grad():
        b, c = local._next(), local._next()
        assert torch.equal(local.grad(start, b), local.grad(start, b))
        assert not torch.equal(local.grad(start, b), local.grad(start, c))
    torch.manual_seed(99)  # whatever else drew from the global stream
    assert torch.equal(_train(fed, 1), _train(federation(module, fed.training), 1))


def test_a_batch_of_any_round_can_be_asked_for_again() -> None:
    fed = federation(net(), Training(lr=0.1, batch_size=4, epochs=2))
    later = _local(fed, 0)
    for t in (1, 2, 5):
        for k, rows in enumerate(batches(fed, 0, t, 6)):
            b = later.batch(t, torch.tensor(float(k)))
            assert torch.equal(b.x, fed.x[rows])
            assert torch.equal(b.y, fed.y[rows])
    assert torch.equal(later._next().x, fed.x[batches(fed, 0, later.round, 1)[0]])  # the order of its own is untouched


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(7)], ids=lambda layer: type(layer).__name__)
def test_a_value_is_the_loss_that_the_gradient_is_of(layer: nn.Module) -> None:
    torch.manual_seed(0)
    fed = federation(nn.Sequential(nn.Linear(5, 7), layer, nn.Linear(7, 3)), Training(lr=0.1, batch_size=4, epochs=2))
    start, _ = fed.start()
    local = _local(fed, 0)
    with torch.no_grad():
        b = local._next()
        loss, _ = local.value_and_grad(start, b)
        before = local.buffers()
        assert torch.equal(local.value(start, b), loss)
        after = local.buffers()
        assert before is None or (after is not None and torch.equal(before.floats, after.floats))
    assert (local.spent.gradients, local.spent.forwards) == (4, 4)


class Judged(Averaging[Nothing]):
    """Notes the loss of the received model on the first batch of a round, in two ways."""

    def client_update(self, down: Broadcast, me: Nothing, local: Any) -> Any:
        values = local.fold(lambda _, b: (local.value(down.x, b), local.value_and_grad(down.x, b)[0]), (0.0, 0.0), 1)
        local.note("value", values[0])
        local.note("gradient's", values[1])
        return Trained(down.x), me


@pytest.mark.parametrize("runtime", [Serial, Batched])
def test_values_are_the_same_everywhere(runtime: Any) -> None:
    fed = federation(net(), Training(lr=0.1, batch_size=4, epochs=2))
    with runtime(fed) as here:
        loop = Loop(fed, Judged(), here, 3)
        result = loop.play(loop.start())
    replica, expected = copy.deepcopy(fed.module), []
    for client in range(3):
        (rows,) = batches(fed, client, 1, 1)
        expected.append(fed.loss(replica(fed.x[rows]), fed.y[rows]).item())
    assert result.notes["value"] == pytest.approx(np.mean(expected), rel=1e-12)
    assert result.notes["gradient's"] == pytest.approx(np.mean(expected), rel=1e-12)
    assert (result.spent.gradients, result.spent.forwards) == (12, 12)


def test_training_leaves_the_global_random_stream_alone() -> None:
    module = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    fed = federation(module, Training(lr=0.1, batch_size=4, epochs=1))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    loop = Loop(fed, create("fedavg"), Serial(fed), 3)
    loop.play(loop.start())
    assert torch.equal(torch.rand(3), expected)


class Declared(nn.Module):
    """A module that says itself what its features are; its head is not the last linear layer in order."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.body = nn.Linear(5, 4)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def test_features_are_the_input_of_the_last_linear_or_what_the_module_declares() -> None:
    for module, expected in (
        (net(), lambda m, x: m[1](m[0](x))),
        (Declared(), lambda m, x: m.features(x)),
    ):
        fed = federation(module, Training(batch_size=4))
        start, _ = fed.start()
        local = _local(fed, 0)
        with torch.no_grad():
            b = local._next()
            z, outputs = local.forward(start, b)
            assert torch.equal(z, expected(fed.module, b.x))
            assert torch.allclose(local.head(start, z), outputs)


def test_head_and_body_split_and_join() -> None:
    fed = federation(Declared(), Training(batch_size=4))
    layout, (w, _) = fed.layout, fed.start()
    head, body = layout.split(w, "head"), layout.split(w, "body")
    module = fed.module
    assert torch.equal(head, torch.cat([module.head.weight.flatten(), module.head.bias]).detach())
    assert torch.equal(body, torch.cat([module.body.weight.flatten(), module.body.bias]).detach())
    assert torch.equal(layout.join(body=body, head=head), w)
    assert layout.mask("head", w).sum().item() == len(head) == layout.extent("head")


def test_gradient_of_an_own_loss_sees_both_the_outputs_and_the_vector() -> None:
    fed = federation(net(), Training(batch_size=4))
    start, _ = fed.start()
    local = _local(fed, 0)
    with torch.no_grad():
        b = local._next()
        mixed = local.grad_of(lambda w, b: local.loss(w, b) + 0.5 * (w * w).sum())(start, b)
        assert torch.allclose(mixed, local.grad(start, b) + start, atol=1e-14)


# --- same bits --------------------------------------------------------------------------------------------------------

SCRIPT = """
import hashlib, sys, torch
import undrift
noise = int(sys.argv[1])
torch.manual_seed(noise); torch.rand(noise); torch.set_num_threads(1 + noise % 2)
for name in ("fedavg", "scaffold", "moon"):
    result = undrift.run(name, clients=8, participate=3, rounds=3, seed=4)
    w = torch.cat([p.detach().flatten() for p in result.module.parameters()])
    print(hashlib.sha256(w.numpy().tobytes()).hexdigest())
"""


def test_one_seed_gives_the_same_bits_in_another_process_whatever_ran_before() -> None:
    outputs = {
        subprocess.run([sys.executable, "-c", SCRIPT, noise], capture_output=True, text=True, check=True).stdout
        for noise in ("1", "6")
    }
    assert len(outputs) == 1
    assert len(set(outputs.pop().split())) == 3


def test_another_seed_gives_other_bits() -> None:
    import undrift

    def bits(seed: int) -> bytes:
        result = undrift.run("fedavg", clients=8, participate=3, rounds=1, seed=seed)
        assert result.module is not None
        return flatten(result.module).numpy().tobytes()

    assert bits(1) == bits(1) != bits(2)


class Reversed(Serial):
    """Replies arrive in another order."""

    def replies(self, task: Any) -> Any:
        return reversed(list(super().replies(task)))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn"])
def test_the_order_in_which_uploads_arrive_changes_nothing(name: str) -> None:
    found = []
    for kind in (Serial, Reversed):
        fed = federation(net().float(), Training(lr=0.1, batch_size=4))
        loop = Loop(fed, create(name), kind(fed), 3)
        found.append(loop.play(loop.start()).snapshot.server)
    assert found[0].encode() == found[1].encode()


def test_sampling_is_uniform_and_without_replacement() -> None:
    counts = np.zeros(20)
    for t in range(3000):
        chosen = rng.sample(rng.key(1, "cohort", t), 20, 5)
        assert len(set(chosen.tolist())) == 5
        counts[chosen] += 1
    assert np.abs(counts / 3000 - 0.25).max() < 0.04


def _server(fed: Federation) -> Any:
    return create("fedavg").server_init(fed.start()[0], fed.population)


def _local(fed: Federation, client: int) -> Any:
    return fed.trainer().local(client, 1, fed.rows(client), fed.start()[1])


def _train(fed: Federation, client: int) -> Tensor:
    method = create("fedavg")
    with one_thread():
        return work("update", method, method.broadcast(_server(fed), None), Kept(Nothing()), _local(fed, client)).up.x


def test_a_last_batch_of_one_sample_can_be_left_out() -> None:
    def job(**training: Any) -> undrift.Result:
        x, y = torch.randn(34, 5, generator=torch.Generator().manual_seed(0)), torch.arange(34) % 2
        data = undrift.Dataset.from_arrays(x, y, x[:4], y[:4])
        model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        options: dict[str, Any] = {"partition": "iid", "clients": 2, "rounds": 1}
        return undrift.run(data=data, model=model, training=undrift.Training(batch_size=8, **training), **options)

    with pytest.raises(InvalidInput, match="batch norm cannot train: set drop_last"):
        job()
    assert job(drop_last=True).history.rounds[-1].participants == 2
