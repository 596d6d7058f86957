"""Answers that a learner may give first: an exercise's check must tell each from the right one.

They are called RUNG__WHAT, with the parameters of the rung's answer.
"""

from docs import exercises


def of(rung):
    return [function for name, function in globals().items() if name.rpartition("__")[0] == rung]


def answer_of(rung):
    return exercises.find(rung).answer


def async__pitch_alone(itemsize, pitch, first):
    """Forgets where the first row begins."""
    return next((width for width in (16, 8, 4) if pitch * itemsize % width == 0), 0)


def async__first_row_alone(itemsize, pitch, first):
    return next((width for width in (16, 8, 4) if first * itemsize % width == 0), 0)


def async__elements(itemsize, pitch, first):
    """Counts elements as if they were bytes."""
    return next((width for width in (16, 8, 4) if (pitch | first) % width == 0), 0)


def async_pg2s__one_buffer(steps, load, multiply):
    """The loop of `async`."""
    return steps * (load + multiply)


def async_pg2s__no_first_copy(steps, load, multiply):
    """Nothing covers the first copies, and nothing the last products."""
    return steps * max(load, multiply)


def async_pg2s__all_hidden(steps, load, multiply):
    """Right where copies don't take longer than products."""
    return load + steps * multiply


def async_pg2s_ps2r__one_set(rows, columns, bits, sets):
    return (rows * columns * bits // 32 + (rows + columns) * 8) // 32


def async_pg2s_ps2r__unpacked(rows, columns, bits, sets):
    """A register for each element."""
    return (rows * columns + sets * (rows + columns) * 16) // 32


def async_stages__waits_at_the_end(load, multiply):
    """As if copies had until the end of a step, not until its middle."""
    return 1 + -(-load // multiply)


def async_stages__rounded_down(load, multiply):
    return 2 + load // multiply


def cluster__without_multicast(BLOCK_M, BLOCK_N, programs, shared):
    """As if each program loaded its tiles alone."""
    everything = (BLOCK_M + BLOCK_N) * 64 * 2
    return everything, everything


def cluster__own_bytes(BLOCK_M, BLOCK_N, programs, shared):
    """As if a barrier counted only what its own program has asked for."""
    asked, _ = answer_of("cluster")(BLOCK_M, BLOCK_N, programs, shared)
    return asked, asked


def cluster__both(BLOCK_M, BLOCK_N, programs, shared):
    """As if A and B were shared."""
    everything = (BLOCK_M + BLOCK_N) * 64 * 2
    return everything // programs, everything


def cluster_pingpong__own_ring(cluster, clusters, consumer, turn, steps, stages):
    """As if each consumer's own steps were all that come to the ring."""
    n = turn * steps
    return cluster + (2 * turn + consumer) * clusters, n % stages, n // stages % 2


def cluster_pingpong__neighbours(cluster, clusters, consumer, turn, steps, stages):
    """As if the two had tiles beside each other."""
    n = (2 * turn + consumer) * steps
    return 2 * (cluster + turn * clusters) + consumer, n % stages, n // stages % 2


def cluster_pingpong__parity(cluster, clusters, consumer, turn, steps, stages):
    """As if the parity were that of the turn."""
    before = 2 * turn + consumer
    return cluster + before * clusters, before * steps % stages, turn % 2


def cluster_split_k__neighbours(BLOCK_M, BLOCK_N, columns, programs, rank):
    """As if each program's pieces lay beside each other."""
    pieces = BLOCK_N // columns
    first, last = pieces * rank // programs, pieces * (rank + 1) // programs
    own = [piece * columns for piece in range(first, last)]
    return own, 4 * BLOCK_M * (BLOCK_N - len(own) * columns)


def cluster_split_k__everything(BLOCK_M, BLOCK_N, columns, programs, rank):
    """As if its own pieces had to travel, too."""
    return list(range(rank * columns, BLOCK_N, programs * columns)), 4 * BLOCK_M * BLOCK_N


def cluster_split_k__narrow(BLOCK_M, BLOCK_N, columns, programs, rank):
    """As if the sums of parts were rounded to 16 bits before they are added."""
    own, sent = answer_of("cluster_split_k")(BLOCK_M, BLOCK_N, columns, programs, rank)
    return own, sent // 2


def gemv__one_word(memory, start, length, word):
    """As if rows began at a multiple of 8."""
    left = min(8, length - 8 * word)
    return memory[start // 8 * 8 + 8 * word] & ((1 << (8 * left)) - 1)


def gemv__always_two(memory, start, length, word):
    """It reads a word past the row's end."""
    first = (start + 8 * word) // 8 * 8
    both = memory[first] | memory[first + 8] << 64
    left = min(8, length - 8 * word)
    return (both >> (8 * (start % 8))) & ((1 << (8 * left)) - 1)


def gemv__with_what_follows(memory, start, length, word):
    """It keeps what stands behind the row in its last word."""
    first = start + 8 * word
    skew = first % 8
    value = memory[first - skew] >> (8 * skew)
    if skew and first - skew + 8 < start + length:
        value |= memory[first - skew + 8] << (8 * (8 - skew))
    return value & (2**64 - 1)


def gemv__asks_memory(memory, start, length, word):
    """It leaves to the memory what only the row's end can say."""
    first = (start + 8 * word) // 8 * 8
    both = memory[first] | memory.get(first + 8, 0) << 64
    left = min(8, length - 8 * word)
    return (both >> (8 * (start % 8))) & ((1 << (8 * left)) - 1)


def multicast_split_k__tiles(M, N, K, BLOCK_M, BLOCK_N, programs, room):
    """As if any two programs made a cluster, whichever tiles they have."""
    tiles = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    able = [n for n in (2, 3, 4, 6, 8) if n * tiles <= room * programs and n <= K // (8 * 64)]
    return max(able, default=1)


def multicast_split_k__always_b(M, N, K, BLOCK_M, BLOCK_N, programs, room):
    """Only one below the other."""
    clusters = -(-M // (programs * BLOCK_M)) * -(-N // BLOCK_N)
    able = [n for n in (2, 3, 4, 6, 8) if n * clusters <= room and n <= K // (8 * 64)]
    return max(able, default=1)


def multicast_split_k__short_parts(M, N, K, BLOCK_M, BLOCK_N, programs, room):
    """However short the parts become."""
    return answer_of("multicast_split_k")(M, N, 8 * 8 * 64, BLOCK_M, BLOCK_N, programs, room)


def multicast_split_k__rounded_up(M, N, K, BLOCK_M, BLOCK_N, programs, room):
    """With a part that has fewer than 8 steps."""
    return answer_of("multicast_split_k")(
        M, N, -(-K // 512) * 512, BLOCK_M, BLOCK_N, programs, room
    )


def naive__row_major(row, column):
    """As if the lanes counted the elements row by row, four each."""
    return (row * 8 + column) // 4, (row * 8 + column) % 4


def naive__sides(row, column):
    """As if a box were two rows, not two columns."""
    return row % 8 * 4 + column // 2, row // 8 + column % 2 * 2


def permuted__plain(row, chunk):
    return 4 * row + chunk


def permuted__padded(row, chunk):
    """No conflicts, but in a larger tile."""
    return 5 * row + chunk


def permuted__every_row(row, chunk):
    """Rows 0 and 4 meet: two rows fill all banks, so that the shift belongs to a pair."""
    return 4 * row + (chunk + row) % 4


def persistent__first_tile(tiles, sms, latency, store):
    """Nothing is stored while the first tile's loads are in flight."""
    return -(-tiles // sms) * min(latency, store)


def persistent__short_store(tiles, sms, latency, store):
    """A store that ends before the loads arrive hides only a part of their latency."""
    return (-(-tiles // sms) - 1) * latency


def persistent__whole_rounds(tiles, sms, latency, store):
    """A last round that is not full takes as long as a full one."""
    return (tiles / sms - 1) * min(latency, store)


def pingpong__always_hidden(tiles, multiply, store):
    """Right while a store is no longer than the other consumer's products."""
    return tiles * multiply + store


def pingpong__both_multiply(tiles, multiply, store):
    """As if there were two tensor cores."""
    return (tiles + 1) // 2 * (multiply + store)


def pingpong__longer_of_both(tiles, multiply, store):
    """As if one consumer's products and the other's store had to end together."""
    return multiply + (tiles - 1) * max(multiply, store) + store


def pipelined__one_operand(BLOCK_M, BLOCK_N, BLOCK_K, itemsize):
    """Forgets B."""
    return (232448 - 512) // (BLOCK_M * BLOCK_K * itemsize)


def pipelined__with_sums(BLOCK_M, BLOCK_N, BLOCK_K, itemsize):
    """The tile of C takes no room in the loop: its sums are in registers."""
    room = 232448 - 512 - BLOCK_M * BLOCK_N * itemsize
    return max(room // ((BLOCK_M + BLOCK_N) * BLOCK_K * itemsize), 0)


def pipelined__everything(BLOCK_M, BLOCK_N, BLOCK_K, itemsize):
    """As if the ring could take all of it."""
    return 232448 // ((BLOCK_M + BLOCK_N) * BLOCK_K * itemsize)


def pipelined__whole_memory(BLOCK_M, BLOCK_N, BLOCK_K, itemsize):
    """Of the 228 KB of an SM, of which a program can't have the last."""
    return (228 * 1024 - 512) // ((BLOCK_M + BLOCK_N) * BLOCK_K * itemsize)


def simt__once(M, N, K):
    """Each element once, as on paper."""
    return M * K + K * N


def simt__per_element(M, N, K):
    """Two for each multiplication."""
    return 2 * M * N * K


def split_k__one_round(tiles, steps, sms, cost):
    """As many as one round has room for: two rounds of short units can be shorter."""
    divisors = [parts for parts in range(1, steps + 1) if steps % parts == 0]
    return max((parts for parts in divisors if tiles * parts <= sms), default=1)


def split_k__free_sums(tiles, steps, sms, cost):
    """Without the cost, which grows with the parts while what they save shrinks."""
    divisors = [parts for parts in range(1, steps + 1) if steps % parts == 0]
    return min(divisors, key=lambda parts: -(-tiles * parts // sms) * (steps // parts))


def split_k__as_many_as_steps(tiles, steps, sms, cost):
    return steps


def split_k__one_sum_less(tiles, steps, sms, cost):
    """As if the first part's sums were not written."""
    divisors = [parts for parts in range(1, steps + 1) if steps % parts == 0]
    rounds = {parts: -(-tiles * parts // sms) for parts in divisors}
    return min(divisors, key=lambda n: rounds[n] * (steps // n) + cost * (n - 1))


def split_k__always_sums(tiles, steps, sms, cost):
    """As if one part had partial sums, too."""
    divisors = [parts for parts in range(1, steps + 1) if steps % parts == 0]
    rounds = {parts: -(-tiles * parts // sms) for parts in divisors}
    return min(divisors, key=lambda n: rounds[n] * (steps // n) + cost * n)


def stream_k__rounded_up(program, programs, tiles, steps):
    """The last programs have less to do, or nothing."""
    left = tiles % programs * steps
    share = -(-left // programs)
    return min(program * share, left), min((program + 1) * share, left)


def stream_k__all_tiles(program, programs, tiles, steps):
    """Shares all tiles out: nearly each would be cut."""
    share, more = divmod(tiles * steps, programs)
    begin = program * share + min(program, more)
    return begin, begin + share + (program < more)


def stream_k__rest_to_the_last(program, programs, tiles, steps):
    left = tiles % programs * steps
    share = left // programs
    return program * share, left if program == programs - 1 else (program + 1) * share


def symmetric__unfolded(program, count):
    """Walks the triangle itself, row by row."""
    row = 0
    while program > row:
        program -= row + 1
        row += 1
    return row, program


def symmetric__as_if_even(program, count):
    nth, place = divmod(program, count + 1)
    row = count - 1 - nth
    return (row, place) if place <= row else (nth, place - row - 1)


def symmetric__whole(program, count):
    """All tiles of C."""
    return divmod(program, count)


def swizzled__full_groups(row, column, tiles_m, tiles_n, GROUP_M):
    """Right where GROUP_M divides tiles_m, and nowhere else."""
    group, inside = divmod(row, GROUP_M)
    return group * GROUP_M * tiles_n + column * GROUP_M + inside


def swizzled__row_major(row, column, tiles_m, tiles_n, GROUP_M):
    return row * tiles_n + column


def swizzled__column_major(row, column, tiles_m, tiles_n, GROUP_M):
    """As if all rows were one group."""
    return column * tiles_m + row


def tiled__widest(sums):
    """As many sums, but in a strip, which shares little of B."""
    columns = min(128, sums // 16)
    return min(128, sums // columns), columns


def tiled__first_that_fits(sums):
    """From the largest down: as many sums again, in a strip that shares little of A."""
    tiles = [(m, n) for m in (128, 64, 32, 16) for n in (128, 64, 32, 16)]
    return next((m, n) for m, n in tiles if m * n <= sums)


def tiled__too_large(sums):
    """Whatever the registers hold."""
    return 128, 128


def tma__linear(row, byte):
    """As the rows stand in global memory: eight rows' first chunks are in the same banks."""
    return 128 * row + byte


def tma__rotated(row, byte):
    """A sum in place of the exclusive or: free of conflicts as well, but not what WGMMA reads."""
    return 128 * row + 16 * ((byte // 16 + row) % 8) + byte % 16


def tma__by_bytes(row, byte):
    """The exclusive or with the byte's number, not the chunk's."""
    return 128 * row + (byte ^ row % 8)


def warp_specialized__same_parity(n, stages):
    """The producer waits for a consumer that waits for the producer."""
    return n % stages, n // stages % 2, n // stages % 2


def warp_specialized__parity_of_step(n, stages):
    """A barrier changes its phase once in a round, not once in a step."""
    return n % stages, n % 2, (n + 1) % 2


def warp_specialized__always_free(n, stages):
    """Right in the first round, when all stages are empty."""
    return n % stages, n // stages % 2, 1


def warp_specialized__one_stage(n, stages):
    """A ring of one stage: nothing is overwritten, and nothing overlaps."""
    return 0, n % 2, (n + 1) % 2


def warp_specialized__two_stages(n, stages):
    """Right in a ring of two."""
    return n % 2, n // 2 % 2, (n // 2 + 1) % 2
