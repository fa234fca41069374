"""State transitions of an execution as AWS bills them: one per state entered, one more per retry.

The emulator's history leaves out the states inside Parallel branches. They are put back from the definition
and from how often each Lambda of a branch was called: the shortest way through the branch that calls each of
them that often. AWS's own history has them, and then nothing is added.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_FUNCTION = re.compile(r"\$\{(\w+)\}")


def count(
    events: Sequence[Mapping[str, Any]], definition: Mapping[str, Any], calls: Mapping[str, int]
) -> int:
    """events: GetExecutionHistory's. definition: the machine as in statemachines/, with its ${function}
    placeholders. calls: invocations by function. Raises ValueError when a branch cannot have made them."""
    entered = [_name(event) for event in events if str(event["type"]).endswith("StateEntered")]
    branches = [
        branch
        for name, state in definition["States"].items()
        if state["Type"] == "Parallel" and name in entered
        for branch in state["Branches"]
    ]
    missing = [branch for branch in branches if not set(entered) & set(branch["States"])]
    number = len(entered) + _retries(events, inside=not missing)
    return number + sum(shortest(branch, calls) for branch in missing)


def shortest(branch: Mapping[str, Any], calls: Mapping[str, int]) -> int:
    """States entered on the shortest way from the branch's start to an end that calls each of its functions
    as often as `calls` says. Catch paths are taken only when there is no other."""
    states: Mapping[str, Mapping[str, Any]] = branch["States"]
    functions = sorted({function for state in states.values() if (function := function_of(state))})
    for catches in (False, True):
        left = tuple(calls.get(function, 0) for function in functions)
        seen = {(branch["StartAt"], left)}
        queue = deque([(branch["StartAt"], left, 1)])
        while queue:
            name, left, steps = queue.popleft()
            state = states[name]
            if (function := function_of(state)) is not None:
                position = functions.index(function)
                if left[position] == 0:
                    continue
                left = (*left[:position], left[position] - 1, *left[position + 1 :])
            if state.get("End") or state["Type"] in ("Succeed", "Fail"):
                if not any(left):
                    return steps
                continue
            for following in _following(state, catches):
                if (following, left) not in seen:
                    seen.add((following, left))
                    queue.append((following, left, steps + 1))
    raise ValueError(f"no way through {branch['StartAt']!r} calls {dict(calls)}")


def function_of(state: Mapping[str, Any]) -> str | None:
    """The Lambda that a Task state of the repository's machines invokes."""
    found = _FUNCTION.search(str(state.get("Arguments", {}).get("FunctionName", "")))
    return found[1] if found and state["Type"] == "Task" else None


def _following(state: Mapping[str, Any], catches: bool) -> Iterator[str]:
    for choice in state.get("Choices", []):
        yield choice["Next"]
    for key in ("Default", "Next"):
        if key in state:
            yield state[key]
    if catches:
        for catch in state.get("Catch", []):
            yield catch["Next"]


def _retries(events: Sequence[Mapping[str, Any]], inside: bool) -> int:
    """Tasks scheduled more often than Task states were entered; inside: also in Parallel states."""
    depth = scheduled = entered = 0
    for event in events:
        kind = str(event["type"])
        depth += (kind == "ParallelStateEntered") - (kind == "ParallelStateExited")
        if inside or depth == 0:
            scheduled += kind == "TaskScheduled"
            entered += kind == "TaskStateEntered"
    return max(0, scheduled - entered)


def _name(event: Mapping[str, Any]) -> str:
    return str(event["stateEnteredEventDetails"]["name"])
