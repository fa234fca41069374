"""A carrier: claims chunks of a transfer and carries them until none is open."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planaria.aws.crt import Stopped
from planaria.aws.transfer import Engine, Identity, NotRight, Part, combined
from planaria.core.errors import Fenced, InvalidInput, PermanentError, TransientError
from planaria.core.manifest import encoded
from planaria.core.transfer_ledger import FAILURES_KEPT, LEASE_SECONDS, Claim, TransferLedger
from planaria.core.transfers import Cause, Failure, File, Mode, Piece, split_files
from planaria.node import carry, transfer_plan
from planaria.node.carry import Bringing, Crew
from planaria.node.fetched import Fetched
from planaria.node.transfer_plan import Plan
from planaria.node.transfer_setting import Setting, bucket_of, owner
from planaria.node.tree import Tree

Answer = dict[str, Any]
Result = dict[str, Any]


class Carrier:
    """One process's work on one transfer."""

    def __init__(
        self, setting: Setting, ledger: TransferLedger, transfer: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._setting, self._ledger, self._transfer, self._clock = setting, ledger, transfer, clock
        self._owner = owner()
        self._documents = setting.engine()
        self._failed: list[Failure] = []
        self._chunks = self._bytes = self._failures = 0

    def run(self) -> Answer:
        """-> {"chunks", "bytes", "failed": [{"name", "reason", "cause"}], "failures"}. Raises InvalidInput
        where the transfer is not there, Stopped, TransientError."""
        facts = self._ledger.plan(self._transfer)
        plan = transfer_plan.read(self._documents, self._transfer)
        if plan is None:
            raise InvalidInput(f"transfer {self._transfer} has no plan; plan it first")
        share = float(facts.get("bandwidth_share") or 1.0)
        if share < 1:
            os.nice(10)
        engine = self._setting.engine(bucket_of(plan.objects)[0], share)
        with contextlib.closing(engine), contextlib.closing(self._documents):
            while not self._setting.stop.is_set():
                claim = self._ledger.claim(self._transfer, self._owner, self._clock())
                if claim is None:
                    return self._told()
                self._carry(plan, engine, claim)
        raise Stopped

    def _told(self) -> Answer:
        ordered = sorted(self._failed, key=lambda failure: failure.name)
        failed = [{"name": f.name, "reason": f.reason[:300], "cause": f.cause.value} for f in ordered]
        return {
            "chunks": self._chunks,
            "bytes": self._bytes,
            "failed": failed[:FAILURES_KEPT],
            "failures": self._failures,
        }

    def _carry(self, plan: Plan, engine: Engine, claim: Claim) -> None:
        lost = threading.Event()
        keeper = _Keeper(self._ledger, claim, self._clock, engine.stop, lost)
        keeper.start()
        try:
            work = _Chunk(plan, engine, claim)
            result = work.finish(self._results(plan)) if claim.chunk is None else work.carry()
            name = "result.json" if claim.chunk is None else f"chunk-{claim.chunk:04d}-{claim.fence}.json"
            key = transfer_plan.key(self._transfer, name)
            self._documents.put(key, json.dumps(result).encode())
            told = [
                Failure(each["name"], each["reason"], Cause(each["cause"]))
                for each in result["new" if claim.chunk is None else "failed"]
            ]
            keeper.end()
            self._ledger.done(claim, int(result["bytes"]), told, key, self._clock())
        except Fenced:
            return
        except BaseException as error:
            keeper.end()
            if isinstance(error, Stopped) and lost.is_set() and self._setting.go_on():
                return  # another carries this chunk now, or the transfer is cancelled
            self._ledger.release(claim)
            raise
        finally:
            keeper.end()
        self._chunks += claim.chunk is not None
        self._bytes += int(result["bytes"])
        self._failed.extend(told)
        self._failures += len(told)

    def _results(self, plan: Plan) -> list[Result]:
        rows = self._ledger.chunks(self._transfer)
        found = [transfer_plan.whole(self._documents.get(str(row["result"]))) for row in rows]
        if len(found) != len(plan.chunks):
            raise PermanentError(
                f"the ledger has {len(found)} chunks of {self._transfer}, its plan {len(plan.chunks)}"
            )
        return found


class _Keeper(threading.Thread):
    """Renews a claim while its chunk is carried. lost: set when it is another's; the work is then stopped."""

    def __init__(
        self,
        ledger: TransferLedger,
        claim: Claim,
        clock: Callable[[], float],
        stop: threading.Event,
        lost: threading.Event,
    ) -> None:
        super().__init__(daemon=True, name="lease")
        self._ledger, self._claim, self._clock, self._stop_all, self._lost = ledger, claim, clock, stop, lost
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(LEASE_SECONDS / 3):
            try:
                self._ledger.renew(self._claim, self._clock())
            except Fenced:
                self._lost.set()
                self._stop_all.set()
                return
            except (TransientError, PermanentError):
                continue  # the lease is longer than two renewals; whoever takes the chunk does the same work

    def end(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join(30)


class _Chunk:
    """The work of one claim."""

    def __init__(self, plan: Plan, engine: Engine, claim: Claim) -> None:
        self._plan, self._engine, self._claim = plan, engine, claim
        self._prefix = bucket_of(plan.objects)[1]
        self._split = split_files(plan.chunks)

    def carry(self) -> Result:
        assert self._claim.chunk is not None
        pieces = self._plan.chunks[self._claim.chunk]
        crew = Crew(self._engine)
        match self._plan.mode:
            case Mode.COPY:
                return self._copy(crew, pieces)
            case Mode.HASH:
                return self._hash(crew, pieces)
            case Mode.FETCH:
                return self._fetch(crew, pieces)

    # --- up and hash --------------------------------------------------------------------------------

    def _copy(self, crew: Crew, pieces: Sequence[Piece]) -> Result:
        look = self._plan.there or self._claim.fence > 1
        there = carry.listed(self._engine, f"{self._prefix}/") if look else {}
        found: dict[tuple[int, int], list[Any]] = {}
        with _opened(self._plan) as tree:

            def do(piece: Piece) -> None:
                file = self._plan.files[piece.file]
                key = f"{self._prefix}/{file.name}"
                if piece.file in self._split:
                    parts = self._parts(tree, file, piece, key)
                    sent = [[part.number, part.etag, part.crc, part.length] for part in parts]
                    found[piece.file, piece.start] = [piece.length, combined(parts), sent]
                    return
                sent_whole = self._engine.send(tree, file, key, there.get(key))
                self._same_as_planned(file, sent_whole.identity)
                found[piece.file, 0] = [sent_whole.identity.size, sent_whole.crc, []]

            self._work(crew, pieces, do)
        return self._result(crew, pieces, found)

    def _same_as_planned(self, file: File, now: Identity) -> None:
        seen = self._plan.seen.get(file.name)
        if seen is not None and (seen.size, seen.modified, seen.inode) != (now.size, now.mtime_ns, now.inode):
            raise NotRight(f"{file.name} was written anew after the transfer was planned", Cause.CHANGED)
        if now.size != file.size:
            raise NotRight(f"{file.name} has {now.size} bytes instead of {file.size}", Cause.BAD)

    def _parts(self, tree: Tree, file: File, piece: Piece, key: str) -> list[Part]:
        descriptor = tree.open(file.name)
        try:
            before = Identity.of(os.fstat(descriptor))
            self._same_as_planned(file, before)
            upload = self._plan.uploads[piece.file]
            parts = self._engine.send_parts(descriptor, key, upload, file.size, piece.start, piece.length)
            if parts is None or before != Identity.of(os.fstat(descriptor)):
                raise NotRight(f"{file.name} is still being written", Cause.CHANGED)
            return parts
        finally:
            os.close(descriptor)

    def _hash(self, crew: Crew, pieces: Sequence[Piece]) -> Result:
        found: dict[tuple[int, int], list[Any]] = {}
        with _opened(self._plan) as tree:

            def do(piece: Piece) -> None:
                file = self._plan.files[piece.file]
                descriptor = tree.open(file.name)
                try:
                    before = Identity.of(os.fstat(descriptor))
                    self._same_as_planned(file, before)
                    crc = self._engine.checksum(descriptor, piece.start, piece.length)
                    if crc is None or before != Identity.of(os.fstat(descriptor)):
                        raise NotRight(f"{file.name} is still being written", Cause.CHANGED)
                finally:
                    os.close(descriptor)
                if piece.length == file.size and file.crc64nvme and file.crc64nvme != encoded(crc):
                    raise NotRight(_differs(file, encoded(crc)), Cause.BAD)
                self._engine.note(piece.length)
                found[piece.file, piece.start] = [piece.length, crc, []]

            self._work(crew, pieces, do)
        return self._result(crew, pieces, found)

    def _work(self, crew: Crew, pieces: Sequence[Piece], do: Callable[[Piece], None]) -> None:
        def task(piece: Piece) -> Callable[[], None]:
            return lambda: crew.one(self._plan.files[piece.file].name, lambda: do(piece))

        crew.carry(
            (task(piece) for piece in pieces if piece.length <= carry.SMALL),
            (task(piece) for piece in pieces if piece.length > carry.SMALL),
        )

    # --- down ---------------------------------------------------------------------------------------

    def _fetch(self, crew: Crew, pieces: Sequence[Piece]) -> Result:
        with _opened(self._plan, make=True) as tree:
            cursor = Fetched(tree, f"{self._claim.chunk:04d}")
            bringing = Bringing(self._engine, tree, self._plan.files, cursor, self._prefix)
            try:
                bringing.carry(crew, pieces)
            finally:
                cursor.close()
            tree.sync()
            whole = bringing.joined(crew, [p.file for p in pieces if p.file not in self._split])
            found: dict[tuple[int, int], list[Any]] = {
                (index, 0): [self._plan.files[index].size, crc, []] for index, crc in whole.items()
            }
            for piece in pieces:
                if piece.file in self._split and (told := bringing.piece(piece)) is not None:
                    found[piece.file, piece.start] = [piece.length, told, []]
        return self._result(crew, pieces, found)

    def _result(
        self, crew: Crew, pieces: Sequence[Piece], found: Mapping[tuple[int, int], Sequence[Any]]
    ) -> Result:
        named = {failure.name for failure in crew.failed}
        halted = next((f for f in crew.failed if f.cause is Cause.FULL), None)
        for piece in pieces:
            name = self._plan.files[piece.file].name
            if (piece.file, piece.start) not in found and name not in named:
                named.add(name)
                reason = halted.reason if halted else "it was not carried"
                crew.failed.append(Failure(name, reason, halted.cause if halted else Cause.OTHER))
        return {
            "pieces": [[file, start, *told] for (file, start), told in sorted(found.items())],
            "failed": _documents(crew.failed),
            "bytes": sum(int(told[0]) for told in found.values()),
        }

    # --- the last stage -----------------------------------------------------------------------------

    def finish(self, results: Sequence[Result]) -> Result:
        """Join what was split, and list what there is now."""
        failed = {each["name"]: each for result in results for each in result["failed"]}
        told: dict[int, list[Any]] = {}
        for result in results:
            for file, start, length, crc, parts in result["pieces"]:
                told.setdefault(file, []).append((start, length, crc, parts))
        new: dict[str, dict[str, str]] = {}
        files = []
        for index, file in enumerate(self._plan.files):
            if file.name in failed:
                continue
            try:
                crc = self._join(index, file, sorted(told.get(index, [])))
            except (NotRight, PermanentError, TransientError) as error:
                if isinstance(error, Stopped):
                    raise
                cause, reason = carry.why(error)
                new[file.name] = {"name": file.name, "reason": reason, "cause": cause.value}
                continue
            files.append([file.name, file.size, encoded(crc)])
        everything = sorted([*failed.values(), *new.values()], key=lambda each: str(each["name"]))
        fresh = list(new.values())
        return {"mode": self._plan.mode.value, "files": files, "failed": everything, "new": fresh, "bytes": 0}

    def _join(self, index: int, file: File, pieces: Sequence[Any]) -> int:
        if sum(length for _, length, _, _ in pieces) != file.size or not pieces:
            raise NotRight(f"{file.name} was not carried as a whole", Cause.OTHER)
        crc = carry.join([(length, each) for _, length, each, _ in pieces])
        if file.crc64nvme and encoded(crc) != file.crc64nvme:
            raise NotRight(_differs(file, encoded(crc)), Cause.BAD)
        if index in self._split and self._plan.mode is Mode.COPY:
            with _opened(self._plan) as tree:
                self._same_as_planned(file, Identity.of(tree.stat(file.name)))
            parts = [
                Part(number, etag, each, length) for *_, sent in pieces for number, etag, each, length in sent
            ]
            key = f"{self._prefix}/{file.name}"
            self._engine.finish_upload(key, self._plan.uploads[index], parts, file.size)
        return crc


def _differs(file: File, crc: str) -> str:
    return f"{file.name} is not what its manifest says: its checksum is {crc}, not {file.crc64nvme}"


def _documents(failed: Sequence[Failure]) -> list[dict[str, str]]:
    ordered = sorted(failed, key=lambda failure: failure.name)
    return [{"name": f.name, "reason": f.reason, "cause": f.cause.value} for f in ordered]


def _opened(plan: Plan, make: bool = False) -> Tree:
    try:
        return Tree(plan.root, make)
    except OSError as error:
        raise PermanentError(f"{plan.root} cannot be opened: {error.strerror}") from None
