"""Compiling and loading .cu files: once for what they include, or a reason why not."""

import re
import threading

import pytest
import torch

from cuda_reference import loader, source, toolkit
from cuda_reference.rungs import RUNGS

pytestmark = pytest.mark.host


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in place of cuda_reference/ with one.cu, which includes shared.cuh."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "ROOT", tmp_path)
    monkeypatch.setattr(source, "INCLUDE", tmp_path / "include")
    monkeypatch.setattr(toolkit, "nvcc", lambda: toolkit.Nvcc(tmp_path, tmp_path, "13.0.88"))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "shared.cuh").write_text('#include "deeper.cuh"\n')
    (tmp_path / "include" / "deeper.cuh").write_text("constexpr int TWO = 2;\n")
    (tmp_path / "include" / "other.cuh").write_text("constexpr int THREE = 3;\n")
    (tmp_path / "one.cu").write_text(
        "/* one: first.\n\n   Signs   sm_80: HMMA; sm_90: HGMMA, no HMMA\n*/\n"
        '#include "shared.cuh"\n'
    )
    return tmp_path


@pytest.fixture
def builder(monkeypatch):
    """Compiling is writing a file here; the list of what was compiled."""
    made = []

    def compile_(name, arch, library):
        made.append((name, arch))
        library.write_text(arch)

    monkeypatch.setattr(loader, "_compile", compile_)
    return made


def test_names_and_headers_of_sources(folder):
    (folder / "types").mkdir()
    (folder / "types" / "two.cu").write_text("/* two: second. */")
    assert source.names() == ["one", "types/two"]
    assert source.opening_comment(folder / "types" / "two.cu") == "two: second."
    assert source.architectures("one") == ("80", "90a")
    with pytest.raises(ValueError, match="no CUDA source is called 'three'; there are one, types"):
        source.path_of("three")


def test_a_change_of_what_is_included_is_a_change(folder, monkeypatch):
    def print_of(arch="90a", flags=toolkit.FLAGS):
        return toolkit.fingerprint(folder / "one.cu", arch, flags)

    first = print_of()
    assert print_of() == first
    (folder / "include" / "other.cuh").write_text("constexpr int THREE = 4;\n")
    assert print_of() == first
    others = {print_of("80"), print_of(flags=(*toolkit.FLAGS, "-G"))}
    (folder / "include" / "deeper.cuh").write_text("constexpr int TWO = 3;\n")
    others.add(print_of())
    monkeypatch.setattr(toolkit, "nvcc", lambda: toolkit.Nvcc(folder, folder, "13.1.0"))
    others.add(print_of())
    assert len(others | {first}) == 5


def test_nothing_is_built_twice(folder, builder):
    library = loader._build("one", "90a")
    assert library.parent == folder / "cache" and library.name.startswith("one-sm_90a-")
    assert loader._build("one", "90a") == library
    assert loader._build("one", "80") != library
    assert builder == [("one", "90a"), ("one", "80")]
    (folder / "include" / "shared.cuh").write_text("")
    assert loader._build("one", "90a") != library
    assert len(builder) == 3


def test_threads_wait_for_the_one_that_builds(folder, monkeypatch):
    made = []
    both_started = threading.Barrier(2)

    def compile_(name, arch, library):
        made.append(name)
        threading.Event().wait(0.2)
        library.write_text("")

    def build():
        both_started.wait()
        loader._build("one", "90a")

    monkeypatch.setattr(loader, "_compile", compile_)
    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["one"]


def test_building_several_shows_progress_and_keeps_each_error(folder, monkeypatch, capsys):
    for name in ("two", "three"):
        (folder / f"{name}.cu").write_text((folder / "one.cu").read_text())

    def compile_(name, arch, library):
        if name == "two":
            raise RuntimeError("two does not compile: error: expected a ';'")
        library.write_text("")

    monkeypatch.setattr(loader, "_compile", compile_)
    monkeypatch.setattr(loader, "architecture", lambda: "90a")
    failed = loader.build(["one", "two", "three"], jobs=2)
    assert failed == {"two": "two does not compile: error: expected a ';'"}
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("building for sm_90a: ") for line in lines)
    assert any(line.endswith("two failed") for line in lines)


def test_hopper_sources_are_not_built_for_other_gpus(folder, builder, monkeypatch):
    text = (folder / "one.cu").read_text()
    (folder / "two.cu").write_text(text.replace("sm_80: HMMA; ", ""))
    for arch, expected in (("90a", {"one", "two"}), ("86", {"one"})):
        monkeypatch.setattr(loader, "architecture", lambda arch=arch: arch)
        builder.clear()
        assert loader.build(["one", "two"]) == {}
        assert {name for name, _ in builder} == expected


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(loader, "architecture", lambda: "90a")
    monkeypatch.setattr(toolkit, "_find_nvcc", lambda: "nvcc was not found: nowhere")
    with pytest.raises(loader.Unavailable, match="nvcc was not found"):
        loader.library(RUNGS[0].name)
    assert loader.unavailable() == "nvcc was not found: nowhere"
    compiler = toolkit.Nvcc(source.ROOT, source.ROOT, "13.0.88")
    monkeypatch.setattr(toolkit, "_find_nvcc", lambda: compiler)
    monkeypatch.setattr(loader, "_no_ninja", lambda: "ninja was not found")
    assert loader.unavailable() == "ninja was not found"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_the_reason_is_said():
    with pytest.raises(loader.Unavailable, match=r"built without CUDA|finds no CUDA device"):
        loader.architecture()
    assert re.match("torch .*CUDA", loader.unavailable())


def test_nvcc_is_looked_for_in_order(tmp_path, monkeypatch):
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setattr(toolkit.shutil, "which", lambda name: str(tmp_path / name))
    monkeypatch.setattr(toolkit, "wheel_folders", lambda: [tmp_path / "cu13"])
    found = [str(path) for path in toolkit._candidates()]
    assert found == [
        f"{tmp_path}/CUDA_HOME/bin/nvcc",
        f"{tmp_path}/CUDA_PATH/bin/nvcc",
        f"{tmp_path}/nvcc",
        "/usr/local/cuda/bin/nvcc",
        f"{tmp_path}/cu13/bin/nvcc",
    ]
