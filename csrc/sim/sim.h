/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside libcuda: the process' own objects.  machine.h has the shared state and the glossary.
 *
 * One lock per process guards all objects; exported functions take it on entry (SIM_ENTER) and drop it
 * on every way out.  Functions that wait release it meanwhile, so their callers must look up each object again
 * afterwards.  Order: process lock, then machine lock.
 *
 * Every object that belongs to a context starts with a pointer to it, so that the context can take its
 * objects along when it goes.  Contexts themselves are never freed: threads may still have them current.
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
bool sim_enter(struct sim_call *call, bool early, CUresult *result); /* true: return *result */
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
	uint64_t small_bytes; /* allocations that share granules, added up */
	CUstream legacy;
	uint64_t harvested; /* items whose marks were read off */
	CUevent *marks;     /* item -> event to be stamped when it is done */
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
enum { SIM_FREEABLE = 1 }; /* flags of opened memory: imported from a pool, and freed like memory of one */
struct sim_block {
	uint64_t addr, bytes, mapped_bytes; /* mapped_bytes: of host memory behind it */
	enum sim_block_kind kind;
	CUcontext ctx;
	CUdevice device;
	void *owner;         /* pool, VMM handle */
	uint64_t shared_id;  /* entry in machine.shared, 0: none */
	uint64_t resident;   /* managed: bytes charged to the card */
	unsigned int flags;
	int fd;
	uint64_t offset;     /* VMM: within the handle */
	uint64_t id;
};
struct sim_block *sim_block_at(uint64_t addr);   /* starts here */
struct sim_block *sim_block_with(uint64_t addr); /* contains it */
struct sim_block *sim_block_add(const struct sim_block *block);
void sim_block_drop(struct sim_block *block);
struct sim_block *sim_block_first(bool (*match)(const struct sim_block *, const void *), const void *what);
uint64_t sim_backing(uint64_t bytes, bool low); /* fresh zero memory, address or 0 */
void sim_unback(uint64_t addr, uint64_t mapped_bytes);
uint64_t sim_page_up(uint64_t bytes);
void sim_free_block(struct sim_block *block);
CUresult sim_touch_managed(uint64_t addr, uint64_t bytes);
bool sim_range_ok(uint64_t addr, uint64_t bytes); /* device-side range that may be read and written */

CUresult sim_pool_free(struct sim_block *block);
CUresult sim_graph_memory_free(struct sim_block *block);
void sim_pools_empty(uint32_t gpu); /* at the end of a context */
uint64_t sim_share_new(uint32_t gpu, uint64_t bytes);  /* bytes move from this slot to a shared block */
bool sim_share_join(uint64_t id, uint32_t *gpu, uint64_t *bytes);
void sim_share_leave(uint64_t id);

/* ---- work ---- */

struct CUstream_st {
	CUcontext ctx;
	unsigned int flags;
	int priority;
	uint64_t id;
	uint64_t last; /* one past the last item submitted here; 0: none yet */
	uint32_t lane; /* of that item */
	struct sim_capture *capture;
	CUgraphNode *tips; /* capturing: nodes the next one depends on */
	size_t ntips;
};
struct CUevent_st {
	CUcontext ctx;
	unsigned int flags;
	bool recorded, done;
	CUcontext on; /* context whose queue it was recorded in */
	uint64_t item, done_ns;
	uint64_t capture; /* recorded in this capture, which may have ended; 0: outside of any */
	CUgraphNode *tips;
	size_t ntips;
};
CUresult sim_stream(CUstream handle, CUstream *stream);
void sim_stream_new(CUcontext ctx, unsigned int flags, int priority, CUstream *stream);
struct sim_work {
	struct sim_item item; /* without its place in the queue and its flags */
	uint64_t word, bails; /* addresses of its flags, 0: none */
	CUevent mark;
};
CUresult sim_submit(CUstream stream, uint64_t cost_ns, CUevent mark);
CUresult sim_submit_work(CUstream stream, const struct sim_work *work);
void sim_wait_item(CUcontext ctx, uint64_t end); /* until the item before `end` is done; 0: none */
bool sim_done(CUcontext ctx, uint64_t end);
void sim_wait_context(CUcontext ctx);
void sim_wait_legacy(CUcontext ctx); /* for all streams but those that the legacy stream does not wait for */
bool sim_legacy_done(CUcontext ctx);
#define SIM_LOOK_AGAIN_NS 5000000ull /* another context may come, or die */
struct sim_queue *sim_queue_of(CUcontext ctx);
void sim_catch_up(CUcontext ctx); /* both locks held: bring the card up to now and stamp the events whose items are done */
CUresult sim_submit_host(CUstream stream, bool (*ready)(void *), void (*run)(void *), void *user);
void sim_pools_settle(uint32_t gpu); /* after a synchronisation: pools give back what they need not keep */

/* ---- flags in this process' memory: word.c ---- */

enum { SIM_MAX_HELD = 64 };
struct sim_held { /* flags that a copy or fill is about to change */
	uint32_t n;
	uint64_t word[SIM_MAX_HELD], mask[SIM_MAX_HELD], before[SIM_MAX_HELD], value[SIM_MAX_HELD];
};
struct sim_copy;
uint32_t sim_word_flag(uint64_t addr, uint32_t gpu); /* both locks held; SIM_NO_FLAG: no room for it */
bool sim_word_on_card(uint64_t addr);                /* else the host may change it without a word to the driver */
void sim_words_hold(struct sim_held *held, uint64_t addr, uint64_t bytes);
void sim_words_keep(struct sim_held *held); /* the bytes were moved: take back what the flags got, for later */
CUresult sim_words_change(CUstream stream, const struct sim_held *held);
void sim_words_copied(CUstream stream, const struct sim_copy *copy, uint64_t from); /* to the host: again when the card is there */
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
	unsigned int old_block[3]; /* of the launch calls of CUDA 2 */
	char old_params[512];
	CUfunction next; /* of those that module.c keeps to give out again */
};
struct sim_launch {
	CUfunction func;
	unsigned int grid[3], block[3], shared_bytes;
	void **params, **extra;
};
CUresult sim_launch_on(CUstream handle, struct sim_launch launch);
CUresult sim_run_kernel(CUstream stream, const struct sim_launch *launch);
uint64_t sim_kernel_cost(const struct sim_launch *launch);
bool sim_kernel_waits(const struct sim_launch *launch, struct sim_work *work); /* or sets: it goes to the stream by itself */
void sim_kernel_effect(const struct sim_launch *launch);
CUresult sim_function(CUfunction f, CUfunction *out); /* a function or a kernel handle */
CUresult sim_function_in(CUcontext ctx, CUfunction f, CUfunction *out); /* a kernel's function there, whatever is current */
CUresult sim_kernel_function(CUkernel kernel, CUfunction *out);

/* ---- capture and graphs ---- */

CUresult sim_unsafe(void);                /* calls that a capture in progress forbids */
CUresult sim_implicit(CUstream stream);   /* work on the legacy stream while another stream captures */
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
