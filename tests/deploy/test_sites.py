"""Sites and coordinator together: what a site keeps survives whatever happens, and nothing counts twice or is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mischief import Mischief
from together import (
    OPEN,
    SOON,
    bits,
    coordinated,
    direct,
    names,
    rounds,
    site_of,
    sites_of,
    told,
)

from conformance import problem
from undrift.algorithms import create
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation, Rows
from undrift.core.loop import Loop
from undrift.core.packing import pack
from undrift.core.states import Memory
from undrift.deploy import protocol
from undrift.deploy.coordinator import Rules, register, roster
from undrift.deploy.journal import entries, verify
from undrift.deploy.pipe import Direct, Failure
from undrift.deploy.policy import Policy
from undrift.deploy.protocol import Refusal
from undrift.deploy.site import Site
from undrift.experiment.evaluate import Evaluator
from undrift.runtimes.serial import Serial

PATIENT = Rules(deadline=SOON, attempts=60, pause=1e-6)


@pytest.fixture
def simulated() -> Federation:
    """The conformance problem, whose clients also hold samples to be judged on."""
    whole = problem.federation()
    return replace(whole, test=Rows(whole.x, whole.y, whole.indices[::2].copy(), whole.offsets // 2))


def simulation(simulated: Federation, name: str, count: int, participate: int = 6) -> list[tuple[bytes, bytes]]:
    loop = Loop(simulated, create(name), Serial(simulated), participate)
    return [bits(played) for played in rounds(loop, count)]


# --- whatever happens -------------------------------------------------------------------------------------------------


def trial(folder: Path, seed: int, method: str, count: int = 8) -> list[str]:
    """Play rounds over a pipe that is unkind; what it did. Every round must have the bits of the simulation."""
    whole = problem.federation()
    pipe = Mischief(folder, whole, seed)
    unkind, pipe.share = pipe.share, 0.0
    loop = coordinated(whole, create(method), pipe, PATIENT)
    pipe.share = unkind
    assert [bits(played) for played in rounds(loop, count)] == simulation(whole, method, count)
    for name in names(whole):
        assert verify(folder / name / "journal.jsonl").lines > count
    pipe.close()
    return pipe.done


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", ["scaffold", "mime", "fedtrip"])
def test_lost_doubled_delayed_and_killed_change_no_bit(tmp_path: Path, seed: int, method: str) -> None:
    assert len(trial(tmp_path, seed, method)) > 3


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(100, 274))
def test_many_more_of_them(tmp_path: Path, seed: int) -> None:
    trial(tmp_path, seed, ["scaffold", "mime", "feddyn", "fedrep", "pfedmo"][seed % 5], 12)


def test_a_coordinator_that_was_killed_before_its_transaction_asks_again(tmp_path: Path, simulated: Federation) -> None:
    """The sites answer the repeated round from their disks: the same bytes, without work."""
    sites = sites_of(tmp_path, simulated)
    loop = coordinated(simulated, create("scaffold"), direct(sites))
    snapshot = loop.start()
    played = [loop.play(snapshot)]
    played.append(loop.play(played[0].snapshot))
    accepted = Memory({client: replace(kept, round=1) for client, kept in loop.runtime.states.kept.items()})  # type: ignore[attr-defined]
    again = coordinated(simulated, create("scaffold"), direct(sites), states=accepted)
    assert bits(again.play(played[0].snapshot)) == bits(played[1])
    for name in sites:
        assert [line["round"] for line in entries(tmp_path / name / "journal.jsonl") if "again" in line["what"]] == [2]
    third = again.play(played[1].snapshot)
    assert bits(third) == simulation(simulated, "scaffold", 3)[2]


def test_a_site_that_lost_its_state_stops_the_run_and_is_named(tmp_path: Path, simulated: Federation) -> None:
    sites = sites_of(tmp_path, simulated)
    loop = coordinated(simulated, create("scaffold"), direct(sites))
    first = loop.play(loop.start())
    for kept in (tmp_path / "site02" / "runs" / "trial-1").glob("*.kept"):
        kept.unlink()
    with pytest.raises(InvalidInput, match=r"site02 has lost what it kept.*lost_state"):
        loop.play(first.snapshot)
    loop.runtime.rules = replace(loop.runtime.rules, lost_state="afresh")  # type: ignore[attr-defined]
    assert not loop.play(first.snapshot).skipped
    assert [line["lost"] for line in entries(tmp_path / "site02" / "journal.jsonl") if line["what"] == "begins afresh"]


def test_a_site_answers_from_its_disk_after_a_restart_without_being_told_anything(
    tmp_path: Path, simulated: Federation
) -> None:
    sites = sites_of(tmp_path, simulated)
    pipe = direct(sites)
    loop = coordinated(simulated, create("scaffold"), pipe)
    snapshot, expected = loop.start(), simulation(simulated, "scaffold", 6)
    for number in range(6):
        played = loop.play(snapshot)
        assert bits(played) == expected[number]
        snapshot = played.snapshot
        for client, name in enumerate(names(simulated)):
            sites[name].close()
            sites[name] = site_of(tmp_path, simulated, client)
        pipe.sites = {name: site.answer for name, site in sites.items()}


def test_old_states_do_not_pile_up(tmp_path: Path, simulated: Federation) -> None:
    sites = sites_of(tmp_path, simulated)
    list(rounds(coordinated(simulated, create("scaffold"), direct(sites)), 12))
    left = sorted(path.name for path in (tmp_path / "site00" / "runs" / "trial-1").iterdir())
    assert len(left) <= 11  # five of each kind, and what it joined with
    assert not [name for name in left if name.endswith(".new")]


# --- who is asked, and who is waited for ------------------------------------------------------------------------------


class Deaf(Direct):
    """Some sites never answer."""

    def __init__(self, pipe: Direct, deaf: set[str]) -> None:
        super().__init__(pipe.sites)
        self.deaf, self.asked = deaf, list[str]()

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        for site, message in messages.items():
            self.asked.append(site)
            if site in self.deaf:
                yield site, Failure("no answer")
            else:
                yield from super().call({site: message}, seconds)


def test_a_round_with_a_quorum_goes_on_without_the_others(tmp_path: Path, simulated: Federation) -> None:
    pipe = Deaf(direct(sites_of(tmp_path, simulated)), set())
    loop = coordinated(simulated, create("scaffold"), pipe, Rules(deadline=SOON, quorum=4))
    pipe.deaf = {"site01", "site04"}
    played = list(rounds(loop, 4))
    assert [p.cohort.ids.tolist() for p in played] == [[0, 2, 3, 5]] * 4
    pipe.asked.clear()
    pipe.deaf = set()
    back = loop.play(played[-1].snapshot)
    assert back.cohort.ids.tolist() == [0, 1, 2, 3, 4, 5]


def test_without_a_quorum_the_run_stops_with_a_sentence_and_can_go_on(tmp_path: Path, simulated: Federation) -> None:
    pipe = Deaf(direct(sites_of(tmp_path, simulated)), set())
    loop = coordinated(simulated, create("scaffold"), pipe, Rules(deadline=SOON, attempts=3, pause=1e-6))
    first = loop.play(loop.start())
    pipe.deaf = {"site05"}
    with pytest.raises(InvalidInput, match=r"round 2: 5 of 6 sites answered, 6 are needed .site05 no answer"):
        loop.play(first.snapshot)
    pipe.deaf = set()
    assert bits(loop.play(first.snapshot)) == simulation(simulated, "scaffold", 2)[1]


def test_more_can_be_asked_than_are_waited_for(tmp_path: Path, simulated: Federation) -> None:
    loop = coordinated(
        simulated, create("fedavg"), direct(sites_of(tmp_path, simulated)), Rules(deadline=SOON, quorum=3, enough=4)
    )
    assert [p.cohort.ids.tolist() for p in rounds(loop, 3)] == [[0, 1, 2, 3]] * 3


# --- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["scaffold", "fedrep"])
def test_evaluation_at_the_sites_gives_the_figures_of_the_simulation(
    tmp_path: Path, simulated: Federation, method: str
) -> None:
    here = Loop(simulated, create(method), Serial(simulated), 6)
    there = coordinated(simulated, create(method), direct(sites_of(tmp_path, simulated)))
    (mine,), (theirs,) = list(rounds(here, 1)), list(rounds(there, 1))
    expected = Evaluator(simulated, problem.CLASSES)(here, mine.snapshot)
    found = Evaluator(there.federation, problem.CLASSES)(there, theirs.snapshot)
    own = [(figure, value) for figure, value in expected.metrics if "own" in figure.data]
    assert own
    assert [(figure, value) for figure, value in found.metrics if "own" in figure.data] == own
    assert found.clients == expected.clients


def test_a_figure_of_too_few_samples_is_not_told(tmp_path: Path, simulated: Federation) -> None:
    sites = sites_of(tmp_path, simulated, replace(OPEN, smallest_count=9))
    loop = coordinated(simulated, create("fedavg"), direct(sites))
    found = Evaluator(loop.federation, problem.CLASSES)(loop, loop.start())
    assert sorted(found.clients["global"]) == [3, 4]  # with 10 and 12 samples; the others have 4 to 8


# --- what is refused --------------------------------------------------------------------------------------------------


def hello(site: Site, simulated: Federation, **changes: Any) -> Refusal | None:
    experiment = told(simulated, create("fedavg")) | changes
    _, absent = register(Direct({site.name: site.answer}), [site.name], "trial-1", experiment, SOON)
    return absent.get(site.name)


def test_a_request_against_the_policy_is_refused_and_logged(tmp_path: Path, simulated: Federation) -> None:
    site = site_of(tmp_path, simulated, 0, Policy(experiments="any", smallest_cohort=3, methods={"scaffold": "any"}))
    refusal = hello(site, simulated)
    assert refusal is not None
    assert (refusal.kind, str(refusal)) == ("refused", "does not allow the method fedavg")
    last = list(entries(site.folder / "journal.jsonl"))[-1]
    assert (last["what"], last["why"]) == ("refused", "does not allow the method fedavg")


def test_a_site_that_asks_its_operator_tells_nothing_before(tmp_path: Path, simulated: Federation) -> None:
    site = site_of(tmp_path, simulated, 0, Policy(smallest_cohort=1))
    refusal = hello(site, simulated)
    assert refusal is not None
    assert refusal.kind == "waiting"
    (key,) = site.approvals.asked()
    site.approvals.approve(key)
    assert hello(site, simulated) is None
    changed = hello(site, simulated, rounds=51)  # another experiment under the same name
    assert changed is not None
    assert changed.kind == "waiting"


def test_a_method_that_is_not_installed_is_refused(tmp_path: Path, simulated: Federation) -> None:
    refusal = hello(site_of(tmp_path, simulated, 0), simulated, algorithm={"name": "fedleak"})
    assert refusal is not None
    assert "cannot take part: the experiment: unknown algorithm 'fedleak'" in str(refusal)


def test_class_counts_are_told_only_where_the_policy_says_so(tmp_path: Path, simulated: Federation) -> None:
    for number, tell in enumerate((False, True)):
        sites = sites_of(tmp_path / str(number), simulated, replace(OPEN, class_counts=tell))
        present, _ = register(direct(sites), names(simulated), "trial-1", told(simulated, create("fedavg")), SOON)
        counts = [member.counts for member in roster(present).members]
        rows = simulated.rows(0)
        assert counts[0] == (tuple(simulated.y[rows].bincount(minlength=3).tolist()) if tell else None)


def test_a_site_that_calls_itself_by_another_name_is_not_let_in(tmp_path: Path, simulated: Federation) -> None:
    sites = sites_of(tmp_path, simulated)
    pipe = Direct({"site00": sites["site01"].answer})
    present, absent = register(pipe, ["site00"], "trial-1", told(simulated, create("fedavg")), SOON)
    assert present == {}
    assert str(absent["site00"]) == "calls itself 'site01'"


def test_sites_whose_data_do_not_fit_together_are_named(tmp_path: Path, simulated: Federation) -> None:
    sites = sites_of(tmp_path, simulated)
    odd = sites["site03"]
    odd.data = replace(odd.data, task=replace(odd.data.task, classes=4, outputs=4))
    present, _ = register(direct(sites), names(simulated), "trial-1", told(simulated, create("fedavg")), SOON)
    with pytest.raises(InvalidInput, match="site00 has classes 3, and site03 has 4"):
        roster(present)


def test_a_site_on_other_terms_is_not_let_in(tmp_path: Path, simulated: Federation) -> None:
    sites = sites_of(tmp_path, simulated)
    other = replace(simulated, module=torch.nn.Linear(problem.INPUTS, problem.CLASSES))
    sites["site04"].workshop = type(sites["site04"].workshop)(other)
    loop = coordinated(simulated, create("fedavg"), direct(sites))
    with pytest.raises(InvalidInput, match="site04 has another model than the coordinator"):
        loop.play(loop.start())


def tasks(tmp_path: Path, simulated: Federation, method: str = "scaffold") -> tuple[Site, list[bytes]]:
    """A site that has played three rounds, and the messages it got."""
    sites, seen = sites_of(tmp_path, simulated), []
    site = sites["site00"]

    def answer(message: bytes) -> bytes:
        seen.append(message)
        return site.answer(message)

    pipe = direct(sites)
    pipe.sites = {**pipe.sites, "site00": answer}
    list(rounds(coordinated(simulated, create(method), pipe), 3))
    return site, [m for m in seen if protocol.look(m).kind in ("survey", "update")]


def refused(site: Site, message: bytes) -> str:
    with pytest.raises(Refusal) as refusal:
        protocol.opened(site.answer(message))
    return f"{refusal.value.kind}: {refusal.value}"


def state_of(site: Site) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (site.folder / "runs" / "trial-1").iterdir()}


def with_header(message: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    from undrift.core.packing import unpack

    tensors, header = unpack(message)
    change(header)
    return pack(tensors, header)


def test_a_replayed_message_is_refused_and_changes_nothing(tmp_path: Path, simulated: Federation) -> None:
    site, seen = tasks(tmp_path, simulated)
    before = state_of(site)
    for old in seen[:-1]:
        assert refused(site, old).startswith("stale: ")
    assert state_of(site) == before
    assert protocol.opened(site.answer(seen[-1])).header["round"] == 3  # the last one may have been lost


def test_a_replayed_message_is_refused_after_a_restart_too(tmp_path: Path, simulated: Federation) -> None:
    site, seen = tasks(tmp_path, simulated)
    before = state_of(site)
    site.close()
    site = site_of(tmp_path, simulated, 0)
    for old in seen[:-1]:
        assert refused(site, old).startswith("stale: ")
    assert state_of(site) == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda h: h.update(run="other-1"), "unknown: has not joined other-1"),
        (lambda h: h.update(run="../trial-1"), "bad: cannot use that name"),
        (lambda h: h.update(client=1), "refused: is client 0 of this run, not 1"),
        (lambda h: h.update(kind="execute"), "bad: cannot read the message: a site cannot be asked to 'execute'"),
        (lambda h: h["extra"].update(session=99), "stale: "),
        (lambda h: h["extra"].update(session=0), "stale: "),
        (lambda h: h.update(round=10_000), "refused: allows at most 1000 rounds"),
        (lambda h: h.update(round=-1), "bad: "),
        (lambda h: h.update(accepted=2.5, round=4), "bad: "),
        (lambda h: h.update(accepted=77, round=4), "lost: "),
        (lambda h: h.pop("extra"), "bad: "),
    ],
)
def test_a_message_that_is_not_for_this_site_is_refused(
    tmp_path: Path, simulated: Federation, change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    site, seen = tasks(tmp_path, simulated)
    assert refused(site, with_header(seen[-1], change)).startswith(sentence)


def test_tensors_that_the_method_has_no_room_for_are_refused(tmp_path: Path, simulated: Federation) -> None:
    from undrift.core.packing import unpack

    site, seen = tasks(tmp_path, simulated)
    tensors, header = unpack(seen[-1])
    header["round"] = 4
    for changed, sentence in (
        (tensors | {"down.more": torch.zeros(1)}, "scaffold has no 'down.more'"),
        (tensors | {"down.x": torch.zeros(7)}, r"'down.x' has shape \(7,\), not"),
        ({name: t for name, t in tensors.items() if name != "down.x"}, "'down.x' is missing"),
    ):
        with pytest.raises(Refusal, match=sentence):
            protocol.opened(site.answer(pack(changed, header)))


def test_ten_thousand_mutated_messages_are_answered_in_order(tmp_path: Path, simulated: Federation) -> None:
    """At the site's end: none crashes it, and each gets a refusal or an answer."""
    import random

    site, seen = tasks(tmp_path, simulated, "fedavg")
    dice, outcomes = random.Random(13), dict[str, int]()
    site.journal.add = lambda what, **facts: None  # type: ignore[method-assign]  # ten thousand flushes to the disk
    for number in range(10_000):
        said = bytearray(seen[-1])
        for _ in range(dice.randint(1, 6)):
            place = dice.randrange(min(len(said), 900)) if number % 2 else dice.randrange(len(said))
            said[place] ^= dice.randint(1, 255)
        if dice.random() < 0.2:
            said = said[: dice.randrange(len(said))]
        header = protocol.look(site.answer(bytes(said))).header
        outcome = header.get("trouble", header["kind"])
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes.keys() <= {"bad", "stale", "lost", "refused", "unknown", "reply"}
    assert outcomes["bad"] > 2000


def test_ten_thousand_mutated_replies_are_taken_or_refused(tmp_path: Path, simulated: Federation) -> None:
    """At the coordinator's end: each is a letter, whose reply the door looks at (test_storm), or a refusal."""
    import random

    site, seen = tasks(tmp_path, simulated, "fedavg")
    reply, dice, outcomes = site.answer(seen[-1]), random.Random(13), set()
    for number in range(10_000):
        said = bytearray(reply)
        for _ in range(dice.randint(1, 6)):
            place = dice.randrange(min(len(said), 700)) if number % 2 else dice.randrange(len(said))
            said[place] ^= dice.randint(1, 255)
        try:
            protocol.spans(protocol.opened(bytes(said)))
            outcomes.add("reply")
        except Refusal as refusal:
            outcomes.add(refusal.kind)
    assert outcomes == {"reply", "bad"}


def test_a_header_that_is_too_deep_or_too_long_is_refused(tmp_path: Path) -> None:
    deep = json.dumps({"__metadata__": {"undrift": "[" * 5000 + "]" * 5000}}).encode()
    for data in (b"", b"x" * 20, len(deep).to_bytes(8, "little") + deep, (1 << 40).to_bytes(8, "little") + b"{}"):
        with pytest.raises(Refusal, match="cannot read the message"):
            protocol.look(data)


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("experiment", {"algorithm": {"name": "FILE"}}),
        ("experiment", {"model": {"name": "FILE:Own"}}),
        ("settled", {"algorithm": {"name": "FILE"}}),
        ("settled", {"model": {"name": "FILE"}}),
        ("settled", {"algorithm": {"name": "scaffold"}}),
        ("settled", {"algorithm": {"name": "fedavg"}, "train": {"lr": 9.0}}),
    ],
)
def test_nobody_chooses_what_a_site_runs(
    tmp_path: Path, simulated: Federation, where: str, what: dict[str, dict[str, Any]]
) -> None:
    """A file on the site's disk is not imported because a coordinator names it; what was allowed is what is joined."""
    ran, file = tmp_path / "ran", tmp_path / "own.py"
    file.write_text(f"open({str(ran)!r}, 'w').close()\n")
    section = json.loads(json.dumps(what).replace("FILE", str(file)))
    experiment = told(simulated, create("fedavg"))
    parts = {"experiment": experiment, "settled": {"algorithm": experiment["algorithm"]}}
    parts[where] = {**parts[where], **section}
    answer = site_of(tmp_path, simulated, 0).answer(protocol.note("join", run="trial-1", session=1, client=0, **parts))
    with pytest.raises(Refusal, match=r"installed names alone|is to join another"):
        protocol.opened(answer)
    assert not ran.exists()
