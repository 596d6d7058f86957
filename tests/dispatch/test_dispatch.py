"""The choice: what is considered, what is taken, on which GPU, and what a caller may ask for."""

import dataclasses
import math
import pickle
import re
import subprocess
import sys

import pytest
import torch

import tritemm
from tests.dispatch.choosing import (
    A100,
    B200,
    H100,
    H200,
    L40S,
    problem,
    put_rungs,
    refusing,
)
from tests.harness import operand
from tritemm import dispatch
from tritemm.__main__ import main
from tritemm.arch import questions
from tritemm.arch.pointers import is_wgmma
from tritemm.dispatch import candidates
from tritemm.dispatch.request import Request
from tritemm.problem import ACCUMULATE, INTERPRETED, Problem, kept
from tritemm.rungs import RUNGS

PINGPONG = "cluster_pingpong"
#: The rungs that cut K into parts.
IN_PARTS = ("split_k", "stream_k", "multicast_split_k", "cluster_split_k")


def chosen(*shape, **options):
    choice = dispatch.choose(problem(*shape, **options))
    return choice.kernel.name, choice.config


class TestSensible:
    """Choices for an H200 that anyone who knows it would make."""

    @pytest.mark.parametrize("size", [4096, 8192])
    def test_large_squares_take_the_large_tile(self, size):
        name, config = chosen(size, size, size)
        assert name not in ("gemv", "cluster_split_k", "multicast_split_k")
        assert config.BLOCK_M * config.BLOCK_N >= 128 * 192
        assert not config.SWAP and not config.PACK
        assert config.SPLIT_K == 1 or name == "stream_k"

    def test_waves_decide_the_tile(self):
        """3072 x 3072 is 2.2 waves of 128 x 256, run as 3, but 2.9 of 128 x 192 or 192 x 128."""
        config = chosen(3072, 3072, 3072)[1]
        waves = config.tiles(problem(3072, 3072, 3072)) / H200.sms
        assert waves / math.ceil(waves) > 0.95

    @pytest.mark.parametrize(
        ("shape", "swapped"),
        [
            ((16, 4096, 14336), True),
            ((8, 1280, 8192), True),
            ((64, 4096, 14336), True),
            ((4096, 16, 14336), False),
        ],
    )
    def test_few_rows_or_columns_are_split(self, shape, swapped):
        name, config = chosen(*shape)
        assert name in IN_PARTS and swapped == config.SWAP and config.SPLIT_K > 1
        assert 2 * max(8, min(shape)) > config.BLOCK_N

    def test_long_sums_are_split(self):
        name, config = chosen(64, 64, 131072)
        assert name == "split_k" and config.SPLIT_K >= 16

    @pytest.mark.parametrize(
        ("shape", "layout", "packed"),
        [((4093, 4093, 4093), layout, "ab") for layout in ("NN", "NT", "TN", "TT")]
        + [((4093, 4096, 4096), "TT", "a"), ((4096, 4093, 4096), "NN", "b")]
        + [((4093, 4093, 4096), "NT", "")],
    )
    def test_what_tma_refuses_of_large_products_is_packed(self, shape, layout, packed):
        name, config = chosen(*shape, layout=layout)
        assert name not in ("gemv", "pipelined") and packed == config.PACK

    def test_one_row_of_odd_pitch_is_for_gemv(self):
        assert chosen(1, 6144, 4095)[0] == "gemv"
        name, config = chosen(6144, 1, 4095)
        assert name == "gemv" and config.SWAP

    def test_a_column_is_stored_along_k(self):
        by_rows, by_columns = (problem(4096, 1, 4096, layout=layout) for layout in ("NN", "NT"))
        assert by_rows.layout == by_columns.layout == "NT"
        assert problem(4096, 64, 1, layout="NN").a.layout == "T"
        assert problem(1, 1, 1).layout == "NN"
        split_k = dispatch.find("split_k")
        assert min(config.BLOCK_N for config in split_k.configs(by_rows)) == 8

    @pytest.mark.parametrize(
        ("layout", "packed", "swapped"),
        [("NN", "", True), ("TT", "", False), ("TN", "a", True), ("NT", "", False)],
    )
    def test_tf32_is_packed_where_neither_operand_lies_along_k(self, layout, packed, swapped):
        """And one of them, as WGMMA takes the other from registers."""
        tf32 = {"dtype": torch.float32, "precision": "tf32"}
        config = chosen(4096, 4096, 4096, layout=layout, **tf32)[1]
        assert (packed, swapped) == (config.PACK, config.SWAP)

    def test_runners_up_and_parts_are_said(self):
        choice = dispatch.choose(problem(16, 4093, 14337))
        text = str(choice)
        assert f"{choice.kernel.name}:" in text and str(choice.config) in text
        assert "row stride of a is 28674 bytes; TMA needs a multiple of 16" in text
        for word in ("roofline", "waves", "parts", "\nor "):
            assert word in text
        seconds = [row[0] for row in choice.others]
        assert seconds == sorted(seconds) and seconds[0] >= choice.predicted

    def test_packing_and_swapping_are_explained(self):
        choice = dispatch.choose(problem(1024, 4093, 4093))
        assert choice.config.PACK == "ab"
        assert "packed     a and b, because row stride of a is 8186 bytes" in str(choice)
        assert "swapped    C.T = B.T A.T: M = 16" in str(dispatch.choose(problem(16, 4096, 4096)))


class TestUnknownGpus:
    @pytest.mark.parametrize("device", [A100, L40S, H100, B200], ids=lambda d: d.name)
    def test_large_products_take_a_pipelined_rung_and_a_large_tile(self, device):
        choice = dispatch.choose(problem(8192, 8192, 8192, device=device))
        assert choice.kernel.number >= 7
        assert choice.config.BLOCK_M * choice.config.BLOCK_N >= 128 * 192

    def test_more_sms_and_clock_predict_less(self):
        seconds = [dispatch.choose(problem(8192, 8192, 8192, device=d)).predicted
                   for d in (A100, H200, B200)]  # fmt: skip
        assert seconds == sorted(seconds, reverse=True)

    def test_an_old_gpu_is_refused(self):
        old = dataclasses.replace(A100, name="Tesla V100", capability=(7, 0))
        with pytest.raises(RuntimeError, match=r"8\.0 or newer; Tesla V100 has 7\.0"):
            dispatch.choose(problem(64, 64, 64, device=old))


class TestCandidates:
    @pytest.mark.parametrize(
        "shape",
        [
            (1, 64, 64),
            (1, 6144, 4096),
            (7, 4096, 4096),
            (64, 64, 131072),
            (128, 144, 128),
            (300, 4093, 77),
            (3000, 200, 72),
            (4096, 4093, 4095),
            (8192, 8192, 8192),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("device", [A100, L40S, H100, H200, B200], ids=lambda d: d.name)
    def test_the_choice_is_the_first_of_those_that_can_run(self, shape, device):
        """And many are predicted as one is."""
        asked = problem(*shape, device=device)
        found = dispatch.ranked(asked)
        assert len({row[1:] for row in found}) == len(found) > 0
        assert found == sorted(found, key=lambda row: row[0])
        choice = dispatch.choose(asked)
        assert (choice.predicted, choice.kernel, choice.config) == found[0]
        assert choice.roofline <= choice.predicted < 1
        for seconds, kernel, config in found:
            view = config.view(asked)
            assert kernel.why_not(view) is None
            assert dataclasses.replace(config, SWAP=False, PACK="") in kernel.configs(view)
            assert dispatch.predict(kernel, asked, config) == pytest.approx(seconds, rel=1e-12)

    @pytest.mark.parametrize(
        ("shape", "layout", "orders"),
        [
            ((200, 256, 512), "NT", {False}),  # mirrored: nothing is gained
            ((100, 256, 512), "NT", {False, True}),
            ((200, 256, 512), "NN", {False, True}),
            ((40, 60, 512), "NT", {True}),  # too few rows as it is
            ((2056, 2056, 512), "NN", {False, True}),  # a round of large tiles
            ((8192, 8192, 512), "NN", {False, True}),
            ((300, 300, 512), "NN", {False}),  # less than a tenth of a round
        ],
    )
    def test_operands_are_exchanged_where_it_may_gain(self, shape, layout, orders):
        found = dispatch.ranked(problem(*shape, layout))
        cluster = {config.SWAP for _, kernel, config in found if kernel.name == "cluster"}
        assert cluster == orders

    def test_rungs_without_roles_are_for_what_those_with_roles_refuse(self):
        def names(**options):
            return {kernel.name for _, kernel, _ in dispatch.ranked(problem(4096, **options))}

        size = {"N": 4096, "K": 4096}
        without = {"pipelined", "tma", "persistent"}
        assert "warp_specialized" in names(**size) and not without & names(**size)
        assert without <= names(**size, dtype=torch.float64)
        assert without <= names(**size, device=B200)
        assert "pipelined" in names(N=4093, K=4093), "one that needs no copies stays"

    def test_tf32_is_for_rungs_with_roles_where_b_is_stored_along_k(self):
        def names(layout):
            options = {"layout": layout, "dtype": torch.float32, "precision": "tf32"}
            found = dispatch.ranked(problem(4096, 4096, 4096, **options))
            return {(kernel.name, config.PACK, config.BLOCK_K) for _, kernel, config in found}

        assert {("warp_specialized", "", 32), ("split_k", "", 32)} <= names("NT")
        assert ("warp_specialized", "b", 32) in names("NN")
        assert not {name for name, pack, _ in names("TN") if not pack} & {"warp_specialized"}
        asked = problem(64, 64, 64, "TN", torch.float32, precision="tf32")
        with pytest.raises(ValueError, match="b is not stored along K, as WGMMA reads tf32"):
            dispatch.choose(asked, "split_k")

    def test_the_last_round_is_shared_where_there_is_one_and_k_is_long(self):
        def shared(*size):
            ranked = dispatch.ranked(problem(*size))
            return any(kernel.name == "stream_k" for _, kernel, _ in ranked)

        assert shared(4096, 4096, 4096)
        assert not shared(4096, 4096, 2048) and not shared(1024, 1024, 8192)

    def test_steps_are_counted_in_32_bits(self):
        with pytest.raises(ValueError, match=r"K is 268435456; .* up to 2\*\*28 - 16"):
            dispatch.choose(problem(8, 8, 2**28), "stream_k")
        assert dispatch.choose(problem(8, 8, 2**28)).kernel.name not in ("split_k", "stream_k")

    def test_an_explicit_rung_is_never_packed(self):
        asked = problem(64, 64, 4095)
        assert all(not config.PACK for *_, config in dispatch.ranked(asked, "pipelined"))
        with pytest.raises(ValueError, match='"tma" cannot run this problem: row stride of a'):
            dispatch.choose(asked, "tma")

    @pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
    @pytest.mark.parametrize("shape", [(512, 512, 512), (1, 77, 1000), (16, 512, 20)], ids=str)
    def test_the_rung_that_a_refusal_names_runs(self, shape, layout):
        asked = problem(*shape, layout, torch.float32, precision="tf32")
        for rung in RUNGS:
            if rung.why_not(asked) is not None:
                with pytest.raises(ValueError, match="cannot run this problem") as error:
                    dispatch.choose(asked, rung.name)
                for other in re.findall(r'; kernel="(\w+)" can run this$', str(error.value)):
                    assert dispatch.choose(asked, other).kernel.name == other

    def test_teaching_rungs_only_where_no_other_can(self, monkeypatch):
        asked = problem(512, 512, 512, device=A100)
        assert all(kernel.policy.auto for _, kernel, _ in dispatch.ranked(asked))
        unable = [refusing(rung, "no") if rung.policy.auto else rung for rung in RUNGS]
        put_rungs(monkeypatch, unable)
        highest = [rung for rung in unable if rung.why_not(asked) is None][-1]
        assert {kernel for _, kernel, _ in dispatch.ranked(asked)} == {highest}
        assert not highest.policy.auto
        dispatch.forget()

    def test_none_can(self, monkeypatch):
        unable = [refusing(rung, "too odd") for rung in RUNGS]
        put_rungs(monkeypatch, unable)
        with pytest.raises(ValueError, match=r"no kernel can run 5 x 6 x 7.*simt: too odd"):
            dispatch.choose(problem(5, 6, 7))
        dispatch.forget()


class TestBatchInvariant:
    """Row i has the same bits whatever M is: the order of its sums may not depend on M."""

    @pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.name)
    @pytest.mark.parametrize("dtype", ACCUMULATE, ids=str)
    def test_a_rung_by_name(self, dtype, device):
        """It runs, or the sentence names it and what can; nothing is said of all the others."""
        asked = problem(128, 256, 512, dtype=dtype, device=device)
        for rung in RUNGS:
            word = str(Request(rung.name, None, True))
            why = rung.why_not(asked)
            if not rung.limits.in_order and not rung.limits.ordered:
                why = "sums in an order that depends on M"
            elif why is None and not rung.limits.in_order and not questions.parts_of(asked):
                why = "sums in an order that depends on M"  # of int8, which any order has right
            elif why is None and rung.name in IN_PARTS[2:]:
                why = "none of its tiles"
            if why is None:
                assert dispatch.choose(asked, word).kernel is rung
                continue
            with pytest.raises(ValueError, match=re.escape(why)) as refused:
                dispatch.choose(asked, word)
            assert rung.name in str(refused.value)

    #: Of WGMMA: parts of K. Else the rung's mainloop, too, and all that its tile decides.
    @staticmethod
    def order(choice):
        config, asked = choice.config, choice.problem
        if questions.parts_of(asked):
            assert choice.kernel.limits.tile.warpgroups
            assert is_wgmma(config.view(asked), config)
            return "wgmma", config.PARTS, config.SPLIT_K in (1, config.PARTS)
        tile = config.BLOCK_M, config.BLOCK_N, config.BLOCK_K
        return choice.kernel.name, config.SPLIT_K, config.SWAP, tile

    @pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
    @pytest.mark.parametrize("size", [(4096, 14336), (1280, 8192), (4093, 4095), (8, 131072)])
    @pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda d: d.name)
    def test_one_order_for_every_m_and_batch(self, layout, size, device):
        N, K = size
        rows = [(M, ()) for M in (1, 2, 7, 16, 100, 128, 1000, 4096, 65536)]
        asked = [
            problem(M, N, K, layout, device=device, batch=batch)
            for M, batch in [*rows, (100, (3,))]
        ]
        orders = {self.order(dispatch.choose(one, "auto/batch_invariant")) for one in asked}
        assert len(orders) == 1
        (order,) = orders
        assert order[0] not in ("stream_k", "gemv")

    def test_few_rows_take_narrow_tiles(self):
        """As the columns of an exchanged product, or so narrow that they fill the device."""
        for shape in ((1, 6144, 4096), (16, 4096, 14336), (64, 4096, 4096), (64, 2112, 7168)):
            asked = problem(*shape)
            choice = dispatch.choose(asked, "auto/batch_invariant")
            assert choice.config.BLOCK_N <= 64
            assert choice.predicted < 1.4 * dispatch.choose(asked).predicted

    def test_operands_are_swapped(self):
        asked = problem(16, 28672, 4096)
        groups = candidates.in_one_order(asked, candidates.rungs_in_order(asked, RUNGS), 1)
        assert any(group.swap for group in groups)

    def test_the_tile_follows_m_where_wgmma_allows(self):
        word = "auto/batch_invariant"
        few, many = (dispatch.choose(problem(M, 4096, 4096), word).config for M in (16, 8192))
        assert few.BLOCK_M * few.BLOCK_N < many.BLOCK_M * many.BLOCK_N

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_the_bits(self, dtype):
        a, b = operand(70, 90, dtype), operand(90, 50, dtype)
        whole = tritemm.matmul(a, b, batch_invariant=True)
        for rows in (1, 2, 33, 64):
            part = tritemm.matmul(a[:rows], b, batch_invariant=True)
            assert torch.equal(part, whole[:rows])

    @pytest.mark.gpu  # in the interpreter a row's last bits are NumPy's, by its place in a tile
    def test_the_bits_of_batches(self):
        a, b = operand(10, 90, torch.float16, batch=(7,)), operand(90, 50, torch.float16)
        folded = tritemm.matmul(a, b, batch_invariant=True)
        stacked = tritemm.matmul(a, b.expand(7, 90, 50).contiguous(), batch_invariant=True)
        assert torch.equal(folded, stacked)
        for i in range(7):
            assert torch.equal(folded[i], tritemm.matmul(a[i], b, batch_invariant=True))

    def test_under_compile_and_vmap(self):
        a, b = operand(10, 32, torch.float16, batch=(3,)), operand(32, 16, torch.float16)
        want = tritemm.matmul(a, b, batch_invariant=True)

        def call(a, b):
            return tritemm.matmul(a, b, batch_invariant=True)

        assert torch.equal(torch.compile(call, backend="eager", fullgraph=True)(a, b), want)
        assert torch.equal(torch.func.vmap(call, in_dims=(0, None))(a, b), want)


@pytest.mark.skipif(not INTERPRETED, reason="of the interpreter")
def test_the_interpreter_runs_each_rungs_own_config():
    a, b = operand(40, 48, torch.float16), operand(48, 56, torch.float16)
    asked = Problem.of(a, b, torch.empty(40, 56, dtype=a.dtype))
    for _, kernel, config in dispatch.ranked(asked):
        assert config == kernel.interpreted
    assert "interpreter" in str(dispatch.choose(asked))


def test_the_command(capsys):
    """`python -m tritemm explain`, of a GPU that need not be here."""
    assert main(["explain", "4093", "4093", "4093", "--layout", "NN", "--sm", "90"]) == 0
    printed = capsys.readouterr().out
    assert "4093 x 4093 x 4093 NN, bf16" in printed and "a and b packed" in printed
    assert main(["explain", "4093", "4093", "4093", "--kernel", "tma"]) == 2
    assert 'TMA needs a multiple of 16; kernel="pipelined" can run' in capsys.readouterr().err
    for kernel in ("tiled/BLOCK_M=16", "tiled/=", "nope"):
        assert main(["explain", "64", "64", "64", "--kernel", kernel]) == 2
        assert f"'{kernel}'" in capsys.readouterr().err
    assert main(["explain", "64", "64", "64", "--sm", "75"]) == 2
    assert "75" in capsys.readouterr().err
    for activation in ("relu", "swiglu"):
        asked = ["64", "64", "64", "--sm", "90", "--dtype", "fp64", "--activation", activation]
        assert main(["explain", *asked]) == 0
        printed = capsys.readouterr().out
        assert f"{activation} by torch's kernels after it" in printed
        assert "64 x 64 x 64 NT, fp64 x fp64 -> fp64\n" in printed


class TestQuick:
    """What is skipped or kept so that a first call is short changes nothing."""

    def test_configs_are_found_once_per_kind(self):
        for name in ("tma", "persistent"):
            rung = dispatch.find(name)
            first, same = rung.configs(problem(256, 256, 64)), rung.configs(problem(512, 384, 128))
            assert same is first
            smaller = rung.configs(problem(256, 256, 64, device=L40S))
            assert smaller is not first and len(smaller) < len(first)
            for dtype in (torch.float32, torch.int8, torch.float64):
                assert rung.configs(problem(256, 256, 64, dtype=dtype)) != first

    def test_what_is_kept_is_of_one_problem(self):
        asked = []

        @kept
        def rows(problem):
            asked.append(problem)
            return None if problem.M > 100 else problem.M

        one, other = problem(64, 64, 64), problem(128, 64, 64)
        for _ in range(2):
            assert rows(one) == 64 and rows(other) is None
        assert asked == [one, other]
        assert dataclasses.replace(one) == one and hash(dataclasses.replace(one)) == hash(one)

    def test_transposed_twice_is_the_problem(self):
        one = problem(64, 128, 32, layout="NN", batch=(3,))
        assert one.transposed().transposed() is one
        built = dataclasses.replace(one.transposed()).transposed()
        assert built == one and built is not one

    def test_a_choice_is_pickled_with_its_rung(self):
        """And its problem is exchanged as before: a launch looks for what workers compile."""
        choice = dispatch.choose(problem(64, 96, 128))
        again = pickle.loads(pickle.dumps(choice))
        assert again.kernel is choice.kernel and str(again) == str(choice)
        assert again.problem.transposed() == choice.problem.transposed()

    def test_a_pickled_problem_is_equal_in_another_process(self):
        """Its hash is kept, and strings have other hashes there."""
        one = problem(64, 128, 32)
        hash(one), one.transposed(), dispatch.choose(one)
        assert vars(pickle.loads(pickle.dumps(one))).keys() == {
            field.name for field in dataclasses.fields(one)
        }
        code = (
            "import pickle, sys, dataclasses\n"
            "one = pickle.load(sys.stdin.buffer)\n"
            "sys.exit(hash(one) != hash(dataclasses.replace(one)))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(one))
        assert done.returncode == 0
