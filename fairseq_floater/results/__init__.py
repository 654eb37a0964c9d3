"""Show finished runs and models as tables and figures; run nothing."""
