"""The time line of a round: measured at both ends, noted as numbers, read back, and summed up in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from together import OPEN, coordinated, direct, names, rounds, sites_of

from conformance import problem
from undrift.algorithms import create
from undrift.deploy import protocol
from undrift.deploy.pipe import Direct, Failure
from undrift.deploy.policy import Policy
from undrift.deploy.presence import Presence, ask_after
from undrift.deploy.protocol import Refusal
from undrift.deploy.timing import PARTS, Line, Timing, lines, noted, slowest
from undrift.report.sentences import slowest as in_words


def test_what_was_noted_of_a_round_is_read_back() -> None:
    told = [Timing("north", 2.0, 0.25, 1.0), Timing("at the sea", 1.0, 0.0, 1.0), Timing("west", 8.0, why="was away")]
    notes = noted(told) | {"tau": 3.0, "seconds worked, slowest site": 1.0, "seconds of work at west": 1.0}
    assert lines(notes) == [
        Line("at the sea", worked=1.0),
        Line("north", network=0.75, waited=0.25, worked=1.0),
        Line("west", unanswered=8.0),
    ]


def test_all_tasks_of_a_round_count_together() -> None:
    twice = [Timing("north", 2.0, 0.0, 1.0), Timing("north", 3.0, 0.5, 1.0), Timing("north", 4.0, why="was away")]
    assert lines(noted(twice)) == [Line("north", network=2.5, waited=0.5, worked=2.0, unanswered=4.0)]


def test_the_slowest_is_who_was_the_last_in_most_rounds() -> None:
    played = [noted([Timing("a", 1.0, 0.0, 0.5), Timing("b", 3.0, 0.0, seconds)]) for seconds in (1.0, 2.0, 3.0)]
    played.append(noted([Timing("a", 9.0, 0.0, 0.5), Timing("b", 3.0, 0.0, 3.0)]))
    found = slowest([*played, {"tau": 1.0}])
    assert found is not None
    assert (found.site, found.times, found.rounds) == ("b", 3, 4)
    assert found.median == Line("b", network=0.5, worked=2.5)
    assert in_words(found) == "b was the last in 3 of 4 rounds (median: training 2.5 s, network 0.5 s, waiting 0 s)"
    assert slowest([{"tau": 1.0}]) is None


@pytest.mark.parametrize("method", ["fedavg", "mime"])
def test_a_round_with_sites_has_a_time_line(tmp_path: Path, method: str) -> None:
    whole = problem.federation()
    pipe = direct(sites_of(tmp_path, whole))
    for played in rounds(coordinated(whole, create(method), pipe), 2):
        found = lines(played.notes)
        assert [line.site for line in found] == names(whole)
        assert all(line.worked > 0 and line.network > 0 and not line.unanswered for line in found)
        longest = max(line.worked for line in found) if method == "fedavg" else 0.0
        assert played.notes["seconds worked, slowest site"] >= longest


def test_a_site_tells_what_it_holds_only_where_its_policy_says_so(tmp_path: Path) -> None:
    whole = problem.federation()
    sites = sites_of(tmp_path, whole)
    first, second, third = names(whole)[:3]
    sites[first].policy = Policy(experiments="any", smallest_cohort=1, holdings=True, class_counts=True)
    sites[second].policy = Policy(experiments="any", smallest_cohort=1, holdings=True)
    pipe = direct(sites)
    before = sites[first].journal.head
    said = ask_after(pipe, [first, second, third, "nobody"], 10.0)
    one, two, three = (said[name] for name in (first, second, third))
    assert isinstance(one, Presence)
    assert isinstance(two, Presence)
    assert isinstance(three, Presence)
    assert one.samples == len(sites[first].data.x)
    assert list(one.counts or ()) == sites[first].data.counts()
    assert (two.samples, two.counts) == (len(sites[second].data.x), None)
    assert (three.samples, three.counts, three.classes) == (None, None, None)
    assert said["nobody"] == "is not in this federation"
    assert sites[first].journal.head != before  # what was told is in its log
    assert OPEN.holdings is False


def test_a_site_says_how_fast_it_was(tmp_path: Path) -> None:
    whole = problem.federation()
    sites = sites_of(tmp_path, whole)
    pipe = direct(sites)
    [before] = ask_after(pipe, names(whole)[:1], 10.0).values()
    assert len(list(rounds(coordinated(whole, create("fedavg"), pipe), 2))) == 2
    [after] = ask_after(pipe, names(whole)[:1], 10.0).values()
    assert isinstance(before, Presence)
    assert isinstance(after, Presence)
    assert (before.answered, before.seconds) == (0, None)
    assert after.answered >= 2
    assert after.seconds is not None
    assert after.seconds > 0
    assert after.since == before.since > 1.7e9


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"name": "south"}, "calls itself 'south'"),
        ({"name": "north", "since": "long"}, "does not say since when it is there"),
        ({"name": "north", "since": 1.0, "answered": -1, "seconds": 1.0}, "'answered' is not a whole number"),
        ({"name": "north", "since": 1.0, "answered": 1, "seconds": 1.0, "counts": ["a"]}, "which classes it holds"),
    ],
)
def test_what_a_site_says_of_itself_is_checked(told: dict[str, object], why: str) -> None:
    pipe = Direct({"north": lambda message: protocol.note("present", **told)})
    [said] = ask_after(pipe, ["north"], 1.0).values()
    assert isinstance(said, str)
    assert why in said


def test_a_site_that_refuses_or_is_away_is_said_so() -> None:
    class Away:
        def call(self, messages, seconds):  # type: ignore[no-untyped-def]
            yield "north", Failure("no answer within 1 s")
            yield "south", protocol.failed(Refusal("refused", "does not want to"))

    assert ask_after(Away(), ["north", "south"], 1.0) == {"north": "no answer within 1 s", "south": "does not want to"}
    assert PARTS == ("network", "waited", "worked", "unanswered")
