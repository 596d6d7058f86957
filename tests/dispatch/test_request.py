"""What a caller asks for: rungs by name, and configs, which are run as they are or refused."""

import dataclasses

import pytest
import torch

import tritemm
from tests.dispatch.choosing import problem
from tests.harness import DEVICE, operand
from tritemm import dispatch
from tritemm.dispatch.request import Request, for_gradients
from tritemm.problem.config import Config, config_of

PINGPONG = "cluster_pingpong"


class TestRequest:
    config = Config(128, 256, 64, num_warps=8, num_stages=3, ORDER="grouped", SWAP=True, PACK="ab")

    @pytest.mark.parametrize(
        "request_",
        [
            Request(),
            Request("tma"),
            Request("auto", None, True),
            Request("pingpong", None, True),
            Request("split_k", config),
            Request("simt", Config(8, 8, 8)),
        ],
    )
    def test_a_word_and_back(self, request_):
        assert Request.parse(str(request_)) == request_

    def test_gradients_keep_only_invariance(self):
        assert for_gradients("tma") == for_gradients(str(Request("tma", self.config))) == "auto"
        assert for_gradients("tma/batch_invariant") == str(Request("auto", None, True))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"BLOCK": 3}, "no field 'BLOCK'; its fields are BLOCK_M"),
            ({"ORDER": "spiral"}, "'linear', 'serpentine', 'grouped'"),
            ({"PACK": "c"}, "one of '', 'a', 'b', 'ab'"),
            ({"SWAP": 1}, "True or False"),
            ({"num_warps": 0}, "num_warps=0; a whole number, 1 or more"),
            ({"BLOCK_M": 64.0}, r"BLOCK_M=64\.0; a whole number"),
            ({"BLOCK_K": None}, "needs BLOCK_K"),
        ],
    )
    def test_fields(self, change, message):
        fields = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32} | change
        with pytest.raises(ValueError, match=message):
            config_of({name: value for name, value in fields.items() if value is not None})

    def test_no_fields(self):
        with pytest.raises(ValueError, match="mapping of its fields, not list"):
            config_of([64, 64, 64])


class TestConfig:
    """config= for one rung: it runs just that, or says the limit."""

    @pytest.mark.parametrize(
        ("rung", "config"),
        [
            ("tma", Config(128, 32, 64, num_stages=2, SWAP=True)),
            ("pingpong", Config(128, 192, 64, num_warps=4, num_stages=3)),
        ]
        + [
            ("cluster", Config(128, columns, 64, 8, 3, ORDER="grouped", CLUSTER=2))
            for columns in range(16, 257, 16)
        ],
        ids=str,
    )
    def test_it_is_taken_as_it_is(self, rung, config):
        choice = dispatch.choose(problem(512, 512, 512), str(Request(rung, config)))
        assert (choice.kernel.name, choice.config) == (rung, config)

    @pytest.mark.parametrize(
        ("rung", "fields", "message"),
        [
            ("tma", {"BLOCK_N": 96}, "BLOCK_N is 96; a power of two is possible"),
            ("tma", {"num_warps": 64}, "at most 32"),
            ("tma", {"SPLIT_K": 2}, "does not split K"),
            (
                "tma",
                {"BLOCK_M": 128, "BLOCK_N": 256, "num_stages": 5},
                "5 stages of 49152 bytes need 245760 bytes of shared memory; NVIDIA H200 has "
                "232448",
            ),
            (
                "pingpong",
                {"BLOCK_M": 128, "BLOCK_N": 176},
                "BLOCK_N is 176; a power of two, or .*192",
            ),
            ("pingpong", {"num_warps": 8}, "num_warps is 8; 4 is possible"),
            ("split_k", {"BLOCK_M": 32}, "BLOCK_M is 32; WGMMA takes 64 or more"),
            ("split_k", {"BLOCK_M": 256, "BLOCK_N": 128}, "256 accumulators per thread"),
            ("split_k", {"BLOCK_M": 192, "num_warps": 8}, "192 with 8 warps; .* 192 with 4 warps"),
            ("pingpong", {"BLOCK_M": 192}, "BLOCK_M is 192; a power of two is possible"),
            ("warp_specialized", {"BLOCK_M": 192, "BLOCK_N": 256}, "128 accumulators per thread"),
            ("split_k", {"num_stages": 20}, "shared memory"),
            ("split_k", {"SPLIT_K": 50}, "SPLIT_K is 50; K = 512 has 8 steps of 64"),
            ("cluster", {"num_warps": 16}, "num_warps is 16; 8 or 12 for a tile are possible"),
            ("cluster", {}, "num_warps is 4; .*; cluster_pingpong takes 4"),
            (PINGPONG, {"num_warps": 8}, "num_warps is 8; 4 for a tile"),
            (PINGPONG, {"BLOCK_M": 192}, "BLOCK_M is 192; 64 and 128 are possible with 4 warps"),
            (PINGPONG, {"BLOCK_N": 100}, "BLOCK_N is 100; multiples of 8 up to 256 are possible"),
            (PINGPONG, {"BLOCK_M": 128, "BLOCK_N": 208}, "multiples of 8 up to 192"),
            (PINGPONG, {"BLOCK_K": 32}, "BLOCK_K is 32; 64 is possible"),
            (PINGPONG, {"SPLIT_K": 2}, "SPLIT_K is 2; this rung does not split K"),
            ("multicast_split_k", {"SPLIT_K": 9}, "SPLIT_K is 9; K = 512 has 8 steps of 64"),
            ("multicast_split_k", {}, "SPLIT_K is 1; 2 or more are possible"),
            ("gemv", {"SPLIT_K": 12}, "SPLIT_K is 12; a power of two is possible"),
            ("cluster", {"SPLIT_K": 2}, "does not split K; split_k, .*multicast_split_k.* can"),
            (PINGPONG, {"num_stages": 1}, "a ring needs 2 or more"),
            (PINGPONG, {"BLOCK_N": 256, "num_stages": 6}, "shared memory"),
            (PINGPONG, {"CLUSTER": 3}, "CLUSTER is 3; 2 or 4 programs can share"),
            (PINGPONG, {"CLUSTER": 1}, "CLUSTER is 1; 2 or 4 programs can share"),
            (PINGPONG, {"BLOCK_N": 4, "CLUSTER": 4}, "BLOCK_N is 4; multiples of 8"),
            ("warp_specialized", {"CLUSTER": 2}, "CLUSTER is 2; this rung's programs share no"),
        ],
    )
    def test_limits(self, rung, fields, message):
        config = Config(64, 64, 64, num_warps=4, num_stages=4, ORDER="grouped")
        config = dataclasses.replace(config, CLUSTER=2 if dispatch.find(rung).clusters else 1)
        config = dataclasses.replace(config, **fields)
        said = f'kernel="{rung}" cannot run this config: .*{message}'
        with pytest.raises(ValueError, match=said):
            dispatch.choose(problem(512, 512, 512), str(Request(rung, config)))

    def test_the_rung_may_refuse(self):
        config = Config(64, 64, 64)
        asked = problem(512, 512, 511)
        with pytest.raises(ValueError, match="TMA needs a multiple of 16"):
            dispatch.choose(asked, str(Request("tma", config)))
        packed = dataclasses.replace(config, PACK="ab")
        assert dispatch.choose(asked, str(Request("tma", packed))).config == packed

    def test_in_matmul(self):
        a, b = operand(40, 48, torch.float16), operand(48, 56, torch.float16)
        fields = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "SWAP": True}
        choice = tritemm.explain(a, b, kernel="pipelined", config=fields)
        assert choice.config == Config(**fields)
        got = tritemm.matmul(a, b, kernel="pipelined", config=choice.config)
        torch.testing.assert_close(got, a @ b)
        with pytest.raises(ValueError, match="name it with kernel="):
            tritemm.matmul(a, b, config=fields)
        with pytest.raises(ValueError, match="leave config= out"):
            tritemm.matmul(a, b, kernel="tma", config=fields, batch_invariant=True)

    def test_under_compile(self):
        a = torch.ones(16, 16, dtype=torch.float16, device=DEVICE)
        fields = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}

        @torch.compile(backend="eager", fullgraph=True)
        def call(a):
            return tritemm.matmul(a, a, kernel="pipelined", config=fields)

        assert torch.equal(call(a), a @ a)
