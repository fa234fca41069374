"""How fast a directory goes to S3 and back, beside the tools that people use, and what that costs.

    python -m benchmarks.sync [--small] [--minutes 24] [--shapes one,some,many] [--rivals awscrt,s5cmd,...]

Three shapes (1 file of 4 GiB, 64 of 64 MiB, 20,000 of 16 KiB) go up to a SeaweedFS on this machine, a fresh
one for each client and shape, and come down again; every client is a process of its own, and its whole time
and processor time count. The clients take turns; those that may be the fastest go further rounds until the
time is over. Then a second sync of the many files, with nothing and with 1 % of them changed.
docs/benchmarks.md says more. It takes about 24 minutes and 20 GiB of disk; `--small` a minute.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.report import Aim, Machine, Reached, line
from benchmarks.sync_rivals import ROOT, WANTED, Client, Rivals
from tests import object_store

NAME = "sync"
GIB = 1 << 30
BUCKET = "bench"
LONGEST_SECONDS = 600.0
AIM_LARGE, AIM_MANY, AIM_CPU, AIM_AGAIN = 1.15, 1.5, 1.25, 10.0
MANY = "many"
AGAIN_REPEATS = 3
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Shape:
    """files: how many of `size` bytes each."""

    name: str
    files: int
    size: int

    def part(self, share: int) -> "Shape":
        """A share of it for a slow client: fewer large files, or a smaller one."""
        if share == 1 or self.name == MANY:
            return self
        if self.files >= share:
            return Shape(self.name, self.files // share, self.size)
        return Shape(self.name, self.files, self.size // share)

    @property
    def bytes(self) -> int:
        return self.files * self.size


FULL = (Shape("one", 1, 4 * GIB), Shape("some", 64, GIB // 16), Shape(MANY, 20_000, 16 << 10))
SMALL = (Shape("one", 1, GIB // 4), Shape("some", 8, GIB // 32), Shape(MANY, 2_000, 16 << 10))


@dataclass(frozen=True, slots=True)
class Took:
    """seconds, cpu: of one process."""

    seconds: float
    cpu: float


@dataclass(slots=True)
class Figures:
    """(shape, way, client) -> what each time took, and how many bytes and files it was."""

    took: dict[tuple[str, str, str], list[Took]] = field(default_factory=dict)
    moved: dict[tuple[str, str], Shape] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def note(self, shape: Shape, way: str, client: Client, took: Took) -> None:
        self.took.setdefault((shape.name, way, client.name), []).append(took)
        self.moved[shape.name, client.name] = shape

    def seconds_each(self, shape: str, way: str, client: str) -> float | None:
        """The median per byte, or per file of the many: shares of a shape can then be compared."""
        found = self.took.get((shape, way, client))
        if not found:
            return None
        moved = self.moved[shape, client]
        return statistics.median(t.seconds for t in found) / (moved.files if shape == MANY else moved.bytes)

    def cpu_each(self, shape: str, way: str, client: str) -> float | None:
        found = self.took.get((shape, way, client))
        if not found:
            return None
        return statistics.median(t.cpu for t in found) / self.moved[shape, client].bytes * GIB

    def document(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for (shape, way, client), found in self.took.items():
            moved = self.moved[shape, client]
            seconds = statistics.median(t.seconds for t in found)
            cpu = statistics.median(t.cpu for t in found)
            each: dict[str, Any] = {
                "seconds": round(seconds, 3),
                "min": round(min(t.seconds for t in found), 3),
                "max": round(max(t.seconds for t in found), 3),
                "n": len(found),
                "cpu_seconds": round(cpu, 3),
            }
            if way in ("up", "down"):
                each |= {
                    "files": moved.files,
                    "bytes": moved.bytes,
                    "gib_per_second": round(moved.bytes / GIB / seconds, 4),
                    "objects_per_second": round(moved.files / seconds, 1),
                    "cpu_seconds_per_gib": round(cpu / (moved.bytes / GIB), 3),
                }
            told.setdefault(shape, {}).setdefault(way, {})[client] = each
        return told


class Bench:
    def __init__(self, folder: Path, clients: Sequence[Client], deadline: float) -> None:
        self._folder = folder
        self._clients = clients
        self._deadline = deadline
        self.figures = Figures()

    def shape(self, shape: Shape, rounds: int) -> None:
        """Round one with all, further ones with those that contend."""
        source = self._folder / "source"
        for number in range(rounds):
            clients = sorted(self._clients, key=lambda c: c.share)
            if number:
                clients = [c for c in clients if c.contends]
            for client in clients if number % 2 == 0 else reversed(clients):
                if client.key in self.figures.failed or (number and time.monotonic() > self._deadline):
                    continue
                part = shape.part(client.share)
                fill(source, part)
                say(f"{shape.name}: {part.files} x {part.size} bytes, {client.name}, round {number + 1}")
                try:
                    with self._store():
                        self._there_and_back(part, client, source, check=number == 0)
                except (RuntimeError, OSError) as error:
                    self.figures.failed[client.key] = f"{shape.name}: {error}"
                    say(f"{client.name} failed: {error}")

    def _there_and_back(self, shape: Shape, client: Client, source: Path, check: bool) -> None:
        prefix, back = f"{shape.name}/{client.key}", self._folder / "back"
        names = self._folder / "names"
        names.write_text("\n".join(sorted(os.listdir(source))), encoding="utf-8")
        for way, directory in (("up", source), ("down", back)):
            took = self._timed(client, way, directory, prefix, names)
            self.figures.note(shape, way, client, took)
            say(f"    {way} {took.seconds:.2f} s, cpu {took.cpu:.2f} s")
        if check and not same(source, back):
            raise RuntimeError("what came back is not what went up")
        shutil.rmtree(back)

    def again(self, shape: Shape) -> None:
        """A second sync of many files."""
        source = self._folder / "source"
        fill(source, shape)
        names = self._folder / "names"
        names.write_text("", encoding="utf-8")
        with self._store():
            able = [c for c in self._clients if c.again and c.key not in self.figures.failed]
            for client in able:
                self._timed(client, "up", source, f"again/{client.key}", names)
            for number in range(AGAIN_REPEATS):
                for client in able:
                    took = self._timed(client, "again", source, f"again/{client.key}", names)
                    self.figures.note(shape, "nothing_changed", client, took)
                    say(f"nothing changed: {client.name} {took.seconds:.2f} s, round {number + 1}")
            for number in range(AGAIN_REPEATS):
                time.sleep(1.1)  # some tools look at whole seconds
                for each in sorted(os.listdir(source))[number::100]:
                    (source / each).write_bytes(os.urandom(shape.size))
                for client in able:
                    took = self._timed(client, "again", source, f"again/{client.key}", names)
                    self.figures.note(shape, "one_percent_changed", client, took)
                    say(f"1 % changed: {client.name} {took.seconds:.2f} s, round {number + 1}")

    @contextmanager
    def _store(self) -> Iterator[None]:
        place = self._folder / "store"
        with object_store.start(place) as store:
            store.client().create_bucket(Bucket=BUCKET)
            store.client().put_object(Bucket=BUCKET, Key="warm", Body=b"x" * 4096)
            os.environ.update(store.environment())
            yield
        shutil.rmtree(place, ignore_errors=True)

    def _timed(self, client: Client, way: str, directory: Path, prefix: str, names: Path) -> Took:
        """Raises RuntimeError where it failed."""
        command = client.command(way, directory, BUCKET, prefix, names)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT) if client.key == "planaria" else "",
            "XDG_CACHE_HOME": str(self._folder / "cache"),
        }
        with tempfile.TemporaryFile() as said:
            began = time.monotonic()
            process = subprocess.Popen(
                command, env=environment, stdout=said, stderr=subprocess.STDOUT, cwd=self._folder
            )
            timer = _Timer(process, LONGEST_SECONDS)
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            timer.end()
            if process.returncode != 0:
                said.seek(0)
                tail = said.read().decode(errors="replace").strip()[-300:]
                raise RuntimeError(f"{way} ended with {process.returncode}: {tail}")
            if client.key == "planaria":
                said.seek(0)
                told = json.loads(said.read().splitlines()[-1])
                if told["failures"]:
                    raise RuntimeError(f"{way}: {told['failed'][:3]}")
        return Took(seconds, used.ru_utime + used.ru_stime)


class _Timer:
    """Kills a process that takes too long."""

    def __init__(self, process: "subprocess.Popen[bytes]", seconds: float) -> None:
        self._timer = threading.Timer(seconds, process.kill)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        self._timer.cancel()


def fill(folder: Path, shape: Shape) -> None:
    """Files of random bytes, all different, in the page cache."""
    wanted = f"{shape.files} {shape.size}"
    mark = folder.with_name("source.json")
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    block = os.urandom(min(shape.size, 8 << 20))
    for number in range(shape.files):
        with (folder / f"shard-{number:05d}.bin").open("wb") as file:
            for at in range(0, shape.size, len(block)):
                file.write((number << 32 | at).to_bytes(16, "big"))
                file.write(block[16 : min(len(block), shape.size - at)])
    os.sync()
    mark.write_text(wanted, encoding="utf-8")


def same(one: Path, other: Path) -> bool:
    """Every file, byte for byte."""
    done = subprocess.run(["diff", "-rq", str(one), str(other)], capture_output=True, check=False)
    return done.returncode == 0


# --- what it says ---------------------------------------------------------------------------------------


def aims(figures: Figures, clients: Sequence[Client]) -> dict[str, Aim | Reached]:
    """See docs/benchmarks.md."""
    names = {client.key: client.name for client in clients}
    told: dict[str, Aim | Reached] = {}
    for shape in ("one", "some"):
        for way in ("up", "down"):
            ours = figures.seconds_each(shape, way, "planaria")
            rivals = [
                found
                for key, name in names.items()
                if key != "planaria" and (found := figures.seconds_each(shape, way, name))
            ]
            ratio = round(ours / min(rivals), 3) if ours and rivals else None
            told[f"{shape}_{way}_seconds_to_fastest_rival"] = Aim(ratio, AIM_LARGE)
            cpu, bare = (
                figures.cpu_each(shape, way, "planaria"),
                figures.cpu_each(shape, way, names.get("awscrt", "")),
            )
            told[f"{shape}_{way}_cpu_to_bare_awscrt"] = Aim(
                round(cpu / bare, 3) if cpu and bare else None, AIM_CPU
            )
    for way in ("up", "down"):
        told[f"many_{way}_times_faster_than_s5cmd"] = _times(
            figures, MANY, way, names.get("s5cmd", ""), AIM_MANY
        )
    told["nothing_changed_times_faster_than_aws_s3_sync"] = _times(
        figures, MANY, "nothing_changed", names.get("aws", ""), AIM_AGAIN
    )
    return told


def _times(figures: Figures, shape: str, way: str, rival: str, aim: float) -> Reached:
    ours, theirs = figures.seconds_each(shape, way, "planaria"), figures.seconds_each(shape, way, rival)
    return Reached(round(theirs / ours, 3) if ours and theirs else 0.0, aim)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.sync", description="Checkpoints to S3 and back.")
    parser.add_argument("--small", action="store_true", help="small shapes, to see that all works")
    parser.add_argument("--minutes", type=float, default=24.0, help="after which no further round begins")
    parser.add_argument("--shapes", default="one,some,many")
    parser.add_argument("--rivals", default=",".join(WANTED))
    parser.add_argument("--folder", type=Path, help="where files and store are; default: a temporary folder")
    parser.add_argument("--rivals-folder", type=Path, default=Path.home() / ".cache/planaria/rivals")
    return parser


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    machine = Machine.here()
    rivals = Rivals(chosen.rivals_folder, say)
    clients = rivals.clients([key for key in chosen.rivals.split(",") if key])
    shapes = [shape for shape in (SMALL if chosen.small else FULL) if shape.name in chosen.shapes.split(",")]
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="planaria-sync-", dir=chosen.folder))
    try:
        bench = Bench(folder, clients, began + chosen.minutes * 60)
        for shape in reversed(shapes):
            if shape.name == MANY:
                bench.again(shape)
        for rounds, each in _plan(shapes, chosen.small):
            bench.shape(each, rounds)
    except KeyboardInterrupt:
        say("stopped")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found: Mapping[str, Any] = {
        "shapes": bench.figures.document(),
        "failed": bench.figures.failed,
        "missing": rivals.missing,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    print(line(NAME, machine, found, aims(bench.figures, clients)))
    return 0


def _plan(shapes: Sequence[Shape], small: bool) -> list[tuple[int, Shape]]:
    """The many first: their rounds are short."""
    return [(2 if small else 5 if each.name == MANY else 3, each) for each in reversed(shapes)]


if __name__ == "__main__":
    sys.exit(main())
