"""Make parallel text of the published WMT14 archives."""
