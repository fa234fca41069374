"""`planaria classify-log`: the faults in a kernel log, and what would be done about each."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.text import Text

from planaria.cli import options, screen
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action

app = typer.Typer()

_TYPE = re.compile(r"(?:ml\.)?([a-z][a-z0-9-]*)\.[a-z0-9-]+")
_DRIVER = re.compile(r"\d{3,4}(?:\.\d{1,4}){0,3}")
_PART = 1 << 16
"""Bytes of one line that are looked at; a kernel's own lines have a few hundred."""

# What a file begins with that holds a log, but not as text -> how its text is had.
_NO_TEXT = {
    b"\x1f\x8b\x08": "zcat FILE",
    b"BZh91AY&SY": "bzcat FILE",
    b"\xfd7zXZ\x00": "xzcat FILE",
    b"(\xb5/\xfd": "zstdcat FILE",
    b"LPKSHHRH": "journalctl -k --file FILE",
}
# A byte order mark and one character of ASCII.
_UTF_16 = re.compile(rb"\xff\xfe[\x01-\x7f]\x00|\xfe\xff\x00[\x01-\x7f]")


@app.command("classify-log")
def classify_log(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A kernel log; - reads stdin.", show_default=False)
    ],
    instance_type: Annotated[
        str,
        typer.Option(
            metavar="TYPE", help="The node's instance type, such as p5.48xlarge.", show_default=False
        ),
    ] = "",
    driver: Annotated[
        str,
        typer.Option(
            metavar="VERSION",
            help="The NVIDIA driver, such as 570.158.01; one that the log says to load counts from there.",
            show_default=False,
        ),
    ] = "",
    cluster_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cluster file, for its policy.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Find the faults in a kernel log (dmesg, journalctl, syslog, /dev/kmsg) and say what is done about each.

    Offline: no AWS, no sandbox. Each fault is judged by itself; what the others change, triage knows.

    Example: dmesg | planaria classify-log - --instance-type p5.48xlarge --driver 570.158.01 --json
    """
    match = _TYPE.fullmatch(instance_type)
    if instance_type and match is None:
        raise InvalidInput(
            f"--instance-type must be an EC2 instance type such as p5.48xlarge, not {instance_type!r}"
        )
    if driver and not _DRIVER.fullmatch(driver):
        raise InvalidInput(f"--driver must be a version such as 570.158.01, not {driver!r}")
    plain_type = instance_type.removeprefix("ml.")
    with _opened(file) as log:
        counted: Counter[str] = Counter()
        found = _faults(_lines(log, file, counted), plain_type, driver, cluster_file)
        if as_json:
            _print_json(found)
        else:
            _print_table(found, counted)


def _faults(
    lines: Iterator[tuple[int, str]], instance_type: str, driver: str, cluster_file: Path | None
) -> Iterator[dict[str, Any]]:
    """One object per fault, in the order in which the log tells of them."""
    from planaria.core.classify import observed
    from planaria.core.decision import decide
    from planaria.core.explain import sources
    from planaria.core.kernel_log import KernelLog, loaded
    from planaria.core.node import NodeView

    policy = _policy(cluster_file)
    node = NodeView("", instance_type=instance_type)
    log = KernelLog()
    for number, line in lines:
        driver = loaded(line) or driver
        seen = log.feed(line, driver=driver)
        if seen is None:
            continue
        fault = observed(seen, node.family, policy)
        decision = decide(fault, node, policy)
        yield {
            "line": number - log.began,
            "kind": seen.kind,
            "code": seen.code,
            "pci": seen.pci,
            "injected": seen.injected,
            "action": decision.action.value,
            "reason": decision.reason,
            "rule": decision.rule,
            "sources": sources(decision.sources),
            "verdict": seen.verdict,
            "severity": fault.severity.value,
            "details": seen.details,
            "message": seen.message,
        }


def _policy(cluster_file: Path | None) -> Any:
    from planaria.core.policy import Policy

    if cluster_file is None:
        return Policy.default()
    from planaria.recipes import ClusterFile  # pydantic is needed for a cluster file alone

    return Policy.from_document(ClusterFile.load(cluster_file).document(1)["policy"])


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        if sys.stdin is None:
            raise InvalidInput("stdin is closed, so there is no log to read")
        yield sys.stdin.buffer
        return
    try:
        log = Path(file).open("rb")  # noqa: SIM115  closed below; `with` would hide who failed
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise InvalidInput(f"{file!r}: is no file name.") from error
    with log:
        yield log


def _lines(log: IO[bytes], file: str, counted: Counter[str]) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of every line; any bytes. Of a line that never ends the beginning is kept."""
    number = 0
    while True:
        try:
            line = log.readline(_PART)
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = log.readline(_PART)
        except OSError as error:
            raise InvalidInput(f"{file}: cannot be read ({error.strerror}).") from error
        if not line:
            return
        number += 1
        if number == 1:
            for magic, tool in _NO_TEXT.items():
                if line.startswith(magic):
                    raise InvalidInput(f"{file}: is no text; `{tool} | planaria classify-log -` reads it")
            if _UTF_16.match(line):
                tool = "iconv -f UTF-16 -t UTF-8 FILE"
                raise InvalidInput(f"{file}: is text in UTF-16; `{tool} | planaria classify-log -` reads it")
        counted["lines"] = number
        yield number, _told(line).decode("utf-8", errors="replace")


def _told(line: bytes) -> bytes:
    """The kernel's words in a line of `journalctl -o json`, any other line as it is. The journal writes a
    message that holds control characters as a list of its bytes."""
    if not line.startswith(b"{") or b'"MESSAGE"' not in line:
        return line
    try:
        message = json.loads(line).get("MESSAGE")
        return message.encode(errors="replace") if isinstance(message, str) else bytes(message)
    except (ValueError, TypeError, RecursionError):
        return line


def _print_json(found: Iterator[dict[str, Any]]) -> None:
    """A list, written as it grows: a log may hold more faults than fit into memory."""
    first = next(found, None)
    if first is None:
        screen.emit([])
        return
    sys.stdout.write("[\n")
    sys.stdout.write(_indented(first))
    for fault in found:
        sys.stdout.write(",\n" + _indented(fault))
    sys.stdout.write("\n]\n")


def _indented(fault: dict[str, Any]) -> str:
    return "  " + screen.as_json(fault).replace("\n", "\n  ")


def _print_table(found: Iterator[dict[str, Any]], counted: Counter[str]) -> None:
    """Equal faults of one GPU are one row, with the line of the first."""
    rows: dict[tuple[str, ...], tuple[dict[str, Any], int]] = {}
    for fault in found:
        key = fault["kind"], fault["code"], fault["verdict"], fault["pci"], fault["rule"]
        before = rows.get(key)
        rows[key] = (before[0], before[1] + 1) if before else (fault, 1)
    lines = f"{counted['lines']:,} line" + ("" if counted["lines"] == 1 else "s")
    if not rows:
        screen.say(f"No fault found in {lines}.", stderr=False)
        return
    cells = [
        (fault["line"], times, fault["pci"], fault["action"], _what(fault)) for fault, times in rows.values()
    ]
    screen.console().print(screen.table(("LINE", "TIMES", "GPU", "ACTION", "FAULT"), cells, fold=("FAULT",)))
    total = sum(times for _, times in rows.values())
    actions = Counter(fault["action"] for fault, _ in rows.values())
    said = ", ".join(f"{actions[action]} {action}" for action in reversed(Action) if actions[action])
    noun = "fault" if total == 1 else "faults"
    screen.say(f"{total:,} {noun} in {lines}, {len(rows):,} of them different: {said}.", stderr=False)


def _what(fault: dict[str, Any]) -> Text:
    """The fault in one line, why below it."""
    text = Text(_called(fault), style="bold")
    if fault["injected"]:
        text.append("  injected", style="not bold yellow")
    return text.append(f"\n{fault['reason']} ({fault['rule']})", style="not bold dim")


def _called(fault: dict[str, Any]) -> str:
    names = {"xid": "Xid", "sxid": "SXid", "neuron": "Neuron", "fallen_off_bus": "GPU off the bus"}
    name = names.get(fault["kind"], fault["kind"])
    code = "" if fault["kind"] == fault["code"] else f" {fault['code']}"
    verdict = f" ({fault['verdict']})" if fault["verdict"] else ""
    return f"{name}{code}{verdict}"
