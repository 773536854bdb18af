"""The page, the exports, the pictures and the files they are written to."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ledgers import add_run, histories
from undrift import cli
from undrift.analysis.curves import smoothed
from undrift.analysis.selection import selected
from undrift.core.errors import InvalidInput
from undrift.core.files import written
from undrift.data import PARTITIONERS
from undrift.experiment.description import Experiment
from undrift.ledger.store import Ledger
from undrift.report import plots
from undrift.report.content import command, content
from undrift.report.export import export
from undrift.report.page import write_report

EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(2)>"&'


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        yield ledger


@pytest.fixture
def two(book: Ledger) -> Ledger:
    for seed in (1, 2, 3):
        add_run(book, "fedavg", seed, [0.2, 0.5, 0.7, 0.8], clients={0: 0.5, 1: 0.9, 2: 1.0})
        add_run(book, "fedtrip", seed, [0.3, 0.8, 0.85, 0.9], notes={"xi": 0.4}, clients={0: 0.8, 1: 0.9, 2: 1.0})
    return book


class Elements(HTMLParser):
    """The tags of a page, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self._inside = True
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data


def test_report_is_one_file_that_needs_no_other(two: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "report.html"
    write_report(two, two.runs(), path)
    text = path.read_text(encoding="utf-8")
    page = Elements(text)
    assert "link" not in page.tags or 'href="data:,"' in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    assert len(page.scripts) == 3
    data = json.loads(page.scripts[0][1])
    assert data["verdict"]["targets"][data["verdict"]["chosen"]]["headline"].startswith("FedTrip reached")
    assert [run["name"] for run in data["runs"]] == [run.name for run in two.runs()]


def test_names_cannot_become_markup_or_script(book: Ledger, tmp_path: Path) -> None:
    add_run(book, "fedavg", 1, [0.2, 0.5], label=EVIL, name=EVIL, data=EVIL, message=EVIL, status="failed", rejected=1)
    path = tmp_path / "report.html"
    write_report(book, book.runs(), path)
    page = Elements(path.read_text(encoding="utf-8"))
    assert len(page.scripts) == 3
    assert "img" not in page.tags
    assert json.loads(page.scripts[0][1])["runs"][0]["name"] == EVIL


def test_only_the_scripts_of_the_page_are_allowed(two: Ledger, tmp_path: Path) -> None:
    import base64
    import hashlib

    path = tmp_path / "report.html"
    write_report(two, two.runs(), path)
    text = path.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    for attributes, script in Elements(text).scripts:
        if attributes.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy[1]
    assert "unsafe-inline" not in policy[1].split("script-src")[1].split(";")[0]


def test_content_at_every_target_is_what_compare_says(two: Ledger) -> None:
    from undrift.analysis.comparison import comparison
    from undrift.report.sentences import headline_of

    verdict = content(two, two.runs())["verdict"]
    for at in verdict["targets"][::7]:
        found = comparison(histories(two), at["target"])
        assert at["headline"] == headline_of(found).claim
        for shown, row in zip(at["costs"], found.rows, strict=True):
            assert list(shown) == list(row.costs)
            for column, cost in row.costs.items():
                ratio = None if cost.ratio is None else pytest.approx(cost.ratio.value, rel=1e-5)
                assert shown[column]["value"] == cost.value
                assert shown[column]["own"] == cost.per_seed_mean
                assert shown[column]["ratio"] == ratio


def test_gaps_and_unfinished_runs_are_shown_as_such(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.2, None, 0.5])
    add_run(book, "fedavg", 2, [0.2], status="stopped", message="interrupted", planned=3)
    found = content(book, book.runs())
    (place,) = [i for i, figure in enumerate(found["figures"]) if figure["metric"] == "accuracy"]
    assert found["runs"][0]["values"][place] == [0.2, None, 0.5]
    assert found["runs"][1]["status"] == "stopped"
    assert found["groups"][0]["partial"] == [1]


def test_a_run_without_rounds_has_a_page_and_an_empty_ledger_a_sentence(book: Ledger, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no runs"):
        write_report(book, book.runs(), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    add_run(book, "fedavg", 1, [], planned=4, status="running")
    found = content(book, book.runs())
    assert found["verdict"] is None
    assert found["runs"][0]["status"] == "unfinished"  # nobody is at work on it


def test_an_existing_file_is_refused_and_left_alone(two: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("mine")
    with pytest.raises(InvalidInput, match=r"exists already.*\(force\)"):
        write_report(two, two.runs(), path)
    assert path.read_text() == "mine"
    write_report(two, two.runs(), path, force=True)
    assert path.read_text() != "mine"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def fail() -> None:
        with written(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_the_command_of_a_run_describes_the_same_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "algorithm": {"name": "fedtrip", "mu": 1.5, "first": "init"},
        "data": "digits",
        "model": "mlp",
        "partition": {"name": "dirichlet", "alpha": 0.1},
        "train": {"lr": 0.02, "nesterov": True, "momentum": 0.9},
        "clients": 12,
        "participate": 3,
        "seed": 7,
        "target": 0.8,
    }
    experiment = Experiment.build(values)
    line = shlex.split(command(experiment.values()))
    assert line[:2] == ["undrift", "run"]
    assert cli.run([*line[1:], "--toml"]) == 0
    assert Experiment.build(tomllib.loads(capsys.readouterr().out)) == experiment


def test_export_to_csv_json_and_parquet_agree(two: Ledger, tmp_path: Path) -> None:
    runs = histories(two)
    for kind in ("csv", "json", "parquet"):
        assert export(runs, tmp_path / f"runs.{kind}") == 24
    lines = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text(encoding="utf-8"))))
    whole = json.loads((tmp_path / "runs.json").read_text(encoding="utf-8"))
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    name = "accuracy of the global model on test"
    wanted = [row[name] for run in whole for row in run["rounds"]]
    assert [float(line[name]) for line in lines] == wanted
    assert [row[name] for row in table] == wanted
    assert [line["note xi"] for line in lines[:4]] == [""] * 4  # FedAvg has no xi
    assert table[0]["note xi"] is None
    with pytest.raises(InvalidInput, match=r"\.csv, \.parquet, \.json"):
        export(runs, tmp_path / "runs.xlsx")


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def test_json_is_json_where_there_is_no_number(
    book: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(book, "fedavg", 1, [None, None], notes={"xi": math.nan})
    export(histories(book), tmp_path / "runs.json")
    (run,) = json.loads((tmp_path / "runs.json").read_text(), parse_constant=no_constant)
    assert run["rounds"][0]["note xi"] is None
    for line in (["show"], ["show", "fedavg"]):
        assert cli.run([*line, "--json", "--ledger", str(book.path)]) == 0
        found = json.loads(capsys.readouterr().out, parse_constant=no_constant)
        assert (found[0] if line == ["show"] else found)["final"] is None


@pytest.fixture
def studies(book: Ledger) -> Ledger:
    """A comparison that was made twice, then runs of their own."""
    for mark in ("", "-2"):
        for method in ("fedavg", "fedtrip"):
            for seed in (1, 2):
                add_run(book, method, seed, [0.2, 0.5], name=f"first/{method}/seed{seed}{mark}")
    add_run(book, "fedavg", 1, [0.5], name="alone")
    return book


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], ["alone"]),
        (["alone"], ["alone"]),
        (["1"], ["first/fedavg/seed1"]),
        (["first"], [f"first/{m}/seed{s}-2" for m in ("fedavg", "fedtrip") for s in (1, 2)]),
        (["first/fedtrip"], ["first/fedtrip/seed1-2", "first/fedtrip/seed2-2"]),
        (["first/*/seed1"], ["first/fedavg/seed1", "first/fedtrip/seed1"]),
        (["first/fedavg/seed1"], ["first/fedavg/seed1"]),
        (["al", "alone", "9"], ["alone"]),
    ],
)
def test_runs_are_chosen_by_comparison_beginning_or_pattern(
    studies: Ledger, tmp_path: Path, names: list[str], found: list[str]
) -> None:
    assert [run.name for run in selected(studies, names)] == found
    assert cli.run(["export", *names, "-o", str(tmp_path / "runs.json"), "--ledger", str(studies.path)]) == 0
    assert [run["run"] for run in json.loads((tmp_path / "runs.json").read_text())] == found
    assert cli.run(["report", *names, "-o", str(tmp_path / "r.html"), "--ledger", str(studies.path)]) == 0
    assert cli.run(["plot", "curves", *names, "-o", str(tmp_path / "c.png"), "--ledger", str(studies.path)]) == 0


def test_without_a_name_the_latest_comparison(studies: Ledger) -> None:
    for method in ("fedavg", "fedtrip"):
        add_run(studies, method, 1, [0.2], name=f"second/{method}/seed1")
    assert [run.name for run in selected(studies)] == ["second/fedavg/seed1", "second/fedtrip/seed1"]
    with pytest.raises(InvalidInput, match="matches"):
        selected(studies, ["third*"])


def test_a_name_does_not_become_a_formula(book: Ledger, tmp_path: Path) -> None:
    add_run(book, "fedavg", 1, [0.5], name='=HYPERLINK("http://x")')
    export(histories(book), tmp_path / "runs.csv")
    (line,) = csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text(encoding="utf-8")))
    assert line["run"].startswith("'=")


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_pictures_in_every_format(two: Ledger, tmp_path: Path, kind: str) -> None:
    runs = histories(two)
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind]
    drawings = {
        "curves": lambda path: plots.curves(runs, path, axis="bytes", smooth=0.5, target=0.7),
        "bars": lambda path: plots.bars(runs, path, target=0.85),
        "box": lambda path: plots.box(runs, path),
        "partition": lambda path: plots.partition(runs, path, style="bars"),
    }
    for name, draw in drawings.items():
        path = tmp_path / f"{name}.{kind}"
        draw(path)
        assert path.read_bytes().startswith(begins)


def test_a_legend_of_long_labels_stays_inside_the_picture(tmp_path: Path) -> None:
    short = [f"Method {i}" for i in range(6)]
    long = [
        f"A method with many settings (first_setting=0.00{i}, second_setting=1, third_setting=auto) " * 2
        for i in range(6)
    ]
    for labels in (short, long, ["one"]):
        columns, rows = plots.legend_shape(labels)
        with plots.drawing(tmp_path / "legend.png", plots.WIDTH, 3.2 + plots.LINE * rows, True) as (figure, _):
            axes = figure.subplots()
            for label in labels:
                axes.plot([1, 2], [1, 2], label=plots.folded(label))
            legend = figure.legend(loc="outside lower center", ncols=columns, frameon=False)
            figure.draw_without_rendering()
            box, whole = legend.get_window_extent(), figure.bbox
            assert whole.x0 <= box.x0 <= box.x1 <= whole.x1
            assert whole.y0 <= box.y0 <= box.y1 <= whole.y1
            assert axes.get_window_extent().height > 0.5 * 3.2 * figure.dpi
    assert plots.legend_shape(short) == (3, 2)


def test_clients_and_classes_are_named_where_the_data_name_them(book: Ledger, tmp_path: Path) -> None:
    run = add_run(book, "fedavg", 1, [0.2, 0.5], clients={0: 0.9, 1: 0.4, 2: 0.6})
    names = {"client_names": ["Ulm", "Trier", "Jena"], "class_names": ["sick", "well"]}
    book.set_status(run, "finished", facts=names)
    found = content(book, book.runs())
    (held,) = found["partitions"].values()
    assert held["shown"] == names["client_names"]
    assert held["classes"] == names["class_names"]
    assert found["fairness"][0]["lowest"] == [["Trier", 0.4], ["Jena", 0.6], ["Ulm", 0.9]]
    for style in ("bubbles", "bars"):
        plots.partition(histories(book), tmp_path / f"{style}.svg", style=style)
        text = (tmp_path / f"{style}.svg").read_text()
        assert all(name in text for name in (*names["client_names"], *names["class_names"]))


def test_bars_say_what_was_not_reached(two: Ledger, tmp_path: Path) -> None:
    plots.bars(histories(two), tmp_path / "bars.svg", target=0.85)
    text = (tmp_path / "bars.svg").read_text()
    assert "not reached in 4" in text
    assert "$" not in text


def test_a_partition_of_many_clients_can_be_drawn(tmp_path: Path) -> None:
    labels = np.arange(3000) % 7
    parts = PARTITIONERS["dirichlet"].create(alpha=0.5).split(labels, 300, 1)
    for style in ("bubbles", "bars"):
        plots.partition_picture(parts, labels, 7, tmp_path / f"{style}.svg", style)
        assert "100 of 300" in (tmp_path / f"{style}.svg").read_text()
    with pytest.raises(InvalidInput, match="bubbles, bars"):
        plots.partition_picture(parts, labels, 7, tmp_path / "x.png", "pie")


def test_smoothing_changes_nothing_at_factor_0_and_keeps_gaps() -> None:
    values = np.array([0.0, 1.0, np.nan, 1.0])
    np.testing.assert_array_equal(smoothed(values, 0.0), values)
    # After the gap: (0.25 * 0 + 0.5 * 1 + 1 * 1) / (0.25 + 0.5 + 1) with factor 0.5, newest weight 1.
    np.testing.assert_allclose(smoothed(values, 0.5), [0, 1 / 1.5, np.nan, 1.5 / 1.75])


def test_features_of_the_global_and_a_clients_model(tmp_path: Path) -> None:
    from undrift.experiment.start import start_experiment
    from undrift.report.features import features, tsne

    experiment = Experiment.build({"clients": 5, "rounds": 2, "runtime": "serial"})
    with Ledger(tmp_path / "ledger.sqlite", create=True) as book:
        run = start_experiment(experiment, book).run
        assert run is not None
        found = features(book, run, client=3, samples=60)
        assert found.of_global.shape == found.of_client.shape
        assert len(found.labels) == 60
        assert not np.allclose(found.of_global, found.of_client)
        tsne(found, tmp_path / "tsne.png")
        assert (tmp_path / "tsne.png").stat().st_size > 0
        with pytest.raises(InvalidInput, match="clients 0 to 4"):
            features(book, run, client=5)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("report nothing", "unknown run"),
        ("report -o .", "is a folder"),
        ("plot pie", "unknown kind of plot 'pie'"),
        ("plot box -o x.gif", ".png, .pdf, .svg"),
        ("plot curves --axis miles", "one of rounds, bytes, macs, seconds"),
        ("plot curves --smooth 1", "[0, 1)"),
        ("plot bars --target 90", "share in (0, 1]"),
        ("plot partition --style pie", "bubbles, bars"),
        ("export -o x.xls", ".csv, .parquet, .json"),
        ("report -o taken.html", "(force)"),
        ("watch --host 0.0.0.0 --port 0", "give a token"),
        ("watch --host 0.0.0.0 --port 0 --token short", "at least 12"),
        ("sweep", "at least one setting to vary"),
        ("sweep --over lr", "written KEY="),
        ("sweep --over lrr=1", "did you mean 'lr'"),
        ("sweep --over lr=much", "lr must be a number"),
        ("sweep --over lr=0.1..1", "a grid needs listed values"),
        ("sweep --over lr=1,2 --search grd", "did you mean 'grid'"),
        ("sweep --over lr=0.1..1 --search random", "needs the number of trials per method"),
        ("advise --budget money=3", "rounds=200"),
        ("advise --budget rounds=0", "rounds=200"),
        ("advise --seeds 1", "at least two seeds"),
        ("advise --pilot 2", "share of the budget"),
        ("advise -a nothing", "unknown algorithm"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    two: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDRIFT_LEDGER", str(two.path))
    (tmp_path / "taken.html").write_text("mine")
    assert cli.run(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert sentence in err
