"""What is private to torch and used all the same: quick ways to ask what every call asks.

A name that is not there is None, or the public function where that does as well.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def private(path: str):
    """What stands at `path` in torch._C; None if it isn't there."""
    value = torch._C
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


#: Index of a CUDA device -> handle of its current stream.
current_stream: Callable[[int], int] = private("_cuda_getCurrentRawStream") or (
    lambda index: torch.cuda.current_stream(index).cuda_stream
)
#: () -> index of the current CUDA device.
current_device: Callable[[], int] = private("_cuda_getDevice") or torch.cuda.current_device
#: () -> whether a CUDA graph is captured on the current stream.
capturing: Callable[[], bool] = (
    private("_cuda_isCurrentStreamCapturing") or torch.cuda.is_current_stream_capturing
)
#: Size, strides, type -> a tensor on the current device, as code compiled by torch makes them.
empty_strided = private("_dynamo.guards._empty_strided_cuda")
