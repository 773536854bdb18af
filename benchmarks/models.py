"""How much faster the rewritten LeNet-5 trains than the plain layers, on one core.

Both models take the same steps (forward, backward, SGD) in turns within one run, with their parameters as views of
one flat vector as undrift binds them. Says first how far apart their numbers are.
Goals: 1 x 28 x 28 at least 1.4 times faster, same numbers to 1e-6.

    python benchmarks/models.py [--repetitions 60] [--batch 50]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from common import interleave, machine, ratios, write
from torch import Tensor, nn

from undrift.models import build

STEPS = 5


class Bound:
    """A model whose parameters and gradients are views of two flat vectors, on one batch."""

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        self.module, self.x, self.y = module, x, y
        parameters = list(module.parameters())
        self.vector = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.slope = torch.zeros_like(self.vector)
        sizes = [p.numel() for p in parameters]
        for parameter, value, slope in zip(parameters, self.vector.split(sizes), self.slope.split(sizes), strict=True):
            parameter.data, parameter.grad = value.view(parameter.shape), slope.view(parameter.shape)

    def gradient(self) -> Tensor:
        self.slope.zero_()
        F.cross_entropy(self.module(self.x), self.y).backward()
        return self.slope

    def __call__(self) -> None:
        for _ in range(STEPS):
            self.vector.add_(self.gradient(), alpha=-0.01)


def measure(shape: tuple[int, int, int], batch: int, repetitions: int) -> dict[str, Any]:
    torch.manual_seed(0)
    plain, fast = build("lenet-plain", shape, 10), build("lenet", shape, 10)
    fast.load_state_dict(plain.state_dict())
    x, y = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
    outputs = float((plain(x) - fast(x)).detach().abs().max())
    models = {"plain": Bound(plain, x, y), "fast": Bound(fast, x, y)}
    gradients = float((models["plain"].gradient() - models["fast"].gradient()).abs().max())
    seconds = interleave(models, repetitions)
    median, best = ratios(seconds["plain"], seconds["fast"])
    return {
        "input": " x ".join(map(str, shape)),
        "batch": batch,
        "plain, ms a step": 1e3 * min(seconds["plain"]) / STEPS,
        "fast, ms a step": 1e3 * min(seconds["fast"]) / STEPS,
        "times faster (median)": median,
        "times faster (best)": best,
        "difference of outputs": outputs,
        "difference of gradients": gradients,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=60, help="stretches of five steps per model")
    parser.add_argument("--batch", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    on = machine()
    rows = [measure(shape, options.batch, options.repetitions) for shape in ((1, 28, 28), (3, 32, 32))]
    write("models", "LeNet-5 training step on one core: rewritten layers against plain layers", rows, on)


if __name__ == "__main__":
    main()
