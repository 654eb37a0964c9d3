"""Fetching published archives, each of which is then there whole and checked, or not there at all.

Bytes go to ``NAME.part``. A run that is killed leaves that, and the next one goes on from its end if
the server still holds the same content; ``NAME.part.json`` says what that was.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import string
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tqdm import tqdm

from fairseq_floater.data.wmt14.archive import (
    RECORDS,
    Archive,
    DownloadError,
    Place,
    locked,
    size_of,
)
from fairseq_floater.version import __version__

CHUNK = 1 << 20


class _BrokenError(Exception):
    """An attempt that failed where another may not; the message says how."""


def _say(message: str) -> None:
    print(message, file=sys.stderr)


def fetch(
    archive: Archive,
    folder: Path,
    *,
    mirror: str | None = None,
    attempts: int = 5,
    patience: float = 30.0,
    pause: float = 1.0,
    say: Callable[[str], object] = _say,
) -> Path:
    """Have ``archive`` in ``folder``, whole and checked; returns its path.

    A ``mirror`` (a folder, or the http, https or file URL of one) replaces the published URL. An
    attempt ends after ``patience`` seconds without a byte. The pause before the next is ``pause``
    seconds, doubled every time; ``attempts`` in a row that bring nothing new are the last.

    Raises:
        DownloadError: it cannot be had, or is not what is published or was recorded.
    """
    source = _source(archive, mirror)
    place = Place(archive, folder, mirror, say)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if place.unchanged():
            return place.path
        with locked(place.lock, place.wait):
            if place.path.exists():
                if not place.unchanged():
                    place.verify(place.path, place.path)
                return place.path
            if isinstance(source, Path):
                _copy(place, source)
            else:
                _download(place, source, attempts, patience, pause)
            with place.part.open("rb") as file:
                os.fsync(file.fileno())
            place.verify(place.part, source, set_aside=not isinstance(source, Path))
            place.part.replace(place.path)
            place.note.unlink(missing_ok=True)
    except OSError as error:
        at = error.filename2 or error.filename
        reason = f"{at}: {error.strerror}" if at else error.strerror or error
        raise DownloadError(
            f"{archive.name} could not be put into {folder} ({reason}); mend that and run again: "
            "what was fetched is kept."
        ) from None
    return place.path


def _source(archive: Archive, mirror: str | None) -> Path | str:
    """Where to get the archive: a file, or a URL of http or https."""
    name = archive.name
    if not name or "/" in name or name.startswith(".") or name == RECORDS:
        raise DownloadError(
            f"An archive's name must be a file name other than {RECORDS} that does not start "
            f"with `.`, but is {name!r}."
        )
    if mirror is not None and "://" not in mirror:
        return Path(mirror) / name
    url = archive.url if mirror is None else f"{mirror.rstrip('/')}/{quote(name)}"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # both are parsed, and may be refused, only now
    except ValueError as error:
        raise DownloadError(f"{url!r} is no URL: {error}.") from None
    if parts.scheme == "file" and host in (None, "localhost"):
        return Path(urllib.request.url2pathname(parts.path))
    if parts.scheme not in ("http", "https") or host is None:
        raise DownloadError(
            f"An archive comes by http://HOST/, https://HOST/ or file:///, but not from {url!r}."
        )
    return quote(url, safe=string.punctuation)


def _copy(place: Place, source: Path) -> None:
    """Make a file of a mirror the part: a hard link, or a copy where that cannot be."""
    if not source.is_file():
        raise DownloadError(
            f"{place.archive.name} could not be fetched: there is no file {source}; {place.hint}."
        )
    place.start_over()
    try:
        place.part.hardlink_to(source.resolve())
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, place.part)


def _download(place: Place, url: str, attempts: int, patience: float, pause: float) -> None:
    """Fetch ``url`` into the part, over as many breaks as it takes."""
    name, failures = place.archive.name, 0
    place.resume(url)
    best = size_of(place.part)
    place.say(f"{name}: fetching {url}" + (f" from byte {best:,} on." if best else "."))
    while True:
        try:
            return _attempt(place, url, patience)
        except _BrokenError as error:
            size = size_of(place.part)
            # Only what was never reached before counts: a server that starts over each time and
            # breaks off each time would be asked for ever.
            failures = 0 if size > best else failures + 1
            best = max(best, size)
            if failures >= attempts:
                raise DownloadError(
                    f"{name} could not be fetched from {url}: {error} ({attempts} attempts without "
                    f"progress, {size:,} bytes are kept); run again to go on; {place.hint}."
                ) from None
            wait = pause * 2 ** max(failures - 1, 0)
            place.say(f"{name}: {error}; {size:,} bytes are there, trying again in {wait:g} s.")
            time.sleep(wait)


def _attempt(place: Place, url: str, patience: float) -> None:
    """One request for what the part lacks; raises _BrokenError where that did not come."""
    note = place.resume(url)
    have, total = size_of(place.part), note.get("total") or place.archive.size
    if have and have == total:
        return
    headers = {"User-Agent": f"fairseq-floater/{__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if note["validator"]:
            headers["If-Range"] = note["validator"]
    with _open(place, url, headers, patience) as response:
        status, span = response.status, response.headers.get("Content-Range", "")
        validator = _validator(response.headers)
        if status == 416 and span == f"bytes */{have}":
            return
        if status == 200:
            if have:
                place.say(f"{place.archive.name}: the server does not go on, but starts over.")
            place.start_over()
            have, total = 0, response.length or place.archive.size
            note = {"url": url, "validator": validator, "total": total}
            place.note.write_text(json.dumps(note), encoding="utf-8")
        else:
            found = re.fullmatch(rf"bytes {have}-\d+/(\d+|\*)", span) if status == 206 else None
            same = validator in (None, note.get("validator"))
            if not found or not same or found[1] not in ("*", str(total or found[1])):
                place.start_over()
                raise _BrokenError(f"the server does not go on from byte {have:,} (HTTP {status})")
            total = total or (None if found[1] == "*" else int(found[1]))
        _receive(place, response, patience, have, total)


def _open(place: Place, url: str, headers: dict[str, str], patience: float) -> Any:
    """The server's answer, if it is one to read."""
    try:
        request = urllib.request.Request(url, headers=headers)
        return urllib.request.urlopen(request, timeout=patience)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error
        error.close()
        answer = f"HTTP {error.code} ({error.reason})"
        if error.code == 429 or error.code >= 500:
            raise _BrokenError(f"the server answered {answer}") from None
        raise DownloadError(
            f"{place.archive.name} could not be fetched: {url} answered {answer}; {place.hint}."
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(_reason(error, patience)) from None


def _receive(place: Place, response: Any, patience: float, have: int, total: int | None) -> None:
    """Append the body to the part, with a bar on stderr when that is a terminal."""
    name = place.archive.name
    bar = tqdm(
        desc=name, initial=have, total=total, unit="B", unit_scale=True, disable=None, delay=1
    )
    with place.part.open("ab") as file, bar:
        for chunk in _body(response, patience):
            file.write(chunk)
            bar.update(len(chunk))
    size = size_of(place.part)
    if total is not None and size < total:
        raise _BrokenError(f"the connection ended after {size:,} of {total:,} bytes")


def _body(response: Any, patience: float) -> Iterator[bytes]:
    """The body as it comes."""
    try:
        while chunk := response.read1(CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(_reason(error, patience)) from None


def _reason(error: Exception, patience: float) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"no byte came for {patience:g} s"
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def _validator(headers: Any) -> str | None:
    """What names this version of a file for `If-Range`, where a weak ETag is not allowed."""
    etag = headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
