"""Flat parameter vectors: a model is ``w`` in R^d, as in the papers.

``Layout`` says where each parameter tensor lies in ``w``. ``Replica`` is a module whose trainable parameters are views
into such a vector, so that moving the vector moves the module and nothing is copied.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from undrift.core.errors import InvalidInput
from undrift.core.records import State

Part = Literal["head", "body"]


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter lies in the flat vector, and which of them are the head."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]  # one more than names: where each begins, and the end
    head: tuple[bool, ...]  # for each parameter: does it belong to the last linear layer?
    classes: int  # outputs of the model
    features: int  # width of the input of the last linear layer; 0 if the model has none
    buffers: bool = False  # does the model hold buffers (batch-norm statistics)?
    dtype: torch.dtype | None = None  # of the parameters; None: not known
    variances: tuple[tuple[int, int], ...] = ()  # ranges of the buffers' floats that are never negative

    @property
    def size(self) -> int:
        return self.offsets[-1]

    def spans(self, part: Part) -> list[tuple[int, int]]:
        """The ranges of a part in the vector, neighbours joined."""
        found: list[tuple[int, int]] = []
        for begin, end, is_head in zip(self.offsets, self.offsets[1:], self.head, strict=False):
            if is_head == (part == "head"):
                if found and found[-1][1] == begin:
                    found[-1] = (found[-1][0], end)
                else:
                    found.append((begin, end))
        return found

    def split(self, w: Tensor, part: Part) -> Tensor:
        """The part of a vector that belongs to the head or to the body."""
        pieces = [w[begin:end] for begin, end in self.spans(part)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces) if pieces else w[:0]

    def join(self, *, body: Tensor, head: Tensor) -> Tensor:
        """The vector with this body and this head: the inverse of ``split``."""
        pieces, taken = [], {"body": 0, "head": 0}
        for begin, end, is_head in zip(self.offsets, self.offsets[1:], self.head, strict=False):
            part, source = ("head", head) if is_head else ("body", body)
            pieces.append(source[taken[part] : taken[part] + end - begin])
            taken[part] += end - begin
        return torch.cat(pieces)

    def mask(self, part: Part, like: Tensor) -> Tensor:
        """1 on a part of the vector, 0 elsewhere."""
        mask = torch.zeros(self.size, dtype=like.dtype, device=like.device)
        for begin, end in self.spans(part):
            mask[begin:end] = 1
        return mask

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """The parameter tensors, by name, as views of a vector."""
        return {
            name: w[begin:end].view(shape)
            for name, shape, begin, end in zip(self.names, self.shapes, self.offsets, self.offsets[1:], strict=False)
        }

    def extent(self, axis: str) -> int:
        """The length of a named axis of a record field."""
        body = self.size - sum(b - a for a, b in self.spans("head"))
        lengths = {"d": self.size, "body": body, "head": self.size - body, "C": self.classes, "f": self.features}
        return lengths[axis]


def double(t: Tensor) -> Tensor:
    """In double precision, and on the CPU where the device has none (MPS)."""
    return t.cpu().double() if t.device.type == "mps" else t.double()


class Buffers(State):
    """The buffers of a model (batch-norm statistics): floats as one vector, integer counters as another."""

    floats: Tensor
    counts: Tensor

    def __bool__(self) -> bool:
        return bool(self.floats.numel() or self.counts.numel())


def last_linear(module: nn.Module) -> nn.Linear | None:
    linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
    return linears[-1] if linears else None


def declares_features(module: nn.Module) -> bool:
    """Does the module say itself what its features and its head are?"""
    return callable(getattr(module, "features", None)) and callable(getattr(module, "head", None))


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def layout_of(module: nn.Module, sample: Tensor) -> Layout:
    """The layout of a module; ``sample`` is a batch of at least one input, used to see the output's width."""
    named = trainable(module)
    if not named:
        raise InvalidInput("the model has no trainable parameters")
    kinds = {p.dtype for _, p in named}
    if len(kinds) > 1:
        raise InvalidInput(f"the model's parameters have several types ({', '.join(map(str, kinds))}); use one")
    offsets = [0]
    for _, p in named:
        offsets.append(offsets[-1] + p.numel())
    declared = getattr(module, "head", None) if declares_features(module) else None
    owner = declared if isinstance(declared, nn.Module) else last_linear(module)
    ours = {id(p) for p in owner.parameters()} if owner is not None else set()
    probe = Replica(module, None)
    with torch.no_grad():
        probe.module.eval()
        try:
            features, output = probe.forward(sample)
        except Exception as error:  # whatever the user's module raises, say where it came from
            raise InvalidInput(f"the model cannot take inputs of shape {tuple(sample.shape[1:])}: {error}") from error
    return Layout(
        names=tuple(name for name, _ in named),
        shapes=tuple(p.shape for _, p in named),
        offsets=tuple(offsets),
        head=tuple(id(p) in ours for _, p in named),
        classes=output.shape[1] if output.ndim > 1 else 1,
        features=features[0].numel() if features is not None else 0,
        buffers=probe.has_buffers,
        dtype=named[0][1].dtype,
        variances=_variances(module),
    )


def _variances(module: nn.Module) -> tuple[tuple[int, int], ...]:
    found, at = [], 0
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            if name.endswith("running_var"):
                found.append((at, at + buffer.numel()))
            at += buffer.numel()
    return tuple(found)


def flatten(module: nn.Module) -> Tensor:
    """A copy of the module's trainable parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for _, p in trainable(module)])


class Replica:
    """A copy of a module whose trainable parameters are views into ``flat``."""

    def __init__(self, module: nn.Module, layout: Layout | None) -> None:
        self.module = copy.deepcopy(module)
        self.params = [p for _, p in trainable(self.module)]
        self.declared = declares_features(self.module)
        self.linear = last_linear(self.module)
        self._features: Any = getattr(self.module, "features", None)
        self._head: Any = getattr(self.module, "head", None)
        self._seen: Tensor | None = None
        if self.linear is not None and not self.declared:
            self.linear.register_forward_pre_hook(self._see)
        named = list(self.module.named_buffers())
        self._floats = [b for _, b in named if b.is_floating_point()]
        self._counts = [b for _, b in named if not b.is_floating_point()]
        self.stochastic = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in self.module.modules())
        if layout is not None:
            first = self.params[0]
            self.flat = torch.empty(layout.size, dtype=first.dtype, device=first.device)
            for p, view in zip(self.params, layout.views(self.flat).values(), strict=True):
                p.data = view
            self.head_params = [p for p, is_head in zip(self.params, layout.head, strict=True) if is_head]

    def _see(self, module: nn.Module, inputs: Sequence[Any]) -> None:
        self._seen = inputs[0]

    def autocast(self, device: str) -> None:
        """Pass through the module in bfloat16 from now on; what comes out, and the parameters, are as before."""

        def cast_(function: Any) -> Any:
            def passed(*inputs: Any) -> Any:
                with torch.autocast(device, torch.bfloat16):
                    found = function(*inputs)
                return found.to(self.flat.dtype)

            return passed

        self.module.forward = cast_(self.module.forward)
        if self.declared:
            self._features, self._head = cast_(self._features), cast_(self._head)

    def forward(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """The features (input of the last linear layer, or what the module declares) and the output."""
        if self.declared:
            z = self._features(x)
            return z, self._head(z)
        output = self.module(x)
        z, self._seen = self._seen, None
        return (z if z is None else z.to(output.dtype)), output

    def head(self, z: Tensor) -> Tensor:
        out: Tensor = self._head(z) if self.declared else cast(nn.Linear, self.linear)(z)
        self._seen = None
        return out

    # -- buffers ------------------------------------------------------------------------------------------------------

    @property
    def has_buffers(self) -> bool:
        return bool(self._floats or self._counts)

    def buffers(self) -> Buffers:
        """A copy of the buffers as a value."""
        floats = torch.cat([b.reshape(-1) for b in self._floats]) if self._floats else torch.empty(0)
        counts = torch.cat([b.reshape(-1) for b in self._counts]) if self._counts else torch.empty(0, dtype=torch.int64)
        return Buffers(floats.clone(), counts.clone())

    def set_buffers(self, buffers: Buffers) -> None:
        for target, source in ((self._floats, buffers.floats), (self._counts, buffers.counts)):
            at = 0
            for b in target:
                b.copy_(source[at : at + b.numel()].view(b.shape))
                at += b.numel()

    def share_buffers(self, other: Replica) -> None:
        """Use the other replica's buffer tensors instead of own ones."""
        mine, theirs = dict(self.module.named_modules()), dict(other.module.named_modules())
        for name, module in mine.items():
            for key in module._buffers:
                module._buffers[key] = theirs[name]._buffers[key]
        self._floats, self._counts = other._floats, other._counts
