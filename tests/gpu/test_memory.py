# SPDX-License-Identifier: Apache-2.0
"""A memory quota under frameworks: each gets all of it, no more, and its usual out-of-memory error."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

TORCH = {"native": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
JAX = {
    "ahead": {},
    "grow": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "1.0"},
    "async": {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"},
}


def torch_env(kind: str) -> dict[str, str]:
    """Both names of the setting: PyTorch renamed it."""
    return {name: TORCH[kind] for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if TORCH[kind]}


@pytest.mark.slow
def test_torch_compile(run_program: Any, quota_env: dict[str, str], tmp_path: Any) -> None:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    outcome = run_program("torch_compile.py", env=quota_env | cache, needs=("torch", "triton"), timeout=150)
    outcome.verify()


@pytest.mark.parametrize("kind", TORCH)
def test_torch_allocator(run_program: Any, quota_env: dict[str, str], kind: str) -> None:
    run_program(
        "torch_memory.py", kind, env=quota_env | torch_env(kind), needs=("torch",)
    ).verify_under_quota()


@pytest.mark.parametrize("kind", JAX)
def test_jax(run_program: Any, quota_env: dict[str, str], kind: str) -> None:
    env = quota_env | JAX[kind] | {"JAX_PLATFORMS": "cuda"}
    run_program("jax_memory.py", kind, env=env, needs=("jax",)).verify_under_quota()


def test_cupy(run_program: Any, quota_env: dict[str, str], tmp_path: Any) -> None:
    env = quota_env | {"CUPY_CACHE_DIR": str(tmp_path / "cupy")}
    run_program("cupy_memory.py", env=env, needs=("cupy",)).verify_under_quota()


def test_torch_graphs_and_triton(run_program: Any, quota_env: dict[str, str]) -> None:
    run_program("torch_kernels.py", env=quota_env, needs=("torch",)).verify_under_quota()


def test_threads_that_allocate_first(run_program: Any, quota_env: dict[str, str]) -> None:
    env = quota_env | torch_env("expandable")
    run_program("torch_threads.py", env=env, needs=("torch",)).verify_under_quota()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_tensors_shared_between_processes(run_program: Any, quota_env: dict[str, str], method: str) -> None:
    run_program("torch_shared.py", method, env=quota_env, needs=("torch",)).verify_under_quota()


def test_the_driver_s_own_calls(run_program: Any, quota_env: dict[str, str]) -> None:
    run_program("driver_memory.py", env=quota_env).verify_under_quota()
