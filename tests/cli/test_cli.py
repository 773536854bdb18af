"""The command line as a user meets it: real commands, wrong input, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from undrift import __version__, cli
from undrift.cli.common import show_warnings
from undrift.core.figure import Figure
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.version import version as undrift_version

SMALL = ["--clients", "6", "--participate", "3", "--rounds", "3", "--runtime", "serial"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("UNDRIFT_DATA", raising=False)
    return tmp_path


def undrift(*args: str) -> subprocess.CompletedProcess[str]:
    """A real command in a real process."""
    return subprocess.run([sys.executable, "-m", "undrift", *args], capture_output=True, text=True)


def sentence(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one sentence that bad input gets, with exit code 2 and nothing on standard output."""
    assert cli.run(list(args)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert "Traceback" not in err
    assert lines[0].startswith("undrift: ")
    return lines[0]


def test_run_by_flags_then_show_and_json(folder: Path) -> None:
    done = undrift("run", "--algorithm", "fedtrip", "--mu", "0.2", "--alpha", "0.5", "--name", "mine", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "FedTrip (mu=0.2), seed 1 (finished)" in done.stdout
    shown = undrift("show", "mine", "--json")
    value = json.loads(shown.stdout)
    assert value["experiment"]["algorithm"]["mu"] == 0.2
    assert value["experiment"]["partition"] == {"name": "dirichlet", "alpha": 0.5, "min_size": 1}
    assert [row["round"] for row in value["rounds"]] == [1, 2, 3]
    assert {(m["model"], m["data"], m["metric"]) for m in value["metrics"]} == {
        ("global", "test", "accuracy"),
        ("global", "test", "loss"),
        ("global", "own test (mean)", "accuracy"),
        ("global", "own test (worst decile)", "accuracy"),
    }
    assert "mine" in undrift("show").stdout
    assert (folder / "runs" / "ledger.sqlite").exists()


def test_a_toml_file_and_flags_give_the_same_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--algorithm", "scaffold", "--partition", "classes", "--classes-per-client", "3", "--lr", "0.05", *SMALL]
    assert cli.run(["run", *flags, "--toml"]) == 0
    (folder / "e.toml").write_text(capsys.readouterr().out)
    assert cli.run(["run", *flags, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert cli.run(["run", "e.toml", "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["metrics"] == second["metrics"]
    assert first["experiment"] == second["experiment"]
    assert cli.run(["run", "e.toml", "--seed", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiment"]["seed"] == 2


def test_compare_prints_a_table_and_says_what_was_not_reached() -> None:
    chosen = ["--algorithms", "fedavg,fedtrip:mu=0.1", "--seeds", "1..2", "--target", "0.999"]
    out = undrift("compare", *chosen, *SMALL).stdout
    assert "FedTrip (mu=0.1)" in out
    assert "not reached in 3 rounds" in out
    assert "runs/ledger.sqlite" in out
    rows = json.loads(undrift("compare", *chosen, *SMALL, "--resume", "--json").stdout)
    assert [row["seeds"] for row in rows] == ["2", "2"]
    with Ledger("runs/ledger.sqlite") as ledger:
        assert len(ledger.runs()) == 4  # nothing was run again


def test_a_run_of_pfedmo_shows_its_two_controls(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["run", "--algorithm", "pfedmo", "--gamma", "0.7", "--name", "mine", *SMALL]) == 0
    out = " ".join(capsys.readouterr().out.split())  # wherever lines are folded
    with Ledger("runs/ledger.sqlite") as ledger:
        mine, control = ledger.runs()
        accuracy = History.of(ledger, control).curve(Figure())[1][-1]
    assert "representation model, accuracy on" in out
    assert f"Its control FedNAG (gamma=0.7), on the same partition, ends at {100 * accuracy:.1f} %" in out
    assert (mine.name, control.name) == ("mine", "mine-fednag")
    assert mine.facts["partition_fingerprint"] == control.facts["partition_fingerprint"]
    assert cli.run(["run", "--algorithm", "pfedmo", *SMALL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiment"]["algorithm"]["name"] == "pfedmo"  # one document


def test_a_comparison_with_pfedmo_has_its_controls(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--algorithms", "pfedmo,pfedmo:gamma=0.7:variant=interp,fednag", "--seeds", "1"]
    assert cli.run(["compare", *chosen, *SMALL]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("its representation model alone ends at") == 2
    with Ledger("runs/ledger.sqlite") as ledger:
        runs = ledger.runs()
    assert [(r.experiment["algorithm"]["name"], r.experiment["algorithm"]["gamma"]) for r in runs] == [
        ("pfedmo", 0.5),
        ("pfedmo", 0.7),
        ("fednag", 0.5),
        ("fednag", 0.7),  # a control of the second, with its momentum
    ]
    assert len({r.facts["partition_fingerprint"] for r in runs}) == 1


def test_a_personal_method_is_marked_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compare", "--algorithms", "fedavg,local", "--seeds", "1", *SMALL, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["FedAvg (baseline)", "Local training (personal)"]


def test_a_comparison_refuses_before_its_first_run(capsys: pytest.CaptureFixture[str]) -> None:
    found = sentence(capsys, "compare", "--algorithms", "fedavg,fednag", "--momentum", "0.9", *SMALL)
    assert "FedNAG does not take local momentum" in found
    with Ledger("runs/ledger.sqlite") as ledger:
        assert ledger.runs() == []


def test_an_error_does_not_advise_to_resume_an_older_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["run", "--name", "older", *SMALL, "--quiet"]) == 0
    with Ledger("runs/ledger.sqlite") as ledger:
        ledger.set_status(ledger.run("older"), "stopped")
    capsys.readouterr()
    sentence(capsys, "run", "--algorithm", "fednag", "--momentum", "0.9", *SMALL)  # that and nothing else


def test_a_file_lists_methods_and_seeds_of_a_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for methods in ("['fedavg', 'fedprox']", "'fedavg,fedprox'"):
        (folder / "c.toml").write_text(f"algorithms = {methods}\nseeds = [4, 7]\n")
        assert cli.run(["compare", "c.toml", *SMALL, "--json"]) == 0
        assert [row["seeds"] for row in json.loads(capsys.readouterr().out)] == ["2", "2"]
    with Ledger("runs/ledger.sqlite") as ledger:
        assert {run.experiment["seed"] for run in ledger.runs()} == {4, 7}


def test_a_file_has_a_table_for_each_method_with_its_own_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "c.toml").write_text(
        "seeds = 1\n[train]\nmomentum = 0.9\n"
        "[[method]]\nname = 'fedavg'\n"
        "[[method]]\nname = 'slowmo'\ntrain = {momentum = 0}\n"
        "[[method]]\nname = 'fedadm'\nbudget = [30]\ntrain = {momentum = 0}\n"
    )
    assert cli.run(["compare", "c.toml", *SMALL, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    labels = ["FedAvg (baseline)", "SlowMo [momentum=0]", "FedADM (budget=[30]) [momentum=0]"]
    assert [row["method"] for row in rows] == labels
    # The same on the command line, where a list stands in brackets.
    listed = "fedavg,slowmo:train.momentum=0,fedadm:budget=[30]:train.momentum=0"
    flags = ["--train.momentum", "0.9", "--seeds", "1", "--resume"]
    assert cli.run(["compare", "-a", listed, *flags, *SMALL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows
    with Ledger("runs/ledger.sqlite") as ledger:
        assert len(ledger.runs()) == 3  # nothing was run again
    assert "it describes a comparison: undrift compare c.toml" in sentence(capsys, "run", "c.toml")


def test_names_of_runs_are_whole_on_a_narrow_terminal() -> None:
    assert undrift("run", "--name", "a-name-of-more-than-twenty-characters", *SMALL).returncode == 0
    shown = subprocess.run(
        [sys.executable, "-m", "undrift", "show"], env={**os.environ, "COLUMNS": "60"}, capture_output=True, text=True
    ).stdout
    column = [line.split("│")[1].strip() for line in shown.splitlines() if "│" in line]
    assert "".join(column) == "a-name-of-more-than-twenty-characters"


def test_a_warning_is_said_once_whatever_libraries_do_to_the_filters(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        show_warnings()
        for _ in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                warnings.warn("too many cooks", stacklevel=1)
    assert capsys.readouterr().err.splitlines() == ["warning: too many cooks"]


def test_algorithms_and_partition_tell_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["algorithms"]) == 0
    everything = capsys.readouterr().out
    for name in ("fedavg", "fedprox", "scaffold", "feddyn", "fedtrip", "moon"):
        assert f"\n{name}  " in "\n" + everything
    assert cli.run(["algorithms", "fedtrip", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fedtrip"]["settings"]["mu"]["default"] == "auto"
    assert cli.run(["partition", "--alpha", "0.1", "--clients", "5", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert sum(value["sizes"]) == sum(map(sum, value["histogram"])) == 1438
    assert cli.run(["partition", "--alpha", "0.1", "--clients", "5"]) == 0
    assert value["fingerprint"] in capsys.readouterr().out


def test_own_csv_with_a_client_column(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{i % 3},{i * 0.1:.2f},{(i % 2)},site{i % 4}" for i in range(80)]
    (folder / "d.csv").write_text("\n".join(["label,a,b,site", *rows]))
    flags = ["--data", "csv", "--path", "d.csv", "--label", "label", "--client", "site", "--rounds", "2"]
    assert cli.run(["run", *flags, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["clients"] == 4


def test_a_flag_goes_with_the_method_that_a_file_chose(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "e.toml").write_text("algorithm = 'fedadm'")
    assert cli.run(["run", "e.toml", "--form", "printed", "--toml"]) == 0
    assert 'form = "printed"' in capsys.readouterr().out
    assert "it must be one of corrected, printed" in sentence(capsys, "run", "e.toml", "--form", "velocity")


def test_one_method_is_shown_with_what_the_letters_of_its_costs_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["algorithms", "fedpvr"]) == 0
    out = capsys.readouterr().out
    assert "K * head + 4 * head" in out
    assert "head: those of the last layer" in " ".join(out.split())
    assert cli.run(["algorithms", "fedadm"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--tau none a whole number >= 1" in out
    assert "--budget 60 a list of numbers" in out


BAD = [
    (["run", "--algorithm", "fedtrp"], "unknown algorithm 'fedtrp': did you mean 'fedtrip'?"),
    (["run", "--data", "digit"], "did you mean 'digits'?"),
    (["run", "--partition", "dirichlett"], "did you mean 'dirichlet'?"),
    (["run", "--model", "lnet"], "did you mean 'lenet'?"),
    (["run", "--algoritm", "fedavg"], "--algorithm"),
    (["run", "--algorithm", "fedtrip", "--mu", "-1"], "must be a number >= 0"),
    (["run", "--algorithm", "fedtrip", "--xi", "2"], "[0, 1] (above 1 the regulariser is unbounded below)"),
    (["run", "--epoch", "3"], "No such option '--epoch'. Did you mean '--epochs'? (see"),
    (["run", "--runtime", "proceses"], "threads, processes, batched, ray; did you mean 'processes'?"),
    (["run", "--algorithm", "fedadm", "--budget", "1,x"], "--budget 1,x: it must be a list of numbers"),
    (["run", "--algorithm", "fedmrur", "--train.momentum", "0.9"], "FedMRUR does not take local momentum"),
    (["run", "--algorithm", "feddyn", "--algorithm.alpha", "0"], "must be a number > 0"),
    (["run", "--algorithm", "fedavg", "--mu", "1"], "--mu is not a setting of fedavg"),
    (["run", "--algorithm", "feddyn", "--alpha", "0.1"], "write --algorithm.alpha or --partition.alpha"),
    (["run", "--rounds", "many"], "--rounds many: it must be a whole number >= 1"),
    (["run", "--participate", "9", "--clients", "5"], "participate = 9 is more than the 5 clients"),
    (["run", "--clients", "5000"], "fewer than 5000 clients"),
    (["run", "--nesterov"], "nesterov"),
    (["run", "absent.toml"], "there is no file absent.toml"),
    (["run", "--workers", "0", "--runtime", "processes"], "workers"),
    (["run", "--device", "cuda"], "device = 'cuda' cannot be used here"),
    (["compare", "--seeds", "5..1"], "5 comes after 1"),
    (["compare", "--algorithms", "fedavg,fedx"], "unknown algorithm 'fedx'"),
    (["compare", "--algorithms", "fedtrip:frist=init"], "did you mean 'first'?"),
    (["compare", "--algorithms", "fedadm:budget=10,20"], "written in brackets, such as budget=[10,20]"),
    (["compare", "--algorithms", "slowmo:train.momentm=0"], "did you mean 'train.momentum'?"),
    (["compare", "--target", "90"], "target = 90: it must be a share in (0, 1], for example 0.9 for 90 %"),
    (["advise", "--algorithms", "fedprox:mu=1"], "at their default settings"),
    (["resume", "nothing"], "there is no ledger at runs/ledger.sqlite"),
    (["show", "nothing"], "there is no ledger"),
    (["nonsense"], "nonsense"),
    (["partition", "--partition", "classes", "--classes-per-client", "11"], "11"),
    (["run", "--data", "csv", "--label", "y"], "path"),
]


@pytest.mark.parametrize(
    ("args", "expected"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_input_gets_one_sentence(capsys: pytest.CaptureFixture[str], args: list[str], expected: str) -> None:
    assert expected in sentence(capsys, *args)


TOMLS = {
    "clients = 'five'": "clients = 'five': it must be a whole number >= 1",
    "algoritm = 'fedavg'": "unknown key 'algoritm': did you mean 'algorithm'?",
    "[train]\nlr = -1": "lr = -1: it must be a number > 0",
    "[algorithm]\nname = 'fedtrip'\nmue = 1": "did you mean 'mu'?",
    "rounds = ": "is not valid TOML",
    "train = 3": "[train] must be a table",
    "algorithm = ['fedavg', 'fedprox']": "`algorithms` lists those of a comparison",
    "[algorithm]\nname = 'fedavg'\ntrain = 3": "train must be a table",
}


@pytest.mark.parametrize("text", TOMLS)
def test_a_wrong_toml_is_named_with_file_and_key(folder: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (folder / "wrong.toml").write_text(text)
    found = sentence(capsys, "run", "wrong.toml")
    assert "wrong.toml" in found
    assert TOMLS[text] in found


def test_bad_csv_files_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "d.csv"
    for content, expected in (
        ("label,a\n1,2\n0,\n1,3\n", "row 3"),
        ("labl,a\n1,2\n0,1\n", "did you mean 'labl'?"),
        ("", "empty"),
    ):
        file.write_text(content)
        found = sentence(capsys, "run", "--data", "csv", "--path", "d.csv", "--label", "label", "--clients", "2")
        assert "d.csv" in found
        assert expected in found


def test_ctrl_c_stops_cleanly_and_resume_goes_on(folder: Path) -> None:
    command = ["run", "--algorithm", "scaffold", *SMALL, "--rounds", "60", "--name"]
    assert undrift(*command, "whole").returncode == 0
    # The child tells of every round through a pipe, so that the signal comes in the middle of the run.
    script = (
        "import sys, undrift.cli.runs as runs\n"
        "from contextlib import contextmanager\n"
        "from undrift.studies.jobs import Observer\n"
        "@contextmanager\n"
        "def telling(quiet):\n"
        "    yield Observer(watch=lambda where: print(where.round, flush=True))\n"
        "runs.watching = telling\n"
        "from undrift.cli import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *command, "r"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "5":
                os.kill(process.pid, signal.SIGINT)
                break
        _, err = process.communicate()
    assert process.returncode == 130
    assert "undrift resume r" in err
    assert "Traceback" not in err
    with Ledger("runs/ledger.sqlite") as ledger:
        stopped = ledger.run("r")
        assert stopped.status == "stopped"
        assert 4 <= stopped.rounds < 60
    assert undrift("resume", "r").returncode == 0
    with Ledger("runs/ledger.sqlite") as ledger:
        mine, whole = (ledger.snapshot(ledger.run(name)) for name in ("r", "whole"))
        assert mine is not None
        assert whole is not None
        assert mine.round == whole.round == 60
        for part, other in ((mine.server, whole.server), (mine.buffers, whole.buffers)):
            assert part.keys() == other.keys()
            assert all(torch.equal(tensor, other[name]) for name, tensor in part.items())
        assert ledger.metrics(ledger.run("r")) == ledger.metrics(ledger.run("whole"))
    again = undrift("resume", "r")
    assert again.returncode == 2
    assert "is finished after 60 rounds" in again.stderr


def test_help_teaches_and_completion_knows_the_settings() -> None:
    shown = undrift("run", "--algorithm", "fedtrip", "--help").stdout
    assert "--mu" in shown
    assert "triplet" in shown
    assert "--temperature" not in shown  # MOON's
    # A real command, because the flags are made from its words: here a switch of FedMRUR's and a number share a name.
    twice = undrift("run", "--algorithm", "fedmrur", "--momentum", "0.9").stderr
    assert "write --algorithm.momentum or --train.momentum" in twice
    assert "one [prox]" in " ".join(shown.replace("│", " ").split())  # the default, not taken for markup
    words = {"COMP_WORDS": "undrift run --algorithm fedtrip --m", "COMP_CWORD": "4"}
    completed = subprocess.run(
        [Path(sys.executable).with_name("undrift")],
        env={**os.environ, **words, "_UNDRIFT_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
    )
    assert "--mu" in completed.stdout.split()


def test_a_run_that_diverged_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["run", *SMALL, "--lr", "1e6", "--name", "wild"]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "FedAvg diverged from round 1 on" in said
    assert "the likely setting: lr = 1000000.0" in said
    assert cli.run(["compare", "-a", "fedavg,fedprox:train.lr=1e6", "--seeds", "1", *SMALL]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "FedProx [lr=1e+06] diverged" in said
    assert "FedProx [lr=1e+06] reached" not in said


def test_a_sweep_says_what_diverged_and_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--seeds", "1", "--rounds", "3", "--workers", "1", "--quiet"]
    assert cli.run(["sweep", "--over", "lr=0.1,1e6", "--clients", "6", *small, "--json"]) == 0  # one of them learnt
    assert [row["diverged"] for row in json.loads(capsys.readouterr().out)] == [False, True]
    assert cli.run(["sweep", "--over", "lr=1e5,1e6", "--clients", "6", *small, "--name", "wild"]) == 3
    assert " diverged " in capsys.readouterr().out
    assert cli.run(["sweep", "--over", "clients=6,1000000", *small, "--name", "many"]) == 3
    failed = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "1 of the runs failed" in failed
    assert "fewer than 1000000 clients" in failed


def test_a_bug_is_told_with_how_to_report_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr("undrift.cli.lists.catalogue", broken)
    assert cli.run(["models"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "Traceback" in said
    assert "ZeroDivisionError: nobody thought of this" in said
    assert "this is a bug. Please report it to the authors with the lines above, the command" in said
    assert f"undrift {undrift_version()}" in said
    assert "torch" in said


def test_the_version_is_told() -> None:
    done = undrift("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"undrift {undrift_version()}, Python 3")
    assert undrift_version() == __version__


def test_without_its_packages_the_command_line_says_what_to_install() -> None:
    script = "import sys; sys.modules['typer'] = None; from undrift.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "undrift: the command line needs typer: pip install 'undrift[cli]'\n"


def test_ctrl_c_while_it_is_being_imported_shows_no_traceback() -> None:
    script = (
        "import sys, builtins; real = builtins.__import__\n"
        "def interrupted(name, *rest, **more):\n"
        "    if name == 'typer': raise KeyboardInterrupt\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = interrupted\n"
        "from undrift.__main__ import main; main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
