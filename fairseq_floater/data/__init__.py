"""From raw text to binarised data. Imports no torch."""
