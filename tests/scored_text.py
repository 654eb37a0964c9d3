"""A few sentences with hypotheses, and fairseq-generate's output for them. Not a test file."""

import re

import pytest

from fairseq_floater.evaluation.lines import ScoringError

REFERENCES = [
    "Die Katze sitzt auf der Matte, und der Hund schläft.",
    "Das Berlin-Brandenburg-Projekt kostet 5.300 Euro mehr als geplant.",
    "Er sagte: „Wir kommen morgen früh mit dem E-Bike.“",
    "Der Außenminister reist heute nach Paris und morgen nach Rom.",
    "Es gibt keinen Grund zur Sorge.",
    "Die US-Regierung hat den EU-Vorschlag am Montag abgelehnt.",
]
HYPOTHESES = [
    "Die Katze sitzt auf der Matte und der Hund schläft.",
    "Das Berlin-Brandenburg-Projekt kostet 5.300 Euro mehr.",
    "Er sagte: „Wir kommen morgen mit dem E-Bike.“",
    "Der Minister reist heute nach Paris und nach Rom.",
    "",
    "Die US-Regierung hat am Montag den EU-Vorschlag abgelehnt.",
]


def generated(hypotheses, order=None, others=()):
    """Return the output of fairseq-generate; ``others`` are worse hypotheses of each sentence."""
    lines = ["2024-01-01 00:00:00 | INFO | fairseq_cli.generate | loading model(s)"]
    for i in order if order is not None else range(len(hypotheses)):
        lines += [f"S-{i}\tsource {i}", f"T-{i}\ttarget {i}"]
        for rank, text in enumerate([hypotheses[i], *others]):
            value = -0.25 - rank
            lines += [f"H-{i}\t{value}\t▁pieces ▁of {i}", f"D-{i}\t{value}\t{text}"]
            lines += [f"P-{i}\t-0.1 -0.2"]
    return "\n".join([*lines, "Generate test with beam=4: BLEU4 = 12.34, 40.0/20.0", ""])


def refused(message, function, *args, **options):
    """Check that the call fails and that its whole message matches."""
    with pytest.raises(ScoringError) as caught:
        function(*args, **options)
    assert re.fullmatch(message, str(caught.value)), str(caught.value)
