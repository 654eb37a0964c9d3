"""The errors that a user can cause; `floater` prints them, and exits with 2 for bad usage, else with 1."""


class UserError(Exception):
    """What a user can cause and mend; the message is one sentence for a person."""


class UsageError(UserError, ValueError):
    """Options or a configuration that make no sense."""
