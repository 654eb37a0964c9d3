"""Run experiments: which systems, on which data, in which order. Computes no score."""
