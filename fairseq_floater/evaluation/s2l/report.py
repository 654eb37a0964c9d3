"""Report scores by bin: for people (Markdown) and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_floater.evaluation.s2l.bin_scores import BinScore
from fairseq_floater.evaluation.s2l.split_report import shares
from fairseq_floater.evaluation.s2l.statistics import LEVEL
from fairseq_floater.records import markdown_table
from fairseq_floater.version import __version__

#: Suffix of a system's warm start, scored before further training.
UNTRAINED = "-before"
#: Suffix of the variant of decoding whose hypotheses are as long as their references.
TOLD_LENGTH = ".told_length"
#: In the name of a variant of decoding in windows.
WINDOWS = ".windows_"
#: If less BLEU than this is lost past the trained length, early stopping's share is noise.
LEAST_LOST_BLEU = 1.0
#: The measures that systems are scored by: title in tables, and digits.
KINDS = {
    "bleu": ("BLEU", 1),
    "exact": ("exact match", 3),
    "loss": ("loss", 2),
    "score": ("score", 3),
}
#: The group of all sentences past the trained length.
ALL = "all"


@dataclass
class S2LScores:
    """Scores of all systems by group of sentences.

    Groups are whole test sets, or the bins of a split: the trained lengths first (if given), :data:`ALL`
    last. ``split`` is the folder of the text, ``runs`` has the folders of translations by system, and
    ``files`` counts the sentences of a group by the file that they come from.
    """

    split: str
    labels: dict[str, str]  # by the name of the system
    baseline: str | None
    signature: str
    length: str
    resamples: int
    seed: int
    length_limit: tuple[float, float] | None
    sentences: dict[str, int] = field(default_factory=dict)
    mean_length: dict[str, float] = field(default_factory=dict)
    scores: dict[str, dict[str, BinScore]] = field(default_factory=dict)
    files: dict[str, dict[str, int]] = field(default_factory=dict)
    runs: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def untrained(self) -> dict[str, str]:
        """Return by system the name of its warm start, scored before further training."""
        pairs = {name: name + UNTRAINED for name in self.labels}
        return {after: before for after, before in pairs.items() if before in self.labels}

    @property
    def stopping(self) -> dict[str, float]:
        """Return by system the share of BLEU lost past the trained length that told lengths recover."""
        trained = next(iter(self.scores), "")
        if ALL not in self.scores or not trained.startswith("[1,"):
            return {}
        shares_of = {}
        for name in self.labels:
            told, within = self.scores[ALL].get(name + TOLD_LENGTH), self.scores[trained].get(name)
            if told and within:
                past = self.scores[ALL][name].bleu.value
                if (lost := within.bleu.value - past) >= LEAST_LOST_BLEU:
                    shares_of[name] = (told.bleu.value - past) / lost
        return shares_of

    @property
    def comparisons(self) -> int:
        return len(self.labels) - len(self.untrained) - 1 if self.baseline else 0

    @property
    def main_group(self) -> str:
        """Return the group that orders the systems: all sentences of a split, or the first test set."""
        return ALL if ALL in self.scores else next(iter(self.scores))

    @property
    def kinds(self) -> list[str]:
        """Return the measures that at least one system has; all have ``bleu``."""
        every = [score for by_system in self.scores.values() for score in by_system.values()]
        return [kind for kind in KINDS if any(getattr(score, kind) for score in every)]

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "systems": list(self.labels),
            "labels": self.labels,
            "runs": self.runs,
            "baseline": self.baseline,
            "signature": self.signature,
            "length": self.length,
            "resamples": self.resamples,
            "seed": self.seed,
            "length_limit": self.length_limit and dict(zip("ab", self.length_limit)),
            "bins": {
                name: {
                    "sentences": self.sentences[name],
                    "mean_source_tokens": self.mean_length[name],
                    "files": self.files.get(name, {}),
                    "systems": {name: score.to_json_dict() for name, score in scores.items()},
                }
                for name, scores in self.scores.items()
            },
            "stopping": self.stopping,
            "warnings": self.warnings,
            "version": __version__,
        }

    def format_text(self) -> str:
        """Return a table for each bin, narrow enough for a terminal; the JSON holds the rest."""
        gain = ["against (p)"] if self.comparisons else []
        heads = ["system"]
        for kind in self.kinds:
            heads += [KINDS[kind][0], *gain]
        heads += ["ratio", *(["cut off"] if self.length_limit else [])]
        tables = {
            name: [heads, *(self._cells(system, score) for system, score in scores.items())]
            for name, scores in self.scores.items()
        }
        columns = zip(*(row for rows in tables.values() for row in rows))
        widths = [max(map(len, column)) for column in columns]
        lines = self._before_and_after()
        for name, rows in tables.items():
            sentences, mean = self.sentences[name], self.mean_length[name]
            origin = f" ({shares(self.files[name])})" if name in self.files else ""
            length = f"of {mean:.1f} source tokens on average"
            head, *cells = (list(map(str.ljust, row, widths)) for row in rows)
            lines += [f"{name}: {sentences:,} sentences{origin} {length}", ""]
            lines += [*markdown_table(head, cells), ""]
        return "\n".join([*lines, *self._exact_matches(), *self._ranks(), *self._notes()])

    def _cells(self, system: str, score: BinScore) -> list[str]:
        cells = [self.labels[system]]
        for kind in self.kinds:
            mean, digits = getattr(score, kind), KINDS[kind][1]
            cells.append(mean.format(digits) if mean else "-")
            if self.comparisons:
                against = mean.gain.format(digits) if mean and mean.gain else "-"
                cells.append("" if system == self.baseline else against)
        cut_off = "-" if score.cut_off is None else f"{score.cut_off:.0%}"
        return [*cells, f"{score.length_ratio:.2f}", *([cut_off] if self.length_limit else [])]

    def _exact_matches(self) -> list[str]:
        if "exact" not in self.kinds or len(self.scores) < 2:
            return []
        main = self.scores[self.main_group].items()
        values = {name: score.exact.value for name, score in main if score.exact}
        order = sorted(values, key=lambda name: -values[name])
        return self._by_group("exact match", order, lambda s: s.exact.format(3) if s.exact else "")

    def _ranks(self) -> list[str]:
        main = self.scores[self.main_group].items()
        places = {name: score.rank.place for name, score in main if score.rank}
        if len(places) < 2:
            return []
        order = sorted(places, key=lambda name: (places[name], name))
        return self._by_group("rank by loss", order, lambda s: str(s.rank or ""))

    def _by_group(
        self, title: str, systems: Sequence[str], cell: Callable[[BinScore], str]
    ) -> list[str]:
        """Return a table of ``systems`` by group; an empty ``cell`` is shown as a dash."""
        rows = [
            [
                self.labels[name],
                *((name in g and cell(g[name])) or "-" for g in self.scores.values()),
            ]
            for name in systems
        ]
        return [*markdown_table([title, *self.scores], rows), ""]

    def _before_and_after(self) -> list[str]:
        """Return a table of warm starts' scores before and after further training; empty without any."""
        rows: list[list[str]] = []
        for after, before in self.untrained.items():
            for kind in self.kinds:
                title, digits = KINDS[kind]
                row = [self.labels[after] if kind == "bleu" else "", title]
                for by_system in self.scores.values():
                    means = (getattr(by_system.get(name), kind, None) for name in (before, after))
                    row.append(" → ".join(mean.format(digits) if mean else "-" for mean in means))
                rows.append(row)
        lines = markdown_table(["system", "", *self.scores], rows)
        return ["Before and after further training, by bin:", "", *lines, ""] if rows else []

    def _notes(self) -> list[str]:
        scores = (score for by_system in self.scores.values() for score in by_system.values())
        seeds = max(len(score.bleu.per_seed) for score in scores)
        notes = [f"Lengths are counted in {self.length}."]
        if seeds > 1:
            notes.append(f"Means over up to {seeds} training seeds, ± their standard deviation.")
        if self.baseline and self.comparisons:
            notes.append(f"against: the difference from {self.labels[self.baseline]}.")
        if self.resamples and self.comparisons:
            over = " and, for systems with several seeds, over seeds" if seeds > 1 else ""
            notes += [
                f"p is from a test over sentences{over}, corrected (Holm) for the comparisons of its column, "
                f"at most {self.comparisons}; the JSON has all p.",
                "p is two-sided: two to three times the p of sacreBLEU's paired bootstrap.",
            ]
        if self.resamples and self._ranks():
            under = ", with any one of the seeds that all systems have," if seeds > 1 else ""
            notes.append(
                f"rank: 1 is the lowest loss; in brackets, the ranks possible by chance: a test over "
                f"sentences{under} at {LEVEL:.0%} over all pairs of a column."
            )
        if self.resamples:
            notes.append(
                f"p, and the 95 % intervals in the JSON: {self.resamples} bootstrap resamples of sentences, "
                f"seed {self.seed}, the same for every system; with several seeds, of their mean."
            )
        notes.append("loss: bits per token. ratio: hypothesis / reference in BLEU's tokens.")
        if self.stopping:
            restored = (f"{self.labels[name]} {share:.0%}" for name, share in self.stopping.items())
            notes.append(
                "stopping: the share of the BLEU lost past the trained length that comes back if hypotheses "
                f"are as long as their references: {', '.join(restored)}."
            )
        if "exact" in self.kinds:
            notes.append("exact match: the share of hypotheses with the words of their reference.")
        if "score" in self.kinds:
            notes.append("score: the mean of the numbers of `--scores`.")
        if self.length_limit:
            limit = "{:g} x source + {:g}".format(*self.length_limit)
            notes.append(f"cut off: hypotheses that reached the limit of {limit}; -: not known.")
        notes.append(f"BLEU: {self.signature}")
        return notes + [f"Warning: {warning}" for warning in self.warnings]
