"""What only the CUDA driver knows: streams and captures, a thread's context, and clusters."""

from __future__ import annotations

import contextlib
import ctypes
import functools

#: The most programs of a cluster, on any device.
MOST_PROGRAMS = 8
#: An empty kernel to ask about; devices of its target and newer load it.
_PROBE = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry probe() { ret; }\n"
#: CU_STREAM_CAPTURE_MODE_RELAXED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
#: CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION.
_RELAXED, _SHARED_BYTES, _CLUSTER = 2, 8, 4


def capture_of(stream: int) -> int:
    """The number of the capture that `stream`, a handle, takes part in; 0 if it isn't known."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    asked = stream, ctypes.byref(status), ctypes.byref(number), None, None, None
    known = _done("cuStreamGetCaptureInfo_v2", *asked) and status.value == 1
    return number.value if known else 0


def number_of(stream: int) -> int:
    """The number of `stream`, which no other stream gets; its handle if that is unknown.

    Asking for the number of a stream that is being captured would end the capture.
    """
    number = ctypes.c_uint64()
    return number.value if _done("cuStreamGetId", stream, ctypes.byref(number)) else stream


def have_context(index: int) -> None:
    """Make device `index` current in this thread as the runtime would, if none is yet.

    One of autograd's threads may call the driver's own functions, such as those that encode a
    tensor map, before any function of the runtime has run in it.
    """
    context, device = ctypes.c_void_p(), ctypes.c_int()
    if not _done("cuCtxGetCurrent", ctypes.byref(context)) or context.value:
        return
    _done("cuDeviceGet", ctypes.byref(device), index)
    if _done("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.value):
        _done("cuCtxSetCurrent", context)


def clusters_at_once(index: int, shared: int) -> tuple[int, ...]:
    """Clusters of 1, 2, ... 8 programs that fit on device `index` at once; () if unknown.

    Each program has `shared` bytes of shared memory, all that an SM has, so there is one per SM. A
    cluster is within a GPC, and the number of SMs in a GPC differs from card to card.
    """
    device, count = ctypes.c_int(), ctypes.c_int()
    context, module, function = (ctypes.c_void_p() for _ in range(3))
    counts: list[int] = []
    mode = ctypes.c_int(_RELAXED)  # a capture by this thread, or another, continues
    with contextlib.ExitStack() as undo:
        if not _done("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode)):
            return ()
        undo.callback(_done, "cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        if not (
            _done("cuDeviceGet", ctypes.byref(device), index)
            and _done("cuDevicePrimaryCtxRetain", ctypes.byref(context), device.value)
            and _done("cuCtxPushCurrent_v2", context)
        ):
            return ()
        undo.callback(_done, "cuCtxPopCurrent_v2", ctypes.byref(context))
        if not _done("cuModuleLoadData", ctypes.byref(module), _PROBE):
            return ()
        undo.callback(_done, "cuModuleUnload", module)
        if not (
            _done("cuModuleGetFunction", ctypes.byref(function), module, b"probe")
            and _done("cuFuncSetAttribute", function, _SHARED_BYTES, shared)
        ):
            return ()
        for programs in range(1, MOST_PROGRAMS + 1):
            attribute = _Attribute(_CLUSTER, 0, programs, 1, 1)
            launch = _Launch(
                programs, 1, 1, 128, 1, 1, shared, None, ctypes.addressof(attribute), 1
            )
            asked = ctypes.byref(count), function, ctypes.byref(launch)
            if not _done("cuOccupancyMaxActiveClusters", *asked):
                return ()
            counts.append(count.value)
    return tuple(counts)


#: A CUlaunchAttribute: its kind, padding, and 64 bytes of which a cluster's sizes take the first.
_Attribute = ctypes.c_uint * 18


class _Launch(ctypes.Structure):
    """A CUlaunchConfig: grid, block, bytes of shared memory, stream, attributes and their count."""

    _fields_ = [
        *((f"{what}{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


def _done(name: str, *arguments) -> bool:
    """Whether the driver has the function and it succeeds."""
    function = _function(name, len(arguments))
    return function is not None and function(*arguments) == 0


@functools.cache
def _function(name: str, arguments: int):
    """A function of the driver with that many pointers or numbers; None if it is missing."""
    try:
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_void_p] * arguments
    return function
