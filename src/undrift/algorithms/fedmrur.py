"""FedMRUR. An et al., NeurIPS 2023: MoFedSAM, with features tied to the global model's and updates of full length."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, exp, sqrt, zeros_like

from undrift.algorithms.parts.sharpness import Uphill, sharp
from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Batch, Direction, Local
from undrift.core.records import Mean, Message, Move, Nothing, Scalar, State, Upload, Vector
from undrift.core.settings import between, nonnegative, positive
from undrift.core.vector import double


class Server(State):
    x: Vector
    delta: Vector  # Δ: the last global update, in the units of a gradient


class Down(Message):
    x: Vector
    delta: Vector


class Up(Upload):
    d: Mean[Move[Vector]]  # w - w_i: line 13 with its sign put right, see the errata
    norm: Mean[Scalar]  # ‖d‖

    def derived(self) -> Up:
        return Up(self.d, double(self.d).norm(dim=-1))


class FedMRUR(Uphill, Algorithm[Server, Nothing, Down, Up]):
    title: ClassVar[str] = "FedMRUR"
    paper: ClassVar[str] = (
        "An et al., Federated learning with manifold regularization and normalized update reaggregation, NeurIPS 2023"
    )
    assumes_sgd: ClassVar[str] = "the last update over the steps and their rate stands for a gradient"
    cost: ClassVar[Cost] = Cost(
        down="d", gradients="n * E if sam else 0", forwards="n * E if regulariser and gamma else 0", flops="5 * K * d"
    )
    refuses_momentum: ClassVar[str] = "its direction is already a momentum, and its scale assumes plain steps"

    regulariser: Annotated[bool, "hold the features near the global model's"] = True
    sam: Annotated[bool, "take gradients uphill (sharpness-aware)"] = True
    momentum: Annotated[bool, "mix the last global update into every step"] = True
    normalise: Annotated[bool, "give the global update the mean length of the clients' updates"] = True
    gamma: Annotated[float, "weight γ of the regulariser", nonnegative("a negative one repels the features")] = 0.005
    sigma: Annotated[float, "scale σ of the squared distance", positive("the distance is divided by it")] = 1e4
    beta: Annotated[float, "curvature parameter β of the hyperboloid", positive("the lift is √(β + ‖z‖²)")] = 1.0
    reduction: Annotated[Literal["mean", "sum"], "regulariser per minibatch: mean or sum over its samples"] = "mean"
    alpha: Annotated[float, "share α of the client's own gradient", between(0, 1, "it is a mixture")] = 0.1
    server_lr: Annotated[float, "server step size η_g", positive("at 0 the model stays, below 0 it climbs")] = 1.0
    weights: Annotated[Literal["samples", "uniform"], "weights of the means of updates and lengths"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.delta)

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        rho = self.radius(down.x)

        def direction(x: Tensor, b: Batch) -> Tensor:
            grad = self.regularised(down.x, b, local) if self.regulariser and self.gamma else local.grad
            g = sharp(local, grad, x, b, rho) if self.sam else grad(x, b)  # line 9, of the regularised loss
            return self.alpha * g + (1 - self.alpha) * down.delta if self.momentum else g  # line 10

        d = down.x - local.descend(direction, down.x)  # lines 11, 13
        return Up(d, double(d).norm()), me

    def regularised(self, w: Tensor, b: Batch, local: Local) -> Direction:
        """The gradient of F = f + γR (eqs. 2, 3); the frozen features serve both passes of a step."""
        z_g = local.features(w, b)

        def loss(x: Tensor, b: Batch) -> Tensor:
            z, outputs = local.forward(x, b)
            R = exp(self.distance(z.flatten(1), z_g) / self.sigma)
            return local.criterion(outputs, b) + self.gamma * (b.mean(R) if self.reduction == "mean" else b.sum(R))

        return local.grad_of(loss)

    def distance(self, z: Tensor, z_g: Tensor) -> Tensor:
        """Squared Lorentzian distance of the lifts (√(β+‖z‖²), z): -2β - 2⟨·,·⟩_L without its cancellation."""
        h, h_g = sqrt(self.beta + z.square().sum(1)), sqrt(self.beta + z_g.square().sum(1))
        return (z - z_g).square().sum(1) - (h - h_g).square()

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        length = double(up.d).norm()
        D = up.d * (up.norm / length if float(length) > 1e-12 else 0.0) if self.normalise else up.d  # line 15
        delta = D / (cohort.lr * cohort.steps.mean())  # a gradient again, so that line 10 adds like to like
        return Server(server.x - self.server_lr * D, delta)  # line 16

    def needs_features(self) -> bool:
        return self.regulariser and self.gamma > 0

    def check_start(self, x: Tensor, population: Population) -> None:
        if self.sam:
            Uphill.check_start(self, x, population)
