"""Steps as other programs write them, without Planaria and without PyTorch."""

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from tests.checkpoint.test_dcp_metadata import metadata


def dcp(ranks: int = 2, size: int = 500) -> dict[str, bytes]:
    names = [f"__{rank}_0.distcp" for rank in range(ranks)]
    items = [(name, at, size // 2) for name in names for at in (0, size // 2)]
    # In the order in which DCP writes them.
    return dict.fromkeys(names, b"t" * size) | {".metadata": metadata(*items, version="1.0.0")}


def tensors(given: Mapping[str, int], **extra: Any) -> bytes:
    """A safetensors file. given: tensor -> bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}, **extra}
    at = 0
    for name, size in given.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    told = json.dumps(header).encode()
    return len(told).to_bytes(8, "little") + told + b"w" * at


def safetensors(parts: int = 2) -> dict[str, bytes]:
    """A Hugging Face checkpoint with its index."""
    names = [f"model-{part:05}-of-{parts:05}.safetensors" for part in range(1, parts + 1)]
    files = {name: tensors({f"layer {at}": 100, f"bias {at}": 0}) for at, name in enumerate(names)}
    held = {f"{kind} {at}": name for at, name in enumerate(names) for kind in ("layer", "bias")}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": held}).encode()
    files["config.json"] = b'{"transformers_version": "4.57.0"}'
    return files | {"optimizer.pt": torch_file(), "trainer_state.json": b"{}"}


def torch_file() -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("archive/data.pkl", b"never read")
        archive.writestr("archive/data/0", b"0" * 300)
    return body.getvalue()
