"""Run the demo (`scripts/demo.sh`): five systems on the built-in corpus, a table, a figure and a page."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fairseq_floater.errors import UserError
from fairseq_floater.experiments.cells import Cell, run_cells
from fairseq_floater.experiments.commands import ONE_THREAD
from fairseq_floater.experiments.hardware import Machines, use_gpus, visible_gpus
from fairseq_floater.experiments.job import floater
from fairseq_floater.experiments.launch import Launcher
from fairseq_floater.experiments.preparation import RunRequest
from fairseq_floater.experiments.protocol import Protocol
from fairseq_floater.experiments.screen import Screen
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import PLAIN, System
from fairseq_floater.files import USER_DIR

CONFIG = USER_DIR.parent / "configs" / "numbers_en_de.yaml"
STRETCHED = ("--position-stretch", "0.5:2.5")
SYSTEMS = (
    System(PLAIN),
    System("rope", scratch=True),
    System("rotation_flow", base=False, scratch=True, options=STRETCHED),
    System("floater"),
    System("sinusoidal", "input"),
)
DETAILS = """
English -> German number words, from nothing to a table in some ten minutes on two cores:
  plain                     fairseq's Transformer: the donor of the next two
  FLOATER, qkv, warm        FLOATER at all blocks, started from the donor and trained further
  sinusoid, warm            the donor trained further: the control, with as many updates as the rest
  rope                      RoPE, from random parameters
  rotation_flow, stretched  a flow that keeps its norm, from random parameters, on stretched positions
Scored on lines of trained length and on longer ones. A second run skips what is finished."""
_JOBS = 2  # at a time, with one thread each: the models are too small for more threads
_WHERE = """
plain is fairseq's sinusoidal Transformer from random parameters. The two warm systems continue its training.
The two others train from random parameters. All systems but plain have the same number of updates; those of
a warm system include those of plain.

Page        {work}/page.html: everything below in a browser
Figure      {work}/scores.png
Results     {work}/results.json
Each system {work}/<system>: checkpoints, average.pt, train.log, run.json (settings, the arguments of every
            stage), generate.<test>.txt, scores.<test>.json
Data        {work}/numbers (raw), {work}/data (subword model, binarised)"""


def run(work: Path, dry_run: bool) -> None:
    machines, experiment = Machines(min(1, len(visible_gpus()))), Experiment(CONFIG)
    launcher = Launcher(
        dry_run=dry_run,
        screen=Screen(len(SYSTEMS)),
        environment=ONE_THREAD,
        job_environments=use_gpus(machines, dry_run=dry_run),
    )
    requests = (RunRequest(experiment, system, work, machines=machines) for system in SYSTEMS)
    cells = [Cell(r.system.name, work / r.system.name, partial(Protocol, r)) for r in requests]
    with launcher.signals():
        if any(run_cells(cells, launcher, _JOBS, stop_early=True)):
            raise UserError("The demo stopped: see the message above. Run it again to continue.")
        options = ["--figure", work / "scores.png", "--json", work / "results.json"]
        launcher.run(floater("table", work, *options), name="table")
        launcher.run(floater("page", work, work / "page.html"), name="page")
    if not dry_run:
        print(_WHERE.format(work=work))
