# SPDX-License-Identifier: Apache-2.0
"""The workload's two kernels, as PTX that every driver since CUDA 9 compiles for every card since sm_50.

    gpulimit_spin(u64 ns, u64 *out)     busy for `ns` by the GPU's wall clock; then adds 1 to *out, if given
    gpulimit_touch(u64 ptr, u64 bytes)  adds 1 to every 64-bit word of a block of memory

The spin reads %globaltimer, so it measures the length of a launch exactly when the GPU serves it without a
break; while the hardware slices between processes it ends on time although it got less of the GPU.  For
throughput under contention use the touch, which is real work.
"""

from __future__ import annotations

SPIN = b"gpulimit_spin"
TOUCH = b"gpulimit_touch"
THREADS_PER_BLOCK = {SPIN: 32, TOUCH: 256}

PTX = b"""\
.version 6.0
.target sm_50
.address_size 64

.visible .entry gpulimit_spin(.param .u64 p_ns, .param .u64 p_out)
{
	.reg .pred %done, %none, %other;
	.reg .b32 %thread, %block, %first;
	.reg .b64 %ns, %out, %start, %now, %spent, %one;

	ld.param.u64 %ns, [p_ns];
	ld.param.u64 %out, [p_out];
	mov.u64 %start, %globaltimer;
SPIN:
	mov.u64 %now, %globaltimer;
	sub.u64 %spent, %now, %start;
	setp.ge.u64 %done, %spent, %ns;
	@!%done bra SPIN;
	setp.eq.u64 %none, %out, 0;
	@%none bra END;
	mov.u32 %thread, %tid.x;
	mov.u32 %block, %ctaid.x;
	or.b32 %first, %thread, %block;
	setp.ne.u32 %other, %first, 0;
	@%other bra END;
	cvta.to.global.u64 %out, %out;
	mov.u64 %one, 1;
	red.global.add.u64 [%out], %one;
END:
	ret;
}

.visible .entry gpulimit_touch(.param .u64 p_ptr, .param .u64 p_bytes)
{
	.reg .pred %end;
	.reg .b32 %thread, %block, %threads, %blocks, %index, %step;
	.reg .b64 %ptr, %bytes, %offset, %stride, %at, %word;

	ld.param.u64 %ptr, [p_ptr];
	ld.param.u64 %bytes, [p_bytes];
	cvta.to.global.u64 %ptr, %ptr;
	shr.u64 %bytes, %bytes, 3;
	shl.b64 %bytes, %bytes, 3;
	mov.u32 %thread, %tid.x;
	mov.u32 %block, %ctaid.x;
	mov.u32 %threads, %ntid.x;
	mov.u32 %blocks, %nctaid.x;
	mad.lo.u32 %index, %block, %threads, %thread;
	mul.lo.u32 %step, %threads, %blocks;
	mul.wide.u32 %offset, %index, 8;
	mul.wide.u32 %stride, %step, 8;
TOUCH:
	setp.ge.u64 %end, %offset, %bytes;
	@%end bra END;
	add.u64 %at, %ptr, %offset;
	ld.global.u64 %word, [%at];
	add.u64 %word, %word, 1;
	st.global.u64 [%at], %word;
	add.u64 %offset, %offset, %stride;
	bra TOUCH;
END:
	ret;
}
"""
