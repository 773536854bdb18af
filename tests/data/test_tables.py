"""Tables of one's own: which columns are features, texts as zeros and ones, gaps, names, and who the clients are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import undrift
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.data import Dataset
from undrift.experiment.description import Experiment
from undrift.ledger.store import Ledger

ROWS = """age,weight,sex,smokes,ward,hospital,ill
50,70,f,no,A,north,yes
61,,m,yes,B,north,no
47,81,f,no,B,north,yes
70,92,m,no,A,north,no
39,60,f,,C,south,yes
52,,m,no,A,south,no
58,64,f,yes,A,south,no
44,66,m,no,B,south,yes
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    path.write_text(ROWS)
    return path


class TestColumns:
    def test_texts_become_zeros_and_ones(self, table: Path) -> None:
        data = Dataset.from_csv(table, "ill", features=["age", "ward", "sex"], standardise=False)
        assert data.feature_names == ("age", "ward = A", "ward = B", "ward = C", "sex = f", "sex = m")
        rows = torch.cat([data.x, data.x_test])
        assert rows[rows[:, 0] == 61].tolist() == [[61, 0, 1, 0, 0, 1]]
        assert (rows[:, 1:4].sum(1) == 1).all()
        assert data.class_names == ("no", "yes")

    def test_columns_can_be_dropped(self, table: Path) -> None:
        data = Dataset.from_csv(table, "ill", client="hospital", drop=["weight", "smokes"])
        assert data.feature_names == ("age", "sex = f", "sex = m", "ward = A", "ward = B", "ward = C")

    def test_a_text_that_only_the_second_file_has_is_zeros(self, table: Path, tmp_path: Path) -> None:
        test = tmp_path / "later.csv"
        test.write_text("age,ward,ill\n40,D,no\n41,A,yes\n")
        data = Dataset.from_csv(table, "ill", features=["ward"], test=test, standardise=False)
        assert data.x_test.tolist() == [[0, 0, 0], [1, 0, 0]]

    def test_a_name_that_is_no_column_has_a_suggestion(self, table: Path) -> None:
        with pytest.raises(InvalidInput, match="did you mean 'weight'"):
            Dataset.from_csv(table, "ill", drop=["wieght"])

    def test_nothing_left(self, table: Path) -> None:
        with pytest.raises(InvalidInput, match="no feature columns beside the label 'ill'"):
            Dataset.from_csv(table, "ill", features=["age"], drop=["age"])

    def test_a_column_of_names_is_not_encoded(self, tmp_path: Path) -> None:
        path = tmp_path / "named.csv"
        path.write_text("name,ill\n" + "".join(f"patient {i},{i % 2}\n" for i in range(150)))
        with pytest.raises(InvalidInput, match=r"column 'name' has 150 different texts.*drop the column"):
            Dataset.from_csv(path, "ill")

    def test_by_flags(self, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
        flags = ["--data", "csv", "--path", str(table), "--label", "ill", "--client", "hospital"]
        assert command(["partition", *flags, "--features", "age, sex", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["sizes"]) == 2
        assert command(["partition", *flags]) == 2
        assert "row 3 has no value in column 'weight' (and 1 more)" in " ".join(capsys.readouterr().err.split())


class TestGaps:
    def test_refused_unless_asked_for(self, table: Path) -> None:
        with pytest.raises(InvalidInput, match=r"row 3 has no value in column 'weight' \(and 1 more\)"):
            Dataset.from_csv(table, "ill", features=["weight"])

    @pytest.mark.parametrize("rule", ["median", "mean"])
    def test_each_client_fills_from_its_own_training_rows(self, rule: str) -> None:
        generator = np.random.default_rng(0)
        client = np.repeat(["a", "b"], 40)
        x = (generator.normal(size=(80, 3)) + 10 * (client == "b")[:, None]).astype(np.float32)
        x[::7, 1] = np.nan
        options = {"client": client, "missing": rule, "test_fraction": 0.3}
        data = Dataset.from_arrays(x, np.arange(80) % 2, **options)  # type: ignore[arg-type]
        figure = np.nanmedian if rule == "median" else np.nanmean
        known = {tuple(row[[0, 2]]): row[1] for row in x}
        assert data.client is not None
        assert data.client_test is not None
        for name in ("a", "b"):
            mine = data.x.numpy()[data.client == name]
            gaps = np.array([np.isnan(known[tuple(row[[0, 2]])]) for row in mine])
            expected = figure(mine[~gaps, 1].astype(np.float64))
            assert gaps.any()
            np.testing.assert_allclose(mine[gaps, 1], expected, rtol=1e-6)
            held = data.x_test.numpy()[data.client_test == name]
            gone = np.array([np.isnan(known[tuple(row[[0, 2]])]) for row in held])
            np.testing.assert_allclose(held[gone, 1], expected, rtol=1e-6)

    def test_a_client_without_any_value_takes_the_mean_of_the_others(self) -> None:
        client = np.array(["a"] * 4 + ["b"] * 4 + ["c"] * 4)
        x = np.array([[1.0]] * 4 + [[5.0]] * 4 + [[np.nan]] * 4)
        data = Dataset.from_arrays(x, np.arange(12) % 2, client=client, missing="mean")
        assert data.client is not None
        assert set(data.x[torch.from_numpy(data.client == "c")].flatten().tolist()) == {3.0}

    def test_a_column_without_any_value(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.csv"
        path.write_text("age,weight,ill\n" + "1,,a\n2,,b\n" * 5)
        with pytest.raises(InvalidInput, match="column 'weight' has no values to train on at all: drop it"):
            Dataset.from_csv(path, "ill", missing="median")

    def test_a_text_that_is_missing_is_zeros(self, table: Path) -> None:
        data = Dataset.from_csv(table, "ill", features=["age", "smokes"], missing="median", standardise=False)
        rows = torch.cat([data.x, data.x_test])
        assert rows[rows[:, 0] == 39].tolist() == [[39, 0, 0]]


class TestLabels:
    @pytest.mark.parametrize("values", ["0.25", "1.5"])
    def test_decimals_ask_for_regression(self, tmp_path: Path, values: str) -> None:
        path = tmp_path / "prices.csv"
        path.write_text("rooms,price\n1,2\n2,3\n" + f"3,{values}\n")
        with pytest.raises(InvalidInput, match=f"row 4 has the label {values}.*did you mean regression = true"):
            Dataset.from_csv(path, "price")

    def test_as_a_flag(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "prices.csv"
        path.write_text("rooms,price\n" + "".join(f"{i},{0.5 * i}\n" for i in range(40)))
        flags = ["--data", "csv", "--path", str(path), "--label", "price", "--partition", "iid", "--clients", "3"]
        assert command(["partition", *flags]) == 2
        assert "did you mean regression = true (--regression)?" in " ".join(capsys.readouterr().err.split())
        assert command(["partition", *flags, "--regression", "--json"]) == 0

    def test_numbers_that_cannot_be_classes(self) -> None:
        with pytest.raises(InvalidInput, match="row 3 has the label 4000000000"):
            Dataset.from_arrays(np.zeros((6, 2)), np.array([0, 1, 0, 4_000_000_000, 1, 0]))


class TestWhoTheClientsAre:
    def arrays(self, path: Path) -> Path:
        generator = np.random.default_rng(0)
        client = np.repeat(["north", "south", "west"], [30, 40, 50])
        np.savez(path, x=generator.normal(size=(120, 4)), y=np.arange(120) % 3, client=client)
        return path

    def test_an_array_of_clients_is_used(self, tmp_path: Path) -> None:
        path = self.arrays(tmp_path / "hospitals.npz")
        assert Experiment.build({"data": {"name": "npz", "path": str(path)}}).partition.name == "column"
        result = undrift.run(data=Dataset.from_npz(path), rounds=1)
        assert result.history.rounds[-1].participants == 3

    def test_another_partition_can_be_asked_for(self, tmp_path: Path) -> None:
        path = self.arrays(tmp_path / "hospitals.npz")
        named = {"data": {"name": "npz", "path": str(path)}, "partition": "iid"}
        assert Experiment.build(named).partition.name == "iid"

    @pytest.mark.parametrize("name", ["ucihar", "pamap2", "covidx"])
    def test_data_sets_with_people(self, name: str) -> None:
        assert Experiment.build({"data": name}).partition.name == "column"
        assert Experiment.build({"data": "digits"}).partition.name == "dirichlet"

    def test_names_are_kept_with_the_run(self, table: Path, tmp_path: Path) -> None:
        flags = ["--data", "csv", "--path", str(table), "--label", "ill", "--client", "hospital", "--drop", "weight"]
        ledger = tmp_path / "runs.db"
        words = ["run", *flags, "--missing", "mean", "--rounds", "1", "--ledger", str(ledger), "--name", "one"]
        assert command(words) == 0
        with Ledger(ledger) as book:
            facts = book.run("one").facts
        assert facts["client_names"] == ["north", "south"]
        assert facts["class_names"] == ["no", "yes"]
        assert len(facts["histogram"]) == 2
