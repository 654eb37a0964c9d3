"""The one kind of error that means bad usage: `floater` exits with 2 for it, with 1 for a failure."""


class UsageError(ValueError):
    """Options or a configuration that make no sense; the message is one sentence for a person."""
