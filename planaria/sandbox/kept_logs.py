"""A sandbox that fails is cleared away, but not what it had to say."""

import shutil
import sys
import tempfile
from pathlib import Path

from planaria.cli.signals import uninterrupted
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.world import World

KEPT = ("*.log", "*.jsonl", "job.json", "rank-*.exit", "rank-*.ready", "nodes.json", "player.json")
MOST_BYTES = 50 * 2**20


class LoggedWorld(World):
    """A World whose logs are copied away when it goes down because something failed (not by Ctrl-C)."""

    kept: Path | None = None

    def down(self) -> None:
        with uninterrupted():
            if self.kept is None and isinstance(sys.exception(), Exception) and self.folder.exists():
                self.kept = keep_logs(self.folder)
            super().down()


def keep_logs(folder: Path) -> Path:
    """Copy the logs of the sandbox in `folder` to a new folder for people to read. No secret is in them."""
    kept = Path(tempfile.mkdtemp(prefix="planaria-logs-"))
    for pattern in KEPT:
        for path in folder.rglob(pattern):
            if "tmp" in path.relative_to(folder).parts or not path.is_file():
                continue
            target = kept / path.relative_to(folder)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                if path.stat().st_size <= MOST_BYTES:
                    shutil.copyfile(path, target)
            except OSError:
                continue  # a full disk may be what failed
    return kept


def with_logs(error: SandboxError, kept: Path | None) -> SandboxError:
    """The same failure, that also says where the logs are."""
    return error if kept is None else SandboxError(f"{error}\nThe logs are kept in {kept}.")
