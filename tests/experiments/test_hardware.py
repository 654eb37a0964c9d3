"""Hardware: GPUs that are seen and shared, and how the processes of a training are started."""

import argparse
import re
from itertools import cycle, islice

import pytest
import warm
from toy import environment, run

from fairseq_floater.errors import UsageError, UserError
from fairseq_floater.experiments.commands import add_node_options
from fairseq_floater.experiments.hardware import (
    Machines,
    UpdateBudget,
    machines_from_args,
    starter,
    use_gpus,
    visible_gpus,
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Fake an nvidia-smi that shows ``number`` GPUs; ``visible`` sets CUDA_VISIBLE_DEVICES."""

    def of(number, visible=None):
        smi = tmp_path / "nvidia-smi"
        lines = "".join(f"{n}\\n" for n in range(number))
        smi.write_text(f'#!/bin/sh\nprintf "{lines}"\n')
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return of


def test_gpus_are_those_that_a_program_sees(machine):
    uuids = "GPU-8932f937-d72c,MIG-GPU-8932/1/0"
    seen = ((8, None, 8), (8, "3, 5", 2), (8, "", 0), (0, None, 0), (2, uuids, 2))
    for number, visible, count in (*seen, (8, "-1", 0), (8, "1,-1,2", 1), (8, "NoDevFiles", 0)):
        machine(number, visible)
        assert len(visible_gpus()) == count


def test_each_job_sees_its_own_gpus(machine):
    def seen(machines, jobs=1):
        turns = islice(cycle(use_gpus(machines)), jobs)
        return [job["CUDA_VISIBLE_DEVICES"] for job in turns]

    machine(8)
    assert seen(Machines(2)) == ["0,1"]
    assert seen(Machines(2), 3) == ["0,1", "2,3", "4,5"]
    assert seen(Machines(3), 3) == ["0,1,2", "3,4,5", "0,1,2"]
    assert seen(Machines(2, cpu=True), 2) == ["", ""]
    machine(8, "5,3")
    assert seen(Machines(1)) == ["5"]
    machine(8, "0")
    with pytest.raises(UserError, match="--processes 2, but 1 GPUs are visible here"):
        use_gpus(Machines(2))


def test_torchrun_starts_what_fairseq_does_not():
    words = starter(
        "plain", Machines(4, 2, launch="srun --comment='a b' -n 1", rendezvous="head:29400")
    )
    assert words[:5] == ["srun", "--comment=a b", "-n", "1", "env"]
    assert words[words.index("--nproc_per_node") + 1] == "4"
    assert words[words.index("--rdzv_endpoint") + 1] == "head:29400"
    rank = run(["env", "RANK=3", *words[words.index("bash") :], "echo", "a b"], env=environment())
    assert rank.stdout == "a b --distributed-rank 3\n"
    with pytest.raises(UsageError, match="`--launch` must be valid in a shell"):
        starter("plain", Machines(4, 2, launch="srun 'a", rendezvous="head:29400"))


def test_fairseq_takes_no_processes_but_ours(monkeypatch):
    """Otherwise fairseq would take the tasks of a SLURM job or the processes of an outer torchrun."""
    script = """if 1:
        import torch, fairseq_floater  # as in a training with --user-dir
        from fairseq.distributed.utils import infer_init_method
        from omegaconf import OmegaConf
        torch.cuda.device_count = lambda: 4
        given = {"world_size": 4, "port": -1, "init_method": None, "no_spawn": False}
        cfg = OmegaConf.create({"distributed_" + key: value for key, value in given.items()})
        cfg.tpu = cfg.pipeline_model_parallel = False
        infer_init_method(cfg)
        print(cfg.distributed_init_method, cfg.distributed_world_size, cfg.distributed_no_spawn)
    """
    for name in ("SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "RANK"):
        monkeypatch.delenv(name, raising=False)
    assert starter("plain", Machines(4)) == []
    others = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_NTASKS": "8"}
    others |= {"SLURM_JOB_ID": "7", "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in (others | {"MASTER_ADDR": "n1", "MASTER_PORT": "29400"}).items():
        monkeypatch.setenv(name, value)
    assert starter("plain", Machines(1)) == []
    ports = set()
    for _ in range(2):
        found = run([*starter("plain", Machines(4)), warm.python(), "-c", script])
        address, world, unspawned = found.stdout.split()
        assert (world, unspawned) == ("4", "False")
        ports.add(re.fullmatch(r"tcp://localhost:(\d+)", address)[1])
    assert len(ports) == 2  # a port derived from the job's number would be the same twice


@pytest.mark.parametrize(
    ("budget", "gpus", "nodes", "taken"),
    [
        *(
            (UpdateBudget(4096, 32_768), gpus, 1, taken)
            for gpus, taken in ((8, 8), (6, 4), (3, 2), (1, 1))
        ),
        *((UpdateBudget(2000, 2000), gpus, 1, min(gpus, 1)) for gpus in (0, 1, 4)),
        *(
            (UpdateBudget(3584, 28_672), 8, nodes, taken)
            for nodes, taken in ((2, 4), (4, 2), (16, 8))
        ),
        (UpdateBudget(1500, 2000), 4, 1, 2),  # one GPU would make an update of 3,000 tokens
    ],
)
def test_a_machine_lends_the_gpus_among_which_an_update_is_shared(
    machine, budget, gpus, nodes, taken
):
    assert budget.even_gpus(gpus, nodes) == taken
    machine(gpus)
    parser = argparse.ArgumentParser()
    add_node_options(parser)
    nodes_of = ["--nodes", str(nodes), "--launch", "srun", "--rendezvous", "head:1"]
    assert machines_from_args(parser.parse_args(nodes_of), budget).processes == taken
    asked = machines_from_args(parser.parse_args(["--processes", "7"]), budget)
    assert asked.processes == 7
    # --cpu alone means one process per node, however many GPUs there are.
    assert machines_from_args(parser.parse_args([*nodes_of, "--cpu"]), budget).world == nodes


def test_an_update_of_another_size_is_said():
    found = UpdateBudget(2000, 2000).update_in_words(Machines(4))
    assert found == "8000 tokens an update (--update-freq 1, 4 GPUs) instead of the configured 2000"
    found = UpdateBudget(1000, 2000).update_in_words(Machines(1))
    assert found == "2000 tokens an update (--update-freq 2, 1 GPU)"
