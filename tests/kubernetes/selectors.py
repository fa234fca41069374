"""Label and field selectors as the Kubernetes API takes them in a query."""

import re
from typing import Any

Document = dict[str, Any]

FIELDS = {
    "pods": ("metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"),
    "nodes": ("metadata.name", "spec.unschedulable"),
}
"""What a list can be filtered by; any other field is an error, as on a real server."""


class BadSelector(ValueError):
    """400: the selector cannot be read, or names a field that the resource cannot be filtered by."""


_TERM = re.compile(
    r"""\s*(?:
        (?P<key>[A-Za-z0-9./_-]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)
      | (?P<not>!)\s*(?P<absent>[A-Za-z0-9./_-]+)
      | (?P<left>[A-Za-z0-9./_-]+)\s*(?P<eq>==|=|!=)\s*(?P<right>[A-Za-z0-9._-]*)
      | (?P<present>[A-Za-z0-9./_-]+)
    )\s*(?:,|$)""",
    re.VERBOSE,
)


def label_matches(selector: str, labels: dict[str, str]) -> bool:
    at = 0
    result = True
    while at < len(selector):
        term = _TERM.match(selector, at)
        if term is None:
            raise BadSelector(f"unable to parse requirement: {selector[at:]!r}")
        result = _holds(term, labels) and result
        at = term.end()
    return result


def _holds(term: re.Match[str], labels: dict[str, str]) -> bool:
    if term["op"]:
        values = [value.strip() for value in term["values"].split(",")]
        found = labels.get(term["key"])
        return found in values if term["op"] == "in" else found not in values
    if term["not"]:
        return term["absent"] not in labels
    if term["eq"]:
        same = labels.get(term["left"]) == term["right"]
        return not same if term["eq"] == "!=" else same
    return term["present"] in labels


def field_matches(resource: str, selector: str, document: Document) -> bool:
    for term in selector.split(","):
        parts = re.fullmatch(r"\s*([A-Za-z.]+)\s*(==|=|!=)\s*(.*?)\s*", term)
        if parts is None:
            raise BadSelector(f"invalid field selector: {term!r}")
        field, op, wanted = parts.groups()
        if field not in FIELDS.get(resource, ("metadata.name", "metadata.namespace")):
            raise BadSelector(f"field label not supported: {field}")
        value: Any = document
        for name in field.split("."):
            value = (value or {}).get(name)
        text = {True: "true", False: "false", None: ""}.get(value, str(value))
        if field == "spec.unschedulable" and value is None:
            text = "false"
        if (text == wanted) == (op == "!="):
            return False
    return True


def set_matches(selector: Document | None, labels: dict[str, str]) -> bool:
    """A LabelSelector object, as a budget has it."""
    if selector is None:
        return False
    terms = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or []:
        listed = ",".join(each.get("values") or [])
        terms.append(
            {
                "In": f"{each['key']} in ({listed})",
                "NotIn": f"{each['key']} notin ({listed})",
                "Exists": each["key"],
                "DoesNotExist": f"!{each['key']}",
            }[each["operator"]]
        )
    return label_matches(",".join(terms), labels)
