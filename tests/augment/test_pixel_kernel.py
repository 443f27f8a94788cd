"""The kernel in Triton's interpreter, and compiled for a GPU without one."""

import importlib
import sys
from itertools import product

import pytest
import torch

from framework.augment.normalize import PixelChange, PixelForm, by_kernel, by_operators
from framework.system.native import CheckedKernel

pytest.importorskip("triton", reason="needs Triton")
MODULE = "framework.augment.pixel_kernel"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.fixture
def interpreted(monkeypatch):
    """Let Triton run the kernel on the CPU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield
    monkeypatch.delitem(sys.modules, MODULE, raising=False)


def images(shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def change(shape, padding, reflects=False, cuts=True, mirrors=True, normalizes=True):
    generator = torch.Generator().manual_seed(1)
    count, channels = shape[:2]
    offsets = torch.randint(0, 2 * padding + 1, (count, 2), generator=generator)
    mirror = torch.rand(count, generator=generator) < 0.5
    scale = torch.rand(channels, 1, 1, generator=generator) / 100
    shift = torch.randn(channels, 1, 1, generator=generator)
    return PixelChange(
        offsets if cuts else None,
        mirror if mirrors else None,
        padding,
        reflects,
        scale if normalizes else None,
        shift if normalizes else None,
    )


def assert_same(image, change, dtype=torch.float32, layout=torch.contiguous_format):
    kernel = CheckedKernel()
    result = by_kernel(kernel, image, change, PixelForm(dtype, layout))
    assert kernel.failure is None
    assert result.is_contiguous(memory_format=layout)
    assert result.equal(by_operators(image, change).to(result.dtype))
    return result


@pytest.mark.parametrize("shape", [(5, 3, 8, 8), (2, 1, 33, 37)], ids=["colors", "gray"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_layout_has_the_numbers_of_the_operators(shape, dtype, interpreted):
    for layout, reflects in product(LAYOUTS, [False, True]):
        result = assert_same(images(shape), change(shape, 4, reflects), dtype, layout)
        assert result.dtype == dtype


def test_every_part_may_be_left_out(interpreted):
    shape = (5, 3, 8, 8)
    for cuts, mirrors, normalizes in product([False, True], repeat=3):
        whole = change(shape, 2 * cuts, False, cuts, mirrors, normalizes)
        result = assert_same(images(shape), whole, layout=torch.channels_last)
        assert result.dtype == (torch.float32 if normalizes else torch.uint8)


def test_a_gpu_rounds_product_and_sum_apart(monkeypatch, tmp_path):
    from triton import compiler
    from triton.backends.compiler import GPUTarget

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    module = importlib.import_module(MODULE)
    tables = {"offsets": "*i64", "mirror": "*u8", "scale": "*fp32", "shift": "*fp32"}
    names = ["height", "width", "padding", "record_stride", "channel_stride", "row_stride"]
    numbers = dict.fromkeys([*names, "column_stride"], "i32")
    constants = {"CHANNELS": 3, "CHANNELS_LAST": True, "REFLECTS": True, "BLOCK": module.BLOCK}
    signature = {"image": "*u8", "out": "*bf16", **tables, **numbers}
    signature |= dict.fromkeys(constants, "constexpr")
    source = compiler.ASTSource(module.change_pixels, signature, constants)
    made = compiler.compile(source, GPUTarget("cuda", 90, 32), {"enable_fp_fusion": False})
    assert "cubin" in made.asm
    assert "fma.rn" not in made.asm["ptx"]
    assert "mul.f32" in made.asm["ptx"] or "mul.rn.f32" in made.asm["ptx"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_gpu_gives_the_numbers_of_the_cpu(dtype, layout):
    shape = (64, 3, 33, 40)
    for reflects in (False, True):
        here = change(shape, 4, reflects)
        there = PixelChange(*(own.cuda() if isinstance(own, torch.Tensor) else own for own in here))
        kernel = CheckedKernel()
        result = by_kernel(kernel, images(shape).cuda(), there, PixelForm(dtype, layout))
        assert kernel.failure is None
        assert result.cpu().equal(by_operators(images(shape), here).to(dtype))
