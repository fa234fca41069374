"""The plain files below one directory, opened so that no name and no symbolic link leads out of it.

Every directory on the way is opened by its own name from the one above it (openat), never followed through a
link; a FIFO or a device is never waited for.
"""

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from planaria.aws.transfer import NotRight
from planaria.core.manifest import FILE_NAME, OWN_FILES, is_plain
from planaria.core.transfers import Cause, Failure

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDERS_KEPT = 256
FETCHED = ".planaria-fetched-"
_SCRATCH = (FETCHED, f".{FILE_NAME}.")


def is_scratch(name: str) -> bool:
    """What we write beside the files of a step while we are at it."""
    return name.startswith(_SCRATCH)


@dataclass(frozen=True, slots=True)
class Found:
    """files: name -> (bytes, mtime in ns, inode), in order of their names. refused: what is no plain file or
    has a name that cannot be an object's."""

    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    refused: list[Failure] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(size for size, _, _ in self.files.values())


class Tree:
    """A directory. Safe for many threads; close it in the end."""

    def __init__(self, root: Path, make: bool = False) -> None:
        """make: the directory is made where it is missing. Raises OSError."""
        self.root = root
        if make:
            root.mkdir(parents=True, exist_ok=True)
        self._root = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
        self._lock = threading.Lock()
        self._folders: dict[str, int] = {}

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            for descriptor in self._folders.values():
                os.close(descriptor)
            self._folders.clear()
            if self._root >= 0:
                os.close(self._root)
                self._root = -1

    def walk(self, hidden: bool = False) -> Found:
        """Everything below the directory but our own files. hidden: whether our scratch counts too."""
        found = Found()
        listed = dict(self._walk("", found.refused, hidden))
        found.files.update(sorted(listed.items()))
        found.refused.sort(key=lambda failure: failure.name)
        return found

    def _walk(
        self, folder: str, refused: list[Failure], hidden: bool
    ) -> Iterator[tuple[str, tuple[int, int, int]]]:
        descriptor = self._open_folder(folder)
        below = []
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if not folder and (entry.name in OWN_FILES or (is_scratch(entry.name) and not hidden)):
                        continue
                    if entry.is_file(follow_symlinks=False):
                        if is_plain(name):
                            told = entry.stat(follow_symlinks=False)
                            yield name, (told.st_size, told.st_mtime_ns, told.st_ino)
                        else:
                            reason = "its name cannot be an object's: no UTF-8, or too long"
                            refused.append(Failure(_shown(name), reason, Cause.BAD))
                    elif entry.is_dir(follow_symlinks=False):
                        below.append(name)
                    else:
                        link = entry.is_symlink()
                        reason = "it is a symbolic link" if link else "it is no plain file"
                        refused.append(Failure(_shown(name), reason, Cause.BAD))
        finally:
            os.close(descriptor)
        for name in below:
            yield from self._walk(name, refused, hidden)

    def open(self, name: str) -> int:
        """To read. Raises NotRight where it is no plain file, OSError."""
        with self._parent(name) as (folder, last):
            try:
                descriptor = os.open(last, _READ, dir_fd=folder)
            except OSError as error:
                raise _told(error, name) from None
        return _plain(descriptor, name)

    def stat(self, name: str) -> os.stat_result:
        with self._parent(name) as (folder, last):
            return os.stat(last, dir_fd=folder, follow_symlinks=False)

    def create(self, name: str, size: int) -> int:
        """To write (and read); its folders are made, what it held stays, its length becomes `size`."""
        with self._parent(name, make=True) as (folder, last):
            try:
                descriptor = os.open(last, _WRITE, 0o644, dir_fd=folder)
            except OSError as error:
                raise _told(error, name) from None
        _plain(descriptor, name)
        try:
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def append(self, name: str) -> int:
        """To write lines at its end; it is made where it is missing."""
        with self._parent(name, make=True) as (folder, last):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return _plain(os.open(last, flags, 0o644, dir_fd=folder), name)

    def remove(self, name: str) -> None:
        """Quiet where there is no such file below the directory. Raises OSError."""
        try:
            with self._parent(name) as (folder, last):
                os.unlink(last, dir_fd=folder)
        except (FileNotFoundError, NotRight):
            return

    def sync(self) -> None:
        """All that was written to this file system is on its disks after this. Raises OSError."""
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(self._root) == 0:
                return
            wrong = ctypes.get_errno()
        except (OSError, AttributeError):
            os.sync()
            return
        raise OSError(wrong, os.strerror(wrong))

    def _parent(self, name: str, make: bool = False) -> "_Parent":
        return _Parent(self, name, make)

    def _open_folder(self, folder: str, make: bool = False) -> int:
        descriptor = os.dup(self._root)
        for part in PurePosixPath(folder).parts:
            try:
                if make:
                    try:
                        os.mkdir(part, dir_fd=descriptor)
                    except FileExistsError:
                        pass
                below = os.open(part, _FOLDER, dir_fd=descriptor)
            except OSError as error:
                raise _told(error, folder) from None
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor


class _Parent:
    """The open folder of a name, and its last part. The folders used last stay open."""

    def __init__(self, tree: Tree, name: str, make: bool) -> None:
        if not is_plain(name) and name not in OWN_FILES:
            raise NotRight(f"{name!r:.200} is no path below the step's directory", Cause.BAD)
        self._tree = tree
        self._folder, _, self._last = name.rpartition("/")
        self._make = make
        self._own = -1

    def __enter__(self) -> tuple[int, str]:
        tree = self._tree
        if not self._folder:
            return tree._root, self._last
        with tree._lock:
            kept = tree._folders.get(self._folder)
        if kept is None:
            opened = tree._open_folder(self._folder, self._make)
            with tree._lock:
                if len(tree._folders) < _FOLDERS_KEPT and self._folder not in tree._folders:
                    tree._folders[self._folder] = kept = opened
                else:
                    self._own = kept = opened
        return kept, self._last

    def __exit__(self, *_: object) -> None:
        if self._own >= 0:
            os.close(self._own)


def _plain(descriptor: int, name: str) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRight(f"{name} is no plain file", Cause.BAD)
    return descriptor


def _told(error: OSError, name: str) -> Exception:
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
        return NotRight(
            f"{name} is, or lies behind, a symbolic link or something else than a folder", Cause.BAD
        )
    if error.errno == errno.ENXIO:
        return NotRight(f"{name} is no plain file", Cause.BAD)
    return error


def _shown(name: str) -> str:
    """A name that is no UTF-8, readable."""
    return name.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="backslashreplace")
