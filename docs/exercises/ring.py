"""A ring of stages and its mbarriers, followed through every order in which its roles may run.

An mbarrier counts the phases that are complete, and tells no more than whether they are even or
odd. `wait(parity)` goes on once the phase with this parity is complete: after one, three or five
phases if the parity is 0, and after none, two or four if it is 1.
"""

from collections.abc import Sequence

#: The stage of step n, and the parities that the consumer waits for at its `full` barrier and the
#: producer at its `empty` one.
Step = tuple[int, int, int]


def passes(phases: int, parity: int) -> bool:
    """Whether a wait goes on, when so many phases are complete."""
    return phases % 2 != parity


def fault(steps: Sequence[Step], stages: int) -> str | None:
    """What goes wrong in some order of events, as a sentence; None where every order is right.

    A producer that waits although less than `stages` steps are unread goes wrong, too.

    Three actors take one step after another: the producer, which waits until the stage is empty and
    asks for a copy into it; TMA, whose copies arrive in order; and the consumer, which
    waits until the stage is full and reads it. So all that has happened is how far each is.
    """
    seen, found, idle = set(), [(0, 0, 0)], None
    while found:
        state = found.pop()
        if state in seen:
            continue
        seen.add(state)
        asked, arrived, read = state
        following = []
        if asked < len(steps) and passes(_phases(steps, read, asked), steps[asked][2]):
            if wrong := _overwritten(steps, asked, read):
                return wrong
            following.append((asked + 1, arrived, read))
        elif asked < min(len(steps), read + stages):
            idle = min(idle or (asked, read), (asked, read))
        if arrived < asked:
            following.append((asked, arrived + 1, read))
        if read < len(steps) and passes(_phases(steps, arrived, read), steps[read][1]):
            if read >= arrived:
                return f"The consumer reads stage {steps[read][0]} before step {read} is there."
            following.append((asked, arrived, read + 1))
        if not following and read < len(steps):
            return (
                f"With {stages} stages both roles wait for ever: the producer at step {asked}, the "
                f"consumer at step {read}."
            )
        found += following
    if idle is None:
        return None
    return (
        f"With {stages} stages the producer waits at step {idle[0]} when {idle[1]} steps are read; "
        f"it should be able to be {stages} steps ahead."
    )


def _phases(steps: Sequence[Step], done: int, step: int) -> int:
    """How often the first `done` steps have completed the barrier that `step` waits at."""
    return sum(stage == steps[step][0] for stage, _, _ in steps[:done])


def _overwritten(steps: Sequence[Step], asked: int, read: int) -> str | None:
    """What the producer's copy for step `asked` destroys, if it does."""
    for unread in range(read, asked):
        if steps[unread][0] == steps[asked][0]:
            return (
                f"The copy of step {asked} overwrites stage {steps[asked][0]} before step {unread} "
                "is read."
            )
    return None
