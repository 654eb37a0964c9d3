"""Describe the hardware of a training: GPUs or CPU processes, of one node or several."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import takewhile

from omegaconf import MISSING

from fairseq_floater.errors import UsageError, UserError
from fairseq_floater.verbs import as_options, positive, shell_words

# Variables from which fairseq would take the number of processes, instead of from its options. They describe
# a SLURM job, whose tasks are not our processes, or another torchrun.
_LAUNCHER_VARIABLES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "RANK")


@dataclass
class UpdateBudget:
    """The tokens of one process's batch and of an update, as a configuration states them."""

    max_tokens: int = MISSING
    tokens_per_update: int = MISSING

    def update(self, processes: int) -> tuple[int, int]:
        """Return the smallest ``--update-freq`` that reaches the configured tokens, and the actual tokens."""
        a_step = self.max_tokens * max(processes, 1)
        frequency = max(1, -(-self.tokens_per_update // a_step))
        return frequency, frequency * a_step

    def update_in_words(self, machines: Machines) -> str:
        """Return a phrase: the tokens of an update on ``machines``, and how they come about."""
        frequency, tokens = self.update(machines.world)
        text = f"{tokens} tokens an update (--update-freq {frequency}, {machines})"
        wanted = self.tokens_per_update
        return text if tokens == wanted else f"{text} instead of the configured {wanted}"

    def even_gpus(self, gpus: int, nodes: int) -> int:
        """Return the most GPUs per node, up to ``gpus``, with which an update is no larger than with one.

        If even one GPU per node makes it larger, return ``gpus``.
        """
        sizes = {n: self.update(n * nodes)[1] for n in range(1, gpus + 1)}
        least = self.update(1)[1]
        return max((n for n, tokens in sizes.items() if tokens == least), default=gpus)


@dataclass(frozen=True)
class Machines:
    """``processes`` on each of ``nodes``; 0 processes mean one on the CPU.

    fairseq itself starts one process for each GPU of a single node. On several nodes, or with several
    processes on the CPU, torchrun starts them, each with its ``--distributed-rank`` (:func:`starter`).

    Raises:
        UsageError: a negative number of processes.
    """

    processes: int = 0
    nodes: int = 1
    cpu: bool = False  # the processes have no GPUs
    fp16: bool = True  # GPUs may train in half precision
    launch: str = ""  # prefix that starts a command once on each node, such as `srun`
    rendezvous: str = ""  # host and free port of one of the nodes

    def __post_init__(self) -> None:
        if self.processes < 0:
            raise UsageError(f"`--processes` must not be negative, but is {self.processes}.")

    @property
    def on_cpu(self) -> bool:
        return self.cpu or not self.processes

    def __str__(self) -> str:
        kind = "CPU process" if self.on_cpu else "GPU"
        each = max(self.processes, 1)
        name = f"{each} {kind}" + ("es" if self.on_cpu else "s") * (each > 1)
        return name if self.nodes == 1 else f"{self.nodes} nodes x {name}"

    @property
    def world(self) -> int:
        """Return the number of processes on all nodes together."""
        return max(self.processes, 1) * self.nodes

    @property
    def torchrun(self) -> bool:
        return self.nodes > 1 or (self.on_cpu and self.world > 1)

    def words(self) -> list[str]:
        """Return the options from which :func:`machines_from_args` reads these machines."""
        several = {"nodes": self.nodes, "launch": self.launch, "rendezvous": self.rendezvous}
        options = {"processes": self.processes, **(several if self.nodes > 1 else {})}
        return as_options({**options, "cpu": self.cpu, "no-fp16": not self.fp16})

    def training_options(self) -> list[str]:
        """Return fairseq-train's options of this hardware, without the rank."""
        options = ["--cpu"] if self.on_cpu else []
        if not self.torchrun and not self.on_cpu:
            # Otherwise fairseq would use every GPU that it sees.
            options += ["--distributed-world-size", str(self.world)]
        if self.world > 1:
            # fairseq hands a checkpoint from process to process in a form that torch >= 2.6 refuses.
            options.append("--load-checkpoint-on-all-dp-ranks")
        if self.torchrun:
            # Stated explicitly, because fairseq would otherwise train separate models on a CPU.
            options += ["--distributed-world-size", str(self.world), "--distributed-no-spawn"]
            options += ["--distributed-init-method", "env://"]
        if self.on_cpu and self.world > 1:
            options += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
        return options


ONE_CPU = Machines()


def visible_gpus() -> list[str]:
    """Return the GPUs that a program started here would see."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        # CUDA reads names up to the first invalid one. So -1, or SLURM's NoDevFiles, means no GPU.
        names = (name.strip() for name in listed.split(","))
        return list(takewhile(re.compile(r"\d+|GPU-.+|MIG-.+").fullmatch, names))
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return []
    return [line.strip() for line in listing.splitlines() if line.strip().isdigit()]


def use_gpus(machines: Machines, *, dry_run: bool = False) -> list[dict[str, str]]:
    """Return the environment variables of each run that fits on this machine; a run sees only its GPUs.

    fairseq uses every GPU that it sees, and starts a process for each even with --cpu. An update would
    then have other tokens than recorded. A dry run hides none.

    Raises:
        UserError: the machine has fewer GPUs than requested.
    """
    if dry_run:
        return [{}]
    gpus, wanted = visible_gpus(), 0 if machines.on_cpu else machines.processes
    if wanted > len(gpus):
        raise UserError(
            f"--processes {wanted}, but {len(gpus)} GPUs are visible here; to train on the "
            "CPU, pass --cpu."
        )
    runs = len(gpus) // wanted if wanted else 1
    groups = [gpus[wanted * run : wanted * (run + 1)] for run in range(runs)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups]


def starter(name: str, machines: Machines) -> list[str]:
    """Return the words that precede fairseq-train's command and start each process of a training.

    Raises:
        UsageError: ``--launch`` has an unclosed quote.
    """
    if not machines.torchrun:
        # fairseq itself starts a process for each GPU of a node.
        foreign = [f"--unset={key}" for key in _LAUNCHER_VARIABLES if key in os.environ]
        return ["env", *foreign] if foreign and machines.world > 1 else []
    # torchrun kills its processes 30 seconds after SIGTERM unless told otherwise: too soon for a big
    # checkpoint.
    argv = [*shell_words("--launch", machines.launch), "env", "FLOATER_SAVE_ON_SIGTERM=1"]
    argv += ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT=280", sys.executable, "-m", "torch.distributed.run"]
    argv += ["--nnodes", str(machines.nodes), "--nproc_per_node", str(max(machines.processes, 1))]
    if machines.nodes > 1:
        argv += ["--rdzv_backend", "c10d", "--rdzv_endpoint", machines.rendezvous]
        argv += ["--rdzv_id", f"{name}-{os.getpid()}"]
    else:
        argv += ["--standalone"]
    # RANK differs between processes.
    command = 'exec "$@" --distributed-rank "$RANK"'
    return [*argv, "--no-python", "bash", "-c", command, "fairseq-train"]


def add_machine_options(parser: argparse.ArgumentParser, processes: int | None = None) -> None:
    """Add the options that :func:`machines_from_args` reads; ``processes`` of None means all GPUs."""
    usual = "all GPUs that share an update evenly" if processes is None else processes
    add = parser.add_argument
    text = f"processes on each node, one for each GPU; 0: train on the CPU (default: {usual})"
    add("--processes", type=int, default=processes, metavar="N", help=text)
    add("--nodes", type=positive, default=1, metavar="N", help="number of nodes (1)")
    add("--cpu", action="store_true", help="train on the CPU, even if there are GPUs")
    add("--no-fp16", action="store_true", help="train in float32 on GPUs too")


def machines_from_args(args: argparse.Namespace, budget: UpdateBudget | None = None) -> Machines:
    """Return the hardware to train on; by default, GPUs here that share an update of ``budget`` evenly.

    Raises:
        UsageError: a negative number of processes, or several nodes without --launch or --rendezvous.
    """
    processes = args.processes
    if processes is None:
        gpus = 0 if args.cpu else len(visible_gpus())
        if jobs := getattr(args, "jobs", None):  # they share the GPUs
            gpus = max(gpus // jobs, min(gpus, 1))
        processes = gpus if budget is None else budget.even_gpus(gpus, args.nodes)
    starts = {name: vars(args)[name] for name in ("launch", "rendezvous") if name in args}
    if args.nodes > 1 and not all(starts.values()):
        raise UsageError(f"--nodes {args.nodes} needs --launch and --rendezvous.")
    return Machines(processes, args.nodes, args.cpu, not args.no_fp16, **starts)
