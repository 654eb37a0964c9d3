"""`floater benchmark`: what positions cost beside fairseq's own Transformer, measured in one process."""
