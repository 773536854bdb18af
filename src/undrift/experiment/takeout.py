"""A trained model out of a run: as a module, and as a file that other programs read, with a card that says what it is.

The card is text made of values; who asks for it, and where it is shown, is not known here.
"""

from __future__ import annotations

import contextlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from undrift.core.errors import InvalidInput, unknown
from undrift.core.federation import Federation, Model, build
from undrift.core.loop import Loop, Snapshot
from undrift.core.vector import Buffers
from undrift.experiment.description import Experiment
from undrift.experiment.prepare import Ready, prepare_experiment
from undrift.experiment.recorder import InLedger
from undrift.ledger.history import History
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.runtimes.serial import Serial

Format = Literal["safetensors", "state_dict", "onnx"]
SUFFIXES: dict[str, Format] = {
    ".safetensors": "safetensors",
    ".pt": "state_dict",
    ".pth": "state_dict",
    ".onnx": "onnx",
}


def filled(model: Model, w: Tensor, buffers: Buffers, seed: int) -> nn.Module:
    """A plain module with these weights and statistics in it."""
    module = build(model.module, seed)
    with torch.no_grad():
        views = model.layout.views(w)
        for name, parameter in module.named_parameters():
            if name in views:
                parameter.copy_(views[name])
        at = {True: 0, False: 0}
        for _, buffer in module.named_buffers():
            floating = buffer.is_floating_point()
            source = buffers.floats if floating else buffers.counts
            buffer.copy_(source[at[floating] : at[floating] + buffer.numel()].view(buffer.shape))
            at[floating] += buffer.numel()
    return module


def global_module(prepared: Ready, snapshot: Snapshot) -> nn.Module | None:
    """The global model after the last round; None where the method has none."""
    models = prepared.method.models(snapshot.server)
    if not models:
        return None
    return filled(prepared.federation, next(iter(models.values())), snapshot.buffers, prepared.plan.seed)


def named(history: History, round: int | None) -> str:
    """What a global model is, in words: one that is not the last says which."""
    best = history.experiment.get("keep") == "best"
    return f"the global model of round {round}, the best on the validation data," if best else "the global model"


def module_of(ledger: Ledger, run: Run, root: str | Path | None = None, client: str | None = None) -> Taken:
    """The model that a recorded run has come to: the global one, or the personal one of a client."""
    if run.experiment.get("own"):
        raise InvalidInput(
            f"run {run.name!r} was started from Python with its own model or data: take `result.module` there, or "
            f"undrift.run(..., ledger={str(ledger.path)!r}, name={run.name!r}, resume=True).save(FILE)"
        )
    prepared = prepare_experiment(Experiment.build(run.experiment, f"run {run.name!r}"), root)
    recorder, method = InLedger(ledger, run), prepared.method
    snapshot = recorder.resumed(method, "cpu") if run.rounds else None
    if snapshot is None:
        raise InvalidInput(f"run {run.name!r} has not played a round yet: it has no trained model")
    history = History.of(ledger, run)
    if client is None:
        best = recorder.best(method, "cpu") if prepared.plan.keep == "best" else None
        snapshot = best or snapshot
        module = global_module(prepared, snapshot)
        if module is None:
            raise InvalidInput(
                f"{method.title} has no global model: its clients have models of their own, name one with --client"
            )
        return Taken(module, prepared.federation.sample, history, named(history, snapshot.round))
    runtime = Serial(prepared.federation)
    runtime.states = recorder.states(method, "cpu")
    number = _number(prepared.federation, client)
    found = Loop(prepared.federation, method, runtime, prepared.participate).personal(snapshot, number)
    if found is None:
        raise InvalidInput(f"{method.title} has no personal models: it has one for all")
    module = filled(prepared.federation, *found, prepared.plan.seed)
    return Taken(module, prepared.federation.sample, history, f"the personal model of client {client}")


def _number(federation: Federation, client: str) -> int:
    names = [federation.population.name(i) for i in range(federation.population.size)]
    if client in names:
        return names.index(client)
    raise unknown("client", client, names)


class Taken:
    """A module, what it can be fed with, and where it comes from."""

    def __init__(self, module: nn.Module, sample: Tensor | None, history: History, what: str) -> None:
        self.module, self.sample, self.history, self.what = module, sample, history, what

    def save(self, path: str | Path, format: Format | None = None) -> Path:
        """Write the model; the format follows from the name's ending where it is not given."""
        path = Path(path)
        chosen = format or SUFFIXES.get(path.suffix)
        if chosen is None or chosen not in get_args(Format):
            raise InvalidInput(f"{path}: the name must end in {', '.join(SUFFIXES)}, or the format be given")
        scratch = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _WRITERS[chosen](self, scratch)
            scratch.replace(path)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from None
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
        return path

    def card(self) -> str:
        """What the model is: data, method, costs, figures."""
        h, e = self.history, self.history.experiment
        lines = [f"# {h.label} on {e.get('data', {}).get('name', 'own data')}", ""]
        lines += [f"This is {self.what} of run `{h.name}` after {len(h.rounds)} rounds of federated training.", ""]
        lines += ["## Figures", "", "| model | data | metric | value |", "| --- | --- | --- | --- |"]
        last = {figure: value for _, figure, value in h.metrics}
        lines += [f"| {f.model} | {f.data} | {f.metric} | {v:.4g} |" for f, v in last.items() if v is not None]
        lines += ["", "## What it cost", ""]
        words = {
            "bytes_up": "bytes up",
            "bytes_down": "bytes down",
            "macs": "multiply-accumulates",
            "seconds": "seconds",
        }
        lines += [f"- {what}: {h.total(column):.6g}" for column, what in words.items()]
        lines += ["", "## How it was made", "", "```json", json.dumps(e, indent=1, sort_keys=True), "```", ""]
        versions = h.facts.get("versions", {})
        lines += ["Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()), ""]
        return "\n".join(lines)


def _safetensors(taken: Taken, path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in taken.module.state_dict().items()}
    h = taken.history
    about = {"run": h.name, "method": h.label, "rounds": str(len(h.rounds)), "what": taken.what}
    save_file(tensors, path, metadata=about)


def _state_dict(taken: Taken, path: Path) -> None:
    torch.save(taken.module.state_dict(), path)


def _onnx(taken: Taken, path: Path) -> None:
    if taken.sample is None:
        raise InvalidInput("a model is written as ONNX from a sample of its input, and there is none here")
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise InvalidInput("ONNX files need onnx and onnxscript: pip install 'undrift[onnx]'")
    module = taken.module.eval()
    torch.onnx.export(
        module, (taken.sample,), str(path), input_names=["x"], output_names=["y"],
        dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip


_WRITERS: dict[str, Any] = {"safetensors": _safetensors, "state_dict": _state_dict, "onnx": _onnx}
