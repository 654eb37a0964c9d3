"""Input is never run, huge files are refused, and output goes only where it was asked to go."""

import ast
import gzip
import os
import re
import stat
import tracemalloc

import pytest
import torch
from fuzzing import unrefused
from toy import PACKAGE, ROOT

from fairseq_floater.checkpoints.reading import allow_fairseq_checkpoints
from fairseq_floater.data.parallel_text import LONGEST_LINE, read_lines
from fairseq_floater.evaluation.hypotheses import read_hypotheses
from fairseq_floater.files import write_text, write_whole

# What the source says.

FORBIDDEN = re.compile(
    r"(eval|exec|compile|__import__|os\.(system|popen|exec\w+|spawn\w+)|subprocess\.getoutput"
    r"|subprocess\.getstatusoutput|(pickle|marshal|shelve|dill|joblib)\.\w+|yaml\.(load|unsafe_load|full_load)"
    r"|\w+\.extractall|tarfile\.extract|tempfile\.mktemp|torch\.load|numpy\.load|np\.load)"
)
# Allowed calls, each with its reason.
ALLOWED = {
    "re.compile(": "no code",
    "torch.load(path, map_location='cpu', weights_only=True)": "builds what is allow-listed",
}


def forbidden_calls(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            text = ast.unparse(node)
            if FORBIDDEN.fullmatch(ast.unparse(node.func)) and text not in ALLOWED:
                yield text
            yield from (
                text for k in node.keywords if k.arg == "shell" and ast.unparse(k.value) != "False"
            )


def test_no_module_runs_what_it_is_given():
    found = {
        str(path): calls
        for path in PACKAGE.rglob("*.py")
        if (calls := list(forbidden_calls(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        *("eval(x)", "os.system('ls')", "subprocess.run(x, shell=True)", "pickle.load(f)"),
        *("torch.load(f)", "torch.load(path, weights_only=False)", "yaml.load(f)"),
        *("tar.extractall()", "np.load(f)"),
    ],
)
def test_the_check_of_the_source_finds(line):
    assert list(forbidden_calls(f"import x\ndef f():\n    return {line}\n"))


def test_the_scripts_have_no_eval():
    """No input is evaluated as shell code."""
    for script in sorted((ROOT / "scripts").iterdir()):
        for line in script.read_text(encoding="utf-8").splitlines():
            found = re.match(r"\s*(eval|source|\.)\s(?!.*BASH_SOURCE)", line)
            assert not found, (script.name, line)


def test_the_allow_list_holds_data_alone():
    """Every type that a checkpoint may name only holds values."""
    allow_fairseq_checkpoints()
    found = {
        entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__name__}"
        for entry in torch.serialization.get_safe_globals()
    }
    ours = {name for name in found if not name.startswith("torch")}
    assert "argparse.Namespace" in ours
    kinds = r"dtypes\.(Int64|Float64|Float32)DType"
    numpys = rf"ndarray|dtype|(_core|core)\.multiarray\.(_reconstruct|scalar)|{kinds}"
    assert all(re.fullmatch(rf"argparse\.Namespace|numpy\.({numpys})", name) for name in ours), ours


# Huge files, and how files are written.


@pytest.mark.parametrize("kind", ["sparse", "gzip"])
def test_a_line_that_never_ends_does_not_fill_the_memory(tmp_path, kind):
    path = tmp_path / ("train.en.gz" if kind == "gzip" else "train.en")
    if kind == "gzip":
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(40):
                file.write(b"a" * LONGEST_LINE)
    else:
        path.touch()
        os.truncate(path, 1 << 34)
    tracemalloc.start()
    assert not unrefused(lambda: list(read_lines(path)), names=["line 1 must have at most"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * LONGEST_LINE


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "huge"
    path.touch()
    os.truncate(path, 1 << 34)
    tracemalloc.start()
    assert not unrefused(read_hypotheses, path, names=[f"`{path}` must have lines of at most"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * LONGEST_LINE


def test_a_file_in_the_making_is_private(tmp_path, monkeypatch):
    """A temporary file is private under any umask; the finished file is an ordinary one."""
    modes = []
    monkeypatch.setattr("fairseq_floater.files._UMASK", 0)
    path = tmp_path / "out"
    write_whole(path, lambda temporary: modes.append(temporary.stat().st_mode))
    assert [stat.S_IMODE(mode) for mode in modes] == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


@pytest.mark.parametrize("name", [".", "", "folder"])
def test_a_folder_is_not_replaced_by_a_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(name, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    """`--json /dev/stdout` as root must not replace /dev/stdout by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    write_text(pipe, "text")
    assert os.read(end, 100) == b"text"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(end)


def test_a_descriptor_of_a_file_is_written_to_after_what_is_there(tmp_path):
    """`--json /dev/stdout > file`."""
    with (tmp_path / "file").open("w+") as file:
        file.write("printed\n")
        file.flush()
        write_text(f"/dev/fd/{file.fileno()}", "text")
    assert (tmp_path / "file").read_text() == "printed\ntext"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
