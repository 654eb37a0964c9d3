"""Build models whose blocks take positions."""
