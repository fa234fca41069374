"""The Objects port in memory."""

from planaria.core.errors import TransientError


class MemoryObjects:
    """bodies: key -> what was put there last."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    def put(self, key: str, body: bytes) -> None:
        self.bodies[key] = body

    def get(self, key: str) -> bytes:
        if key not in self.bodies:
            # As S3: a key may be there a moment later, so this is no permanent error.
            raise TransientError(f"NoSuchKey: {key}")
        return self.bodies[key]
