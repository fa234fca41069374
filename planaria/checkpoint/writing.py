"""Writes that are whole or not there, on a file system that several nodes share."""

import errno
import os
import secrets
import shutil
from pathlib import Path

from planaria.core.errors import PermanentError, TransientError
from planaria.core.manifest import FILE_NAME

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)

_IN_VAIN = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)


def write_once(directory: Path, body: bytes) -> bool:
    """The manifest of a directory, written by one committer alone: False when these very bytes are there.

    The bytes are on disk before the name is, and a link fails where the name exists; a file system without
    links takes the name with O_EXCL. Raises PermanentError where another manifest is there, TransientError
    where the disk is full or away.
    """
    target = directory / FILE_NAME
    scratch = directory / f".{FILE_NAME}.{secrets.token_hex(8)}.tmp"
    try:
        try:
            _write(scratch, body)
            try:
                os.link(scratch, target)
            except FileExistsError:
                return _same(target, body)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return _write_exclusively(target, scratch, body)
        finally:
            scratch.unlink(missing_ok=True)
        fsync_directory(directory)
    except OSError as error:
        raise unwritable(error, directory) from error
    return True


def replace(path: Path, body: bytes) -> None:
    """Raises TransientError or PermanentError."""
    scratch = path.with_name(f".{FILE_NAME}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            _write(scratch, body)
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(error, path.parent) from error


def remove_tree(path: Path) -> None:
    """Quiet where it is gone. Raises TransientError where something of it stays."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        if path.exists():
            raise TransientError(f"{path} changes while it is removed") from None
    except OSError as error:
        raise unwritable(error, path) from error


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unwritable(error: OSError, path: Path) -> TransientError | PermanentError:
    """The error of ours that an error of the file system means."""
    what = f"{path} cannot be written: {error.strerror or error}"
    if (
        isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError)
        or error.errno == errno.EROFS
    ):
        return PermanentError(what)
    return TransientError(what)


def _write(path: Path, body: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(body)
        stream.flush()
        os.fsync(stream.fileno())


def _same(target: Path, body: bytes) -> bool:
    there = target.read_bytes()
    if there == body:
        return False
    raise PermanentError(f"{target} is there already and says something else; it is not overwritten")


def _write_exclusively(target: Path, scratch: Path, body: bytes) -> bool:
    """A committer that died here has left a beginning of the same bytes: only that may be completed."""
    try:
        with target.open("xb") as stream:
            stream.write(body)
            stream.flush()
            os.fsync(stream.fileno())
    except FileExistsError:
        there = target.read_bytes()
        if there != body and body.startswith(there):
            os.replace(scratch, target)
            return True
        return _same(target, body)
    return True
