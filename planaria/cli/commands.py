"""The commands of `planaria`, and how each of them ends."""

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import planaria
from planaria.cli import (
    approve,
    breaker,
    checkpoints,
    classify_log,
    demo,
    incidents,
    jobs,
    nodes,
    orders,
    placement,
    quarantine,
    redrive,
    replay,
    resume,
    sandbox,
    screen,
    spares,
    submit,
    triage,
)
from planaria.cli.failures import BAD_INPUT, FAILED, sentence

app = typer.Typer(
    name="planaria",
    help="Heals GPU training clusters on AWS: isolates a failed node, replaces it, resumes the job.",
    epilog="Try it on this machine, without an AWS account: planaria demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(breaker.app, name="breaker")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(checkpoints.app, name="checkpoints")
for group in (
    demo,
    nodes,
    spares,
    incidents,
    jobs,
    placement,
    submit,
    orders,
    resume,
    approve,
    triage,
    classify_log,
    replay,
    redrive,
):
    app.registered_commands += group.app.registered_commands
app.registered_commands += sandbox.faults.registered_commands


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"planaria {planaria.__version__}\n")
        raise typer.Exit()


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


def run(words: Sequence[str]) -> int:
    """Run one command; the exit status. Never a traceback, unless PLANARIA_DEBUG is set."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = app(list(words) or ["--help"], prog_name="planaria", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        return _usage(error)
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        screen.say("Stopped.")
        return 130
    except BrokenPipeError:
        # The reader (head, less) has left. What is still buffered must not raise again at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except Exception as error:  # noqa: BLE001  the one place where a failure becomes a sentence
        return _failed(error)
    if status == 130:
        screen.say("Stopped.")
    return int(status or 0)


def _failed(error: Exception) -> int:
    if os.environ.get("PLANARIA_DEBUG"):
        raise error
    found = sentence(error)
    if found is None:
        what = f"{type(error).__name__}: {error}"
        text, status = f"This is a defect of Planaria ({what}); PLANARIA_DEBUG=1 shows where.", FAILED
    else:
        text, status = found
    screen.say(f"planaria: {text}")
    return status


def _usage(error: typer.TyperException) -> int:
    """A wrong option or argument."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "planaria"
    if type(error).__name__ == "NoArgsIsHelpError":
        return 0
    message = error.format_message().rstrip(".")
    screen.say(f"planaria: {message[:1].upper()}{message[1:]}; `{path} --help` shows how it is used.")
    return BAD_INPUT
