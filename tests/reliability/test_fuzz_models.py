"""Spoilt checkpoints and archives: nothing in them runs, and each is taken or refused in a sentence."""

import collections
import io
import os
import pickle
import tarfile
import warnings
from argparse import Namespace

import pytest
import torch
from fuzzing import EDITS, accepted, inputs, spoilt, unrefused
from helpers import TINY
from hypothesis import strategies as st

from fairseq_floater.checkpoints.reading import RefusedError, load_checkpoint
from fairseq_floater.checkpoints.resume import repair_last
from fairseq_floater.data.wmt14.corpora import member_lines
from fairseq_floater.results import position_figure


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the small checkpoints `small.pt` and `old.pt`."""
    folder = tmp_path_factory.mktemp("models")
    small = {"model": {"a.weight": torch.ones(4, 2), "b": torch.ones(3, dtype=torch.half)}}
    small |= {
        "cfg": {"model": Namespace(arch="x"), "checkpoint": {}},
        "extra_state": {"val_loss": 2.0},
    }
    small["cfg"]["checkpoint"]["maximize_best_checkpoint_metric"] = False
    small |= {"optimizer_history": [{"num_updates": 3}], "args": None}
    torch.save(small, folder / "small.pt")
    torch.save(small, folder / "old.pt", _use_new_zipfile_serialization=False)
    return folder


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr(position_figure, "draw", lambda tables, output, **words: None)
    warnings.simplefilter("ignore")


class Runs:
    """Its pickle runs ``call`` when it is loaded without restrictions."""

    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


def foreign(path):
    """Pickles that would run something: {name: bytes}."""
    calls = {
        "system": (os.system, f"touch {path}"),
        "eval": (eval, f"open({str(path)!r}, 'w')"),
        "open": (open, str(path), "w"),
        "mkdir": (os.mkdir, str(path)),
        "counter": (collections.Counter, "abc"),
    }
    found = {}
    for name, words in calls.items():
        for form in (True, False):
            buffer = io.BytesIO()
            state = {"model": {"a": Runs(*words)}}
            torch.save(state, buffer, _use_new_zipfile_serialization=form)
            found[f"{name}, {'zip' if form else 'old'}"] = buffer.getvalue()
        found[f"{name}, pickle"] = pickle.dumps({"model": Runs(*words)})
    return found


@pytest.mark.parametrize("kind", foreign("x"))
def test_nothing_in_a_checkpoint_runs(tmp_path, kind):
    touched, path = tmp_path / "touched", tmp_path / "evil.pt"
    path.write_bytes(foreign(touched)[kind])
    # Loaded without restrictions it runs, so the test would notice.
    if "old" not in kind and "counter" not in kind:
        with warnings.catch_warnings():
            loaded = (
                pickle.loads
                if "pickle" in kind
                else lambda d: torch.load(io.BytesIO(d), weights_only=False)
            )
            loaded(path.read_bytes())
        assert touched.exists()
        touched.rmdir() if touched.is_dir() else touched.unlink()
    for words in (
        ("average", "--inputs", path, "--output", tmp_path / "out.pt"),
        ("warm-start", path, tmp_path / "out.pt", "--arch", TINY),
        ("plot", "positions", path, tmp_path / "out.png"),
    ):
        assert not accepted(*words, names=[path])
    assert not touched.exists()
    assert not (tmp_path / "out.pt").exists()


@inputs("checkpoints, bytes", 60, name=st.sampled_from(("small.pt", "old.pt")), edits=EDITS)
def test_checkpoints_with_spoilt_bytes(place, name, edits):
    folder = place / "spoilt"
    folder.mkdir(exist_ok=True)
    path = folder / "checkpoint_last.pt"
    path.write_bytes(spoilt((place / name).read_bytes(), edits))
    taken = unrefused(load_checkpoint, path, names=[path])
    try:
        assert ("resuming" in repair_last(folder)) == taken
    except RefusedError:
        assert not taken and path.exists()
    return taken


@inputs(
    "checkpoints, anything",
    15,
    data=st.binary(max_size=80),
    start=st.sampled_from((b"", b"\x80\x02", b"PK\3\4")),
)
def test_files_that_are_no_checkpoint(place, data, start):
    path = place / "none.pt"
    path.write_bytes(start + data)
    return unrefused(load_checkpoint, path, names=[path])


# Archives.


def archive(kind):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{kind}") as tar:
        for name in ("training/a.en", "training/b.en"):
            entry = tarfile.TarInfo(name)
            entry.size = len(name) * 3
            tar.addfile(entry, io.BytesIO(name.encode() * 3))
    return buffer.getvalue()


ARCHIVES = {kind: archive(kind) for kind in ("", "gz", "bz2", "xz")}


@inputs("archives", 40, kind=st.sampled_from(tuple(ARCHIVES)), edits=EDITS, inside=st.booleans())
def test_spoilt_archives(place, kind, edits, inside):
    path = place / "archives" / "a.tgz"
    path.parent.mkdir(exist_ok=True)
    data = spoilt(ARCHIVES[""], edits) if inside else spoilt(ARCHIVES[kind], edits)
    path.write_bytes(data)
    taken = unrefused(lambda: list(member_lines(path, "training/b.en")), names=[path])
    assert list(path.parent.iterdir()) == [path]
    return taken


def test_a_gzip_header_that_breaks_off_is_said(place):
    path = place / "header.tgz"
    path.write_bytes(b"\x1f\x8b\x08")
    assert not unrefused(lambda: list(member_lines(path, "training/b.en")), names=[path])
