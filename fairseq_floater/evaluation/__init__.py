"""From hypotheses and references to numbers. Imports no torch."""
