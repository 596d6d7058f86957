"""What a kernel is asked to do: sizes, strides, types, and the limits of the device."""

from ..machine.interpreter import INTERPRETED as INTERPRETED
from .by_torch import activated as activated
from .by_torch import after as after
from .config import Config as Config
from .device import INTERPRETER as INTERPRETER
from .device import Device as Device
from .device import Unsupported as Unsupported
from .epilogue import ACTIVATIONS as ACTIVATIONS
from .epilogue import GATED as GATED
from .epilogue import PLAIN as PLAIN
from .epilogue import Activation as Activation
from .epilogue import EpilogueSpec as EpilogueSpec
from .inputs import NOTHING as NOTHING
from .inputs import EpilogueInputs as EpilogueInputs
from .inputs import result_shape as result_shape
from .inputs import span as span
from .matrix import Layout as Layout
from .matrix import Matrix as Matrix
from .matrix import short_name as short_name
from .matrix import stored as stored
from .problem import ACCUMULATE as ACCUMULATE
from .problem import Problem as Problem
from .problem import kept as kept
