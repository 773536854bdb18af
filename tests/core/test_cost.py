"""The count of multiply-accumulates: torch's own, without what torch's counter imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from undrift.core.profile import profile
from undrift.models import build


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (1, 28, 28)), ("lenet", (1, 28, 28)), ("resnet8", (3, 32, 32)), ("harnet", (9, 128))]
)
def test_counts_are_those_of_torchs_flop_counter(name: str, shape: tuple[int, ...]) -> None:
    module, x = build(name, shape, 10).eval(), torch.zeros(1, *shape)
    found = profile(module, x)
    with torch.no_grad(), FlopCounterMode(display=False) as forward:
        module(x)
    with FlopCounterMode(display=False) as both:
        module(x).sum().backward()
    assert 2 * found.forward == forward.get_total_flops()
    assert 2 * found.gradient == both.get_total_flops()


def test_counting_does_not_import_torchs_compiler() -> None:
    code = (
        "import sys, torch; from undrift.core.profile import profile; "
        "profile(torch.nn.Linear(3, 2), torch.zeros(1, 3)); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
