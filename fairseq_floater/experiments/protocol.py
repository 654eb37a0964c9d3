"""Run the paper's protocol for one system: donor, warm start, training on, averaging, generation, scores.

A step whose result is whole is skipped, a killed one starts over; a training goes on from its last
whole checkpoint. Everything of a run lies in its folder, with the record of it (`run_folder.py`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_floater.errors import UsageError, UserError
from fairseq_floater.experiments.distances import untrained_distances
from fairseq_floater.experiments.hardware import torchrun
from fairseq_floater.experiments.job import Job, floater, python
from fairseq_floater.experiments.launch import CommandError, StoppedError
from fairseq_floater.experiments.run_folder import RunFolder, check_data, write_validation
from fairseq_floater.experiments.screen import TrainingLine
from fairseq_floater.files import USER_DIR, write_whole
from fairseq_floater.records import read_json

SCRIPTS = USER_DIR.parent / "scripts"


class Protocol(Job):
    """The steps of one run, in order: :meth:`run`."""

    def run(self) -> None:
        """Run every step.

        Raises:
            BusyError: another process is at work on this run.
            StoppedError: this process was told to stop.
            UserError: a step failed; the reason is in the record too.
        """
        if self.launcher.dry_run:
            self._steps()
            return
        with self.at_work(), self.launcher.screen.system(self.title, self.path):
            self._steps()
            with self.folder.changing() as record:
                record["state"] = "done"

    def _steps(self) -> None:
        with self.alone(self.asked.work / ".data.lock"):
            self._prepare_data()
        warning = untrained_distances(self.experiment, self.asked.system, self.data / "bin")
        if warning is not None:
            self.launcher.say(f"{self.title}: warning: {warning}")
        if self.stage != "scratch":
            with self.alone(self.donor.parent / ".donor.lock"):
                self._train("donor", self.donor)
        if self.stage == "finetune":
            self._warm_start()
            self._validate_warm_start()
        if self.stage != "donor":
            self._train(self.stage, self.path)
        self._average()
        for test in self.experiment.config.data.tests:
            if self.asked.losses:
                self._generate("score-reference", test, self.path / f"losses.{test}.txt")
            self._generate("generate", test, self.path / f"generate.{test}.txt")
            self._score(test)

    def _prepare_data(self) -> None:
        """Make the data, or make sure that those given are what the configuration describes."""
        raw, wmt14 = self.asked.raw, self.settings["wmt14"]
        binarised = (self.data / "bin").is_dir()
        if self.asked.data is not None:
            if raw is not None:
                raise UsageError(
                    "--data is for data that are made, --raw for text to make them of."
                )
            # WMT14's data are made where they are wanted, if they are not there.
            if not wmt14 or ((self.data / "wmt14.json").is_file() and binarised):
                if not self.launcher.dry_run:
                    if not binarised:
                        raise UserError(f"{self.data} holds no binarised data (bin).")
                    rehearsal = "--rehearsal" in self.asked.preparation
                    check_data(self.data, self.settings, rehearsal=rehearsal)
                return
        log = self.asked.work / "data.log"
        if self.experiment.config.data.numbers is not None:
            if raw is not None:
                raise UsageError(
                    f"{self.experiment.path} makes its own corpus; --raw is for your text."
                )
            raw = self.asked.work / "numbers"
            self.command(floater("numbers", raw, *self.arguments("numbers")), log=log)
        if wmt14 and raw is None:
            words: list[Any] = ["--out", self.data, "--bpe", self.settings["bpe"]]
            words += ["--vocab", self.settings["vocab"], *self.asked.preparation]
            self.command(["bash", SCRIPTS / "prepare_wmt14.sh", wmt14, *words], log=log)
        elif raw is not None:
            words = [raw, self.data, *self.arguments("prepare")]
            self.command(["bash", SCRIPTS / "prepare_text.sh", *words], log=log)
        elif not binarised:
            raise UsageError(
                f"{self.experiment.path} is for your text: pass its folder with --raw."
            )

    def _train(self, stage: str, path: Path) -> None:
        """Train until fairseq is done; go on from the last whole checkpoint."""
        folder, words = RunFolder(path), self.arguments(stage)
        name = self.title if path == self.path else path.name
        command = torchrun(path.name, self.asked.machines, self.asked.launch, self.asked.rendezvous)
        command += python("fairseq_cli.train", *words)
        if self.launcher.dry_run:
            self.command(command)
            return
        path.mkdir(parents=True, exist_ok=True)
        folder.check_same(stage, words, self.settings["configured_tokens"])
        if folder.read().get("trained"):
            self.launcher.say(f"{name}: trained already")
            return
        self.launcher.say(f"{name}: {folder.resume(self.asked.machines.world)}")
        self._begin(stage, folder, words)
        self.launcher.say(
            f"{name}: training, {self.settings['tokens_per_update']} tokens an update (--update-freq "
            f"{self.settings['update_frequency']}, {self.settings['processes']}); log in {path / 'train.log'}"
        )
        self._watch(command, name, path, words)
        self._check_same_disk()
        with folder.changing() as record:
            record["trained"] = True

    def _begin(self, stage: str, folder: RunFolder, words: list[str]) -> None:
        """Note what a training is begun, or gone on, with."""
        with folder.changing() as record:
            record["arguments"][stage] = words
            record["tokens"][stage] = self.settings["configured_tokens"]
            record["processes"] = self.asked.machines.world
            # The settings of a run that trains on are not the donor's.
            if folder.path == self.path:
                record["settings"] = self.settings
        # Left by an earlier stop: a failure before the first update must not be taken for one.
        (folder.path / "checkpoints" / "stopped").unlink(missing_ok=True)

    def _watch(self, command: list[Any], name: str, path: Path, words: list[str]) -> None:
        """Run a training with its progress on the screen."""
        line = TrainingLine(self.launcher.screen, name, words)
        failure = None
        try:
            self.command(command, name=name, log=path / "train.log", line=line)
        except CommandError as error:
            failure = error
        finally:
            line.close()
        # First: torchrun fails where its processes were told to stop, and did so well.
        if (path / "checkpoints" / "stopped").is_file():
            self.launcher.say(f"{name}: told to stop, and saved; run the same command to go on.")
            raise StoppedError
        if failure is not None:
            raise failure

    def _check_same_disk(self) -> None:
        """Notice a lost mount: fairseq makes its folder anew, the lock is on the disk that went."""
        with suppress(OSError):
            if os.path.samestat((self.path / ".lock").stat(), os.fstat(self.locks[0])):
                return
        raise UserError(
            f"{self.path} is not the folder it was when the training began: was its disk lost? Mount it "
            "and run this again."
        )

    def _warm_start(self) -> None:
        """Start the system from the donor's best checkpoint."""
        result = self.path / "warm_start.json"
        if result.is_file():
            return
        words = ["--force", "--json", result, *self.arguments("warm-start")]
        best = self.donor / "checkpoints" / "checkpoint_best.pt"
        self.command(floater("warm-start", best, self.path / "warm_start.pt", *words))
        self.say("warm start from the donor's best checkpoint")

    def _validate_warm_start(self) -> None:
        """Compute the validation loss before the first update."""
        result, log = self.path / "before.json", self.path / "before.log"
        if result.is_file():
            return
        words = [*self.arguments("validate"), "--path", self.path / "warm_start.pt"]
        self.command(python("fairseq_cli.validate", *words, "--valid-subset", "valid"), log=log)
        if not self.launcher.dry_run:
            found = write_validation(log, result)
            self.say(f"validation loss before the first update: {found['loss']}")

    def _average(self) -> None:
        """Average the last checkpoints."""
        result = self.path / "average.json"
        if result.is_file():
            self.folder.check_average(self.settings)
            self._keep_settings()
            return
        words = ["--inputs", self.path / "checkpoints", "--last", self.settings["average"]]
        words += ["--updates"] if self.settings["average_of"] == "updates" else []
        words += ["--output", self.path / "average.pt", "--force", "--json", result]
        self.command(floater("average", *words))
        self._keep_settings("average", "average_of")
        self.say(f"average of the last {self.settings['average']} checkpoints")

    def _keep_settings(self, *keys: str) -> None:
        """Keep the settings where none are kept, else those of ``keys``.

        What was trained with is noted when it is trained: a later look from another machine changes
        nothing.
        """
        if self.launcher.dry_run:
            return
        with self.folder.changing() as record:
            new = {key: self.settings[key] for key in keys} if record["settings"] else self.settings
            record["settings"].update(new)

    def _generate(self, stage: str, test: str, result: Path) -> None:
        """Keep fairseq-generate's output of a test set, whole or not at all."""
        words = self.arguments(stage)
        command = python("fairseq_cli.generate", *words, "--path", self.path / "average.pt")
        command.append("--gen-subset")
        if self.launcher.dry_run:
            self.command([*command, test])
            return
        self.folder.check_same(stage, words)
        if result.is_file():
            return
        with self.folder.changing() as record:
            record["arguments"][stage] = words
        command.append(self._subset(test))
        log = result.with_suffix(".log")
        write_whole(result, lambda part: self.command(command, output=part, log=log))
        self.say(result.name)

    def _subset(self, test: str) -> str:
        """Return fairseq's name of a test set (test, test1, ...), as prepare_text.sh wrote it down."""
        path = self.data / "tests.json"
        found = read_json(path)
        if test not in found:
            raise UserError(
                f"{path} knows no test set {test} (the `data: tests` of {self.experiment.path})."
            )
        return str(found[test])

    def _score(self, test: str) -> None:
        """Score a test set's translation against the raw reference."""
        result, target = self.path / f"scores.{test}.json", self.settings["target"]
        if result.is_file():
            return
        words = ["--references", self.data / "raw" / f"{test}.{target}", "--target-lang", target]
        self.command(floater("score", self.path / f"generate.{test}.txt", *words, "--json", result))
        if not self.launcher.dry_run:
            self.say(f"{test}: BLEU {read_json(result)['bleu']['score']:.2f}")
