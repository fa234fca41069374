"""One torch.save file, unread: only whether it is whole. It is a ZIP archive whose directory comes last, so
one that was cut off has none; before PyTorch 1.6 it was a bare pickle, of which nothing tells its end."""

import zipfile
from pathlib import Path

from planaria.core.errors import InvalidInput

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar")
_ARCHIVE = b"PK\x03\x04"
_PICKLE = b"\x80\x02"


def is_one(path: Path) -> bool:
    """Raises InvalidInput where it is one and not whole, OSError where it cannot be read."""
    with path.open("rb") as stream:
        begin = stream.read(len(_ARCHIVE))
        if begin == _ARCHIVE and not zipfile.is_zipfile(stream):
            raise InvalidInput(f"{path.name} is cut off: the end of its archive is missing")
    return begin == _ARCHIVE or begin.startswith(_PICKLE)
