"""scripts/slurm.sbatch under a fake scheduler of a few shell scripts."""

import os
import subprocess
import time

import pytest
from toy import ROOT, environment

STUB = """
if [[ " $* " == *" --list "* ]]; then printf '%s\\n' one two three; exit; fi
printf '%s ' "$@" >called
trap 'exit 143' TERM
touch begun
for ((i = 0; i < 600; i++)); do [[ -f finish ]] && exit 0; sleep 0.1; done
"""


@pytest.fixture
def cluster(tmp_path):
    """A folder with a stub of table2.sh, and an scontrol that records what it is told."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "table2.sh").write_text(STUB)
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$1" = show ] && echo head && echo other || echo "$@" >>told\n'
    )
    scontrol.chmod(0o755)
    return tmp_path


def submitted(cluster, *words, task=1, **variables):
    """Start the batch script as SLURM does: a copy in another folder."""
    copy = cluster / "spool"
    copy.write_text((ROOT / "scripts" / "slurm.sbatch").read_text())
    own = {"SLURM_SUBMIT_DIR": cluster, "SLURM_ARRAY_TASK_ID": task, "SLURM_JOB_ID": 77}
    own |= {"PATH": f"{cluster / 'bin'}:{os.environ['PATH']}", **variables}
    env = environment(**{name: str(value) for name, value in own.items()})
    return subprocess.Popen(
        ["bash", str(copy), *words], env=env, cwd="/", stderr=subprocess.PIPE, text=True
    )


def until(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_task_runs_its_cell_and_queues_again_when_stopped(cluster):
    job = submitted(cluster, "--work", "w")
    until(cluster / "begun")
    assert (cluster / "called").read_text() == "--work w --only two "
    job.terminate()
    assert job.wait(60) == 0
    assert (cluster / "told").read_text() == "requeue 77\n"
    (cluster / "finish").touch()
    assert submitted(cluster).wait(60) == 0
    assert (cluster / "told").read_text() == "requeue 77\n"


def test_a_task_of_several_nodes(cluster):
    (cluster / "finish").touch()
    assert submitted(cluster, SLURM_NNODES=2, SLURM_JOB_NODELIST="n[1-2]").wait(60) == 0
    called = (cluster / "called").read_text()
    assert "--nodes 2 --launch srun --nodes=2 --ntasks-per-node=1 --rendezvous head:20077" in called


def test_a_task_past_the_cells_does_nothing(cluster):
    job = submitted(cluster, task=3)
    assert job.wait(60) == 0
    assert "Task 3 has no cell: there are 3." in job.stderr.read()
    assert not (cluster / "called").exists()
