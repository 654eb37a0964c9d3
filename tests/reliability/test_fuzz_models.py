"""Spoilt checkpoints and archives: nothing in them runs, and each is taken or refused in a sentence."""

import collections
import io
import os
import pickle
import tarfile
import warnings
import zipfile
from argparse import Namespace

import pytest
import torch
from fuzzing import CHANGES, EDITS, ODD_VALUES, accepted, changed, inputs, spoilt, unrefused
from helpers import TINY, save_donor
from hypothesis import strategies as st

from fairseq_floater.checkpoints.reading import load_checkpoint
from fairseq_floater.checkpoints.resume import repair_last
from fairseq_floater.data.wmt14.corpora import member_lines
from fairseq_floater.results import position_figure

SHAPE = {
    f"{side}_{name}": 8
    for side in ("encoder", "decoder")
    for name in ("embed_dim", "ffn_embed_dim")
}
ODD_TENSORS = (
    *(torch.zeros(3), torch.zeros(0), torch.tensor(7), torch.tensor(float("nan"))),
    *(torch.zeros(1).expand(10**12), torch.zeros(10**12, 0), torch.zeros(4, 4, dtype=torch.int8)),
    *(
        torch.zeros(2, 2, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
        torch.zeros(2, device="meta"),
    ),
    torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the small checkpoints `plain.pt` and `floater.pt`."""
    folder = tmp_path_factory.mktemp("models")
    save_donor(folder / "plain.pt", **SHAPE)
    save_donor(folder / "floater.pt", arch=TINY, position_encoder="floater", **SHAPE)
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
    monkeypatch.setattr(position_figure, "draw", lambda tracks, output, **words: None)
    warnings.simplefilter("ignore")


class Runs:
    """A pickle of this touches a file when it is loaded by a pickle module that trusts it."""

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
    # Trusted, it would run: the test would notice.
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


def test_a_compressed_checkpoint_is_refused(tmp_path, place):
    """A few kilobytes of deflated zeros would otherwise become gigabytes of tensors."""
    path = tmp_path / "bomb.pt"
    whole = zipfile.ZipFile(place / "small.pt")
    with whole, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bomb:
        for entry in whole.infolist():
            bomb.writestr(entry.filename, whole.read(entry))
    torch.load(path, weights_only=True)  # torch itself takes it
    assert not unrefused(load_checkpoint, path, names=["it is compressed"])


def averaged(place, path):
    output = place / "out" / "average.pt"
    before = set(place.iterdir())
    words = ("average", "--inputs", path, path, "--output", output)
    taken = accepted(*words, names=[path])
    assert taken == output.is_file()
    output.unlink(missing_ok=True)
    assert not list(place.glob("out/*"))
    assert set(place.iterdir()) - before <= {output.parent}
    return taken


@inputs("checkpoints, bytes", 60, name=st.sampled_from(("small.pt", "old.pt")), edits=EDITS)
def test_checkpoints_with_spoilt_bytes(place, name, edits):
    folder = place / "spoilt"
    folder.mkdir(exist_ok=True)
    path = folder / "checkpoint_last.pt"
    path.write_bytes(spoilt((place / name).read_bytes(), edits))
    taken = unrefused(load_checkpoint, path, names=[path])
    assert ("resuming" in repair_last(folder)) == taken
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


def save(path, state):
    try:
        torch.save(state, path)
    except (RuntimeError, NotImplementedError, ValueError, OverflowError):
        return False  # no checkpoint can hold it
    return True


@inputs("checkpoints, values", 35, changes=CHANGES, tensors=st.booleans())
def test_checkpoints_with_odd_values(place, changes, tensors):
    state = torch.load(place / "small.pt", weights_only=True)
    path = place / "odd.pt"
    if not save(path, changed(state, changes, ODD_TENSORS if tensors else ODD_VALUES)):
        return False
    return averaged(place, path)


OPTIONS = (
    *(
        "arch",
        "_name",
        "encoder_layers",
        "encoder_embed_dim",
        "decoder_ffn_embed_dim",
        "position_encoder",
    ),
    *("decoder_attention_heads", "max_source_positions", "share_all_embeddings", "activation_fn"),
    *("dropout", "position_blocks", "position_target", "floater_delta", "encoder_learned_pos"),
    *("encoder_layerdrop", "no_token_positional_embeddings", "adaptive_softmax_cutoff"),
    *("decoder_output_dim", "position_stretch", "encoder_layers_to_keep", "quant_noise_pq"),
)
ODD_OPTIONS = [v for v in ODD_VALUES if not isinstance(v, (dict, list))] + [
    [],
    [1],
    {},
    10**6,
    10**9,
]


def with_options(place, name, changes, options):
    """A checkpoint with odd parts and odd options of its model; None where none can hold them."""
    state = torch.load(place / name, weights_only=True)
    for which, value in options:
        setattr(state["cfg"]["model"], OPTIONS[which], ODD_OPTIONS[value])
    path = place / "odd.pt"
    return path if save(path, changed(state, changes, (*ODD_TENSORS, *ODD_VALUES))) else None


ODD_MODELS = {
    "changes": st.just([]) | CHANGES,
    "options": st.lists(
        st.tuples(st.integers(0, len(OPTIONS) - 1), st.integers(0, len(ODD_OPTIONS) - 1)),
        max_size=2,
    ),
}


@inputs("floater warm-start", 4, **ODD_MODELS)
def test_warm_starts_from_odd_donors(place, changes, options):
    path, output = with_options(place, "plain.pt", changes, options), place / "start.pt"
    if path is None:
        return False
    taken = accepted("warm-start", path, output, "--arch", TINY, names=[path, "--"])
    assert taken == output.is_file()
    output.unlink(missing_ok=True)
    return taken


@inputs("floater plot positions", 4, name=st.sampled_from(("plain.pt", "floater.pt")), **ODD_MODELS)
def test_figures_of_odd_models(place, name, changes, options):
    path = with_options(place, name, changes, options)
    words = ("--length", "8", "--stack", "encoder")
    return path is not None and accepted(
        "plot", "positions", path, place / "x.png", *words, names=[path]
    )


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


def test_parameters_of_another_output_layer_are_said(place):
    """fairseq's adaptive softmax raises a bare Exception where it is loaded from others."""
    state = torch.load(place / "plain.pt", weights_only=True)
    state["cfg"]["model"].adaptive_softmax_cutoff = "4"
    path = place / "cutoff.pt"
    torch.save(state, path)
    words = ("plot", "positions", path, place / "x.png", "--length", "8")
    assert not accepted(*words, names=[f"{path} does not fit its own options"])


@pytest.mark.parametrize("scale", [torch.ones(2), torch.tensor(-1.0), torch.tensor(float("nan"))])
def test_a_learning_rate_scale_is_a_number(place, scale):
    state = torch.load(place / "floater.pt", weights_only=True)
    names = [name for name in state["model"] if name.endswith("lr_scale")]
    state["model"][names[0]] = scale
    path = place / "scale.pt"
    torch.save(state, path)
    words = ("plot", "positions", path, place / "x.png", "--length", "8")
    assert not accepted(*words, names=[f"{path}: {names[0]} must be one positive number"])


@pytest.mark.parametrize("kept", ["x", "0,", "-1", "0;1"])
def test_layers_to_keep_are_numbers(place, kept):
    words = ("warm-start", place / "plain.pt", place / "start.pt", "--arch", TINY)
    assert not accepted(
        *words, f"--encoder-layers-to-keep={kept}", names=["layers-to-keep", "plain.pt"]
    )
