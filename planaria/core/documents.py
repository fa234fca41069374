"""The documents of the Commands port: their parameters and the program that each of them runs.

documents.json is the one table of them. infra/ssm_documents.py makes SSM documents from it, adapters check
parameters with it before they send any, and the sandbox runs the same command lines as local processes.

    {"python": path of the interpreter on the machine,
     "patterns": {name: regular expression that a whole value has to match},
     "documents": {name: {"description": str, "runs_on": "head" (Slurm's head node) | "node",
                          "module": what `python -m` runs, "verb": its first argument, "" where it has none,
                          "seconds": after so many it is ended,
                          "parameters": {name: {"option": str, "pattern": name, "default": str or absent}}}}}

No pattern lets a character through that means something between a shell's double quotes. SSM's agent is
written in Go, whose expressions count repetitions up to 1,000 only: longer values are limited by LONGEST.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planaria.core.errors import InvalidInput

LONGEST = 48_000
"""Characters of one value: SSM lets a document have 64 KB with its parameters filled in."""

TABLE = Path(__file__).with_name("documents.json")


@dataclass(frozen=True, slots=True)
class Parameter:
    """default: None where a value must be given."""

    name: str
    option: str
    pattern: str
    default: str | None = None

    def fits(self, value: str) -> bool:
        return len(value) <= LONGEST and matches(self.pattern, value)


@dataclass(frozen=True, slots=True)
class Document:
    """One row of the table. python: the interpreter on the machine; seconds: the longest it may run."""

    name: str
    description: str
    runs_on: str
    python: str
    module: str
    verb: str
    seconds: int
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def checked(self, given: Mapping[str, str]) -> dict[str, str]:
        """Every parameter under the table's name with its value. `job_id` is taken for `JobId`.

        Raises InvalidInput: unknown, missing, or a value that its pattern does not let through.
        """
        values = {table_name(name): value for name, value in given.items()}
        for name in values:
            if name not in self.parameters:
                known = ", ".join(self.parameters)
                raise InvalidInput(f"{self.name} has no parameter {name!r:.60}; it has: {known}")
        for name, parameter in self.parameters.items():
            if name not in values:
                if parameter.default is None:
                    raise InvalidInput(f"{self.name} needs the parameter {name}")
                values[name] = parameter.default
            elif not isinstance(values[name], str) or not parameter.fits(values[name]):
                raise InvalidInput(
                    f"{self.name}: {name} must match {_shown(parameter.pattern)}, got {values[name]!r:.120}"
                )
        return {name: values[name] for name in self.parameters}

    def arguments(self, given: Mapping[str, str]) -> list[str]:
        """What follows the interpreter: `-m module verb --option=value ...`; errors as in `checked`."""
        values = self.checked(given)
        options = [f"{self.parameters[name].option}={value}" for name, value in values.items()]
        return ["-m", self.module, *([self.verb] if self.verb else []), *options]


def matches(pattern: str, value: str) -> bool:
    """The whole value fits, to its last character: `$` alone would pass over a last line feed."""
    return re.fullmatch(pattern, value) is not None


@functools.cache
def documents() -> Mapping[str, Document]:
    """All of them by name, in the table's order."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    found = {}
    for name, row in table["documents"].items():
        parameters = {
            each: Parameter(each, given["option"], patterns()[given["pattern"]], given.get("default"))
            for each, given in row["parameters"].items()
        }
        found[name] = Document(
            name,
            row["description"],
            row["runs_on"],
            table["python"],
            row["module"],
            row["verb"],
            int(row["seconds"]),
            parameters,
        )
    return found


@functools.cache
def patterns() -> Mapping[str, str]:
    """The table's patterns by name; `host`, `job` and `mark` are those of a single name."""
    return dict(json.loads(TABLE.read_text(encoding="utf-8"))["patterns"])


def find(name: str) -> Document | None:
    """The document of this name, None where this release has none."""
    return documents().get(name)


def table_name(name: str) -> str:
    """`job_id`, as Python spells it, is `JobId` in the table: SSM allows letters and digits alone."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def aws_name(cluster: str, name: str) -> str:
    """The name of the SSM document: `planaria-<cluster>-slurm-node` for planaria-slurm-node."""
    return f"planaria-{cluster}-{name.removeprefix('planaria-')}"


def _shown(pattern: str) -> str:
    return pattern if len(pattern) <= 60 else f"{pattern[:57]}..."
