"""How many rows a storm may write: so many of one node and outcome a minute, the rest is counted."""

MOST = 10_000


class Singly:
    """In memory, per Lambda environment, as a delivery may be as small as one record."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, str], tuple[int, int]] = {}

    def beyond(self, who: str, outcome: str, now: float, most: int) -> bool:
        """True when `most` were written singly this minute; counts this one otherwise. now: epoch seconds."""
        minute = int(now // 60)
        since, written = self._written.get((who, outcome), (minute, 0))
        if since != minute:
            written = 0
        if written >= most:
            return True
        if len(self._written) >= MOST:
            self._written = {key: kept for key, kept in self._written.items() if kept[0] == minute}
        if len(self._written) < MOST:
            self._written[who, outcome] = minute, written + 1
        return False
