/* SPDX-License-Identifier: Apache-2.0
 *
 * The state and the devices of this process, by file.
 */
#ifndef GL_PROCESS_H
#define GL_PROCESS_H

#include "abi.h"
#include "base/sys.h"
#include "daemon/daemon.h"
#include "layout.h"
#include "lookup/driver.h"
#include "quota/quota.h"
#include "state/state.h"

#pragma GCC visibility push(hidden)

/* ---- process.c: this process's state ---- */

int gl_begin_slow(void);
int gl_begin_nvml_slow(void);
/* First line of every CUDA hook: returns the state, after setup at the first call.  ~1 ns. */
static inline int gl_begin(void)
{
	int state = (int)gl_load_acquire(&gl_self.state);
	return GL_LIKELY(state != GL_NEW) ? state : gl_begin_slow();
}
/* First line of every NVML hook. */
static inline int gl_begin_nvml(void)
{
	int state = (int)gl_load_acquire(&gl_self.nvml_state);
	return GL_LIKELY(state != GL_NEW) ? state : gl_begin_nvml_slow();
}
/* The result of a CUDA call in a process whose quota cannot be enforced. */
#define GL_FAILED_RESULT CUDA_ERROR_NOT_PERMITTED

/* The usual opening of a CUDA hook: passes the call to the driver if there is nothing to enforce.  Memory that another
 * process of the tenant has asked for is freed first, before any lock is taken. */
#define GL_ENTER(name, args)                                                                                 \
	do {                                                                                                 \
		int state_ = gl_begin();                                                                     \
		if (GL_UNLIKELY(state_ != GL_ATTACHED))                                                      \
			return state_ == GL_TRANSPARENT ? REAL(name) args : GL_FAILED_RESULT;                \
		if (GL_UNLIKELY(gl_load_relaxed(&gl_self.own->asked)))                                       \
			gl_pools_answer_asked();                                                             \
	} while (0)

/* For hooks of one shape: removes the brackets around parameters or arguments. */
#define GL_REST(...) __VA_ARGS__

/* Call before and after driver calls of the shim's own.  While any stream is being captured, many calls are illegal and
 * would invalidate the capture, unless the thread has declared them harmless. */
CUstreamCaptureMode gl_capture_relax(void);
void gl_capture_restore(CUstreamCaptureMode before);

/* ---- device.c ---- */

/* The gpu of a CUDA ordinal; NULL if there is none or CUDA is not initialised. */
struct gl_gpu *gl_gpu_of(CUdevice dev);
/* The gpu of the calling thread's current context; NULL without one. */
struct gl_gpu *gl_gpu_current(void);
/* Adds an entry with the quota that the environment gives the card.  index: NVML's, or -1. */
struct gl_device *gl_device_add(const uint8_t uuid[16], int index, uint64_t card_bytes, uint64_t *own_limit,
				uint32_t *own_percent, uint32_t *entry);
bool gl_uuid_bytes(const char *text, uint8_t out[16]);
/* The limit in force now: the smaller of the tenant's, this process's and the card. */
uint64_t gl_limit_bytes(const struct gl_gpu *gpu);
/* The gpu's entry in the daemon's policy; NULL without a daemon (policy.c). */
const struct gl_policy_device *gl_policy_of(const struct gl_gpu *gpu);
/* Percent of GPU time that the tenant may use now (throttle.c). */
uint32_t gl_compute_percent(const struct gl_gpu *gpu);
/* Bytes that all processes of the tenant have reserved; dead processes are reaped first. */
uint64_t gl_used_bytes(const struct gl_gpu *gpu);

#pragma GCC visibility pop

#endif
