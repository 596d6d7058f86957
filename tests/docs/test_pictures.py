"""Pictures of the concept pages: each is drawn from a formula, and shows what the formula says."""

import itertools
import math
import re

import pytest

from cuda_reference.types.fragments import fragment, ldmatrix
from docs import concept_pages, pictures
from docs.exercises import ex_cluster
from docs.lessons import measured
from docs.pictures import (
    banks,
    clusters,
    draw,
    energy,
    formulas,
    fragments,
    raster,
    residues,
    split,
    swizzle,
)
from perf.rows import REFERENCE
from tritemm.problem import MODULI

pytestmark = [pytest.mark.host, pytest.mark.once]

#: Bytes of a file, and of all.
MOST, MOST_OF_ALL = 60_000, 800_000
by_name = pytest.mark.parametrize("name", pictures.PICTURES)


def test_all_together_are_small_and_each_is_on_a_page():
    files = sorted(pictures.FOLDER.glob("*"))
    assert {path.stem for path in files} == set(pictures.PICTURES)
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) <= MOST and sum(sizes) <= MOST_OF_ALL
    folders = (formulas.ROOT / "docs" / name for name in ("concepts", "tutorial"))
    pages = "".join(page.read_text() for folder in folders for page in folder.glob("*.md"))
    for name in pictures.PICTURES:
        assert f"(../figures/concepts/{name}.svg)" in pages, name


@by_name
def test_words_are_inside_and_large_enough(name):
    """480 units are 380 pixels on a phone, where letters of 9 are the smallest that can be read."""
    text = pictures.path_of(name).read_text()
    sizes = {"s": draw.SMALL, "n": draw.NORMAL, "t": draw.LARGE}
    assert min(sizes.values()) * 380 / draw.WIDTH > 9
    for classes, x, words in re.findall(r'<text class="([^"]+)" x="([^"]+)"[^>]*>([^<]+)<', text):
        size, _, anchor = classes.partition(" ")
        wide = draw.width_of(words, sizes[size])
        left = float(x) - wide * {"": 0, "middle": 0.5, "end": 1}[anchor]
        assert left >= -2 and left + wide <= draw.WIDTH + 6, words


# Who holds what


@pytest.mark.parametrize("entry", [fragments.MMA, fragments.WMMA, fragments.WGMMA], ids=str)
@pytest.mark.parametrize("operand", ["a", "b", "d"])
def test_every_element_has_one_holder_in_the_picture(entry, operand):
    held = fragment(entry, operand)
    if held is None:
        return
    m, n, k = entry.shape
    rows, cols = {"a": (m, k), "b": (k, n), "d": (m, n)}[operand]
    found = fragments.words(held)
    assert set(found) == set(itertools.product(range(rows), range(cols)))
    for element, (thread, word) in found.items():
        assert element in held.elements[thread][2 * word : 2 * word + 2]
    down = operand == "b"
    shapes = "".join(fragments.table(found, 0, 0, down=down, shown=-1))
    assert len(re.findall(r">T\d+<", shapes)) == rows * cols // 2


@pytest.mark.parametrize("trans", [False, True])
def test_lanes_point_where_the_cuda_kernels_do(trans):
    found = fragments.addresses(trans)
    assert set(found) == set(range(16 if trans else 32))
    if not trans:
        row = formulas.cuda("include/mma_tile.cuh", "const int a_row = ")
        chunk = formulas.cuda("include/mma_tile.cuh", "Layout::ab(a_row, ", ")")
        for lane, at in found.items():
            assert at == (row(warp=0, lane=lane), 8 * chunk(k=0, lane=lane))
    else:
        assert all(at == (lane, 0) for lane, at in found.items())
    assert len(ldmatrix(4, False).elements) == 32


# Shared memory


@pytest.mark.parametrize("mode", [0, 32, 64, 128])
def test_every_swizzle_fills_all_banks(mode):
    width = mode or swizzle.CHUNK
    found = swizzle.chunks(swizzle.tile(mode, 8, width // swizzle.ELEMENT))
    assert sorted(found.values()) == list(range(0, 8 * width, swizzle.CHUNK))
    for chunk in range(width // swizzle.CHUNK):
        spots = {at: byte // swizzle.CHUNK for at, byte in found.items()}
        assert banks.together(lambda *at, spots=spots: spots[at], range(8), chunk) == [1] * 8


def test_core_matrices_are_those_of_the_descriptor():
    """The distances that wgmma_m64n8k16.cu names in its descriptor of A."""
    file = "wgmma_m64n8k16.cu"
    names = ("matrix_descriptor(tile_a, ", "matrix_descriptor(tile_a, BM / 8 * CORE, ")
    named = tuple(formulas.cuda(file, before, ",")() for before in names)
    assert swizzle.distances(swizzle.by_hand()) == named
    for found in (swizzle.by_hand(), swizzle.chunks(swizzle.tile(0))):
        assert sorted(found.values()) == list(range(0, 64 * 32, swizzle.CHUNK))


def test_conflicts_as_drawn_are_those_that_are_counted():
    worst = {words: max(banks.together(at, range(8), 0)) for words, at in banks.LAYOUTS.items()}
    assert list(worst.values()) == [4, 1, 1, 1]
    text = pictures.path_of("bank-conflicts").read_text()
    assert text.count(">4x<") == 2 and text.count(">1x<") == 24
    triton = {kind: banks.of_triton(kind) for kind in ("plain", "padded", "permuted")}
    for kind, layout in triton.items():
        counts = [max(banks.together(layout, range(first, first + 8), chunk))
                  for first in range(0, 256, 8) for chunk in range(4)]  # fmt: skip
        assert max(counts) == banks.ways(kind, 256, 32, "K")


def test_conflicts_counted_are_those_measured():
    own = raster.profiles()
    found = {}
    for name, file in (("mma_base", banks.PLAIN), ("mma_permuted", banks.PERMUTED)):
        count = banks.counted(banks.of_operands(file), banks.of_output(file), 4096)
        loads, others = concept_pages.conflicts_measured(own[name])
        assert abs(loads - count.loads) < 3e-4 * 100e6
        found[name] = count.staging, others
    (base, of_base), (permuted, of_permuted) = found.values()
    assert base - permuted == pytest.approx(of_base - of_permuted, rel=0.02)


# Orders, parts, clusters


@pytest.mark.parametrize(
    "order", [*raster.ORDERS, *raster.LARGE], ids=lambda o: f"{o.words} {o.size}"
)
def test_an_order_visits_every_tile_once(order):
    rows, cols = order.size // order.rows, order.size // order.columns
    assert sorted(order.tiles()) == list(itertools.product(range(rows), range(cols)))
    assert order.once() <= order.read() <= order.asked()


def test_the_serpentine_is_cuda_s():
    file = "include/raster.cuh"
    stripe = formulas.cuda(file, "const int stripe = ")
    width = formulas.constant(file, "STRIPE")
    for pid, (_, col) in enumerate(raster.Order("serpentine").tiles()):
        assert stripe(tile=pid, rows=16) == col // width


def test_what_is_read_is_what_was_measured():
    """Within 5 %, and the orders' ranks."""
    orders = {order.name: order.read() for order in raster.ORDERS}
    found = raster.measured()
    assert set(found) == {"linear", "serpentine"}
    for name, rungs in found.items():
        for rung, value in rungs:
            assert value == pytest.approx(orders[name], rel=0.05), rung
    page = " ".join((formulas.ROOT / "docs" / "performance.md").read_text().split())
    large = {order.words: order.read() / 1e9 for order in raster.LARGE}
    said = "from {linear:.2f} GB to {groups:.2f} (grouped) and {serpentine:.2f} (serpentine)"
    assert said.format(**large, groups=large["groups of 16"]) in page


@pytest.mark.parametrize("way", split.WAYS)
@pytest.mark.parametrize(("tiles", "programs"), [(11, 8), (3, 8), (16, 8), (1, 5), (29, 4)])
def test_every_step_is_somebody_s(way, tiles, programs):
    steps = 12
    pieces = split.WAYS[way](tiles, steps, 4, programs)
    done = [(p.tile, step) for own in pieces for p in own
            for step in range(p.first, p.first + p.steps)]  # fmt: skip
    assert sorted(done) == list(itertools.product(range(tiles), range(steps)))
    # As one program of `used` is the busiest one.
    name = "stream_k" if way == "Stream-K" else "scheduler"
    parts = 1 if way == "Whole tiles" else 4
    share = split.used(name, parts, tiles, steps, programs)
    assert share == pytest.approx(tiles * steps / (programs * split.busiest(pieces)))


def test_a_cluster_s_tiles_are_neighbours():
    for cluster, (down, across) in ((clusters.PAIR, (1, 0)), (clusters.BY_A, (0, 1))):
        found = cluster.tiles(4, 4)
        assert sorted(found.values()) == list(itertools.product(range(8), range(2)))
        places = {value: at for at, value in found.items()}
        for number in range(8):
            (row, col), second = places[number, 0], places[number, 1]
            assert second == (row + down, col + across)
    for each in clusters.CHOICES:
        cluster = each.rows, each.columns, each.programs, each.shared
        for rank in range(each.programs):
            asked = each.programs * sum(each.asked()) * clusters.DEPTH * 2
            assert ex_cluster.asked(*cluster, rank, each.programs) == (asked, each.arrives())


# Energy


def test_joules_are_watts_times_seconds():
    found = {each.name: each for each in energy.energies(energy.rows())}
    for each in found.values():
        assert each.low <= each.joules <= each.high and 200 < each.watts < 900
    assert found["simt"].joules > 100 * found[REFERENCE].joules
    assert len({each.name for each in found.values() if each.ladder == "cuda"}) >= 20
    metered = measured.load()["joules"]
    for name in metered.keys() & set(concept_pages.JOULES):
        assert metered[name]["joules"] == pytest.approx(found[name].joules, rel=0.1)


def test_what_the_page_says_of_the_lines_is_so():
    lines = energy.fitted_lines(energy.energies(energy.rows()))
    assert all(140 < line.watts < 215 and len(line.points) >= 5 for line in lines)
    wmma, mma, triton = (line.work for line in lines)
    assert wmma > 1.8 and 1.3 < mma < 1.6 and 1.3 < triton < 1.6
    fitted, watts = energy.known()
    base, more = energy.estimated(128, 256, fitted, watts)
    assert more / (base + more) == pytest.approx(1 / 8, rel=0.1)
    largest = sum(energy.estimated(256, 192, fitted, watts))
    assert 1 - largest / (base + more) == pytest.approx(0.03, abs=0.01)


def test_levels_move_less_with_wgmma():
    mma, wgmma = energy.moved()
    assert wgmma.shared < mma.shared and wgmma.instructions * 100 < mma.instructions
    assert mma.memory < mma.l2 < mma.shared and wgmma.memory < wgmma.l2 < wgmma.shared


# Residues


def test_every_number_has_a_place():
    found = residues.places()
    assert sorted(found.values()) == list(range(-7, 8)) and len(found) == 15
    place = tuple(residues.symmetric(residues.dot(residues.ROW, residues.COLUMN), p)
                  for p in residues.FEW)  # fmt: skip
    assert found[place] == residues.dot(residues.ROW, residues.COLUMN)


def test_moduli_are_the_largest_that_are_coprime():
    found: list[int] = []
    for p in range(256, 1, -1):
        if all(math.gcd(p, q) == 1 for q in found):
            found.append(p)
    assert tuple(found[: len(MODULI)]) == MODULI


def test_the_example_is_exact():
    for row, column in itertools.product(residues.ROWS, residues.COLUMNS):
        assert residues.recombined(row, column) == residues.dot(row.numbers, column.numbers)
    for line in (*residues.ROWS, *residues.COLUMNS):
        own = MODULI[: residues.COUNT]
        assert math.hypot(*line.numbers) <= math.sqrt(math.prod(own) / 2)
        assert all(-128 <= n < 128 for p in own for n in residues.residues(line.numbers, p))


@pytest.mark.parametrize("names", [*itertools.combinations_with_replacement(residues.LINES, 2)])
def test_facts_bound_the_overlap(names):
    usual, least = residues.overlap(*(residues.LINES[name] for name in names))
    assert 0 <= least <= usual <= 1
