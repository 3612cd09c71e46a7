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
/* Counts a refusal by the quota, or by the driver within the quota, unless the thread is going to wait for memory. */
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
/* Out of memory: waits, and returns whether to try again. */
bool gl_memory_wait_again(struct gl_memory_wait *wait);
void gl_memory_wait_end(struct gl_memory_wait *wait);
/* Takes note of a refusal that is not counted, because the calling thread will try again. */
bool gl_memory_wait_hides_refusal(bool by_card);
/* This process has freed memory: wakes the threads that wait for some. */
void gl_memory_freed(struct gl_gpu *gpu);

/* Bounds of the pause between two tries.  Memory may come free without a wake-up, so the pause is bounded; each try
 * costs a driver call, so it is not too short. */
#define GL_OOM_POLL_NS UINT64_C(50000000)
#define GL_OOM_SLOW_POLL_NS UINT64_C(500000000)
/* The value of `try`, a call that holds no lock.  While it is out of memory and waiting is allowed, it is tried again.
 * gpu_ is only evaluated if it may wait. */
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
	CUcontext context; /* freed with it; NULL: with the process only */
	uint32_t space;    /* enum gl_space */
	uint32_t ordinal;  /* gpu charged */
	uint32_t kind;     /* enum gl_memory_kind */
	uint32_t count;    /* references, where the space has them */
	uint64_t other;    /* pool, allocation, graph: depends on the space */
	uint32_t share;    /* 1 + entry of memory that several processes hold, which charges it; 0: not shared */
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
/* 0 or -ENOMEM (no memory for the table).  A block of the same space and key is replaced and copied to *old if that is
 * not NULL (old->space is 0 if there was none): its memory was freed by a call that the hooks did not see. */
int gl_block_put(const struct gl_block *block, struct gl_block *old);
/* Copies the block out; false if unknown. */
bool gl_block_get(enum gl_space space, uint64_t key, struct gl_block *out);
/* Copies the block out and removes it. */
bool gl_block_take(enum gl_space space, uint64_t key, struct gl_block *out);
/* Calls fn with the block's shard locked (fn must not call gl_block_*); fn returns true to drop it.  False if unknown. */
bool gl_block_update(enum gl_space space, uint64_t key, bool (*fn)(struct gl_block *block, void *arg), void *arg);
/* Counts one reference more.  False if the block is unknown. */
bool gl_block_add_reference(enum gl_space space, uint64_t key);
/* Copies the block out unchanged, then counts one reference less; the last one removes the block.  False if unknown. */
bool gl_block_drop_reference(enum gl_space space, uint64_t key, struct gl_block *out);
/* The same as gl_block_update for each block. */
void gl_block_each(bool (*fn)(struct gl_block *block, void *arg), void *arg);

/* ---- charge.c: the steps that every allocation hook takes ---- */

/* Call before and after a step during which the account and the card differ: a reservation before the driver allocates,
 * or a free before it is uncharged.  A measurement meanwhile is taken with caution.  gpu may be NULL. */
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
	struct gl_gpu *gpu; /* NULL: no current context; the driver returns the error */
	bool in_flight;
	CUcontext context;
	enum gl_memory_kind kind;
	uint64_t bytes;
};
/* Reserves bytes on the current context's gpu.  False: the quota refuses. */
bool gl_charge_begin(struct gl_charge *charge, enum gl_memory_kind kind, uint64_t bytes);
/* The same on a gpu named by the caller, for memory that outlives contexts. */
bool gl_charge_begin_on(struct gl_charge *charge, struct gl_gpu *gpu, enum gl_memory_kind kind, uint64_t bytes);
/* The result of a call that the quota refuses.  `verdict`: the driver's answer to the same call in the smallest size.
 * If that is an error, the call returns it and no refusal is counted; CUDA_SUCCESS: the arguments are valid. */
CUresult gl_charge_refused(const struct gl_charge *charge, CUresult verdict);
/* Corrects the reservation to the real size.  False: over the quota; undo. */
bool gl_charge_correct(struct gl_charge *charge, uint64_t bytes);
/* The driver has allocated: records the block.  False: the block cannot be recorded, and the charge is cancelled; the
 * caller frees the memory and returns out of memory. */
bool gl_charge_commit(struct gl_charge *charge, enum gl_space space, uint64_t key);
/* The driver has not allocated: cancels the charge and returns the driver's code. */
CUresult gl_charge_cancel(struct gl_charge *charge, CUresult result);
/* For a block that was removed from the table because the driver is about to free its memory.  After the driver's
 * answer, uncharges it, or puts it back if the driver refused.  Does nothing if block->space is 0. */
void gl_uncharge_begin(const struct gl_block *block);
void gl_uncharge_end(const struct gl_block *block, CUresult result);
/* Uncharges a block that was removed from the table. */
void gl_uncharge_block(const struct gl_block *block);
/* True if the driver has this device, but it cannot be put under quota (device.c logs why): no allocation on it is
 * allowed. */
bool gl_device_barred(CUdevice dev);

/* ---- overhead.c: device memory of this process that no call requested by size ---- */

void gl_overhead_mark_all(void);
/* Measures if an event, a change or time requires it; a few ns if not. */
void gl_overhead_refresh(struct gl_gpu *gpu);
/* Measures now.  False: the overhead cannot be measured in this process. */
bool gl_overhead_measure(struct gl_gpu *gpu);
/* Call before and after a call that may use memory without naming its size.  watch returns the overhead before the
 * call; fits returns false if the call made it exceed the quota and must be undone. */
uint64_t gl_overhead_watch(struct gl_gpu *gpu);
bool gl_overhead_fits(struct gl_gpu *gpu, uint64_t before);
/* Call after an allocation.  False: little of the quota was left, and the card's rounding has exceeded it; undo. */
bool gl_overhead_fits_rounded(struct gl_gpu *gpu);
/* Call before and after a context is made.  begin reserves the learned cost of one (false: the quota refuses, and the
 * caller counts that).  end measures and learns (false: the real cost exceeds the quota; end the context, then measure
 * again). */
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

/* The driver ended the context: drops the blocks that ended with it, and measures the overhead again. */
void gl_context_gone(struct gl_gpu *gpu, CUcontext context);
/* Moves the blocks of one context to the other. */
void gl_context_inherit(CUcontext from, CUcontext to);
/* A context of so many bytes was refused: logs once if the quota is too small even for one context alone. */
void gl_context_too_large(struct gl_gpu *gpu, uint64_t bytes);
/* Call after gl_overhead_context_begin and the driver's call.  CUDA_SUCCESS, or the reason why the context cannot be
 * kept (the caller ends it, and calls gl_context_gone). */
CUresult gl_context_made(struct gl_gpu *gpu, struct gl_context_cost *cost, CUresult result, CUcontext context);
/* True if the context has ended.  The driver may return an earlier error of its kernels although it ended the
 * context. */
bool gl_context_ended(CUresult result);
bool gl_primary_active(const struct gl_gpu *gpu);
/* Retains the primary context, and charges it if the call makes it. */
CUresult gl_primary_retain(struct gl_gpu *gpu, CUcontext *context);
/* Calls the driver to release or reset it; the account changes once the driver reports that the context has ended. */
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
/* Destroys it by the driver.  Drops its charge, at once or when its last pointer is freed. */
CUresult gl_pool_destroy(CUmemoryPool pool);
/* Trims the unused memory of this process's pools and graphs on the gpu; true if any was freed. */
bool gl_pools_trim(struct gl_gpu *gpu);
/* Updates the charge of every pool on the gpu, and of its graphs, to the driver's figures. */
void gl_pools_refresh(struct gl_gpu *gpu);

/* ---- pool_siblings.c: unused memory of pools that other processes of the tenant need ---- */

/* The process has waited for the GPU: uncharges what its pools freed meanwhile.  One load per gpu if there is
 * nothing. */
void gl_pools_waited(void);
/* Trims if another process of the tenant needs memory. */
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

/* ---- sharing.c: memory passed from process to process ---- */

/* The name of memory: in an opaque handle of 64 bytes, or on a descriptor (0: it has none). */
uint64_t gl_shared_name(const void *opaque);
uint64_t gl_shared_name_of_fd(int fd);
/* The name of the same memory among tenants; 0: the exporter is dead, or not visible from here. */
uint64_t gl_shared_common_name_of_fd(int fd);
/* The driver has exported the block's memory as such a handle (bytes: its size, where it is a pool's), or by fd. */
void gl_shared_export(enum gl_space space, uint64_t key, const void *opaque, uint64_t bytes);
void gl_shared_export_fd(enum gl_space space, uint64_t key, int fd);
/* The driver has imported memory of that name: one of the tenant's processes is charged, and *block refers to the
 * entry. False: the memory is not the tenant's. */
bool gl_shared_join(uint64_t name, struct gl_block *block);
void gl_shared_leave(uint32_t share);
/* Memory of that common name is from outside the tenant, and this process has been charged for it.  *block refers to an
 * entry that other processes of the tenant can join.  False: there is no room, or other tenants cannot be told. */
bool gl_shared_import(struct gl_gpu *gpu, struct gl_block *block, uint64_t common, uint64_t bytes);
/* Bytes of the entry; 0: none. */
uint64_t gl_shared_bytes(uint32_t share);
/* Bytes charged to this process for memory that other processes made; NVML's figure may include it or not. */
uint64_t gl_imported_bytes(const struct gl_gpu *gpu);

/* ---- graph_memory.c: memory nodes of graphs ---- */

/* Bytes that one more node would need beyond what is charged.  Call with gpu->pool_lock held until added. */
uint64_t gl_graph_memory_need(struct gl_gpu *gpu, CUgraph graph, uint64_t bytes);
/* Makes room to record the graph.  0 or -ENOMEM. */
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
/* Updates the graphs' charge to the driver's figure.  Call with books_lock held and captures relaxed. */
void gl_graph_memory_refresh(struct gl_gpu *gpu);
/* The graph that a stream is captured into; NULL: not capturing. */
CUgraph gl_capturing_graph(CUstream stream, bool per_thread);

/* ---- graph_launch.c: launches of such graphs ---- */

/* Call before and after a launch or an upload.  Reserves what it may take from the card (false: the quota refuses),
 * then charges what it took.  Cheap in a process without memory nodes. */
struct gl_graph_launch {
	bool any;
	uint64_t need[GL_MAX_DEVICES]; /* valid if any */
};
bool gl_graph_memory_launch_begin(CUgraphExec exec, struct gl_graph_launch *launch);
void gl_graph_memory_launch_end(CUgraphExec exec, const struct gl_graph_launch *launch, bool uploaded, CUresult result);

/* ---- imported.c: memory of processes outside the tenant ---- */

/* Charges so many (more) bytes of it to the block.  common: the memory's name among tenants; 0 if that is not known, or
 * if the bytes belong to memory that is charged already.  False: the quota refuses. */
bool gl_imported_begin(struct gl_gpu *gpu, struct gl_block *block, uint64_t common, uint64_t bytes);

#pragma GCC visibility pop

#endif
