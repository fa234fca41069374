"""`python -m planaria.checkpoint VERB --option=value ...` -> one JSON line and exit status 0, or {"reason":
"one sentence"} and status 1 where nothing could be told or done.

    list    --job --directory [--most 200] [--read-gib 0]
    verify  --job --directory --step
    seal    --job --directory --step [--attempt 0] [--parent -1] [--world-size 0] [--quiet 60] [--sums FILE]
    settle  --job --directory --step --scratch
    remove  --job --directory --steps ATTEMPT:STEP,...
    sweep   --job --directory --hours [--active NAME,...]

--directory is the folder of the steps, --step the name of one step's directory in it.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from planaria.checkpoint.checksums import Sum
from planaria.checkpoint.directory import FileCheckpoints
from planaria.checkpoint.sealing import QUIET_SECONDS, NotSealable, seal
from planaria.core import step_names
from planaria.core.errors import InvalidInput, PermanentError, PlanariaError, Waiting
from planaria.core.manifest import NO_STEP, Lineage, digest
from planaria.core.saved_step import StepCopy, StepState, newest_first

MOST_STEPS = 200
"""What fits into the answer of a command."""
Value = dict[str, Any]


class _Parser(argparse.ArgumentParser):
    """One sentence in place of a usage text and an exit."""

    def error(self, message: str) -> NoReturn:
        raise InvalidInput(f"{self.prog.rpartition(' ')[2]}: {message}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the line. Never raises for what the caller or the file system did wrong."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        told, status = answer(given), 0
    except PlanariaError as error:
        told, status = {"reason": str(error)[:2000]}, 1
    sys.stdout.write(json.dumps(told) + "\n")
    return status


def answer(arguments: Sequence[str]) -> Value:
    """The value of one verb. Raises PlanariaError."""
    options = _parser().parse_args(list(arguments))
    verb: Callable[[FileCheckpoints, argparse.Namespace], Value] = options.run
    return verb(FileCheckpoints(options.directory, options.job), options)


def list_steps(store: FileCheckpoints, most: int = MOST_STEPS, verify_bytes: int = 0) -> Value:
    """{"steps": [StepCopy.document(), newest first], "more": how many were left out}.

    The newest usable step is read whole, and the next ones while they are found corrupt, as long as they have
    no more than `verify_bytes` together: a resume then starts from one whose every byte was seen, and
    `verified` says so.
    """
    copies = newest_first(store.steps())
    verified = False
    for at, copy in enumerate(copies):
        if not copy.usable:
            continue
        if copy.size > verify_bytes:
            break
        verify_bytes -= copy.size
        copies[at] = store.verify(copy)
        if copies[at].usable:
            verified = True
            break
    told = [copy.document() for copy in copies[:most]]
    return {"steps": told, "more": max(0, len(copies) - most), "verified": verified}


def _list(store: FileCheckpoints, given: argparse.Namespace) -> Value:
    return list_steps(store, given.most, given.read_gib << 30)


def _verify(store: FileCheckpoints, given: argparse.Namespace) -> Value:
    return store.verify(_found(store, given.step)).document()


def _seal(store: FileCheckpoints, given: argparse.Namespace) -> Value:
    """{"state", "reason", "digest", "size", "shards"}; state: complete, partial (also: being written),
    foreign."""
    copy = _found(store, given.step)
    if copy.usable:
        return _sealed(copy)
    if copy.digest:
        return {"state": copy.state.value, "reason": copy.reason}
    lineage = Lineage(given.job, given.attempt, given.parent)
    sums = None if given.sums is None else _sums(given.sums)
    step = step_names.step_of(given.step)
    try:
        manifest = seal(
            Path(copy.place),
            NO_STEP if step is None else step,
            lineage,
            sums=sums,
            world_size=given.world_size,
            quiet_seconds=given.quiet,
        )
    except NotSealable as error:
        return {"state": error.state.value, "reason": str(error)}
    except Waiting as error:
        return {"state": StepState.PARTIAL.value, "reason": str(error)}
    store.commit(manifest, given.step)
    return {
        "state": StepState.COMPLETE.value,
        "reason": "",
        "digest": digest(manifest.to_json()),
        "size": manifest.size,
        "shards": len(manifest.shards),
    }


def _sealed(copy: StepCopy) -> Value:
    return {"state": copy.state.value, "reason": copy.reason, "digest": copy.digest, "size": copy.size}


def _settle(store: FileCheckpoints, given: argparse.Namespace) -> Value:
    """Every byte of the scratch directory is checked before it gets its name."""
    scratch = store.look(given.scratch)
    if scratch is not None and scratch.digest:
        flaw = store.flaw_of(given.scratch)
        if flaw:
            return {"state": StepState.CORRUPT.value, "reason": flaw}
    return _sealed(store.publish(given.scratch, given.step))


def _remove(store: FileCheckpoints, given: argparse.Namespace) -> Value:
    """{"removed": [{"attempt", "step"}], "left": [{"attempt", "step", "reason"}]}; one that is not there is
    removed."""
    removed: list[Value] = []
    left: list[Value] = []
    steps = store.steps()
    for attempt, step in given.steps:
        named = {"attempt": attempt, "step": step}
        for copy in steps:
            if copy.lineage is None or (copy.lineage.attempt, copy.step) != (attempt, step):
                continue
            if copy.pinned or copy.lineage.job != given.job:
                left.append(
                    {**named, "reason": f"it is pinned: {copy.pinned}" if copy.pinned else copy.reason}
                )
                break
            try:
                store.remove(copy)
            except PermanentError as error:
                left.append({**named, "reason": str(error)})
                break
        else:
            removed.append(named)
    return {"removed": removed, "left": left}


def _sweep(store: FileCheckpoints, given: argparse.Namespace) -> Value:
    return {"removed": store.sweep(time.time() - given.hours * 3600.0, given.active)}


def _found(store: FileCheckpoints, name: str) -> StepCopy:
    copy = store.look(name)
    if copy is None:
        raise InvalidInput(f"there is no step's directory {store.place(name)}")
    return copy


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="planaria.checkpoint", allow_abbrev=False, description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Parser)

    def add(name: str, run: Callable[[FileCheckpoints, argparse.Namespace], Value], **options: Any) -> None:
        """options: name -> the function that reads it, or (that, default)."""
        verb = verbs.add_parser(name, allow_abbrev=False)
        verb.set_defaults(run=run)
        for option, kind in {"job": _text, "directory": _folder, **options}.items():
            reader, default = kind if isinstance(kind, tuple) else (kind, ...)
            required = default is ...
            flag = f"--{option.replace('_', '-')}"
            verb.add_argument(flag, type=reader, required=required, default=None if required else default)

    add("list", _list, most=(_count, MOST_STEPS), read_gib=(_count, 0))
    add("verify", _verify, step=_text)
    add(
        "seal",
        _seal,
        step=_text,
        attempt=(_count, 0),
        parent=(int, NO_STEP),
        world_size=(_count, 0),
        quiet=(float, QUIET_SECONDS),
        sums=(Path, None),
    )
    add("settle", _settle, step=_text, scratch=_text)
    add("remove", _remove, steps=_pairs)
    add("sweep", _sweep, hours=float, active=(_names, ()))
    return parser


def _text(given: str) -> str:
    if not given:
        raise argparse.ArgumentTypeError("it must not be empty")
    return given


def _folder(given: str) -> Path:
    path = Path(_text(given))
    if not path.is_absolute():
        raise argparse.ArgumentTypeError(f"{given!r:.200} is no absolute path")
    return path


def _count(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= 18):
        raise argparse.ArgumentTypeError(f"{given!r:.40} is no whole number")
    return int(given)


def _names(given: str) -> tuple[str, ...]:
    return tuple(name for name in given.split(",") if name)


def _pairs(given: str) -> list[tuple[int, int]]:
    pairs = []
    for each in _names(given):
        attempt, _, step = each.partition(":")
        pairs.append((_count(attempt), _count(step)))
    return pairs


def _sums(path: Path) -> dict[str, Sum]:
    """{"<name>": {"size": bytes, "crc64nvme": base64}, ...}"""
    try:
        told = json.loads(path.read_bytes())
        return {str(name): Sum(int(each["size"]), str(each["crc64nvme"])) for name, each in told.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} holds no checksums: {error!r:.200}") from None
