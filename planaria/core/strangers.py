"""Instances that are not ours, remembered for a while so that EC2 is not asked about them each time."""

STRANGER_SECONDS = 3600.0
MOST = 10_000


class Strangers:
    """In memory, per Lambda environment: NOT_MANAGED events are counted, not written singly."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def known(self, node: str, now: float) -> bool:
        return self._until.get(node, 0.0) > now

    def note(self, node: str, now: float) -> None:
        """Remember it anew; where there are too many, the one noted longest ago is forgotten."""
        self._until.pop(node, None)
        if len(self._until) >= MOST:
            del self._until[next(iter(self._until))]
        self._until[node] = now + STRANGER_SECONDS
