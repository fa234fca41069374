"""Checks JSON against botocore's model of FSx, which is AWS's own description of requests and answers."""

import re
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape

SERVICE = ServiceModel(Loader().load_service_model("fsx", "service-2"), "fsx")
_NUMBERS: dict[str, Any] = {
    "integer": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float),
}


def complaints(shape: Shape, value: Any, where: str = "") -> list[str]:
    """Everything in which `value` is not of this shape; empty when it is."""
    kind = shape.type_name
    if kind == "structure":
        return _structure(shape, value, where)
    if kind == "list":
        if not isinstance(value, list):
            return [f"{where} is no list: {value!r}"]
        inner = [c for i, each in enumerate(value) for c in complaints(shape.member, each, f"{where}[{i}]")]
        return inner + _bounds(shape, len(value), where)
    if kind == "string":
        if not isinstance(value, str):
            return [f"{where} is no string: {value!r}"]
        if shape.enum and value not in shape.enum:
            return [f"{where} is {value!r}, it may be {shape.enum}"]
        pattern = _python(shape.metadata.get("pattern", ""))
        if not re.search(pattern, value):
            return [f"{where} is {value!r}, it must match {pattern}"]
        return _bounds(shape, len(value), where)
    if kind == "boolean":
        return [] if isinstance(value, bool) else [f"{where} is no boolean: {value!r}"]
    if kind in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, _NUMBERS[kind]):
            return [f"{where} is no {kind}: {value!r}"]
        return [] if kind == "timestamp" else _bounds(shape, value, where)
    return [f"{where} is of the type {kind}, which nobody checks"]


def _python(pattern: str) -> str:
    """Java's letters, blanks and numbers as Python writes them."""
    return pattern.replace(r"\p{L}", r"\w").replace(r"\p{Z}", r"\s").replace(r"\p{N}", r"\d")


def _structure(shape: Any, value: Any, where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where or shape.name} is no object: {value!r}"]
    found = [f"{where}.{name} is missing" for name in shape.required_members if name not in value]
    for name, each in value.items():
        if name not in shape.members:
            found.append(f"{where}.{name} is no member of {shape.name}")
        else:
            found += complaints(shape.members[name], each, f"{where}.{name}")
    return found


def _bounds(shape: Any, size: float, where: str) -> list[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if least is not None and size < least:
        return [f"{where} is below {least}: {size}"]
    return [f"{where} is above {most}: {size}"] if most is not None and size > most else []
