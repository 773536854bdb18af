"""Formulas of costs: arithmetic that is worked out, not executed."""

from __future__ import annotations

from typing import Any

import pytest

from undrift.algorithms import algorithms
from undrift.core.algorithm import Cost
from undrift.core.errors import InvalidInput
from undrift.core.formula import evaluate

SYMBOLS: dict[str, Any] = {
    "d": 7, "K": 3, "n": 10, "E": 2, "M": 4, "C": 5, "C_i": 2, "f": 6, "body": 5, "head": 2,
    "option": "I", "tau": None, "follow": True, "history": 1, "lam_r": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("0", 0),
        ("-d", -7),
        ("2 * (K + 1) * d - d / 2", 52.5),
        ("d // 2 + 2 ** K", 11),
        ("n if option == 'I' else 0", 10),
        ("n if option != 'I' else 0", 0),
        ("(tau or K) * M + M - n * E", -4),
        ("d + d * follow", 14),
        ("C_i * (f + 1) * (lam_r > 0)", 14),
        ("d if 0 < lam_r <= 0.5 and not tau else n", 7),
        ("d if 0.5 < lam_r < 1 else n", 10),
        ("K if tau is None else d", 3),
        ("K if tau is not None else d", 7),
        ("0 or 0 or K", 3),
        ("K and 0 and d", 0),
    ],
)
def test_a_formula_gives_its_number(formula: str, value: float) -> None:
    assert evaluate(formula, SYMBOLS) == value


@pytest.mark.parametrize(
    "formula",
    ["().__class__", "print(1)", "d[0]", "[d]", "lambda: 1", "d.real", "~d", "d in n", "(d := 2)", "b'1'", "f'{d}'"],
)
def test_what_is_more_than_arithmetic_is_refused_where_it_is_written(formula: str) -> None:
    with pytest.raises(InvalidInput, match="arithmetic over names only"):
        Cost(up=formula)


@pytest.mark.parametrize("formula", ["", "2 *", "d = 3", "import os", "d; d"])
def test_what_is_no_formula_is_refused(formula: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        Cost(down=formula)


def test_an_unknown_symbol_is_named_with_its_neighbour() -> None:
    with pytest.raises(InvalidInput, match="unknown symbol of a formula 'hed': did you mean 'head'"):
        evaluate("2 * hed", SYMBOLS)


def test_every_method_writes_its_formulas_in_the_letters_of_their_legend() -> None:
    letters = {"d", "body", "head", "n", "E", "K", "M", "C", "C_i", "f"}
    for cls in algorithms().values():
        method = cls.create(**{s.name: 1 for s in cls.settings() if s.required})
        numbers = cls.cost.evaluate(method.values() | dict.fromkeys(letters, 3))
        assert all(isinstance(value, int | float) for value in numbers.values()), cls
