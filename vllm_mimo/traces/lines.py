"""Text lines and JSON fields of a trace file, with errors that name file, line and remedy."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from vllm_mimo.traces.form import TraceError

GZIP_MAGIC = b"\x1f\x8b"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) of a text file, gzip or not.

    Empty lines are skipped. Raises TraceError where the file is absent, damaged or not text.
    """
    number = 0
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == GZIP_MAGIC
        if path.suffix == ".gz" and not compressed:
            raise TraceError(
                f"{path}: named .gz but not gzip data; download it again, or take .gz off its name"
            )
        with gzip.open(path, "rb") if compressed else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.decode("utf-8").rstrip("\r\n")
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise TraceError(
            f"{path}: damaged gzip data after line {number} ({error}); download it again"
        ) from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}:{number}: not UTF-8 text; is this a trace file?") from error
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error


class Record:
    """One JSON object of a file; its readers say where a wrong field stands."""

    def __init__(self, fields: Mapping[str, Any], path: Path, line: int, where: str = "") -> None:
        self.fields = fields
        self.path = path
        self.line = line
        self.where = where

    @classmethod
    def parse(cls, path: Path, line: int, text: str) -> Record:
        """The object on one line."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise TraceError(
                f"{path}:{line}: not JSON ({error}); the file may be cut off: repair or delete the "
                "line, or download it again"
            ) from error
        if not isinstance(value, dict):
            raise TraceError(f"{path}:{line}: a JSON object is expected, found {text[:40]!r}")
        return cls(value, path, line)

    def fail(self, message: str) -> NoReturn:
        """Raise TraceError with this record's place before `message`."""
        raise TraceError(f"{self.path}:{self.line}: {self.where}{message}")

    def get(self, name: str) -> Any:
        """A field that must be there."""
        if name not in self.fields:
            self.fail(f"field '{name}' is missing; it has {', '.join(self.fields) or 'none'}")
        return self.fields[name]

    def tokens(self, name: str, least: int = 0) -> int:
        """A count of tokens, `least` or more."""
        value = self.get(name)
        if type(value) is not int or value < least:
            self.fail(f"'{name}' is {value!r}, a whole number of {least} or more is expected")
        return value

    def seconds(self, name: str) -> float:
        """A time, not negative and finite (in the field's own unit)."""
        value = self.get(name)
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            self.fail(f"'{name}' is {value!r}, a number of 0 or more is expected")
        return float(value)

    def items(self, name: str) -> list[Any]:
        """A list."""
        value = self.get(name)
        if not isinstance(value, list):
            self.fail(f"'{name}' is {value!r}, a list is expected")
        return value
