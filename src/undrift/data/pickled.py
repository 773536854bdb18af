"""The arrays of CIFAR's python files, read without running anything.

A pickle is a program for a small stack machine. This reads the few words of it that dictionaries, lists, texts and
arrays of bytes need, and makes those itself: nothing is imported, nothing is called. Everything else is refused.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput


@dataclass(frozen=True)
class _Name:
    """What the pickle would import."""

    text: str


class _Dtype:
    """The type of an array's elements; only bytes are wanted."""


class _Mark:
    pass


@dataclass
class _Array:
    values: NDArray[np.uint8] | None = None


_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_NAMES = (*_RECONSTRUCT, "numpy ndarray", "numpy dtype", "_codecs encode")
_MARK = _Mark()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = ("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES",
           "SHORT_BINBYTES", "UNICODE")  # fmt: skip
_TEXTS = ("BINSTRING", "SHORT_BINSTRING", "STRING")  # Python 2's, which are bytes
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read(raw: bytes) -> dict[bytes | str, Any]:
    """The dictionary in a pickle: arrays of bytes, lists, numbers and texts."""
    machine = _Machine(len(raw))
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            machine.step(opcode.name, argument)
        (value,) = machine.stack
    except InvalidInput:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise InvalidInput("it is cut short or damaged") from None
    if not isinstance(value, dict):
        raise InvalidInput("it holds no dictionary")
    return {
        key: entry.values if isinstance(entry, _Array) else entry
        for key, entry in value.items()
        if isinstance(key, bytes | str)
    }


class _Machine:
    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.room = size  # bytes that texts may still be turned into: no more than there are in the file

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _TEXTS:
            stack.append(argument.encode("latin-1"))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"):
            self.gather(name)
        elif name in _TUPLES:
            size = _TUPLES[name]
            stack[-size:] = [tuple(stack[-size:])]
        elif name in ("APPEND", "SETITEM"):
            size = 1 if name == "APPEND" else 2
            items = [stack.pop() for _ in range(size)][::-1]
            _put(stack[-1], items)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[argument])
        elif name == "GLOBAL":
            stack.append(_allowed(argument))
        elif name == "REDUCE":
            arguments, called = stack.pop(), stack.pop()
            stack.append(self.made(called, arguments))
        elif name == "BUILD":
            state = stack.pop()
            _build(stack[-1], state)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise InvalidInput(f"it holds more than arrays ({name} is not allowed)")

    def gather(self, name: str) -> None:
        """What lies above the last mark, as one thing or into the thing below the mark."""
        place = self.mark()
        items = self.stack[place + 1 :]
        del self.stack[place:]
        if name == "TUPLE":
            self.stack.append(tuple(items))
        elif name == "LIST":
            self.stack.append(items)
        elif name == "DICT":
            self.stack.append({})
            _put(self.stack[-1], items)
        else:
            _put(self.stack[-1], items)

    def mark(self) -> int:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise IndexError
        return place

    def made(self, called: Any, arguments: Any) -> Any:
        """What a call would give, made here."""
        text = called.text if isinstance(called, _Name) else ""
        if text == "_codecs encode" and isinstance(arguments[0], str) and arguments[1:] in ((), ("latin1",)):
            self.room -= len(arguments[0])
            if self.room < 0:
                raise ValueError
            return arguments[0].encode("latin-1")
        if text == "numpy dtype" and arguments[0] in ("u1", b"u1"):
            return _Dtype()
        if text in _RECONSTRUCT and arguments[0] == _Name("numpy ndarray"):
            return _Array()
        raise InvalidInput(f"it holds more than arrays of bytes ({text or 'a call'} is not allowed)")


def _allowed(text: str) -> _Name:
    if text not in _NAMES:
        raise InvalidInput(f"it holds more than arrays ({text.replace(' ', '.')} is not allowed)")
    return _Name(text)


def _put(target: Any, items: list[Any]) -> None:
    """Items into a list, or keys and values into a dictionary."""
    if isinstance(target, list):
        target.extend(items)
        return
    if not isinstance(target, dict) or len(items) % 2:
        raise ValueError
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, bytes | str | int):
            raise TypeError
        target[key] = value


def _build(target: Any, state: Any) -> None:
    """The content of an array: version, shape, type, order, bytes."""
    if isinstance(target, _Dtype):  # its state says byte order and fields; bytes have neither
        if state[1] not in ("|", b"|") or any(part is not None for part in state[2:5]):
            raise ValueError
        return
    if not isinstance(target, _Array):
        raise InvalidInput("it holds more than arrays (an object is not allowed)")
    _, shape, kind, fortran, content = state
    if not (isinstance(kind, _Dtype) and isinstance(content, bytes)):
        raise ValueError
    if not all(isinstance(n, int) and n >= 0 for n in shape) or math.prod(shape) != len(content):
        raise ValueError
    target.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")
