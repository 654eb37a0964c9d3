"""The engines: one file, one way to solve the flow."""
