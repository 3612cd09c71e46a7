/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that the files about memory offer each other and the hooks, by file.
 */
#ifndef GL_MEMORY_H
#define GL_MEMORY_H

#include "process/process.h"

#pragma GCC visibility push(hidden)

/* ---- reserve.c: memory of this process against the tenant's quota ---- */

int gl_account_add(struct gl_gpu *gpu, enum gl_memory_kind kind, int64_t delta, uint64_t limit);
/* Reserves bytes of the quota.  Returns 0, or -ENOMEM with nothing reserved and the refusal counted.
 * Before it refuses, it reaps dead processes and trims the unused memory of this process's pools. */
int gl_reserve(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes);
/* The same without counting the refusal, for callers that still have to find out its kind. */
int gl_reserve_uncounted(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes);
void gl_uncharge(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes);
/* Moves a reservation from `from` to `to` bytes, above the limit if need be: for what already happened. */
void gl_recharge(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t from, uint64_t to);
/* Same, but refuses with -ENOMEM to grow above the limit. */
int gl_recharge_within(struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t from, uint64_t to);
/* The quota refused memory, or the driver what the quota allowed: count it, unless it is going to be waited for. */
void gl_count_refusal(struct gl_gpu *gpu, uint64_t bytes);
void gl_count_card_refusal(struct gl_gpu *gpu);

/* ---- wait.c: waiting for memory instead of being refused, where the quota asks for it ---- */

struct gl_memory_wait {
	struct gl_gpu *gpu; /* NULL: no waiting */
	uint64_t bytes;     /* wanted; 0: not known */
	uint64_t poll_ns;   /* longest sleep between two tries */
	uint64_t start_ns;  /* 0: not refused yet */
	uint32_t seen;      /* memory_change before the try */
	bool may_wait, by_card;
	struct gl_memory_wait *before;
};
bool gl_memory_wait_possible(void);
void gl_memory_wait_begin(struct gl_memory_wait *wait);
/* Out of memory: waits, and says whether to try again. */
bool gl_memory_wait_again(struct gl_memory_wait *wait);
void gl_memory_wait_end(struct gl_memory_wait *wait);
/* A refusal that is not counted, since the caller's thread will try again. */
bool gl_memory_wait_hides_refusal(bool by_card);
/* Memory of this process was given back: tells who waits. */
void gl_memory_freed(struct gl_gpu *gpu);

/* Bounds of the pause between two tries.  Memory may also come free without a wake-up, so tries cannot wait for ever; each
 * one costs a call of the driver. */
#define GL_OOM_POLL_NS UINT64_C(50000000)
#define GL_OOM_SLOW_POLL_NS UINT64_C(500000000)
/* The value of `try`, a call that holds no lock, tried again while it is out of memory and waiting is allowed.  gpu_ is
 * only looked at if it might be. */
#define GL_RETRY_ON_OOM(gpu_, bytes_, poll, try)                                                                     \
	(__extension__({                                                                                             \
		struct gl_memory_wait wait_ = {                                                                      \
			.gpu = gl_memory_wait_possible() ? (gpu_) : NULL, .bytes = (bytes_), .poll_ns = (poll)};     \
		CUresult result_;                                                                                    \
		gl_memory_wait_begin(&wait_);                                                                        \
		do                                                                                                   \
			result_ = (try);                                                                             \
		while (GL_UNLIKELY(result_ == CUDA_ERROR_OUT_OF_MEMORY) && gl_memory_wait_again(&wait_));            \
		gl_memory_wait_end(&wait_);                                                                          \
		result_;                                                                                             \
	}))
/* A hook whose work is done by once_NAME. */
#define GL_RETRY_ON_OOM_HOOK(name, params, args, gpu, bytes)                                                         \
	CUresult name params                                                                                         \
	{                                                                                                            \
		GL_ENTER(name, args);                                                                                \
		return GL_RETRY_ON_OOM(gpu, bytes, GL_OOM_POLL_NS, once_##name args);                                \
	}

/* ---- blocks.c: what this process holds, by address or handle; O(1) ---- */

struct gl_block {
	uint64_t key;      /* address, array or handle; never 0 */
	uint64_t bytes;    /* charged for it */
	CUcontext context; /* dies with it; NULL: with the process only */
	uint32_t space;    /* enum gl_space */
	uint32_t ordinal;  /* gpu charged */
	uint32_t kind;     /* enum gl_memory_kind */
	uint32_t count;    /* references, where the space has them */
	uint64_t other;    /* pool, allocation, graph: depends on the space */
	uint32_t share;    /* 1 + entry of memory that several processes hold, and that is charged by it; 0: not shared */
	uint32_t imported; /* 1: of a process outside the tenant, charged here */
};
enum gl_space {
	GL_SPACE_POINTER = 1,  /* bytes: charged; pool memory and graph nodes are charged elsewhere, other: pool or graph */
	GL_SPACE_ARRAY,
	GL_SPACE_VMM_HANDLE,   /* count: references by handle; other: id of the memory */
	GL_SPACE_VMM_MEMORY,   /* key: id; bytes: charged; count: its handle and its mappings */
	GL_SPACE_VMM_MAPPING,  /* bytes: size, not charged; other: id of the memory, 0: not ours */
	GL_SPACE_POOL,         /* which gpu a pool is charged to; the charge itself is in gl_gpu.pools */
	GL_SPACE_GRAPH,        /* key: graph + ordinal; bytes: peak; other: live now; count: see graph_memory.c */
	GL_SPACE_GRAPH_EXEC,   /* key: exec + ordinal; bytes: peak; count: as of a graph */
	GL_SPACE_CONTEXT,      /* count: references (cuCtxAttach) */
	GL_SPACE_GREEN,        /* key: green context; other: the same as a context */
	GL_SPACE_OPENED,       /* key: address of another process's memory; count: how often it was opened */
};
#define GL_NOT_CHARGED UINT32_MAX /* as an ordinal */
/* 0 or -ENOMEM (no memory for the table).  A block of the same space and key is replaced and copied to *old if that
 * is not NULL (old->space is 0 if there was none): what it stood for has gone without our seeing. */
int gl_block_put(const struct gl_block *block, struct gl_block *old);
/* Copies the block out; false if unknown. */
bool gl_block_get(enum gl_space space, uint64_t key, struct gl_block *out);
/* Copies it out and forgets it. */
bool gl_block_take(enum gl_space space, uint64_t key, struct gl_block *out);
/* Calls fn with the block's shard locked (fn must not call gl_block_*); fn returns true to drop it.  False if unknown. */
bool gl_block_update(enum gl_space space, uint64_t key, bool (*fn)(struct gl_block *block, void *arg), void *arg);
/* Counts one reference more.  False if the block is unknown. */
bool gl_block_add_reference(enum gl_space space, uint64_t key);
/* Copies the block out as it is, then counts one reference less, and drops the block with the last.  False if unknown. */
bool gl_block_drop_reference(enum gl_space space, uint64_t key, struct gl_block *out);
/* The same as gl_block_update for each block. */
void gl_block_each(bool (*fn)(struct gl_block *block, void *arg), void *arg);

/* ---- charge.c: the steps that every allocation hook takes ---- */

/* Around what makes the books and the card differ for a moment: a reservation before the driver gives the memory, or
 * a free before it is off the books.  A measurement in between is taken with caution.  gpu may be NULL. */
static inline void gl_in_flight_begin(struct gl_gpu *gpu)
{
	if (gpu)
		(void)__atomic_fetch_add(&gpu->in_flight, 1, __ATOMIC_ACQ_REL);
}
static inline void gl_in_flight_end(struct gl_gpu *gpu)
{
	if (gpu)
		(void)__atomic_fetch_sub(&gpu->in_flight, 1, __ATOMIC_ACQ_REL);
}

struct gl_charge {
	struct gl_gpu *gpu; /* NULL: no current context, the driver will say so */
	bool in_flight;
	CUcontext context;
	enum gl_memory_kind kind;
	uint64_t bytes;
};
/* Reserves bytes on the current context's gpu.  False: the quota refuses. */
bool gl_charge_begin(struct gl_charge *charge, enum gl_memory_kind kind, uint64_t bytes);
/* The same on a gpu named by the caller, for memory that no context takes with it. */
bool gl_charge_begin_on(struct gl_charge *charge, struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes);
/* What to answer when the quota refuses.  `verdict`: what the driver says of a call that it may not take at all; that
 * is then the answer, and no refusal is counted.  CUDA_SUCCESS: there is nothing wrong with the call. */
CUresult gl_charge_refused(const struct gl_charge *charge, CUresult verdict);
/* Corrects the amount to what it turned out to be.  False: over the quota; undo. */
bool gl_charge_correct(struct gl_charge *charge, uint64_t bytes);
/* The driver gave it: writes the block down.  False: it cannot be kept; the charge is gone, the caller gives the
 * memory back to the driver and answers out of memory. */
bool gl_charge_commit(struct gl_charge *charge, enum gl_space space, uint64_t key);
/* The driver did not give it: takes the charge back and returns the driver's code. */
CUresult gl_charge_cancel(struct gl_charge *charge, CUresult result);
/* A block was taken out of the table because the driver is about to free what it stands for; after its answer,
 * the charge is given back, or the block put back if the driver refused.  Nothing if block->space is 0. */
void gl_uncharge_begin(const struct gl_block *block);
void gl_uncharge_end(const struct gl_block *block, CUresult result);
/* Gives back what a block that was taken out of the table was charged. */
void gl_uncharge_block(const struct gl_block *block);
/* The driver has this device, but it cannot be put under quota (device.c says why): nothing may be made on it. */
bool gl_device_barred(CUdevice dev);

/* ---- overhead.c: what the card holds for this process beyond what was asked for ---- */

void gl_overhead_mark_all(void);
/* Measures if something calls for it; a few ns if not. */
void gl_overhead_refresh(struct gl_gpu *gpu);
/* Measures now.  False: cannot be measured here. */
bool gl_overhead_measure(struct gl_gpu *gpu);
/* Around a call that may use memory without naming its size.  watch returns the overhead before the call; fits returns
 * false if the call made it exceed the quota and must be undone. */
uint64_t gl_overhead_watch(struct gl_gpu *gpu);
bool gl_overhead_fits(struct gl_gpu *gpu, uint64_t before);
/* After an allocation: false if so little is left that the card's rounding may pass the quota, and does; undo. */
bool gl_overhead_fits_rounded(struct gl_gpu *gpu);
/* Around the making of a context: begin reserves what one was seen to cost (false: the quota refuses, and the caller
 * counts that); end measures
 * and learns (false: the truth is over the quota; end the context, then measure again). */
struct gl_context_cost {
	uint64_t reserved, overhead_before, card_before;
	struct gl_nvml_listing {
		uint32_t count; /* UINT32_MAX: not known, or more than fit */
		uint32_t pid[64];
	} listing; /* the processes on the card before */
};
bool gl_overhead_context_begin(struct gl_gpu *gpu, struct gl_context_cost *cost);
bool gl_overhead_context_end(struct gl_gpu *gpu, struct gl_context_cost *cost, CUcontext context);
/* The context was not made after all. */
void gl_overhead_context_cancel(struct gl_gpu *gpu, struct gl_context_cost *cost);

/* ---- context.c: the beginning and end of contexts ---- */

/* The driver ended the context: drops what died with it, and measures what that gave back. */
void gl_context_gone(struct gl_gpu *gpu, CUcontext context);
/* What belonged to one context belongs to the other from now on. */
void gl_context_inherit(CUcontext from, CUcontext to);
/* A context of so many bytes was refused: says so once if the quota could not hold one even alone. */
void gl_context_too_large(struct gl_gpu *gpu, uint64_t bytes);
/* The driver made a context, or not, after gl_overhead_context_begin: CUDA_SUCCESS, or why there is none to keep (the
 * caller ends the one that the driver made, and calls gl_context_gone). */
CUresult gl_context_made(struct gl_gpu *gpu, struct gl_context_cost *cost, CUresult result, CUcontext context);
/* A context that ends may report what its kernels did wrong, and is gone all the same. */
bool gl_context_ended(CUresult result);
bool gl_primary_active(const struct gl_gpu *gpu);
/* Retains the primary context, charging it if that makes it. */
CUresult gl_primary_retain(struct gl_gpu *gpu, CUcontext *context);
/* Calls the driver to release or reset it; the books change once the driver says that it is gone. */
CUresult gl_primary_leave(struct gl_gpu *gpu, gl_type_cuDevicePrimaryCtxRelease_v2 *real);

/* ---- pool.c: what pools hold, used or not ---- */

/* The gpu that a pool is charged to; NULL: none (host memory, another process's pool). */
struct gl_gpu *gl_pool_gpu(CUmemoryPool pool);
/* Starts charging a pool to a gpu (NULL: to none).  0 or -ENOMEM. */
int gl_pool_add(CUmemoryPool pool, struct gl_gpu *gpu, enum gl_memory_kind kind);
/* Reserves what an allocation may make the pool grow by.  Call with gpu->pool_lock held, until settled. */
bool gl_pool_reserve(struct gl_gpu *gpu, CUmemoryPool pool, uint64_t bytes);
/* After the driver's answer: charges what the pool really holds.  False: it grew over the quota; undo. */
bool gl_pool_settle(struct gl_gpu *gpu, CUmemoryPool pool);
void gl_pool_refresh(struct gl_gpu *gpu, CUmemoryPool pool);
/* A pointer of the pool was freed (its block was taken). */
void gl_pool_freed(const struct gl_block *pointer);
/* Destroys it by the driver and drops its charge, or as soon as its last pointer is freed. */
CUresult gl_pool_destroy(CUmemoryPool pool);
/* Lets the pools of this process on the gpu, and its graphs, give back what they hold unused; true if any did. */
bool gl_pools_trim(struct gl_gpu *gpu);
/* Brings the charge of every pool on the gpu, and of its graphs, to what the driver says that it holds. */
void gl_pools_refresh(struct gl_gpu *gpu);

/* ---- pool_siblings.c: what pools give back, as other processes of the tenant see it ---- */

/* The process has waited for the GPU: looks at what its pools gave back meanwhile.  A load per gpu if there is nothing. */
void gl_pools_waited(void);
/* Trims if another process of the tenant is about to be refused. */
void gl_pools_trim_if_asked(struct gl_gpu *gpu);
/* Asks the tenant's other processes to trim; true if one answered. */
struct gl_plea {
	uint64_t until_ns; /* 0: no process was asked yet */
	uint32_t seen;     /* memory_change at the last answer */
};
bool gl_pools_ask_siblings(struct gl_gpu *gpu, struct gl_plea *plea);
void gl_pools_ask_end(struct gl_gpu *gpu, const struct gl_plea *plea);
/* Another process has asked this one: trims, unless this process captures a stream. */
void gl_pools_answer_asked(void);

/* ---- sharing.c: memory handed from process to process ---- */

/* The name of memory: in an opaque handle of 64 bytes, or on a descriptor (0: it has none). */
uint64_t gl_shared_name(const void *opaque);
uint64_t gl_shared_name_of_fd(int fd);
/* The same as other tenants know it; 0: the exporter is dead, or not seen from here. */
uint64_t gl_shared_common_name_of_fd(int fd);
/* The driver has exported the block's memory as such a handle (bytes: its size, where it is a pool's), or by fd. */
void gl_shared_export(enum gl_space space, uint64_t key, const void *opaque, uint64_t bytes);
void gl_shared_export_fd(enum gl_space space, uint64_t key, int fd);
/* The driver has imported memory of that name: one of the tenant's processes is charged, and *block refers to it.  False:
 * it is not the tenant's. */
bool gl_shared_join(uint64_t name, struct gl_block *block);
void gl_shared_leave(uint32_t share);
/* Memory of that common name is from outside the tenant, and this process has been charged for it: *block refers to an
 * entry that others of the tenant can join.  False: there is no room, or no way to tell other tenants. */
bool gl_shared_import(struct gl_gpu *gpu, struct gl_block *block, uint64_t common, uint64_t bytes);
/* Bytes of the entry; 0: none. */
uint64_t gl_shared_bytes(uint32_t share);
/* Charged to this process for memory that others made; NVML may show it here or not. */
uint64_t gl_imported_bytes(const struct gl_gpu *gpu);

/* ---- graph_memory.c: memory nodes of graphs ---- */

/* What charging one more node would need beyond what is charged.  Call with gpu->pool_lock held until added. */
uint64_t gl_graph_memory_need(struct gl_gpu *gpu, CUgraph graph, uint64_t bytes);
/* Makes sure that there is room to write the graph down.  0 or -ENOMEM. */
int gl_graph_memory_prepare(struct gl_gpu *gpu, CUgraph graph, bool captured);
/* The node was added; `reserved` has been taken for it. */
void gl_graph_memory_add(struct gl_gpu *gpu, CUgraph graph, CUdeviceptr pointer, uint64_t bytes, uint64_t reserved);
/* A free node for the pointer was added to the graph. */
void gl_graph_memory_freed(CUgraph graph, CUdeviceptr pointer);
/* The child's nodes belong to the parent from now on. */
void gl_graph_memory_moved(CUgraph child, CUgraph parent);
/* The driver has made exec from graph / destroyed the exec / destroyed the graph / ended a capture (graph NULL: it
 * failed).  Cheap in a process without memory nodes. */
void gl_graph_memory_instantiated(CUgraph graph, CUgraphExec exec, unsigned long long flags);
void gl_graph_memory_exec_forget(CUgraphExec exec);
void gl_graph_memory_forget(CUgraph graph);
void gl_graph_memory_captured(CUgraph graph);
/* The program trimmed the gpu's graph memory. */
void gl_graph_memory_trimmed(struct gl_gpu *gpu);
/* Brings the graphs' charge to the truth.  Call with books_lock held and captures relaxed. */
void gl_graph_memory_refresh(struct gl_gpu *gpu);
/* The graph that a stream is captured into; NULL: not capturing. */
CUgraph gl_capturing_graph(CUstream stream, bool per_thread);

/* ---- graph_launch.c: launches of such graphs ---- */

/* Around a launch or an upload: reserves what it may take from the card (false: the quota refuses), then charges what
 * it took.  Cheap in a process without memory nodes. */
struct gl_graph_launch {
	bool any;
	uint64_t need[GL_MAX_DEVICES]; /* valid if any */
};
bool gl_graph_memory_launch_begin(CUgraphExec exec, struct gl_graph_launch *launch);
void gl_graph_memory_launch_end(CUgraphExec exec, const struct gl_graph_launch *launch, bool uploaded, CUresult result);

/* ---- imported.c: memory of processes outside the tenant ---- */

/* Charges so many bytes (more) of it to the block; common: by which other tenants know it, 0 if that is not known or these
 * are more bytes of what is charged already.  False: the quota refuses. */
bool gl_imported_begin(struct gl_gpu *gpu, struct gl_block *block, uint64_t common, uint64_t bytes);

#pragma GCC visibility pop

#endif
