"""Limits of sizes and configs: what is near them is computed right, or refused by a sentence."""

import dataclasses
import warnings

import pytest
import torch
import triton
from triton.runtime import interpreter

import tritemm
from tests.dispatch.choosing import A100, B200, H200, problem
from tests.harness import operands, run, rung_param, typed
from tritemm import dispatch
from tritemm.arch import gemv, limits
from tritemm.compile import asm
from tritemm.dispatch import cache, candidates
from tritemm.dispatch.request import Request, why_not
from tritemm.kernels import k14_gemv
from tritemm.kernels import pack as packing
from tritemm.problem import INTERPRETED, Problem
from tritemm.rungs import RUNGS
from tritemm.spec import Config

TOP = 2**31
#: Rungs that address their operands through pointers, and index in 64 bits where that is needed.
POINTERS = [rung for rung in RUNGS if "a_ptr" in rung.fn.arg_names]
#: Rungs whose programs share loads.
SHARING = ("cluster", "cluster_pingpong", "multicast_split_k")
DTYPES = [torch.int8, torch.float16, torch.float32, torch.float64]


def into_fp32(asked):
    """The problem with a C of fp32."""
    return dataclasses.replace(asked, c=dataclasses.replace(asked.c, dtype=torch.float32))


def expanded(M, N, K, dtype=torch.float16, device=H200, batch=()):
    """A problem of operands that are one element, and of a C that is whole."""
    one = torch.empty(1, dtype=dtype, device="meta")
    a, b = one.expand(*batch, M, K), one.expand(*batch, K, N)
    c = torch.empty(
        *batch, M, N, dtype=torch.int32 if dtype == torch.int8 else dtype, device="meta"
    )
    return Problem.of(a, b, c, device=device)


#: M, N, K with one of them near 2**31, or above.
EDGES = [
    (1, 1, TOP - 1),
    (1, 1, TOP + 999),
    (16, 24, TOP - 2**16),
    (1, TOP - 1, 1),
    (8, TOP - 8, 8),
    (1, TOP + 24, 1),
    (TOP - 8, 1, 1),
    (TOP - 64, 8, 64),
    (TOP + 24, 1, 3),
]


#: M, N, K of many tiles and few, of which some are long.
OFFERED = [
    (4096, 4096, 4096), (64, 5376, 5080), (8, 1280, 8192), (920, 136, 8904), (16, 4096, 1024),
    (1, 8, 8), (768, 768, 65536), (8192, 8192, 8192),
]  # fmt: skip


class TestSizes:
    @pytest.mark.parametrize("device", [A100, H200], ids=lambda d: d.name)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("layout", ["expanded", "NN", "NT"])
    @pytest.mark.parametrize("size", EDGES, ids=str)
    def test_auto_takes_what_indexes_in_64_bits(self, size, layout, dtype, device):
        if layout == "expanded":
            asked = expanded(*size, dtype, device)
        else:
            asked = problem(*size, layout, dtype, device)
        choice = dispatch.choose(asked)
        view = choice.config.view(asked)
        assert choice.kernel in POINTERS and choice.kernel.why_not(view) is None
        assert choice.kernel.grid(view, choice.config) < TOP
        meta = [torch.empty(1, device="meta", dtype=asked.a.dtype)] * 3
        assert choice.kernel.prepare(view, choice.config, *meta).args["WIDE"]
        if choice.config.PACK:
            plan = packing._plan(asked, choice.config.PACK)
            matrices = [getattr(asked, name) for name in choice.config.PACK]
            assert plan.args["WIDE"] == any(max(m.rows, m.cols) >= 2**30 for m in matrices)
            assert plan.grid[0] < TOP
            copied = sum(elements for elements, *_ in plan.copies.values()) * asked.itemsize
            assert copied <= candidates.LARGE_COPY

    @pytest.mark.parametrize("rung", [r for r in RUNGS if r not in POINTERS], ids=lambda r: r.name)
    @pytest.mark.parametrize("size", [(TOP - 8, 64, 64), (64, TOP - 8, 64), (64, 64, TOP - 8)])
    def test_others_refuse(self, rung, size):
        reason = rung.why_not(problem(*size, dtype=typed(rung, torch.bfloat16)))
        assert "32 bits" in reason and str(TOP - 8) in reason

    def test_small_problems_index_in_32_bits(self):
        for asked in (problem(1, 1, 2**30 - 1), problem(4096, 4096, 4096), problem(2**20, 8, 8)):
            assert not asked.long
        assert not problem(8192, 8192, 8192).wide
        assert expanded(1, 1, 2**30).long and expanded(2**30, 1, 1).wide

    def test_as_many_batches_as_a_launch_has_programs(self):
        asked = expanded(1, 1, 2, batch=(TOP - 1,))
        choice = dispatch.choose(asked)
        assert choice.kernel.grid(asked, choice.config) == TOP - 1
        crossed = [torch.empty(1, dtype=torch.float16, device="meta").expand(65536, 65536, 1, 1)]
        c = torch.empty(65536, 65536, 1, 1, dtype=torch.float16, device="meta")
        with pytest.raises(ValueError, match=r"4294967296 programs .* at most 2\*\*31 - 1"):
            dispatch.choose(Problem.of(*crossed * 2, c, device=H200))

    def test_gemv_takes_those_of_its_tiles_that_a_launch_has_programs_for(self):
        asked = expanded(1, TOP - 8, 4096, batch=(4,))
        offered = k14_gemv.KERNEL.configs(asked)
        assert k14_gemv.KERNEL.why_not(asked) is None
        assert all(config.units(asked) < TOP for config in offered)
        assert any(c.units(asked) > TOP for c in gemv._along_k(asked, 1))
        assert "programs" in k14_gemv.KERNEL.why_not(expanded(2**16, 2**16, 2**20, batch=(65,)))

    def test_tiles_of_rungs_that_walk_them_are_counted_in_32_bits(self):
        for rung in RUNGS:
            if rung not in POINTERS:
                dtype = typed(rung, torch.bfloat16)
                few, many = (
                    problem(8, 8, 128, dtype=dtype, batch=(n,)) for n in (2**30, 2**30 + 1)
                )
                assert rung.why_not(few) is None
                assert "1073741825 tiles" in rung.why_not(many)
        least = limits.LEAST_ROWS, limits.LEAST_COLUMNS, limits.LEAST_DEPTH
        for rung in (
            r for r in RUNGS if r.number >= 10 and r.limits.tile.warpgroups and r not in POINTERS
        ):
            for size in [(4096, 8, 8192), (64, 4096, 8192), (8192, 8192, 8192)]:
                for c in rung.configs(problem(*size)):
                    tile = c.BLOCK_M, c.BLOCK_N, c.BLOCK_K
                    assert all(x >= y for x, y in zip(tile, least, strict=True))

    def test_steps_that_a_program_counts(self):
        for rung in ("warp_specialized", "pingpong", "split_k", "cluster"):
            kernel = dispatch.find(rung)
            assert kernel.why_not(problem(2**17, 2**17, 2**17)) is None
            assert "a program may get" in kernel.why_not(problem(2**18, 2**18, 2**17))


@pytest.fixture
def last_program(monkeypatch):
    """Call `fn(programs)`: from then on only the last of so many programs runs."""
    builder = interpreter.interpreter_builder

    def only(programs):
        monkeypatch.setattr(builder, "set_grid_dim", lambda *_: None)
        monkeypatch.setattr(builder, "set_grid_idx", lambda *_: None)
        monkeypatch.setattr(builder, "grid_dim", (programs, 1, 1), raising=False)
        monkeypatch.setattr(builder, "grid_idx", (programs - 1, 0, 0), raising=False)

    return only


def run_last(last_program, kernel, asked, config, a, b, c, *work):
    call = kernel.prepare(asked, config, a, b, c)
    args = call.args | dict(zip(("partial_ptr", "counter_ptr"), work, strict=False))
    last_program(*call.grid)
    kernel.fn[(1,)](**args, **call.options)


@pytest.mark.skipif(not INTERPRETED, reason="runs one program of many in the interpreter")
class TestLastProgram:
    """The last program of a grid that is too long to run: an index of 32 bits would wrap there."""

    @pytest.mark.parametrize(
        "kernel", [rung for rung in POINTERS if rung.interpreted], ids=lambda kernel: kernel.name
    )
    @pytest.mark.parametrize("axis", ["M", "N"])
    @pytest.mark.parametrize("size", [TOP - 1, TOP + 24])
    def test_the_last_tile(self, last_program, kernel, axis, size):
        """All of C lies in one element here."""
        M, N = (size, 1) if axis == "M" else (1, size)
        a = torch.full((1, 1), 3.0).expand(M, 4)
        b = torch.full((1, 1), 2.0).expand(4, N)
        c = torch.full((1,), torch.nan)
        config = dataclasses.replace(kernel.interpreted, BLOCK_M=8, BLOCK_N=32, num_stages=1)
        run_last(last_program, kernel, Problem.of(a, b, c.expand(M, N)), config, a, b, c)
        assert c.item() == 24

    @pytest.mark.wide
    @pytest.mark.parametrize("layout", ["expanded", "along_n"])
    @pytest.mark.parametrize("size", [TOP - 1, TOP - 2**16, TOP + 999])
    def test_the_last_part_of_k(self, last_program, size, layout):
        steps = (2**11, 8) if layout == "along_n" else (2**16, 8)
        config = Config(1, 8, steps[0], num_stages=steps[1], SPLIT_K=2**10)
        a = torch.ones(1, 1, dtype=torch.int8).expand(1, size)
        b = torch.ones(1, 1 if layout == "expanded" else 8, dtype=torch.int8)
        b = b.expand(size, -1)
        if layout == "along_n":  # far from the beginning alone
            config = dataclasses.replace(config, SPLIT_K=2**16)
        c = torch.full((1, b.shape[1]), 7, dtype=torch.int32)
        asked = Problem.of(a, b, c)
        sums = torch.zeros(config.SPLIT_K, 8, dtype=torch.int32)
        step = steps[0] * steps[1]
        span = triton.cdiv(triton.cdiv(size, step), config.SPLIT_K) * step
        kernel = k14_gemv.KERNEL
        run_last(last_program, kernel, asked, config, a, b, c, sums, torch.zeros(1).int())
        assert sums[-1, 0] == max(0, size - (config.SPLIT_K - 1) * span)
        assert not sums[:-1].any()

    @pytest.mark.parametrize(("way", "strides"), [("copy", (0, 1)), ("gather", (0, 3))])
    def test_the_last_tile_of_a_copy(self, last_program, way, strides):
        lines = TOP - 1
        source = torch.arange(16, dtype=torch.int8)
        a = torch.empty_strided((lines, 2), strides, dtype=torch.int8, device="meta")
        asked = Problem.of(a, torch.empty(2, 1, dtype=torch.int8, device="meta"),
                           torch.empty(lines, 1, device="meta"))  # fmt: skip
        plan = packing._plan(asked, "a")
        assert plan.args["A_WAY"] == way and plan.args["WIDE"]
        target = torch.zeros(128, dtype=torch.int8)
        args = plan.args | {"a_dst_pitch": 0}  # all lines are one, as those of the source are
        last_program(*plan.grid)
        nothing = torch.zeros(1, dtype=torch.int8)
        packing.pack_kernel[(1,)](source, target, nothing, nothing, **args)
        assert target[:2].tolist() == [0, strides[1]] and not target[16:].any()


@pytest.mark.parametrize("kernel", [rung_param(kernel) for kernel in POINTERS])
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_wide_indices_are_right(kernel, layout, monkeypatch):
    """The same small problems, as if they were long."""
    monkeypatch.setattr(Problem, "long", True)
    a, b = operands(45, 61, 50, torch.float16, layout, aligned=True, batch=(2,))
    assert run(kernel, a, b) is None
    assert run(kernel, a[:, :1], b, pitch_gap=3) is None


class TestInt8:
    """Sums that may overflow: mma.sync saturates where WGMMA wraps."""

    asked = problem(70, 40, 2**17, dtype=torch.int8)

    @pytest.mark.parametrize("rung", ["tiled", "swizzled", "pipelined", "tma", "persistent"])
    @pytest.mark.parametrize(
        ("fields", "right"),
        [
            ({"BLOCK_M": 64}, True),
            ({"BLOCK_M": 32}, False),
            ({"BLOCK_M": 64, "num_warps": 2}, False),
            ({"BLOCK_M": 32, "BLOCK_N": 128, "SWAP": True}, False),
        ],
    )
    def test_what_wraps_is_taken_and_what_saturates_refused(self, rung, fields, right):
        config = Config(**({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_stages": 2} | fields))
        word = str(Request(rung, config))
        if right:
            assert dispatch.choose(self.asked, word).config == config
        else:
            with pytest.raises(ValueError, match=r"K is 131072: .*saturates.*64 rows"):
                dispatch.choose(self.asked, word)
        shorter = problem(70, 40, 2**17 - 64, dtype=torch.int8)
        assert dispatch.choose(shorter, word).config == config

    @pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.name)
    @pytest.mark.parametrize("size", [(70, 40), (1, 300), (4096, 4096), (3000, 8)])
    def test_no_rung_offers_what_saturates(self, device, size):
        asked = problem(*size, 2**17, dtype=torch.int8, device=device)
        for _, kernel, config in dispatch.ranked(asked):
            wraps = config.BLOCK_M >= 64 and config.num_warps >= 4 and device == H200
            assert wraps or kernel.name in ("simt", "gemv")

    def test_on_older_gpus_the_rungs_refuse(self):
        old = problem(70, 40, 2**17, dtype=torch.int8, device=A100)
        assert {r.name for r in RUNGS if r.why_not(old) is None} == {"simt", "gemv"}


class TestConfigs:
    """What a rung has no room for is refused; what it has room for compiles."""

    @pytest.mark.parametrize(
        ("rung", "fields", "message"),
        [
            ("simt", {"BLOCK_M": 512, "BLOCK_N": 512, "BLOCK_K": 1},
             "2048 registers per thread for sums; 128"),
            ("naive", {"BLOCK_K": 8}, "BLOCK_K is 8; the tensor core takes 16 or more"),
            ("tiled", {"BLOCK_M": 512, "num_warps": 1}, "elements of A and B per thread; 256 are"),
            ("swizzled", {"BLOCK_M": 512, "BLOCK_N": 128, "num_warps": 32}, "64 registers .*; 32"),
            ("tiled", {"BLOCK_K": 1024, "num_warps": 32, "num_stages": 1},
             "tiles of A and B don't fit"),
            ("tma", {"BLOCK_N": 4}, "fewer than 8 elements, or 16 bytes for TMA"),
            ("persistent", {"BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 8, "num_stages": 4},
             "stages and output together don't fit"),
            ("tma", {"ORDER": "grouped", "GROUP_M": 2**31}, "GROUP_M is 2147483648; groups of"),
            ("gemv", {"SPLIT_K": 256}, "SPLIT_K is 256; 128 parts are possible"),
            ("gemv", {"BLOCK_M": 16}, "BLOCK_M is 16; 8 is possible"),
            ("gemv", {"BLOCK_K": 2}, "BLOCK_K is 2; a word has 4 elements"),
            ("gemv", {"BLOCK_N": 128, "BLOCK_K": 256}, "128 words of a thread are in flight; 16"),
            ("gemv", {"BLOCK_N": 8, "num_stages": 3}, "24 words of a thread are in flight; 16"),
            ("gemv", {"BLOCK_N": 32, "BLOCK_M": 8, "num_stages": 1, "num_warps": 1},
             "128 sums per thread; 64 are possible"),
            ("warp_specialized", {"BLOCK_K": 32}, "BLOCK_K is 32; 64, 128, 256 are possible"),
            ("warp_specialized", {"BLOCK_M": 512, "BLOCK_N": 8, "num_warps": 8}, "256 is possible"),
            ("split_k", {"SPLIT_K": 129}, "SPLIT_K is 129; 128 parts are possible"),
            ("stream_k", {"SPLIT_K": 129}, "SPLIT_K is 129; 128 parts are possible"),
            ("multicast_split_k", {"SPLIT_K": 129}, "128 parts are possible"),
            ("cluster_split_k", {}, "SPLIT_K is 1; clusters of 2 to 8 programs"),
            ("cluster_split_k", {"SPLIT_K": 9}, "SPLIT_K is 9; clusters of 2 to 8 programs"),
            ("cluster_split_k", {"SPLIT_K": 2, "BLOCK_N": 100}, "multiples of 8 up to 256"),
            ("cluster_split_k", {"SPLIT_K": 2, "BLOCK_K": 96}, "multiples of 64 up to 256"),
            ("cluster_split_k", {"SPLIT_K": 2, "num_stages": 20}, "Use fewer stages"),
            ("cluster_split_k", {"SPLIT_K": 7, "BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 8},
             "use more stages"),
            ("cluster_split_k", {"SPLIT_K": 2, "BLOCK_M": 192, "num_warps": 8},
             "128 and 256 are possible with 8 warps"),
            ("async", {"BLOCK_K": 8, "num_stages": 1}, "BLOCK_K is 8; 16 is the least here"),
            ("async_stages", {"BLOCK_K": 16}, "BLOCK_K is 16; 32 is the least here"),
            ("async", {"BLOCK_N": 8, "num_stages": 1}, "BLOCK_N is 8; 16 is the least here"),
            ("async", {"BLOCK_M": 256, "BLOCK_N": 128, "num_stages": 1},
             "registers per thread for sums"),
            ("async", {"SHARED": "padded", "num_stages": 1},
             "SHARED is 'padded'; this rung has a fixed"),
            ("tiled", {"SHARED": "plain"}, "SHARED is 'plain'; this rung has a fixed"),
            ("async_stages", {"BLOCK_M": 256, "BLOCK_K": 256},
             "need 327680 bytes of shared memory"),
            ("tma", {"BLOCK_N": 96}, "BLOCK_N is 96; a power of two is possible"),
            ("tma", {"num_warps": 64}, "at most 32"),
            ("tma", {"SPLIT_K": 2}, "does not split K"),
            ("tma", {"BLOCK_M": 128, "BLOCK_N": 256, "num_stages": 5},
             "5 stages of 49152 bytes need 245760 bytes of shared memory; NVIDIA H200 has 232448"),
            ("pingpong", {"BLOCK_M": 128, "BLOCK_N": 176}, "BLOCK_N is 176; a power .*, or .*192"),
            ("pingpong", {"num_warps": 8}, "num_warps is 8; 4 is possible"),
            ("pingpong", {"BLOCK_M": 192}, "BLOCK_M is 192; a power of two is possible"),
            ("split_k", {"BLOCK_M": 32}, "BLOCK_M is 32; WGMMA takes 64 or more"),
            ("split_k", {"BLOCK_M": 256, "BLOCK_N": 128}, "256 accumulators per thread"),
            ("split_k", {"BLOCK_M": 192, "num_warps": 8}, "192 with 8 warps; .* 192 with 4 warps"),
            ("split_k", {"num_stages": 20}, "shared memory"),
            ("split_k", {"SPLIT_K": 50, "K": 512}, "SPLIT_K is 50; K = 512 has 8 steps of 64"),
            ("warp_specialized", {"BLOCK_M": 192, "BLOCK_N": 256}, "128 accumulators per thread"),
            ("warp_specialized", {"CLUSTER": 2}, "CLUSTER is 2; this rung doesn't support"),
            ("cluster", {"num_warps": 16}, "num_warps is 16; 8 or 12 for a tile are possible"),
            ("cluster", {}, "num_warps is 4; .*; cluster_pingpong has 4"),
            ("cluster", {"SPLIT_K": 2}, "does not split K; split_k, .*multicast_split_k.* can"),
            ("cluster_pingpong", {"num_warps": 8}, "num_warps is 8; 4 for a tile"),
            ("cluster_pingpong", {"BLOCK_M": 192},
             "BLOCK_M is 192; 64 and 128 are possible with 4 warps"),
            ("cluster_pingpong", {"BLOCK_N": 100},
             "BLOCK_N is 100; multiples of 8 up to 256 are possible"),
            ("cluster_pingpong", {"BLOCK_M": 128, "BLOCK_N": 208}, "multiples of 8 up to 192"),
            ("cluster_pingpong", {"BLOCK_K": 32}, "BLOCK_K is 32; 64 is possible"),
            ("cluster_pingpong", {"SPLIT_K": 2}, "SPLIT_K is 2; this rung does not split K"),
            ("cluster_pingpong", {"num_stages": 1}, "a ring needs 2 or more"),
            ("cluster_pingpong", {"BLOCK_N": 256, "num_stages": 6}, "shared memory"),
            *(("cluster_pingpong", {"CLUSTER": n}, f"CLUSTER is {n}; 2 or 4 programs can share")
              for n in (1, 3)),
            ("cluster_pingpong", {"BLOCK_N": 4, "CLUSTER": 4}, "BLOCK_N is 4; multiples of 8"),
            ("multicast_split_k", {"SPLIT_K": 9, "K": 512}, "SPLIT_K is 9; K = 512 has 8 steps"),
            ("cluster_split_k", {"SPLIT_K": 8, "K": 128}, "SPLIT_K is 8; K = 128 has 2 steps"),
            ("gemv", {"SPLIT_K": 6}, "SPLIT_K is 6; a power of two is possible"),
            ("split_k", {"PARTS": 3, "SPLIT_K": 2},
             "PARTS is 3 and SPLIT_K 2; SPLIT_K must be 1"),
            ("warp_specialized", {"PARTS": 3, "SPLIT_K": 3}, "this rung does not split K"),
            ("warp_specialized", {"PARTS": 17, "K": 4096},
             "PARTS is 17; K = 4096 has 16 times 256 elements"),
            ("warp_specialized", {"PARTS": 3, "BLOCK_M": 128, "BLOCK_N": 256, "num_warps": 8},
             "256 accumulators"),
            ("cluster", {"PARTS": 3, "BLOCK_M": 128, "BLOCK_N": 208, "num_warps": 8},
             "multiples of 8 up to 192"),
            ("cluster_split_k", {"PARTS": 4, "SPLIT_K": 4, "BLOCK_K": 192},
             "BLOCK_K is 192; PARTS begin at multiples of 256 elements"),
            ("cluster_split_k", {"PARTS": 4}, "clusters of 2 to 8 programs"),
            ("pingpong", {"PARTS": 3}, "this rung doesn't cut K into fixed parts; warp_sp"),
            ("tma", {"PARTS": 3}, "this rung doesn't cut K into fixed parts"),
            ("multicast_split_k", {}, "SPLIT_K is 1; 2 or more are possible"),
        ],
    )  # fmt: skip
    def test_limits(self, rung, fields, message):
        fields = {"K": 2**14, "CLUSTER": 2 if rung in SHARING else 1} | fields
        asked = problem(512, 512, fields.pop("K"))
        config = Config(8 if rung == "gemv" else 64, 64, 64, num_warps=4, num_stages=2)
        config = dataclasses.replace(config, **fields)
        with pytest.raises(ValueError, match=f'"{rung}" cannot run this config: .*{message}'):
            dispatch.choose(asked, str(Request(rung, config)))

    def test_a_ring_is_larger_than_the_output(self):
        """It is found where shared memory begins."""
        fields = {"num_warps": 4, "ORDER": "grouped", "CLUSTER": 2}
        asked = into_fp32(problem(512, 512, 512))
        cluster = dispatch.find("cluster_pingpong")
        few, more = (Config(64, 192, 64, num_stages=n, **fields) for n in (2, 4))
        assert why_not(cluster, asked, few) == (
            "the output takes more shared memory than the stages; use more stages"
        )
        assert why_not(cluster, asked, more) is None

    def test_grids_count_every_tile(self):
        asked, config = expanded(2**16, 2**16, 2**6, batch=(2,)), Config(1, 2, 16)
        reason = why_not(dispatch.find("pipelined"), asked, config)
        assert reason == "4294967296 programs are needed, and a launch has at most 2**31 - 1"

    @pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
    @pytest.mark.parametrize("how", ["bf16", "fp32", "int8", "fp64", "NN", "swiglu"])
    def test_what_is_offered_is_not_refused_when_it_is_named(self, rung, how):
        dtype, layout = asm.DTYPES.get(how, torch.bfloat16), how if how == "NN" else "NT"
        more = {"activation": how} if how == "swiglu" else {}
        for shape in OFFERED:
            asked = problem(*shape, layout, dtype, **more)
            if how == "bf16" and shape[0] % 16:
                asked = into_fp32(asked)
            if rung.why_not(asked) is None:
                configs = rung.configs(asked)
                assert configs
                for config in configs:
                    assert why_not(rung, asked, config) is None, config


class TestTuned:
    """A file of tuned configs is checked like what a caller names."""

    @pytest.fixture(autouse=True)
    def _own_cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TRITEMM_CACHE", str(tmp_path))
        cache.forget(), dispatch.forget()
        yield
        cache.forget(), dispatch.forget()

    def test_an_entry_that_does_not_fit_is_left_out_and_named(self):
        asked = problem(128, 256, 128)
        config = Config(128, 128, 64, num_warps=8, num_stages=5, ORDER="grouped", SPLIT_K=7)
        cache.store(H200.name, {cache.key(asked): cache.entry("split_k", config, 1e-6)})
        told = f"result for {asked} is not used: split_k, .*SPLIT_K is 7; K = 128 has 2 steps of 64"
        with pytest.warns(UserWarning, match=told):
            choice = dispatch.choose(asked)
        assert choice.why == "the least predicted time"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dispatch.choose(asked) == choice


# What only a GPU shows


@pytest.mark.gpu
@pytest.mark.large(5)
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16], ids=str)
@pytest.mark.parametrize("K", [TOP - 1, TOP - 2**16, TOP - 2**21, TOP + 999])
def test_a_dot_product_near_two_to_the_31(K, dtype):
    """One element, again and again; int8 may be copied: 4 GB."""
    a = torch.ones(1, 1, dtype=dtype, device="cuda").expand(1, K)
    b = torch.ones(1, 1, dtype=dtype, device="cuda").expand(K, 1)
    if dtype == torch.int8:
        assert tritemm.matmul(a, b).item() == (K + TOP) % 2**32 - TOP
    else:
        got = tritemm.matmul(a, b, out_dtype=torch.float32).item()
        assert abs(got - K) <= 1e-5 * K


@pytest.mark.gpu
@pytest.mark.large(5)
@pytest.mark.parametrize("kernel", ["auto", *(rung.name for rung in POINTERS)])
@pytest.mark.parametrize("axis", ["M", "N"])
def test_a_row_and_a_column_near_two_to_the_31(kernel, axis):
    """C is 4 GB, between guards."""
    size = TOP - 1 if axis == "M" else TOP + 24
    store = torch.full((size + 4096,), 77, dtype=torch.float16, device="cuda")
    out = store[2048 : 2048 + size]
    one, two = (torch.full((1, 1), x, dtype=torch.float16, device="cuda") for x in (3, 2))
    if axis == "M":
        tritemm.matmul(one.expand(size, 1), two, out=out.view(size, 1), kernel=kernel)
    else:
        tritemm.matmul(two, one.expand(1, size), out=out.view(1, size), kernel=kernel)
    assert all(bool((part == 6).all()) for part in out.split(2**28))  # whole, it takes 2 GB
    assert bool((store[:2048] == 77).all()) and bool((store[2048 + size :] == 77).all())


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["tiled", "pipelined", "tma", "persistent", "simt"])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("rows", "warps"), [(64, 4), (128, 8)])
def test_int8_sums_wrap(kernel, swap, rows, warps):
    K = 2**17 + 48
    a = torch.full((70, K), -128, dtype=torch.int8, device="cuda")
    b = torch.full((40, K), -128, dtype=torch.int8, device="cuda").mT
    config = Config(rows, 64, 64, num_warps=warps, num_stages=2, SWAP=swap)
    got = tritemm.matmul(a, b, kernel=kernel, config=config)
    assert bool((got == (128 * 128 * K + TOP) % 2**32 - TOP).all())
