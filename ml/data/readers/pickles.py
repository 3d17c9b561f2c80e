"""Pickles of arrays, lists and text, as CIFAR's python batches are, read without running anything.

A pickle is a program. This reader lets it push numbers, text, bytes, lists, tuples and dicts, and rebuild numpy arrays
of plain numbers. It allows only listed operations, replaces the four names that a pickle may call by stand-ins of ours,
and looks up no name in a module. A pickle with any other operation is refused before it starts.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.errors import DataError

# Protocols 0 to 3 without operations that make objects of classes (INST, OBJ, NEWOBJ), or use PERSID or EXT.
_OPERATIONS = frozenset(
    (
        *("PROTO", "MARK", "STOP", "POP", "NONE", "NEWTRUE", "NEWFALSE", "DICT", "EMPTY_DICT", "SETITEM", "SETITEMS"),
        *("LIST", "EMPTY_LIST", "APPEND", "APPENDS", "TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
        *("PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "REDUCE", "BUILD"),
    )
)
_NUMBERS = re.compile(r"[<>|=]?[buif]\d{1,2}")
_PLAIN = (type(None), bool, int, float, str, bytes)
_BROKEN = (
    *(pickle.UnpicklingError, ValueError, TypeError, EOFError, IndexError, KeyError, AttributeError, OverflowError),
    *(MemoryError, RecursionError),
)


def load_pickle(path: Path) -> Any:
    """Returns the content of the file; texts of Python 2 are bytes, arrays are `ndarray` of numbers. Raises DataError,
    OSError."""
    data = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in texts
        _validate(data, path)
        try:
            loaded = _Reader(io.BytesIO(data), encoding="bytes").load()
        except _BROKEN as error:
            raise DataError(f"{path}: not a pickle of arrays, lists and text: {error}") from error
    if not isinstance(loaded, dict):
        return _take(loaded, path)
    if not all(isinstance(key, _PLAIN) for key in loaded):
        raise DataError(f"{path}: not a pickle of arrays, lists and text: a key is neither number nor text")
    return {key: _take(value, path) for key, value in loaded.items()}


def _take(value: Any, path: Path) -> Any:
    """Returns the value itself in place of its stand-in, if it is a number, text, an array, or a list of numbers and
    text. Raises DataError."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, _PLAIN) or (isinstance(value, list) and all(isinstance(item, _PLAIN) for item in value)):
        return value
    raise DataError(f"{path}: not a pickle of arrays, lists and text: a {type(value).__name__.strip('_').lower()}")


def _validate(data: bytes, path: Path) -> None:
    """Checks the pickle's program without running it. Raises DataError at the first operation that is not allowed."""
    place = 0
    try:
        for operation, argument, at in pickletools.genops(data):
            place = at or 0
            if operation.name not in _OPERATIONS:
                raise DataError(
                    f"{path}: byte {place}: expected a pickle of arrays, lists and text alone, got {operation.name}"
                )
            if operation.name == "GLOBAL" and argument not in _STAND_INS:
                raise DataError(
                    f"{path}: byte {place}: expected a pickle of arrays, lists and text alone, "
                    f"got a call of {'.'.join(str(argument).split(' ', 1))!r}"
                )
            # The file chooses the number of a memoised object, and memory is taken up to that number.
            if "PUT" in operation.name and not 0 <= int(argument or 0) <= len(data):
                raise DataError(f"{path}: byte {place}: expected at most {len(data)} objects, got number {argument}")
    except (ValueError, EOFError, IndexError, OverflowError) as error:
        raise DataError(f"{path}: broken after byte {place}: {error}") from error


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _StandIn(_STAND_INS[f"{module} {name}"])
        except KeyError:
            raise pickle.UnpicklingError(f"a call of '{module}.{name}'") from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a reference to something outside")


class _StandIn:
    """A harmless object that replaces a name which a pickle may call. Each pickle gets new ones, and cannot change
    them."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("the state of a function")


class _Dtype:
    """A type of plain numbers, as numpy pickles it: its name first, then its byte order."""

    __slots__ = ("value",)

    def __init__(self, name: Any, *_: Any) -> None:
        text = name.decode("ascii") if isinstance(name, bytes) else name
        if not isinstance(text, str) or _NUMBERS.fullmatch(text) is None:  # numpy would parse any text
            raise pickle.UnpicklingError(f"an array of {text!r}")
        self.value = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order == ">":
            self.value = self.value.newbyteorder(">")
        elif order not in ("<", "|"):
            raise pickle.UnpicklingError(f"the byte order {order!r}")
        elif order == "<":
            self.value = self.value.newbyteorder("<")


class _Array:
    """An array, as numpy pickles it: empty first, then its shape, type, order and bytes."""

    __slots__ = ("value",)

    def __init__(self, *_: Any) -> None:
        self.value: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes) or not isinstance(shape, tuple):
            raise pickle.UnpicklingError("an array that is not of plain numbers")
        if not all(type(n) is int and n >= 0 for n in shape) or prod(shape) * dtype.value.itemsize != len(data):
            raise pickle.UnpicklingError(f"an array of shape {list(shape)} with {len(data)} bytes")
        flat: NDArray[Any] = np.frombuffer(data, dtype.value)
        self.value = flat.reshape(shape, order="F" if is_fortran else "C")


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("bytes in an unknown encoding")
    return text.encode("latin-1")


def _no_type(*_: Any) -> Any:
    raise pickle.UnpicklingError("an array made directly")


_STAND_INS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray _reconstruct": _Array,
    "numpy._core.multiarray _reconstruct": _Array,
    "numpy dtype": _Dtype,
    "numpy ndarray": _no_type,  # named as an argument of _reconstruct, never called
    "_codecs encode": _encode,  # how Python 3 writes bytes in protocol 2
}
