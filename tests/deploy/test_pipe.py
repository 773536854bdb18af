"""The seam: every site is given exactly once, with its own bytes or a reason, whatever happens in between."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import SMALL, federation

import undrift
from undrift.deploy.bridge import Bridge, Pace
from undrift.deploy.pipe import CROWD, Answers, Calls, Direct, Failure, socket_file
from undrift.deploy.relay import Relay, Reply, Request
from undrift.deploy.wire import CHUNK, LARGEST, Broken, Failed, at, connect

SITES = ("north", "south", "east", "west")
SOON = 20.0


def reverse(message: bytes) -> bytes:
    return message[::-1]


def messages(size: int = 100) -> dict[str, bytes]:
    return {site: random.Random(f"{site}{size}").randbytes(size) for site in SITES}


def reversed_messages(sent: dict[str, bytes]) -> dict[str, bytes | Failure]:
    return {site: message[::-1] for site, message in sent.items()}


@pytest.mark.parametrize("module", ["wire", "pipe", "relay", "bridge"])
def test_the_pipe_needs_the_standard_library_alone(module: str) -> None:
    program = (
        f"import sys, undrift.deploy.{module}; "
        "print([m for m in sys.modules if m.partition('.')[0] not in sys.stdlib_module_names "
        "and not m.startswith(('undrift', '_', 'sitecustomize'))]); "
        "print(sorted(m for m in sys.modules if m.startswith('undrift.') and not m.startswith('undrift.deploy')))"
    )
    # Without site-packages (-S) the package is found by its folder alone, however it was installed.
    where = {**os.environ, "PYTHONPATH": str(Path(undrift.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-S", "-c", program], check=True, capture_output=True, text=True, env=where)
    found, own = map(ast.literal_eval, done.stdout.splitlines())
    assert found == []
    assert set(own) <= {"undrift.core", "undrift.core.errors", "undrift.core.plugins"}  # what `import undrift` needs


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 7])
@pytest.mark.parametrize("pace", [SMALL, Pace(), Pace(piece=LARGEST, wait=1e6)], ids=["small", "usual", "whole"])
def test_every_site_gets_its_own_message_and_gives_its_own_answer(tmp_path: Path, size: int, pace: Pace) -> None:
    with federation(tmp_path, dict.fromkeys(SITES, reverse), pace=pace) as calls:
        for _ in range(2):
            assert dict(calls.call(messages(size), SOON)) == reversed_messages(messages(size))
        for site in SITES:
            assert calls.sent[site] >= 2 * size
            assert calls.received[site] >= 2 * size


def test_more_calls_than_a_relay_remembers(tmp_path: Path) -> None:
    with federation(tmp_path, {"north": reverse}) as calls:
        for number in range(3 * CROWD):
            message = str(number).encode()
            assert list(calls.call({"north": message}, SOON)) == [("north", message[::-1])]


def test_answers_are_given_as_they_come(tmp_path: Path) -> None:
    go = threading.Event()

    def slow(message: bytes) -> bytes:
        assert go.wait(SOON)
        return message

    with federation(tmp_path, {"slow": slow, "quick": reverse}) as calls:
        answers = calls.call({"slow": b"abc", "quick": b"abc"}, SOON)
        assert next(answers) == ("quick", b"cba")
        go.set()  # after several requests were answered with "later"
        assert list(answers) == [("slow", b"abc")]


def test_a_site_at_work_is_waited_for_longer_than_a_request_lasts(tmp_path: Path) -> None:
    later = threading.Event()
    asked = 0

    def count(site: str, request: Request, handle: Callable[[Request], Reply]) -> Reply | None:
        nonlocal asked
        asked += 1
        if asked == 5:
            later.set()
        return handle(request)

    def work(message: bytes) -> bytes:
        assert later.wait(SOON)
        return message

    with federation(tmp_path, {"north": work}, count) as calls:
        assert dict(calls.call({"north": b"abc"}, SOON)) == {"north": b"abc"}


def test_a_refusal_is_told_and_an_error_stays_at_the_site(tmp_path: Path) -> None:
    def refuse(message: bytes) -> bytes:
        raise Failed("the policy allows fedavg only")

    def crash(message: bytes) -> bytes:
        raise RuntimeError("patient 7 has no age")

    with federation(tmp_path, {"north": refuse, "south": crash, "east": reverse}) as calls:
        got = dict(calls.call(dict.fromkeys(("north", "south", "east"), b"ab"), SOON))
    assert got["north"] == Failure("the policy allows fedavg only")
    assert got["south"] == Failure("had an error of its own (RuntimeError); its log has more")
    assert got["east"] == b"ba"


def test_an_answer_that_is_late_is_a_failure_and_does_not_disturb_the_next_call(tmp_path: Path) -> None:
    go = threading.Event()

    def once(message: bytes) -> bytes:
        if message == b"first":
            go.wait(SOON)
        return message

    with federation(tmp_path, {"north": once, "south": reverse}) as calls:
        got = dict(calls.call({"north": b"first", "south": b"ab"}, 0.5))
        assert got == {"north": Failure("no answer within 0.5 s"), "south": b"ba"}
        assert dict(calls.call({"north": b"second"}, SOON)) == {"north": b"second"}
        go.set()


def test_closing_the_iterator_gives_the_call_up(tmp_path: Path) -> None:
    go = threading.Event()
    dropped = threading.Event()

    def watch(site: str, request: Request, handle: Callable[[Request], Reply]) -> Reply | None:
        if "drop" in request:
            dropped.set()
        return handle(request)

    def wait(message: bytes) -> bytes:
        go.wait(SOON)
        return message

    with federation(tmp_path, {"north": wait, "south": reverse}, watch) as calls:
        answers = calls.call({"north": b"a", "south": b"ab"}, SOON)
        assert next(answers) == ("south", b"ba")
        answers.close()
        assert dropped.wait(SOON)
        go.set()


def test_a_site_that_nobody_knows_and_one_whose_process_is_down(tmp_path: Path) -> None:
    with federation(tmp_path, {"north": reverse}) as calls:
        socket_file(tmp_path / "north").unlink()
        got = dict(calls.call({"north": b"a", "nowhere": b"a"}, SOON))
        assert got["nowhere"] == Failure("is not in the engine's job")
        assert isinstance(got["north"], Failure)
        assert "nobody listens at" in got["north"].reason
        assert calls.probe(["north"], SOON) == {"north": "no site process"}
    with federation(tmp_path, {"north": reverse}) as calls:
        assert calls.probe(["north"], SOON) == {"north": "ready"}


@pytest.mark.parametrize("seed", range(4))
def test_requests_and_replies_that_are_lost_or_come_twice_change_nothing(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    lock = threading.Lock()

    def unkind(site: str, request: Request, handle: Callable[[Request], Reply]) -> Reply | None:
        with lock:
            fate = dice.random()
        if fate < 0.05:
            return None  # the request was lost
        reply = handle(request)
        if fate < 0.10:
            return None  # the reply was lost
        return handle(request) if fate < 0.2 else reply  # it came twice

    with federation(tmp_path, dict.fromkeys(SITES, reverse), unkind, Pace(CHUNK, 0.2, 0.2, tries=10)) as calls:
        for size in (10, 5 * CHUNK, 20 * CHUNK + 1):
            assert dict(calls.call(messages(size), SOON)) == reversed_messages(messages(size))


def test_a_relay_that_stays_silent_fails_its_call_before_the_deadline(tmp_path: Path) -> None:
    def silent(site: str, request: Request, handle: Callable[[Request], Reply]) -> Reply | None:
        return None if site == "north" else handle(request)

    with federation(tmp_path, {"north": reverse, "south": reverse}, silent) as calls:
        got = dict(calls.call({"north": b"ab", "south": b"ab"}, 3600.0))
    assert got == {"north": Failure("its relay does not answer"), "south": b"ba"}


def test_the_end_of_the_bridge_fails_what_is_open_at_once(tmp_path: Path) -> None:
    go = threading.Event()

    def wait(message: bytes) -> bytes:
        go.wait(SOON)
        return message

    with federation(tmp_path, {"north": wait, "south": reverse}) as calls:
        answers = calls.call({"north": b"a", "south": b"ab"}, 3600.0)
        assert next(answers) == ("south", b"ba")
        calls.hang_up()
        assert list(answers) == [("north", Failure("the engine's job was ended"))]
        go.set()
        assert not calls.connected
        assert dict(calls.call({"north": b"a"}, 3600.0)) == {"north": Failure("the engine's job is not running")}


def test_a_bridge_of_another_job_is_sent_away(tmp_path: Path) -> None:
    path = socket_file(tmp_path)
    with Calls(path) as calls:
        Bridge(path, "another", lambda *_: None).run(lambda: False)  # returns, since it is hung up on
        assert not calls.connected
        first = calls.token
        calls.hang_up()
        Bridge(path, first, lambda *_: None).run(lambda: False)
        assert not calls.connected


def test_two_bridges_of_one_job_are_one_too_many(tmp_path: Path) -> None:
    with federation(tmp_path, {"north": reverse}) as calls:
        Bridge(socket_file(tmp_path / "server"), calls.token, lambda *_: None).run(lambda: False)
        assert dict(calls.call({"north": b"ab"}, SOON)) == {"north": b"ba"}


@pytest.mark.parametrize("note", [{}, {"call": 7}, {"call": "0" * 32}, {"token": None}])
def test_a_connection_that_nobody_asked_for_is_closed(tmp_path: Path, note: dict[str, object]) -> None:
    with Calls(socket_file(tmp_path)), connect(socket_file(tmp_path), at(SOON)) as stranger:
        stranger.send_note(note, at(SOON))
        with pytest.raises(Broken, match=r"closed|lost"):
            stranger.receive_message(at(SOON))


@pytest.mark.parametrize("note", [{}, {"seconds": "1"}, {"seconds": -1}, {"seconds": float("nan")}, {"seconds": 1e300}])
def test_a_site_takes_no_message_without_a_deadline(tmp_path: Path, note: dict[str, object]) -> None:
    with Answers(socket_file(tmp_path), reverse), connect(socket_file(tmp_path), at(SOON)) as stranger:
        stranger.send_note(note, at(SOON))
        with pytest.raises(Broken, match=r"closed|lost"):
            stranger.receive_message(at(SOON))


def test_garbage_to_a_site_hurts_nobody(tmp_path: Path) -> None:
    dice = random.Random(7)
    with federation(tmp_path, {"north": reverse}) as calls:
        for _ in range(300):
            with connect(socket_file(tmp_path / "north"), at(SOON)) as stranger:
                stranger.connection.sendall(dice.randbytes(dice.randint(0, 400)))
        assert dict(calls.call({"north": b"ab"}, SOON)) == {"north": b"ba"}


def test_a_message_over_the_limit_is_refused_at_both_ends(tmp_path: Path) -> None:
    with Answers(socket_file(tmp_path), lambda message: message * 2, largest=1000):
        relay = Relay(socket_file(tmp_path), largest=1500)

        def say(size: int) -> Reply:
            fields = {"call": f"c{size}", "seconds": SOON, "wait": SOON, "piece": CHUNK}
            return relay.handle({**fields, "push": 0, "size": size, "data": bytes(size)})

        assert say(700) == {"size": 1400, "data": bytes(1400)}
        assert "1600 bytes; at most 1500" in say(800)["failed"]  # the answer
        assert "1200 bytes; at most 1000" in say(1200)["failed"]  # at the site
        assert "0 to 1500" in say(1600)["failed"]  # at the relay
        relay.close()


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"call": 1},
        {"call": "x"},
        {"call": "x", "pull": 0, "wait": 1.0},
        {"call": "x", "push": 1, "size": 2, "data": b"a", "seconds": 1.0, "piece": CHUNK, "wait": 1.0},
        {"call": "x", "push": 0, "size": 2, "data": b"abc", "seconds": 1.0, "piece": CHUNK, "wait": 1.0},
        {"call": "x", "push": 0, "size": 2, "data": "ab", "seconds": 1.0, "piece": CHUNK, "wait": 1.0},
        {"call": "x", "push": 0, "size": -1, "data": b"", "seconds": 1.0, "piece": CHUNK, "wait": 1.0},
        {"call": "x", "push": 0, "size": 2, "data": b"ab", "seconds": -1.0, "piece": CHUNK, "wait": 1.0},
        {"call": "x", "push": 0, "size": 2, "data": b"ab", "seconds": float("nan"), "piece": CHUNK, "wait": 1.0},
        {"call": "x", "push": 0, "size": 2, "data": b"ab", "seconds": 1.0, "piece": 10, "wait": 1.0},
        {"call": "x", "push": 0, "size": 2, "data": b"ab", "seconds": 1.0, "piece": 0, "wait": 1.0},
        {"call": "x", "push": True, "size": 2, "data": b"ab", "seconds": 1.0, "piece": CHUNK, "wait": 1.0},
        {"call": "x", "push": 0, "size": 2, "data": b"ab", "seconds": 1.0, "piece": CHUNK, "wait": "long"},
    ],
)
def test_a_relay_believes_no_request(tmp_path: Path, request_: Request) -> None:
    with Answers(socket_file(tmp_path), reverse):
        relay = Relay(socket_file(tmp_path))
        assert list(relay.handle(request_)) == ["failed"]
        fine = {"call": "fine", "push": 0, "size": 2, "data": b"ab", "seconds": SOON, "piece": CHUNK, "wait": SOON}
        assert relay.handle(fine) == {"size": 2, "data": b"ba"}
        relay.close()


def test_a_crowd_is_refused_with_a_sentence(tmp_path: Path) -> None:
    go = threading.Event()

    def wait(message: bytes) -> bytes:
        go.wait(SOON)
        return message

    with Answers(socket_file(tmp_path), wait):
        relay = Relay(socket_file(tmp_path))
        fields = {"push": 0, "size": 2, "data": b"ab", "seconds": SOON, "piece": CHUNK, "wait": 0.0}
        replies = [relay.handle({"call": f"c{n}", **fields}) for n in range(CROWD + 1)]
        assert replies[:CROWD] == [{"later": True}] * CROWD
        assert replies[CROWD] == {"failed": f"is busy: {CROWD} calls are open"}
        go.set()
        relay.close()


def test_direct_is_a_pipe_too() -> None:
    def refuse(message: bytes) -> bytes:
        raise Failed("no")

    pipe = Direct({"north": reverse, "south": refuse})
    assert list(pipe.call({"north": b"ab", "south": b"", "west": b""}, 1.0)) == [
        ("north", b"ba"),
        ("south", Failure("no")),
        ("west", Failure("is not in this federation")),
    ]


PEAK = """
import resource, sys
from pathlib import Path
from undrift.deploy.pipe import Answers, socket_file
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def answer(message):
    if message == b"peak":
        return str(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)).encode()
    return message
with Answers(socket_file(Path(sys.argv[1])), answer):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_large_message_takes_three_times_its_size_at_most(tmp_path: Path) -> None:
    """At the site, where it is held; bridge and relay hold a piece at a time, here in this process."""
    import tracemalloc

    size = 100 << 20
    relay = Relay(socket_file(tmp_path / "north"))
    site = subprocess.Popen(
        [sys.executable, "-c", PEAK, tmp_path / "north"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    with site, Calls(socket_file(tmp_path / "server")) as calls:
        assert site.stdout is not None
        assert site.stdout.readline() == "ready\n"
        bridge = Bridge(
            socket_file(tmp_path / "server"), calls.token, lambda site, request, seconds: relay.handle(request)
        )
        thread = threading.Thread(target=bridge.run, args=(lambda: False,))
        thread.start()
        assert calls.await_bridge(SOON)
        message = bytes(size)
        tracemalloc.start()
        [(_, answer)] = calls.call({"north": message}, 120.0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert answer == message
        assert peak < 1.5 * size  # the answer, and pieces; with the message itself 2.5
        [(_, there)] = calls.call({"north": b"peak"}, SOON)
        assert isinstance(there, bytes)
        assert int(there) < 3 * size
        calls.hang_up()
        thread.join()
