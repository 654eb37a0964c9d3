"""The cells of Table 2: their folders, their progress, and the commands that make them."""

import argparse
import subprocess
from pathlib import Path

import pytest
from command_lines import PARSERS, commands, parsed
from toy import ROOT, run

from fairseq_floater.experiments.cells import Progress, progress_of, select
from fairseq_floater.experiments.hardware import Machines
from fairseq_floater.experiments.paper_numbers import COLUMNS, TABLE_2
from fairseq_floater.experiments.run_folder import RunFolder
from fairseq_floater.experiments.stages import Experiment
from fairseq_floater.experiments.system import System
from fairseq_floater.experiments.table2 import add_options, cells_of, config_of, donors_of

SCRIPT = ROOT / "scripts" / "table2.sh"


def cells(*words, work="w", donors=False):
    parser = argparse.ArgumentParser()
    add_options(parser)
    args = parser.parse_args(["--work", str(work), *words])
    return (donors_of if donors else cells_of)(args)


def test_there_are_24_cells_and_four_donors():
    names = [cell.name for cell in cells()]
    assert len(set(names)) == 24
    assert names[0] == "base-en-de-floater-all"
    assert [cell.name for cell in cells(donors=True)] == [
        *("base-en-de-plain", "base-en-fr-plain", "big-en-de-plain", "big-en-fr-plain"),
    ]


def test_a_cell_knows_its_folders(tmp_path):
    [cell] = select(cells("--seeds", "3", work=tmp_path), "big-en-fr-sinusoidal-input")
    column = tmp_path / "wmt14_en_fr_big"
    assert cell.folder == column / "seed-3" / "sinusoidal-input-hidden"
    assert cells(work=tmp_path, donors=True)[-1].folder == column / "plain"


def test_progress(tmp_path):
    assert progress_of(tmp_path / "none").state == "not begun"
    assert progress_of(tmp_path).state == "broken off"
    line = "x | INFO | train_inner | epoch 003:  4 / 9 loss=1, num_updates=1204, lr=1\n"
    (tmp_path / "train.log").write_text(line * 1000)
    assert progress_of(tmp_path).detail == "epoch 3, update 1,204, 0 min ago"
    with RunFolder(tmp_path).changing() as record:
        record |= {"state": "failed", "reason": "plain: the command failed."}
    assert progress_of(tmp_path) == Progress("failed", "plain: the command failed.")
    with RunFolder(tmp_path).changing() as record:
        record |= {"state": "done", "reason": ""}
    assert progress_of(tmp_path).state == "done"
    donor = tmp_path / "plain"
    donor.mkdir()
    with RunFolder(donor).changing() as record:
        record["trained"] = True
    assert progress_of(donor, tmp_path / ".donor.lock").state == "trained"
    hold = 'exec 9>"$1"; flock 9; echo held; read -r'
    holder = subprocess.Popen(
        ["bash", "-c", hold, "hold", tmp_path / ".lock"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    assert progress_of(tmp_path).state == "running"
    holder.communicate("\n")
    assert progress_of(tmp_path).state == "done"


# Every column with one row, every row with one column.
ROWS = [*TABLE_2]
CELLS = [(column, ROWS[0]) for column in COLUMNS] + [([*COLUMNS][0], row) for row in ROWS[1:]]


@pytest.mark.parametrize(
    ("column", "row"), CELLS, ids=["-".join((*column, *row)) for column, row in CELLS]
)
def test_every_cell_has_arguments_that_fairseq_reads(column, row, tmp_path):
    experiment = Experiment(ROOT / "configs" / f"{config_of(*column)}.yaml")
    (size, _, target), (blocks, encoder) = column, row
    big, system = size == "big", System(encoder, blocks)
    assert experiment.config.budget.average == 5
    for processes, frequency in ((1, 8), (8, 1), (4, 2)):
        words = experiment.arguments(
            "finetune", system, work=str(tmp_path), machines=Machines(processes)
        )
        args = parsed(words)
        assert args.update_freq == [frequency]
        tokens = args.max_tokens * frequency * processes
        assert tokens == (28_672 if big else 32_768)
    assert args.position_encoder == encoder
    assert args.position_blocks == blocks
    assert args.encoder_embed_dim == (1024 if big else 512)
    assert args.dropout == (0.3 if column == ("big", "en", "de") else 0.1)
    assert args.fp16 and args.share_all_embeddings
    donor = parsed(experiment.arguments("donor", system, work=str(tmp_path)))
    assert args.lr == [donor.lr[0] / 2]
    assert donor.lr == [0.0005 if big else 0.0007]
    assert (donor.max_epoch, args.max_epoch) == (30, 10 if target == "de" else 1)
    assert not donor.fp16  # on a CPU
    search = parsed(experiment.arguments("generate", system), "generate")
    assert (search.beam, search.lenpen, search.post_process) == (4, 0.6, "subword_nmt")
    assert (search.tokenizer, search.required_batch_size_multiple) == ("moses", 1)


def check_dry_run(done, cells):
    found = [line[2:] for line in done.stdout.splitlines() if line.startswith("# ")]
    assert found == [cell.name for cell in cells]
    folders = []
    for words in commands(done.stdout):
        tool = next((w.split(".")[1] for w in words if w.startswith("fairseq_cli.")), None)
        if tool in PARSERS:
            args = parsed(words[words.index(f"fairseq_cli.{tool}") + 1 :], tool)
            if tool == "train":
                folders.append(Path(args.save_dir).parent)
    for cell in cells:
        assert cell.folder in folders
        assert cell.folder.parent.parent / "plain" in folders


def test_a_dry_run_prints_runnable_commands(tmp_path):
    words = ("--only", "big-en-fr-floater-all", "--processes", 8, "--work", "w", "--dry-run")
    done = run(["bash", SCRIPT, *words], cwd=tmp_path)
    check_dry_run(done, select(cells(), "big-en-fr-floater-all"))
    assert "--updates" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_of_all_24_cells(tmp_path):
    done = run(
        ["bash", SCRIPT, "--processes", 8, "--work", "w", "--dry-run"], cwd=tmp_path, timeout=1200
    )
    check_dry_run(done, cells())
