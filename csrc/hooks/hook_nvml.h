/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the NVML hooks: a card as NVML and the tenant's segment know it.
 */
#ifndef GL_HOOK_NVML_H
#define GL_HOOK_NVML_H

#include "shim.h"

#pragma GCC visibility push(hidden)

struct gl_card {
	char uuid[96];
	int index;                /* among the cards; -1: not known, or a MIG instance */
	bool known, mig;          /* NVML gave the UUID; it is a MIG instance */
	uint32_t entry;
	struct gl_device *device; /* the tenant's entry, NULL if it has none */
};
struct gl_card gl_card_of(nvmlDevice_t handle);

#pragma GCC visibility pop

#endif
