"""Give some parameters a multiple of the learning rate, where the optimiser knows only one rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RescaledModule(nn.Module):
    """Let a module's direct parameters u stand for theta = lr_scale * u.

    Adam's step does not depend on the size of a gradient, so a step of u by lr is a step of theta
    by lr_scale * lr: the multiple is exact for Adam (up to its epsilon, to weight decay, and to
    gradient clipping, which sees lr_scale times the gradient). fairseq's optimisers flatten
    parameters, which rules out gradient hooks and parameter groups.

    The scale travels with the state dict, so a checkpoint loaded under another scale keeps theta.
    It is held as a Python float: a buffer would be rounded by ``.half()``.
    """

    def __init__(self, lr_scale: float = 1.0):
        super().__init__()
        if not lr_scale > 0:
            raise ValueError(f"`lr_scale` must be positive, but is {lr_scale} instead.")
        self.lr_scale = float(lr_scale)

    def scaled(self, parameter: Tensor) -> Tensor:
        """Return theta of u, without a kernel where they are the same."""
        return parameter if self.lr_scale == 1 else parameter * self.lr_scale

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "lr_scale"] = torch.tensor(self.lr_scale, dtype=torch.float64)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        state_dict = dict(state_dict)  # the caller's checkpoint stays as it is
        saved: Tensor | None = state_dict.pop(prefix + "lr_scale", None)
        if saved is not None and float(saved) != self.lr_scale:
            for name, _ in self.named_parameters(recurse=False):
                value: Tensor | None = state_dict.get(prefix + name)
                if value is not None:
                    theta = value.double() * float(saved)
                    state_dict[prefix + name] = (theta / self.lr_scale).to(value.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
