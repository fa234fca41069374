"""How long the control plane takes from a fault to the first new training step, and what that costs.

    python -m benchmarks.control_plane [--runs 10]

Deploys the CDK app to the sandbox several times over, breaks nodes under a running training job and reads the
incident's timeline, the executions' histories and the ranks' own marks. docs/benchmarks.md says what each
figure means.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import costs, timelines
from benchmarks.recoveries import NODES, Recovery, deployed
from benchmarks.report import Aim, Machine, Spread, line
from benchmarks.screen import Screen
from planaria.core.errors import PlanariaError

NAME = "control_plane"

MAIN_FAULT = "xid79"
OTHER_FAULTS = ("spot", "terminate")
LONG_BOOT_SCALE = 0.02
LONG_BOOT_SECONDS = 900.0

AIM_WARM, AIM_FIRST, AIM_TRANSITIONS, AIM_DOLLARS = 5.0, 10.0, 60, 0.01

RIVALS = {
    "SageMaker HyperPod training operator (awslabs/ai-on-sagemaker-hyperpod@b13e484)": {
        "published_node_fault_remediation_seconds": 94.283,
        "measured": None,
        "why": "needs a HyperPod cluster in an AWS account; the figure is a log line in its "
        "documentation, of other hardware and with other things counted",
    },
    "NVSentinel v0.4.0": {
        "measured": None,
        "why": "needs a Kubernetes cluster with GPU nodes",
    },
}


@dataclass(frozen=True, slots=True)
class Options:
    runs: int = 10
    deploys: int = 3
    others: int = 3
    boot_seconds: float = 3.0
    time_scale: float = 0.1
    long_boot: bool = True

    @property
    def series(self) -> list[list[str]]:
        """The faults of each deploy, in order; the first of each is the first incident after it."""
        found = [[MAIN_FAULT] for _ in range(self.deploys)]
        found[0] += [MAIN_FAULT] * self.runs
        for number, fault in enumerate(OTHER_FAULTS, 1):
            found[number % self.deploys] += [fault] * self.others
        return found


@dataclass(slots=True)
class Measured:
    """first: one recovery per deploy. warm: the others by fault."""

    first: list[Recovery] = field(default_factory=list)
    warm: dict[str, list[Recovery]] = field(default_factory=dict)
    long_boot: Recovery | None = None

    @property
    def everything(self) -> list[Recovery]:
        return [
            *self.first,
            *(one for each in self.warm.values() for one in each),
            *filter(None, [self.long_boot]),
        ]


def measure(options: Options, screen: Screen) -> Measured:
    """Raises SandboxError or InvalidInput with one sentence."""
    measured = Measured()
    for number, faults in enumerate(options.series, 1):
        title = f"deploy {number} of {len(options.series)}"
        with deployed(options.boot_seconds, options.time_scale, screen.titled(title)) as cluster:
            screen.step()
            for turn, fault in enumerate(faults):
                screen.say(f"{title}: {fault}, {turn + 1} of {len(faults)}")
                recovery = cluster.recover(fault, NODES[turn % len(NODES)])
                if turn == 0:
                    measured.first.append(recovery)
                else:
                    measured.warm.setdefault(fault, []).append(recovery)
                screen.step(told(recovery, "first after deploy" if turn == 0 else "warm"))
    if options.long_boot:
        boot = LONG_BOOT_SECONDS * LONG_BOOT_SCALE
        with deployed(boot, LONG_BOOT_SCALE, screen.titled("15-minute boot")) as cluster:
            screen.step()
            screen.say("15-minute boot: waiting for the replacement")
            measured.long_boot = cluster.recover(MAIN_FAULT, NODES[0])
            screen.step(told(measured.long_boot, f"first after deploy, boot of {LONG_BOOT_SECONDS:.0f} s"))
    return measured


def told(recovery: Recovery, kind: str) -> str:
    """A recovery in one line."""
    segments = recovery.segments
    return (
        f"{recovery.fault} ({kind}): {recovery.total:.2f} s, of it boot {segments['boot']:.2f}, "
        f"rank start {segments['rank_start']:.2f}, control plane {recovery.control:.2f}; "
        f"{recovery.usage.state_transitions:.0f} transitions, "
        f"{recovery.usage.lambda_requests:.0f} invocations"
    )


# --- figures ------------------------------------------------------------------------------------------


def figures(measured: Measured, options: Options) -> dict[str, Any]:
    prices = costs.price_list()
    found: dict[str, Any] = {
        "boot_seconds_configured": options.boot_seconds,
        "time_scale": options.time_scale,
        f"first_{MAIN_FAULT}": summary(measured.first, prices),
    }
    for fault, recoveries in measured.warm.items():
        found[f"warm_{fault}"] = summary(recoveries, prices)
    if (long := measured.long_boot) is not None:
        found["long_boot"] = {
            "simulated_boot_seconds": LONG_BOOT_SECONDS,
            "time_scale": LONG_BOOT_SCALE,
            "boot_seconds": round(long.segments["boot"], 3),
            "load_average": round(long.load, 2),
            "state_transitions": long.usage.state_transitions,
            "lambda_requests": long.usage.lambda_requests,
            "usd": costs.bill(long.usage, prices)["total"],
        }
    return found | {"rivals": RIVALS}


def summary(recoveries: Sequence[Recovery], prices: Mapping[str, float]) -> dict[str, Any]:
    """Seconds as median, min, max, n; the bill is that of the recovery with the median total cost."""
    bills = sorted((costs.bill(one.usage, prices)["total"], n) for n, one in enumerate(recoveries))
    chosen = recoveries[bills[len(bills) // 2][1]]
    besides = [asdict(one.beside) for one in recoveries]
    return {
        "total_seconds": _spread(one.total for one in recoveries),
        "control_plane_seconds": _spread(one.control for one in recoveries),
        "segment_seconds": {
            name: _spread(one.segments[name] for one in recoveries) for name in timelines.SEGMENTS
        },
        "beside_seconds_after_begun": {
            name: _spread(values)
            for name in besides[0]
            if (values := [b[name] for b in besides if b[name] is not None])
        },
        "load_average": _spread(one.load for one in recoveries),
        "emulator_start_delay_seconds": _spread(one.start_delay for one in recoveries),
        "state_transitions": _spread(one.usage.state_transitions for one in recoveries),
        "lambda_requests": _spread(one.usage.lambda_requests for one in recoveries),
        "lambda_requests_by_function": chosen.calls,
        "lambda_gb_seconds": _spread((one.usage.lambda_gb_seconds for one in recoveries), 6),
        "usd": _spread((dollars for dollars, _ in bills), 8),
        "usd_with_lambdas_ten_times_as_slow": costs.bill(chosen.usage.slower(10), prices)["total"],
        "usd_arithmetic": costs.bill(chosen.usage, prices),
    }


def _spread(values: Any, digits: int = 3) -> dict[str, float]:
    return Spread.of(values, digits).document()


def aims(measured: Measured) -> dict[str, Aim]:
    """Boot and rank start-up are not counted. All but the warm median count at their worst."""
    prices = costs.price_list()
    warm = measured.warm.get(MAIN_FAULT, [])
    every = measured.everything
    usual = warm or measured.first
    found = {
        "warm_median_seconds": Aim(Spread.of(r.control for r in warm).median if warm else None, AIM_WARM),
        "first_after_deploy_worst_seconds": Aim(round(max(r.control for r in measured.first), 3), AIM_FIRST),
        "state_transitions_most": Aim(max(r.usage.state_transitions for r in every), AIM_TRANSITIONS),
        "usd_most": Aim(max(costs.bill(r.usage, prices)["total"] for r in every), AIM_DOLLARS, below=True),
    }
    if measured.long_boot is not None:
        more = measured.long_boot.usage.state_transitions - min(r.usage.state_transitions for r in usual)
        found["state_transitions_more_with_15_minute_boot"] = Aim(more, 0)
    return found


# --- command line -------------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> tuple[Options, Path | None]:
    """What to measure, and the file for the details."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=_at_least(1), default=10, help="warm recoveries from Xid 79")
    parser.add_argument(
        "--deploys", type=_at_least(1), default=3, help="fresh deploys, each with a first incident"
    )
    parser.add_argument(
        "--others", type=_at_least(0), default=3, help="warm recoveries from each other fault"
    )
    parser.add_argument("--boot-seconds", type=float, default=3.0, help="how long a node boots")
    parser.add_argument("--details", type=Path, help="file that gets one JSON line per recovery")
    parser.add_argument("--no-long-boot", action="store_true", help="leave out the simulated 15-minute boot")
    chosen = parser.parse_args(arguments)
    if not 0 <= chosen.boot_seconds <= 60:
        parser.error("--boot-seconds must be between 0 and 60")
    if chosen.details is not None and not chosen.details.resolve().parent.is_dir():
        parser.error(f"--details: the folder of {chosen.details} does not exist")
    long_boot = not chosen.no_long_boot
    options = Options(chosen.runs, chosen.deploys, chosen.others, chosen.boot_seconds, long_boot=long_boot)
    return options, chosen.details


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}")
        return int(text)

    return number


def main(arguments: Sequence[str] | None = None) -> int:
    options, details = parse(arguments)
    machine = Machine.here()
    signal.signal(signal.SIGTERM, _terminated)
    steps = sum(1 + len(faults) for faults in options.series) + 2 * options.long_boot
    try:
        with Screen(steps) as screen:
            measured = measure(options, screen)
    except PlanariaError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted; nothing is left behind.", file=sys.stderr)
        return 130
    if details is not None:
        lines = [json.dumps(recovery.document()) + "\n" for recovery in measured.everything]
        details.write_text("".join(lines), encoding="utf-8")
    print(line(NAME, machine, figures(measured, options), aims(measured)))
    return 0


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
