"""What a kernel is asked to do: sizes, strides, types, and the limits of the device."""

from ..machine.interpreter import INTERPRETED as INTERPRETED
from .config import Config as Config
from .constraint import Constraint as Constraint
from .constraint import Need as Need
from .constraint import Tile as Tile
from .constraint import refusal as refusal
from .device import INTERPRETER as INTERPRETER
from .device import Device as Device
from .device import Unsupported as Unsupported
from .epilogue import ACTIVATIONS as ACTIVATIONS
from .epilogue import GATED as GATED
from .epilogue import PLAIN as PLAIN
from .epilogue import Activation as Activation
from .epilogue import Epilogue as Epilogue
from .epilogue import factors as factors
from .matrix import Layout as Layout
from .matrix import Matrix as Matrix
from .matrix import short_name as short_name
from .matrix import stored as stored
from .problem import ACCUMULATE as ACCUMULATE
from .problem import Problem as Problem
from .problem import kept as kept
from .tile_space import TileSpace as TileSpace
