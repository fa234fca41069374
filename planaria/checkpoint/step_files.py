"""The files of one step's directory, and what of it is ours."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from planaria.checkpoint.checksums import threads
from planaria.core.errors import InvalidInput
from planaria.core.manifest import FILE_NAME, OWN_FILES, is_plain

SCRATCH = re.compile(rf"\.{re.escape(FILE_NAME)}\.[0-9a-f]{{1,32}}\.tmp")
"""A manifest that is being written. It lies in the step's directory: only there it can be linked into
place."""
_BATCH = 500
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class FileStat:
    """What tells that a file has changed. size: bytes; changed, modified: nanoseconds; inode: its number."""

    size: int
    modified: int
    changed: int
    inode: int


def files(directory: Path) -> dict[str, FileStat]:
    """name below the directory -> its state, of everything in it but the manifest, the pin and our scratch.

    Raises InvalidInput where something in it is no regular file or has a name that S3 cannot hold, OSError
    where it cannot be read. A parallel file system answers several questions at once, so several threads ask.
    """
    found: dict[str, FileStat] = {}
    with ThreadPoolExecutor(threads(), thread_name_prefix="stat") as pool:
        for group in pool.map(lambda names: _stats(directory, names), _groups(_names(directory))):
            found.update(group)
    return found


def newest(found: Iterable[FileStat]) -> float | None:
    """When any of them was changed last, in epoch seconds; None of none."""
    last = max((each.modified for each in found), default=None)
    return None if last is None else last / 1e9


def _groups(names: Iterator[str]) -> Iterator[list[str]]:
    while group := list(islice(names, _BATCH)):
        yield group


def _stats(directory: Path, names: list[str]) -> dict[str, FileStat]:
    root = os.fspath(directory)
    found = {}
    for name in names:
        told = os.lstat(f"{root}/{name}")
        if not stat.S_ISREG(told.st_mode):
            raise InvalidInput(f"{name!r:.200} is no regular file")
        found[name] = FileStat(told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino)
    return found


def _names(directory: Path) -> Iterator[str]:
    open_folders = [""]
    while open_folders:
        below = open_folders.pop()
        if below.count("/") > _DEEPEST:
            raise InvalidInput(f"{below!r:.200} lies too deep")
        with os.scandir(directory / below) as entries:
            for entry in entries:
                name = below + entry.name
                if entry.is_dir(follow_symlinks=False):
                    open_folders.append(name + "/")
                elif name in OWN_FILES or SCRATCH.fullmatch(name):
                    continue
                elif not is_plain(name):
                    raise InvalidInput(f"{name!r:.200} is a name that S3 cannot hold")
                else:
                    yield name
