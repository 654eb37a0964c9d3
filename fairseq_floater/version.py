"""The one place that states the version."""

__version__ = "1.2.0"
