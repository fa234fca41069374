"""The stored intent of one launch: the map `launch` of the row that the instance is for.

    {"number": of the round of tokens, "offering": key and "token": what is being tried, "lease_until" and
     "holder": by which call, "passed": keys that failed in this round, "out": {key: what must be changed},
     "spent": {key: tokens that EC2 answered without a known reason}, "unlisted_since": epoch seconds}

Who owns the row adds "instance_id" and more; then nothing here is written any more.
"""

import uuid
from collections.abc import Callable
from typing import Any

from planaria.core.cluster import Offering
from planaria.core.errors import Waiting
from planaria.core.incident import launch_token
from planaria.core.table import Condition, Conflict, Row, below, equals, missing

LEASE_SECONDS = 10.0


class Intent:
    """launch: as stored, {} at first. write: (sets, removes, when) -> the row after it, fenced."""

    def __init__(self, launch: Row, write: Callable[..., Row]) -> None:
        self.launch: Row = launch or {"number": 1}
        self._write = write

    @property
    def token(self) -> str | None:
        return self.launch.get("token")

    @property
    def out(self) -> dict[str, str]:
        return dict(self.launch.get("out") or {})

    def failed(self, offering: Offering) -> bool:
        """In this round, or until a person has changed something."""
        return offering.key in self.launch.get("passed", ()) or offering.key in self.out

    def lease(self, offering: Offering, key: str, now: float) -> tuple[str, bool]:
        """(the token, is it new?), and for a short time the right to launch with it: two deliveries of one
        Task must not both call EC2. Raises Waiting while another call has it."""
        # A stored token goes before a new one: it may have launched already, in another session's name.
        new = self.token is None
        token = self.token or launch_token(key, int(self.launch["number"]), offering.key)
        lease = {"lease_until": now + LEASE_SECONDS, "holder": uuid.uuid4().hex}
        free = missing(("launch", "lease_until")) | below(("launch", "lease_until"), now)
        try:
            self._set({**self.launch, "offering": offering.key, "token": token, **lease}, free)
        except Conflict as conflict:
            held = (conflict.row or {}).get("launch") or {}
            raise Waiting(f"launch {held.get('token', '')} is under way by another call") from None
        return token, new

    def choose(self, offering: Offering) -> None:
        """Of an offering that has no tokens: whoever goes on with this launch begins with it."""
        if self.launch.get("offering") != offering.key:
            self._follow({**self.launch, "offering": offering.key})

    def drop(self) -> None:
        """Its token has no instance, and its offering is not to be had any more."""
        number = int(self.launch["number"]) + 1
        self._follow({**self._kept("passed", "out", "spent"), "number": number})

    def pass_over(self, offering: Offering, out: str = "") -> None:
        """On to the next offering. out: what has to be changed before this one can be used again."""
        following = self._kept("number", "out", "spent")
        following["passed"] = [*self.launch.get("passed", ()), offering.key]
        if out:
            following["out"] = {**self.out, offering.key: out}
        self._follow(following)

    def hold(self, since: float) -> None:
        """Keep the token and free the lease: an instance of it may not be listed yet."""
        following = {name: value for name, value in self.launch.items() if name != "lease_until"}
        self._follow({**following, "unlisted_since": since})

    def renew(self, spent: dict[str, int]) -> None:
        """Another token, for the offerings that this round has left."""
        number = int(self.launch["number"]) + 1
        self._follow({**self._kept("passed", "out"), "number": number, "spent": spent})

    def next_round(self) -> None:
        if self.launch.get("passed"):
            self._follow({**self._kept("out"), "number": int(self.launch["number"]) + 1})

    def _kept(self, *names: str) -> Row:
        return {name: self.launch[name] for name in names if name in self.launch}

    def _follow(self, following: Row) -> None:
        """Unless another call has gone on, or has launched, with this intent after all."""
        token = self.token
        same = missing(("launch", "token")) if token is None else equals(("launch", "token"), token)
        try:
            self._set(following, same)
        except Conflict:
            raise Waiting("another call goes on with this launch") from None

    def _set(self, launch: Row, when: Condition) -> None:
        sets: dict[Any, Any] = {"launch": launch}
        self.launch = self._write(sets, (), missing(("launch", "instance_id")) & when)["launch"]
