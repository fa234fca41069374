"""How fast events become decisions, and what a storm costs on its way through queue, Lambda and ledger.

    python -m benchmarks.triage [--runs 7] [--storms 3]

The first part runs the core on recorded events of every source, on one core of this machine. The second part
deploys the CDK app to the sandbox and lets storms of 10,000 events through, of which 99 % are duplicates; a
lost event or a wrong incident ends the run. docs/benchmarks.md says what each figure means.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from benchmarks import costs, decisions, storms
from benchmarks.costs import Usage
from benchmarks.observed import Observer
from benchmarks.report import Machine, Reached, Spread, line
from benchmarks.storms import Plan, Weathered
from planaria.core.errors import PlanariaError
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.kept_logs import LoggedWorld
from planaria.sandbox.world import WorldConfig

NAME = "triage"
CLUSTER = Path(__file__).with_name("cluster.yaml")
AIM_PER_SECOND = 50_000
RUN_SECONDS = 1.0
PATIENCE_SECONDS = 180.0
MILLION = 1_000_000

EXPECTED = ("xid HEALED", "spot_interruption HEALED")
"""The incidents of one storm: of the sick node and of the doomed one."""

RIVALS = {
    "NVSentinel, gpud, eks-node-monitoring-agent": {
        "measured": None,
        "why": "Go programs that watch the kernel log of their own node and end there; none reads events of "
        "AWS, keeps a ledger or opens incidents: one run of both would not measure the same thing",
    },
    "SageMaker HyperPod": {
        "measured": None,
        "why": "its health agent and its repair run inside AWS and show no figure of their own",
    },
}


@dataclass(frozen=True, slots=True)
class Options:
    runs: int = 7
    storms: int = 3
    events: int = 10_000


@dataclass(slots=True)
class Storms:
    """What was measured of each storm, in turn. usages: what triage used for it; invocations of triage."""

    weathered: list[Weathered] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    invocations: list[int] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)


def measure_storms(options: Options, say: Callable[[str], None]) -> Storms:
    """Raises SandboxError with a sentence, when an event is lost or an incident is not the right one too."""
    measured = Storms()
    with deployed(say) as world:
        assert world.emulator is not None
        gateways = world.gateways()
        lanes = storms.Lanes(world.emulator, gateways)
        observer = Observer(world.emulator, world.file.name)
        names = [f"{world.file.name}-{number}" for number in range(1, 5)]
        for number in range(options.storms):
            present = world.head().get("/status")["scheduler"]
            turn = names[number % 4 :] + names[: number % 4]
            sick, doomed, *noisy = (str(present[name]["node_id"]) for name in turn)
            plan = Plan(sick, doomed, tuple(noisy), options.events)
            title = f"storm {number + 1} of {options.storms}"
            found = storms.weather(lanes, plan, PATIENCE_SECONDS, titled(title, say), number)
            usage, invocations = observer.storm(found.begun, found.events)
            say(f"{title}: waiting for its incidents to end")
            check_incidents(lanes, plan)
            measured.weathered.append(found)
            measured.usages.append(usage)
            measured.invocations.append(invocations)
            measured.loads.append(os.getloadavg()[0])
            say(
                f"{title}: {found.events:,} events in {found.seconds:.1f} s, the spot warning claimed after "
                f"{found.claimed_after:.2f} s with {found.waiting_then:,} still waiting; {found.outcomes}"
            )
    return measured


def titled(title: str, say: Callable[[str], None]) -> Callable[[str], None]:
    """say() with this before each text."""
    return lambda text: say(f"{title}: {text}")


def check_incidents(lanes: storms.Lanes, plan: Plan) -> None:
    """Waits until the storm's incidents have ended; raises SandboxError when they are not the right ones."""
    nodes = (plan.sick, plan.doomed, *plan.noisy)

    def ended() -> dict[str, list[str]] | None:
        found = storms.incidents(lanes, nodes)
        over = not any(text.endswith("OPEN") for texts in found.values() for text in texts)
        return found if over and found[plan.sick] and found[plan.doomed] else None

    found = storms.until("end of the storm's incidents", ended, PATIENCE_SECONDS)
    right: dict[str, list[str]] = {node: [] for node in plan.noisy}
    right |= {plan.sick: [EXPECTED[0]], plan.doomed: [EXPECTED[1]]}
    if found != right:
        raise SandboxError(f"The storm's incidents are {found}, and not {right}.")


@contextmanager
def deployed(say: Callable[[str], None]) -> Iterator[LoggedWorld]:
    """A sandbox of four idle nodes in a folder of its own; nothing is left of it."""
    with tempfile.TemporaryDirectory(prefix="planaria-bench-") as scratch:
        config = WorldConfig(Path(scratch) / "sandbox", CLUSTER, direct=True)
        world = LoggedWorld(config, say)
        with world.ended_by_failure():
            world.up()
            yield world
            world.down()


# --- figures ------------------------------------------------------------------------------------------


def figures(core: Mapping[str, Any], measured: Storms) -> dict[str, Any]:
    found: dict[str, Any] = {"one_core": dict(core)}
    if measured.weathered:
        found["storm"] = storm_figures(measured)
    return found | {"rivals": RIVALS}


def storm_figures(measured: Storms) -> dict[str, Any]:
    """The bill is that of the storm with the median cost, for a million such events."""
    prices = costs.price_list()
    bills = []
    for one, usage in zip(measured.weathered, measured.usages, strict=True):
        bills.append(costs.bill(per_million(usage, one.events), prices))
    middle = sorted(bills, key=lambda bill: float(bill["total"]))[len(bills) // 2]
    last = measured.weathered[-1]
    return {
        "events": last.events,
        "events_per_second": Spread.of(
            (one.events / one.seconds for one in measured.weathered), 0
        ).document(),
        "seconds": Spread.of(one.seconds for one in measured.weathered).document(),
        "invocations_of_triage": Spread.of(measured.invocations, 0).document(),
        "events_with_a_row": Spread.of((one.rows for one in measured.weathered), 0).document(),
        "dynamodb_write_units_per_storm": Spread.of(
            (usage.dynamodb_write_units for usage in measured.usages), 0
        ).document(),
        "dynamodb_read_units_per_storm": Spread.of(
            (usage.dynamodb_read_units for usage in measured.usages), 0
        ).document(),
        "outcomes_of_the_last": last.outcomes,
        "incidents_of_each": list(EXPECTED),
        "lost": 0,
        "spot_claimed_after_seconds": Spread.of(one.claimed_after for one in measured.weathered).document(),
        "events_waiting_when_spot_was_claimed": Spread.of(
            (one.waiting_then for one in measured.weathered), 0
        ).document(),
        "load_average": Spread.of(measured.loads).document(),
        "usd_per_million_events": Spread.of((float(bill["total"]) for bill in bills), 4).document(),
        "usd_arithmetic_per_million": middle,
    }


def per_million(usage: Usage, events: int) -> Usage:
    return replace(usage, **{name: quantity * MILLION / events for name, quantity in asdict(usage).items()})


def aims(core: Mapping[str, Any], measured: Storms) -> dict[str, Reached]:
    found = {
        "signals_per_second_to_decision": Reached(
            core["signals_per_second_to_decision"]["median"], AIM_PER_SECOND
        )
    }
    if measured.weathered:
        # Measured storms have passed both checks: each raises.
        share = 1.0 if all(sum(one.outcomes.values()) == one.events for one in measured.weathered) else 0.0
        found["share_of_events_with_an_outcome"] = Reached(share, 1.0)
        found["storms_with_exactly_the_right_incidents"] = Reached(
            len(measured.weathered), len(measured.weathered)
        )
    return found


# --- command line -------------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--runs", type=_number(1, 100), default=7, help="runs of the core, a second per figure"
    )
    parser.add_argument(
        "--storms", type=_number(0, 20), default=3, help="storms in the sandbox; 0: no sandbox"
    )
    parser.add_argument("--events", type=_number(200, 20_000), default=10_000, help="events of one storm")
    chosen = parser.parse_args(arguments)
    return Options(chosen.runs, chosen.storms, chosen.events)


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}")
        return int(text)

    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    machine = Machine.here()
    signal.signal(signal.SIGTERM, _terminated)
    console = Console(stderr=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    try:
        core = decisions.measure(options.runs, RUN_SECONDS, say)
        measured = measure_storms(options, say) if options.storms else Storms()
    except PlanariaError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted; nothing is left behind.", file=sys.stderr)
        return 130
    print(line(NAME, machine, figures(core, measured), aims(core, measured)))
    return 0


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
