"""Calls of many incidents, gathered for a moment: one command for all of them.

The head node's SSM agent runs five commands at a time, and a storm has hundreds of incidents, each in a
Lambda of its own. They meet in the table, below one key per kind of call and slot of time:

    pk `GATHER#<group>#<slot>`
    sk <digest>  what one caller asks for: "items"
    sk `#`       the header: "sender" and "lease_until" of whoever sends, and then "sent": [{ticket, keys}]
    sk `=<n>`    the answer of the n-th command, written by whoever heard it first, for all the others

Whoever polls first after the slot's end takes the lease and sends; should it die before it has noted the
tickets, the next one sends again, which is harmless: every request is a set. An item that is written while
no header stands is in the command, for the sender reads the items after it wrote the header; where a header
stands already the next slot is taken. All rows go by `expires_at`, and nobody reads those of an old slot.
"""

import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence

from planaria.core.errors import TransientError
from planaria.core.ports import Answer, AnswerState, Clock, Table
from planaria.core.table import Conflict, Row, below, equals, missing

WINDOW_SECONDS = 0.5
"""Shorter than a Lambda polls at a stretch, so that whoever asks also sends, if nobody else does."""

STALE_SECONDS = 15.0
"""An act that nobody has sent so long after its slot is not sent any more: its incident may be over."""

LEASE_SECONDS = 10.0
POLL_SECONDS = 0.3
"""At most so often SSM is asked about one command, however many wait for it."""

MOST_ITEMS = 50
"""Of one command: its answer should stay below the 24,000 characters that SSM gives out."""

_HEADER, _ANSWER = "#", "="
_KEPT_SECONDS = 3600
_SLOT_TRIES = 5
_STORED_BYTES = 300_000  # a DynamoDB item holds 400 KB

Part = tuple[tuple[str, ...], Answer]


class Gathering:
    """send(group, items): one command, -> its ticket. hear(ticket): its answer; both as in ports.Commands.

    window, poll_seconds: the constants above. Items of one command never name the same thing twice: of
    `name=mark` the name counts.
    """

    def __init__(
        self,
        table: Table,
        clock: Clock,
        send: Callable[[str, Sequence[str]], str],
        hear: Callable[[str], Answer],
        window: float = WINDOW_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._table = table
        self._clock = clock
        self._send = send
        self._hear = hear
        self._window = window
        self._poll_seconds = poll_seconds

    def ask(self, group: str, items: Sequence[str]) -> int:
        """-> the slot in which these items are asked for; `poll` needs it. Asked twice is asked once."""
        slot = int(self._clock.now() // self._window)
        for later in range(_SLOT_TRIES):
            pk = _pk(group, slot + later)
            for part in _parts(items):
                kept = {"items": list(part), "expires_at": int(self._clock.now()) + _KEPT_SECONDS}
                self._table.write(pk, _key(part), sets=kept, quiet=True)
            if self._table.get(pk, _HEADER) is None:
                return slot + later
        raise TransientError(f"no slot of {group} is open; the clocks of this cluster's functions disagree")

    def poll(self, group: str, slot: int, items: Sequence[str], acts: bool) -> list[Part] | Answer:
        """(items, the answer of the command that carried them), or the Answer for all while that is PENDING
        or UNKNOWN. acts: it changes something, so it must not be sent late."""
        pk = _pk(group, slot)
        header = self._table.get(pk, _HEADER) or {}
        if "sent" not in header:
            now, end = self._clock.now(), (slot + 1) * self._window
            if now < end:
                return Answer(AnswerState.PENDING)
            if now > end + (STALE_SECONDS if acts else _KEPT_SECONDS):
                return Answer(AnswerState.UNKNOWN, reason="it was not sent in time: ask again")
            header = self._lead(pk, group, now) or {}
        if "sent" not in header:
            return Answer(AnswerState.PENDING)
        carried = {key: number for number, sent in enumerate(header["sent"]) for key in sent["keys"]}
        heard: dict[int, Answer] = {}
        found: list[Part] = []
        for part in _parts(items):
            number = carried.get(_key(part))
            if number is None:
                return Answer(AnswerState.UNKNOWN, reason="it came too late for its command: ask again")
            if number not in heard:
                heard[number] = self._answer(pk, number, str(header["sent"][number]["ticket"]))
            if heard[number].state is not AnswerState.DONE:
                return heard[number]
            found.append((part, heard[number]))
        return found

    # --- sending ---------------------------------------------------------------------------------

    def _lead(self, pk: str, group: str, now: float) -> Row | None:
        """The header with what was sent, by us or by someone else; None while someone else is at it."""
        sender = uuid.uuid4().hex
        mine = {"sender": sender, "lease_until": now + LEASE_SECONDS, "expires_at": int(now) + _KEPT_SECONDS}
        free = missing("sender") | (missing("sent") & below("lease_until", now))
        try:
            self._table.write(pk, _HEADER, sets=mine, when=free, quiet=True)
        except Conflict as conflict:
            return conflict.row
        still_mine = equals("sender", sender) & missing("sent")
        try:
            sent = [{"ticket": self._send(group, items), "keys": keys} for items, keys in self._batches(pk)]
        except BaseException:
            with contextlib.suppress(Conflict):
                self._table.write(pk, _HEADER, sets={"lease_until": 0.0}, when=still_mine, quiet=True)
            raise
        try:
            return self._table.write(pk, _HEADER, sets={"sent": sent}, when=still_mine)
        except Conflict as conflict:  # it took longer than the lease, and someone else has sent it too
            return conflict.row

    def _batches(self, pk: str) -> Iterator[tuple[list[str], list[str]]]:
        """(items, keys of their rows) of each command."""
        rows = [row for row in self._table.query(pk) if row["sk"][0] not in (_HEADER, _ANSWER)]
        while rows:
            items: dict[str, str] = {}  # what an item names -> the item
            keys, left = [], []
            for row in rows:
                named = {_named(item): item for item in row["items"]}
                full = len(items.keys() | named.keys()) > MOST_ITEMS
                clash = any(items.get(name, item) != item for name, item in named.items())
                if items and (full or clash):
                    left.append(row)
                    continue
                items |= named
                keys.append(row["sk"])
            yield list(items.values()), keys
            rows = left

    # --- hearing ---------------------------------------------------------------------------------

    def _answer(self, pk: str, number: int, ticket: str) -> Answer:
        sk = f"{_ANSWER}{number}"
        row = self._table.get(pk, sk) or {}
        if "answer" in row:
            said = json.loads(row["answer"])
            return Answer(AnswerState(said["state"]), said["value"], said["reason"])
        now = self._clock.now()
        asked = {"asked_at": now, "expires_at": int(now) + _KEPT_SECONDS}
        free = missing("asked_at") | below("asked_at", now - self._poll_seconds)
        try:
            self._table.write(pk, sk, sets=asked, when=free, quiet=True)
        except Conflict:
            return Answer(AnswerState.PENDING)
        answer = self._hear(ticket)
        if answer.state is not AnswerState.PENDING:
            text = json.dumps({"state": answer.state, "value": answer.value, "reason": answer.reason})
            if len(text.encode()) <= _STORED_BYTES:
                self._table.write(pk, sk, sets={"answer": text}, quiet=True)
        return answer


def _pk(group: str, slot: int) -> str:
    return f"GATHER#{group}#{slot}"


def _parts(items: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """What fits into one command each; the same items give the same parts."""
    whole = tuple(dict.fromkeys(items))
    for start in range(0, len(whole), MOST_ITEMS):
        yield whole[start : start + MOST_ITEMS]


def _key(part: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(part).encode()).hexdigest()[:24]


def _named(item: str) -> str:
    return item.partition("=")[0]
