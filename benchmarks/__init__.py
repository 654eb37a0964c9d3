"""Measure what positions cost beside fairseq's own Transformer: `python -m benchmarks`."""
