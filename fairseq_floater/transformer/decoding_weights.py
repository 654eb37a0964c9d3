"""Translate with copies of the weights: in a faster layout, in bfloat16 or in int8.

fairseq prepares a model that is loaded for translation, and refuses to train it afterwards. The linear
layers of all blocks and the output projection get copies. Position encoders, embeddings and norms do not.
"""

from __future__ import annotations

import timeit
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_floater.position_encoders.shared_options import BFLOAT16, FLOAT32

Product = Callable[[Tensor], Tensor]
# With this many rows or more, oneDNN multiplies int8 faster than torch's default engine does.
MANY_ROWS = 32
# float32 products are timed with the rows of a decoding step, one sentence with a beam of 4, on copies of a
# weight that together do not stay in a core's cache: a step reads every weight of the decoder once.
FEW_ROWS, TIMED_WEIGHTS = 4, 2**22
# Rows of a large output projection that are timed, so that the timing needs little memory.
MOST_OUTPUTS = 8192
# A copy must take less than this share of the time of torch's product. It costs memory, and if the choice
# differed from run to run, so would the rounding.
WORTH_A_COPY = 0.8
# Outputs and inputs of the product that shows whether this machine multiplies bfloat16 faster.
BFLOAT16_SHAPE = 2048, 512
# A call of oneDNN takes 20 microseconds. torch multiplies smaller weights in less time.
FEWEST_WEIGHTS = 2**17


class PreparedLinear(nn.Linear):
    """Linear layer that multiplies by a copy of its weight; input and output are float32.

    Parameters keep their names and values, and the copy is in no state dict. It is rebuilt when the
    parameters are replaced or changed, except by writing into ``weight.data``. With gradients on, under
    ``torch.compile`` and under autocast, the layer multiplies by ``weight`` itself.
    """

    weights: str
    multiply: Product | None
    copied: Any

    def prepare(self) -> None:
        """Make the copy.

        Raises:
            ValueError: ``weights`` does not go with the parameters' dtype or device.
        """
        self.copied = self._current()
        parameters = self.weight.detach(), None if self.bias is None else self.bias.detach()
        self.multiply = _product(*parameters, self.weights)

    def forward(self, x: Tensor) -> Tensor:
        usual = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if usual or x.dtype != self.weight.dtype:
            return super().forward(x)
        if self.copied != self._current():
            self.prepare()
        return super().forward(x) if self.multiply is None else self.multiply(x)

    def _current(self) -> list[tuple[int, int]]:
        return [
            (p.data_ptr(), 0 if p.is_inference() else p._version)
            for p in self._parameters.values()
            if p is not None
        ]


def prepare_projections(*projections: Any, weights: str = FLOAT32) -> None:
    """Make ``projections`` compute with ``weights``, in place.

    Modules that are not plain linear layers stay as they are, as does float32 that torch multiplies fast.
    """
    for projection in projections:
        if type(projection) is nn.Linear:
            projection.__class__ = PreparedLinear
            prepared = cast(PreparedLinear, projection)
            prepared.weights = weights
            prepared.prepare()
            if prepared.multiply is None:
                projection.__class__ = nn.Linear


def _product(weight: Tensor, bias: Tensor | None, weights: str) -> Product | None:
    """Return a function that multiplies inputs [..., I] by ``weight`` [O, I]; None: use torch's own."""
    if weights == FLOAT32:
        return _float32(weight, bias)
    if weight.dtype != torch.float32:
        raise ValueError(
            f"`--decoding-weights` must be float32 in a model of {weight.dtype}, but is {weights} instead: "
            "the model's own weights have 16 bits. Leave out --fp16."
        )
    if weights == BFLOAT16:
        return _bfloat16(weight, bias)
    if weight.device.type != "cpu":
        raise ValueError(
            "`--decoding-weights` must not be int8 on a GPU: torch multiplies by quantised weights on CPUs "
            "only. Use bfloat16, or translate with --cpu."
        )
    return _int8(weight, bias)


def _float32(weight: Tensor, bias: Tensor | None) -> Product | None:
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return None
    if weight.numel() < FEWEST_WEIGHTS:
        return None
    outputs, inputs = weight.shape
    faster = _packing_is_faster(torch.get_num_threads(), min(outputs, MOST_OUTPUTS), inputs)
    return _packed(weight, bias) if faster else None


@cache  # another number of threads is measured anew
def _packing_is_faster(threads: int, outputs: int, inputs: int) -> bool:
    """Measure whether a packed weight [outputs, inputs] is faster than the weight on this machine."""
    available = torch.backends.mkldnn.is_available()
    return available and _share_of_time(_packed, outputs, inputs) < WORTH_A_COPY


@cache
def _bfloat16_is_faster(threads: int) -> bool:
    """Measure whether this machine multiplies bfloat16 faster than float32; few CPUs have bfloat16."""
    return _share_of_time(_in_bfloat16, *BFLOAT16_SHAPE) < 1


def _share_of_time(copy: Callable[[Tensor, None], Product], outputs: int, inputs: int) -> float:
    """Divide the time of products with copies of weights [outputs, inputs] by that of torch's products."""
    copies = max(TIMED_WEIGHTS // (outputs * inputs), 1)
    weights = [torch.ones(outputs, inputs) for _ in range(copies)]
    x = torch.ones(FEW_ROWS, 1, inputs)

    def seconds(products: list[Product]) -> float:
        return min(timeit.repeat(lambda: [p(x) for p in products], number=1, repeat=20))

    usual = seconds([partial(F.linear, weight=weight) for weight in weights])
    return seconds([copy(weight, None) for weight in weights]) / usual


def _packed(weight: Tensor, bias: Tensor | None) -> Product:
    """Lay the weight out as oneDNN's kernels read it."""
    ops: Any = torch.ops.mkldnn
    packed, linear = ops._reorder_linear_weight(weight.contiguous()), ops._linear_pointwise.default
    return lambda x: cast(Tensor, linear(x, packed, bias, "none", [], ""))


def _bfloat16(weight: Tensor, bias: Tensor | None) -> Product:
    """Round the weights; the product rounds its inputs too, if this machine multiplies bfloat16 faster."""
    if weight.device.type != "cpu" or _bfloat16_is_faster(torch.get_num_threads()):
        return _in_bfloat16(weight, bias)
    rounded = weight.bfloat16().float()
    return _float32(rounded, bias) or partial(F.linear, weight=rounded, bias=bias)


def _in_bfloat16(weight: Tensor, bias: Tensor | None) -> Product:
    weight, bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
    if weight.device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        packed = _packed(weight, bias)
        return lambda x: packed(x.bfloat16()).float()
    return lambda x: F.linear(x.bfloat16(), weight, bias).float()


def _int8(weight: Tensor, bias: Tensor | None) -> Product:
    """Quantise the weights of each output by the largest of them; the product quantises its inputs."""
    scales = weight.abs().amax(1).clamp(min=1e-12) / 127
    zeros = torch.zeros_like(scales, dtype=torch.long)
    with warnings.catch_warnings():
        # torch warns that it will replace its quantised tensors.
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
        quantised = torch.quantize_per_channel(weight.contiguous(), scales, zeros, 0, torch.qint8)
    pack, backend = torch.ops.quantized.linear_prepack, torch.backends.quantized
    few, default = pack(quantised, bias), backend.engine
    try:
        backend.engine = "onednn" if "onednn" in backend.supported_engines else default
        many = pack(quantised, bias)
    finally:
        backend.engine = default
    # Without VNNI, sums of 8-bit products overflow 16 bits. Sums of 7-bit products do not.
    narrow = not torch.cpu._is_vnni_supported()
    return partial(_int8_product, few, many, bias, narrow)


def _int8_product(few: Any, many: Any, bias: Tensor | None, narrow: bool, x: Tensor) -> Tensor:
    """Multiply ``x`` [T, B, I] of a block, or [B, T, I] at the output, quantised with one range.

    The tokens of a block's decoding step have similar ranges. The tokens of a whole sentence may not,
    since a signal may grow along it. So each of them is divided by its largest entry first.
    """
    largest = None
    if x.size(0) > 1:
        largest = x.abs().amax(-1, keepdim=True).clamp_(min=1e-12)
        x = x / largest
    weight = few if x.numel() < MANY_ROWS * x.size(-1) else many
    product: Tensor = torch.ops.quantized.linear_dynamic.default(x, weight, narrow)
    if largest is None:
        return product
    # The bias was added to the quotient: l (W x / l + b) + (1 - l) b = W x + b.
    return (
        product.mul_(largest) if bias is None else torch.lerp(bias, product, largest, out=product)
    )
