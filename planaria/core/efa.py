"""How many EFA devices an instance type has, and on which network cards: catalog/efa.csv, with sources.

EC2 attaches what the launch names, and no more: a template without interfaces of its own gives an instance
one ENA interface and no EFA at all.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Efa:
    """cards: network cards of the type; devices: EFA devices at most, one per card from the last one down."""

    cards: int
    devices: int
    sources: str

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """(network card, device index) of each device. The first interface of card 0 is the instance's own
        address, which cannot be EFA alone, so a device there is its second one.
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html
        """
        first = self.cards - self.devices
        return tuple((card, 1 if card == 0 else 0) for card in range(first, self.cards))


def efa_of(instance_type: str) -> Efa | None:
    """None for a type of which nothing is known."""
    return _table().get(instance_type)


@cache
def _table() -> dict[str, Efa]:
    content = resources.files("planaria.core.catalog").joinpath("efa.csv").read_text(encoding="utf-8")
    return {
        row["instance_type"]: Efa(int(row["cards"]), int(row["devices"]), row["sources"])
        for row in csv.DictReader(content.splitlines(), strict=True)
    }
