"""Make the quizzes' texts, questions and answers; each answer depends on the order of the words.

The set of words says nothing about the label of a GLUE task or RACE's right option: the same words
in another order have the other label. A Transformer without positions can only guess, and one with
positions learns each task in a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fairseq_floater.data.understanding.quiz_lists import Draws, rank, swapped

Words = Sequence[str]
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
# About the number of words in a paragraph of the donor's text: two paragraphs fill its 64 tokens.
REPEATED_WORDS = 30


class Pairs(NamedTuple):
    """A quiz in the form of a task of GLUE.

    Attributes:
        labels: as the task names them; the examples take them in turn.
        span: the fewest and the most words of a list.
        make: list, label and draws -> the sentence or the two sentences.
    """

    labels: tuple[str, ...]
    span: tuple[int, int]
    make: Callable[[Words, str, Draws], tuple[str, ...]]


class ListQuestion(NamedTuple):
    """A question about a list.

    Attributes:
        text: the question; RACE's has a blank (``_``) where an option belongs.
        answer: the right words, if any.
        wrong: for RACE, three more options; for SQuAD without answer, one plausible answer.
    """

    text: str
    answer: str | None
    wrong: tuple[str, ...] = ()


def _cola(numbers: Words, label: str, draws: Draws) -> tuple[str, ...]:
    """Return a rising list (acceptable), or one with two words swapped (unacceptable)."""
    rising = sorted(numbers, key=rank)
    return (" ".join(rising if label == "1" else swapped(rising, draws.places(len(numbers)))),)


def _sst2(numbers: Words, label: str, draws: Draws) -> tuple[str, ...]:
    """Return a list whose last number is larger than its first (positive), or smaller (negative)."""
    is_right = (rank(numbers[0]) < rank(numbers[-1])) == (label == "1")
    return (" ".join(numbers if is_right else swapped(numbers, (0, len(numbers) - 1))),)


def _mrpc(numbers: Words, label: str, draws: Draws) -> tuple[str, ...]:
    """Return a list twice (a paraphrase), or with the second copy reversed (no paraphrase)."""
    return " ".join(numbers), " ".join(numbers if label == "1" else reversed(numbers))


def _qqp(numbers: Words, label: str, draws: Draws) -> tuple[str, ...]:
    """Ask for a list forwards, and for the reversed (a duplicate) or the same list (none) backwards."""
    other = reversed(numbers) if label == "1" else numbers
    return f"forwards {' '.join(numbers)} ?", f"backwards {' '.join(other)} ?"


def _stsb(numbers: Words, label: str, draws: Draws) -> tuple[str, ...]:
    """Return a list in two orders; the score is the number of words that keep their places."""
    moved = sorted(draws.shuffled(range(len(numbers)))[int(float(label)) :])
    other = list(numbers)
    for place, source in zip(moved, moved[1:] + moved[:1]):
        other[place] = numbers[source]
    return " ".join(numbers), " ".join(other)


def _with_ends(numbers: Words, ends: tuple[bool, bool], draws: Draws) -> tuple[str, str]:
    """Order a list so that its ends are above or below one of its words; return the list and that word.

    Args:
        numbers: at least 3 words, or 5 if both ends are on the same side, so that the words alone do not
            tell the ends.
        ends: whether the first and the last word are above the word returned.
    """
    rising = sorted(numbers, key=rank)
    margin = 2 if ends[0] == ends[1] else 1
    middle = margin + draws.below(len(numbers) - 2 * margin)
    above, below = draws.shuffled(rising[middle + 1 :]), draws.shuffled(rising[:middle])
    first, last = (above.pop() if is_above else below.pop() for is_above in ends)
    inner = draws.shuffled([*above, rising[middle], *below])
    return " ".join([first, *inner, last]), rising[middle]


def _rte(numbers: Words, label: str, draws: Draws) -> tuple[str, ...]:
    """State that a list's last word is above another: it is (entailment), or only the first one is."""
    is_above = label == "entailment"
    text, word = _with_ends(numbers, (not is_above, is_above), draws)
    return text, f"last above {word}"


def _mnli(numbers: Words, label: str, draws: Draws) -> tuple[str, ...]:
    """State that both ends are above a word: both are (entailment), none (contradiction), one (neutral)."""
    first = draws.below(2) == 0 if label == "neutral" else label == "entailment"
    last = not first if label == "neutral" else first
    text, word = _with_ends(numbers, (first, last), draws)
    return text, f"first and last above {word}"


def _qnli(numbers: Words, label: str, draws: Draws) -> tuple[str, ...]:
    """Ask for a first word above another, of a list whose first (entailment) or last word is above it."""
    is_above = label == "entailment"
    text, word = _with_ends(numbers, (is_above, not is_above), draws)
    return f"what comes first above {word} ?", text


ENTAILMENT = ("entailment", "not_entailment")
GLUE = {
    "CoLA": Pairs(("1", "0"), (4, 7), _cola),
    "SST-2": Pairs(("1", "0"), (4, 7), _sst2),
    "MRPC": Pairs(("1", "0"), (4, 4), _mrpc),
    "QQP": Pairs(("1", "0"), (4, 4), _qqp),
    # No score of 4: if four of five words keep their places, the fifth does too.
    "STS-B": Pairs(("5.000", "3.000", "2.000", "1.000", "0.000"), (5, 5), _stsb),
    "MNLI": Pairs(("entailment", "neutral", "contradiction"), (5, 7), _mnli),
    "QNLI": Pairs(ENTAILMENT, (4, 7), _qnli),
    "RTE": Pairs(ENTAILMENT, (4, 7), _rte),
}


def race_questions(numbers: Words) -> Iterator[ListQuestion]:
    """Ask for the places of a list's two largest words, with those of its three smallest as wrong options.

    The list has at least five words. Both answers are the largest word among the options. If one question
    asked for the smallest, the two would cancel out in a model that does not read the question yet.
    """
    rising = [ORDINALS[numbers.index(word)] for word in sorted(numbers, key=rank)]
    for name, right in (("largest", rising[-1]), ("next largest", rising[-2])):
        yield ListQuestion(f"the {name} is _", right, tuple(rising[:3]))


def squad_questions(
    numbers: Words, count: int, has_unanswerable: bool, draws: Draws
) -> Iterator[ListQuestion]:
    """Ask ``count`` times for the words at one place, or from one place to another.

    Args:
        numbers: at most eight words.
        count: number of questions; each begins at another place.
        has_unanswerable: every other question asks for a place after the end.
    """
    places = draws.shuffled(range(len(numbers)))
    for number in range(count):
        if has_unanswerable and number % 2:
            beyond = len(numbers) + draws.below(len(ORDINALS) - len(numbers))
            yield ListQuestion(f"what comes {ORDINALS[beyond]} ?", None, (numbers[-1],))
            continue
        start = places[number]
        end = min(start + draws.below(3), len(numbers) - 1)
        place = ORDINALS[start] if start == end else f"{ORDINALS[start]} to {ORDINALS[end]}"
        yield ListQuestion(f"what comes {place} ?", " ".join(numbers[start : end + 1]))


def paragraphs(numbers: Words, draws: Draws) -> Iterator[str]:
    """Yield two true paragraphs about a list, for the text that a donor is trained on.

    The first paragraph repeats the list: a masked word also stands a few places before and after, so a
    small model learns within 300 updates to use positions.
    """
    yield " ".join([*numbers] * max(2, REPEATED_WORDS // len(numbers)))
    kind = draws.below(4)
    if kind == 0:
        yield f"backwards {' '.join(reversed(numbers))}"
    elif kind == 1:
        yield " ".join(sorted(numbers, key=rank))
    elif kind == 2:
        question = list(race_questions(numbers))[draws.below(2)]
        yield question.text.replace("_", str(question.answer))
    else:
        question = next(squad_questions(numbers, 1, False, draws))
        yield f"{question.text} {question.answer}"
