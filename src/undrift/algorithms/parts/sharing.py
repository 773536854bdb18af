"""A last layer that a client may keep to itself. Which method averages the rest, and how, is not said here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from torch import Tensor

from undrift.core.settings import Settings
from undrift.core.vector import Layout


class Sharing(Settings):
    """For methods in which a client may keep the last layer of its model to itself.

    The server's ``x`` is then the rest, the body, and the client's ``head`` that layer; otherwise ``head`` is empty.
    """

    share: Annotated[Literal["all", "extractor"], "what is shared: the model, or all but its last layer"] = "all"

    def shared(self, x: Tensor, layout: Layout) -> Tensor:
        return x if self.share == "all" else layout.split(x, "body")

    def private(self, x: Tensor, layout: Layout) -> Tensor:
        return x[:0] if self.share == "all" else layout.split(x, "head")

    def whole(self, shared: Tensor, private: Tensor, layout: Layout) -> Tensor:
        return shared if self.share == "all" else layout.join(body=shared, head=private)

    def models(self, server: Any) -> dict[str, Tensor]:
        return {"global": server.x} if self.share == "all" else {}

    def personal(self, down: Any, me: Any, layout: Layout) -> Tensor | None:
        return None if self.share == "all" else self.whole(down.x, me.head, layout)
