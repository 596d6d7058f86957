"""What is known of a GPU, and the page that explains the model: both hold against their sources."""

import dataclasses

import pytest
import torch

from docs import cost_model as page
from perf.experiments import roofline
from perf.roof import Roofs
from perf.rows import recorded
from perf.select import latest_run
from tests.dispatch.choosing import A100, GH200, H100, H200, known_rung, measured_parts, problem
from tritemm import Config, dispatch
from tritemm.arch import gpus, questions
from tritemm.arch.roles import config_of
from tritemm.dispatch.cost_model import constants, model
from tritemm.dispatch.cost_model.columns import Group, columns_of, kind_of, tile_of
from tritemm.dispatch.cost_model.model import predict
from tritemm.problem import EpilogueSpec
from tritemm.rungs import find

pytestmark = pytest.mark.host


def test_the_example_is_what_the_model_predicts():
    asked, by_hand = page.problem(), {name: s for name, (_, s) in page.example().items()}
    choice = dispatch.choose(asked, page.RUNG.name)
    assert choice.config == page.CONFIG
    parts = choice.parts._asdict()
    for name in parts.keys() & by_hand.keys():
        assert by_hand[name] == pytest.approx(parts[name], rel=1e-9), name
    assert {"total", "steps", "ends", "memory", "overlap", "launch"} <= by_hand.keys()


def test_the_page_tells_every_number_of_the_file():
    measured = gpus.file_of("NVIDIA H200")["physics"]
    assert measured.keys() == {*page.PHYSICS, "clusters"}
    assert all(f"`{name}`" in page.physics() for name in measured)
    assert all(f"`{name}`" in page.fitted() for name in constants.NUMBERS)


def test_the_roofs_are_those_that_perf_measured():
    rows = latest_run(recorded(), "roofline", "NVIDIA H200", competitor="cublas")
    [row] = [row for row in rows if row.case.dtype == "bf16" and row.roof and row.us][:1]
    physics = gpus.physics(H200)
    assert 1e9 * row.roof.gbs == pytest.approx(physics.copy_rate, rel=0.01)
    rate = gpus.flop_rate(page.problem().a.dtype, "ieee", H200)
    assert 1e12 * row.roof.tflops == pytest.approx(rate, rel=0.01)


def test_the_roofline_is_of_measured_rates_and_no_prediction_is_below():
    choice = dispatch.choose(problem(1, 28672, 4096))
    assert 1e6 * choice.roofline == pytest.approx(55.2, abs=0.05)  # 235 MB at 4.26 TB/s
    assert choice.predicted >= choice.roofline > choice.parts.memory
    choice = dispatch.choose(problem(8192, 8192, 8192))
    assert choice.roofline == model.roofline(choice.problem)[0] < choice.predicted


def test_a_gpu_without_a_file_has_its_architectures_rates():
    assert gpus.physics(GH200).copy_rate == 3.1e12
    assert gpus.physics(A100) != gpus.physics(H200)
    part = dataclasses.replace(H200, sms=16)  # of a GPU that is shared out
    assert gpus.physics(part) == gpus.physics(dataclasses.replace(GH200, sms=16))


def test_what_was_fitted_to_a_relation_counts_with_the_gpus_own_memory_and_clock():
    own, theirs = constants.of(GH200), constants.of(H200)
    for name in ("memory_rate", "pair_rate", "crowded_rate"):
        assert getattr(own, name) / getattr(theirs, name) == pytest.approx(3.1e12 / 4.26e12)
    assert own.sm_rate / theirs.sm_rate == pytest.approx(1.48e9 / 1.5e9)
    half = constants.of(dataclasses.replace(GH200, sms=66))
    assert half.l2_rate == pytest.approx(own.l2_rate / 2) and half.sm_rate == own.sm_rate
    assert own.rungs == theirs.rungs and own.launch == gpus.physics(GH200).launch


def test_what_one_gpu_alone_shows_counts_beside_what_was_fitted_to_its_relation():
    own, theirs = constants.of(H100), constants.of(H200)
    assert theirs.crowd == theirs.padding == theirs.loaded == 0
    assert 0 < own.padding <= 1 and own.crowd > 1e7 and own.loaded > 0
    assert own.rungs == theirs.rungs
    assert own.memory_rate / theirs.memory_rate == pytest.approx(3.0e12 / 4.26e12)


class TestModel:
    """What the cost model counts."""

    def test_a_part_of_a_line_is_as_much_to_ask_for_as_the_line(self):
        split_k, config = find("split_k"), Config(64, 32, 128, num_stages=8, SPLIT_K=33)
        asked = problem(64, 64, 131072, layout="NN")  # B's lines have 64 columns and more
        swapped = dataclasses.replace(config, SWAP=True)
        assert predict(split_k, asked, swapped) < predict(split_k, asked, config)
        along_k = problem(64, 64, 131072, layout="NT")
        assert predict(split_k, along_k, config) < predict(split_k, asked, config)

    def test_a_measured_load_stands_for_all_tiles_that_are_alike(self):
        gemv = find("gemv")
        one, other = Config(1, 2, 1024, num_warps=8), Config(1, 8, 512, num_warps=4, num_stages=2)

        def steps(config, load, layout="NT", M=1):
            asked = problem(M, 6144, 4096, layout)
            word = kind_of(asked).word(gemv)
            numbers = known_rung(gemv, load={word: (load, 1e-6)})
            return measured_parts(asked, gemv, (config,), boost=0.0, **numbers)[0].steps

        for config in (one, other):
            assert steps(config, 2e-9) == pytest.approx(2 * steps(config, 1e-9))
        two = dataclasses.replace(one, BLOCK_M=2)
        across = steps(two, 1e-9, "TT", M=2) / steps(two, 1e-9, M=2)
        assert across == pytest.approx(11 / 5)  # each element of A is a load

    def test_a_tile_without_a_ring_has_a_factor_of_its_own(self):
        gemv, asked, tile = find("gemv"), problem(4, 37888, 3584), Config(4, 16, 128, num_warps=8)
        word = kind_of(asked).word(gemv)

        def parts(factor):
            tiles = {word: {tile_of(tile.numbers): (factor, 1.0)}}
            return measured_parts(asked, gemv, (tile,), **known_rung(gemv, tiles=tiles))[0]

        assert parts(1.25).steps == pytest.approx(1.25 * parts(1.0).steps)

    def test_work_and_memory_without_a_ring_delay_each_other(self):
        """Where one of them takes far longer, the other doesn't show."""
        gemv, asked, tile = find("gemv"), problem(4, 37888, 3584), Config(4, 16, 128, num_warps=8)
        word, beside = kind_of(asked).word(gemv), []
        for load in (0.0, 1e-11, 1e-9):
            numbers = known_rung(gemv, load={word: (load, 0.0)})
            found = measured_parts(asked, gemv, (tile,), wait=0.0, **numbers)[0]
            longer = max(found.steps + found.ends, found.memory)
            beside.append((found.total - found.launch) / longer)
        assert beside[0] == pytest.approx(beside[2], abs=0.02) and 1.02 < beside[1] < 1.19

    def test_programs_without_a_ring_share_an_sm_by_their_registers(self):
        gemv, asked = find("gemv"), problem(1, 2**20, 4096)
        many = Config(1, 2, 1024, num_warps=8, num_stages=4)
        few = dataclasses.replace(many, num_stages=1)
        numbers = known_rung(gemv, load={kind_of(asked).word(gemv): (0.0, 0.0)})
        found = measured_parts(asked, gemv, (many, few), wait=1.0, **numbers)
        waits = [parts.overlap for parts in found]
        # Four times as many waits, of 8 programs that run beside each other, as many as an SM has
        # threads for, where the registers of the 16 KB that are in flight leave room for 6.
        assert waits[1] == pytest.approx(4 * waits[0] * 8 / 6, rel=0.01)


class TestMemoryOfAnH100:
    """Beside what it took: 256 products, bound by what they store, and by what they read."""

    STORED = problem(2048, 2048, 128, batch=(256,), device=H100)
    READ = problem(2048, 128, 2048, "NN", batch=(256,), device=H100)

    @pytest.mark.parametrize(
        ("rung", "config", "taken"),
        [
            ("cluster_pingpong", (64, 128, 4, 8, 2), 953),
            ("persistent", (128, 256, 8, 3, 1), 1037),
            ("cluster_pingpong", (128, 128, 4, 5, 2), 1087),
            ("cluster", (128, 256, 8, 4, 2), 1101),
            ("pingpong", (128, 192, 4, 4, 1), 1219),
            ("cluster_pingpong", (128, 192, 4, 4, 2), 1260),
        ],
    )
    def test_more_bytes_of_c_on_their_way_at_once_take_longer(self, rung, config, taken):
        m, n, warps, stages, cluster = config
        tile = Config(
            m, n, 64, num_warps=warps, num_stages=stages, ORDER="grouped", CLUSTER=cluster
        )
        assert predict(find(rung), self.STORED, tile) == pytest.approx(1e-6 * taken, rel=0.07)

    def test_what_l2_keeps_of_c_is_not_held_up(self):
        few = problem(2048, 2048, 128, batch=(4,), device=H100)
        whole, none = constants.of(H100), dataclasses.replace(constants.of(H100), crowd=0.0)
        tile = Config(128, 192, 64, num_warps=4, num_stages=4, ORDER="grouped", CLUSTER=2)
        for asked, held in ((self.STORED, True), (few, False)):
            crowded, alone = (
                model.breakdown(find("cluster_pingpong"), asked, tile, numbers).total
                for numbers in (whole, none)
            )
            assert (crowded > 1.3 * alone) if held else (crowded == alone)

    def test_loads_take_longer_while_memory_reads_for_others(self):
        """As measured, in us: two stages in flight wait for memory, three hardly."""
        deep = config_of(128, 256, 64, 8, 4, 1, 2), "cluster", 851
        shallow = config_of(128, 256, 64, 8, 3), "warp_specialized", 886
        own, none = constants.of(H100), dataclasses.replace(constants.of(H100), loaded=0.0)

        def ratio(numbers, asked):
            first, second = (
                model.breakdown(find(rung), asked, tile, numbers).total
                for tile, rung, _ in (shallow, deep)
            )
            return first / second

        streamed = problem(256, 2048, 7168, batch=(64,), device=H100)
        assert ratio(none, streamed) < 1 < ratio(own, streamed) < shallow[-1] / deep[-1]
        resident = problem(8192, 8192, 8192, device=H100)
        assert ratio(own, resident) == pytest.approx(ratio(none, resident), rel=0.003)

    def test_tiles_that_reach_beyond_an_operand_take_longer(self):
        """849 to 889 us where none does, 921 to 968 where tiles of 192, 176 or 160 rows do."""
        choice = dispatch.choose(self.READ)
        long = choice.config.BLOCK_N if choice.config.SWAP else choice.config.BLOCK_M
        assert 2048 % (long * choice.config.CLUSTER) == 0
        assert 1e6 * choice.predicted == pytest.approx(889, rel=0.05)


def test_the_file_of_a_gpu_is_what_its_roofs_and_its_driver_say():
    """Beside what was fitted before; in the form in which the shipped one stands."""
    for gpu, roofs in ((H200, (1499.6, 4257.0, 0.904)), (H100, (1395.0, 3000.0, 1.04))):
        clusters = tuple(gpus.file_of(gpu.name)["physics"]["clusters"])
        made = roofline.file_of(Roofs(dataclasses.replace(gpu, clusters=clusters), *roofs))
        assert gpus.text_of(made) == gpus.path_of(gpu.name).read_text()
    made = roofline.file_of(Roofs(GH200, mhz=1503.0, gbs=3141.0, launch=1.26))
    physics = {"clock": 1.5e9, "copy_rate": 3.14e12, "launch": 1.3e-6, "l2": 2**25, "clusters": ()}
    assert made["physics"] == physics and "fitted" not in made
    assert gpus.device_of(made) == GH200


def test_clusters_have_as_much_room_as_was_measured_or_a_like_share():
    assert [gpus.clusters_at_once(n, H200) for n in range(1, 9)] == (
        gpus.file_of("NVIDIA H200")["physics"]["clusters"]
    )
    half, few = (dataclasses.replace(H200, sms=sms) for sms in (66, 8))
    assert gpus.clusters_at_once(2, half) == 33 and gpus.clusters_at_once(8, few) == 0


def test_a_card_that_is_here_says_how_many_clusters_it_has_room_for():
    """And the choice asks it; bits that cards of one model share don't depend on it."""
    own = (132, 66, 40, 32, 23, 19, 16, 16)
    card = dataclasses.replace(H200, clusters=own)
    assert [gpus.clusters_at_once(n, card) for n in range(1, 9)] == list(own)
    few = dataclasses.replace(H200, clusters=(132, 60, 1, 1, 1, 1, 1, 1))
    assert [gpus.clusters_of_model(n, few) for n in (2, 4)] == [66, 30]
    asked = problem(8192, 8192, 4096)
    of = lambda device: dataclasses.replace(asked, device=device)  # noqa: E731
    config = Config(128, 256, 64, num_warps=8, num_stages=4, ORDER="grouped", CLUSTER=4)
    cluster = find("cluster")
    assert [cluster.grid(of(each), config) for each in (H200, card, few)] == [30, 32, 1]
    slow, fast = (predict(cluster, of(each), config) for each in (few, card))
    assert slow > 10 * fast
    ordered = problem(64, 1280, 8192)
    assert questions.parts_of(ordered) == (
        questions.parts_of(dataclasses.replace(ordered, device=few))
    )


class TestEpilogues:
    """Beside what an H200 took, in bursts."""

    BIAS_GELU = EpilogueSpec(activation="gelu", bias=torch.bfloat16)

    @pytest.mark.parametrize(
        ("size", "taken"),
        [((8192, 28672, 4096), 2638), ((65536, 3072, 768), 520), ((16384, 5120, 1280), 314)],
    )
    def test_bias_and_gelu_are_hidden_where_consumers_take_turns(self, size, taken):
        plain = problem(*size)
        ended = dataclasses.replace(plain, epilogue=self.BIAS_GELU)
        choice = dispatch.choose(ended)
        assert choice.kernel.cost.pingpong
        assert choice.predicted == pytest.approx(1e-6 * taken, rel=0.2)
        alike = predict(choice.kernel, plain, choice.config)
        assert alike <= choice.predicted < 1.35 * alike
        shared = find("warp_specialized")
        config = shared.configs(ended)[0]
        assert predict(shared, ended, config) > choice.predicted

    def test_what_is_not_there_takes_no_time(self):
        plain = problem(4096, 4096, 4096)
        scaled = dataclasses.replace(plain, epilogue=EpilogueSpec(alpha=True))
        for rung in (find("warp_specialized"), find("cluster_pingpong")):
            config = rung.configs(plain)[0]
            assert predict(rung, scaled, config) == predict(rung, plain, config)

    def test_a_residual_costs_more_beside_many_sums(self):
        plain = problem(65536, 3072, 768)
        ended = dataclasses.replace(
            plain, epilogue=dataclasses.replace(self.BIAS_GELU, residual=plain.c)
        )
        rung = find("pingpong")
        extra = {}
        for config in rung.configs(plain):
            per = predict(rung, ended, config) - predict(rung, plain, config)
            extra[config.BLOCK_M, config.BLOCK_N] = per
        assert extra[128, 192] > extra[64, 256] > 0


def stored(view, m, n, **changed):
    """Seconds to store a tile, an element."""
    config = Config(m, n, 64, num_stages=4, ORDER="grouped")
    rung, nothing = find("cluster_pingpong"), dict.fromkeys(("ends", "part_store"), 0.0)
    [parts] = measured_parts(view, rung, [config], **(nothing | changed))
    share = -(-config.tiles(view) // H200.sms)
    return parts.ends / (1 + (share - 1) * (1 - rung.cost.epilogue_overlap)) / (m * n)


def test_threads_store_rows_of_c_faster_in_wide_pieces():
    odd = problem(8192, 50257, 768)
    # 176 columns are pieces of 16, each of one sector and in two; 192 are pieces of 64.
    assert stored(odd, 128, 176) == pytest.approx(2 / 1.25 * stored(odd, 128, 192))
    along_rows = problem(50257, 8192, 768).transposed()
    assert stored(along_rows, 128, 176) == pytest.approx(stored(along_rows, 128, 192))
    assert dispatch.choose(odd).config.BLOCK_N % 64 == 0


def test_rows_that_begin_inside_a_sector_cost_more():
    """Half of them where the pitch is a multiple of 16 bytes only, or the tile's width is."""
    config = Config(64, 200, 64, num_stages=5, ORDER="grouped")

    def straddling(N, K, layout="NT"):
        view = problem(1024, N, K, layout)
        tile = columns_of([Group(find("pingpong"), [config], view)], constants.of(H200)).tile
        return [*tile.lines[:, 0], *tile.sectors[:, 0]]

    assert straddling(1024, 1024) == [0, 0, 0, 0]
    assert straddling(1024, 1024 + 16) == [0.75, 0.75, 0, 0]
    assert straddling(1024, 1024 + 8) == [0.875, 0.875, 0.5, 0.5]
    assert straddling(1024, 1024, "NN") == [0, 0.875, 0, 0.5]


def test_tma_stores_narrow_pieces_slowly():
    rung, asked = find("cluster_pingpong"), problem(3144, 432, 112, "TN")

    def per_element(view, columns):
        return stored(view, 64, columns, part_store=80.0)

    # Of 8 columns, of 16 and of 64.
    large = problem(16384, 4320, 112, "TN")
    wide = per_element(large, 192)
    assert per_element(large, 216) == pytest.approx(5 * wide)
    assert per_element(large, 208) == pytest.approx(2.5 * wide)
    # Swapped, a piece's columns are rows of C, and 64 of those are stored side by side.
    assert per_element(large.transposed(), 216) == pytest.approx(wide)
    wide = next(c for c in rung.configs(asked) if (c.BLOCK_M, c.BLOCK_N) == (64, 216))
    assert predict(rung, asked, wide) > 1.3 * dispatch.choose(asked).predicted
