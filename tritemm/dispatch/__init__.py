"""Problem -> kernel and config: what is chosen, from which candidates, and why."""

from ..rungs import find as find
from .candidates import best_config as best_config
from .candidates import ranked as ranked
from .cost_model.model import predict as predict
from .explain import Choice as Choice
from .selection import apart as apart
from .selection import choose as choose
from .selection import choose_whole as choose_whole
from .selection import first_choice as first_choice
from .selection import forget as forget
