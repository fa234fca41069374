"""The lines that others append to a file, read as they come."""

from pathlib import Path

CHUNK_BYTES = 1 << 20
LONGEST_LINE = 1 << 16


class Tail:
    """New complete lines of one file; a file that is not there yet has none.

    offset: where to begin, in bytes. A file that was replaced or cut short is read from its beginning.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._inode: int | None = None
        self._rest = b""

    def lines(self) -> list[str]:
        """At most CHUNK_BYTES of lines; what is left comes with the next call. Bytes that are no UTF-8 are
        replaced. Raises OSError when the file is there and cannot be read."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return []
        if (self._inode not in (None, found.st_ino)) or found.st_size < self._offset:
            self._offset, self._rest = 0, b""
        self._inode = found.st_ino
        if found.st_size == self._offset:
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(CHUNK_BYTES)
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode("utf-8", errors="replace") for line in whole]
