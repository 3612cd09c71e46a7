/* SPDX-License-Identifier: Apache-2.0
 *
 * Measuring without events, where the driver refuses them: by the wall clock.  A stream has worked from its first launch,
 * or from the last look, for as long as it is found at work; once it is found idle, for as long as its launches are
 * thought to take.  So a look may charge time in which the GPU was idle, but never less than the GPU worked.
 *
 * Costs are learned from single launches: the stream is idle before, and the thread waits for it after.  Where launches
 * are held back this is done as often as events would be recorded for it; a program that needs its launches to overlap
 * runs slower then.
 */
#include "time/types.h"

#define DRAIN_NS UINT64_C(100000000) /* longest wait for a launch */
enum { MIN_NAP_NS = 20000, MAX_NAP_NS = 500000 };

/* The stream is idle, at work, or the driver does not tell. */
enum found { IDLE, WORKING, UNSAID };

static enum found find(const struct gl_stream *s)
{
	CUresult r = gl_query(s);
	if (r == CUDA_ERROR_NOT_READY)
		return WORKING;
	return r == CUDA_SUCCESS || gl_drain(s) == CUDA_SUCCESS ? IDLE : UNSAID;
}

static enum found look(struct gl_meter *m, struct gl_stream *s)
{
	uint64_t thread = 0;
	gl_stream_settle(m, s);
	if (!gl_load_relaxed(&s->launches))
		return IDLE;
	if (!gl_stream_markable(s, &thread))
		return UNSAID;
	/* Reads what was launched before asking whether it is done, so that a launch in between is not taken for
	 * done. */
	uint32_t launches = __atomic_exchange_n(&s->launches, 0, __ATOMIC_ACQ_REL);
	enum found found = find(s);
	uint64_t now = gl_now_ns(), since = gl_remains_since(s), span = now > since ? now - since : 0;
	if (!gl_exclusive(s->clock->gpu, since))
		span /= gl_sharers(s->clock->gpu);
	gl_store_relaxed(&s->looked_ns, now);
	gl_store_relaxed(&s->clock->unsaid, (uint32_t)(found == UNSAID));
	if (found == IDLE) {
		gl_remains_end(m, s, 0, span, now);
		return IDLE;
	}
	gl_add_relaxed(&s->launches, launches);
	gl_remains_advance(m, s, span, now);
	return found;
}

void gl_coarse_look(struct gl_meter *m, struct gl_stream *s)
{
	(void)look(m, s);
}

bool gl_coarse_drain(struct gl_meter *m, struct gl_stream *s)
{
	uint64_t start = gl_now_ns(), waited = 0;
	CUstreamCaptureMode before = gl_capture_relax();
	enum found found;
	while ((found = look(m, s)) == WORKING && waited < DRAIN_NS) {
		uint64_t ns = waited / 16;
		struct timespec nap = {0, (long)(ns < MIN_NAP_NS ? MIN_NAP_NS : ns > MAX_NAP_NS ? MAX_NAP_NS : ns)};
		(void)gl_syscall(SYS_nanosleep, &nap, NULL);
		waited = gl_now_ns() - start;
	}
	gl_capture_restore(before);
	return found == IDLE;
}
