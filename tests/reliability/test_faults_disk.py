"""A disk that fills up, a folder that becomes read-only, a lost mount: reported, and nothing is lost."""

import contextlib
import functools
import mmap
import random
import re
import shutil
import time

import pytest
import tally
from fault_disks import immutable, losable, mount, remount, small_disk, unmount
from fault_tools import TOOLS, make_inputs
from faults import (
    check_nothing_half,
    check_the_same,
    contents,
    ended,
    finish,
    fresh,
    start,
    undisturbed,
)

TOOLS_ON_A_DISK = ["average", "warm-start", "s2l split", "score", "prepare_text.sh"]
LOSSES = 4  # moments at which a mount is lost, for each tool
FULL = "No space left on device"
READ_ONLY = "Read-only file system"
# Rows of the table of docs/reliability.md: the fault, and what these tests require.
FILLS_UP = (
    f'disk fills up while writing | one sentence with the file and "{FULL}", exit code 1; the old '
    "result unchanged; once there is room, the undisturbed result"
)
LOCKED = f'folder becomes read-only | the same, with "{READ_ONLY}"'
LOST = (
    "mount is lost at a random moment | a sentence, or a complete result; after mounting it again, the "
    "undisturbed result"
)
IN_TRAINING = (
    "training ends with the reason, earlier checkpoints intact; restarted, the same parameters "
    "and scores"
)


def on_a_disk(quick):
    """Parametrise over every tool; all but ``quick`` are slow, which keeps the default run short."""
    marked = [n if n == quick else pytest.param(n, marks=pytest.mark.slow) for n in TOOLS_ON_A_DISK]
    return pytest.mark.parametrize("name", marked)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def refused(tool, folder, reason):
    """Run a command that cannot write: one sentence with the reason and the place, no traceback."""
    (folder / "messages").unlink(missing_ok=True)
    code = ended(start(tool, folder))
    said = (folder / "messages").read_text(errors="replace")
    assert code not in (0, 2), f"exit code {code}: {said}"
    assert "Traceback" not in said, said
    named = [line for line in said.splitlines() if "out" in line and re.search(reason, line)]
    assert named, said


@on_a_disk(quick="score")
def test_a_full_disk(inputs, tmp_path, name):
    tool = TOOLS[name]
    whole = undisturbed(tool, tmp_path / "whole", inputs)
    folder = fresh(tmp_path / "full", inputs)
    with small_disk(folder / "out", "64m"):
        if tool.older:
            finish(tool, folder, tool.older)
        older = contents(folder, tool)
        tried = set()
        for share in (0, 0.3, 0.6, 0.9):  # of what the result still needs
            fill = folder / "out" / ".fill"
            there = 0 if tool.older else _size(folder / "out")
            spare = int(share * (_size(tmp_path / "whole" / "out") - there))
            state = there, spare // mmap.PAGESIZE  # a small disk gives whole pages
            if state in tried:
                continue
            tried.add(state)
            _fill(fill, spare)
            refused(tool, folder, FULL)
            check_nothing_half(tool, folder, whole)
            if tool.older:
                assert contents(folder, tool) == older
            tally.count("disks", FILLS_UP, tool.title)
            fill.unlink()
        finish(tool, folder)
        check_the_same(tool, folder, whole)


def _size(folder):
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def _fill(path, spare):
    """Fill the disk up to ``spare`` bytes."""
    free = shutil.disk_usage(path.parent).free - spare
    with path.open("wb") as file:
        file.write(bytes(max(free, 0)))


@on_a_disk(quick="s2l split")
def test_a_folder_that_becomes_read_only(inputs, tmp_path, name):
    tool = TOOLS[name]
    whole = undisturbed(tool, tmp_path / "whole", inputs)
    folder = fresh(tmp_path / "locked", inputs)
    with small_disk(folder / "out", "64m"):
        if tool.older:
            finish(tool, folder, tool.older)
        older = contents(folder, tool)
        remount(folder / "out", "ro")
        refused(tool, folder, READ_ONLY)
        assert contents(folder, tool) == older
        tally.count("disks", LOCKED, tool.title)
        remount(folder / "out", "rw")
        finish(tool, folder)
        check_the_same(tool, folder, whole)


@on_a_disk(quick="s2l split")
def test_a_mount_that_is_lost(inputs, tmp_path, name):
    """The mount of the output is lost at a random moment; the input stays."""
    tool = TOOLS[name]
    whole = undisturbed(tool, tmp_path / "whole", inputs)
    moments = random.Random(1)
    noticed = 0
    for number in range(LOSSES):
        folder = fresh(tmp_path / "lost", inputs)
        disk = tmp_path / "disk"
        shutil.rmtree(disk, ignore_errors=True)
        with losable(folder / "out", disk):
            process = start(tool, folder)
            time.sleep((number + moments.random()) / LOSSES * whole.seconds)
            unmount(folder / "out")
            code = ended(process)
            said = (folder / "messages").read_text(errors="replace")
            # The destructor of fairseq's data readers fails if their file was not there.
            own = re.sub(
                r"Exception ignored in: <function MMapIndexedDataset.*?\nAttributeError.*?\n",
                "",
                said,
                flags=re.S,
            )
            assert "Traceback" not in own, said
            assert code == 0 or said.strip(), f"exit code {code} and not a word"
            noticed += code != 0
            mount("--bind", disk, folder / "out")
            check_nothing_half(tool, folder, whole)
            finish(tool, folder)
            check_the_same(tool, folder, whole)
            tally.count("disks", LOST, tool.title)
    assert noticed  # otherwise no mount was lost in time


# Training.


@contextlib.contextmanager
def full_in_training(folder, checkpoints):
    """Fill the disk, except for room for ``checkpoints`` more checkpoints."""
    with small_disk(folder / "out", "64m"):
        fill = folder / "out" / ".fill"

        def break_it(checkpoint):
            _fill(fill, spare=int(checkpoints * checkpoint.stat().st_size))

        yield break_it, fill.unlink


@contextlib.contextmanager
def locked_in_training(folder):
    """The folder of the checkpoints takes no new file."""
    with contextlib.ExitStack() as stack:
        yield lambda last: stack.enter_context(immutable(last.parent)), stack.close


@contextlib.contextmanager
def lost_in_training(folder):
    """The disk under the whole run is gone; the folder where it was mounted is read-only."""
    disk = folder.parent / "the disk"
    with losable(folder / "out", disk):
        yield lambda last: unmount(folder / "out"), lambda: mount("--bind", disk, folder / "out")


@pytest.fixture(scope="module")
def whole_protocol(inputs, tmp_path_factory):
    return undisturbed(TOOLS["protocol.sh"], tmp_path_factory.mktemp("protocol") / "whole", inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (functools.partial(full_in_training, checkpoints=0.5), FULL),
        (functools.partial(full_in_training, checkpoints=1.5), "Failed to copy|" + FULL),
        (locked_in_training, "Operation not permitted"),
        (lost_in_training, READ_ONLY + "|No such file"),
    ],
    ids=[
        "disk is full while a checkpoint is written",
        "disk is full while a checkpoint is copied",
        "folder of checkpoints accepts no file",
        "mount is lost, read-only below",
    ],
)
def test_a_disk_that_fails_in_training(request, inputs, whole_protocol, tmp_path, fault, reason):
    """After the donor's first checkpoint: an error, whole checkpoints, and the same results afterwards."""
    tool = TOOLS["protocol.sh"]
    folder = fresh(tmp_path / "run", inputs)
    with fault(folder) as (break_it, mend_it):
        process = start(tool, folder)
        checkpoints = folder / "out" / "work" / "plain" / "checkpoints"
        log = folder / "out" / "work" / "plain" / "train.log"
        while not (log.exists() and "end of epoch 1 " in log.read_text()):
            assert process.poll() is None, (folder / "messages").read_text()
            time.sleep(0.002)
        break_it(checkpoints / "checkpoint1.pt")
        assert ended(process) not in (0, 2)
        said = (folder / "messages").read_text(errors="replace")
        assert re.search(reason, said), said[-3000:]
        mend_it()
        assert (checkpoints / "checkpoint1.pt").is_file()
        check_nothing_half(tool, folder, whole_protocol)
        finish(tool, folder)
        check_the_same(tool, folder, whole_protocol)
    tally.count("disks", f"{request.node.callspec.id} | {IN_TRAINING}", tool.title)
