# SPDX-License-Identifier: Apache-2.0
"""Every way of reaching the driver lands in the library, and nothing else does."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT, SOURCES, Program

HOOKS = ROOT / "csrc" / "hooks.def"
EXPORTS = ROOT / "csrc" / "sim" / "exports.def"
WAYS = ["handle", "default", "next", "null", "dlvsym", "self"]
QUOTA = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "64MiB"}
GLIBC_VERSIONS = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}


def hooks() -> list[str]:
    """Return the names of the hook table."""
    names = re.findall(r"^(?:CU|NVML)_HOOK\((\w+),", HOOKS.read_text(), re.MULTILINE)
    assert len(names) > 100
    return names


@pytest.fixture
def walk(program: Program, run_process: Any) -> Callable[..., dict[str, tuple[str, str]]]:
    """Look names up in one way; return where each was found, by name."""

    def run(env: dict[str, str], way: str, *names: str) -> dict[str, tuple[str, str]]:
        binary = program("ways/walk", "-DLINKED") if way == "linked" else program("ways/walk", link=False)
        if way in ("default", "next", "null"):
            binary = program(
                "ways/walk", "-DALSO_LINKED"
            )  # the driver in the global scope, as for a linked program
        lines = run_process([binary, way, *names], env=env, expect=0).stdout.splitlines()
        return {line.split()[0]: (line.split()[1], line.split()[2]) for line in lines}

    return run


@pytest.fixture
def stub(program: Program, compile_c: Any, tmp_path: Path, limited_env: dict[str, str]) -> Any:
    """Make a driver of straw without the symbols named; return the environment to use it, with no quota."""

    def make(*missing: str) -> dict[str, str]:
        script = tmp_path / "exports"
        hidden = f"local: {'; '.join(missing)};" if missing else ""
        script.write_text(f"{{ global: cu*; nvml*; stub_last; {hidden} }};\n")
        folder = tmp_path / "stub"
        folder.mkdir()
        library = compile_c(
            SOURCES / "ways" / "stub_driver.c",
            *("-shared", "-fPIC", f"-Wl,--version-script={script}", "-ldl"),
            name=f"stub-{len(missing)}",
        )
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(library, folder / name)
        return limited_env | {"LD_LIBRARY_PATH": str(folder)}

    return make


@pytest.mark.parametrize("way", [*WAYS, "linked"])
def test_every_name_of_the_table_is_the_library_s_in_every_way(
    walk: Any, limited_env: dict[str, str], way: str
) -> None:
    found = walk(limited_env, way)
    assert found == {name: ("libgpulimit.so", name) for name in hooks()}


@pytest.mark.parametrize("way", sorted({*WAYS} - {"dlvsym"}))  # the driver's symbols have no versions
def test_without_the_library_the_walk_sees_the_driver(walk: Any, sim_env: dict[str, str], way: str) -> None:
    """Guards the test above: the way is one that leads to the driver."""
    found = walk(sim_env, way)
    assert {file for file, _ in found.values()} == {"libcuda.so.1", "libnvidia-ml.so.1"}


@pytest.mark.parametrize("way", sorted({*WAYS} - {"dlvsym"}))
def test_what_is_not_in_the_table_is_the_driver_s(walk: Any, limited_env: dict[str, str], way: str) -> None:
    found = walk(limited_env, way, "cuCtxGetDevice", "cuMemcpyHtoD_v2", "nvmlShutdown", "malloc")
    assert found["cuCtxGetDevice"] == ("libcuda.so.1", "cuCtxGetDevice")
    assert found["cuMemcpyHtoD_v2"] == ("libcuda.so.1", "cuMemcpyHtoD_v2")
    assert found["nvmlShutdown"] == ("libnvidia-ml.so.1", "nvmlShutdown")


@pytest.mark.parametrize("way", WAYS)
def test_a_symbol_that_no_library_has_stays_absent_and_dlerror_says_so(
    walk: Any, limited_env: dict[str, str], way: str
) -> None:
    found = walk(limited_env, way, "cuNoSuchCall", "nvmlNoSuchCall", "nothing")
    assert set(found.values()) == {("-", "error")}


@pytest.mark.parametrize("way", WAYS)
def test_a_symbol_that_the_driver_lacks_stays_absent_and_dlerror_says_so(
    walk: Any, stub: Any, way: str
) -> None:
    """As with an older driver: a program that looks a new call up must not be told that it is there."""
    env = stub("cuGreenCtxCreate", "cuGraphAddNode_v2", "nvmlDeviceGetProcessesUtilizationInfo")
    found = walk(env, way, "cuGreenCtxCreate", "cuGraphAddNode_v2", "nvmlDeviceGetProcessesUtilizationInfo")
    assert set(found.values()) == {("-", "error")}
    assert walk(env, way, "cuMemAlloc_v2")["cuMemAlloc_v2"] == ("libgpulimit.so", "cuMemAlloc_v2")


@pytest.mark.parametrize("way", ["default", "next", "null"])
def test_without_a_driver_in_the_process_nothing_is_found_and_dlerror_says_so(
    program: Program, run_process: Any, limited_env: dict[str, str], tmp_path: Path, way: str
) -> None:
    binary = program("ways/walk", link=False)
    env = limited_env | {"LD_LIBRARY_PATH": str(tmp_path)}
    lines = run_process([binary, way, "cuInit", "nvmlInit_v2", "nvmlDeviceGetMemoryInfo"], env=env, expect=0)
    assert {line.split(None, 1)[1] for line in lines.stdout.splitlines()} == {"- error"}


def test_an_unlimited_call_goes_to_its_own_original_with_its_own_arguments(
    program: Program, run_process: Any, stub: Any
) -> None:
    """Each twin and each version calls its namesake; nothing is changed on the way in or out."""
    env = stub()
    del env["GPULIMIT_TENANT"]
    ended = run_process([program("ways/hand_on", link=False)], env=env)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_twins_use_their_own_default_stream_under_quota(
    program: Program, run_process: Any, limited_env: dict[str, str]
) -> None:
    run_process([program("ways/twins")], env=limited_env | QUOTA | {"GPULIMIT_COMPUTE": "90"}, expect=0)


def proc_addresses(binary: Path, run_process: Any, env: dict[str, str], tmp_path: Path) -> list[list[str]]:
    names = tmp_path / "names"
    known = re.findall(r"^SIM_CU\((\w+), (\d+),", EXPORTS.read_text(), re.MULTILINE)
    every = sorted({name for name, _ in known})
    versions = sorted({version for _, version in known} | {"12345", "99990"}, key=int)
    names.write_text("\n".join([*every, "cuNoSuchCall", "malloc"]))
    with names.open() as stdin:
        out = run_process([binary, *versions], env=env, expect=0, stdin=stdin).stdout
    rows = [line.split() for line in out.splitlines()]
    assert len(rows) == (len(every) + 2) * len(versions) * 3 * 2
    return rows


LACKING = ("cuGreenCtxCreate", "cuMemAllocAsync_ptsz", "cuCtxCreate_v4")


@pytest.mark.parametrize("missing", [(), LACKING])
def test_get_proc_address_gives_the_same_variant_as_the_driver_but_the_library_s(
    program: Program,
    run_process: Any,
    sim_env: dict[str, str],
    limited_env: dict[str, str],
    tmp_path: Path,
    missing: tuple[str, ...],
) -> None:
    """For every name that the driver knows, every version, all flags and both generations of the call."""
    environ = {"GPULIMIT_SIM_DRIVER_VERSION": "13050", "GPULIMIT_SIM_MISSING": ",".join(missing)}
    binary = program("ways/proc_address", link=False)
    free = proc_addresses(binary, run_process, sim_env | environ, tmp_path)
    limited = proc_addresses(binary, run_process, limited_env | environ, tmp_path)
    ours = set(hooks())
    for before, after in zip(free, limited, strict=True):
        assert after[:6] == before[:6]
        assert after[7] == before[7], f"{before} became {after}"
        if after[7] != "-":
            assert after[6] == ("libgpulimit.so" if after[7] in ours else "libcuda.so.1"), after
    swapped = {row[7] for row in limited if row[6] == "libgpulimit.so"}
    assert {name for name in ours if name.startswith("cu")} - swapped == set(missing)


def reach(run_process: Any, binary: Path, env: dict[str, str], *arguments: str) -> str:
    return str(run_process([binary, *arguments], env=env, expect=0).stdout).strip()


@pytest.mark.parametrize("thread", [(), ("thread",)])
@pytest.mark.parametrize(
    "way", ["handle", "default", "next", "null", "dlvsym", "proc1", "proc2", "ptsz", "chain"]
)
def test_a_program_is_held_to_its_quota_in_whichever_way_it_reaches_the_driver(
    program: Program, run_process: Any, limited_env: dict[str, str], way: str, thread: tuple[str, ...]
) -> None:
    binary = program("ways/reach", link=False)
    assert reach(run_process, binary, limited_env | QUOTA, *thread, way) == "refused"
    assert reach(
        run_process, binary, limited_env | QUOTA | {"LD_PRELOAD": ""}, way
    ) == "over the quota" or way in (
        "default",
        "next",
        "null",
    )


@pytest.mark.parametrize("how", ["dlopened", "linked", "preloaded"])
def test_a_look_up_by_another_library_s_next_dlsym_lands_in_the_library(
    program: Program, compile_c: Any, run_process: Any, limited_env: dict[str, str], how: str
) -> None:
    flags = ("-shared", "-fPIC", "-D_GNU_SOURCE", "-ldl")
    library = compile_c(SOURCES / "ways" / "looks_up.c", *flags, name="looks_up.so")
    binary = program(
        "ways/reach", *(("-Wl,--no-as-needed", str(library)) if how == "linked" else ()), link=False
    )
    env = limited_env | QUOTA | {"LOOKS_UP": str(library)}
    if how == "preloaded":
        env["LD_PRELOAD"] = f"{env['LD_PRELOAD']}:{library}"
    assert reach(run_process, binary, env, "library") == "refused"


@pytest.mark.parametrize(
    "flags", [(), ("-no-pie", "-fno-pie"), ("-Wl,-z,now",), ("-Wl,-z,lazy",), ("-rdynamic",)]
)
def test_a_linked_program_is_held_to_its_quota(
    program: Program, run_process: Any, limited_env: dict[str, str], flags: tuple[str, ...]
) -> None:
    binary = program("ways/reach", "-DLINKED", *flags)
    assert reach(run_process, binary, limited_env | QUOTA, "linked") == "refused"


@pytest.mark.parametrize("way", ["handle", "proc1", "proc2", "ptsz", "chain"])
def test_launches_are_counted_in_whichever_way_they_come(
    program: Program,
    start_process: Any,
    limited_env: dict[str, str],
    books: Any,
    way: str,
) -> None:
    binary = program("ways/reach", link=False)
    process = start_process([binary, way], env=limited_env | QUOTA, stdin=-1)
    assert process.stdout.readline() == "refused\n"
    usage = books()
    assert usage.processes[0].accounts[0].launches["kernel"] == 7
    assert usage.devices[0].refused == 1


def test_another_library_s_functions_of_the_same_names_stay_its_own(
    program: Program, compile_c: Any, run_process: Any, limited_env: dict[str, str]
) -> None:
    library = compile_c(
        SOURCES / "ways" / "own_library.c", "-shared", "-fPIC", "-ldl", "-D_GNU_SOURCE", name="own.so"
    )
    ended = run_process([program("ways/own_names", link=False), library], env=limited_env)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_program_s_own_global_function_is_found_before_the_driver_s(
    compile_c: Any, run_process: Any, limited_env: dict[str, str]
) -> None:
    source = """
    #include <dlfcn.h>
    #include <stdio.h>
    int cuInit(unsigned flags) { (void)flags; return 42; }
    int main(void)
    {
        int (*by_default)(unsigned) = (int (*)(unsigned))dlsym(RTLD_DEFAULT, "cuInit");
        int (*by_null)(unsigned) = (int (*)(unsigned))dlsym(dlopen(0, RTLD_NOW), "cuInit");
        printf("%d %d\\n", by_default ? by_default(0) : -1, by_null ? by_null(0) : -1);
    }
    """
    binary = compile_c(source, "-D_GNU_SOURCE", "-rdynamic", "-ldl", name="own-init")
    assert run_process([binary], env=limited_env, expect=0).stdout == "42 42\n"


def test_a_look_up_from_inside_the_driver_gets_the_driver_s_own(
    program: Program, compile_c: Any, run_process: Any, stub: Any
) -> None:
    """The driver of straw loads its second part and calls what it finds; given ours, it would never end."""
    second = compile_c(
        "int cuInit(unsigned f) { return (int)f + 77; }\n", "-shared", "-fPIC", name="second.so"
    )
    source = """
    #include <dlfcn.h>
    #include <stdio.h>
    int main(void)
    {
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
        printf("%d\\n", init(0));
    }
    """
    binary = compile_c(source, "-ldl", name="call-init")
    env = stub()
    # The part may be another file, or the driver under its own name, which the application would get as ours.
    assert run_process([binary], env=env | {"STUB_SECOND": str(second)}, expect=0).stdout == "77\n"


@pytest.mark.parametrize("order", ["other first", "library first"])
@pytest.mark.parametrize("flags", [(), ("-DHOOK_DLSYM",)], ids=["plain", "hooks dlsym too"])
def test_another_preloaded_library_in_either_order(
    program: Program,
    compile_c: Any,
    run_process: Any,
    limited_env: dict[str, str],
    order: str,
    flags: tuple[str, ...],
) -> None:
    """Both work; there is no endless chain, and the quota holds."""
    version = GLIBC_VERSIONS.get(platform.machine(), "GLIBC_2.17")
    other = compile_c(
        SOURCES / "ways" / "interposer.c",
        *("-shared", "-fPIC", "-D_GNU_SOURCE", f'-DREAL_DLSYM_VERSION="{version}"', "-ldl", *flags),
        name="interposer.so",
    )
    both = [str(other), limited_env["LD_PRELOAD"]]
    env = limited_env | QUOTA | {"LD_PRELOAD": ":".join(both if order == "other first" else both[::-1])}
    for way in ("handle", "default", "proc2", "chain"):
        assert reach(run_process, program("ways/reach", link=False), env, way) == "refused"
    assert reach(run_process, program("ways/reach", "-DLINKED"), env, "linked") == "refused"


@pytest.mark.parametrize("round_", range(3))
def test_threads_that_make_the_first_calls_at_once_join_once(
    program: Program, run_process: Any, limited_env: dict[str, str], round_: int
) -> None:
    run_process([program("ways/first_calls"), "12", "8"], env=limited_env | QUOTA, expect=0)


@pytest.mark.parametrize("version", ["11040", "12020", "13020", "15070"])
def test_a_driver_of_another_version_works(
    program: Program, run_process: Any, limited_env: dict[str, str], version: str
) -> None:
    missing = (
        "cuGreenCtxCreate,cuGreenCtxDestroy,cuCtxCreate_v3,cuLaunchCooperativeKernelMultiDevice,cuCtxAttach"
    )
    env = limited_env | QUOTA
    env |= {"GPULIMIT_SIM_DRIVER_VERSION": version, "GPULIMIT_SIM_MISSING": missing}
    for way in ("handle", "proc2"):
        assert reach(run_process, program("ways/reach", link=False), env, way) == "refused"


def test_a_driver_without_half_of_the_calls_works(program: Program, run_process: Any, stub: Any) -> None:
    """What is left is handed on; there is no crash in what is not there."""
    missing = [name for i, name in enumerate(hooks()) if i % 2 and name != "cuInit"]
    env = stub(*missing)
    del env["GPULIMIT_TENANT"]
    ended = run_process([program("ways/hand_on", link=False)], env=env, expect=1)
    lines = [line.split(": ") for line in ended.stdout.splitlines()]
    assert lines == [[name, "not the library's"] for name in missing]


@pytest.mark.parametrize("name", ["libgpulimit.so", "other-name.so.7"])
def test_where_the_library_lies_does_not_matter(
    program: Program, run_process: Any, built: Any, limited_env: dict[str, str], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "opt" / "somewhere"
    folder.mkdir(parents=True)
    shutil.copy(built.library, folder / name)
    env = limited_env | QUOTA | {"LD_PRELOAD": str(folder / name)}
    assert reach(run_process, program("ways/reach", link=False), env, "chain") == "refused"
    assert reach(run_process, program("ways/reach", "-DLINKED"), env, "linked") == "refused"
