"""Choose test sentences, and compare the translations of all systems with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple

from fairseq_floater.errors import ReportError
from fairseq_floater.evaluation.hypotheses import read_hypotheses
from fairseq_floater.evaluation.s2l.split_report import SHORT_TEST, TEST, SplitReport
from fairseq_floater.evaluation.s2l.systems import EvaluationSet
from fairseq_floater.results.page.comparison import ScoredComparison


class TextPart(NamedTuple):
    """Neighbouring words (or characters) of a hypothesis, and whether they match the reference."""

    text: str
    matches: bool


class Translation(NamedTuple):
    """A system's translation, its length in words (or characters), and its length / the reference's."""

    system: int
    parts: list[TextPart]
    length: int
    share: float


@dataclass
class Example:
    """A sentence of a group, its reference, and every system's translation.

    ``group_number`` counts the groups of the page. ``separator`` is empty if characters are compared, not
    words.
    """

    group_number: int
    group: str
    source: str
    source_length: int
    reference: str
    length: int
    separator: str
    translations: list[Translation] = field(default_factory=list)


def choose(lengths: Sequence[int], members: Sequence[int], count: int) -> list[int]:
    """Choose ``count`` of a group's sentences, from the shortest to the longest in even steps."""
    ordered = sorted(members, key=lambda i: (lengths[i], i))
    last = len(ordered) - 1
    indices = (round(i * last / max(count - 1, 1)) for i in range(count))
    return [ordered[i] for i in dict.fromkeys(indices)] if ordered else []


def compare(reference: str, hypothesis: str) -> list[TextPart]:
    """Split a hypothesis into runs of words that match the reference, in its order, and other runs.

    If the reference has no spaces, as in Chinese and Thai, the characters are compared.
    """
    separator = separator_of(reference)
    words, right = units(hypothesis, separator), units(reference, separator)
    parts, end = [], 0
    for _, start, size in SequenceMatcher(None, right, words, autojunk=False).get_matching_blocks():
        parts.append(TextPart(separator.join(words[end:start]), False))
        end = start + size
        parts.append(TextPart(separator.join(words[start:end]), True))
    return [part for part in parts if part.text]


def separator_of(reference: str) -> str:
    """Return the separator of a text's units: a space, or nothing if the text has no space."""
    return " " if len(reference.split()) > 1 else ""


def units(text: str, separator: str) -> list[str]:
    """Return the words of a text, or its characters if ``separator`` is empty."""
    return text.split() if separator else [c for c in text if not c.isspace()]


def read_examples(comparison: ScoredComparison, count: int) -> list[Example]:
    """Return ``count`` sentences of each group, translated under the first seed that all systems have.

    A system without that seed is shown under its own first seed.
    """
    numbers = {group.name: number for number, group in enumerate(comparison.groups)}
    examples = []
    for name, test in _test_sets(comparison).items():
        hypotheses = _hypotheses(comparison, name, len(test))
        lengths = [int(length) for length in test.source_tokens]
        for group in filter(numbers.__contains__, dict.fromkeys(test.bins)):
            for i in choose(lengths, [int(n) for n in test.members(group)], count):
                examples.append(_example(test, i, numbers[group], hypotheses))
    return sorted(examples, key=lambda example: example.group_number)


def _test_sets(comparison: ScoredComparison) -> dict[str, EvaluationSet]:
    """Return the test sets whose text still exists, by their name in the files of translations."""
    if comparison.is_short_to_long:
        split = comparison.folder / "split"
        if not (split / "split.json").is_file():
            return {}
        made = SplitReport.read(split).made_from["options"]
        names = [name for name in (SHORT_TEST, TEST) if (split / f"{name}.tsv").is_file()]
        return {n: EvaluationSet.read(split, n, made) for n in names}
    data = comparison.folder / "data"
    if not comparison.settings:
        return {}
    settings = comparison.settings
    made = {"src": settings["source"], "tgt": settings["target"], "bpe": settings["bpe"]}
    # Parts of a test set, by length, have no text of their own.
    return {
        group.name: EvaluationSet.read_prepared(data, group.name, made)
        for group in comparison.groups
        if (data / "raw" / f"{group.name}.{made['src']}").is_file()
    }


def _hypotheses(comparison: ScoredComparison, test: str, size: int) -> dict[int, list[str]]:
    """Return the translations of a test set that still exist, by the number of the system."""
    translations = {}
    by_seed = [system.folders for system in comparison.systems if system.folders]
    first = by_seed[0] if by_seed else {}
    common = next((seed for seed in first if all(seed in folders for folders in by_seed)), "")
    for number, system in enumerate(comparison.systems):
        folder = system.folders.get(common) or next(iter(system.folders.values()), None)
        path = folder and folder / f"generate.{test}.txt"
        if path and path.is_file():
            lines = translations[number] = read_hypotheses(path)
            if len(lines) != size:
                raise ReportError(
                    f"{path} must have {size} sentences, as the test set has, but has "
                    f"{len(lines)}: it is of another test set."
                )
    return translations


def _example(test: EvaluationSet, i: int, number: int, hypotheses: dict[int, list[str]]) -> Example:
    source, reference = test.sources[i], test.references[i]
    separator = separator_of(reference)
    size, tokens = len(units(reference, separator)), int(test.source_tokens[i])
    example = Example(number, test.bins[i], source, tokens, reference, size, separator)
    for system, lines in hypotheses.items():
        length = len(units(lines[i], separator))
        parts = compare(reference, lines[i])
        example.translations.append(Translation(system, parts, length, length / max(size, 1)))
    return example
