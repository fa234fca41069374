"""FSx's report of a data repository task: which files it failed on, and why.

A CSV file of path, status and error code, with one line per file. A path that begins with one of `@+-=`
stands in quotation marks of its own, inside those of CSV.
https://docs.aws.amazon.com/fsx/latest/LustreGuide/task-completion-report.html
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

_MARKED = tuple("@+-=")
_FIELDS = 3

MEANINGS: Mapping[str, str] = {
    "S3AccessDenied": "access to the bucket was denied",
    "ResourceBusy": "it was being written; it can be exported once that is over",
    "PathSizeTooLong": "its key would have more than 1,024 characters",
    "FileSizeTooLarge": "it has more than the 5 TiB of an S3 object",
    "S3Error": "S3 answered with an error",
    "InternalError": "FSx failed; look at the file system's state",
    "INTERNAL_ERROR": "FSx failed; look at the file system's state",
}
"""https://docs.aws.amazon.com/fsx/latest/LustreGuide/failed-tasks.html"""
PASSING = frozenset({"ResourceBusy", "S3Error", "InternalError", "INTERNAL_ERROR"})
"""Codes of what another task may export."""


@dataclass(frozen=True, slots=True)
class Failed:
    """path: from the file system's root; code: FSx's word."""

    path: str
    code: str

    @property
    def reason(self) -> str:
        return f"{self.path}: {MEANINGS.get(self.code, f'FSx says {self.code}')}"


def failures(body: bytes, most: int = 1000) -> tuple[Failed, ...]:
    """At most `most` of them, in the report's order. What cannot be read is left out: the task's own counts
    say how many there are."""
    rows = csv.reader(io.StringIO(body.decode("utf-8", errors="replace"), newline=""))
    found: list[Failed] = []
    try:
        for row in rows:
            if len(row) == _FIELDS and row[1].lower() != "filestatus":
                found.append(Failed(_path(row[0]), row[2]))
            if len(found) == most:
                break
    except csv.Error:  # a field of more than 128 KiB is no path
        pass
    return tuple(found)


def _path(field: str) -> str:
    for mark in "\"'":
        if len(field) > 2 and field[0] == field[-1] == mark and field[1] in _MARKED:
            return field[1:-1]
    return field
