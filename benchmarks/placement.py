"""How near to its job a replacement comes, how often that is the best there is, and how long it takes.

    python -m benchmarks.placement [--clusters 1000] [--large 100]

Nothing but this machine's processor is needed: the clusters are drawn, always the same ones.
docs/benchmarks.md says what each figure means.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import networks
from benchmarks.bursts import percentile
from benchmarks.networks import MOST_NODES, MOST_WAYS, Network
from benchmarks.report import Aim, Machine, Reached, Spread, line
from benchmarks.screen import Screen

NAME = "placement"
COUNTS = range(1, 9)

WAYS: Mapping[str, networks.Choice] = {
    "planaria": networks.planaria,
    "one after the other": networks.one_after_the_other,
    "nearest each": networks.nearest_each,
    "first fit": networks.first_fit,
    "random": networks.at_random,
}

RIVALS = {
    "Slurm topology/tree": {
        "measured": None,
        "why": "places whole jobs by the fewest leaf switches; a requeued job that keeps its survivors names "
        "its nodes, and then Slurm chooses nothing",
    },
    "Kueue topology-aware scheduling": {
        "measured": None,
        "why": "replaces one failed node inside the domain that the workload was given, or evicts it: there "
        "is no choice by distance to compare, and it needs a Kubernetes cluster",
    },
    "NVIDIA topograph": {
        "measured": None,
        "why": "tells schedulers of the topology (topology.conf, node labels) and chooses no node",
    },
}


@dataclass(frozen=True, slots=True)
class Options:
    clusters: int = 1000
    large: int = 100


@dataclass(slots=True)
class Measured:
    """single, several: was it the optimum, one value per enumerated case. worse: cases in which one after the
    other was better. over: per way to choose, the hops it added as a multiple of the optimum's. decisions:
    milliseconds at 4,096 nodes, by the number of nodes that are chosen; processor: of processor time."""

    clusters: int = 0
    nodes: list[int] = field(default_factory=list)
    single: list[bool] = field(default_factory=list)
    several: list[bool] = field(default_factory=list)
    compared: int = 0
    worse: int = 0
    over: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in WAYS})
    decisions: dict[int, list[float]] = field(default_factory=lambda: {count: [] for count in COUNTS})
    processor: list[float] = field(default_factory=list)

    def look(self, of: Network) -> None:
        """Compare the ways to choose in one cluster."""
        self.clusters += 1
        self.nodes.append(of.nodes)
        alone = Network(of.job, of.spares, of.idle, 1)
        self.single.append(networks.added(networks.planaria, alone) == networks.optimum(alone))
        if of.count == 1:
            return
        ours = networks.added(networks.planaria, of)
        self.compared += 1
        self.worse += ours > networks.added(networks.one_after_the_other, of)
        if of.ways <= MOST_WAYS:
            best = networks.optimum(of)
            self.several.append(ours == best)
            for name, choice in WAYS.items():
                self.over[name].append(networks.added(choice, of) / best)

    def clock(self, of: Network) -> None:
        for count in COUNTS:
            wall, used = networks.milliseconds(of, count)
            self.decisions[count].append(wall)
            self.processor.append(used)


def measure(options: Options, screen: Screen) -> Measured:
    found = Measured()
    screen.say("choices in clusters of all sizes")
    for number in range(options.clusters):
        found.look(networks.network(number))
        screen.step()
    screen.say(f"decisions in {MOST_NODES} nodes")
    networks.milliseconds(networks.network(0, large=True), max(COUNTS))  # pays for what Python does once
    for number in range(options.large):
        found.clock(networks.network(number, large=True))
        screen.step()
    return found


def figures(found: Measured) -> dict[str, Any]:
    everything = [value for values in found.decisions.values() for value in values]
    return {
        "clusters": found.clusters,
        "nodes_per_cluster": Spread.of(found.nodes, 0).document(),
        "cases_of_one": len(found.single),
        "cases_of_several": found.compared,
        "cases_of_several_enumerated": len(found.several),
        "hops_added_over_the_optimum": {
            name: {
                "mean": round(statistics.mean(values), 4),
                "most": round(max(values), 3),
                "share_optimal": round(sum(value == 1.0 for value in values) / len(values), 4),
            }
            for name, values in found.over.items()
            if values
        },
        "milliseconds_per_decision_at_4096_nodes": {
            "p50": round(statistics.median(everything), 2),
            "p99": round(percentile(everything, 99), 2),
            "most": round(max(everything), 2),
            "number": len(everything),
            "processor_p50": round(statistics.median(found.processor), 2),
            "processor_p99": round(percentile(found.processor, 99), 2),
            "median_by_nodes_chosen": {
                str(count): round(statistics.median(values), 2) for count, values in found.decisions.items()
            },
        },
        "rivals": RIVALS,
    }


def aims(found: Measured) -> dict[str, Aim | Reached]:
    share = sum(found.several) / len(found.several) if found.several else 0.0
    everything = [value for values in found.decisions.values() for value in values]
    longest = round(percentile(everything, 99), 2)
    return {
        "share_of_single_replacements_at_the_optimum": Reached(sum(found.single) / len(found.single), 1.0),
        "share_of_two_to_eight_at_the_optimum": Reached(round(share, 6), 0.99),
        "cases_worse_than_one_after_the_other": Aim(found.worse, 0),
        "milliseconds_per_decision_at_4096_nodes_p99": Aim(longest, 50.0, below=True),
    }


# --- command line -------------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__.split("\n")[0])
    parser.add_argument("--clusters", type=_number(1, 100_000), default=1000, help="clusters that are drawn")
    parser.add_argument(
        "--large", type=_number(1, 10_000), default=100, help=f"clusters of {MOST_NODES} nodes for the time"
    )
    chosen = parser.parse_args(arguments)
    return Options(chosen.clusters, chosen.large)


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")
        return int(text)

    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    machine = Machine.here()
    try:
        with Screen(options.clusters + options.large) as screen:
            found = measure(options, screen)
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted; nothing is left behind.", file=sys.stderr)
        return 130
    print(line(NAME, machine, figures(found), aims(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
