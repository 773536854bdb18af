"""In and out of vmap: the one file that touches what is private in PyTorch.

Tables with a row per client, and kernels that work on whole blocks, have to cross the border that vmap draws. These are
the functions that torch.func itself is made of; custom operators cross it too, for a third of a millisecond each. It
knows tensors and nothing of clients.
"""

from __future__ import annotations

from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack as above

__all__ = ["above", "inside", "outside"]  # above: a context in which whole blocks are seen, although one is under vmap


def inside(rows: Tensor, me: Tensor) -> Tensor:
    """A table with a row per client as the one client under vmap sees it: its own row."""
    found: Tensor = _functorch._add_batch_dim(rows, 0, _functorch.maybe_get_level(me))
    return found


def outside(value: Tensor, count: int) -> Tensor:
    """All clients' rows of what one client sees."""
    if not _functorch.is_batchedtensor(value):
        return value.expand(count, *value.shape)
    rows: Tensor = _functorch.get_unwrapped(value)
    return rows.movedim(_functorch.maybe_get_bdim(value), 0)
