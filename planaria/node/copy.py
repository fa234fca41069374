"""The copier of checkpoints between a file system and S3.

    python -m planaria.node.copy plan --job J --directory D --step S --transfer T --mode COPY|HASH|FETCH ...
    python -m planaria.node.copy run --transfer T
    python -m planaria.node.copy settle --job J --directory D --step S --transfer T
    python -m planaria.node.copy up DIRECTORY s3://bucket/prefix
    python -m planaria.node.copy down s3://bucket/prefix DIRECTORY

prints one JSON object. The first three are documents of the Commands port: nodes carry the chunks of one
transfer together (planaria/core/transfer_ledger.py). `up` and `down` carry a directory alone; what they know
of it stays in a cursor, so that a second `up` only sends what has changed. Whatever is killed is started
again and goes on. SIGTERM and Ctrl-C end it within seconds, with exit status 1 and {"reason": ...}, as
every error does.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planaria.core.errors import InvalidInput, PlanariaError
from planaria.core.transfers import MOST_CHUNKS, Mode

Answer = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 1 with {"reason": one sentence}."""
    chosen = _parser().parse_args(arguments)
    try:
        answer: Answer = chosen.does(chosen)
        status = 0
    except (PlanariaError, OSError) as error:
        answer, status = {"reason": str(error)[:1000]}, 1
    sys.stdout.write(json.dumps(answer, ensure_ascii=True) + "\n")
    sys.stdout.flush()
    return status


def _setting() -> Any:
    from planaria.node.transfer_setting import Setting

    setting = Setting.read()
    os.environ.setdefault("AWS_REGION", setting.region)
    _on_signals(setting.end)
    return setting


def _on_signals(end: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end())


def _plan(chosen: argparse.Namespace) -> Answer:
    from planaria.node.transfer_plan import Asked, plan

    if not chosen.directory.is_absolute():
        raise InvalidInput(f"--directory must be an absolute path, got {str(chosen.directory)!r}")
    if not 1 <= chosen.chunks <= MOST_CHUNKS:
        raise InvalidInput(f"--chunks must be 1 to {MOST_CHUNKS}, got {chosen.chunks}")
    asked = Asked(
        chosen.job,
        chosen.directory,
        chosen.step,
        chosen.transfer,
        Mode(chosen.mode.lower()),
        chosen.chunks,
        chosen.place,
        chosen.attempt,
        chosen.parent_step,
    )
    return plan(asked, _setting())


def _run(chosen: argparse.Namespace) -> Answer:
    from planaria.node.transfer_run import Carrier

    setting = _setting()
    return Carrier(setting, setting.ledger(), chosen.transfer).run()


def _settle(chosen: argparse.Namespace) -> Answer:
    from planaria.node.transfer_settle import settle

    setting = _setting()
    return settle(chosen.job, chosen.directory, chosen.transfer, setting, setting.ledger())


def _up(chosen: argparse.Namespace) -> Answer:
    from planaria.node import alone

    return alone.up(chosen.directory, chosen.place, chosen.cursor, _on_signals)


def _down(chosen: argparse.Namespace) -> Answer:
    from planaria.node import alone

    return alone.down(chosen.place, chosen.directory, _on_signals)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="planaria.node.copy", description="Copy checkpoints to S3 and back."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    plan = verbs.add_parser("plan", help="cut a step into chunks")
    run = verbs.add_parser("run", help="carry chunks until none is open")
    settle = verbs.add_parser("settle", help="finish the step on the file system")
    for verb in (plan, settle):
        verb.add_argument("--job", required=True)
        verb.add_argument("--directory", type=Path, required=True, help="the job's folder of steps")
        verb.add_argument("--step", required=True, help="name of the step's directory, or its number")
    for verb in (plan, run, settle):
        verb.add_argument("--transfer", required=True)
    plan.add_argument(
        "--mode", choices=[f(m.value) for m in Mode for f in (str.upper, str.lower)], required=True
    )
    plan.add_argument("--chunks", type=int, required=True)
    plan.add_argument(
        "--place", default="", help="s3://bucket/prefix of the job; default: the cluster's bucket"
    )
    for verb in (plan, settle):
        verb.add_argument("--attempt", type=int, default=0, help="of a step without a manifest")
        verb.add_argument("--parent-step", type=int, default=-1)
    up = verbs.add_parser("up", help="a directory to S3")
    up.add_argument("directory", type=Path)
    up.add_argument("place")
    up.add_argument("--cursor", type=Path, help="file that remembers what was sent")
    down = verbs.add_parser("down", help="a prefix of S3 to a directory")
    down.add_argument("place")
    down.add_argument("directory", type=Path)
    for verb, does in ((plan, _plan), (run, _run), (settle, _settle), (up, _up), (down, _down)):
        verb.set_defaults(does=does)
    return parser


if __name__ == "__main__":
    sys.exit(main())
