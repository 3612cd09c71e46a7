/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of libcuda: objects of one process.  machine.h has the shared state and the glossary.
 *
 * One lock per process guards all objects.  Exported functions take it on entry (SIM_ENTER) and release it on
 * every return.  Functions that wait release it meanwhile, so their callers must look up each object again
 * afterwards.  Order: process lock, then machine lock.
 *
 * Every object of a context starts with a pointer to the context, so that the end of a context frees its objects.
 * Contexts themselves are never freed: they may still be current in threads.
 */
#ifndef GL_SIM_SIM_H
#define GL_SIM_SIM_H

#include "cuda_more.h"
#include "machine.h"

/* ---- entering ---- */

struct sim_call {
	struct sim_site *site;
	bool locked;
};
bool sim_enter(struct sim_call *call, bool early, CUresult *result); /* true: the caller must return *result */
void sim_leave(struct sim_call *call);
void sim_lock(void);
void sim_unlock(void);

#define SIM_ENTER_AS(fn, early)                                                        \
	static struct sim_site site_ = { #fn, 0, NULL };                               \
	struct sim_call call_ __attribute__((cleanup(sim_leave))) = { &site_, false }; \
	CUresult enter_;                                                               \
	if (sim_enter(&call_, early, &enter_))                                         \
	return enter_
#define SIM_ENTER(fn) SIM_ENTER_AS(fn, false)
#define SIM_ENTER_EARLY(fn) SIM_ENTER_AS(fn, true) /* works before cuInit, takes no lock */
#define SIM_TRY(call)                          \
	do {                                   \
		CUresult try_ = (call);        \
		if (try_)                      \
			return try_;           \
	} while (0)
#define SIM_PTSZ(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

/* ---- handles ---- */

enum sim_kind {
	SIM_CTX = 1, SIM_STREAM, SIM_EVENT, SIM_MODULE, SIM_FUNC, SIM_LIBRARY, SIM_KERNEL, SIM_ARRAY, SIM_MIPMAP,
	SIM_POOL, SIM_GRAPH, SIM_NODE, SIM_EXEC, SIM_GREEN, SIM_VMM,
};
bool sim_handle_add(const void *handle, enum sim_kind kind);
bool sim_handle_is(const void *handle, enum sim_kind kind);
void sim_handle_drop(const void *handle);
/* Call `drop` for every handle of `kind` whose object starts with `owner`. */
void sim_handle_sweep(enum sim_kind kind, const void *owner, void (*drop)(void *object));

/* ---- devices ---- */

extern int sim_device_count;
extern uint32_t sim_device_gpu[SIM_MAX_GPUS]; /* CUDA ordinal -> GPU of the machine */
void sim_visible_devices(void);
static inline bool sim_device_ok(CUdevice dev) { return dev >= 0 && dev < sim_device_count; }
static inline struct sim_model *sim_model_of(uint32_t gpu) { return &sim_machine->gpus[gpu].model; }
int sim_device_of_gpu(uint32_t gpu);

/* ---- contexts ---- */

struct CUctx_st {
	uint64_t id;
	uint32_t gpu, queue;
	CUdevice device;
	bool primary, alive;
	unsigned int flags, retained;
	uint64_t small_bytes; /* sum of the allocations that share granules */
	CUstream legacy;
	uint64_t harvested; /* number of items whose marks have been processed */
	CUevent *marks;     /* by item: event that gets the item's end time */
	size_t limits[16];
	int cache_config;
};
CUresult sim_current(CUcontext *ctx);
CUresult sim_context_create(CUcontext ctx, CUdevice dev, unsigned int flags);
void sim_context_clear(CUcontext ctx);
CUcontext sim_primary(CUdevice dev);
#define SIM_CURRENT(ctx)  \
	CUcontext ctx;    \
	SIM_TRY(sim_current(&ctx))

/* ---- the card's memory ---- */

CUresult sim_charge(uint32_t gpu, uint64_t bytes);
void sim_uncharge(uint32_t gpu, uint64_t bytes);
uint64_t sim_rounded(uint32_t gpu, uint64_t bytes);
CUresult sim_take(CUcontext ctx, uint64_t bytes); /* charge an allocation; small ones share granules */
void sim_give(CUcontext ctx, uint64_t bytes);

enum sim_block_kind {
	SIM_DEVICE = 1, SIM_MANAGED, SIM_POOLED, SIM_MAPPED, SIM_RESERVED, SIM_HOST, SIM_REGISTERED, SIM_OPENED, SIM_GRAPHMEM,
};
enum { SIM_FREEABLE = 1 }; /* flag of opened memory: imported from a pool, and freed like a pool's memory */
struct sim_block {
	uint64_t addr, bytes, mapped_bytes; /* mapped_bytes: size of the host memory behind the block */
	enum sim_block_kind kind;
	CUcontext ctx;
	CUdevice device;
	void *owner;         /* pool, VMM handle */
	uint64_t shared_id;  /* entry in machine.shared, 0: none */
	uint64_t resident;   /* managed: bytes charged to the card */
	unsigned int flags;
	int fd;
	uint64_t offset;     /* VMM: offset in the handle */
	uint64_t id;
};
struct sim_block *sim_block_at(uint64_t addr);   /* block that starts at addr, or NULL */
struct sim_block *sim_block_with(uint64_t addr); /* block that contains addr, or NULL */
struct sim_block *sim_block_add(const struct sim_block *block);
void sim_block_drop(struct sim_block *block);
struct sim_block *sim_block_first(bool (*match)(const struct sim_block *, const void *), const void *what);
uint64_t sim_backing(uint64_t bytes, bool low); /* maps zeroed memory; returns its address, or 0 */
void sim_unback(uint64_t addr, uint64_t mapped_bytes);
uint64_t sim_page_up(uint64_t bytes);
void sim_free_block(struct sim_block *block);
CUresult sim_touch_managed(uint64_t addr, uint64_t bytes);
bool sim_range_ok(uint64_t addr, uint64_t bytes); /* true if device code may read and write the range */

CUresult sim_pool_free(struct sim_block *block);
CUresult sim_graph_memory_free(struct sim_block *block);
void sim_pools_empty(uint32_t gpu); /* called at the end of a context */
uint64_t sim_share_new(uint32_t gpu, uint64_t bytes);  /* bytes move from this slot to a shared block */
bool sim_share_join(uint64_t id, uint32_t *gpu, uint64_t *bytes);
void sim_share_leave(uint64_t id);

/* ---- work ---- */

struct CUstream_st {
	CUcontext ctx;
	unsigned int flags;
	int priority;
	uint64_t id;
	uint64_t last; /* one past the last item submitted to this stream; 0: none yet */
	uint32_t lane; /* lane of that item */
	struct sim_capture *capture;
	CUgraphNode *tips; /* while capturing: nodes that the next node depends on */
	size_t ntips;
};
struct CUevent_st {
	CUcontext ctx;
	unsigned int flags;
	bool recorded, done;
	CUcontext on; /* context in whose queue it was recorded */
	uint64_t item, done_ns;
	uint64_t capture; /* id of the capture in which it was recorded, which may have ended; 0: none */
	CUgraphNode *tips;
	size_t ntips;
};
CUresult sim_stream(CUstream handle, CUstream *stream);
void sim_stream_new(CUcontext ctx, unsigned int flags, int priority, CUstream *stream);
struct sim_work {
	struct sim_item item; /* its position in the queue and its flags are not set yet */
	uint64_t word, bails; /* addresses of its flags; 0: none */
	CUevent mark;
};
CUresult sim_submit(CUstream stream, uint64_t cost_ns, CUevent mark);
CUresult sim_submit_work(CUstream stream, const struct sim_work *work);
void sim_wait_item(CUcontext ctx, uint64_t end); /* waits until the item before `end` is done; returns at once if 0 */
bool sim_done(CUcontext ctx, uint64_t end);
void sim_wait_context(CUcontext ctx);
void sim_wait_legacy(CUcontext ctx); /* for all streams that the legacy stream waits for */
bool sim_legacy_done(CUcontext ctx);
#define SIM_LOOK_AGAIN_NS 5000000ull /* another context may be created or end meanwhile */
struct sim_queue *sim_queue_of(CUcontext ctx);
void sim_catch_up(CUcontext ctx); /* both locks held: advances the card to now and sets the times of done events */
CUresult sim_submit_host(CUstream stream, bool (*ready)(void *), void (*run)(void *), void *user);
void sim_pools_settle(uint32_t gpu); /* after a synchronisation: pools free memory above their threshold */

/* ---- flags in this process' memory: word.c ---- */

enum { SIM_MAX_HELD = 64 };
struct sim_held { /* flags in the range that a copy or fill changes */
	uint32_t n;
	uint64_t word[SIM_MAX_HELD], mask[SIM_MAX_HELD], before[SIM_MAX_HELD], value[SIM_MAX_HELD];
};
struct sim_copy;
uint32_t sim_word_flag(uint64_t addr, uint32_t gpu); /* both locks held; SIM_NO_FLAG if there is no room */
bool sim_word_on_card(uint64_t addr);                /* false: the host may change it without a driver call */
void sim_words_hold(struct sim_held *held, uint64_t addr, uint64_t bytes);
void sim_words_keep(struct sim_held *held); /* after the copy: saves the new values and restores the old ones */
CUresult sim_words_change(CUstream stream, const struct sim_held *held);
/* Copies flags to the host again when the card reaches the copy. */
void sim_words_copied(CUstream stream, const struct sim_copy *copy, uint64_t from);
void sim_words_catch_up(CUcontext ctx); /* both locks held */
void sim_words_gone(const struct sim_block *block);

/* ---- code ---- */

struct CUfunc_st {
	CUcontext ctx;
	CUmodule module;
	char *name;
	bool loaded;
	int nparams;
	uint16_t param_size[64], param_offset[64];
	uint64_t fixed_ns; /* from GPULIMIT_SIM_KERNEL_NS_<NAME>; UINT64_MAX: not set */
	int attributes[20];
	unsigned int old_block[3]; /* set by the launch calls of CUDA 2 */
	char old_params[512];
	CUfunction next; /* next in module.c's list of functions for reuse */
};
struct sim_launch {
	CUfunction func;
	unsigned int grid[3], block[3], shared_bytes;
	void **params, **extra;
};
CUresult sim_launch_on(CUstream handle, struct sim_launch launch);
CUresult sim_run_kernel(CUstream stream, const struct sim_launch *launch);
uint64_t sim_kernel_cost(const struct sim_launch *launch);
/* True, with `work` filled, if the kernel waits for or sets a flag: it is then submitted as `work`. */
bool sim_kernel_waits(const struct sim_launch *launch, struct sim_work *work);
void sim_kernel_effect(const struct sim_launch *launch);
CUresult sim_function(CUfunction f, CUfunction *out); /* f: a function or a kernel handle */
CUresult sim_function_in(CUcontext ctx, CUfunction f, CUfunction *out); /* the same in `ctx` instead of the current one */
CUresult sim_kernel_function(CUkernel kernel, CUfunction *out);

/* ---- capture and graphs ---- */

CUresult sim_unsafe(void);                /* for calls that a capture in progress forbids */
CUresult sim_implicit(CUstream stream);   /* for work on the legacy stream while another stream captures */
bool sim_capturing(const struct CUstream_st *stream);
struct sim_copy {
	sim_memcpy3d params;
	uint64_t bytes;
};
CUresult sim_copy_check(const struct sim_copy *copy);
void sim_copy_effect(const struct sim_copy *copy);
CUresult sim_copy_submit(CUstream stream, const struct sim_copy *copy);
void sim_copy_but_flags(const struct sim_copy *copy, struct sim_held *held);
void sim_copy_flags_late(CUstream stream, const struct sim_copy *copy);
uint64_t sim_copy_cost(CUcontext ctx, const struct sim_copy *copy);
CUresult sim_memset_check(const sim_memset_params *set);
CUresult sim_memset_submit(CUstream stream, const sim_memset_params *set);
void sim_memset_but_flags(const sim_memset_params *set, struct sim_held *held);
uint64_t sim_memset_cost(CUcontext ctx, const sim_memset_params *set);

CUresult sim_capture_kernel(CUstream stream, const struct sim_launch *launch);
CUresult sim_capture_copy(CUstream stream, const struct sim_copy *copy);
CUresult sim_capture_memset(CUstream stream, const sim_memset_params *set);
CUresult sim_capture_host(CUstream stream, sim_host_fn fn, void *user);
CUresult sim_capture_record(CUstream stream, CUevent event, unsigned int flags);
CUresult sim_capture_wait(CUstream stream, CUevent event, unsigned int flags);
CUresult sim_capture_alloc(CUstream stream, uint64_t bytes, CUdeviceptr *dptr);
CUresult sim_capture_free(CUstream stream, CUdeviceptr dptr);
void sim_capture_stream_gone(CUstream stream);
void sim_capture_stream_invalid(CUstream stream);

#endif
