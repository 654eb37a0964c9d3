"""Finished runs and models as tables and figures. Runs nothing."""
