"""Time stamps in PTX: a kernel that says when each of its warps begins to do what.

`stamped` adds them to the text that Triton gives to ptxas, so the rungs' sources stay as they are.
The first lane of each warp on the SM that is looked at takes a row of an array, and writes
the SM's clock there wherever the text passes from one activity to another: `EVENTS` says where.
All warps of an SM read the same clock, so their rows can be laid under each other.
"""

import re
from collections.abc import Iterator, Sequence

#: What a warp does from a stamp on; the stamp holds the place in this list.
ACTIVITIES = ("other", "load", "wait", "multiply", "store")

#: Where stamps stand: an instruction, what begins before it and what begins after it. A run of
#: instructions that begin the same activity has one stamp. A barrier ends products alone: the wait
#: for them is over where the next barrier is passed, since the clock doesn't wait for WGMMA.
BARRIER = r"bar\.sync"
Event = tuple[str, str | None, str | None]
EVENTS: tuple[Event, ...] = (
    (r"ld\.global", "load", None),
    (r"cp\.async\.c[ag]\.shared", "load", None),
    (r"cp\.async\.commit_group", None, "other"),
    (r"cp\.async\.wait_group", "wait", None),
    (r"cp\.async\.bulk\.tensor\S*\.shared::cluster\.global", "load", "other"),
    (r"mbarrier\.try_wait", "wait", "other"),
    (r"wgmma\.fence", "multiply", None),
    (r"wgmma\.wait_group", "multiply", None),
    (BARRIER, None, "other"),
    (r"cvt\.rn\.bf16x2\.f32", "store", None),
    (r"st\.global", "store", None),
    (r"cp\.async\.bulk\.commit_group", None, "other"),
    (r"ret;", "other", None),
)

#: Rows (warps) of the array, and bytes of a row; 16 bytes a stamp. The first is a heading.
ROWS, ROW_BYTES, STAMP_BYTES = 128, 1 << 15, 16
#: The array, after a line of counters; it lies on a multiple of `ROW_BYTES`.
HEAD_BYTES = 1 << 15
BYTES = HEAD_BYTES + ROWS * ROW_BYTES

#: Gives the warp's first lane a row, if it is on SM `sm`. Other threads keep a null pointer.
_PROLOGUE = """\
	.reg .b64 %stamp_at, %stamp_clock, %stamp_word;
	.reg .b32 %stamp_row, %stamp_x, %stamp_y;
	.reg .pred %stamp_here;
	mov.b64 %stamp_at, 0;
	mov.b32 %stamp_row, {rows};
	mov.u32 %stamp_x, %smid;
	mov.u32 %stamp_y, %laneid;
	setp.eq.u32 %stamp_here, %stamp_x, {sm};
	setp.eq.and.u32 %stamp_here, %stamp_y, 0, %stamp_here;
	mov.b64 %stamp_word, {array};
	@%stamp_here atom.global.add.u32 %stamp_row, [%stamp_word], 1;
	setp.lt.u32 %stamp_here, %stamp_row, {rows};
	add.u64 %stamp_word, %stamp_word, {head};
	@%stamp_here mad.wide.u32 %stamp_at, %stamp_row, {row_bytes}, %stamp_word;
	mov.u32 %stamp_x, %ctaid.x;
	mov.u32 %stamp_y, %tid.x;
	mov.b64 %stamp_word, {{%stamp_y, %stamp_x}};
	mov.u64 %stamp_clock, %clock64;
	@%stamp_here st.global.v2.b64 [%stamp_at], {{%stamp_clock, %stamp_word}};
	@%stamp_here add.u64 %stamp_at, %stamp_at, {stamp_bytes};"""

#: A stamp. A row that is full takes no more.
_STAMP = """\
	setp.ne.u64 %stamp_here, %stamp_at, 0;
	mov.u64 %stamp_clock, %clock64;
	mov.b64 %stamp_word, {activity};
	@%stamp_here st.global.v2.b64 [%stamp_at], {{%stamp_clock, %stamp_word}};
	@%stamp_here add.u64 %stamp_at, %stamp_at, {stamp_bytes};
	and.b64 %stamp_word, %stamp_at, {last_byte};
	setp.eq.u64 %stamp_here, %stamp_word, 0;
	@%stamp_here mov.b64 %stamp_at, 0;"""


#: The two stamps, at a warp's beginning and its end, that say how long it took without the others.
ENDS = EVENTS[-1:]


def stamped(ptx: str, array: int, events: Sequence[Event] = EVENTS, sm: int = 0) -> str:
    """The kernel with stamps by the warps of SM `sm`, in the array at this address.

    Raises ValueError if the kernel has no place for them.
    """
    before, entry, body = ptx.partition(".visible .entry")
    start = re.search(r"^\{\n(?:\t\.reg [^\n]*\n)+", body, re.MULTILINE)
    if not entry or not start:
        raise ValueError("the PTX has no kernel whose registers are declared first")
    prologue = _PROLOGUE.format(
        rows=ROWS, sm=sm, array=array, head=HEAD_BYTES, row_bytes=ROW_BYTES, stamp_bytes=STAMP_BYTES
    )
    lines = [before + entry + body[: start.end()] + prologue]
    now = None
    for block in _blocks(body[start.end() :]):
        first, then = _around(block, now, events)
        lines += [_stamp(first)] if first and first != now else []
        lines.append(block)
        lines += [_stamp(then)] if then else []
        now = then or first or now
    return "\n".join(lines)


def _stamp(activity: str) -> str:
    return _STAMP.format(
        activity=ACTIVITIES.index(activity), stamp_bytes=STAMP_BYTES, last_byte=ROW_BYTES - 1
    )


def _around(block: str, now: str | None, events: Sequence[Event]) -> Sequence[str | None]:
    """What begins before these lines, and what after them."""
    for pattern, *begins in events:
        if re.search(rf"(?<![\w.]){pattern}", block):
            ends_nothing = pattern == BARRIER and now != "multiply"
            return (None, None) if ends_nothing else begins
    return None, None


def _blocks(body: str) -> Iterator[str]:
    """The lines; those of an inline asm together."""
    block: list[str] = []
    for line in body.split("\n"):
        block.append(line)
        if "// begin inline asm" in block[0] and "// end inline asm" not in line:
            continue
        yield "\n".join(block)
        block = []
    if block:
        yield "\n".join(block)
