"""Several processes train the model that one process trains.

On the CPU, over gloo: torch's own DistributedDataParallel, which fairseq uses on GPUs, for every encoder
of the registry; fairseq's own command in two processes and on two nodes for FLOATER and for a table.
"""

import shlex
import shutil
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import helpers as h
import pytest
import torch
import toy as toys
from encoder_cases import CASES, FORMS

from fairseq_floater.position_encoders import POSITION_ENCODERS

# torch's own DistributedDataParallel, which fairseq uses on GPUs and cannot use on the CPU.

LENGTHS = (
    # Two updates; one process gets the first two sentences, the other process the rest.
    {"source": (7, 11, 4, 11), "target": (9, 12, 5, 12)},
    {"source": (7, 5, 30, 11), "target": (9, 6, 5, 25)},  # one process needs more rows
)
DDP_CASES = {
    f"{encoder}-{target}": {"encoder": encoder, "target": target}
    for encoder, blocks, target in CASES
    if (encoder, blocks, target) in h.MECHANISMS or target in FORMS
}
DDP_CASES |= {
    f"floater-{target}-interval": {
        "encoder": "floater",
        "target": target,
        "floater_update_interval": 4,
    }
    for target in ("qkv", "hidden")
}


def for_ddp(name):
    return h.randomise_positions(h.build(dropout=0.0, **DDP_CASES[name])).train()


def two_steps(model, rows, share):
    """Gradients of two updates; the second has changed parameters and lies between two solves."""
    found = []
    inner = getattr(model, "module", model)
    for update, lengths in enumerate(LENGTHS):
        inner.set_num_updates(update)
        model.zero_grad()
        source = h.source_batch(lengths=lengths["source"])
        target = h.target_batch(lengths=lengths["target"])
        words = target.ne(h.PAD).sum()
        source, target = (side[rows][:, side[rows].ne(h.PAD).any(0)] for side in (source, target))
        scores = model(source, source.ne(h.PAD).sum(1), target)[0].log_softmax(-1)
        scores = scores.gather(2, target.unsqueeze(2))[..., 0][target.ne(h.PAD)]
        (scores.sum() * -share / words).backward()
        found.append({name: p.grad.clone() for name, p in inner.named_parameters()})
        with torch.no_grad():
            for parameter in inner.parameters():
                parameter -= 0.1 * parameter.grad
    return found


def process_of_two(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    found = {}
    for name in DDP_CASES:
        model = torch.nn.parallel.DistributedDataParallel(for_ddp(name))
        # DDP averages over the processes, so each half of the sum counts twice.
        found[name] = two_steps(model, slice(2 * rank, 2 * rank + 2), share=2)
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    del model  # before the group, whose destruction can hang otherwise
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def of_two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    start = torch.multiprocessing.start_processes
    start(process_of_two, args=(str(folder),), nprocs=2, start_method="fork")
    return torch.load(folder / "found.pt", weights_only=True)


@pytest.mark.parametrize("name", DDP_CASES)
def test_torchs_own_ddp_gives_the_gradient_of_the_joined_batch(of_two_processes, name):
    expected = two_steps(for_ddp(name), slice(None), share=1)
    for update in range(2):
        for parameter, gradient in expected[update].items():
            error = h.difference(of_two_processes[name][update][parameter], gradient)
            assert error <= 1e-5 * max(1, float(gradient.abs().max())), (update, parameter)
    positions = [n for n in expected[0] if "positions." in n]
    assert bool(positions) == POSITION_ENCODERS[DDP_CASES[name]["encoder"]].data_driven
    for update, gradients in enumerate(expected):
        reused = update == 1 and "interval" in name
        assert all(bool(gradients[n].any()) != reused for n in positions)


# fairseq-train on the CPU with two batches an update: in one process, in two, on two nodes.

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SETTINGS = {"learned": ("--position-encoder", "learned")}
# A flow large enough to show from the first update on. With this seed, one process needs further rows
# between two solves before the other does.
SETTINGS["floater"] = ("--position-encoder", "floater", "--floater-init-scale", 0.1)
SETTINGS["floater"] += ("--floater-update-interval", 4, "--seed", 5)

# Runs of fairseq-train, one a line, in one process: importing torch and fairseq outlasts a run.
SEVERAL = """
import os, shlex, sys
from fairseq_cli.train import cli_main

for line in open(sys.argv[1]):
    sys.argv[1:] = shlex.split(os.path.expandvars(line))
    cli_main()
"""


def one_of_two(toy, folder, *options):
    """fairseq-train's arguments in one of two processes; torchrun sets the rank."""
    words = [*toy.training(folder, *options), "--user-dir", toys.PACKAGE]
    words += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    words += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
    # torch >= 2.6 refuses the form in which fairseq sends a checkpoint between processes.
    words += ["--distributed-world-size", 2, "--load-checkpoint-on-all-dp-ranks"]
    return [*words, "--distributed-rank", "$RANK"]


def in_bash(words):
    """torchrun's last arguments: fairseq-train in bash, which reads each process's RANK."""
    line = joined([sys.executable, "-m", "fairseq_cli.train", *words])
    return ("--no-python", "bash", "-c", line.replace("'$RANK'", "$RANK"))


def joined(words):
    return shlex.join(str(word) for word in words)


def two_processes(*program):
    return toys.run([*TORCHRUN, "--standalone", "--nproc_per_node", 2, *program])


def two_nodes(*program):
    """Run two torchrun agents, as on two machines, with a rendezvous at a local port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    meeting = ("--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id", "toy")
    command = [*TORCHRUN, "--nnodes", 2, "--nproc_per_node", 1, *meeting, *program]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(toys.run, [command, command]))


@pytest.fixture(scope="session")
def trained(toy, tmp_path_factory):
    """Train every setting for an epoch by one and by two processes: ``one/NAME`` and ``two/NAME``."""
    folder = tmp_path_factory.mktemp("settings")
    shared = ("--arch", toys.ARCH, "--dropout", 0, "--max-epoch", 1, "--no-epoch-checkpoints")
    one, two = [], []
    for name, setting in SETTINGS.items():
        alone = toy.training(folder / "one" / name, *shared, *setting, "--update-freq", 2)
        one.append(joined([*alone, "--user-dir", toys.PACKAGE]))
        two.append(joined(one_of_two(toy, folder / "two" / name, *shared, *setting)))
    for name, text in {"one": one, "two": two, "several.py": [SEVERAL]}.items():
        (folder / f"runs.{name}").write_text("\n".join(text))
    toys.run([sys.executable, folder / "runs.several.py", folder / "runs.one"])
    two_processes(folder / "runs.several.py", folder / "runs.two")
    return folder


@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_train_as_one_with_twice_the_batches(trained, name):
    pair = [trained / count / name / "checkpoint_last.pt" for count in ("one", "two")]
    toys.assert_same_run(*pair, 1e-5)


@pytest.fixture(scope="session")
def warm(toy, tmp_path_factory):
    """Options that train from a warm start, without the number of epochs."""
    path = tmp_path_factory.mktemp("start") / "start.pt"
    toy.warm_start(path)
    # No dropout: each process would draw its own masks.
    return ("--arch", toys.ARCH, "--finetune-from-model", path, "--dropout", 0)


@pytest.fixture(scope="session")
def alone(toy, warm, tmp_path_factory):
    """Two epochs of one process."""
    folder = tmp_path_factory.mktemp("alone")
    toy.train(folder, *warm, "--max-epoch", 2, "--update-freq", 2)
    return folder


@pytest.fixture(scope="session")
def on_two_nodes(toy, warm, tmp_path_factory):
    """The first epoch by one process on each of two nodes."""
    folder = tmp_path_factory.mktemp("nodes")
    two_nodes(*in_bash(one_of_two(toy, folder, *warm, "--max-epoch", 1)))
    return folder


@pytest.mark.slow
def test_two_nodes_train_as_one_process(alone, on_two_nodes):
    toys.assert_same_run(alone / "checkpoint1.pt", on_two_nodes / "checkpoint1.pt", 1e-5)


@pytest.mark.slow
def test_two_processes_resume_as_one(toy, warm, alone, on_two_nodes, tmp_path):
    shutil.copy(on_two_nodes / "checkpoint1.pt", tmp_path / "checkpoint_last.pt")
    two_processes(*in_bash(one_of_two(toy, tmp_path, *warm, "--max-epoch", 2)))
    toys.assert_same_run(alone / "checkpoint2.pt", tmp_path / "checkpoint2.pt", 1e-5)
    history = torch.load(tmp_path / "checkpoint2.pt", weights_only=True)["optimizer_history"]
    assert history[-1]["num_updates"] == 2 * ((toys.UPDATES_AN_EPOCH + 1) // 2)
