"""PTX for the programs of a cluster: their barriers, and loads that arrive in all of them.

Triton 3.8 supports some of this: `cluster.barrier`, `mbarrier.fence_init_release_cluster`,
`async_load(multicast=True)`. They are for the CTAs of one program (num_ctas > 1), which hold a tile
together; here each program of a cluster is one CTA with its own tile.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def asm(TEXT: gl.constexpr, operands):
    """Assembly that yields nothing; its `operands` have 32 bits and are called $1, $2, ..."""
    gl.inline_asm_elementwise(
        f"{{ {TEXT} mov.u32 $0, 0; }}", "=r" + ",r" * len(operands) + ",~{memory}", operands,
        gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def cluster_sync():
    """Wait for all threads of all programs of the cluster. It orders no memory."""
    asm("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;", ())


@gluon.jit
def barrier_init(first, COUNT: gl.constexpr, ARRIVALS: gl.constexpr, MORE: gl.constexpr,
                 FULL: gl.constexpr = 1):  # fmt: skip
    """At `first`, `COUNT` barriers for `FULL` arrivals, as many for `ARRIVALS`, and `MORE` for one.

    One thread branches around all: predicated one by one, each takes 29 ns more of the start.
    """
    asm(_init_text(COUNT, ARRIVALS, MORE, FULL), (first,))


@gluon.constexpr_function
def _init_text(count, arrivals, more, full):
    lines = [
        f"mbarrier.init.shared::cta.b64 [$1 + {8 * i}], {number};"
        for i, number in enumerate([full] * count + [arrivals] * count + [1] * more)
    ]
    return "\n".join([
        ".reg .pred other; .reg .b32 thread;",
        "mov.u32 thread, %tid.x;", "setp.ne.u32 other, thread, 0;", "@other bra ready;", *lines,
        "ready:", "fence.mbarrier_init.release.cluster;",
    ])  # fmt: skip


@gluon.jit
def barrier_wait(bar, parity, REMOTE: gl.constexpr = False):
    """Wait until the phase of that parity is complete; if `REMOTE`, others' writes are seen."""
    SCOPE: gl.constexpr = "cluster" if REMOTE else "cta"
    TEXT: gl.constexpr = f""".reg .pred done;
        again:
        mbarrier.try_wait.parity.acquire.{SCOPE}.shared::cta.b64 done, [$1], $2;
        @!done bra.uni again;"""
    asm(TEXT, (bar, parity))


@gluon.jit
def barrier_expect(bar, count):
    """One thread of the warp arrives; the phase waits for `count` bytes too."""
    asm(
        """.reg .pred one; .reg .b32 who;
        bar.warp.sync -1;
        elect.sync who|one, -1;
        @one mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;""",
        (bar, gl.to_tensor(count)),
    )


@gluon.jit
def barrier_arrive(bar, mine, PROGRAMS: gl.constexpr = 1):
    """A warp whose `mine` is set arrives at this barrier of its own program, or of all `PROGRAMS`.

    One lane arrives for each. The only order it implies: WGMMA has finished reading.
    """
    MAPA: gl.constexpr = "mapa.shared::cluster.u32 there, $1, lane;" if PROGRAMS > 1 else ""
    WHERE: gl.constexpr = "cluster.b64 _, [there]" if PROGRAMS > 1 else "cta.b64 _, [$1]"
    TEXT: gl.constexpr = f""".reg .pred mine, asked; .reg .b32 lane, there;
        mov.u32 lane, %laneid;
        setp.ne.b32 asked, $2, 0;
        setp.lt.and.u32 mine, lane, {PROGRAMS}, asked;
        {MAPA}
        @mine mbarrier.arrive.shared::{WHERE};"""
    asm(TEXT, (bar, mine.to(gl.int32)))


@gluon.jit
def barrier_arrive_copied(bar):
    """Each thread arrives once its cp.async copies have completed."""
    asm("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$1];", (bar,))


@gluon.jit
def is_first_warp():
    """Whether this warp is the first of its warpgroup."""
    warp = gl.inline_asm_elementwise(
        """{
        .reg .b32 warp;
        mov.u32 warp, %tid.x;
        shr.u32 warp, warp, 5;
        shfl.sync.idx.b32 $0, warp, 0, 31, -1;
        }""",
        "=r", [], gl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    return warp % 4 == 0


@gluon.jit
def tma_load(to, bar, slow, fast, b0, b1, MAP: gl.constexpr, BATCHED: gl.constexpr,
             PROGRAMS: gl.constexpr = 1):  # fmt: skip
    """One thread of the warp loads the box at (slow, fast) of batch (b0, b1).

    `MAP` is from `tensor_map`. The box arrives in all `PROGRAMS` of the cluster, at the same place
    of their shared memory and at their barriers; or in this program alone.
    """
    BOX: gl.constexpr = "$3, $4, $5, $6" if BATCHED else "$3, $4"
    RANK: gl.constexpr = 4 if BATCHED else 2
    HOW: gl.constexpr = ".multicast::cluster" if PROGRAMS > 1 else ""
    MASK: gl.constexpr = f", {2**PROGRAMS - 1}" if PROGRAMS > 1 else ""
    TEXT: gl.constexpr = f""".reg .pred one; .reg .b32 who; .reg .b64 map;
        mov.b64 map, {MAP};
        cvta.param.u64 map, map;
        bar.warp.sync -1;
        elect.sync who|one, -1;
        @one cp.async.bulk.tensor.{RANK}d.shared::cluster.global.mbarrier::complete_tx::bytes{HOW}
            [$1], [map, {{{BOX}}}], [$2]{MASK};"""
    if BATCHED:
        asm(TEXT, (to, bar, fast, slow, b1, b0))
    else:
        asm(TEXT, (to, bar, fast, slow))
