/* SPDX-License-Identifier: Apache-2.0
 *
 * This process: what the environment says, joining the tenant, and starting afresh after fork.  Nothing here runs
 * before the first CUDA or NVML call.
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

/* On pages of its own, so that fork can wipe them; 64 KiB is the largest page of the processors supported. */
#define PAGES __attribute__((aligned(65536)))
PAGES struct gl_process gl_self;
PAGES static char after_self __attribute__((used)); /* keeps other data off the last page */

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* libc's, where it has one (glibc; musl has pthread_atfork alone). */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void)) __attribute__((weak));

static void wipe(void)
{
	memset(&gl_self, 0, sizeof gl_self);
}

/* A child has its own identity: it must not act as its parent's slot, nor count its parent's memory. */
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

/* Reads the quota and joins the tenant; the outcome holds for CUDA and NVML. */
static uint32_t attach(void)
{
	if (gl_self.attached != GL_NEW)
		return gl_self.attached;
	int kept = errno;
	start_afresh_after_fork();
	gl_self.pid = gl_getpid();
	gl_self.attached = GL_FAILED;
	if (gl_quota_read(&gl_self.quota, from_environment, NULL) != 0)
		gl_log(GL_ERROR, "%s; every CUDA call of this process is refused", gl_self.quota.error);
	else if (!gl_self.quota.set && !gl_segment_exists())
		gl_self.attached = GL_TRANSPARENT;
	else if (gl_segment_attach() == 0)
		gl_self.attached = GL_ATTACHED;
	errno = kept;
	return gl_self.attached;
}

int gl_begin_slow(void)
{
	gl_driver_load();
	gl_lock(&gl_self.setup_lock);
	if (gl_self.state == GL_NEW)
		gl_store(&gl_self.state, attach());
	gl_unlock(&gl_self.setup_lock);
	return (int)gl_self.state;
}

int gl_begin_nvml_slow(void)
{
	gl_nvml_load();
	gl_lock(&gl_self.setup_lock);
	if (gl_self.nvml_state == GL_NEW)
		gl_store(&gl_self.nvml_state, attach());
	gl_unlock(&gl_self.setup_lock);
	return (int)gl_self.nvml_state;
}

CUstreamCaptureMode gl_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	/* A driver before CUDA 10.1 lacks the call, and the modes as well. */
	return REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS ? mode : -1;
}

void gl_unrelax(CUstreamCaptureMode before)
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
