"""`python -m planaria.slurm VERB --option=value ...` -> one JSON line: {"version": 1, "value": {...}} or
{"version": 1, "error": "one sentence"}. Exit status 0 whenever that line was printed."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from planaria.core.errors import InvalidInput, PlanariaError
from planaria.core.topology_conf import unpacked
from planaria.slurm import hostlist, isolation, reasons
from planaria.slurm.holding import hold
from planaria.slurm.joining import join
from planaria.slurm.placing import place
from planaria.slurm.programs import Slurm
from planaria.slurm.requeueing import requeue
from planaria.slurm.stopping import stop
from planaria.slurm.telling import tell_jobs, tell_jobs_on, tell_nodes
from planaria.slurm.topology import install

VERSION = 1


class _Parser(argparse.ArgumentParser):
    """One sentence in place of a usage text and an exit."""

    def error(self, message: str) -> NoReturn:
        raise InvalidInput(f"{self.prog.rpartition(' ')[2]}: {message}")


def main(arguments: Sequence[str] | None = None, slurm: Slurm | None = None) -> int:
    """Print the line. Never raises for what the caller or Slurm did wrong."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        line = _line({"version": VERSION, "value": answer(given, slurm or Slurm())})
    except PlanariaError as error:
        line = _line({"version": VERSION, "error": str(error)[:2000]})
    sys.stdout.write(line + "\n")
    return 0


def answer(arguments: Sequence[str], slurm: Slurm) -> dict[str, Any]:
    """The value of one verb. Raises InvalidInput for a wrong option, SlurmError when Slurm cannot tell."""
    options = _parser().parse_args(list(arguments))
    verb: Callable[[Slurm, argparse.Namespace], dict[str, Any]] = options.run
    return verb(slurm, options)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="planaria.slurm", allow_abbrev=False, description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Parser)

    def add(
        verb_name: str, run: Callable[[Slurm, argparse.Namespace], dict[str, Any]], **options: Any
    ) -> None:
        """options: name -> the function that reads it, or (that, default)."""
        verb = verbs.add_parser(verb_name, allow_abbrev=False)
        verb.set_defaults(run=run)
        for option, kind in options.items():
            reader, default = kind if isinstance(kind, tuple) else (kind, None)
            flag = f"--{option.replace('_', '-')}"
            verb.add_argument(flag, type=_checked(flag, reader), required=default is None, default=default)

    add("node", lambda slurm, given: tell_nodes(slurm, given.nodes), nodes=(_any, []))
    add("jobs-on", lambda slurm, given: tell_jobs_on(slurm, given.nodes), nodes=_names)
    add(
        "jobs",
        lambda slurm, given: tell_jobs(slurm, given.jobs, given.nodes),
        jobs=(_ids, []),
        nodes=(_any, []),
    )
    add("isolate", lambda slurm, given: isolation.isolate(slurm, given.entries), entries=_entries)
    add("lost", lambda slurm, given: isolation.lost(slurm, given.entries), entries=_entries)
    add("readmit", lambda slurm, given: isolation.readmit(slurm, given.entries), entries=_any_entries)
    add(
        "join",
        lambda slurm, given: join(slurm, given.name, given.node_id, given.address, given.reason),
        name=_name,
        node_id=_instance,
        address=(_address, ""),
        reason=_reason,
    )
    add(
        "stop",
        lambda slurm, given: stop(slurm, given.jobs, given.signal, given.grace, given.sent),
        jobs=_ids,
        signal=_signal,
        grace=_seconds,
        sent=(_moment, 0),
    )
    add(
        "hold",
        lambda slurm, given: hold(slurm, given.job, given.nodes, given.seconds),
        job=_id,
        nodes=(_any, []),
        seconds=_seconds,
    )
    add(
        "requeue",
        lambda slurm, given: requeue(
            slurm, given.job, given.nodes, given.attempt, given.resume_step, given.kept
        ),
        job=_id,
        nodes=(_any, []),
        attempt=_count,
        resume_step=_step,
        kept=(_folder, ""),
    )
    add("place", lambda slurm, given: place(slurm, given.job, given.count), job=_id, count=_count)
    add("topology", lambda slurm, given: install(slurm, given.paths), paths=unpacked)
    return parser


def _checked(flag: str, reader: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return reader(text)
        except InvalidInput as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    read.__name__ = flag
    return read


def _match(pattern: str, text: str, what: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise InvalidInput(f"{text!r:.80} is {what}")
    return text


def _any(text: str) -> list[str]:
    return hostlist.expand(text)


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(hostlist.expand(text)))
    if not names:
        raise InvalidInput("no node is named; give a list such as p5-[001-004]")
    return names


def _name(text: str) -> str:
    return _match(hostlist.NAME.pattern, text, "no name of a node")


def _id(text: str) -> str:
    return _match(r"[A-Za-z0-9][A-Za-z0-9_+.-]{0,63}", text, "no job id such as 12, 12_3 or 12+0")


def _ids(text: str) -> list[str]:
    return [_id(each) for each in dict.fromkeys(text.split(",")) if each]


def _reason(text: str) -> str:
    if not reasons.is_ours(text):
        raise InvalidInput(f"{text!r:.80} is no reason of ours; it looks like planaria:<incident>")
    return text


def _entries(text: str) -> list[isolation.Entry]:
    entries = _any_entries(text)
    for entry in entries:
        _reason(entry.reason)
    return entries


def _any_entries(text: str) -> list[isolation.Entry]:
    """Also with a reason that is not ours: nothing is readmitted for it."""
    entries = {}
    for each in text.split(","):
        name, _, reason = each.partition("=")
        if not reason:
            raise InvalidInput(f"{each!r:.80} is no entry; give name=planaria:<incident>,...")
        entries[_name(name)] = isolation.Entry(name, reason)
    return list(entries.values())


def _instance(text: str) -> str:
    return _match(r"i-[0-9a-z-]{1,40}", text, "no instance id such as i-0abc")


def _address(text: str) -> str:
    return _match(r"([A-Za-z0-9][A-Za-z0-9:_.-]{0,252})?", text, "no address")


def _signal(text: str) -> str:
    return _match(r"[A-Z][A-Z0-9]{1,11}", text, "no signal; give a name such as TERM or USR1")


def _seconds(text: str) -> float:
    return float(_match(r"[0-9]{1,7}([.][0-9]{1,3})?", text, "no number of seconds"))


def _moment(text: str) -> int:
    return int(_match(r"[0-9]{1,12}", text, "no moment; give whole seconds since the epoch"))


def _count(text: str) -> int:
    return int(_match(r"[0-9]{1,6}", text, "no whole number"))


def _step(text: str) -> int:
    return int(_match(r"-1|[0-9]{1,12}", text, "no step; -1 stands for none"))


def _folder(text: str) -> str:
    return _match(r"(/[A-Za-z0-9_./+@-]{1,500})?", text, "no absolute path of plain characters")


def _line(document: dict[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
