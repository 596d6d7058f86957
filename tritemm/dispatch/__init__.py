"""Problem -> kernel and config: what is chosen, from what, and why."""

from ..rungs import find as find
from .candidates import best_config as best_config
from .candidates import ranked as ranked
from .cost_model.model import predict as predict
from .explain import Choice as Choice
from .gated import apart as apart
from .gated import choose_gated as choose_gated
from .gated import first_choice as first_choice
from .selection import choose as choose
from .selection import forget as forget
