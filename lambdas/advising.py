"""Telling a person what to change where EC2 refuses an offering of a node group for good."""

from lambdas.boundary import logger
from planaria.core.cluster import NodeGroup, Offering
from planaria.core.errors import PlanariaError
from planaria.core.offering_rows import OfferingRows
from planaria.wiring import Gateways


def tell(gw: Gateways, group: NodeGroup, offering: Offering, advice: str, said: str, by: str) -> None:
    """Mail a person, once per group and reason; that it cannot be mailed is no reason to stop."""
    rows, now = OfferingRows(gw.table), gw.clock.now()
    if not rows.may_tell(group.name, advice, offering.key, by, now, rows.state(group.name)):
        return
    try:
        gw.notices.publish(
            f"Planaria {gw.cluster.name}: node group {group.name} cannot use an offering",
            f"Node group {group.name} gets no instance from {offering.key}.\n"
            f"EC2 says: {said}\n"
            f"What to do: {advice}\n"
            "Until then its other offerings are tried; an incident that has none left is given to you.\n"
            "Runbook: docs/runbooks/launch-refused.md\n",
        )
    except PlanariaError as error:
        logger.error("an offering's advice was not mailed", extra={"reason": str(error), "advice": advice})
        return
    rows.told(group.name, advice, by)
