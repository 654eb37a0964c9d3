"""An archive that is published, and its place in a folder: what it must be, and what is known of it.

``checksums.json`` holds the checksums of what was fetched, for archives of which none is published.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from fairseq_floater.errors import UserError
from fairseq_floater.files import file_hash, read_json, write_text

RECORDS = "checksums.json"


@dataclass(frozen=True)
class Archive:
    """A file as it is published; what is not published of it is None."""

    name: str  # its file name everywhere
    url: str
    size: int | None
    sha256: str | None
    md5: str | None = None


class DownloadError(UserError):
    """An archive that cannot be had; the message is one sentence for a person."""


class Place:
    """The files of one archive in a folder, and what is known of its content."""

    def __init__(
        self, archive: Archive, folder: Path, mirror: str | None, say: Callable[[str], object]
    ) -> None:
        self.archive, self.folder, self.say = archive, folder, say
        self.path = folder / archive.name
        self.part = folder / f"{archive.name}.part"
        self.note = folder / f"{archive.name}.part.json"
        self.wrong = folder / f"{archive.name}.wrong"
        self.lock = folder / f".{archive.name}.lock"
        self.hint = (
            "--mirror takes another place that holds it (a URL or a folder)"
            if mirror is None
            else "with --mirror the published URL is not tried"
        )
        known = {"sha256": archive.sha256, "md5": archive.md5, "size": archive.size}
        self.published = {key: value for key, value in known.items() if value is not None}
        self.has_checksum = not self.published.keys().isdisjoint({"sha256", "md5"})

    def wait(self) -> None:
        """Say why nothing happens."""
        name = self.archive.name
        self.say(f"{name}: another run is fetching it into {self.folder}; waiting for that.")

    def record(self) -> dict[str, Any]:
        """What was recorded of the archive, if anything."""
        return _read_records(self.folder / RECORDS).get(self.archive.name, {})

    def unchanged(self) -> bool:
        """Whether the archive is there as it was when it was last checked."""
        if not self.path.is_file():
            return False
        record, stat = self.record(), self.path.stat()
        found = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        known = (*found.items(), *self.published.items())
        return all(record.get(key) == value for key, value in known)

    def verify(self, file: Path, origin: Path | str, *, set_aside: bool = True) -> None:
        """Check all of ``file`` and record it; a wrong one is removed, or set aside."""
        stat, record = file.stat(), self.record()
        got = {"size": stat.st_size, "sha256": file_hash(file)}
        if "md5" in self.published:
            got["md5"] = file_hash(file, "md5")
        known = dict(self.published)
        if record and not self.has_checksum:
            known = {"sha256": record["sha256"], "size": record["size"], **known}
        if any(got[key] != value for key, value in known.items()):
            if set_aside:
                file.replace(self.wrong)
            self.start_over()
            raise DownloadError(self._mismatch(origin, got, known, set_aside))
        entry = {**got, "url": record.get("url", str(origin)), "published": self.has_checksum}
        entry["mtime_ns"] = stat.st_mtime_ns
        with locked(self.folder / f".{RECORDS}.lock"):
            records = {**_read_records(self.folder / RECORDS), self.archive.name: entry}
            write_text(self.folder / RECORDS, json.dumps(records, indent=2, sort_keys=True) + "\n")
        if not self.has_checksum and not record:
            self.say(
                f"{self.archive.name}: no checksum is published for it; recorded its SHA-256 "
                f"{got['sha256']}, checked from now on."
            )

    def _mismatch(
        self, origin: Path | str, got: dict[str, Any], known: dict[str, Any], set_aside: bool
    ) -> str:
        faults = [
            f"{key} {got[key]}, not the {'published' if key in self.published else 'recorded'} {value}"
            for key, value in known.items()
            if got[key] != value
        ]
        advice = (
            f"it was set aside as {self.wrong}: look at it, remove it and run again, or try "
            "another --mirror"
            if set_aside
            else "replace it there or try another --mirror"
        )
        if not self.has_checksum and "sha256" in known:
            advice += f" (or, if this is right, remove the entry from {self.folder / RECORDS})"
        return (
            f"{self.archive.name} from {origin} is wrong: it has {' and '.join(faults)} "
            f"({got['size']:,} bytes); {advice}."
        )

    def start_over(self) -> None:
        """Remove the part, which may be a hard link to a mirror's file: it must not be emptied."""
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def resume(self, url: str) -> dict[str, Any]:
        """What was noted of the part; without a part that began at ``url``, nothing is left."""
        try:
            note = read_json(self.note)
            known = isinstance(note["total"], (int, NoneType)) and _is_header(note["validator"])
            if note["url"] == url and known and size_of(self.part):
                return dict(note)
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            pass  # no note, or half a one
        self.start_over()
        return {}


def _is_header(value: Any) -> bool:
    """Whether a noted ETag or date, if there was one, can be sent back."""
    return value is None or (isinstance(value, str) and value.isascii() and value.isprintable())


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_records(path: Path) -> dict[str, dict[str, Any]]:
    try:
        records = read_json(path)
        if all({"sha256", "size"} <= entry.keys() for entry in records.values()):
            return dict(records)
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError):
        pass  # not JSON, or not what is written here
    raise DownloadError(f"{path} is damaged; remove it and run again: it is made anew.")


@contextmanager
def locked(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold a lock, of which the file stays; ``waiting`` is called if another holds it."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
