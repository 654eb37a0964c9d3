"""Multiply by copies of the weights in bfloat16 or int8 when a model only translates.

fairseq prepares a model that is loaded for translating once, and refuses to train it from then on. Linear
maps of both stacks' blocks and the output projection get copies; position encoders, embeddings and norms
do not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.shared_options import BFLOAT16

# From here on oneDNN's products of int8 are faster than those of torch's default engine.
MANY_ROWS = 32


class PreparedLinear(nn.Linear):
    """Compute a linear map by a copy of its weight; input and output are float32.

    Parameters keep their names and values, and the copy is no parameter: it is in no state dict, and with
    gradients on the map multiplies by ``weight`` itself. The copy is made anew when torch loads, casts or
    moves the parameters. It does not follow a change in place.
    """

    weights: str
    multiply: Callable[[Tensor], Tensor]

    def prepare(self, weights: str | None = None) -> None:
        """Make the copy, of the kind ``weights`` or of the former one.

        Raises:
            ValueError: the kind does not go with the parameters' dtype or device.
        """
        self.weights = weights or self.weights
        parameters = self.weight.detach(), None if self.bias is None else self.bias.detach()
        self.multiply = _multiplier(*parameters, self.weights)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if torch.is_grad_enabled() else self.multiply(x)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)
        self.prepare()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.prepare()


def prepare(projection: nn.Linear, weights: str) -> None:
    """Let ``projection`` compute with ``weights``, in place."""
    projection.__class__ = PreparedLinear
    cast(PreparedLinear, projection).prepare(weights)


def _multiplier(weight: Tensor, bias: Tensor | None, weights: str) -> Callable[[Tensor], Tensor]:
    """Return what multiplies inputs [..., I] by ``weight`` [O, I] and adds ``bias``, both float32."""
    if weight.dtype != torch.float32:
        raise ValueError(
            f"`--decoding-weights` must be float32 in a model of {weight.dtype}, but is {weights} instead: "
            "its own weights have 16 bits already. Leave out --fp16."
        )
    if weights == BFLOAT16:
        return _bfloat16(weight, bias)
    if weight.device.type != "cpu":
        raise ValueError(
            "`--decoding-weights` must not be int8 on a GPU: torch multiplies by quantised weights on CPUs "
            "only. Take bfloat16, or translate with --cpu."
        )
    return _int8(weight, bias)


def _bfloat16(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    weight, bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
    ops: Any = torch.ops.mkldnn
    if weight.device.type == "cpu" and ops._is_mkldnn_bf16_supported():
        packed, linear = ops._reorder_linear_weight(weight.contiguous()), ops._linear_pointwise
        return lambda x: linear(x.bfloat16(), packed, bias, "none", [], "").float()
    return lambda x: F.linear(x.bfloat16(), weight, bias).float()


def _int8(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Quantise each output by its largest weight; inputs are quantised in the product."""
    scales = weight.abs().amax(1).clamp(min=1e-12) / 127
    zeros = torch.zeros_like(scales, dtype=torch.long)
    with warnings.catch_warnings():
        # torch will replace its quantised tensors one day, and says so.
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
        quantised = torch.quantize_per_channel(weight.contiguous(), scales, zeros, 0, torch.qint8)
    pack, backend = torch.ops.quantized.linear_prepack, torch.backends.quantized
    few, default = pack(quantised, bias), backend.engine
    try:
        backend.engine = "onednn" if "onednn" in backend.supported_engines else default
        many = pack(quantised, bias)
    finally:
        backend.engine = default
    # Without VNNI sums of products of 8 bits overflow 16 bits; of 7 they do not.
    narrow = not torch.cpu._is_vnni_supported()
    return partial(_int8_product, few, many, bias, narrow)


def _int8_product(few: Any, many: Any, bias: Tensor | None, narrow: bool, x: Tensor) -> Tensor:
    """Multiply x [T, B, I] quantised by one range.

    Tokens at one place of their sentences have much the same range. Tokens of a whole sentence may not, since
    a signal may grow along it: each is divided by its largest entry first.
    """
    largest = None
    if x.size(0) > 1:
        largest = x.abs().amax(-1, keepdim=True).clamp_(min=1e-12)
        x = x / largest
    weight = few if x.numel() < MANY_ROWS * x.size(-1) else many
    product: Tensor = torch.ops.quantized.linear_dynamic(x, weight, narrow)
    if largest is None:
        return product
    # The bias was added to the quotient: l (W x / l + b) + (1 - l) b = W x + b.
    return (
        product.mul_(largest) if bias is None else torch.lerp(bias, product, largest, out=product)
    )
