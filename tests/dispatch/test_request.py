"""What a caller asks for: rungs by name, and configs, which are run as they are or refused."""

import dataclasses

import numpy as np
import pytest
import torch

import tritemm
from tests.dispatch.choosing import problem
from tests.harness import DEVICE, operand, operands
from tritemm import dispatch
from tritemm.dispatch.request import Request, for_gradients, word_of
from tritemm.problem.config import Config, config_of


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
            ({"num_warps": 0}, "num_warps=0; it must be a whole number, 1 or more"),
            ({"BLOCK_M": 64.0}, r"BLOCK_M=64\.0; it must be a whole number"),
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


class TestWord:
    config = Config(64, 64, 32)

    def test_names_and_rungs(self):
        assert (
            word_of("auto") == "auto" and word_of("tma") == word_of(dispatch.find("tma")) == "tma"
        )
        assert word_of("auto", None, True) == "auto/batch_invariant"
        named = word_of(dispatch.find("tma"), self.config)
        assert named == word_of("tma", self.config) and Request.parse(named).kernel == "tma"

    @pytest.mark.parametrize("kernel", [None, 7, b"tma", ["tma"], np.array(["tma", "auto"])])
    def test_others_are_refused(self, kernel):
        message = f"name of a rung of tritemm.ladder\\(\\), or a rung, not {type(kernel).__name__}"
        for config in (None, self.config):
            with pytest.raises(TypeError, match=message):
                word_of(kernel, config)
        with pytest.raises(ValueError, match="no rung is called 'tma/BLOCK_M=1'"):
            word_of("tma/BLOCK_M=1")

    def test_explain_takes_what_it_says(self):
        a, b = operands(8, 8, 16, torch.float16)
        choice = tritemm.explain(a, b)
        again = tritemm.explain(a, b, kernel=choice.kernel, config=choice.config)
        assert (again.kernel, again.config) == (choice.kernel, choice.config)


class TestConfig:
    """config= for one rung: it runs just that, or says the limit."""

    @pytest.mark.parametrize(
        ("rung", "config"),
        [
            ("tma", Config(128, 32, 64, num_stages=2, SWAP=True)),
            ("pingpong", Config(128, 192, 64, num_warps=4, num_stages=3)),
            ("warp_specialized", Config(128, 128, 64, 8, 3, PARTS=2)),
            ("split_k", Config(128, 128, 64, 8, 3, PARTS=2)),
            ("split_k", Config(128, 128, 64, 8, 3, PARTS=2, SPLIT_K=2)),
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
        with pytest.raises(ValueError, match="omit config="):
            tritemm.matmul(a, b, kernel="tma", config=fields, batch_invariant=True)

    def test_under_compile(self):
        a = torch.ones(16, 16, dtype=torch.float16, device=DEVICE)
        fields = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}

        @torch.compile(backend="eager", fullgraph=True)
        def call(a):
            return tritemm.matmul(a, a, kernel="pipelined", config=fields)

        assert torch.equal(call(a), a @ a)
