"""The one place that states the version."""

__version__ = "1.1.0"
