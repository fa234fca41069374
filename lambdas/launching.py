"""One instance, whatever crashes when: the launch protocol over an ordered list of offerings.

Intent first (offering, token, lease), then a look-up by tag, then CreateFleet with the token as ClientToken.
Whoever owns the row of the intent records the instance there. Shared by replacements and refills of spares.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from lambdas import advising
from lambdas.launch_intent import Intent
from planaria.core import offerings, tags
from planaria.core.cluster import Capacity, NodeGroup, Offering
from planaria.core.errors import CapacityError, PermanentError, Waiting
from planaria.core.offering_rows import OfferingRows
from planaria.core.offerings import Problem, SpentToken, Unusable
from planaria.core.plans import GONE_STATES
from planaria.core.ports import Instance, LaunchRequest
from planaria.core.table import Row
from planaria.wiring import Gateways

UNLISTED_SECONDS = 60.0
"""EC2 lists a new instance after seconds; a token without one after so long has none."""

SPENT_TOKENS = 3
"""An offering that has used up so many tokens for a reason that nobody knows is out."""


class NoOffering(CapacityError):
    """All offerings were asked. crowded: one of them would have a place if the node that leaves were gone."""

    def __init__(self, reason: str, crowded: bool) -> None:
        super().__init__(reason)
        self.crowded = crowded


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """One instance that is wanted.

    key: goes into its tokens: the id of the incident or of the refill. offerings: first to last. marks: its
    tags. write: a fenced write of the row that holds `launch`: (sets, removes, when) -> the row after it; it
    raises Conflict only for `when`. leaves: the row of the node that will end for this one and so leaves a
    place: that its own reservation is full, or its quota, is nobody else's matter. take: the spare that this
    order gets, if any. more: further fields of a request with this token.
    """

    key: str
    group: NodeGroup
    offerings: tuple[Offering, ...]
    marks: Mapping[str, str]
    write: Callable[..., Row]
    replaces: str = ""
    leaves: Row | None = None
    take: Callable[[], str | None] = lambda: None
    more: Callable[[str], Mapping[str, Any]] = lambda _: {}


def launch_one(gw: Gateways, order: Order, launch: Row) -> tuple[Row, Offering, str]:
    """(`launch` as stored, the offering, the instance id; "" where a group wants no further instance).

    launch: the stored intent, empty at first. Raises Waiting while another call launches or EC2 throttles,
    NoOffering once all offerings were asked, PermanentError with what a person has to change once all are
    out, TransientError where the same token is to be tried again.
    """
    return _Try(gw, order, launch).run()


class _Try:
    """One call. _state: what the group's row says of its offerings."""

    def __init__(self, gw: Gateways, order: Order, launch: Row) -> None:
        self._gw, self._order = gw, order
        self._intent = Intent(launch, order.write)
        self._rows = OfferingRows(gw.table)
        self._group = order.group.name
        self._state = self._rows.state(self._group)
        self._known = {offering.key: offering for offering in order.offerings}
        self._by = order.replaces or order.key
        self._why: list[str] = []
        self._crowded = False

    def run(self) -> tuple[Row, Offering, str]:
        while True:
            offering = self._begun() or self._next()
            if offering is None:
                raise self._round_over()
            spare = offering.capacity is Capacity.SPARE
            instance = self._spare(offering) if spare else self._instance(offering)
            if instance is not None:
                self._rows.proven(self._group, offering.key, self._state)
                return self._intent.launch, offering, instance

    # --- which one -------------------------------------------------------------------------------

    def _begun(self) -> Offering | None:
        """The offering of the stored intent."""
        offering, token = self._known.get(str(self._intent.launch.get("offering", ""))), self._intent.token
        if offering is not None or token is None:
            return offering
        # It is not in the list any more: deployed anew meanwhile, or its capacity ends.
        for instance in self._alive(token):
            capacity = Capacity.SPOT if instance.lifecycle == "spot" else Capacity.ON_DEMAND
            return Offering(instance.instance_type, capacity, "", instance.reservation, zone=instance.zone)
        leased = float(self._intent.launch.get("lease_until", 0.0))
        if self._gw.clock.now() < leased + UNLISTED_SECONDS:
            raise Waiting(f"an instance of launch {token} may not be listed yet")
        self._intent.drop()
        return None

    def _next(self) -> Offering | None:
        now = self._gw.clock.now()
        for offering in self._order.offerings:
            if self._intent.failed(offering):
                continue
            why = offerings.cooling(self._state, offering, self._by, now)
            if not why or self._own(offering):
                return offering
            self._why.append(f"{offering.key} is passed over for a while ({why})")
        return None

    def _own(self, offering: Offering) -> bool:
        leaves = self._order.leaves
        return leaves is not None and offerings.same_reservation(leaves, offering)

    def _round_over(self) -> PermanentError | CapacityError:
        out = self._intent.out
        if offerings.all_out(self._order.offerings, out):
            told = "; ".join(dict.fromkeys(out.values()))
            return PermanentError(f"every offering of node group {self._group} is refused by EC2: {told}")
        self._intent.next_round()
        why = "; ".join(dict.fromkeys([*self._why, *out.values()]))
        reason = f"no offering of node group {self._group} has capacity now"
        return NoOffering(f"{reason}: {why}" if why else reason, self._crowded)

    # --- one of them -----------------------------------------------------------------------------

    def _spare(self, offering: Offering) -> str | None:
        self._intent.choose(offering)
        instance = self._order.take()
        if instance is None:
            self._pass_over(offering, "no spare stands by")
        return instance

    def _instance(self, offering: Offering) -> str | None:
        token, new = self._intent.lease(offering, self._order.key, self._gw.clock.now())
        # A token that this call was the first to write has launched nothing yet.
        found = [] if new else self._gw.fleet.launched(token)
        alive = sorted(i.node_id for i in found if i.state not in GONE_STATES)
        if alive:
            return alive[0]
        try:
            if found:
                raise SpentToken(f"the instance of launch {token} has ended")
            return self._gw.fleet.launch(self._request(offering, token))
        except SpentToken as spent:
            self._renew(offering, spent, ended=bool(found))
        except CapacityError as error:
            self._full(offering, str(error))
        except PermanentError as error:
            self._refused(offering, error)
        return None

    def _alive(self, token: str) -> list[Instance]:
        return [i for i in self._gw.fleet.launched(token) if i.state not in GONE_STATES]

    def _request(self, offering: Offering, token: str) -> LaunchRequest:
        request = LaunchRequest(
            token=token,
            launch_template=offering.launch_template or self._order.group.launch_template,
            instance_type=offering.instance_type,
            subnet=offering.subnet,
            capacity=offering.capacity.value,
            tags={tags.GROUP: self._group, **self._order.marks},
            reservation=offering.reservation,
            auto_scaling_group=self._order.group.auto_scaling_group,
            replaces=self._order.replaces,
        )
        return dataclasses.replace(request, **self._order.more(token))

    # --- what EC2 says to it ---------------------------------------------------------------------

    def _full(self, offering: Offering, why: str) -> None:
        if self._own(offering):
            self._crowded = True
        else:
            now = self._gw.clock.now()
            until = now + self._gw.cluster.policy.cooldown_seconds
            self._rows.cool(self._group, offering.key, self._by, why, now, until)
        self._pass_over(offering, why)

    def _refused(self, offering: Offering, error: PermanentError) -> None:
        problem = error.problem if isinstance(error, Unusable) else Problem.REQUEST
        leaves = self._order.leaves
        if problem is Problem.QUOTA and leaves is not None and offerings.same_quota(leaves, offering):
            self._crowded = True
            self._pass_over(offering, str(error))
            return
        advice = offerings.advice(problem, offering, self._order.group)
        advising.tell(self._gw, self._order.group, offering, advice, str(error), self._by)
        self._pass_over(offering, str(error), f"{error}. {advice}")

    def _pass_over(self, offering: Offering, why: str, out: str = "") -> None:
        self._why.append(out or f"{offering.key}: {why}")
        self._intent.pass_over(offering, out)

    def _renew(self, offering: Offering, spent: SpentToken, ended: bool) -> None:
        """Another token for the same offering, at once where the last one's instance has ended."""
        now, launch = self._gw.clock.now(), self._intent.launch
        since = float(launch.get("unlisted_since") or now)
        if not spent.certain and now - since < UNLISTED_SECONDS:
            self._intent.hold(since)
            raise Waiting(f"{spent}: an instance of this token may not be listed yet")
        used = dict(launch.get("spent") or {})
        used[offering.key] = int(used.get(offering.key, 0)) + (not ended and not spent.throttled)
        if used[offering.key] >= SPENT_TOKENS:
            self._refused(offering, Unusable(Problem.REQUEST, str(spent)))
            return
        self._intent.renew(used)
        if not ended:
            raise Waiting(str(spent))
