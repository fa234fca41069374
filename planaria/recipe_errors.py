"""What is wrong with a cluster file, as sentences: each names the key and the rule."""

import difflib
from collections.abc import Collection, Iterator
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

_FORMS = {
    r"^/dev/[a-z0-9]+$": "must be a device such as /dev/xvda",
    r"^[a-z][a-z0-9-]{0,30}$": "must be 1 to 31 characters of a-z, 0-9 and -, with a letter first",
    r"^[a-z][a-z0-9-]*$": "must be an instance family such as p5",
    r"^[a-z]{2}(-[a-z]+)+-[0-9]+$": "must be an AWS region such as us-east-1",
    r"^[a-z0-9-]+\.[a-z0-9-]+$": "must be an EC2 instance type such as p5.48xlarge",
    r"^ami-[0-9a-f]{8,17}$": "must be an image id such as ami-0123456789abcdef0",
    r"^subnet-[0-9a-f]{8,17}$": "must be a subnet id such as subnet-0123456789abcdef0",
    r"^cr-[0-9a-f]{8,17}$": "must be a capacity reservation id such as cr-0123456789abcdef0",
    r"^fs-[0-9a-f]{8,17}$": "must be a file system id such as fs-0123456789abcdef0",
    r"^[a-z]{2}(-[a-z]+)+-[0-9]+[a-z]$": "must be an Availability Zone such as us-east-1a",
    r"^i-[0-9a-f]{8,17}$": "must be an instance id such as i-0123456789abcdef0",
    r"^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$": "must be the name of an EKS cluster",
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$": "must be a namespace such as team-a",
    r"^vpc-[0-9a-f]{8,17}$": "must be a VPC id such as vpc-0123456789abcdef0",
    r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$": "must be the name of a bucket",
    r"^[1-7]:([01][0-9]|2[0-3]):[0-5][0-9]$": "must be a weekday (1 is Monday) and a time, such as 7:03:00",
    r"^/[^\x00\r\n]{0,4000}$": "must be a path from the root, such as /checkpoints",
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$": "must be a tag of 1 to 63 characters of A-Z, a-z, 0-9, ., _ and -",
    r"^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[0-9a-f-]{36}$": "must be the ARN of a KMS key",
    r"^sg-[0-9a-f]{8,17}$": "must be a security group id such as sg-0123456789abcdef0",
}


class Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key {key.value} stands there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def where(error: yaml.YAMLError) -> str:
    """The line, and what YAML has against it."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "this is not YAML"
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)


def sentences(error: ValidationError, keys: Collection[str]) -> Iterator[str]:
    """One for each problem. keys: all that a cluster file may have, for what is misspelt."""
    for problem in error.errors():
        if problem["type"] == "too_short" and problem["input"]:
            continue  # only the shadow of a bad entry, which is reported by itself
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])
        rule = _rule(problem, keys)
        yield f"{key.lstrip('.')}: {rule}." if key else f"{rule}."


def _rule(problem: ErrorDetails, keys: Collection[str]) -> str:
    context = problem.get("ctx", {})
    given = problem["input"]
    match problem["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"is no known key{_nearest(problem['loc'], keys)}"
        case "enum":
            return f"must be {context['expected']}, not {given!r}"
        case "string_pattern_mismatch":
            return f"{_FORMS.get(context['pattern'], 'has the wrong form')}, not {given!r}"
        case "string_type":
            return f"must be text, not {given!r} (put it in quotes)"
        case "int_type" | "int_from_float":
            return f"must be a whole number, not {given!r}"
        case "float_type":
            return f"must be a number, not {given!r}"
        case "bool_type":
            return f"must be true or false, not {given!r}"
        case "tuple_type":
            return "must be a list"
        case "model_type" | "dict_type" | "model_attributes_type":
            return "must be a mapping of keys"
        case "too_long":
            return f"must list at most {context['max_length']} entries, not {context['actual_length']}"
        case "literal_error":
            return f"must be {context['expected']}, not {given!r}"
        case "too_short":
            return "must list at least one entry"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, not {len(given)}"
        case "value_error":
            return str(context["error"])
    message = problem["msg"].removeprefix("Input should be ")
    return f"must be {message}, not {given!r}"


def _nearest(location: tuple[int | str, ...], keys: Collection[str]) -> str:
    """A hint for a misspelt key, found among all keys that a cluster file may have."""
    close = difflib.get_close_matches(str(location[-1]), sorted(keys), n=1, cutoff=0.7)
    return f" (is {close[0]} meant?)" if close else ""
