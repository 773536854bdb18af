"""Models: sizes as in the papers, the features/head pair, batched gradients, and the exact rewrites."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import undrift
from undrift.core.errors import InvalidInput
from undrift.core.profile import convolution_biases, profile
from undrift.data import Dataset
from undrift.models import LOSSES, MODELS, aligned, build, catalogue, default_model, fitted, spec
from undrift.models.layers import FastConv2d

SMALL = [name for name in MODELS if name not in ("vgg16", "firenet", "resnet18", "alexnet")]


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "count", "macs"),
    [
        ("mlp", (1, 28, 28), 79_510, 79_400),  # FedTrip
        ("lenet", (1, 28, 28), 61_706, 416_520),
        ("lenet-plain", (1, 28, 28), 61_706, 416_520),
        ("alexnet", (3, 32, 32), 2_729_290, 145_922_816),  # 145.9 M
        ("logistic", (1, 28, 28), 7_850, 7_840),
    ],
)
def test_sizes_of_the_papers(name: str, shape: tuple[int, ...], count: int, macs: int) -> None:
    module = build(name, shape, 10)
    assert parameters(module) == count
    assert profile(module, torch.zeros(1, *shape)).forward == macs


def test_lenet_macs_with_convolution_biases() -> None:
    module = build("lenet-plain", (1, 28, 28), 10)
    sample = torch.zeros(1, 1, 28, 28)
    assert profile(module, sample).forward + convolution_biases(module, sample) == 422_944


@pytest.mark.parametrize(
    ("name", "count"),
    [
        (
            "vgg16",
            14_714_688 + 512 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 10 + 10,
        ),  # torchvision's 13 convolutions
        ("firenet-light", 448 + 4640 + 18_496 + 2304 * 256 + 256 + 256 * 128 + 128 + 128 * 2 + 2),
        ("fedadm-cnn", 832 + 25_632 + 1568 * 256 + 256 + 2570),
        ("mcmahan-cnn", 832 + 51_264 + 3136 * 512 + 512 + 5130),
    ],
)
def test_sizes_counted_layer_by_layer(name: str, count: int) -> None:
    rows = {row.name: row for row in catalogue()}
    assert rows[name].parameters == count


def test_catalogue_lists_all_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    assert [row.name for row in catalogue()] == list(MODELS)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", MODELS)
def test_forward_is_head_of_features(name: str) -> None:
    shape, classes = MODELS[name].example
    if name in ("vgg16", "firenet"):
        chosen = spec(name, width=64)
        shape = (3, 32, 32)
    else:
        chosen = spec(name)
    module = chosen.build(shape, classes).eval()
    x = torch.randn(2, *shape)
    assert isinstance(module.head, nn.Linear)
    features = module.features(x)  # type: ignore[operator]
    assert features.shape == (2, module.head.in_features)
    assert torch.equal(module(x), module.head(features))
    assert module(x).shape == (2, classes)


@pytest.mark.parametrize("name", SMALL)
def test_batched_gradients_equal_one_by_one(name: str) -> None:
    torch.manual_seed(0)
    shape, classes = MODELS[name].example
    module = build(name, shape, classes).eval()
    loss = LOSSES[MODELS[name].loss]
    x, y = torch.randn(2, 3, *shape), torch.randint(0, classes, (2, 3))
    weights = {n: torch.stack([p.detach(), 1.1 * p.detach()]) for n, p in module.named_parameters()}

    def value(w: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(module, w, (x,)), y)

    batched = vmap(grad(value))(weights, x, y)
    for i in range(2):
        alone = grad(value)({n: w[i] for n, w in weights.items()}, x[i], y[i])
        for n, g in alone.items():
            assert torch.allclose(batched[n][i], g, atol=1e-5), n


class TestRewrite:
    @pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 64, 64), (2, 24, 20)])
    def test_same_numbers_as_the_plain_layers(self, shape: tuple[int, int, int]) -> None:
        torch.manual_seed(0)
        plain, fast = build("lenet-plain", shape, 10), build("lenet", shape, 10)
        fast.load_state_dict(plain.state_dict())
        assert [n for n, _ in fast.named_parameters()] == [n for n, _ in plain.named_parameters()]
        x, y = torch.randn(20, *shape), torch.randint(0, 10, (20,))
        assert torch.allclose(plain(x), fast(x), atol=1e-6)
        for module in (plain, fast):
            F.cross_entropy(module(x), y).backward()
        for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert torch.allclose(a.grad, b.grad, atol=1e-6)

    def test_parameters_may_be_views_of_one_vector(self) -> None:
        torch.manual_seed(0)
        fast = build("lenet", (1, 28, 28), 10)
        x = torch.randn(4, 1, 28, 28)
        before = fast(x)
        flat = torch.cat([p.detach().reshape(-1) for p in fast.parameters()])
        for p, part in zip(fast.parameters(), flat.split([p.numel() for p in fast.parameters()]), strict=True):
            p.data = part.view(p.shape)
        assert torch.equal(fast(x), before)
        flat.zero_()
        assert torch.equal(fast(x), torch.zeros(4, 10))


@pytest.mark.parametrize("name", ["covidnet", "firenet-light"])
def test_fast_convolutions_change_no_number(name: str) -> None:
    torch.manual_seed(0)
    shape, classes = MODELS[name].example
    fast = build(name, shape, classes).eval()
    plain = copy.deepcopy(fast)
    changed = [module for module in plain.modules() if isinstance(module, FastConv2d)]
    for module in changed:
        module.__class__ = nn.Conv2d  # type: ignore[assignment]
    assert changed
    x, y = torch.randn(4, *shape), torch.randint(0, classes, (4,))
    for model in (plain, fast):
        F.cross_entropy(model(x), y).backward()
    assert torch.allclose(plain(x), fast(x), atol=1e-6)
    for a, b in zip(plain.parameters(), fast.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


def test_har_lenet_pads_to_a_picture() -> None:
    module = build("lenet-har", (561,), 6)
    picture = build("lenet", (1, 24, 24), 6)
    picture.load_state_dict(module.state_dict())
    x = torch.randn(3, 561)
    padded = torch.cat([x, torch.zeros(3, 15)], dim=1).view(3, 1, 24, 24)
    assert torch.allclose(module(x), picture(padded), atol=1e-6)


def test_no_model_has_buffers() -> None:
    for name in SMALL:
        assert not list(build(name, *MODELS[name].example).buffers()), name


def test_firenet_map_sizes_follow_tensorflow() -> None:
    module = build("firenet", (3, 224, 224), 2, width=8)
    first = next(m for m in module.modules() if isinstance(m, nn.Linear))
    assert first.in_features == 256 * 7 * 7


class TestLosses:
    def test_squared_hinge_from_zero_is_the_binary_svm(self) -> None:
        torch.manual_seed(0)
        x, y = torch.randn(40, 5), torch.randint(0, 2, (40,))
        w = torch.zeros(2, 5, requires_grad=True)
        single = torch.zeros(5, requires_grad=True)
        for _ in range(10):
            sign = 2 * y - 1
            binary = 0.5 * torch.relu(1 - sign * (x @ single)).square().mean()
            (g1,) = torch.autograd.grad(binary, single)
            (g2,) = torch.autograd.grad(LOSSES["squared_hinge"](x @ w.T, y), w)
            with torch.no_grad():
                single -= 0.1 * g1
                w -= 0.1 * g2
        assert torch.allclose(w[1], single, atol=1e-6)
        assert torch.allclose(w[0], -single, atol=1e-6)

    def test_squared_error_on_one_hot(self) -> None:
        output = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        assert float(LOSSES["mse_onehot"](output, torch.tensor([0, 2]))) == pytest.approx(
            1 / 6
        )  # over batch and classes

    def test_squared_error_on_numbers(self) -> None:
        output = torch.tensor([[1.0], [3.0]])
        assert float(LOSSES["mse_onehot"](output, torch.tensor([0.0, 1.0]))) == (1 + 4) / 2


class TestBadInput:
    def test_unknown_model(self) -> None:
        with pytest.raises(InvalidInput, match="did you mean 'lenet'"):
            build("lennet", (1, 28, 28), 10)

    @pytest.mark.parametrize(
        ("name", "shape", "words"),
        [
            ("lenet", (64,), r"needs pictures .* shape \(64,\)"),
            ("lenet", (1, 8, 8), "at least 12 x 12"),
            ("vgg16", (3, 28, 28), "at least 32 x 32"),
            ("harnet", (1, 28, 28), "needs windows"),
            ("lenet-har", (1, 28, 28), "needs vectors"),
        ],
    )
    def test_inputs_that_do_not_fit(self, name: str, shape: tuple[int, ...], words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            build(name, shape, 10)

    def test_groups_that_do_not_divide(self) -> None:
        with pytest.raises(InvalidInput, match="groups = 3: it must divide 16"):
            build("resnet8", (3, 32, 32), 10, groups=3)


@pytest.mark.parametrize(
    ("shape", "regression", "name"),
    [
        ((1, 28, 28), False, "lenet"),
        ((1, 8, 8), False, "mlp"),
        ((9, 128), False, "harnet"),
        ((3,), False, "mlp"),
        ((3,), True, "linear"),
    ],
)
def test_default_model_can_be_built(shape: tuple[int, ...], regression: bool, name: str) -> None:
    y = torch.arange(10.0) if regression else torch.arange(10) % 2
    data = Dataset.from_arrays(torch.zeros(10, *shape), y, regression=regression)
    assert default_model(data) == name
    assert build(name, shape, data.classes or 1)(data.x).shape == (len(data), data.classes or 1)


def test_parameters_of_two_classes_agree_for_every_small_shape() -> None:
    for side in (12, 14, 28, 31, 32, 33, 48):
        module = build("lenet", (1, side, side), 3)
        assert module(torch.zeros(2, 1, side, side)).shape == (2, 3)


class TestRegression:
    """A model with one output, and targets that are one number per sample."""

    ABLE = ("linear", "mlp", "lenet", "lenet-plain", "covidnet", "firenet-light", "harnet", "lenet-har", "resnet8")

    @staticmethod
    def data(shape: tuple[int, ...], targets: int | None = None) -> Dataset:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(24, *shape, generator=generator)
        y = x.flatten(1)[:, :3].sum(1)
        return Dataset.from_arrays(x, y if targets is None else y[:, None].repeat(1, targets), regression=True)

    @pytest.mark.parametrize("name", ABLE)
    def test_every_model_that_can_regress_does(self, name: str) -> None:
        data = self.data(MODELS[name].example[0])
        make, loss = fitted(spec(name), data)
        with torch.random.fork_rng(), torch.no_grad():
            output = make()(data.x)
        assert output.shape == (len(data), 1)
        assert float(loss(output, data.y)) == pytest.approx(float((output[:, 0] - data.y).square().mean()), rel=1e-6)

    @pytest.mark.parametrize("name", ["svm", "logistic"])
    def test_a_model_of_classes_says_what_to_use(self, name: str) -> None:
        with pytest.raises(InvalidInput, match=f"model {name}: it tells classes apart.*use linear, mlp"):
            fitted(spec(name), self.data((5,)))

    def test_several_targets_per_sample(self) -> None:
        data = self.data((5,), targets=2)
        make, loss = fitted(spec("mlp"), data)
        assert loss(make()(data.x), data.y).ndim == 0
        result = undrift.run("fedavg", data=data, model="mlp", partition="iid", clients=3, rounds=2)
        assert 0 < result.value < 10

    @pytest.mark.parametrize(
        ("loss", "wrapped"),
        [
            (F.mse_loss, True),
            (lambda output, target: (output - target).abs().mean(), True),
            (lambda output, target: (output.squeeze(-1) - target).abs().mean(), False),
            (lambda output, target: (output[:, 0] - target).abs().mean(), False),
        ],
    )
    @pytest.mark.filterwarnings("ignore:Using a target size")
    def test_a_users_loss_never_compares_every_output_with_every_target(self, loss: Any, wrapped: bool) -> None:
        output, target = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0])
        safe = aligned(loss, output, target)
        assert float(safe(output, target)) == 0
        assert (safe is not loss) == wrapped

    def test_targets_of_another_shape_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match=r"gives numbers of shape \(3,\) .* targets are one number"):
            undrift.run("fedavg", data=self.data((5,)), model=nn.Linear(5, 3), partition="iid", clients=3, rounds=1)

    @pytest.mark.filterwarnings("ignore:Using a target size")
    def test_an_own_model_learns_and_its_loss_is_the_mean_squared_error(self) -> None:
        data = self.data((5,))
        options: dict[str, Any] = {"data": data, "partition": "iid", "clients": 3, "rounds": 60}
        result = undrift.run("fedavg", model=nn.Linear(5, 1), training=undrift.Training(lr=0.1, epochs=2), **options)
        assert result.value < 0.01  # every output against every target cannot fall below the targets' variance
