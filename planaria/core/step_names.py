"""What the name of a directory tells about the checkpoint step in it, in the ways of common frameworks."""

import re
from dataclasses import dataclass

_NUMBER = r"([0-9]{1,18})"
_END = r"(?![0-9.])"

WAYS: tuple[tuple[str, str], ...] = (
    ("Planaria, TorchTitan, DeepSpeed forks", rf"step[-_=]?{_NUMBER}"),
    ("Hugging Face Trainer, Accelerate", rf"(?:checkpoint|ckpt)[-_]?{_NUMBER}"),
    ("DeepSpeed", rf"global[-_]?step[-_]?{_NUMBER}"),
    ("Megatron-LM", rf"iter(?:ation)?[-_]?{_NUMBER}"),
    ("Composer", rf"ep[0-9]+-ba{_NUMBER}(?:-rank[0-9]+)?"),
    ("Lightning, NeMo", rf"(?:.*[-_])?(?:global_)?step={_NUMBER}{_END}(?:[-_].*)?"),
    ("a count of epochs", rf"epoch[-_=]?{_NUMBER}"),
)
"""(who writes so, a pattern of the whole name with the number as its group); the first that fits counts."""

_WAYS = [re.compile(pattern) for _, pattern in WAYS]
_UNFINISHED = re.compile(
    r"(?:tmp[-_])?(.+?)(?:\.ckpt|\.pth?)?((?:\.[A-Za-z0-9_-]+)*\.(?:tmp|partial|incomplete|inprogress))?"
)
_CLAIMS = re.compile(r"(?:global[-_]?step|step|checkpoint|ckpt|iter(?:ation)?|epoch)(?:[-_=.].*|[0-9]*)")


@dataclass(frozen=True, slots=True)
class StepName:
    """step: -1 where the name claims to be one and has no number that can be read. unfinished: `.tmp` and its
    like, whatever is inside."""

    step: int
    unfinished: bool = False


def read(name: str) -> StepName | None:
    """None: the name does not claim to be a step's."""
    match = _UNFINISHED.fullmatch(name)
    if match is None:
        return None
    bare, unfinished = match[1], match[2] is not None or name.startswith(("tmp-", "tmp_"))
    for way in _WAYS:
        if found := way.fullmatch(bare):
            return StepName(int(found[1]), unfinished)
    return StepName(-1, unfinished) if _CLAIMS.fullmatch(bare) else None


def step_of(name: str) -> int | None:
    """The number of a finished step's directory; None where its name tells none."""
    told = read(name)
    return None if told is None or told.unfinished or told.step < 0 else told.step


def name_of(step: int) -> str:
    """The name that we give to a step's directory."""
    return f"step-{step}"
