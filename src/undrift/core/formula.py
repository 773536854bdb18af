"""A formula: arithmetic over named symbols, written as text. It is worked out node by node and never executed.

``"2 * K * d"``, ``"n if option == 'I' else 0"``: numbers, texts, None, names, the signs ``+ - * / // **``, comparisons,
``and``, ``or``, ``not`` and the conditional. No call, no attribute, no subscript. Does not know what its symbols mean.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from undrift.core.errors import InvalidInput, unknown

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,  # None, the value of a setting that is left out
    ast.IsNot: operator.is_not,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}


@cache
def parse(formula: str) -> ast.expr:
    """The tree of a formula, or a sentence that says what in it is none."""
    try:
        tree = ast.parse(formula.strip(), mode="eval").body
    except SyntaxError:
        raise InvalidInput(
            f"the formula {formula!r} cannot be read: it must be arithmetic, such as '2 * K * d'"
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not _allowed(node):
            part = ast.unparse(node)
            raise InvalidInput(f"the formula {formula!r} contains {part!r}: it may hold arithmetic over names only")
    return tree


def evaluate(formula: str, symbols: Mapping[str, Any]) -> Any:
    """What a formula gives for these symbols."""
    return _value(parse(formula), symbols)


def _allowed(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(op=op):
            return type(op) in _BINARY
        case ast.UnaryOp(op=op):
            return type(op) in _UNARY
        case ast.Compare(ops=ops):
            return all(type(op) in _COMPARED for op in ops)
        case ast.Constant(value=value):
            return isinstance(value, int | float | str | None)
    return isinstance(node, ast.Name | ast.IfExp | ast.BoolOp)


def _value(node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    def of(part: ast.expr) -> Any:
        return _value(part, symbols)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in symbols:
                raise unknown("symbol of a formula", name, symbols)
            return symbols[name]
        case ast.BinOp(left, op, right):
            return _BINARY[type(op)](of(left), of(right))
        case ast.UnaryOp(op, operand):
            return _UNARY[type(op)](of(operand))
        case ast.IfExp(test, body, orelse):
            return of(body) if of(test) else of(orelse)
        case ast.BoolOp(op, values):
            for part in values[:-1]:
                if bool(found := of(part)) is isinstance(op, ast.Or):
                    return found  # it is settled
            return of(values[-1])
        case ast.Compare(left, ops, comparators):
            operands = [of(left), *map(of, comparators)]
            return all(_COMPARED[type(op)](operands[i], operands[i + 1]) for i, op in enumerate(ops))
    raise AssertionError(f"parse() lets {node} through")  # pragma: no cover
