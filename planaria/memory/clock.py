"""The Clock port under a test's hand."""


class MemoryClock:
    def __init__(self, now: float = 1_793_610_845.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
