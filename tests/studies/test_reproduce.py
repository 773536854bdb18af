"""The papers' tables: that printed numbers say where they stand and agree with each other, and what is made of runs."""

from __future__ import annotations

import gc
import math
import os
import re
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from undrift.algorithms import algorithms
from undrift.cli import run as undrift
from undrift.core.errors import InvalidInput
from undrift.experiment.description import Experiment
from undrift.ledger.store import Ledger
from undrift.models import build
from undrift.papers import MEASURES, Table, over, papers, table
from undrift.papers.counted import gigaflops
from undrift.papers.records import HEAD, Trial, _parsed, recorded, text
from undrift.report import reproduced as said
from undrift.report.reproduced_page import page
from undrift.studies.expected import SIZES, seconds
from undrift.studies.jobs import Observer, Place
from undrift.studies.reproduce import cell, from_records, put_together, quickly, reproduce

TABLES = {t.reference: t for paper in papers().values() for t in paper.tables.values()}
PRINTED = {name: t for name, t in TABLES.items() if t.printed and not t.asks}


# --- what is printed --------------------------------------------------------------------------------------------------


def test_every_printed_number_says_where_it_stands() -> None:
    places = [
        t.where(method, t.column(column))
        for t in PRINTED.values()
        for method, row in t.printed.items()
        for column, value in row.items()
        if not math.isnan(value)
    ]
    assert len(places) > 500
    assert len(set(places)) == len(places)
    assert table("fedtrip/table4").where("MOON", table("fedtrip/table4").column("cnn-mnist")) == (
        "fedtrip, Table IV, row MOON, column CNN, MNIST 90 %"
    )


@pytest.mark.parametrize("name", TABLES)
def test_a_table_can_be_run(name: str) -> None:
    found = TABLES[name]
    assert found.source
    assert found.measure in MEASURES
    assert set(found.printed) <= set(found.methods)
    assert set(found.data) <= set(SIZES)
    for column in (*found.columns, *quickly(found).columns):
        for method in found.methods:
            Experiment.build(found.experiment(method, column, seed=1), name)
        assert (column.target is not None) == (found.measure in ("rounds", "gflops")) or found.measure == "best"


def test_ratios_follow_from_the_rounds_but_for_the_cells_that_are_marked() -> None:
    wrong = {
        (name, method, column)
        for name, t in PRINTED.items()
        for method, row in t.ratios.items()
        for column, ratio in row.items()
        if ratio and abs(t.printed[method][column] / t.printed["FedTrip"][column] - ratio) > 0.01  # rounded or cut
    }
    assert wrong == {("fedtrip/table4", "FedDyn", "cnn-mnist"), ("fedtrip/table4", "MOON", "alexnet-cifar")}
    assert {(m, c) for _, m, c in wrong} == table("fedtrip/table4").contradicted


def test_speedups_follow_from_the_rounds() -> None:
    """McMahan et al. print beside every number of rounds how many times fewer they are than those of the first row."""
    count = 0
    for t in (t for t in PRINTED.values() if t.speedups):
        first = t.printed[next(iter(t.methods))]
        for method, row in t.speedups.items():
            for column, speedup in row.items():
                assert math.isnan(speedup) == math.isinf(t.printed[method][column])
                if not math.isnan(speedup):
                    count += 1
                    assert first[column] / t.printed[method][column] == pytest.approx(speedup, abs=0.0501)
    assert count == 16 + 16 + 27


def test_mcmahans_models_have_the_sizes_that_are_printed() -> None:
    for model, size in (({"name": "mcmahan-cnn"}, 1_663_370), ({"name": "mlp", "hidden": 200, "layers": 2}, 199_210)):
        module = build(model.pop("name"), (1, 28, 28), 10, **model)
        assert sum(p.numel() for p in module.parameters()) == size


def test_fedtrips_savings() -> None:
    """44.02 % against FedAvg hold. Where 39.58 % against the best baseline are printed, it is 33.77 % (errata T12)."""
    rounds, flops = table("fedtrip/table4").printed, table("fedtrip/table5").printed
    savings = [1 - rounds["FedTrip"][c] / rounds["FedAvg"][c] for c in rounds["FedTrip"]]
    assert 100 * sum(savings) / 6 == pytest.approx(44.02, abs=0.01)
    least = [1 - flops["FedTrip"][c] / min(flops[m][c] for m in flops if m != "FedTrip") for c in flops["FedTrip"]]
    assert 100 * sum(least) / 6 == pytest.approx(33.77, abs=0.01)


def test_all_36_cells_of_table_v_follow_from_table_iv() -> None:
    rounds, flops = table("fedtrip/table4"), table("fedtrip/table5")
    for column in flops.columns:
        for method in flops.methods:
            cost = rounds.printed[method][column.name] * gigaflops(flops.experiment(method, column, seed=1))
            assert cost == pytest.approx(flops.printed[method][column.name], rel=5e-4), (method, column.name)


def test_who_reaches_a_target_has_at_least_that_accuracy_somewhere() -> None:
    """FedTR prints best accuracies: rounds to more than the best are a contradiction, and all of them are marked."""
    found = set()
    for best, rounds in (("table1", "table2b"), ("table2", "table2c")):
        accuracies, reached = table(f"fedtr/{best}").printed, table(f"fedtr/{rounds}")
        for method, row in reached.printed.items():
            for column in reached.columns:
                if math.isfinite(row[column.name]) and accuracies[method][column.name] < 100 * (column.target or 0):
                    found.add((best, method, column.name))
    marked = {(t.name, m, c) for t in (table("fedtr/table1"), table("fedtr/table2")) for m, c in t.contradicted}
    assert found == marked == {("table2", "FedAvg", "organa")}


def test_fedmrurs_tables_agree_with_each_other_but_for_what_is_marked() -> None:
    final, ablation = table("fedmrur/table2").printed, table("fedmrur/table4").printed
    assert all(ablation[m]["c100-dir03"] == final[m]["c100-dir03"] for m in ("MoFedSAM", "FedMRUR"))
    rounds = table("fedmrur/table3")
    late = {(m, c) for m, row in rounds.printed.items() for c, r in row.items() if math.isfinite(r) and r > 1600}
    assert late == rounds.contradicted
    below = {
        (method, column.name.rsplit("-", 1)[0])
        for method, row in rounds.printed.items()
        for column in rounds.columns
        if math.isfinite(row[column.name]) and final[method][column.name.rsplit("-", 1)[0]] < 100 * (column.target or 0)
    }
    assert below >= table("fedmrur/table2").contradicted


# --- what is measured -------------------------------------------------------------------------------------------------


def trials(*curves: tuple[float, ...]) -> tuple[Trial, ...]:
    return tuple(Trial(seed, tuple(range(1, len(c) + 1)), c) for seed, c in enumerate(curves, 1))


def one_cell(printed: float | None, measure: str = "rounds", **changes: object) -> Table:
    base = table("fedtrip/table4")
    rows = {} if printed is None else {"FedTrip": {"mlp-mnist": printed}}
    return replace(base, measure=measure, printed=rows, contradicted=frozenset(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("printed", "verdict"), [(2.0, "agrees"), (3.0, "agrees"), (9.0, "differs"), (math.inf, "differs"), (None, "")]
)
def test_rounds_are_those_of_the_mean_curve(printed: float | None, verdict: str) -> None:
    asked = one_cell(printed)
    runs = trials((0.5, 0.88, 0.9), (0.6, 0.86, 0.9), (0.6, 0.88, 0.9), (0.9, 0.84, 0.9))
    found = cell(asked, "FedTrip", asked.column("mlp-mnist"), runs)
    assert found.values == (2, 3, 2, 1)
    assert found.measured == 3  # (0.88 + 0.86 + 0.88 + 0.84) / 4 is below 0.87
    assert found.half > 0
    assert found.verdict == ("agrees" if printed == 2.0 else verdict)


def test_a_verdict_needs_seeds_rounds_and_something_comparable() -> None:
    column = table("fedtrip/table4").column("mlp-mnist")
    reached, never = (0.5, 0.9), (0.5, 0.6)
    assert cell(one_cell(2.0), "FedTrip", column, ()).verdict == "not run"
    assert cell(one_cell(2.0), "FedTrip", column, trials(reached)).verdict == "one seed"
    assert cell(one_cell(math.inf), "FedTrip", column, trials(never, never)).verdict == "agrees"
    assert cell(one_cell(2.0), "FedTrip", column, trials(never, never)).verdict == "differs"
    assert math.isnan(cell(one_cell(2.0), "FedTrip", column, trials(never, never)).half)
    assert (
        cell(one_cell(2.0, incomparable={"FedTrip": "why"}), "FedTrip", column, trials(reached)).verdict
        == "not comparable"
    )
    marked = replace(one_cell(2.0), contradicted=frozenset({("FedTrip", "mlp-mnist")}))
    assert cell(marked, "FedTrip", column, trials(reached, reached)).verdict == "table contradicts itself"


def test_what_a_number_is_made_of() -> None:
    column, runs = table("fedtrip/table4").column("mlp-mnist"), trials(tuple(i / 100 for i in (*range(1, 20), 5)))
    assert cell(one_cell(None, "best"), "FedTrip", column, runs).measured == pytest.approx(19)
    assert cell(one_cell(None, "accuracy"), "FedTrip", column, runs).measured == pytest.approx(5)
    assert cell(one_cell(None, "accuracy"), "FedTrip", replace(column, at=7), runs).measured == pytest.approx(7)
    assert cell(one_cell(None, "last ten"), "FedTrip", column, runs).measured == pytest.approx(
        (sum(range(11, 20)) + 5) / 10
    )
    unit = gigaflops(table("fedtrip/table5").experiment("FedTrip", column, seed=1))
    fast = trials((0.5, 0.9))
    assert cell(one_cell(None, "gflops"), "FedTrip", column, fast).measured == pytest.approx(2 * unit)


# --- running, recording, showing --------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Table:
    """FedTrip's Table IV on digits: two methods, two columns, two rounds."""
    base = table("fedtrip/table4")
    change = {
        "data": {"name": "digits"},
        "partition": {"name": "iid"},
        "rounds": 2,
        "clients": 3,
        "participate": 2,
    }
    columns = []
    for column in base.columns[:2]:
        values = over(column.experiment, change) | {"model": {"name": "mlp"}}
        columns.append(replace(column, experiment=values, target=0.2))
    columns[1] = replace(columns[1], experiment=over(columns[1].experiment, {"train": {"lr": 0.005}}))
    methods = {name: base.methods[name] for name in ("FedTrip", "FedAvg")}
    return replace(base, columns=tuple(columns), methods=methods)


def test_a_table_is_run_once_and_goes_on_where_it_stopped(small: Table, tmp_path: Path) -> None:
    book, told = tmp_path / "ledger.sqlite", []
    first = reproduce(small, Place(book), seeds=[1], columns=["mlp-mnist"], workers=1, observer=Observer(told.append))
    assert len(told) == 2
    assert {c.verdict for c in first.cells.values()} <= {"one seed", "differs"}
    with Ledger(book) as ledger:
        before = {run.name: run.created for run in ledger.runs()}
    whole = reproduce(small, Place(book), seeds=[1, 2], workers=1)
    with Ledger(book) as ledger:
        after = {run.name: run.created for run in ledger.runs()}
    assert len(after) == 8
    assert before.items() <= after.items()  # the first two were left alone
    assert whole.seeds == (1, 2)
    assert all(len(runs) == 2 for runs in whole.trials.values())
    assert whole.trials["FedAvg", "mlp-mnist"][0] == first.trials["FedAvg", "mlp-mnist"][0]
    assert not whole.failed


def test_several_workers_give_the_same_and_leave_no_pipe_open(small: Table, tmp_path: Path) -> None:
    here, there = (
        reproduce(small, Place(tmp_path / f"{workers}.sqlite"), seeds=[1], workers=workers) for workers in (1, 2)
    )
    assert here.trials == there.trials
    gc.collect()  # an open pipe would be complained of here


def test_a_run_that_fails_is_said_and_the_others_are_shown(small: Table, tmp_path: Path) -> None:
    bad = replace(small.columns[1], experiment=small.columns[1].experiment | {"model": {"name": "lenet-har"}})
    found = reproduce(
        replace(small, columns=(small.columns[0], bad)), Place(tmp_path / "l.sqlite"), seeds=[1], workers=1
    )
    assert len(found.failed) == 2
    assert "lenet-har" in found.failed[0].error
    assert found.cell("FedAvg", bad).verdict == "not run"
    assert found.cell("FedAvg", small.columns[0]).values


def test_a_run_that_two_columns_are_read_from_is_recorded_once() -> None:
    """FedTrip's Table VII reads a run in round 10 and in round 20."""
    seven = table("fedtrip/table7")
    run = Trial(1, (10, 20), (0.5, 0.75))
    trials = {(method, column.name): (run,) for method in seven.methods for column in seven.columns}
    assert len(text(seven, trials).splitlines()) == 2 * len(seven.methods)
    for found in map(recorded, TABLES.values()):
        for runs in found.values():
            assert len({trial.seed for trial in runs}) == len(runs)


def test_the_har_table_reads_the_features_that_its_model_takes() -> None:
    columns = [column for t in TABLES.values() for column in t.columns if column.experiment["data"]["name"] == "ucihar"]
    assert columns
    assert all(column.experiment["data"]["form"] == "features" for column in columns)


def test_tables_that_share_experiments_share_runs() -> None:
    four, five = table("fedtrip/table4"), table("fedtrip/table5")
    assert all(four.key(m, c) == five.key(m, c) for m in four.methods for c in four.columns)
    plain = table("fedtrip/table4-plain")
    same = {m for m in plain.methods if plain.key(m, plain.columns[0]) == four.key(m, four.columns[0])}
    assert same == {"FedTrip", "SlowMo", "FedDyn"}


def test_records_come_back_as_they_were_written(small: Table) -> None:
    runs = {("FedAvg", "mlp-mnist"): trials((0.5, 0.25), (0.125, 0.75))}
    found = _parsed((HEAD + text(small, runs)).splitlines())
    assert found == {(small.key("FedAvg", small.columns[0]), "accuracy of global on test"): runs["FedAvg", "mlp-mnist"]}


def test_recorded_results_are_of_tables_that_exist() -> None:
    """A change of a paper's file that would orphan a record must move the record too."""
    for paper in papers().values():
        keys = {t.key(m, c) for t in paper.tables.values() for c in t.columns for m in t.methods}
        for t in paper.tables.values():
            assert {t.key(m, t.column(c)) for m, c in recorded(t)} <= keys
    found = from_records(table("fedtrip/table4"))
    assert [column.name for column in found.columns] == ["mlp-mnist", "mlp-fmnist", "cnn-mnist", "cnn-fmnist"]
    assert {len(cell.values) for cell in found.cells.values()} == {10}


def test_the_layout_is_that_of_the_paper(small: Table) -> None:
    runs = {(m, c.name): trials((0.5, 0.88), (0.5, 0.9)) for m in small.methods for c in small.columns}
    found = put_together(small, small.columns, runs)
    titles, rows = said.grid(found)
    assert titles == ["MLP, MNIST 87 %", "MLP, FMNIST 75 %"]
    assert rows[1] == ("FedAvg", [["49", "→ 1 ± 0", "differs"], ["19", "→ 1 ± 0", "differs"]])
    turned, lines = said.grid(put_together(replace(small, transposed=True), small.columns, runs))
    assert turned == ["FedTrip", "FedAvg"]
    assert [name for name, _ in lines] == titles
    assert said.tally(found) == "Of 4 printed numbers: 4 differ."
    written = page(found)
    assert written.count("<svg") == 2  # bars and curves
    assert "<script" not in written
    assert "differs" in written


def test_time_is_expected_in_proportion(small: Table) -> None:
    few = seconds(replace(table("fedtrip/table4"), columns=table("fedtrip/table4").columns[:1]), 1, 1)
    assert few > 0
    assert seconds(replace(table("fedtrip/table4"), columns=table("fedtrip/table4").columns[:1]), 3, 1) == 3 * few


# --- the recorded pages -----------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "papers").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_show_what_is_recorded(page: Path) -> None:
    script = runpy.run_path(str(page.parents[1] / "papers.py"))
    text = page.read_text(encoding="utf-8")
    assert script["filled"](text) == text
    assert "<!-- recorded" in text


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """The first table after a heading of a page: row name -> cells."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    lines = text[text.index(heading) :].split("\n\n|", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return {name: cells for name, *cells in ([c.strip() for c in line.strip("|").split("|")] for line in lines)}


def test_fedtrips_page_counts_rounds_in_every_way_that_it_says() -> None:
    asked = table("fedtrip/table4")
    found = from_records(asked)
    shown = rows("papers/fedtrip", "## Which rounds are counted")
    for name, factor in (("mean curve, exponential average 0.5", 0.5), ("mean curve, exponential average 0.8", 0.8)):
        for place, column in enumerate(found.columns):
            smooth = {}
            for method in ("FedTrip", "FedAvg"):
                curve = np.mean([t.values for t in found.trials[method, column.name]], axis=0)
                for i in range(1, len(curve)):
                    curve[i] = factor * curve[i - 1] + (1 - factor) * curve[i]
                smooth[method] = 1 + int(np.argmax(curve >= column.target))
            assert shown[name][place] == f"{smooth['FedTrip']} / {smooth['FedAvg']}"
    for place, column in enumerate(found.columns):
        trip, avg = found.cell("FedTrip", column), found.cell("FedAvg", column)
        assert shown["mean curve (the table above)"][place] == f"{trip.measured:.0f} / {avg.measured:.0f}"
        own = " / ".join(f"{np.mean(cell.values):.1f}" for cell in (trip, avg))
        assert shown["mean over seeds of their own rounds"][place] == own
        assert shown["printed"][place] == f"{trip.printed:.0f} / {avg.printed:.0f}"


def test_fedtrips_page_shows_the_last_ten_rounds() -> None:
    found = from_records(replace(table("fedtrip/table4"), measure="last ten"))
    shown = rows("papers/fedtrip", "Mean accuracy of the last ten rounds")
    for column in found.columns:
        means = [f"{found.cell(method, column).measured:.2f}" for method in found.table.methods]
        assert shown[column.label.rsplit(" ", 2)[0]] == means


def test_advice_is_what_the_pages_measured() -> None:
    """Every number of the advice stands on a method's page, or follows from the recorded runs."""
    for title, (accuracy, rounds, _) in rows("choose", "## Strong label skew").items():
        name = next(name for name, cls in algorithms().items() if cls.title == title)
        page = (DOCS / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
        found = re.search(rf"^\| {title} \| ([^|]*) \|.*\| ([^|]*) \|$", page[page.index("<!-- result -->") :], re.M)
        assert found is not None
        assert (found[1], found[2]) == (accuracy, rounds)
    measured = from_records(table("fedtrip/table4"))
    for title, cells in rows("choose", "## Mild skew").items():
        method = title.split(" (")[0]
        assert cells == [f"{measured.cell(method, column).measured:.0f}" for column in measured.columns]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_shipped_result_is_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "page.html"
    assert undrift(["reproduce", "fedtrip/table4", "--recorded", "--columns", "mlp-mnist", "-o", str(target)]) == 0
    out = capsys.readouterr().out
    assert "FedTrip" in out
    assert "Of 6 printed numbers" in out
    assert target.read_text().startswith("<!doctype html>")
    assert undrift(["reproduce", "fedtrip/table4", "--recorded", "-o", str(target)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert undrift(["reproduce", "fedtrip/table4", "--recorded", "--markdown", "--columns", "mlp-mnist"]) == 0
    assert capsys.readouterr().out.startswith("|  | MLP, MNIST 87 % |")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["fedtripp"], "did you mean 'fedtrip'"),
        (["fedtrip/tabel4"], "did you mean 'table4'"),
        (["fedtrip/table4", "--columns", "mlp-mnst"], "did you mean 'mlp-mnist'"),
        (["fedtrip/table4", "--methods", "FedTrp"], "did you mean 'FedTrip'"),
        (["fedtrip/table4", "--seeds", "5..1"], "5 comes after 1"),
        (["fedtrip/table4", "-o", "page.txt"], "the page is written as .html"),
        (["fedmrur/table2", "--recorded"], "no result of fedmrur/table2 is shipped"),
    ],
)
def test_bad_input_gets_one_sentence(
    args: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert undrift(["reproduce", *args]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_papers_tables_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert undrift(["reproduce", "fedadm"]) == 0
    out = capsys.readouterr().out
    assert "figure3" in out
    assert "mnist" in out


def test_a_paper_is_no_table() -> None:
    with pytest.raises(InvalidInput, match="fedtrip is a paper"):
        table("fedtrip")


# --- on real data -----------------------------------------------------------------------------------------------------


@pytest.mark.realdata
@pytest.mark.parametrize(
    "name", ["fedtrip/table4", "fedadm/figure5", "pfedmo/table2", "fedtr/table1", "fedmrur/table4"]
)
def test_the_quick_cut_of_every_paper(name: str, tmp_path: Path) -> None:
    if not os.environ.get("UNDRIFT_DATA"):
        pytest.skip("UNDRIFT_DATA is not set")
    found = reproduce(table(name), Place(tmp_path / "ledger.sqlite"), seeds=[1, 2], quick=True)
    assert not found.failed
    assert all(cell.values for cell in found.cells.values())
    assert {cell.verdict for cell in found.cells.values()} <= {"", "not comparable", "table contradicts itself"}
    assert "<svg" in page(found)
