"""The same seam over Flower: real SuperLink, real SuperNodes, TLS. Bytes pass, and the bits are the simulation's.

An exchange takes seconds here, whatever it carries, so that each test makes few.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from superlink import SuperLink
from together import bits, coordinated, names, rounds, sites_of

from conformance import problem
from undrift.algorithms import create
from undrift.core.errors import InvalidInput
from undrift.core.loop import Loop
from undrift.deploy import flower_pipe, protocol
from undrift.deploy.coordinator import Rules
from undrift.deploy.flower_pipe import FlowerPipe, write_app
from undrift.deploy.pipe import Answers, Failure, socket_file
from undrift.deploy.protocol import Refusal
from undrift.runtimes.serial import Serial

WHOLE = problem.federation()
SITES = names(WHOLE)[:3]
SOON = 120.0


def kit(folder: Path, name: str) -> Path:
    about = {"name": name, "role": "site", "sites": SITES}
    (folder / name).mkdir(mode=0o700)
    (folder / name / "kit.json").write_text(json.dumps(about))
    return folder / name


@pytest.fixture(scope="module")
def flower() -> Path:
    try:
        return flower_pipe.place()
    except InvalidInput as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flower")


@pytest.fixture(scope="module")
def link(folder: Path, flower: Path) -> Iterator[SuperLink]:
    with SuperLink(folder / "link", flower) as link, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_HOME", link.environment["FLWR_HOME"])  # where Flower's commands look for the SuperLink
        yield link


@pytest.fixture(scope="module")
def pipe(folder: Path, flower: Path, link: SuperLink) -> Iterator[FlowerPipe]:
    with ExitStack() as stack:
        for site in SITES:
            link.node(f'kit="{kit(folder, site)}"')
        pipe = stack.enter_context(FlowerPipe(kit(folder, "coordinator"), flower))
        reached = pipe.open(within=180)
        assert reached == dict.fromkeys(SITES, "no site process"), link.log()[-3000:]
        yield pipe


@pytest.mark.deploy
def test_bytes_pass_whole_and_a_refusal_is_told(pipe: FlowerPipe, folder: Path) -> None:
    from undrift.deploy.wire import Failed

    def refuse(message: bytes) -> bytes:
        raise Failed("does not want to")

    sent = {site: random.Random(site).randbytes(3_000_000) for site in SITES}
    with ExitStack() as stack:
        for site, answer in zip(SITES, (lambda m: m[::-1], lambda m: b"", refuse), strict=True):
            stack.enter_context(Answers(socket_file(folder / site), answer))
        got = dict(pipe.call(sent, SOON))
    assert got == {SITES[0]: sent[SITES[0]][::-1], SITES[1]: b"", SITES[2]: Failure("does not want to")}
    assert pipe.traffic[0] > 9_000_000


@pytest.mark.deploy
def test_a_site_that_is_away_or_late_is_given_with_a_reason(pipe: FlowerPipe, folder: Path) -> None:
    import threading

    done = threading.Event()

    def slow(message: bytes) -> bytes:
        done.wait(SOON)
        return message

    with Answers(socket_file(folder / SITES[0]), slow):
        got = dict(pipe.call({SITES[0]: b"x", SITES[1]: b"x", "nobody": b"x"}, 20.0))
        done.set()
    assert got[SITES[0]] == Failure("no answer within 20 s")
    assert isinstance(got[SITES[1]], Failure)
    assert "nobody listens" in got[SITES[1]].reason
    assert isinstance(got["nobody"], Failure)
    assert "is not in the engine's job" in got["nobody"].reason or "no answer" in got["nobody"].reason


@pytest.mark.deploy
@pytest.mark.parametrize("name", ["scaffold", "mime"])
def test_sites_behind_flower_train_with_the_bits_of_the_simulation(
    pipe: FlowerPipe, folder: Path, tmp_path: Path, name: str
) -> None:
    sites = sites_of(tmp_path, WHOLE)

    class Through:
        """Three sites are reached through Flower, the others directly; what was sent is remembered."""

        def __init__(self) -> None:
            self.sent: list[bytes] = []

        def call(self, messages, seconds):  # type: ignore[no-untyped-def]
            far = {site: message for site, message in messages.items() if site in SITES}
            self.sent += far.values()
            yield from ((site, sites[site].answer(m)) for site, m in messages.items() if site not in far)
            yield from pipe.call(far, seconds)

    with ExitStack() as stack:
        for site in SITES:
            stack.enter_context(Answers(socket_file(folder / site), sites[site].answer))
        method, through = create(name), Through()
        simulated = [bits(played) for played in rounds(Loop(WHOLE, method, Serial(WHOLE), WHOLE.population.size), 2)]
        loop = coordinated(WHOLE, method, through, Rules(deadline=SOON))
        assert [bits(played) for played in rounds(loop, 2)] == simulated
        replayed = next(message for message in through.sent if protocol.look(message).kind == "update")
        [(_, answer)] = pipe.call({SITES[0]: replayed}, SOON)
        assert isinstance(answer, bytes)
        with pytest.raises(Refusal) as refusal:
            protocol.opened(answer)
        assert refusal.value.kind in ("stale", "refused")


@pytest.mark.deploy
def test_two_nodes_of_one_name_are_none(folder: Path, flower: Path, link: SuperLink) -> None:
    """Nobody can tell which of them is the site: neither is asked."""
    twin = kit(folder, "twin")
    (twin / "kit.json").write_text(json.dumps({"name": "twin", "role": "site", "sites": ["twin"]}))
    center = kit(folder, "center")
    (center / "kit.json").write_text(json.dumps({"name": "center", "role": "coordinator", "sites": ["twin"]}))
    both = [link.node(f'kit="{twin}"') for _ in range(2)]
    try:
        with FlowerPipe(center, flower) as pipe, Answers(socket_file(twin), lambda message: message):
            pipe.open(within=30)
            [(_, answer)] = pipe.call({"twin": b"secret"}, 30.0)
            assert isinstance(answer, Failure)
    finally:
        for process in both:
            link.end(process)


def test_without_flower_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNDRIFT_FLOWER", str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match=r"no Flower at .*none: let UNDRIFT_FLOWER name"):
        flower_pipe.place()
    monkeypatch.delenv("UNDRIFT_FLOWER")
    with pytest.raises(InvalidInput, match="no Flower at hand"):
        flower_pipe.place()


def test_the_app_names_two_installed_apps_and_carries_nothing_else(tmp_path: Path) -> None:
    write_app(tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"pyproject.toml", "undrift_relay/__init__.py", "undrift_relay/apps.py"}
    lines = (tmp_path / "undrift_relay" / "apps.py").read_text().split("\n")
    assert [line for line in lines if line] == [
        "from undrift.deploy import flower", "client = flower.client", "server = flower.server",
    ]  # fmt: skip
