"""Options that several `planaria checkpoints` commands share."""

from typing import Annotated

import typer

from planaria.cli import checkpoint_places

PlaceText = Annotated[str, typer.Argument(metavar="PLACE", help=checkpoint_places.HELP, show_default=False)]
JobName = Annotated[
    str,
    typer.Option(
        "--job",
        metavar="NAME",
        help="Whose checkpoints they are; by default what their manifests say, else the folder's name.",
        show_default=False,
    ),
]
Steps = Annotated[
    list[int],
    typer.Option("--step", metavar="N", min=0, help="This step alone; may be repeated.", show_default=False),
]
