"""A Ray cluster to work on: the one that is there, or one of our own that nobody else can reach.

It knows nothing of what the cluster will do. Importing it decides how Ray behaves in this process, so it comes before
Ray itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator

from undrift.core.errors import InvalidInput
from undrift.runtimes import raytask
from undrift.runtimes.cores import cores
from undrift.runtimes.raytask import versions

# Ray reads these when it is imported. It reports nothing to anybody, and a local cluster has a secret of its own that
# only this process and its workers know (Ray would write one into the home folder, for all on the machine to read).
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if "ray" not in sys.modules and os.environ.get("RAY_ADDRESS", "local") == "local":
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise InvalidInput("the runtime ray needs Ray: pip install 'undrift[ray]'") from error

KNOCK = 10.0  # seconds that a cluster gets to be there at all
WAIT = 60.0  # seconds that a node gets to say which versions it has


def connect(workers: int | None) -> bool:
    """Be connected to a cluster. True: it is our own, and ends with us."""
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS", "")
    quiet = {"log_to_driver": False, "logging_level": "error"}
    if address and address != "local":
        try:
            with _same_signals():
                ray.init(address=_knocked(address), **quiet)
        except (RuntimeError, ValueError, OverflowError, OSError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise InvalidInput(
                f"no Ray cluster answers at {address!r} ({reason}): start one with `ray start --head`, or leave the "
                "address out for a local cluster on this machine's cores"
            ) from error
        return False
    with _private(), _same_modules(), _same_signals():
        ray.init(
            address="local",
            num_cpus=workers or cores(),
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            **quiet,
        )
    return True


def _knocked(address: str) -> str:
    """The address, where something listens. Ray itself would ask for minutes, also for a cluster of this machine that
    has ended, or that is another program's own."""
    found: str = address
    if address == "auto":
        found = ray._private.services.canonicalize_bootstrap_address_or_die(address)
    host, colon, port = found.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()
    return found


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """What is written meanwhile is its owner's, and what is started listens on the loopback alone.

    Ray takes 127.0.0.1 to mean any address of the machine, unless it believes that no cluster is wanted.
    """
    constants = ray._private.ray_constants
    before, many = os.umask(0o077), constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        os.umask(before)
        constants.ENABLE_RAY_CLUSTER = many


@contextlib.contextmanager
def _same_signals() -> Iterator[None]:
    """Whoever has said what SIGTERM does is heard; Ray would end the process at once."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _same_modules() -> Iterator[None]:
    """Processes that are started meanwhile can import what this one can."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def agree() -> None:
    """Refuse a cluster whose nodes have other versions: the bits would differ, or the work end in the middle."""

    def found() -> dict[str, str]:  # a function within a function travels whole: undrift need not be there
        import platform
        from importlib import metadata

        def version(name: str) -> str:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                return "missing"

        try:
            from undrift.runtimes.raytask import versions

            return versions()
        except ImportError:
            return {"undrift": "missing", "torch": version("torch"), "Python": platform.python_version()}

    here, asked = versions(), {}
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[node["NodeManagerHostname"] + " " + node["NodeManagerAddress"]] = ray.remote(
                num_cpus=0, scheduling_strategy=strategy
            )(found).remote()
    for name, ref in asked.items():
        try:
            there = ray.get(ref, timeout=WAIT)
        except ray.exceptions.GetTimeoutError as error:
            raise InvalidInput(f"the node {name} does not answer within {WAIT:g} s") from error
        raytask.compare(here, there, name)
