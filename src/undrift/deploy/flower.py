"""Flower as a pipe: the two apps that its processes run. Imported in Flower's environment only.

Flower starts a process for every message, so a call is one message: the relay takes it whole to the site process, waits
for the answer and takes that back. Which kit, and so which name, a SuperNode stands for is said on its own machine, by
``--node-config 'kit="/path/to/kit"'``. The bridge learns the names by asking every node once.
"""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from undrift.deploy import bridge
from undrift.deploy.pipe import socket_file
from undrift.deploy.relay import Relay, Reply, Request
from undrift.deploy.wire import LARGEST, Failed, at, left

WHOLE = bridge.Pace(piece=LARGEST, wait=math.inf, grace=0.0, tries=1)  # one request a call
POLL = 0.1  # seconds between two looks for replies; Flower has no way to be told
GREETING = 60.0  # seconds for the nodes to say their names
LATECOMERS = 10.0  # seconds between two looks for nodes that came since

client = ClientApp()
server = ServerApp()


def packed(content: dict[str, Any]) -> RecordDict:
    """A request or a reply as Flower carries it: a piece of a message is an array, which it can cut up."""
    plain = {name: value for name, value in content.items() if not isinstance(value, bytes)}
    arrays = {
        name: Array(dtype="uint8", shape=(len(value),), stype="bytes", data=value)
        for name, value in content.items()
        if isinstance(value, bytes)
    }
    return RecordDict({"undrift": ConfigRecord(plain), "bytes": ArrayRecord(arrays)})


def unpacked(content: RecordDict) -> dict[str, Any] | None:
    """The inverse of ``packed``; None if it is something else."""
    plain, arrays = content.get("undrift"), content.get("bytes")
    if not isinstance(plain, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        return None
    return {**plain, **{name: bytes(array.data) for name, array in arrays.items()}}


@client.query()  # type: ignore[untyped-decorator]  # Flower is not in this environment
def relay(message: Message, context: Context) -> Message:
    """A site's end: what the bridge asks is taken to the site process."""
    kit = Path(str(context.node_config.get("kit", "")))
    request = unpacked(message.content)
    if request is None:
        reply: Reply = {"failed": "a message that is not of undrift"}
    elif request.get("who") is True:
        reply = {"name": _name(kit)}
    else:
        helper = Relay(socket_file(kit))
        reply = helper.handle(request)
        helper.close()
    return Message(content=packed(reply), reply_to=message)


def _name(kit: Path) -> str:
    try:
        return str(json.loads((kit / "kit.json").read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


@server.main()  # type: ignore[untyped-decorator]
def serve(grid: Grid, context: Context) -> None:
    """The coordinator's end: serves it until it hangs up."""
    carrier = _Carrier(grid)
    told = context.run_config
    serving = bridge.Bridge(Path(str(told["socket"])), str(told["token"]), carrier.ask, WHOLE)
    serving.run(lambda: False)


class _Carrier:
    """Requests to nodes by the names of their sites, over one grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._nodes: dict[str, int] = {}
        self._looked = -math.inf
        self._line = threading.Lock()  # a grid is not said to be good for several threads
        self._greeting = threading.Lock()

    def ask(self, site: str, request: Request, seconds: float) -> Reply | None:
        if request.get("drop") is True:
            return {}  # a relay ends with its message
        until = at(seconds)
        node = self._node(site, until)
        if node is None:
            raise Failed(bridge.LEFT_OUT)
        return self._replies({node: request}, until).get(node)

    def _node(self, site: str, until: float) -> int | None:
        """The node of a site. Two that claim one name are none: nobody can tell which of them it is."""
        with self._greeting:
            with self._line:
                there = set(self.grid.get_node_ids())
            known = {name: node for name, node in self._nodes.items() if node in there}
            strangers = there - set(known.values())
            if site not in known and strangers and time.monotonic() - self._looked > LATECOMERS:
                said = self._replies({node: {"who": True} for node in strangers}, min(until, at(GREETING)))
                self._looked = time.monotonic()
                names = [str(reply.get("name", "")) for reply in said.values()]
                for node, reply in said.items():
                    name = str(reply.get("name", ""))
                    if name and name not in known and names.count(name) == 1:
                        known[name] = node
            self._nodes = known
            return known.get(site)

    def _replies(self, requests: dict[int, Request], until: float) -> dict[int, Reply]:
        """The replies that came in time."""
        ttl = max(left(until), 1.0)
        messages = [
            Message(packed(request), dst_node_id=node, message_type="query", ttl=ttl)
            for node, request in requests.items()
        ]
        with self._line:
            waiting = set(self.grid.push_messages(messages))
        found: dict[int, Reply] = {}
        while waiting and left(until):
            with self._line:
                came = list(self.grid.pull_messages(waiting))
            for reply in came:
                waiting.discard(str(reply.metadata.reply_to_message_id))
                content = None if reply.has_error() else unpacked(reply.content)
                found[reply.metadata.src_node_id] = content or {"failed": _trouble(reply)}
            if waiting:
                time.sleep(min(POLL, left(until)))
        return found


def _trouble(reply: Message) -> str:
    reason = str(reply.error.reason)[:300] if reply.has_error() else "a reply that is not of undrift"
    return f"its relay did not answer: {reason}"
