/* SPDX-License-Identifier: Apache-2.0 */
#include "segment/live_quota.h"

#include <limits.h>

#include "base/sys.h"

static struct gl_device *entry(struct gl_usage *usage, uint32_t device)
{
	if (device >= GL_MAX_DEVICES || gl_load_acquire(&usage->device[device].ready) != 1)
		return NULL;
	return &usage->device[device];
}

static void wake(struct gl_device *d)
{
	__atomic_fetch_add(&d->wake, 1, __ATOMIC_RELEASE);
	gl_futex_wake(&d->wake, INT_MAX);
}

int gl_live_set(struct gl_usage *usage, uint32_t device, uint64_t memory_bytes, uint32_t percent)
{
	struct gl_device *d = entry(usage, device);
	if (!d || percent > 100)
		return -EINVAL;
	if (memory_bytes != UINT64_MAX)
		gl_store_release(&d->memory_limit_bytes, memory_bytes < d->card_bytes ? memory_bytes : d->card_bytes);
	if (percent)
		gl_store_release(&d->compute_limit_percent, percent);
	wake(d);
	return 0;
}

int gl_live_suspend(struct gl_usage *usage, uint32_t device, uint32_t suspended)
{
	struct gl_device *d = entry(usage, device);
	if (!d || suspended > 1)
		return -EINVAL;
	gl_store_release(&d->suspended, suspended);
	wake(d);
	return 0;
}
