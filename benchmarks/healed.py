"""The figures of bursts of the same size, as `benchmarks.healing` prints them."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import bursts, costs, observed
from benchmarks.fleet_world import MACHINE, Burst, HeldBurst
from planaria.core.incident import Phase

DIGITS = 4


def summary(measured: Sequence[Burst]) -> dict[str, Any]:
    """Seconds have p50, p99, max and n over all nodes of all bursts; what is per node is their mean."""
    lines = [line for burst in measured for line in burst.lines]
    about_nodes = [line for line in lines if line["f"] != bursts.SWEEP]
    nodes = sum(len(burst.put) for burst in measured)
    waits, works, arrivals, transitions = [], [], [], list[int | None]()
    usages = []
    for burst in measured:
        parts = bursts.shares(burst.lines, burst.originals)
        for node, put in burst.put.items():
            waits.append(burst.isolated[node] - put)
            work, arrival = bursts.handling(parts.get(node, []), burst.isolated[node])
            works.append(work)
            arrivals.append(arrival)
        entered = _transitions(burst, parts)
        transitions += entered
        usages.append(_usage(burst, entered))
    known = [number for number in transitions if number is not None]
    cpu = sum(line["cpu"] for line in about_nodes)
    bill = costs.bill(_mean(usages, [len(burst.put) for burst in measured]), costs.price_list())
    until = [b.isolating for b in measured], [b.healing for b in measured]
    return {
        "bursts": len(measured),
        "outcomes": dict(Counter(str(row["phase"]) for burst in measured for row in burst.rows.values())),
        "isolated_seconds": _percentiles(waits),
        "last_isolated_seconds": _percentiles(max(b.isolated.values()) - b.began for b in measured),
        "all_over_seconds": _percentiles(burst.ended - burst.began for burst in measured),
        "handling_seconds": _percentiles(works),
        "arrival_to_isolated_seconds": _percentiles(arrivals),
        "state_transitions": {
            "min": min(known, default=None),
            "median": statistics.median(known) if known else None,
            "max": max(known, default=None),
            "unknown": len(transitions) - len(known),
        },
        "lambda_invocations_per_node": round(len(about_nodes) / nodes, 2),
        "lambda_cpu_seconds_per_node": round(cpu / nodes, DIGITS),
        "lambda_wall_seconds_per_node": round(sum(line["wall"] for line in about_nodes) / nodes, DIGITS),
        "lambda_cold_starts": sum("cold" in line for line in lines),
        "cold_start_cpu_seconds": _percentiles(
            line["cold"]["cpu"] + line["cpu"] for line in lines if "cold" in line
        ),
        "lambda_errors": sum(bool(line["error"]) for line in lines),
        "step_cpu_seconds": _percentiles(cpu for _, _, cpu in bursts.steps(lines)),
        "step_wall_seconds": _percentiles(wall for _, wall, _ in bursts.steps(lines)),
        "steps": _steps(lines, nodes),
        "sweep_cpu_seconds": _percentiles(line["cpu"] for line in lines if line["f"] == bursts.SWEEP),
        "cpu_seconds_per_node_until_isolated": _used(until[0], nodes),
        "cpu_seconds_per_node_until_over": _used(until[1], nodes),
        "slowdown_of_fixed_work": round(statistics.median(burst.slowdown for burst in measured), 2),
        "load_average": _percentiles(burst.load for burst in measured),
        "rows": _rows(measured),
        "breaker_request_seconds": _percentiles(s for line in lines for s in line.get("breaker", [])),
        "usd_per_recovery": bill["total"],
        "usd_arithmetic": bill,
    }


def held(burst: HeldBurst) -> dict[str, Any]:
    triage = [line for line in burst.lines if line["f"] == bursts.TRIAGE]
    faults = sum(burst.outcomes.values())
    return {
        "faults": faults,
        "outcomes": burst.outcomes,
        "isolated": burst.isolated,
        "all_decided_seconds": round(burst.seconds, DIGITS),
        "triage_cpu_seconds_per_fault": round(sum(line["cpu"] for line in triage) / faults, DIGITS),
        "writes_of_the_breakers_row": sum(
            pk == bursts.BREAKER for line in burst.lines for pk, _, _ in line["writes"]
        ),
        "breaker_request_seconds": _percentiles(s for line in burst.lines for s in line.get("breaker", [])),
    }


def _percentiles(values: Iterable[float]) -> dict[str, float | int | None]:
    found = sorted(values)
    if not found:
        return {"p50": None, "p99": None, "max": None, "n": 0}
    p50, p99 = (round(bursts.percentile(found, percent), DIGITS) for percent in (50, 99))
    return {"p50": p50, "p99": p99, "max": round(found[-1], DIGITS), "n": len(found)}


def _transitions(burst: Burst, parts: dict[str, list[bursts.Share]]) -> list[int | None]:
    """By node; None where the history and the invocations do not fit together, or the node was not healed."""
    found: list[int | None] = []
    for node, events in burst.histories.items():
        try:
            number = bursts.entered(events, observed.definition(MACHINE), parts.get(node, []))
        except ValueError:
            number = None
        found.append(number if burst.rows[node]["phase"] == Phase.HEALED else None)
    return found


def _usage(burst: Burst, entered: Sequence[int | None]) -> costs.Usage:
    return bursts.usage(
        [line for line in burst.lines if line["f"] != bursts.SWEEP],
        histories=sum(map(len, burst.histories.values())),
        entered_states=sum(number or 0 for number in entered),
        puts=len(burst.put) + burst.agent_events,
        seconds=burst.ended - burst.began,
        nodes=len(burst.put),
    )


def _mean(usages: Sequence[costs.Usage], weights: Sequence[int]) -> costs.Usage:
    documents = [asdict(usage) for usage in usages]
    return costs.Usage(
        **{
            name: sum(d[name] * weight for d, weight in zip(documents, weights, strict=True)) / sum(weights)
            for name in documents[0]
        }
    )


def _steps(lines: Sequence[bursts.Line], nodes: int) -> dict[str, Any]:
    wall, cpu = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for function, seconds, processor in bursts.steps(lines):
        wall[function].append(seconds)
        cpu[function].append(processor)
    return {
        function: {
            "per_node": round(len(cpu[function]) / nodes, 2),
            "cpu_seconds": _percentiles(cpu[function]),
            "wall_seconds": _percentiles(wall[function]),
        }
        for function in sorted(cpu)
    }


def _used(each: Sequence[Any], nodes: int) -> dict[str, float]:
    names = ("workers", "emulator", "benchmark")
    return {name: round(sum(getattr(one, name) for one in each) / nodes, DIGITS) for name in names}


def _rows(measured: Sequence[Burst]) -> dict[str, Any]:
    """Of the burst that wrote the most, which is the last one where all are alike."""
    found = [bursts.rows(burst.lines, burst.originals) for burst in measured]
    shared = sorted({name for each in found for name in each.shared})
    return {
        "written": found[-1].kinds,
        "shared": shared,
        "shared_beside_the_breakers": bursts.beside_the_breaker(shared),
    }
