"""What is run, on what, in which order. Computes no score."""
