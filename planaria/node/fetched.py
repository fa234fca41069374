"""What a copier has fetched of large files, as lines in the directory that it fetches into.

    {"name": str, "start": bytes, "length": bytes, "crc64nvme": base64}

A line is a hint and no proof: whoever goes on reads the range again and compares. So it matters not whether
the line or the range reached the disk first.
"""

import json
import os
import threading

from planaria.node.tree import FETCHED, Tree


class Fetched:
    """The ranges of one copier (or one chunk) `of`. Safe for many threads."""

    def __init__(self, tree: Tree, of: str) -> None:
        self._name = f"{FETCHED}{of}.jsonl"
        self._tree = tree
        self._lock = threading.Lock()
        self._descriptor = -1
        self._sums: dict[tuple[str, int, int], str] = {}
        self._names: set[str] = set()
        try:
            descriptor = tree.open(self._name)
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "rb") as lines:
            for line in lines:
                self._read(line)

    def _read(self, line: bytes) -> None:
        try:
            told = json.loads(line)
            key = (str(told["name"]), int(told["start"]), int(told["length"]))
            self._sums[key] = str(told["crc64nvme"])
            self._names.add(key[0])
        except (ValueError, KeyError, TypeError):
            return  # the copier was killed while it wrote this line

    def sum_of(self, name: str, start: int, length: int) -> str:
        """The checksum that was written there, "" where nothing was."""
        return self._sums.get((name, start, length), "")

    def knows(self, name: str) -> bool:
        """Whether any range of this file was noted."""
        return name in self._names

    def note(self, name: str, start: int, length: int, crc64nvme: str) -> None:
        told = {"name": name, "start": start, "length": length, "crc64nvme": crc64nvme}
        with self._lock:
            if self._descriptor < 0:
                opened = self._tree.append(self._name)
                self._descriptor = opened
            os.write(self._descriptor, json.dumps(told).encode() + b"\n")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def forget(self) -> None:
        """The files are whole: the lines are needed no more."""
        self.close()
        self._tree.remove(self._name)
