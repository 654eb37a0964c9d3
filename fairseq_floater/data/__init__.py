"""Turn raw text into binarised data. Imports no torch."""
