"""Downloads of prepare_wmt14.sh that break off, deliver wrong data or are killed: complete or refused."""

import hashlib
import os
import random
import re
import signal
import subprocess
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from fairseq_floater.cli import main

SCRIPT = Path(__file__).parents[2] / "scripts" / "prepare_wmt14.sh"
NAME = "text-v7.tgz"
CONTENT, OTHER = (random.Random(seed).randbytes(300_000) for seed in (7, 8))
# A fake Python for the script: it prints the list of archives and does nothing else.
PYTHON = '#!/bin/bash\nif [[ $4 == archives ]]; then cat "$0.archives"; fi\n'


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``content``; each of ``faults`` (a status, or a number of bytes) spoils one answer."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.faults, self.starts = CONTENT, [], []
        self.ranges, self.held, self.reached, self.go = True, None, Event(), Event()
        self.url = f"http://127.0.0.1:{self.server_port}/{NAME}"

    def handle_error(self, *_):
        pass  # curl was killed


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):  # noqa: N802
        server, content = self.server, self.server.content
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted and server.ranges else 0
        server.starts.append(start)
        fault = server.faults.pop(0) if server.faults else len(content)
        if 400 <= fault < 600:
            return self.send_error(fault)
        self.send_response(416 if start >= len(content) else 206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(max(0, len(content) - start)))
        self.end_headers()
        if server.held is not None:
            self.wfile.write(content[start : server.held])
            server.reached.set()
            server.go.wait(30)
            start = server.held
        return self.wfile.write(content[start : start + fault])


@pytest.fixture
def server():
    server = Server()
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.go.set()
    server.shutdown()
    server.server_close()


class Download:
    """The script and one archive of its list; ``known`` sets the archive's URL and checksums."""

    def __init__(self, folder, url):
        self.path = folder / "my data" / "archives" / NAME
        self.part, self.record, self.wrong = (
            self.path.with_name(NAME + end) for end in (".part", ".sha256", ".wrong")
        )
        self.python = folder / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)
        self.known(url)

    def known(self, url, sha256="-", md5="-"):
        listed = f"{url} {sha256} {md5} {self.path}\n"
        self.python.with_name("python.archives").write_text(listed)

    def start(self):
        environment = {**os.environ, "FLOATER_PYTHON": str(self.python), "no_proxy": "*"}
        environment["FLOATER_SET_UP"] = str(self.python)
        command = ["bash", str(SCRIPT), "en-de", "--out", "unused"]
        return subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, code=0, content=CONTENT):
        script = self.start()
        told = script.communicate(timeout=60)[1]
        assert script.returncode == code, told
        if code == 0:
            assert self.path.read_bytes() == content
            assert self.record.read_text() == f"{sha256(content)}  {NAME}\n"
            assert not self.part.exists()
        return told


@pytest.fixture
def download(tmp_path, server):
    return Download(tmp_path, server.url)


def test_an_archive_is_fetched_and_read_once(download, server):
    download.run()
    download.path.write_bytes(OTHER)
    assert download.start().wait(30) == 0  # it was checked before it got its name
    assert server.starts == [0]


@pytest.mark.parametrize(
    ("faults", "starts"),
    [([100_000, 100_000], [0, 100_000, 200_000]), ([503, 1_000], [0, 0, 1_000])],
    ids=["a link that breaks", "a server in trouble"],
)
def test_a_download_that_breaks_off_goes_on(download, server, faults, starts):
    server.faults = faults
    download.run()
    assert server.starts == starts


def test_a_server_without_ranges_starts_over(download, server):
    server.ranges, server.faults = False, [1_000]
    download.run()


def test_an_archive_that_is_not_there_is_not_asked_for_again(download, server):
    server.faults = [404] * 9
    told = download.run(code=1)
    assert f"{NAME} could not be fetched from {server.url} (0 bytes are kept); run " in told
    assert "--mirror" in told and "404" in told
    assert server.starts == [0]
    assert not download.path.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_stopped_run_is_resumed(download, server, how):
    server.held = 120_000
    script = download.start()
    assert server.reached.wait(30)
    deadline = time.monotonic() + 30
    while not (download.part.exists() and download.part.stat().st_size >= 100_000):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if how == signal.SIGKILL:
        os.killpg(script.pid, how)
    else:
        script.send_signal(how)
    script.communicate(timeout=30)
    assert script.returncode == (-how if how == signal.SIGKILL else 143)
    assert not download.path.exists()
    server.held = None
    download.run()
    assert server.starts[0] == 0
    assert server.starts[1] >= 100_000


def test_two_scripts_at_once_download_once(download, server):
    server.held = 1_000
    first = download.start()
    assert server.reached.wait(30)
    second = download.start()
    while "waiting for it" not in (line := second.stderr.readline()):
        assert line
    server.go.set()
    for script in (first, second):
        script.communicate(timeout=60)
        assert script.returncode == 0
    assert server.starts == [0]


@pytest.mark.parametrize("known", ["sha256", "md5"])
def test_other_content_than_the_published_is_refused(download, server, known):
    wanted = {known: hashlib.new(known, CONTENT).hexdigest()}
    download.known(server.url, **wanted)
    server.content = OTHER
    told = download.run(code=1)
    assert wanted[known] in told and f"set aside as {download.wrong}" in told
    assert download.wrong.read_bytes() == OTHER
    assert not download.path.exists()
    assert server.starts == [0, 0]  # it was asked for twice
    server.content = CONTENT
    download.run()


@pytest.mark.parametrize(("part", "starts"), [(CONTENT, [300_000]), (OTHER[:1_000], [1_000, 0])])
def test_a_part_is_kept_unless_it_is_of_other_content(download, server, part, starts):
    download.known(server.url, sha256=sha256(CONTENT))
    download.part.parent.mkdir(parents=True)
    download.part.write_bytes(part)
    download.run()
    assert server.starts == starts


def test_recorded_content_stays_the_same(download, server):
    download.run()
    download.path.unlink()
    server.content = OTHER
    told = download.run(code=1)
    assert f"must have the SHA-256 {sha256(CONTENT)} and the MD5 -" in told
    # A published checksum counts more than a recorded one.
    download.known(server.url, md5=hashlib.md5(OTHER).hexdigest())
    download.run(content=OTHER)


@pytest.mark.parametrize("known", [{}, {"sha256": sha256(CONTENT)}], ids=["new", "published"])
def test_an_archive_put_there_by_hand_is_checked_without_a_network(download, server, known):
    download.known(server.url, **known)
    download.path.parent.mkdir(parents=True)
    download.path.write_bytes(CONTENT)
    download.run()
    download.record.unlink()
    download.path.write_bytes(OTHER)
    told = download.run(code=0 if not known else 1, content=OTHER)
    assert (f"{download.path} must have" in told and "remove it" in told) == bool(known)
    assert download.path.read_bytes() == OTHER and server.starts == []


def listed(capsys, *words):
    assert main(["wmt14", "archives", "en-fr", "--out", "my data", *words]) == 0
    return [line.split(" ", 3) for line in capsys.readouterr().out.splitlines()]


def test_the_list_of_archives(capsys):
    lines = listed(capsys)
    assert len(lines) == 6
    url, sha, md, place = lines[0]
    assert url == "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz"
    assert (sha[:8], md) == ("0224c7c7", "-")
    assert place == "my data/archives/training-parallel-europarl-v7.tgz"
    assert [line[1:3] for line in lines if "-un." in line[0]] == [["-", "-"]]
    assert [line[2][:8] for line in lines if "test-full" in line[0]] == ["a8cd784e"]
    assert len(listed(capsys, "--valid", "newstest2013")) == 7
    assert all(line[1:3] == ["-", "-"] for line in listed(capsys, "--rehearsal"))


def test_a_mirror_replaces_the_published_url(capsys, tmp_path):
    for mirror, start in (
        ("http://host/pub/", "http://host/pub/training-"),
        ("file:///pub", "file:///pub/training-"),
        (str(tmp_path / "my 100%"), f"file://{tmp_path}/my%20100%25/training-"),
    ):
        assert listed(capsys, "--mirror", mirror)[0][0].startswith(start)
    with pytest.raises(SystemExit):
        listed(capsys, "--mirror", "ftp://host/pub")
    assert "a URL of http://, https:// or file:///, but is 'ftp:" in capsys.readouterr().err


def test_a_folder_is_a_mirror(download, tmp_path):
    mirror = tmp_path / "my 100% mirror"
    mirror.mkdir()
    (mirror / NAME).write_bytes(CONTENT)
    download.known((mirror / NAME).as_uri(), sha256=sha256(CONTENT))
    download.part.parent.mkdir(parents=True)
    download.part.write_bytes(CONTENT[:1_000])
    download.run()
    download.path.unlink()
    (mirror / NAME).unlink()
    told = download.run(code=1)
    assert f"{NAME} could not be fetched from {mirror.as_uri()}/{NAME}" in told
