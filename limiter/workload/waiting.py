# SPDX-License-Identifier: Apache-2.0
"""Kernels that wait for each other, as PTX for sm_70 and later, which order memory between cards.

    gpulimit_barrier(u64 *counter, u64 target, u64 ns)
        adds 1 to *counter, spins until it reaches `target`, then is busy for `ns`: models a collective
    gpulimit_await(u64 *flag, u64 value, u64 bail_out_ns, u64 *bails)
        spins until *flag is at least `value`; gives up after `bail_out_ns`, if not 0, and adds 1 to *bails
    gpulimit_set(u64 *flag, u64 value)
        sets *flag

Each kernel is launched as one block.  The words may be in memory of another card or another process.  The
simulated driver knows these kernels by name.  In its barrier, the time `ns` passes only while all ranks run.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_uint64, c_void_p

from limiter.cuda import Driver, Handle

BARRIER = b"gpulimit_barrier"
AWAIT = b"gpulimit_await"
SET = b"gpulimit_set"
THREADS = 32

PTX = b"""\
.version 6.0
.target sm_70
.address_size 64

.visible .entry gpulimit_barrier(.param .u64 p_counter, .param .u64 p_target, .param .u64 p_ns)
{
	.reg .pred %other, %short, %on;
	.reg .b32 %thread;
	.reg .b64 %counter, %target, %ns, %one, %seen, %start, %now;

	ld.param.u64 %counter, [p_counter];
	ld.param.u64 %target, [p_target];
	ld.param.u64 %ns, [p_ns];
	cvta.to.global.u64 %counter, %counter;
	mov.u32 %thread, %tid.x;
	setp.ne.u32 %other, %thread, 0;
	@%other bra TOGETHER;
	mov.u64 %one, 1;
	fence.sc.sys;
	red.relaxed.sys.global.add.u64 [%counter], %one;
COMING:
	ld.acquire.sys.global.u64 %seen, [%counter];
	setp.lt.u64 %short, %seen, %target;
	@%short bra COMING;
TOGETHER:
	bar.sync 0;
	mov.u64 %start, %globaltimer;
TRANSFER:
	mov.u64 %now, %globaltimer;
	sub.u64 %now, %now, %start;
	setp.lt.u64 %on, %now, %ns;
	@%on bra TRANSFER;
	ret;
}

.visible .entry gpulimit_await(
	.param .u64 p_flag, .param .u64 p_value, .param .u64 p_bail_out_ns, .param .u64 p_bails)
{
	.reg .pred %other, %come, %never, %early, %none;
	.reg .b32 %thread;
	.reg .b64 %flag, %value, %limit, %bails, %one, %seen, %start, %now;

	ld.param.u64 %flag, [p_flag];
	ld.param.u64 %value, [p_value];
	ld.param.u64 %limit, [p_bail_out_ns];
	ld.param.u64 %bails, [p_bails];
	mov.u32 %thread, %tid.x;
	setp.ne.u32 %other, %thread, 0;
	@%other bra END;
	cvta.to.global.u64 %flag, %flag;
	setp.eq.u64 %never, %limit, 0;
	mov.u64 %start, %globaltimer;
COMING:
	ld.acquire.sys.global.u64 %seen, [%flag];
	setp.ge.u64 %come, %seen, %value;
	@%come bra END;
	@%never bra COMING;
	mov.u64 %now, %globaltimer;
	sub.u64 %now, %now, %start;
	setp.lt.u64 %early, %now, %limit;
	@%early bra COMING;
	setp.eq.u64 %none, %bails, 0;
	@%none bra END;
	cvta.to.global.u64 %bails, %bails;
	mov.u64 %one, 1;
	red.relaxed.sys.global.add.u64 [%bails], %one;
END:
	ret;
}

.visible .entry gpulimit_set(.param .u64 p_flag, .param .u64 p_value)
{
	.reg .pred %other;
	.reg .b32 %thread;
	.reg .b64 %flag, %value;

	ld.param.u64 %flag, [p_flag];
	ld.param.u64 %value, [p_value];
	mov.u32 %thread, %tid.x;
	setp.ne.u32 %other, %thread, 0;
	@%other bra END;
	cvta.to.global.u64 %flag, %flag;
	st.release.sys.global.u64 [%flag], %value;
END:
	ret;
}
"""


class WaitingKernel:
    """A kernel of this module.  Each launch has its own arguments."""

    def __init__(self, driver: Driver, module: Handle, name: bytes, arguments: int) -> None:
        self._driver = driver
        self._function = Handle()
        driver.call("cuModuleGetFunction", byref(self._function), module, name)
        self._values = (c_uint64 * arguments)()
        start = ctypes.addressof(self._values)
        self._pointers = (c_void_p * arguments)(*(start + 8 * n for n in range(arguments)))
        self._launch = driver.function("cuLaunchKernel")

    def __call__(self, stream: Handle, *arguments: int) -> None:
        self._values[:] = list(arguments)
        one, none = c_uint(1), c_uint(0)
        code = self._launch(
            self._function, one, one, one, c_uint(THREADS), one, one, none, stream, self._pointers, None
        )
        if code:
            self._driver.fail("cuLaunchKernel", code)


def load(driver: Driver) -> Handle:
    """Load the PTX module into the current context and return it."""
    module = Handle()
    driver.call("cuModuleLoadData", byref(module), PTX)
    return module
