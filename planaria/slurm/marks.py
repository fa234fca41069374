"""What Planaria keeps in Slurm: one token among the other words of a comment.

    planaria?node=i-0abc&reason=planaria:i-0abc.17&by=root&at=1700000000

On a node it stands in Comment, on a job in AdminComment (only operators write it), and `planaria submit`
puts one into the job's Comment. The token has no blank, quote or comma, since Slurm's text form quotes
nothing, and whatever else stands in the comment is kept.
"""

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

TOKEN = re.compile(r"(?<!\S)planaria\?(\S*)")
PLAIN = ":._-/+@[]"


def read(comment: str) -> dict[str, str]:
    """The fields of our token; {} where there is none. Two tokens are nobody's word: {}."""
    tokens = TOKEN.findall(comment)
    return dict(parse_qsl(tokens[0], keep_blank_values=True)) if len(tokens) == 1 else {}


def write(comment: str, fields: Mapping[str, str]) -> str:
    """The comment with these fields in place of our token; without fields the token goes."""
    rest = " ".join(TOKEN.sub("", comment).split())
    pairs = (f"{quote(name, safe=PLAIN)}={_quoted(value)}" for name, value in fields.items())
    token = f"planaria?{'&'.join(pairs)}" if fields else ""
    return " ".join(part for part in (rest, token) if part)


def _quoted(value: str) -> str:
    # `+` would be read back as a blank.
    return quote(value, safe=PLAIN).replace("+", "%2B")
