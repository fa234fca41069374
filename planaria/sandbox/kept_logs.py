"""A sandbox that fails is cleared away, but not what it had to say."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from planaria.core.errors import InvalidInput, PlanariaError
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.folder import check_free
from planaria.sandbox.interruption import uninterrupted
from planaria.sandbox.world import World

KEPT = ("*.log", "*.jsonl", "job.json", "rank-*.exit", "rank-*.ready", "nodes.json", "player.json")
MOST_BYTES = 50 * 2**20


class LoggedWorld(World):
    """A World whose logs are copied away when it goes down because something failed (not by Ctrl-C)."""

    kept: Path | None = None
    mine = False

    def up(self) -> Self:
        """Raises InvalidInput, and leaves the folder alone, when something is there already."""
        check_free(self.folder)
        self.mine = True
        return super().up()

    def down(self) -> None:
        if not self.mine:
            return
        with uninterrupted():
            if self.emulator is not None:
                self.progress("ending the sandbox")
            if self.kept is None and isinstance(sys.exception(), Exception) and self.folder.exists():
                self.kept = keep_logs(self.folder)
            super().down()

    @contextmanager
    def ended_by_failure(self) -> Iterator[None]:
        """What fails in the block ends the sandbox. Raises SandboxError that also says where the logs are."""
        try:
            yield
        except InvalidInput:
            self.down()
            raise
        except Exception as error:
            self.down()
            said = str(error) if isinstance(error, PlanariaError) else f"{type(error).__name__}: {error}"
            kept = f"\nThe logs are kept in {self.kept}." if self.kept is not None else ""
            raise SandboxError(f"{said}{kept}") from error
        except BaseException:
            self.down()
            raise


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
