"""Who set a field: Kubernetes keeps it in metadata.managedFields, one entry for each program.

https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

from collections.abc import Sequence
from typing import Any


def writer(document: dict[str, Any], path: Sequence[str]) -> tuple[str, str]:
    """(program, time) of who set the field at this path, such as ("spec", "suspend"); ("", "") when nobody is
    known to have."""
    for entry in document["metadata"].get("managedFields") or []:
        fields: Any = entry.get("fieldsV1")
        for name in path:
            fields = fields.get(f"f:{name}") if isinstance(fields, dict) else None
        if fields is not None:
            return str(entry.get("manager") or ""), str(entry.get("time") or "")
    return "", ""
