"""Measure what positions cost beside fairseq's own Transformer, in one process: `floater benchmark`."""
