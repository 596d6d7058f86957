"""Which steps are a program's share?

A product has `tiles` tiles of `steps` steps of K each, and there are `programs` programs. All whole
rounds of tiles are done tile by tile, and the tiles that are left are shared out. Their steps are
numbered from 0, tile after tile. In the order of the programs, each gets a run of neighbouring
steps. Shares differ by one step at most, and the longer ones come first. Return the share of
program `program` as (begin, end), where `end` is one more than its last step. There is at least one
tile left, and there are at least as many steps left as programs. Any number of programs may share a
tile.
"""

from docs.pictures.formulas import module, shape

from . import Answer, same

#: Programs, tiles, steps of a tile.
CASES = ((8, 11, 12), (8, 3, 12), (5, 6, 7), (12, 25, 16), (6, 17, 9))


def answer(program: int, programs: int, tiles: int, steps: int) -> tuple[int, int]:
    left = tiles % programs * steps
    share, more = divmod(left, programs)
    begin = program * share + min(program, more)
    return begin, begin + share + (program < more)


def check(function: Answer) -> None:
    """Against the scheduler of the kernel, run in the place of every program."""
    own = shape(CLUSTER=1, SHARED="", BLOCK_M=1, BLOCK_N=1, BLOCK_K=1, GROUP_M=1, ORDER="linear")
    for programs, tiles, steps in CASES:
        own.SPLIT_K = programs
        for program in range(programs):
            kernel = module("stream_k", program, programs)
            work = kernel.stream_k(kernel.Scheduler(tiles, 1, steps, 1, 1, own))
            arguments = {"program": program, "programs": programs, "tiles": tiles, "steps": steps}
            same(function, (work.begin, work.end), **arguments)
