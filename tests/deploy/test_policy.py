"""A site's policy: bad files get one sentence; what is not allowed is refused, whoever asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from undrift.core.errors import InvalidInput
from undrift.deploy.policy import Approvals, Policy
from undrift.deploy.protocol import Refusal

FILE = "ab" * 32
EXPERIMENT: dict[str, Any] = {"name": "heart", "rounds": 50, "cohort": 3, "algorithm": {"name": "fedavg"}}


def read(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return Policy.read(path)


def test_without_a_file_the_operator_is_asked(tmp_path: Path) -> None:
    policy = Policy.read(tmp_path / "policy.toml")
    with pytest.raises(Refusal, match="waits for its operator's approval") as refusal:
        policy.check(EXPERIMENT, "fedavg", FILE, approved=False)
    assert refusal.value.kind == "waiting"
    policy.check(EXPERIMENT, "fedavg", FILE, approved=True)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("experiment = 'ask'", "unknown key 'experiment'.*did you mean 'experiments'"),
        ("experiments = 'all'", '"ask", "any" or a list of names'),
        ("smallest_cohort = '3'", "smallest_cohort = '3': must be of kind int"),
        ("smallest_cohort = true", "must be of kind int"),
        ("largest_rounds = -1", "0 or more"),
        ("class_counts = 1", "must be of kind bool"),
        ("[methods]\nfedavg = 'abc'", "fedavg = 'abc': \"any\" or a SHA-256"),
        ("[methods", "is not TOML"),
    ],
)
def test_a_policy_that_cannot_be_used_gets_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "change", "sentence"),
    [
        ("[methods]\nscaffold = 'any'", {}, "does not allow the method fedavg"),
        (f"[methods]\nfedavg = '{'cd' * 32}'", {}, "with another file than the one that is installed"),
        ("largest_rounds = 49", {}, "at most 49 rounds, and this experiment has 50"),
        ("", {"rounds": "many"}, "at most 1000 rounds"),
        ("smallest_cohort = 4", {}, "one of 4 at least, and this experiment may take 3"),
        ("smallest_cohort = 1", {"cohort": None}, "may take None"),
        ("experiments = ['lung']", {}, "does not allow the experiment 'heart'"),
        ("experiments = []", {}, "does not allow the experiment 'heart'"),
    ],
)
def test_what_is_not_allowed_is_refused(tmp_path: Path, text: str, change: dict[str, Any], sentence: str) -> None:
    if "experiments" not in text:
        text = "experiments = 'any'\n" + text
    with pytest.raises(Refusal, match=sentence) as refusal:
        read(tmp_path, text).check(EXPERIMENT | change, "fedavg", FILE, approved=True)
    assert refusal.value.kind == "refused"


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    text = f"experiments = ['heart']\nlargest_rounds = 50\nsmallest_cohort = 3\n[methods]\nfedavg = '{FILE}'"
    read(tmp_path, text).check(EXPERIMENT, "fedavg", FILE, approved=False)


def test_an_approval_is_for_what_the_experiment_says(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approvals")
    key = approvals.key(EXPERIMENT, FILE)
    approvals.ask(key, EXPERIMENT, FILE)
    assert not approvals.approved(key)
    approvals.approve(key)
    assert approvals.approved(key)
    assert approvals.asked()[key]["experiment"] == EXPERIMENT
    for other in (approvals.key(EXPERIMENT | {"rounds": 51}, FILE), approvals.key(EXPERIMENT, "cd" * 32)):
        assert not approvals.approved(other)
