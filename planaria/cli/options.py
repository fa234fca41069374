"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


class Named(str):
    """A cluster's name that was given, by option or environment; the default is a plain text."""

    __slots__ = ()


def _named(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    source = context.get_parameter_source(str(parameter.name))
    return value if source is None or source.name.startswith("DEFAULT") else Named(value)


Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="NAME",
        envvar="PLANARIA_CLUSTER",
        callback=_named,
        help="The cluster's name.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        "--folder",
        metavar="FOLDER",
        envvar="PLANARIA_SANDBOX",
        help="Folder of the sandbox; by default ~/.cache/planaria/sandbox/NAME.",
        show_default=False,
    ),
]
Aws = Annotated[
    bool, typer.Option("--aws", help="The cluster on AWS, also while a sandbox of that name runs.")
]
Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="Port of the AWS emulator; 0 takes a free one.")
]
DEFAULT_CLUSTER = "demo"
