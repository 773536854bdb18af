"""A federation in one process: real sockets, real bridge and relays, and a carrier between them that can be unkind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from undrift.deploy.bridge import Bridge, Pace
from undrift.deploy.pipe import Answers, Calls, socket_file
from undrift.deploy.relay import Relay, Reply, Request
from undrift.deploy.wire import CHUNK, Failed

# What a carrier does with a request: hand it to the relay, or not, or twice.
Carrier = Callable[[str, Request, Callable[[Request], Reply]], Reply | None]

SMALL = Pace(piece=CHUNK, wait=0.2, grace=0.2, tries=3)


def kind(site: str, request: Request, handle: Callable[[Request], Reply]) -> Reply | None:
    return handle(request)


@contextmanager
def federation(
    folder: Path, sites: Mapping[str, Callable[[bytes], bytes]], carrier: Carrier = kind, pace: Pace = SMALL
) -> Iterator[Calls]:
    """The coordinator's end of a pipe to sites that answer as told."""
    relays = {site: Relay(socket_file(folder / site)) for site in sites}

    def ask(site: str, request: Request, seconds: float) -> Reply | None:
        if site not in relays:
            raise Failed("is not in the engine's job")
        return carrier(site, request, relays[site].handle)

    with ExitStack() as stack:
        for site, answer in sites.items():
            stack.enter_context(Answers(socket_file(folder / site), answer))
        calls = stack.enter_context(Calls(socket_file(folder / "server")))
        bridge = Bridge(socket_file(folder / "server"), calls.token, ask, pace)
        thread = threading.Thread(target=bridge.run, args=(lambda: False,))
        thread.start()
        for relay in relays.values():
            stack.callback(relay.close)
        stack.callback(thread.join)
        stack.callback(calls.close)
        assert calls.await_bridge(10)
        yield calls
