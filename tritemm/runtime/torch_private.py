"""What we use of torch's private parts: quick answers to what every call asks.

A missing name is None, or a public function if one serves as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

F = TypeVar("F", bound=Callable)


def private(path: str):
    """The object at `path` in torch._C; None if it is missing."""
    value: Any = torch._C
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


#: Classes of the tensors that represent others while torch traces.
TRACED = FakeTensor, FunctionalTensor
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


def _whether(key: str, how: str) -> Any:
    """() -> whether the dispatcher has a key included, or excluded; None: unknown."""
    ask, of = private(f"_dispatch_tls_is_dispatch_key_{how}"), private(f"DispatchKey.{key}")
    return None if None in (ask, of) else functools.partial(ask, of)


#: () -> whether the dispatcher skips autograd, as in inference mode.
below_autograd_now: Callable[[], bool] = (
    _whether("AutogradFunctionality", "excluded") or torch.is_inference_mode_enabled
)
#: () -> whether a tracer precedes the dispatcher, which has modes of its own; None: unknown.
tracing_before_dispatch: Callable[[], bool] | Any = _whether("PreDispatch", "included")
#: () -> the number of modes that see operators before the dispatcher does.
dispatch_modes: Callable[[], int] | Any = private("_len_torch_dispatch_stack")
#: () -> the innermost transform of `torch.func`, or None.
transform: Callable[[], object] | Any = private("_functorch.peek_interpreter_stack")
#: () -> whether hooks run at the call of every module.
global_hooks: Callable[[], bool] = getattr(
    torch.nn.modules.module, "_has_any_global_hook", lambda: False
)
#: () -> whether the profiler records.
profiling = private("_autograd._profiler_enabled") or (lambda: False)


def in_others_hands() -> bool:
    """Whether a mode or a transform may replace tensors by objects without memory."""
    return bool(dispatch_modes and dispatch_modes()) or in_transform()


def in_transform() -> bool:
    """Whether a transform of `torch.func` is active."""
    return transform is not None and transform() is not None


def _skip(function: Callable) -> bool:
    """Exclude `function`, called from eager code, and all that it calls from Dynamo.

    This is done once, at no cost per call. False if this version of torch doesn't support it.
    """
    names = "set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction"
    tell, strategy, action = (private(f"_dynamo.eval_frame.{name}") for name in names)
    if None in (tell, strategy, action):
        return False
    tell(function.__code__, strategy(action.SKIP, action.SKIP))
    return True


def untraced(function: F) -> F:
    """`function`, which Dynamo neither compiles nor follows, nor what it calls.

    Otherwise Dynamo would compile Python code not meant for graphs if a compiled function, after a
    graph break, reached it: through torch's dispatcher, or after Dynamo gave up on a frame.
    """
    if not _skip(function):
        return torch._disable_dynamo(function)  # type: ignore[return-value]
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def unframed(function: F) -> F:
    """`function`, which Dynamo follows when it traces a call, but never compiles on its own."""
    _skip(function)
    return function


def below_autograd(operator, keys, *args, **named):
    """`operator(...)` without autograd, with the next kernel in the dispatch `keys`."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *args, **named)


def without_gradient(operator) -> Callable:
    """The autograd rule of an operator that writes to `out`; an error names the operator."""
    name = operator._schema.name.partition("::")[2]

    def rule(keys, *args, out):
        tensors = [t for t in (*args, out) if isinstance(t, torch.Tensor)]
        # Checked only if there can be one: a graph would record the check.
        if (in_transform() or forward_ad._current_level >= 0) and has_tangent(*tensors):
            raise NotImplementedError(
                f"Trying to use forward AD with {name} that does not support it because it is an "
                "out= function"
            )
        if compute_requires_grad(*tensors):
            raise RuntimeError(
                f"{name}(): functions with out=... arguments don't support automatic "
                "differentiation, but one of the arguments requires grad."
            )
        below_autograd(operator, keys, *args, out=out)

    return rule


def onwards(operator, keys, *args) -> torch.Tensor:
    """`below_autograd` inside of `Derivatives.forward`.

    What an outer transform records or pushes forward must not be switched off here.
    """
    with torch.enable_grad(), pushing_forward():
        return below_autograd(operator, keys, *args)


_Function = torch.autograd.Function
_Base: Any = getattr(torch.autograd.function, "_SingleLevelFunction", _Function)


class Derivatives(_Base):
    """Base of an operator's derivatives: a `torch.autograd.Function` without `setup_context`.

    `apply` is for plain tensors, outside of `torch.func`, and the fastest way. `record` is for the
    autograd rule of an operator. It records for the innermost `torch.func` transform alone: the
    dispatcher, which called the rule, continues with the outer ones. There a Function would need
    `setup_context`, and would itself go through all transforms.
    """

    _compiled_autograd_key = staticmethod(_Function._compiled_autograd_key)

    def __init_subclass__(cls):
        for name in ("forward", "backward", "jvp"):  # compiled autograd alone follows these
            if name in vars(cls):
                _skip(getattr(cls, name))

    @classmethod
    def record(cls, *args):
        """`forward`'s result for these arguments, recorded."""
        with enable_single_level_autograd_function():
            return cls.apply(*args)


def primal_of(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without this level's tangent; those of outer levels stay."""
    return torch._VF._unpack_dual(tensor, level=0)[0]


def pushing_forward():
    """A block with forward mode on: torch turns it off inside `jvp`, but outer levels need it."""
    return forward_ad._set_fwd_grad_enabled(True)


def has_tangent(*tensors: torch.Tensor | None) -> bool:
    """Whether one of these tensors, if any, has a forward-mode tangent.

    Compiled code enters its level without telling `forward_ad`.
    """
    unpacked = (torch._VF._unpack_dual(t, level=0) for t in tensors if t is not None)
    return any(tangent is not None for _, tangent in unpacked)


def compute_requires_grad(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd must record what is made of these, as torch's C++ part calls it."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def differentiated(*tensors: torch.Tensor) -> bool:
    """Whether, in a backward pass, what is made of these needs a derivative of its own."""
    if torch.is_grad_enabled() or in_transform():
        return True
    return forward_ad._current_level >= 0 and has_tangent(*tensors)


def unregister(library: torch.library.Library) -> None:
    """Unregister everything from `library`; what was registered before applies again."""
    library._destroy()


_storage_uses = private("_storage_Use_Count")


def storage_of(reference) -> torch.UntypedStorage | None:
    """The storage that a `StorageWeakRef` refers to, if it still exists."""
    if reference.expired():
        return None
    return torch.UntypedStorage._new_with_weak_ptr(reference.cdata)


def storage_owners(storage: torch.UntypedStorage) -> int:
    """How many tensors have this storage, `storage` itself not counted; -1 if torch doesn't say."""
    return -1 if _storage_uses is None else _storage_uses(storage._cdata) - 1
