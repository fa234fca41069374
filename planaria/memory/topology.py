"""EC2's network topology in memory: what the story says of a node or reservation, else that it is not
told."""

from collections.abc import Mapping, Sequence

from planaria.core.errors import PlanariaError
from planaria.core.topology import Located, Path


class MemoryTopology:
    """paths: by instance or reservation id. unsupported: instance types that EC2 tells nothing about.
    error: is raised instead of every answer. asked: the ids of each call."""

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}
        self.unsupported: set[str] = set()
        self.error: PlanariaError | None = None
        self.asked: list[tuple[str, ...]] = []

    def instances(self, types: Mapping[str, str]) -> dict[str, Located]:
        self._ask(types)
        refused = Located(why="UnsupportedOperation: this instance type is not supported", final=True)
        return {
            node: refused if instance_type in self.unsupported else self._located(node)
            for node, instance_type in types.items()
        }

    def reservations(self, ids: Sequence[str]) -> dict[str, Located]:
        self._ask(ids)
        return {name: self._located(name) for name in ids}

    def _ask(self, ids: Mapping[str, str] | Sequence[str]) -> None:
        self.asked.append(tuple(ids))
        if self.error is not None:
            raise self.error

    def _located(self, name: str) -> Located:
        path = self.paths.get(name, ())
        return Located(path) if path else Located(why="EC2 tells no network nodes of it")
