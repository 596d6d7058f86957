"""What only the CUDA driver says: of a stream, of a capture, and of a thread's context."""

from __future__ import annotations

import ctypes
import functools


def capture_of(stream: int) -> int:
    """The number of the capture that `stream`, a handle, takes part in; 0 if it isn't known."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    ask = _function("cuStreamGetCaptureInfo_v2", 6)
    if ask is None or ask(stream, ctypes.byref(status), ctypes.byref(number), None, None, None):
        return 0
    return number.value if status.value == 1 else 0


def number_of(stream: int) -> int:
    """The number of `stream`, which no other stream gets; its handle if that isn't known.

    Asked of a stream that is captured, it would end the capture.
    """
    number = ctypes.c_uint64()
    ask = _function("cuStreamGetId", 2)
    return stream if ask is None or ask(stream, ctypes.byref(number)) else number.value


def have_context(index: int) -> None:
    """Make device `index` known to this thread as the runtime would, if none is yet.

    A thread of autograd's can come as far as the driver's own functions, such as those that encode
    a tensor map, before anything of the runtime's has run in it.
    """
    context, device = ctypes.c_void_p(), ctypes.c_int()
    current = _function("cuCtxGetCurrent", 1)
    if current is None or current(ctypes.byref(context)) or context.value:
        return
    get, retain = _function("cuDeviceGet", 2), _function("cuDevicePrimaryCtxRetain", 2)
    get(ctypes.byref(device), index)
    if not retain(ctypes.byref(context), device.value):
        _function("cuCtxSetCurrent", 1)(context)


@functools.cache
def _function(name: str, arguments: int):
    """A function of the driver's, of so many pointers or numbers; None if it isn't there."""
    try:
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_void_p] * arguments
    return function
