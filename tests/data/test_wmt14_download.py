"""Downloads that break, stall, lie or are killed: the archive is whole in the end, or not there."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from fairseq_floater.data.wmt14 import archive as archive_module
from fairseq_floater.data.wmt14 import download
from fairseq_floater.data.wmt14.archive import Archive, DownloadError
from fairseq_floater.data.wmt14.download import fetch
from fairseq_floater.files import write_text

NAME = "text-v7.tgz"
CONTENT = random.Random(7).randbytes(300_000)
OTHER = random.Random(8).randbytes(300_000)
FORK = multiprocessing.get_context("fork")  # a fresh process would import fairseq for seconds
TAG, DATE = '"one"', "Sat, 01 Mar 2014 00:00:00 GMT"


def nothing(*_: object) -> None:
    pass


@dataclass
class Fault:
    """What goes wrong with one answer."""

    status: int = 0  # answered instead of the file
    raw: bytes = b""  # sent instead of any answer
    after: int = -1  # bytes of the body until `then`
    then: Callable[[], object] = nothing
    goes_on: bool = False  # else the connection ends there
    reset: bool = False  # it ends with a reset


class Server(ThreadingHTTPServer):
    """Serves ``content`` as NAME, with one of ``faults`` for each request while there are any."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.headers = {"ETag": TAG, "Last-Modified": DATE}
        self.ranges = self.if_range = self.length = True
        self.faults: list[Fault] = []
        self.seen: list[Any] = []
        self.errors: list[BaseException | None] = []
        self.over = threading.Event()
        self.piece, self.gap, self.watched = 1 << 16, 0.0, 0
        self.reached = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            self.errors.append(error)

    @property
    def starts(self) -> list[int]:
        """The byte at which each request began."""
        ranges = [headers.get("Range", "bytes=0-") for headers in self.seen]
        return [int(re.fullmatch(r"bytes=(\d+)-", text)[1]) for text in ranges]  # type: ignore[index]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:  # noqa: N802
        server = self.server
        server.seen.append(self.headers)
        fault = server.faults.pop(0) if server.faults else Fault()
        if fault.status == -1:
            server.over.wait(20)  # not even a status line
        elif fault.raw:
            self.wfile.write(fault.raw)
        elif self.path == f"/old/{NAME}":
            self.send_response(302)
            self.send_header("Location", f"/{NAME}")
            self.end_headers()
        elif self.path != f"/{NAME}" or fault.status:
            self.send_error(fault.status or 404)
        else:
            self.send_file(fault)

    def start(self) -> int:
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        known = (None, *self.server.headers.values())
        if not wanted or not self.server.ranges:
            return 0
        if self.server.if_range and self.headers.get("If-Range") not in known:
            return 0
        return int(wanted[1])

    def send_file(self, fault: Fault) -> None:
        server, content, start = self.server, self.server.content, self.start()
        size = len(content)
        self.send_response(416 if start >= size else 206 if start else 200)
        for name, value in server.headers.items():
            self.send_header(name, value)
        if start:
            span = f"*/{size}" if start >= size else f"{start}-{size - 1}/{size}"
            self.send_header("Content-Range", f"bytes {span}")
        if server.length:
            self.send_header("Content-Length", str(max(size - start, 0)))
        self.end_headers()
        body = memoryview(content)[start:]
        if fault.after >= 0:
            self.wfile.write(body[: fault.after])
            fault.then()
            if not fault.goes_on:
                if fault.reset:
                    linger = b"\1\0\0\0\0\0\0\0"
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.connection.close()
                return
            body = body[fault.after :]
        for k in range(0, len(body), server.piece):
            self.wfile.write(body[k : k + server.piece])
            if k + server.piece >= server.watched:
                server.reached.set()
            if server.gap:
                time.sleep(server.gap)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join()
    assert server.errors == []


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archives"


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def archive(server: Server, **known: Any) -> Archive:
    return Archive(
        NAME, f"{server.url}/{NAME}", known.pop("size", None), known.pop("sha256", None), **known
    )


def get(archive: Archive, folder: Path, **options: Any) -> list[str]:
    """Fetch it, see that it is whole and alone; returns what was said."""
    said: list[str] = []
    content = options.pop("content", CONTENT)
    path = fetch(archive, folder, **{"pause": 0, "say": said.append, **options})
    assert path == folder / archive.name
    assert path.read_bytes() == content
    visible = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
    assert visible - {f"{NAME}.wrong"} == {archive.name, "checksums.json"}
    return said


def refused(message: str, archive: Archive, folder: Path, **options: Any) -> None:
    with pytest.raises(DownloadError, match=f"^{message}$"):
        fetch(archive, folder, **{"pause": 0, "say": nothing, **options})
    assert not (folder / archive.name).exists()


def record(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "checksums.json").read_text())[NAME])


def half_done(server: Server, folder: Path, content: bytes, **note: Any) -> None:
    """What a killed run leaves."""
    folder.mkdir()
    (folder / f"{NAME}.part").write_bytes(content)
    note = {"url": f"{server.url}/{NAME}", "validator": TAG, "total": None, **note}
    (folder / f"{NAME}.part.json").write_text(json.dumps(note))


# Links that break


def test_an_archive_is_fetched_and_recorded_once(server: Server, folder: Path) -> None:
    said = get(archive(server), folder)
    assert said == [
        f"{NAME}: fetching {server.url}/{NAME}.",
        f"{NAME}: no checksum is published for it; recorded its SHA-256 {checksum(CONTENT)}, "
        "checked from now on.",
    ]
    wanted = {"sha256": checksum(CONTENT), "size": 300_000, "published": False}
    assert wanted.items() <= record(folder).items()
    assert record(folder)["url"] == f"{server.url}/{NAME}"
    lock = folder / f".{NAME}.lock"
    lock.unlink()
    assert get(archive(server), folder) == []
    assert not lock.exists()  # what is whole can be used from a folder that cannot be written
    assert server.starts == [0]


@pytest.mark.parametrize("reset", [False, True])
def test_a_link_that_breaks_often_gets_there(server: Server, folder: Path, reset: bool) -> None:
    server.faults = [Fault(after=20_000, reset=reset) for _ in range(9)]
    said = get(archive(server), folder, attempts=2)
    if reset:  # what was on its way may be lost
        assert len(server.starts) == 10 and server.starts == sorted(server.starts)
        assert server.starts[-1] > 20_000
    else:
        assert server.starts == list(range(0, 200_000, 20_000))
        assert said[1] == (
            f"{NAME}: the connection ended after 20,000 of 300,000 bytes; "
            "20,000 bytes are there, trying again in 0 s."
        )
    assert [headers["If-Range"] for headers in server.seen] == [None] + [TAG] * 9


def test_the_next_run_goes_on(server: Server, folder: Path) -> None:
    server.faults = [Fault(after=1_000), *(Fault(status=500) for _ in range(3))]
    message = (
        rf"{NAME} could not be fetched from {server.url}/{NAME}: the server answered HTTP 500 \(.+\) "
        r"\(3 attempts without progress, 1,000 bytes are kept\); run again to go on; --mirror .+\."
    )
    refused(message, archive(server), folder, attempts=3)
    assert get(archive(server), folder)[0].endswith(f"/{NAME} from byte 1,000 on.")
    assert server.starts == [0, 1_000, 1_000, 1_000, 1_000]


def test_pauses_grow(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    server.faults = [Fault(status=503), Fault(status=503), Fault(status=429), Fault(after=5)]
    server.faults += [Fault(status=503), Fault(status=503)]
    get(archive(server), folder, pause=0.5)
    assert pauses == [0.5, 1.0, 2.0, 0.5, 0.5, 1.0]


def test_nobody_there(folder: Path) -> None:
    with socket.socket() as bound:  # but not listening
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/{NAME}"
        message = (
            rf"{NAME} could not be fetched from {url}: Connection refused "
            r"\(2 attempts without progress, 0 bytes are kept\); run again to go on; --mirror .+\."
        )
        refused(message, Archive(NAME, url, None, None), folder, attempts=2)


def test_a_silent_server_is_asked_again(server: Server, folder: Path) -> None:
    server.faults = [Fault(status=-1), Fault(after=1_000, then=lambda: server.over.wait(20))]
    said = get(archive(server), folder, patience=0.5)
    assert [message for message in said if "no byte came for 0.5 s; 0 bytes" in message]
    assert [message for message in said if "no byte came for 0.5 s; 1,000 bytes" in message]
    assert server.starts[-1] == 1_000


def test_a_broken_answer_is_asked_for_again(server: Server, folder: Path) -> None:
    head = f"HTTP/1.1 200 OK\r\nETag: {TAG}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = b"A\r\n" + CONTENT[:10] + b"\r\nFF\r\n" + CONTENT[10:16]
    server.faults = [Fault(raw=b"What?\r\n\r\n"), Fault(raw=head + chunks)]
    assert "What?" in get(archive(server), folder)[1]
    assert server.starts == [0, 0, 16]


@pytest.mark.parametrize("span", ["", "Content-Range: bytes 0-299999/300000\r\n"])
def test_a_server_that_goes_on_elsewhere(server: Server, folder: Path, span: str) -> None:
    answer = f"HTTP/1.0 206 OK\r\nETag: {TAG}\r\n{span}\r\n".encode()
    server.faults = [Fault(after=1_000), Fault(raw=answer + OTHER)]
    said = get(archive(server), folder)
    assert "the server does not go on from byte 1,000 (HTTP 206); 0 bytes are there" in said[2]
    assert server.starts == [0, 1_000, 0]


def test_a_slow_server_is_waited_for(server: Server, folder: Path) -> None:
    # Slower as a whole than patience allows between two bytes.
    server.piece, server.gap = 15_000, 0.08
    get(archive(server), folder, patience=1.0)
    assert server.starts == [0]


def test_a_server_without_ranges(server: Server, folder: Path) -> None:
    server.ranges = False
    server.faults = [Fault(after=1_000)]
    said = get(archive(server), folder)
    assert f"{NAME}: the server does not go on, but starts over." in said
    assert server.starts == [0, 1_000]


def test_a_server_that_never_gets_further_is_given_up(server: Server, folder: Path) -> None:
    server.ranges = False
    server.faults = [Fault(after=1_000 - k % 2) for k in range(50)]
    refused(".+ attempts without progress, .+", archive(server), folder, attempts=3)
    assert len(server.seen) == 4


def test_ranges_outlive_a_redirection(server: Server, folder: Path) -> None:
    server.faults = [Fault(), Fault(after=1_000)]
    get(replace(archive(server), url=f"{server.url}/old/{NAME}"), folder)
    assert server.starts == [0, 0, 1_000, 1_000]


@pytest.mark.parametrize("status", [400, 403, 404, 410])
def test_what_is_not_there_is_not_asked_for_again(
    server: Server, folder: Path, status: int
) -> None:
    server.faults = [Fault(status=status), Fault(status=status)]
    message = rf"{NAME} could not be fetched: {server.url}/{NAME} answered HTTP {status} \(.+\); "
    refused(message + "--mirror takes another place .+", archive(server), folder)
    message += "with --mirror the published URL is not tried\\."
    refused(message, archive(server), folder, mirror=f"{server.url}/")
    assert len(server.seen) == 2


# What the part and the server know of each other


@pytest.mark.parametrize(("extra", "starts"), [(b"", [300_000]), (b"xyz", [300_003, 0])])
def test_a_part_that_is_whole_or_too_long(
    server: Server, folder: Path, extra: bytes, starts: list[int]
) -> None:
    half_done(server, folder, CONTENT + extra)
    get(archive(server, sha256=checksum(CONTENT)), folder)
    assert server.starts == starts


def test_a_part_known_to_be_whole_needs_no_server(server: Server, folder: Path) -> None:
    half_done(server, folder, CONTENT, total=300_000)
    get(archive(server), folder)
    assert server.seen == []


@pytest.mark.parametrize("guard", ["If-Range", "date", "tag", "size"])
def test_content_that_changes_meanwhile(server: Server, folder: Path, guard: str) -> None:
    """The old beginning is never put before the new end, whatever the server tells of a change."""
    new, date = OTHER[:250_000], "Sun, 02 Mar 2014 00:00:00 GMT"
    before, after = {"ETag": TAG}, {"ETag": '"two"'}
    if guard == "date":  # a weak ETag must not be sent with If-Range
        before, after = ({"ETag": "W/1", "Last-Modified": day} for day in (DATE, date))
    if guard == "size":
        before = after = {}
    if guard == "tag":  # the answer has it, but the question did not count
        new = OTHER
    server.headers, server.if_range = before, guard in ("If-Range", "date")

    def change() -> None:
        server.headers, server.content = after, new

    server.faults = [Fault(after=1_000, then=change)]
    get(archive(server), folder, content=new)
    assert server.starts == ([0, 1_000] if server.if_range else [0, 1_000, 0])
    assert server.seen[1]["If-Range"] == {"size": None, "date": DATE}.get(guard, TAG)


@pytest.mark.parametrize("note", ['{"url": ', "[]", "{}", None])
def test_a_part_of_unknown_origin_is_dropped(
    server: Server, folder: Path, note: str | None
) -> None:
    half_done(server, folder, OTHER[:1_000])
    if note is None:
        (folder / f"{NAME}.part.json").unlink()
    else:
        (folder / f"{NAME}.part.json").write_text(note)
    get(archive(server), folder)
    assert server.starts == [0]


def test_a_part_from_elsewhere_is_dropped(server: Server, folder: Path) -> None:
    half_done(server, folder, OTHER[:1_000], url=f"http://elsewhere/{NAME}")
    get(archive(server), folder)
    assert server.starts == [0]


def test_a_server_that_tells_no_length(server: Server, folder: Path) -> None:
    server.length = False
    server.faults = [Fault(after=1_000)]
    get(archive(server, size=300_000), folder)
    assert server.starts == [0, 1_000]


# Checksums

MD5, OTHER_MD5 = (hashlib.md5(content).hexdigest() for content in (CONTENT, OTHER))


@pytest.mark.parametrize(
    ("known", "fault"),
    [
        ({"sha256": checksum(CONTENT)}, f"sha256 {checksum(OTHER)}, not the published "),
        ({"md5": MD5}, f"md5 {OTHER_MD5}, not the published {MD5} "),
        ({"size": 299_999}, "size 300000, not the published 299999 "),
    ],
)
def test_wrong_content_is_set_aside(
    server: Server, folder: Path, known: dict[str, Any], fault: str
) -> None:
    server.content = OTHER
    wanted = archive(server, **known)
    message = rf"{NAME} from {server.url}/{NAME} is wrong: it has {fault}.*\(300,000 bytes\); "
    wrong = folder / f"{NAME}.wrong"
    message += f"it was set aside as {wrong}: look at it, remove it and run again, or try .+"
    refused(message, wanted, folder)
    assert wrong.read_bytes() == OTHER
    assert {path.name for path in folder.iterdir()} == {wrong.name, f".{NAME}.lock"}
    server.content = CONTENT[: known.get("size")]
    get(wanted, folder, content=server.content)
    assert record(folder)["published"] is ("size" not in known)


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_recorded_content_stays_the_same(server: Server, folder: Path, kind: str) -> None:
    get(archive(server), folder)
    (folder / NAME).unlink()
    server.content = OTHER
    checksums = folder / "checksums.json"
    message = (
        rf"{NAME} from \S+ is wrong: it has sha256 {checksum(OTHER)}, not the recorded "
        rf"{checksum(CONTENT)} \(300,000 bytes\); it was set aside .+ "
        rf"\(or, if this is right, remove the entry from {checksums}\)\."
    )
    refused(message, archive(server), folder)
    assert record(folder)["sha256"] == checksum(CONTENT)
    # What is published counts more than what was recorded.
    published = {"sha256": checksum(OTHER)} if kind == "sha256" else {"md5": OTHER_MD5}
    get(archive(server, **published), folder, content=OTHER)
    assert record(folder)["sha256"] == checksum(OTHER)


def test_a_file_is_hashed_again_only_when_touched(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(archive(server), folder)
    hashed: list[Path] = []
    digest = archive_module.file_hash

    def noted(path: Path, kind: str = "sha256") -> str:
        hashed.append(path)
        return digest(path, kind)

    monkeypatch.setattr(archive_module, "file_hash", noted)
    get(archive(server), folder)
    assert hashed == []
    os.utime(folder / NAME, (1, 1))
    for _ in range(2):
        assert get(archive(server), folder) == []
        assert hashed == [folder / NAME]
    assert record(folder)["url"] == f"{server.url}/{NAME}"
    (folder / NAME).write_bytes(OTHER)
    refused(rf"{NAME} from {folder / NAME} is wrong: .+ set aside .+", archive(server), folder)
    assert (folder / f"{NAME}.wrong").read_bytes() == OTHER
    assert len(server.seen) == 1


@pytest.mark.parametrize("known", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"size": 5}])
def test_a_file_is_checked_against_what_is_published_since(
    server: Server, folder: Path, known: dict[str, Any]
) -> None:
    get(archive(server), folder)
    refused(f"{NAME} from .+ is wrong: .+", archive(server, **known), folder)


def test_a_file_put_there_by_hand(server: Server, folder: Path) -> None:
    folder.mkdir()
    (folder / NAME).write_bytes(CONTENT)
    assert "no checksum is published" in get(archive(server), folder)[0]
    assert server.seen == []


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": {"size": 1}}'])
def test_damaged_records(server: Server, folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "checksums.json").write_text(text)
    refused(r"\S+/checksums\.json is damaged; remove it and run again: .+", archive(server), folder)
    (folder / "checksums.json").unlink()
    get(archive(server), folder)
    assert len(server.seen) == 1


def test_records_written_at_once_are_all_kept(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = write_text

    def slowly(path: Path, text: str) -> None:
        time.sleep(0.02)
        write(path, text)

    monkeypatch.setattr(archive_module, "write_text", slowly)
    mirror = folder.parent / "mirror"
    mirror.mkdir()
    archives = [replace(archive(server), name=f"{k}.tgz") for k in range(6)]
    for each in archives:
        (mirror / each.name).write_bytes(CONTENT)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda each: fetch(each, folder, mirror=str(mirror), say=nothing), archives))
    records = json.loads((folder / "checksums.json").read_text())
    assert records.keys() == {each.name for each in archives}


# Mirrors


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "my 100% mirror"
    folder.mkdir()
    (folder / NAME).write_bytes(CONTENT)
    return folder


@pytest.mark.parametrize("kind", ["folder", "file URL", "published file URL"])
def test_a_folder_is_linked_to(server: Server, folder: Path, mirror: Path, kind: str) -> None:
    half_done(server, folder, OTHER[:1_000])
    wanted = archive(server)
    if kind == "published file URL":
        get(replace(wanted, url=(mirror / NAME).as_uri()), folder)
    else:
        get(wanted, folder, mirror=str(mirror) if kind == "folder" else f"{mirror.as_uri()}/")
    assert (folder / NAME).samefile(mirror / NAME)
    assert server.seen == []


def no_link(*_: Any) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


def test_where_no_link_can_be_the_file_is_copied(
    server: Server, folder: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "hardlink_to", no_link)
    get(archive(server, sha256=checksum(CONTENT)), folder, mirror=str(mirror))
    assert not (folder / NAME).samefile(mirror / NAME)


def test_a_link_in_the_mirror_is_followed(server: Server, folder: Path, mirror: Path) -> None:
    (mirror / NAME).rename(mirror / "store")
    (mirror / NAME).symlink_to("store")
    get(archive(server), folder, mirror=str(mirror))
    assert not (folder / NAME).is_symlink()


def test_wrong_content_of_a_mirror_stays_there(server: Server, folder: Path, mirror: Path) -> None:
    (mirror / NAME).write_bytes(OTHER)
    message = (
        rf"{NAME} from {mirror / NAME} is wrong: .+; replace it there or try another --mirror\."
    )
    refused(message, archive(server, sha256=checksum(CONTENT)), folder, mirror=str(mirror))
    assert (mirror / NAME).read_bytes() == OTHER
    assert [path.name for path in folder.iterdir()] == [f".{NAME}.lock"]


def test_a_linked_part_is_never_written_into(server: Server, folder: Path, mirror: Path) -> None:
    folder.mkdir()
    (mirror / NAME).write_bytes(OTHER)
    (folder / f"{NAME}.part").hardlink_to(mirror / NAME)  # killed there
    get(archive(server), folder)
    assert (mirror / NAME).read_bytes() == OTHER


def test_what_a_mirror_lacks_is_not_fetched_elsewhere(
    server: Server, folder: Path, mirror: Path
) -> None:
    (mirror / NAME).unlink()
    message = (
        f"{NAME} could not be fetched: there is no file {mirror / NAME}; "
        r"with --mirror the published URL is not tried\."
    )
    for place in (str(mirror), mirror.as_uri()):
        refused(message, archive(server), folder, mirror=place)
    assert server.seen == []


def test_a_mirror_on_the_web(server: Server, folder: Path) -> None:
    wanted = Archive(NAME, "http://published.invalid/other-name.tgz", 300_000, None)
    get(wanted, folder, mirror=server.url)
    assert server.starts == [0]


def test_a_mirrors_url_is_quoted_where_need_be(server: Server, folder: Path) -> None:
    message = rf".+: {server.url}/m%C3%BCll%20%20/a%20b%25\.gz answered HTTP 404 .+"
    wanted = replace(archive(server), name="a b%.gz")
    refused(message, wanted, folder, mirror=f"{server.url}/müll%20 ")


@pytest.mark.parametrize(
    ("mirror", "message"),
    [
        (
            "ftp://host/pub",
            r"An archive comes by http://HOST/, .+ but not from 'ftp://host/pub/.+'\.",
        ),
        ("s3://bucket", ".+, but not from 's3://bucket/.+"),
        ("file://host/pub", ".+, but not from 'file://host/pub/.+"),
        ("http:///pub", ".+, but not from 'http:///pub/.+"),
        ("http://host:8o/", r"'http://host:8o/.+' is no URL: .+\."),
        ("http://[::1/", r"'http://\[::1/.+' is no URL: .+\."),
    ],
)
def test_other_mirrors_are_refused(server: Server, folder: Path, mirror: str, message: str) -> None:
    refused(message, archive(server), folder, mirror=mirror)
    if not mirror.startswith("http"):
        refused(message, Archive(NAME, f"{mirror}/{NAME}", None, None), folder)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "checksums.json"])
def test_other_names_are_refused(server: Server, folder: Path, name: str) -> None:
    message = rf"An archive's name must be a file name .+, but is '{re.escape(name)}'\."
    with pytest.raises(DownloadError, match=f"^{message}$"):
        fetch(replace(archive(server), name=name), folder)
    assert not folder.exists()


# Processes


def started(target: Callable[[], object]) -> Any:
    child = FORK.Process(target=target, daemon=True)
    child.start()
    return child


def test_two_runs_at_once_download_once(server: Server, folder: Path) -> None:
    go, waits = threading.Event(), FORK.Event()

    def hold() -> None:
        server.reached.set()
        go.wait(20)

    def note(message: str) -> None:
        if message == f"{NAME}: another run is fetching it into {folder}; waiting for that.":
            waits.set()

    def late() -> None:
        vars(archive_module)["file_hash"] = None  # what the first run has checked is not read again
        get(archive(server), folder, say=note)

    server.faults = [Fault(after=1_000, then=hold, goes_on=True)]
    first = started(lambda: fetch(archive(server), folder, say=nothing))
    assert server.reached.wait(20)
    second = started(late)
    assert waits.wait(20)
    go.set()
    for child in (first, second):
        child.join(20)
        assert child.exitcode == 0
    assert server.starts == [0]


def test_killed_again_and_again(server: Server, folder: Path) -> None:
    """Each run goes on at the byte where the one before was killed."""
    chance = random.Random(3)
    server.piece, server.gap = 2_000, 0.0005
    server.content = content = CONTENT * 9
    part, starts = folder / f"{NAME}.part", []
    for _ in range(10):
        starts.append(part.stat().st_size if part.exists() else 0)
        server.watched = chance.randrange(25_000)
        server.reached.clear()
        child = started(lambda: fetch(archive(server), folder, say=nothing))
        assert server.reached.wait(20)
        time.sleep(chance.uniform(0, 0.002))
        child.kill()
        child.join(20)
        assert child.exitcode == -signal.SIGKILL
        assert not (folder / NAME).exists()
        assert not part.exists() or content.startswith(part.read_bytes())
    starts.append(part.stat().st_size)
    server.gap = 0
    get(archive(server), folder, content=content)
    assert server.starts == starts
    assert len(set(starts)) > 3


@pytest.mark.parametrize("moment", ["synced", "checked", "recorded", "there"])
def test_killed_in_the_last_steps(server: Server, folder: Path, moment: str) -> None:
    part = folder / f"{NAME}.part"

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def doomed() -> None:  # patched in the child alone
        rename, remove = Path.replace, Path.unlink
        if moment == "synced":
            os.fsync = lambda to: die() if os.path.samestat(os.fstat(to), part.stat()) else None  # type: ignore
        if moment == "checked":
            vars(archive_module)["write_text"] = die
        if moment == "recorded":
            Path.replace = lambda self, to: (die if to.name == NAME else rename)(self, to)  # type: ignore
        if moment == "there":
            Path.unlink = lambda self, **k: (die if (folder / NAME).exists() else remove)(self, **k)  # type: ignore
        fetch(archive(server), folder, say=nothing)

    child = started(doomed)
    child.join(20)
    assert child.exitcode == -signal.SIGKILL
    assert (folder / NAME).exists() is (moment == "there")
    fetch(archive(server), folder, say=nothing)
    assert (folder / NAME).read_bytes() == CONTENT
    assert not part.exists()
    assert record(folder)["sha256"] == checksum(CONTENT)
    assert server.starts == [0]


# The disk, the memory and the screen


def test_a_full_disk(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        message = (
            rf"{NAME} could not be put into {folder} \(No space\); mend that and run again: .+"
        )
        refused(message, archive(server), folder)
    assert (folder / f"{NAME}.part").stat().st_size == 300_000
    get(archive(server), folder)
    assert server.starts == [0]


@pytest.fixture
def small_files() -> Iterator[Callable[[], None]]:
    """No file may grow beyond 100,000 bytes, until what this gives is called."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_takes_no_more(
    server: Server, folder: Path, small_files: Callable[[], None]
) -> None:
    refused(rf"{NAME} could not be put .+ \(File too large\); mend .+", archive(server), folder)
    small_files()
    get(archive(server), folder)
    assert server.starts == [0, 100_000]


def test_a_copy_that_takes_too_much(
    server: Server,
    folder: Path,
    mirror: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_files: Callable[[], None],
) -> None:
    monkeypatch.setattr(Path, "hardlink_to", no_link)
    message = rf"{NAME} could not be put into .+ \({folder}/{NAME}\.part: File too large\); mend .+"
    refused(message, archive(server), folder, mirror=str(mirror))
    small_files()
    get(archive(server), folder, mirror=str(mirror))


def test_a_folder_that_cannot_be(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "archives"
    message = rf"{NAME} could not be put into {folder} \({folder}: Not a directory\); mend .+"
    refused(message, archive(server), folder)
    (tmp_path / "other" / f".{NAME}.lock").mkdir(parents=True)
    message = rf"{NAME} could not be put into \S+/other \(\S+\.lock: Is a directory\); mend .+"
    refused(message, archive(server), tmp_path / "other")


def test_memory_does_not_grow_with_the_file(server: Server, folder: Path) -> None:
    server.content = bytes(40 << 20)
    tracemalloc.start()
    try:
        fetch(archive(server), folder, say=nothing)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    shutil.rmtree(folder)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_on_a_terminal_alone(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(download, "tqdm", lambda **k: tqdm(**{**k, "delay": 0}))
    half_done(server, folder, CONTENT[:150_000])
    fetch(archive(server), folder)
    bars = re.findall(rf"{NAME}: +(\d+)%[^\r]+300k", screen.getvalue())
    assert bars[:1] + bars[-1:] == (["50", "100"] if terminal else [])
    assert f"{NAME}: fetching {server.url}/{NAME} from byte 150,000 on.\n" in screen.getvalue()
