"""Answers that a learner may give first: an exercise's check must tell each from the right one.

Each is an edit of the solution, or several: what stands there, and what stands in its place.
"""

from collections.abc import Callable, Iterator

from docs import exercises

#: By rung: what the learner thinks, and the edits.
MISTAKES: dict[str, dict[str, dict[str, str]]] = {
    "simt": {
        "each element once, as on paper": {"programs * K * (16 + 16)": "M * K + K * N"},
        "two for each multiplication": {"programs * K * (16 + 16)": "2 * M * N * K"},
    },
    "naive": {
        "the lanes count the elements row by row, four each": {
            "row % 8 * 4 + column // 2": "(row * 8 + column) // 4",
            "row // 8 * 2 + column % 2": "(row * 8 + column) % 4",
        },
        "a box is two rows, not two columns": {
            "row // 8 * 2 + column % 2": "row // 8 + column % 2 * 2",
        },
    },
    "tiled": {
        "as many sums, but in a strip, which shares little of B": {
            "min": "max",
            "1 / tile[0] + 1 / tile[1]": "(tile[0] * tile[1], tile[1])",
        },
        "from the largest down: as many sums again, in a strip that shares little of A": {
            "min": "max",
            "1 / tile[0] + 1 / tile[1]": "tile",
        },
        "whatever the registers hold": {"if m * n <= sums": "if m == n == 128"},
    },
    "swizzled": {
        "right where GROUP_M divides tiles_m": {"min(GROUP_M, tiles_m - first)": "GROUP_M"},
        "row by row": {"first * tiles_n + column * rows + row - first": "row * tiles_n + column"},
        "as if all rows were one group": {
            "first * tiles_n + column * rows + row - first": "column * tiles_m + row",
        },
    },
    "permuted": {
        "as in memory": {"(chunk + row // 2) % 4": "chunk"},
        "no conflicts, but in a larger tile": {
            "4 * row + (chunk + row // 2) % 4": "5 * row + chunk"
        },
        "rows 0 and 4 meet: two rows fill all banks, so that the shift belongs to a pair": {
            "row // 2": "row",
        },
    },
    "async": {
        "forgets where the first row begins": {" and first * itemsize % width == 0": ""},
        "forgets the other rows": {"pitch * itemsize % width == 0 and ": ""},
        "counts elements as if they were bytes": {" * itemsize": ""},
    },
    "async_pg2s": {
        "the loop of `async`": {
            "load + (steps - 1) * max(load, multiply) + multiply": "steps * (load + multiply)",
        },
        "nothing covers the first copies, and nothing the last products": {
            "load + (steps - 1) * max(load, multiply) + multiply": "steps * max(load, multiply)",
        },
        "right where copies don't take longer than products": {"max(load, multiply)": "multiply"},
    },
    "async_pg2s_ps2r": {
        "one set": {"sets * ": ""},
        "a register for each element": {" * bits // 32": "", "16 * 16 // 32": "16"},
    },
    "async_stages": {
        "as if copies had until the end of a step, not until its middle": {"2 + ": "1 + "},
        "rounded down": {"-(-load // multiply)": "load // multiply"},
    },
    "pipelined": {
        "forgets B": {"(BLOCK_M + BLOCK_N)": "BLOCK_M"},
        "the tile of C takes no room in the loop: its sums are in registers": {
            "(232448 - 512)": "max(0, 232448 - 512 - BLOCK_M * BLOCK_N * itemsize)",
        },
        "as if the ring could take all of it": {" - 512": ""},
        "the 228 KB of an SM, of which a program can't have the last": {"232448": "228 * 1024"},
    },
    "tma": {
        "as in global memory: eight rows' first chunks are in the same banks": {
            "16 * chunk + byte % 16": "byte",
        },
        "a sum in place of the exclusive or: without conflicts, but not what WGMMA reads": {
            "byte // 16 ^ row % 8": "(byte // 16 + row) % 8",
        },
        "the exclusive or with the byte's number, not the chunk's": {
            "16 * chunk + byte % 16": "(byte ^ row % 8)",
        },
    },
    "persistent": {
        "as if something were stored while the first tile's loads are in flight": {
            "(rounds - 1)": "rounds",
        },
        "a store that ends before the loads arrive hides only a part of their latency": {
            "min(latency, store)": "latency",
        },
        "a last round that is not full takes as long as a full one": {
            "-(-tiles // sms)": "tiles / sms",
        },
    },
    "warp_specialized": {
        "the producer waits for a consumer that waits for the producer": {"(round_ + 1)": "round_"},
        "a barrier changes its phase once in a round, not once in a step": {"n // stages": "n"},
        "right in the first round, when all stages are empty": {"(round_ + 1) % 2": "1"},
        "a ring of one stage: nothing is overwritten, and nothing overlaps": {
            "n % stages": "0",
            "n // stages": "n",
        },
        "right in a ring of two": {"n % stages": "n % 2", "n // stages": "n // 2"},
    },
    "pingpong": {
        "right while a store is no longer than the other consumer's products": {
            "max(turn, free[tile % 2])": "turn",
        },
        "as if there were two tensor cores": {"max(turn, free[tile % 2])": "free[tile % 2]"},
        "as if one consumer's products and the other's store had to end together": {
            "max(free)": "multiply + (tiles - 1) * max(multiply, store) + store",
        },
    },
    "split_k": {
        "as many as one round has room for: two rounds of short units can be shorter": {
            "min(": "max(",
            " == 0)": " == 0 and tiles * parts <= sms)",
            "key=time": "default=1",
        },
        "without the cost, which grows with the parts while what they save shrinks": {
            " + (cost * parts if parts > 1 else 0)": "",
        },
        "as many as steps": {"key=time": "key=lambda parts: -parts"},
        "as if the first part's sums were not written": {
            "(cost * parts if parts > 1 else 0)": "cost * (parts - 1)",
        },
        "as if one part had partial sums, too": {" if parts > 1 else 0": ""},
    },
    "stream_k": {
        "the last programs have less to do, or nothing": {
            "share, more = divmod(left, programs)": "share = -(-left // programs)",
            "program * share + min(program, more)": "min(program * share, left)",
            "begin + share + (program < more)": "min((program + 1) * share, left)",
        },
        "shares all tiles out: nearly each would be cut": {
            "tiles % programs * steps": "tiles * steps"
        },
        "the rest to the last program": {
            "min(program, more)": "0",
            "(program < more)": "more * (program == programs - 1)",
        },
    },
    "gemv": {
        "as if rows began at a multiple of 8": {"start + 8 * word": "start // 8 * 8 + 8 * word"},
        "reads a word past the row's end": {"skew and following < start + length": "True"},
        "keeps what stands behind the row in its last word": {"(1 << (8 * left))": "2**64"},
        "leaves to the memory what only the row's end can say": {
            "skew and following < start + length": "following in memory",
        },
    },
    "cluster": {
        "as if each program loaded its tiles alone": {" // programs": ""},
        "as if a barrier counted only what its own program has asked for": {
            "asked, a + b": "asked, asked",
        },
        "as if A and B were shared": {
            'a + b // programs if shared == "b" else a // programs + b': "(a + b) // programs",
        },
    },
    "cluster_pingpong": {
        "as if each consumer's own steps were all that come to the ring": {
            "before * steps": "turn * steps",
        },
        "as if the two had tiles beside each other": {
            "cluster + before * clusters": "2 * (cluster + turn * clusters) + consumer",
        },
        "as if the parity were that of the turn": {"n // stages % 2": "turn % 2"},
    },
    "multicast_split_k": {
        "as if any two programs made a cluster, whichever tiles they have": {
            "n * clusters <= room": "n * tiles(BLOCK_M, BLOCK_N) <= room * programs",
        },
        "only one below the other": {
            "min(": "(",
            ", tiles(BLOCK_M, programs * BLOCK_N)": "",
        },
        "however short the parts become": {"K // (8 * 64)": "8"},
        "with a part that has fewer than 8 steps": {"K // (8 * 64)": "-(-K // (8 * 64))"},
    },
    "cluster_split_k": {
        "as if each program's pieces lay beside each other": {
            "rank * columns, BLOCK_N, programs * columns": "pieces * rank // programs * columns, "
            "pieces * (rank + 1) // programs * columns, columns",
            "own = ": "pieces = BLOCK_N // columns; own = ",
        },
        "as if its own pieces had to travel, too": {"BLOCK_N - len(own) * columns": "BLOCK_N"},
        "as if the sums of parts were rounded to 16 bits before they are added": {
            "4 * BLOCK_M": "2 * BLOCK_M",
        },
    },
    "symmetric": {
        "walks the triangle itself, row by row": {
            "odd = count % 2": "for row in range(count):\n"
            "        if program <= row:\n"
            "            return row, program\n"
            "        program -= row + 1",
        },
        "as if `count` were even": {"count % 2": "0"},
        "all tiles of C": {
            "nth, place = divmod(program, count + 1 - odd)": "return divmod(program, count)",
        },
    },
}


def of(rung: str) -> Iterator[Callable]:
    """The functions that make the mistakes of a rung."""
    for edits in MISTAKES[rung].values():
        text = exercises.solution(rung)
        for old, new in edits.items():
            assert old in text, f"{rung}: the solution has no {old!r}"
            text = text.replace(old, new)
        names = dict(vars(exercises.find(rung)))
        exec(text, names)
        yield names["answer"]
