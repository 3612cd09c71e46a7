/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain, pitched and managed memory, and the free calls, which take pointers of every kind.  Managed memory is
 * charged in full to the device current at the call, wherever its pages are.  Outputs are written only on success.
 *
 * The quota is checked before the driver's call.  If the quota refuses a call that the driver might reject anyway (`doubt`),
 * the driver is called with the smallest size, and its error is the answer.
 */
#include "shim.h"

/* The size of an impossible allocation is larger than any quota. */
static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;
	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* The driver's answer to the same call with almost no memory. */
#define TRIED(try, undo) (__extension__({                                                                              \
	CUresult tried_ = (try);                                                                                       \
	if (tried_ == CUDA_SUCCESS)                                                                                    \
		(undo);                                                                                                \
	tried_;                                                                                                        \
}))

static CUresult managed_doubt(unsigned int flags)
{
	CUdeviceptr got;
	return flags == 1 || flags == 2 ? CUDA_SUCCESS
					: TRIED(REAL(cuMemAllocManaged)(&got, 1, flags), REAL(cuMemFree_v2)(got));
}

/* A call that allocates `bytes`, which is one of `params`; these and `args` follow the address. */
#define ALLOCATING(name, address, kind, undo, doubt, params, args)                                                     \
	static CUresult once_##name(address *dptr, GL_REST params)                                                     \
	{                                                                                                              \
		struct gl_charge charge;                                                                               \
		address got;                                                                                           \
		if (!dptr || !bytes)                                                                                   \
			return REAL(name)(dptr, GL_REST args);                                                         \
		if (!gl_charge_begin(&charge, kind, bytes))                                                            \
			return gl_charge_refused(&charge, doubt);                                                      \
		CUresult result = REAL(name)(&got, GL_REST args);                                                      \
		if (result != CUDA_SUCCESS)                                                                            \
			return gl_charge_cancel(&charge, result);                                                      \
		if (!gl_charge_commit(&charge, GL_SPACE_POINTER, got)) {                                               \
			REAL(undo)(got);                                                                               \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		}                                                                                                      \
		*dptr = got;                                                                                           \
		return CUDA_SUCCESS;                                                                                   \
	}                                                                                                              \
	GL_RETRY_ON_OOM_HOOK(name, (address *dptr, GL_REST params), (dptr, GL_REST args), gl_gpu_current(), bytes)

ALLOCATING(cuMemAlloc_v2, CUdeviceptr, GL_MEM_PLAIN, cuMemFree_v2, CUDA_SUCCESS, (size_t bytes), (bytes))
ALLOCATING(cuMemAlloc, CUdeviceptr_v1, GL_MEM_PLAIN, cuMemFree, CUDA_SUCCESS, (unsigned int bytes), (bytes))
ALLOCATING(cuMemAllocManaged, CUdeviceptr, GL_MEM_MANAGED, cuMemFree_v2, managed_doubt(flags),
	   (size_t bytes, unsigned int flags), (bytes, flags))

/* Rows are padded to 512 bytes on the cards known; the driver's answer then corrects the guess. */
static uint64_t guess_pitched(uint64_t width, uint64_t height)
{
	return width > UINT64_MAX - 511 ? UINT64_MAX : times((width + 511) & ~UINT64_C(511), height);
}

static bool keep_pitched(struct gl_charge *charge, CUdeviceptr got, uint64_t pitch, uint64_t height)
{
	if (!pitch || gl_charge_correct(charge, times(pitch, height)))
		return gl_charge_commit(charge, GL_SPACE_POINTER, got);
	gl_charge_cancel(charge, CUDA_SUCCESS);
	return false;
}

/* The two calls for rows of one length: today's, and that of CUDA 2. */
#define PITCHED(name, address, size, undo)                                                                             \
	static CUresult once_##name(address *dptr, size *pitch, size width, size height, unsigned int element)         \
	{                                                                                                              \
		struct gl_charge charge;                                                                               \
		address got;                                                                                           \
		size got_pitch = 0;                                                                                    \
		if (!dptr || !width || !height)                                                                        \
			return REAL(name)(dptr, pitch, width, height, element);                                        \
		if (!gl_charge_begin(&charge, GL_MEM_PLAIN, guess_pitched(width, height)))                             \
			return gl_charge_refused(                                                                      \
				&charge, pitch && (element == 4 || element == 8 || element == 16)                      \
						 ? CUDA_SUCCESS                                                        \
						 : TRIED(REAL(name)(&got, pitch ? &got_pitch : NULL, 1, 1, element),   \
							 REAL(undo)(got)));                                            \
		CUresult result = REAL(name)(&got, pitch ? &got_pitch : NULL, width, height, element);                 \
		if (result != CUDA_SUCCESS)                                                                            \
			return gl_charge_cancel(&charge, result);                                                      \
		if (!keep_pitched(&charge, got, got_pitch, height)) {                                                  \
			REAL(undo)(got);                                                                               \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
		}                                                                                                      \
		*dptr = got;                                                                                           \
		if (pitch)                                                                                             \
			*pitch = got_pitch;                                                                            \
		return CUDA_SUCCESS;                                                                                   \
	}                                                                                                              \
	GL_RETRY_ON_OOM_HOOK(name, (address *dptr, size *pitch, size width, size height, unsigned int element),        \
			(dptr, pitch, width, height, element), gl_gpu_current(), guess_pitched(width, height))

PITCHED(cuMemAllocPitch_v2, CUdeviceptr, size_t, cuMemFree_v2)
PITCHED(cuMemAllocPitch, CUdeviceptr_v1, unsigned int, cuMemFree)

/* Removes the block from the table before the driver's call, not after it: once the driver has freed the address, another
 * thread may get the same address and record its own block, which this call must not remove.  The bytes are uncharged only
 * after the driver has freed them.  A graph's allocation node stays charged to the graph, even if the program frees its
 * memory in between. */
static bool unless_of_a_graph(struct gl_block *block, void *out)
{
	if (block->kind == GL_MEM_GRAPH)
		return false;
	*(struct gl_block *)out = *block;
	return true;
}

static struct gl_block taken(CUdeviceptr dptr)
{
	struct gl_block block = {.space = 0};
	(void)gl_block_update(GL_SPACE_POINTER, dptr, unless_of_a_graph, &block);
	gl_uncharge_begin(&block);
	return block;
}

static CUresult freed(CUresult result, const struct gl_block *block, bool stream_ordered)
{
	gl_uncharge_end(block, result);
	if (!block->space || result != CUDA_SUCCESS)
		return result;
	if (block->kind == GL_MEM_POOL) {
		gl_pool_freed(block);
		gl_pools_trim_if_asked(gl_gpu_of((CUdevice)block->ordinal));
	} else if (stream_ordered) /* the card may hold the memory a little longer */
		gl_overhead_mark(gl_gpu_of((CUdevice)block->ordinal));
	return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	GL_ENTER(cuMemFree_v2, (dptr));
	struct gl_block block = taken(dptr);
	return freed(REAL(cuMemFree_v2)(dptr), &block, false);
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
	GL_ENTER(cuMemFree, (dptr));
	struct gl_block block = taken(dptr);
	return freed(REAL(cuMemFree)(dptr), &block, false);
}

static CUresult free_async(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
	gl_type_cuMemFreeAsync *real = per_thread ? REAL(cuMemFreeAsync_ptsz) : REAL(cuMemFreeAsync);
	CUgraph graph = gl_capturing_graph(stream, per_thread);
	if (graph) { /* recorded as a free node: nothing is freed now */
		CUresult result = real(dptr, stream);
		if (result == CUDA_SUCCESS)
			gl_graph_memory_freed(graph, dptr);
		return result;
	}
	struct gl_block block = taken(dptr);
	return freed(real(dptr, stream), &block, true);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
	GL_ENTER(cuMemFreeAsync, (dptr, stream));
	return free_async(dptr, stream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
	GL_ENTER(cuMemFreeAsync_ptsz, (dptr, stream));
	return free_async(dptr, stream, true);
}
