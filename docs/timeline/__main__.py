import sys

from tritemm.machine.command import status_of

from .measure import main

sys.exit(status_of(main))
