"""Times and durations as sentences for people say them."""

from datetime import UTC, datetime


def span(seconds: float) -> str:
    """`45 s`, `12 min`, `1 h`, `1 h 30 min`."""
    if seconds < 120:
        return f"{round(seconds, 1):g} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def moment(at: float) -> str:
    """Epoch seconds as `2026-11-30 10:22:03 UTC`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
