"""SSM documents for whatever Lambdas run on machines, made from planaria/core/documents.json.

A Lambda role may send these documents and nothing else. Each has typed parameters whose patterns let no
character through that means something between a shell's double quotes, and the agent's shell runs one line:
a program with one argument per parameter.

https://docs.aws.amazon.com/systems-manager/latest/userguide/documents-syntax-data-elements-parameters.html
https://docs.aws.amazon.com/systems-manager/latest/userguide/documents-command-ssm-plugin-reference.html
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from infra.settings import Settings

TABLE = Path("planaria") / "core" / "documents.json"
HEAD = "head"
"""`runs_on` of the documents that Slurm's head node runs."""


class CommandsStack(Stack):
    """The cluster's SSM documents, if it has any. The sandbox's emulator knows none."""

    def __init__(self, scope: Construct, construct_id: str, settings: Settings, **stack: Any) -> None:
        super().__init__(
            scope, construct_id, description=f"Planaria {settings.cluster}: commands on nodes", **stack
        )
        table = read(settings.root)
        for name in names(settings):
            ssm.CfnDocument(
                self,
                name,
                name=physical(settings, name),
                document_type="Command",
                document_format="JSON",
                target_type="/AWS::EC2::Instance",
                # Replacing one would need another name; a new version becomes the default one.
                update_method="NewVersion",
                content=content(table, name),
            )


def read(root: Path) -> dict[str, Any]:
    """The table, as its reader in planaria/core explains it."""
    table: dict[str, Any] = json.loads((root / TABLE).read_text(encoding="utf-8"))
    return table


def names(settings: Settings) -> tuple[str, ...]:
    """The documents that this cluster has: those of a head node with Slurm alone. The sandbox runs them all
    by itself, and without it nothing is done on nodes whose scheduler is the sandbox's."""
    scheduler = settings.document["scheduler"]
    if settings.sandbox is not None or scheduler == "process":
        return ()
    rows: Mapping[str, Any] = read(settings.root)["documents"]
    return tuple(name for name, row in rows.items() if scheduler == "slurm" or row["runs_on"] != HEAD)


def physical(settings: Settings, name: str) -> str:
    """An account may have several clusters: `planaria-<cluster>-check` for planaria-check."""
    return settings.named(name.removeprefix("planaria-"))


def content(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One document of SSM's schema 2.2."""
    row = table["documents"][name]
    parameters = {
        each: {
            "type": "String",
            "description": f"The program's {given['option']}",
            "allowedPattern": table["patterns"][given["pattern"]],
            **({"default": given["default"]} if "default" in given else {}),
        }
        for each, given in row["parameters"].items()
    }
    return {
        "schemaVersion": "2.2",
        "description": row["description"],
        "parameters": parameters,
        "mainSteps": [
            {
                "action": "aws:runShellScript",
                "name": "run",
                "precondition": {"StringEquals": ["platformType", "Linux"]},
                "inputs": {
                    "timeoutSeconds": str(row["seconds"]),
                    "workingDirectory": "/",  # no module of ours is taken from wherever the agent works
                    "runCommand": [_line(table["python"], row)],
                },
            }
        ],
    }


def _line(python: str, row: Mapping[str, Any]) -> str:
    """`exec`: the program's own status is the command's, and a signal reaches it."""
    words = [python, "-m", row["module"], *([row["verb"]] if row["verb"] else [])]
    options = [f'"{given["option"]}={{{{ {each} }}}}"' for each, given in row["parameters"].items()]
    return " ".join(["exec", *words, *options])
