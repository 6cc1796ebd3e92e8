"""What an index needs in memory against what is free, said in one line before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mempo.errors import UserError

LOOKUP_BYTES = 40
"""Per document: its place in the text, its id, its url."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """`parts` are bytes by name; `free` is what this process may still take, None when the system does not say."""

    what: str
    parts: Mapping[str, int]
    free: int | None

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.free is None or self.total <= self.free

    def line(self) -> str:
        parts = ", ".join(f"{name} {size(part)}" for name, part in self.parts.items() if part)
        free = "free memory unknown" if self.free is None else f"{size(self.free)} free"
        return f"{self.what}: needs {size(self.total)} ({parts}), {free}"

    def refuse_unless_fits(self, remedy: str) -> None:
        """Raises UserError."""
        if not self.fits:
            raise UserError(f"{self.line()}; {remedy}")


def size(count: int) -> str:
    """Bytes as people read them: `1.5 GiB`, `320 MiB`."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}" if count < 100 * unit else f"{count / unit:.0f} {name}"
    return f"{count / 2**10:.0f} KiB"


def files_bytes(folder: Path) -> int:
    """All files under a folder, or one file."""
    if folder.is_file():
        return folder.stat().st_size
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def free_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that can be had without swapping, the limit of a container included; None when it is not known."""
    known = [free for free in (_available(proc), _cgroup_room(cgroup)) if free is not None]
    return min(known) if known else None


def _available(proc: Path) -> int | None:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _cgroup_room(cgroup: Path) -> int | None:
    """Version 2, then version 1: the limit less what is used, files in the page cache not counted as used."""
    files = [
        (cgroup / "memory.max", cgroup / "memory.current", cgroup / "memory.stat", "inactive_file"),
        (
            cgroup / "memory" / "memory.limit_in_bytes",
            cgroup / "memory" / "memory.usage_in_bytes",
            cgroup / "memory" / "memory.stat",
            "total_inactive_file",
        ),
    ]
    for limit, used, stat, reclaimable in files:
        try:
            room = int(limit.read_text()) - int(used.read_text())
        except (OSError, ValueError):  # no such file, or no limit: "max"
            continue
        try:
            entries = dict(line.split() for line in stat.read_text().splitlines())
            room += int(entries.get(reclaimable, 0))
        except (OSError, ValueError):
            pass
        return max(room, 0)
    return None
