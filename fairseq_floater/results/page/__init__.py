"""Write a comparison as one self-contained page: `floater page`."""
