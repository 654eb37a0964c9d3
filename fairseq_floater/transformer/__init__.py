"""Build models whose blocks take positions."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_floater.transformer.translation import (
        FloaterTransformerModel as FloaterTransformerModel,
    )


def __getattr__(name: str) -> Any:
    """Import the model at its first use: the names of the shapes need neither torch nor fairseq."""
    if name == "FloaterTransformerModel":
        from fairseq_floater.transformer import translation

        return translation.FloaterTransformerModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
