"""What is private in PyTorch is touched in named places only, and does there what is expected of it."""

from __future__ import annotations

import ast
from pathlib import Path

import torch
from torch import Tensor

from undrift.runtimes.batched.border import above, inside, outside

SOURCE = Path(__file__).resolve().parents[2] / "src" / "undrift"

PRIVATE = {
    "runtimes/batched/border.py": {
        "torch._C._functorch",
        "torch._functorch.pyfunctorch.temporarily_pop_interpreter_stack",
    },
    "core/profile.py": {"torch.utils._python_dispatch.TorchDispatchMode"},
}
USED = {"_add_batch_dim", "maybe_get_level", "is_batchedtensor", "get_unwrapped", "maybe_get_bdim"}


def private(path: Path) -> set[str]:
    """The names with an underscore that a file takes from torch."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
    return {
        n
        for n in names
        if n.split(".")[0] == "torch" and any(p.startswith("_") and not p.endswith("__") for p in n.split("."))
    }


def test_private_parts_of_torch_are_used_in_these_places() -> None:
    found = {path.relative_to(SOURCE).as_posix(): private(path) for path in sorted(SOURCE.rglob("*.py"))}
    assert {path: names for path, names in found.items() if names} == PRIVATE


def test_the_border_uses_these_functions() -> None:
    text = (SOURCE / "runtimes/batched/border.py").read_text(encoding="utf-8")
    used = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "_functorch"
    }
    assert used == USED


def test_a_table_goes_in_by_row_and_comes_out_whole() -> None:
    table = torch.arange(6.0).view(3, 2)
    seen: list[Tensor] = []

    def one(me: Tensor) -> Tensor:
        row = inside(table, me)
        assert row.shape == (2,)
        seen.append(outside(row * 2, 3))
        seen.append(outside(torch.ones(2), 3))  # the same for all
        with above():
            seen.append(table.sum(0))
        return row.sum()

    sums = torch.func.vmap(one)(torch.arange(3))
    assert sums.tolist() == [1.0, 5.0, 9.0]
    assert torch.equal(seen[0], table * 2)
    assert torch.equal(seen[1], torch.ones(3, 2))
    assert seen[2].tolist() == [6.0, 9.0]
