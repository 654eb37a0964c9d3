"""Parameter files: read, repair, rebuild, start from, average."""
