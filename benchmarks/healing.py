"""How many nodes of a large fleet are healed at once, how fast each is isolated, and what each costs.

    python -m benchmarks.healing [--sizes 1,10,150,750]

Deploys the CDK app to the sandbox with 1,503 simulated nodes, puts so many fatal faults on the bus at once
and waits until every node is healed. docs/benchmarks.md says what each figure means.
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from benchmarks import fleet_world, healed
from benchmarks.fleet_world import Burst, HeldBurst
from benchmarks.processor import Metronome
from benchmarks.report import Aim, Machine, line
from benchmarks.screen import Screen
from planaria.core.errors import PlanariaError

NAME = "healing"

FLEET = 1_503
SIZES = (1, 10, 150, 750)
REPEATS = {1: 8, 10: 3}
WARM = (1, 3, 12, 48)  # so that no function has fewer than its four workers when it counts
PATIENCE_SECONDS = 1_200.0
CONCURRENCY = 4  # of each function, in the sandbox

AIM_LAST = {150: 45.0, 750: 240.0}
AIM_HANDLING, AIM_STEP_CPU, AIM_CPU_GROWTH = 0.5, 0.05, 0.25
HANDLED_SIZES = (1, 10)

RIVALS = {
    "NVSentinel v0.4.0": {
        "nodes": [150, 375, 750],
        "seconds_until_last_cordoned": [62.2, 154.6, 303.7],
        "handling_seconds_p50": 0.37,
        "handling_seconds_p99": 0.50,
        "source": "github.com/NVIDIA/NVSentinel tests/scale-tests/results/"
        "FQM_Latency_and_Queue_Depth_Results.md at 4dc8a78",
        "measured": None,
        "why": "published for a real Kubernetes cluster of 1,503 nodes, one event after another, no breaker; "
        "another machine and no emulator, so the figures stand beside ours and are no race",
    },
}


@dataclass(frozen=True, slots=True)
class Options:
    sizes: tuple[int, ...] = SIZES
    fleet: int = FLEET
    boot_seconds: float = 20.0
    time_scale: float = 0.25
    warm: tuple[int, ...] = WARM
    breaker: bool = True

    @property
    def bursts(self) -> list[int]:
        return [size for size in self.sizes for _ in range(REPEATS.get(size, 1))]

    @property
    def within(self) -> int:
        """Faults at once that the breaker lets through, where it is on."""
        return min(10, max(self.sizes))

    @property
    def beyond(self) -> int:
        """Faults at once of which it lets none through."""
        return min(150, self.fleet - sum(self.warm) - self.within)

    @property
    def nodes(self) -> int:
        """Nodes that are broken with the breaker off."""
        return sum(self.warm) + sum(self.bursts)


@dataclass(slots=True)
class Measured:
    """bursts: by size. within, beyond: with the breaker on."""

    bursts: dict[int, list[Burst]] = field(default_factory=dict)
    within: Burst | None = None
    beyond: HeldBurst | None = None


def measure(options: Options, screen: Screen) -> Measured:
    """Raises SandboxError or InvalidInput with one sentence."""
    measured = Measured()
    Metronome.rest()
    times = options.boot_seconds, options.time_scale, PATIENCE_SECONDS
    with fleet_world.deployed(options.fleet, *times, screen.titled("breaker off")) as cluster:
        screen.step()
        for size in options.warm:
            cluster.burst(size, screen.titled(f"warming up, {size} at once"))
            screen.step()
        for size in options.bursts:
            burst = cluster.burst(size, screen.titled(f"{size:,} at once"))
            measured.bursts.setdefault(size, []).append(burst)
            screen.step(told(size, burst))
    if options.breaker:
        cap = sum(options.warm) + options.within
        breaker = {"max_removals": cap, "max_share": 1.0, "window_minutes": 600}
        with fleet_world.deployed(options.fleet, *times, screen.titled("breaker on"), breaker) as cluster:
            screen.step()
            for size in options.warm:
                cluster.burst(size, screen.titled(f"breaker on, warming up, {size} at once"))
                screen.step()
            measured.within = cluster.burst(options.within, screen.titled("breaker on, within its cap"))
            screen.step(told(options.within, measured.within))
            measured.beyond = cluster.held(options.beyond, screen.titled("breaker on, beyond its cap"))
            screen.step()
    return measured


def told(size: int, burst: Burst) -> str:
    """A burst in one line."""
    last = max(burst.isolated.values()) - burst.began
    return (
        f"{size:,} faults at once: the last node isolated after {last:.2f} s, all over after "
        f"{burst.ended - burst.began:.1f} s; load {burst.load:.1f}"
    )


# --- figures ------------------------------------------------------------------------------------------


def figures(measured: Measured, options: Options) -> dict[str, Any]:
    return {
        "fleet_nodes": options.fleet,
        "boot_seconds": options.boot_seconds,
        "time_scale": options.time_scale,
        "reserved_concurrency_per_function": CONCURRENCY,
        "breaker_off": {str(size): healed.summary(bursts) for size, bursts in measured.bursts.items()},
        "breaker_on": _breaker(measured, options),
        "rivals": RIVALS,
    }


def _breaker(measured: Measured, options: Options) -> dict[str, Any] | None:
    if measured.within is None or measured.beyond is None:
        return None
    return {
        "max_removals": sum(options.warm) + options.within,
        "within": healed.summary([measured.within]),
        "beyond": healed.held(measured.beyond),
    }


def aims(found: Mapping[str, Any]) -> dict[str, Aim]:
    """From figures(); aims of sizes that were not measured are left out."""
    sizes: Mapping[str, Mapping[str, Any]] = found["breaker_off"]
    every = list(sizes.values())
    named: dict[str, Aim] = {}
    for size, aim in AIM_LAST.items():
        if each := sizes.get(str(size)):
            named[f"last_of_{size}_isolated_seconds"] = Aim(each["last_isolated_seconds"]["max"], aim)
    transitions = [each["state_transitions"] for each in every]
    if all(each["unknown"] == 0 for each in transitions):
        spread = max(each["max"] for each in transitions) - min(each["min"] for each in transitions)
        named["state_transitions_difference"] = Aim(spread, 0)
    else:
        named["state_transitions_difference"] = Aim(None, 0)
    per_node = [each["lambda_cpu_seconds_per_node"] for each in every]
    growth = max(abs(value / per_node[0] - 1) for value in per_node)
    named["lambda_cpu_per_node_difference_from_the_smallest"] = Aim(round(growth, 3), AIM_CPU_GROWTH)
    slowest = max(each["step_cpu_seconds"]["p99"] for each in every)
    named["lambda_cpu_seconds_per_step_p99"] = Aim(slowest, AIM_STEP_CPU, below=True)
    for size in HANDLED_SIZES:
        if each := sizes.get(str(size)):
            value = each["handling_seconds"]["p99"]
            named[f"handling_seconds_p99_of_{size}"] = Aim(value, AIM_HANDLING, below=True)
    shared = {name for each in every for name in each["rows"]["shared_beside_the_breakers"]}
    named["shared_rows_beside_the_breakers"] = Aim(len(shared), 0)
    return named


# --- command line -------------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__.split("\n")[0])
    default = Options()
    parser.add_argument(
        "--sizes", type=_sizes, default=SIZES, help="faults at once, such as 1,10 (%(default)s)"
    )
    parser.add_argument("--fleet", type=int, default=FLEET, help="simulated nodes (%(default)s)")
    parser.add_argument("--boot-seconds", type=float, default=default.boot_seconds, help="(%(default)s)")
    parser.add_argument("--time-scale", type=float, default=default.time_scale, help="(%(default)s)")
    parser.add_argument("--no-breaker", action="store_true", help="leave out the run with the breaker on")
    chosen = parser.parse_args(arguments)
    options = Options(
        chosen.sizes, chosen.fleet, chosen.boot_seconds, chosen.time_scale, breaker=not chosen.no_breaker
    )
    if not 1 <= options.nodes <= options.fleet <= 10_000 or options.beyond < 1:
        needed = max(options.nodes, sum(options.warm) + options.within + 1)
        parser.error(f"--fleet must be from {needed}, for each node is broken once, to 10000")
    if not 0 <= chosen.boot_seconds <= 600 or not 0.05 <= chosen.time_scale <= 1:
        parser.error("--boot-seconds must be from 0 to 600, --time-scale from 0.05 to 1")
    return options


def _sizes(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError("must be whole numbers above 0 with commas between, such as 1,10")
    return tuple(sorted({int(part) for part in parts}))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    machine = Machine.here()
    signal.signal(signal.SIGTERM, _terminated)
    steps = 1 + len(options.warm) + len(options.bursts) + options.breaker * (3 + len(options.warm))
    try:
        with Screen(steps) as screen:
            measured = measure(options, screen)
    except PlanariaError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted; nothing is left behind.", file=sys.stderr)
        return 130
    found = figures(measured, options)
    print(line(NAME, machine, found, aims(found)))
    return 0


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
