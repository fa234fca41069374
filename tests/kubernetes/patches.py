"""The patch types of the Kubernetes API: RFC 7386, RFC 6902, and the strategic one for built-in kinds."""

import copy
from typing import Any

MERGE_KEYS = {"conditions": "type", "containers": "name", "tolerations": None, "taints": None}
"""Lists of built-in kinds that a strategic patch merges by key; all others, taints too, it replaces."""


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list) and MERGE_KEYS.get(key):
            by = str(MERGE_KEYS[key])
            listed = {item[by]: item for item in result.get(key) or []}
            for item in value:
                listed[item[by]] = strategic(listed.get(item[by]), item)
            result[key] = list(listed.values())
        else:
            result[key] = strategic(result.get(key), value)
    return result


class PatchFailed(ValueError):
    """422: an operation does not apply."""


def json_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    document = copy.deepcopy(target)
    for each in operations:
        path = [p.replace("~1", "/").replace("~0", "~") for p in each["path"].split("/")[1:]]
        parent = document
        for name in path[:-1]:
            parent = parent[int(name)] if isinstance(parent, list) else parent.get(name)
            if parent is None:
                raise PatchFailed(f"the path {each['path']} does not exist")
        last = path[-1]
        match each["op"]:
            case "test":
                found = parent[int(last)] if isinstance(parent, list) else parent.get(last)
                if found != each.get("value"):
                    raise PatchFailed(f"the test of {each['path']} failed")
            case "add" | "replace":
                if isinstance(parent, list):
                    index = len(parent) if last == "-" else int(last)
                    if each["op"] == "add":
                        parent.insert(index, each["value"])
                    else:
                        parent[index] = each["value"]
                else:
                    if each["op"] == "replace" and last not in parent:
                        raise PatchFailed(f"the path {each['path']} does not exist")
                    parent[last] = each["value"]
            case "remove":
                if isinstance(parent, list):
                    del parent[int(last)]
                elif last not in parent:
                    raise PatchFailed(f"the path {each['path']} does not exist")
                else:
                    del parent[last]
            case op:
                raise PatchFailed(f"unexpected operation {op}")
    return document
