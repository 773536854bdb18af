"""Layers that compute what PyTorch's do, in the memory layout in which a CPU does it faster."""

from __future__ import annotations

from torch import Tensor, nn


def channels_last(x: Tensor) -> Tensor:
    """The tensor with channels innermost in memory; nothing happens where they are already.

    Not ``contiguous(memory_format=...)``: with one channel that changes nothing, and the convolution then takes the
    slow path; and it does not work under vmap.
    """
    n, c, h, w = x.shape
    if c == 1:
        return x.reshape(n, h, w, 1).permute(0, 3, 1, 2)
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


class FastConv2d(nn.Conv2d):
    """A convolution in channels-last layout. Weights are converted on the way: they may be views of one flat vector.

    It pays with few channels (LeNet-5, COVID-Net, FireNet); with hundreds of them it does not, and before a group norm
    vmap does not know the layout in every case.
    """

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = self._conv_forward(channels_last(input), channels_last(self.weight), self.bias)
        return out


class GlobalMean(nn.Module):
    """The mean over the picture, per channel; what adaptive average pooling to 1 x 1 gives, also under vmap."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))
