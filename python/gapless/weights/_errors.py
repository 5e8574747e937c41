"""Errors of weights, as types. The message says where the error is, and what to do next."""

from typing import Any, Optional

from .._errors import GaplessError


class WeightsError(GaplessError):
    """Weights cannot be loaded or saved. `path` is the file, if one is to blame."""

    def __init__(self, message: str, path: Optional[str] = None) -> None:
        super().__init__(message)
        self.path = path


class FormatError(WeightsError, ValueError):
    """A file is truncated, lies about itself, or is of another model."""


class ReadError(WeightsError, OSError):
    """A file cannot be read or written."""


class DamagedError(WeightsError, ValueError):
    """A checksum or a code is wrong. `tensor` is its name, `bytes` the range of the tensor that is lost, if known."""

    def __init__(self, message: str, path: Optional[str], tensor: str, range_of_bytes: Optional[tuple[int, int]]) -> None:
        super().__init__(message, path)
        self.tensor = tensor
        self.bytes = range_of_bytes


class NamesError(WeightsError, KeyError):
    """Names of tensors do not match. `missing` are in no file, `unexpected` in no model, `shapes` differ."""

    def __init__(self, message: str, missing: tuple[str, ...] = (), unexpected: tuple[str, ...] = (), shapes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing, self.unexpected, self.shapes = missing, unexpected, shapes

    def __str__(self) -> str:
        # KeyError would print the message in quotes.
        return str(self.args[0])


def of(error: "dict[str, Any]") -> WeightsError:
    """The exception for an error of the library."""
    # The help is written for the command line, and `-o` is an option of that.
    message = f"{error['message']}; {error['help'].replace(' with -o', '')}"
    path, kind = error.get("path"), error["kind"]
    if kind == "damaged":
        found = error.get("bytes")
        return DamagedError(message, path, error["tensor"], (found[0], found[1]) if found else None)
    if kind == "format":
        return FormatError(message, path)
    if kind == "io":
        return ReadError(message, path)
    return WeightsError(message, path)
