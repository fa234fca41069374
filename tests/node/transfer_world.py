"""What the tests of the copier share: a job's folder, a bucket, and a ledger that several processes see."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.core.manifest import Format, Lineage, Manifest, Shard, encoded
from planaria.core.ports import Table
from planaria.core.table import Changes, Condition, Row
from planaria.core.table import Path as Name
from planaria.core.transfer_ledger import TransferLedger
from planaria.core.transfers import Mode
from planaria.memory.table import MemoryTable
from planaria.node import transfer_plan, transfer_settle
from planaria.node.transfer_plan import Asked
from planaria.node.transfer_run import Carrier
from planaria.node.transfer_setting import Setting

JOB = "gpt"
NOW = 1_000_000.0


def crc_of(body: bytes) -> str:
    from awscrt.checksums import crc64nvme

    return encoded(crc64nvme(body))


class FileTable:
    """The Table port in a file, for processes that are killed at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _with(self, do: Any) -> Any:
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            table = MemoryTable()
            if self._path.exists():
                for row in json.loads(self._path.read_text()):
                    table.write(row["pk"], row["sk"], {k: v for k, v in row.items() if k not in ("pk", "sk")})
            answer = do(table)
            scratch = self._path.with_suffix(".tmp")
            rows = [row for key in sorted({k for k, _ in table._rows}) for row in table.query(key)]
            scratch.write_text(json.dumps(rows))
            os.replace(scratch, self._path)
            return answer

    def get(self, pk: str, sk: str) -> Row | None:
        return self._with(lambda table: table.get(pk, sk))

    def get_many(self, keys: Sequence[tuple[str, str]]) -> list[Row]:
        return list(self._with(lambda table: table.get_many(keys)))

    def query(self, pk: str) -> list[Row]:
        return list(self._with(lambda table: table.query(pk)))

    def listing(self, kind: str) -> list[Row]:
        return list(self._with(lambda table: table.listing(kind)))

    def write(
        self,
        pk: str,
        sk: str,
        sets: Changes | None = None,
        removes: Sequence[Name] = (),
        adds: Mapping[Name, int] | None = None,
        when: Condition | None = None,
        quiet: bool = False,
    ) -> Row:
        return dict(self._with(lambda table: table.write(pk, sk, sets, removes, adds, when, quiet)))


@dataclass(slots=True)
class World:
    """One job's folder and one bucket. now: what the carriers' clock says."""

    folder: Path
    bucket: str
    client: Any
    table: Table
    now: float = NOW

    @property
    def ledger(self) -> TransferLedger:
        return TransferLedger(self.table)

    def setting(self) -> Setting:
        return Setting(self.bucket, "table", "us-east-1")

    def save(self, step: int, files: Mapping[str, bytes], manifest: bool = True) -> Path:
        """A step on the file system."""
        root = self.folder / f"step-{step}"
        for name, body in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        if manifest:
            (root / "planaria-manifest.json").write_bytes(self.manifest(step, files).to_json())
        return root

    def manifest(self, step: int, files: Mapping[str, bytes]) -> Manifest:
        shards = tuple(Shard(name, len(body), crc_of(body)) for name, body in files.items())
        return Manifest(step, Lineage(JOB), 2, Format.PLANARIA, shards, 1000.0)

    def store(self, step: int, files: Mapping[str, bytes]) -> None:
        """A step in S3, as a sync leaves it."""
        for name, body in files.items():
            self.client.put_object(Bucket=self.bucket, Key=f"checkpoints/{JOB}/step-{step}/{name}", Body=body)
        body = self.manifest(step, files).to_json()
        self.client.put_object(
            Bucket=self.bucket, Key=f"checkpoints/{JOB}/step-{step}/planaria-manifest.json", Body=body
        )

    def asked(self, step: int | str, transfer: str, mode: Mode, chunks: int = 2) -> Asked:
        return Asked(JOB, self.folder, str(step), transfer, mode, chunks)

    def plan(self, step: int | str, transfer: str, mode: Mode, chunks: int = 2) -> dict[str, Any]:
        """Planned, and opened as the Lambda does it."""
        answer = transfer_plan.plan(self.asked(step, transfer, mode, chunks), self.setting())
        if answer["state"] == "complete":
            self.ledger.open(transfer, mode, answer["chunks"], {}, self.now)
        return answer

    def run(self, transfer: str) -> dict[str, Any]:
        return Carrier(self.setting(), self.ledger, transfer, lambda: self.now).run()

    def settle(self, transfer: str) -> dict[str, Any]:
        return transfer_settle.settle(
            JOB, self.folder, transfer, self.setting(), self.ledger, lambda: self.now
        )

    def object(self, step: int, name: str) -> bytes:
        key = f"checkpoints/{JOB}/step-{step}/{name}"
        return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def proof(self, step: int, name: str) -> tuple[int, str]:
        """(bytes, checksum of the whole object), as a Lambda proves it."""
        key = f"checkpoints/{JOB}/step-{step}/{name}"
        told = self.client.head_object(Bucket=self.bucket, Key=key, ChecksumMode="ENABLED")
        assert told.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
        return told["ContentLength"], told.get("ChecksumCRC64NVME", "")

    def uploads(self) -> list[str]:
        told = self.client.list_multipart_uploads(Bucket=self.bucket)
        return [each["Key"] for each in told.get("Uploads", ())]
