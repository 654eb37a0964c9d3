"""Score predictions on tasks of language understanding."""
