/* SPDX-License-Identifier: Apache-2.0
 *
 * This process: reads the environment, joins the tenant, and starts again without state after fork.  Nothing here runs
 * before the first CUDA or NVML call.
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

enum { MAX_JOIN_RETRIES = 20, LOST_PAUSE_NS = 250000000 };

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* libc's own, if it has one (glibc does; musl only has pthread_atfork). */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void)) __attribute__((weak));

static void wipe(void)
{
	memset(&gl_self, 0, sizeof gl_self);
}

/* A child has its own identity: it must not use its parent's slot, nor count its parent's memory. */
static void start_afresh_after_fork(void)
{
	static uint32_t registered;
	uintptr_t start = (uintptr_t)&gl_self;
	if (madvise((void *)start, (sizeof gl_self + 65535) & ~(size_t)65535, MADV_WIPEONFORK) == 0)
		return;
	if (__atomic_exchange_n(&registered, 1, __ATOMIC_ACQ_REL))
		return;
	if (__register_atfork)
		__register_atfork(NULL, NULL, wipe, NULL);
	else if (pthread_atfork)
		pthread_atfork(NULL, NULL, wipe);
}

static const char *from_environment(const char *name, void *unused)
{
	(void)unused;
	return getenv(name);
}

/* The next CUDA call tries to join again.  Only a refusal by the quota and invalid settings are final. */
static uint32_t failed(bool for_now, bool view)
{
	if (!view)
		gl_self.lost_at_ns = for_now ? gl_now_ns() : 0;
	return GL_FAILED;
}

/* Joins the tenant named by the daemon, or without a daemon by the environment.  A daemon that is replaced between
 * registration and joining removes the segment, since no process is in it.  Then the process registers once more. */
static uint32_t join(bool view)
{
	int daemon, r = -ESTALE;
	for (int start = 0; r == -ESTALE && start <= MAX_JOIN_RETRIES; start++) {
		daemon = gl_register(view);
		GL_TEST_POINT("joining-registered");
		if (daemon < 0)
			return failed(gl_self.daemon.lost, view);
		if (!daemon && !gl_self.quota.set && !gl_segment_exists())
			return GL_TRANSPARENT;
		r = gl_segment_attach(start < MAX_JOIN_RETRIES);
	}
	if (r != 0)
		return failed(gl_segment_may_do_later(r), view);
	if (daemon)
		gl_store_relaxed(&gl_self.own->host_pid, gl_self.daemon.host_pid);
	gl_self.lost_at_ns = 0;
	return GL_ATTACHED;
}

/* A process that has only called NVML so far now calls CUDA: tells the daemon.  If the daemon is absent, the thread
 * tells it later. */
static uint32_t view_no_more(void)
{
	uint32_t tenant_of_view = gl_self.daemon.view && gl_self.daemon.registered;
	if (tenant_of_view && gl_register_whole() == -EACCES)
		return GL_FAILED;
	return gl_self.attached;
}

/* Reads the quota and joins the tenant; the result holds for CUDA and NVML. */
static uint32_t attach(bool view)
{
	int kept = errno;
	uint32_t outcome = gl_self.attached;
	if (outcome == GL_NEW && gl_self.lost_at_ns && gl_now_ns() - gl_self.lost_at_ns < LOST_PAUSE_NS)
		return GL_FAILED;
	if (outcome == GL_NEW) {
		start_afresh_after_fork();
		gl_self.pid = gl_getpid();
		outcome = GL_FAILED;
		if (gl_quota_read(&gl_self.quota, from_environment, NULL) != 0)
			gl_log(GL_ERROR, "%s; every CUDA call of this process is refused", gl_self.quota.error);
		else
			outcome = join(view);
		/* If a view did not reach the daemon, the first CUDA call tries again, and waits for it. */
		if (outcome != GL_FAILED || (!view && !gl_self.lost_at_ns))
			gl_self.attached = outcome;
	}
	if (!view && outcome == GL_ATTACHED)
		outcome = view_no_more();
	if (!view && outcome == GL_ATTACHED && gl_self.daemon.registered)
		gl_agent_start();
	errno = kept;
	return outcome;
}

int gl_begin_slow(void)
{
	gl_driver_load();
	gl_lock(&gl_self.setup_lock);
	uint32_t state = gl_self.state == GL_NEW ? attach(false) : gl_self.state;
	if (state != GL_FAILED || gl_self.attached != GL_NEW)
		gl_store_release(&gl_self.state, state);
	gl_unlock(&gl_self.setup_lock);
	return (int)state;
}

int gl_begin_nvml_slow(void)
{
	gl_nvml_load();
	gl_lock(&gl_self.setup_lock);
	if (gl_self.nvml_state == GL_NEW)
		gl_store_release(&gl_self.nvml_state, attach(true));
	gl_unlock(&gl_self.setup_lock);
	return (int)gl_self.nvml_state;
}

CUstreamCaptureMode gl_capture_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	/* A driver before CUDA 10.1 has neither the call nor the modes. */
	return REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS ? mode : -1;
}

void gl_capture_restore(CUstreamCaptureMode before)
{
	if (before >= 0)
		REAL(cuThreadExchangeStreamCaptureMode)(&before);
}

CUresult cuInit(unsigned int flags)
{
	int state = gl_begin();
	if (state == GL_FAILED)
		return GL_FAILED_RESULT;
	return REAL(cuInit)(flags);
}
