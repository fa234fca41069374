"""The command line of `sbatch`, read only as far as one must to tell its options from the script behind them.

Nothing is changed in what the user wrote: options that nobody here knows are passed on as they are.
Facts: sbatch(1), https://slurm.schedmd.com/sbatch.html
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planaria.core.errors import InvalidInput

# Every other option takes a value, in the same word (`--nodes=4`, `-N4`) or in the next one.
FLAGS = frozenset(
    {
        "contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "nice", "no-kill",
        "no-requeue", "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot", "requeue",
        "resv-ports", "share", "spread-job", "stepmgr", "test-only", "usage",
        "use-min-nodes", "verbose", "version", "wait",
    }
)  # fmt: skip
SHORT_FLAGS = frozenset("HOQVWhksv")
SHORT = {
    "a": "array", "c": "cpus-per-task", "D": "chdir", "J": "job-name", "N": "nodes", "n": "ntasks",
    "d": "dependency", "b": "begin", "W": "wait", "M": "clusters", "V": "version", "h": "help", "H": "hold",
}  # fmt: skip
"""The short options whose meaning matters here."""

ENDS_AT_ONCE = frozenset({"help", "usage", "version", "test-only"})
"""With these sbatch submits nothing."""


@dataclass(frozen=True, slots=True)
class Words:
    """options: as they were written. script: None where there is none (`--wrap`, or it comes on stdin)."""

    options: tuple[str, ...]
    script: str | None
    arguments: tuple[str, ...]


def split(words: Sequence[str]) -> Words:
    """Raises InvalidInput where an option lacks its value."""
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return _of(words[:at], words[at + 1 :])
        if not word.startswith("-") or word == "-":
            return _of(words[:at], words[at:])
        at += 1
        if _takes_next(word):
            if at >= len(words):
                raise InvalidInput(f"sbatch's option {word} needs a value behind it, as in `{word} VALUE`")
            at += 1
    return _of(words, ())


def _of(options: Sequence[str], rest: Sequence[str]) -> Words:
    return Words(tuple(options), rest[0] if rest else None, tuple(rest[1:]))


def _takes_next(word: str) -> bool:
    if word.startswith("--"):
        return "=" not in word and word[2:] not in FLAGS
    for number, letter in enumerate(word[1:], 1):
        if letter not in SHORT_FLAGS:
            return number == len(word) - 1
    return False


def values(options: Iterable[str]) -> dict[str, str]:
    """Long name -> value of the options that were given, "" for a flag; the last one counts, as in sbatch."""
    found: dict[str, str] = {}
    pending = ""
    for word in options:
        if pending:
            found[pending], pending = word, ""
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = value
            pending = name if not equals and name not in FLAGS else ""
        elif word.startswith("-"):
            pending = _short(word[1:], found)
    return found


def _short(letters: str, found: dict[str, str]) -> str:
    for number, letter in enumerate(letters):
        name = SHORT.get(letter, letter)
        if letter not in SHORT_FLAGS:
            found[name] = letters[number + 1 :]
            return "" if letters[number + 1 :] else name
        found[name] = ""
    return ""


def directives(script: str) -> tuple[list[str], bool]:
    """(the words of its #SBATCH lines, whether it is a heterogeneous job). sbatch stops reading them at the
    first line of the script that is neither a comment nor empty."""
    words: list[str] = []
    for line in script.splitlines():
        text = line.strip()
        if text.startswith("#SBATCH"):
            try:
                words += shlex.split(text.removeprefix("#SBATCH"), comments=True)
            except ValueError:
                continue  # an open quote: sbatch itself will say so
        elif text and not text.startswith("#"):
            break
    return words, "hetjob" in words or "packjob" in words


def without(options: Sequence[str], names: frozenset[str]) -> list[str]:
    """The options but for these (by long name), with their values."""
    kept: list[str] = []
    at = 0
    while at < len(options):
        one = list(options[at : at + (2 if _takes_next(options[at]) else 1)])
        at += len(one)
        if not names & set(values(one)):
            kept += one
    return kept
