"""PTX of programs on a CPU, as far as rungs that read a ring of stages need it.

Programs that run together, and the warps of each, go on in turns that are drawn at random, between
any two instructions, some more often than others. Lanes of a warp that branched apart run one after
the other, those furthest behind first.

Barriers have phases, arrivals and bytes to come; a box that TMA loads arrives at once, after a
while that is drawn too, swizzled as its descriptor says, with zeros for what lies outside. Memory
that was not written is NaN. What would be a fault is an error: addresses out of range or not
aligned, an instruction of a warp of which lanes are missing, arrivals that nobody expects, and
warps that wait for each other.

Not modelled: loads that are under way while later instructions run, when other programs see what
one wrote (they do at once), types of registers, FMA that rounds once, conflicts and time.
"""

import dataclasses
import operator
import re

import numpy as np

LANES = np.arange(32)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`operands` are names and numbers; lists of these, where there are brackets around them."""

    unless: bool
    guard: str | None
    words: list[str]
    operands: list


class Code:
    """The instructions of a kernel, where its labels are, and what its parameters are called."""

    def __init__(self, text):
        text = re.sub(r"//(?! begin inline asm).*", "", text)
        self.params = re.findall(r"^\s*\.param .*?(\w+_param_\d+)", text, re.MULTILINE)
        (body,) = re.findall(r"^\{$(.*?)^\}$", text, re.MULTILINE | re.DOTALL)
        body = re.sub(r"^\s*\.loc.*$", "", body, flags=re.MULTILINE)
        blocks = enumerate(body.split("// begin inline asm"))
        body = "\n".join(_apart(block, number) for number, block in blocks)
        self.labels, self.instructions = {}, []
        for piece in re.sub(r"([$\w]+:)\s", r"\1;", body).split(";"):
            statement = piece.strip().lstrip("{}").strip()
            if statement.endswith(":"):
                self.labels[statement[:-1]] = len(self.instructions)
            elif statement and not statement.startswith("."):
                self.instructions.append(_instruction(statement))


def _apart(block, number):
    """Labels of inline assembly are its own, and stand again in the next."""
    for label in re.findall(r"^\s*(\w+):\s", block, re.MULTILINE):
        block = re.sub(rf"\b{label}\b", f"{label}_{number}", block)
    return block


def _instruction(statement):
    parts = re.fullmatch(r"(?:@(!?)(\S+)\s+)?(\S+)\s*(.*)", statement, re.DOTALL)
    unless, guard, name, rest = parts.groups()
    operands = [
        re.findall(r"[^][{},+\s]+", each) if each[0] in "[{" else each
        for each in re.findall(r"\{[^}]*\}|\[[^]]*\]|[^,\s]+", rest)
    ]
    return Instruction(bool(unless), guard, name.split("."), operands)


class Barrier:
    """A barrier of `count` arrivals, and of the bytes that they announce."""

    def __init__(self, count):
        self.count = self.missing = count
        self.bytes = self.phase = 0

    def change(self, arrivals=0, size=0):
        self.missing -= arrivals
        self.bytes += size
        assert self.missing >= 0, "more arrivals than the barrier has"
        if self.missing == self.bytes == 0:
            self.missing = self.count
            self.phase += 1


class Program:
    """One program of a kernel: its shared memory and its warps.

    `values` has numbers for the kernel's parameters: addresses in `memory`, an array of bytes, or
    keys of `maps`, which are pairs of an operand's elements and their descriptor.
    """

    def __init__(self, code, warps, shared, values, maps, memory, random):
        self.code, self.maps, self.memory, self.random = code, maps, memory, random
        self.shared = np.full(shared, 0xFF, np.uint8)
        self.barriers, self.coming = {}, []
        self.waiting, self.meeting, self.released = set(), set(), set()
        self.warps = [Warp(self, number, values) for number in range(warps)]
        self.chance = random.choice((0.02, 0.3, 0.9))  # that a box comes

    def turn(self):
        """Let one warp go on; False if all have ended."""
        running = [warp for warp in self.warps if not warp.ended]
        if not running:
            assert not self.coming, "the program has ended before what it loads has come"
            return False
        late = all(warp.number in self.waiting for warp in running)
        assert self.coming or not late, "deadlock: all warps wait"
        if self.coming and (late or self.random.random() < self.chance):
            self.arrive(*self.coming.pop(self.random.randrange(len(self.coming))))
        (warp,) = self.random.choices(running, [warp.pace for warp in running])
        if warp.number in self.waiting:
            return True
        for _ in range(self.random.choice((1, 5, 50, 500))):
            if warp.ended or not warp.step():
                break
        return True

    def arrive(self, elements, box, corner, to, barrier):
        """Write a box to shared memory, and tell its barrier."""
        places = [np.arange(size) + at for size, at in zip(box.block_shape, corner, strict=True)]
        inside, offset = np.True_, np.int64(0)
        for place, size, stride in zip(np.ix_(*places), box.shape, box.strides, strict=True):
            inside = inside & (place >= 0) & (place < size)
            offset = offset + place * stride
        data = np.where(inside, elements[np.where(inside, offset, 0)], 0).ravel()
        pieces = box.layout.swizzle_byte_width // 16
        assert to % max(128, 128 * pieces) == 0, "a box begins at a whole pattern"
        at = to + np.arange(data.nbytes)
        at ^= (at >> 7 & max(0, pieces - 1)) << 4
        self.shared[at] = data.view(np.uint8)
        self.change(barrier, size=-data.nbytes)

    def change(self, barrier, **by):
        self.waiting.clear()
        self.barriers[barrier].change(**by)


@np.errstate(all="ignore")  # of lanes that don't count
def run_together(programs, random):
    """Until all have ended."""
    while programs:
        program = random.choice(programs)
        if not program.turn():
            programs.remove(program)


class Warp:
    """Registers of 32 lanes, all 64 bits wide, and the instruction that each lane is at."""

    def __init__(self, program, number, values):
        self.program, self.number = program, number
        self.pace = program.random.choice((1, 30))
        special = {"%tid.x": 32 * number + LANES, "%laneid": LANES, "global_smem": 0}
        self.registers = {
            name: np.broadcast_to(np.asarray(value, np.int64).view(np.uint64), 32)
            for name, value in (special | values).items()
        }
        self.at = np.zeros(32, np.int64)
        self.ended = False
        self.waited = False  # for the launch before

    def step(self):
        """Run one instruction; or return False, where the warp has to wait."""
        place = self.at.min()
        instruction = self.program.code.instructions[place]
        self.whole = self.at == place
        self.active = self.whole
        if instruction.guard:
            holds = self.read(instruction.guard, "pred") != instruction.unless
            self.active = self.active & holds
        self.at = np.where(self.whole, place + 1, self.at)
        words = instruction.words
        special = SPECIAL.get(words[0]) or SPECIAL.get(".".join(words[:2]))
        if special is None:
            self.compute(words, *instruction.operands)
            return True
        if not self.active.any() and words[0] != "bra":
            return True
        return special(self, words, *instruction.operands) is not False

    def read(self, name, kind="b64"):
        """The lanes' values of a register or of a number."""
        if name not in self.registers:
            bits = int(name[2:], 16) if name[:2] in ("0f", "0d") else int(name, 0)
            self.registers[name] = np.full(32, bits & (1 << 64) - 1, np.uint64)
        bits, dtype = self.registers[name], TYPES[kind]
        return bits != 0 if kind == "pred" else bits.astype(f"u{dtype.itemsize}").view(dtype)

    def write(self, name, values):
        """Set a register in the lanes that run; others had anything in it before."""
        bits = values.view(f"u{values.itemsize}").astype(np.uint64)
        if not self.active.all():
            bits = np.where(self.active, bits, self.registers.get(name, np.uint64(0xDEADBEEF)))
        self.registers[name] = bits

    def goes_on(self, ready):
        """Says so, and keeps it: who waits asks again until something has changed."""
        (self.program.waiting.discard if ready else self.program.waiting.add)(self.number)
        return ready

    def address(self, names):
        return sum(self.read(name) for name in names).astype(np.int64)

    def one(self, values):
        """The value of the only lane that runs."""
        (value,) = values[self.active].tolist()
        return value

    def compute(self, words, to, *sources):
        """What has a value for each lane, of the same lane's values."""
        kind, name = words[-1], words[0]
        assert "hi" not in words, words
        if name == "setp":
            first, second, *more = sources
            found = COMPARISONS[words[1]](self.read(first, kind), self.read(second, kind))
            for third in more:
                found = LOGIC[words[2]](found, self.read(third, "pred"))
        elif name == "selp":
            first, second = (self.read(each, kind) for each in sources[:2])
            found = np.where(self.read(sources[2], "pred"), first, second)
        elif name == "cvt":
            found = self.read(sources[0], kind).astype(TYPES[words[1]])
        elif "wide" in words:
            wide = kind.replace("32", "64")
            factors = [self.read(each, kind).astype(TYPES[wide]) for each in sources[:2]]
            found = VALUES[name](*factors, *(self.read(each, wide) for each in sources[2:]))
        else:
            found = VALUES[name](*(self.read(each, kind) for each in sources))
        self.write(to, np.asarray(found))


TYPES = {
    "pred": np.dtype(bool), "f32": np.dtype("f4"), "f64": np.dtype("f8"),
    **{kind + bits: np.dtype(f"{sign}{int(bits) // 8}")
       for kind, sign in (("b", "u"), ("u", "u"), ("s", "i")) for bits in ("8", "32", "64")},
}  # fmt: skip
LOGIC = {"and": operator.and_, "or": operator.or_}
COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "gt", "ge")}
VALUES = LOGIC | {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "fma": lambda a, b, c: a * b + c, "mad": lambda a, b, c: a * b + c,
    "neg": operator.neg, "xor": operator.xor, "not": operator.invert, "shl": operator.lshift,
    "shr": operator.rshift,
    "div": lambda a, b: np.trunc(a / b).astype(a.dtype), "min": np.minimum, "max": np.maximum,
    "rem": np.fmod, "popc": np.bitwise_count,
    "bfe": lambda a, first, count: a << (32 - first - count) >> (32 - count),
    "mov": lambda a: a, "cvta": lambda a: a,
}  # fmt: skip


# Instructions that do more than compute


def branch(warp, words, target):
    warp.at = np.where(warp.active, warp.program.code.labels[target], warp.at)


def end(warp, words):
    assert warp.whole.all(), "lanes end together"
    warp.ended = True


def parameter(warp, words, to, names):
    warp.write(to, warp.address(names))


def places(warp, memory, names, words, count):
    """The bytes [lanes, count, size] of so many elements side by side, for the lanes that run."""
    size = TYPES[words[-1]].itemsize
    first = warp.address(names)[warp.active]
    assert (first % (size * count) == 0).all(), "not aligned"
    assert (first >= 0).all() and (first + size * count <= memory.size).all(), "out of range"
    return first[:, None, None] + np.arange(size * count).reshape(count, size)


def globally(warp):
    """The program, for an instruction that reads or writes global memory."""
    assert warp.waited, "global memory, while the launch before may still write it"
    return warp.program


def memory_of(warp, words):
    return globally(warp).memory if words[1] == "global" else warp.program.shared


def load(warp, words, to, names):
    memory, registers = memory_of(warp, words), [to] if isinstance(to, str) else to
    found = memory[places(warp, memory, names, words, len(registers))]
    for i, register in enumerate(registers):
        values = np.zeros(32, TYPES[words[-1]])
        values[warp.active] = np.ascontiguousarray(found[:, i]).view(values.dtype)[:, 0]
        warp.write(register, values.astype("i4") if words[-1] == "s8" else values)


def store(warp, words, names, sources):
    memory, registers = memory_of(warp, words), [sources] if isinstance(sources, str) else sources
    at = places(warp, memory, names, words, len(registers))
    for i, register in enumerate(registers):
        values = warp.read(register, words[-1])[warp.active]
        memory[at[:, i]] = values[:, None].view(np.uint8)


def store_matrices(warp, words, names, sources):
    """8 rows of 16 bytes of each: zeros, by which Triton sets memory that it has allocated."""
    assert warp.active.all() and not any(warp.read(each).any() for each in sources)
    rows = warp.address(names)[: 8 * len(sources), None] + np.arange(16)
    assert not set(rows.ravel().tolist()) & set(warp.program.barriers)
    warp.program.shared[rows] = 0


def change_atomically(warp, words, to, names, source):
    memory = globally(warp).memory[warp.one(warp.address(names)) :][:4].view(np.uint32)
    before = np.full(32, memory[0])
    memory[:] = VALUES[words[-2]](memory, np.uint32(warp.one(warp.read(source))))
    warp.write(to, before)


def meet(warp, words, number):
    """bar.sync, which lets nobody go on before all are there."""
    program = warp.program
    if warp.number not in program.released:
        program.meeting.add(warp.number)
    if len(program.meeting) == len(program.warps):
        program.meeting, program.released = set(), program.meeting
        program.waiting.clear()
    there = warp.number in program.released
    program.released.discard(warp.number)
    warp.at = warp.at - (not there)
    return warp.goes_on(there)


def whole_warp(warp, words, lanes):
    assert warp.active.all(), "lanes are missing"


def elect(warp, words, to, lanes):
    whole_warp(warp, words, lanes)
    warp.write(to.split("|")[1], LANES == 0)


def initialise(warp, words, names, count):
    warp.program.barriers[warp.one(warp.address(names))] = Barrier(int(count))


def test_phase(warp, words, to, names, parity):
    """Whether the phase of that parity is over, which all lanes ask of one barrier."""
    pairs = set(zip(warp.address(names)[warp.active].tolist(),
                    warp.read(parity)[warp.active].tolist(), strict=True))  # fmt: skip
    ((barrier, odd),) = pairs
    over = warp.program.barriers[barrier].phase % 2 != odd
    warp.write(to, np.full(32, over))
    return warp.goes_on(over)


def arrive(warp, words, nothing, names, size="0"):
    """Each lane arrives; or one, which announces bytes."""
    assert warp.active.sum() == 1, "of these kernels' warps, one lane arrives"
    warp.program.change(warp.one(warp.address(names)), arrivals=1, size=int(size))


def load_box(warp, words, names, source, barrier):
    program = globally(warp)
    number, *corner = (warp.one(warp.read(name, "s32")) for name in source)
    to, barrier = (warp.one(warp.address(each)) for each in (names, barrier))
    program.coming.append((*program.maps[number], corner[::-1], to, barrier))


def multiply(warp, words, to, a, b, c):
    """m16n8k16 of fp64: A [16, 16] by rows, B [16, 8] by columns."""
    whole_warp(warp, words, None)
    assert words[3:] == ["m16n8k16", "row", "col", *["f64"] * 4], words
    group, member = LANES // 4, LANES % 4
    rows = [[group + 8 * (i % 2), member + 4 * (i // 2)] for i in range(8)]
    columns = [[member + 4 * i, group] for i in range(4)]
    sums = [[group + 8 * (i // 2), 2 * member + i % 2] for i in range(4)]
    matrices = []
    for names, at, size in ((a, rows, (16, 16)), (b, columns, (16, 8)), (c, sums, (16, 8))):
        matrix = np.zeros(size)
        for name, (row, column) in zip(names, at, strict=True):
            matrix[row, column] = warp.read(name, "f64")
        matrices.append(matrix)
    result = matrices[0] @ matrices[1] + matrices[2]
    for name, (row, column) in zip(to, sums, strict=True):
        warp.write(name, result[row, column])


def launch_before(warp, words):
    """griddepcontrol: this launch begins before the last one has ended, until a warp waits."""
    warp.waited |= words[1] == "wait"


def nothing(warp, words, *operands):
    """What orders memory, where all is in order."""


SPECIAL = {
    "bra": branch, "ret": end, "ld.param": parameter, "ld.shared": load, "ld.global": load,
    "st": store,
    "stmatrix": store_matrices, "atom": change_atomically, "bar.sync": meet, "bar.warp": whole_warp,
    "elect": elect, "mbarrier.init": initialise, "mbarrier.try_wait": test_phase,
    "mbarrier.arrive": arrive, "cp": load_box, "mma": multiply, "fence": nothing,
    "griddepcontrol": launch_before,
}  # fmt: skip
