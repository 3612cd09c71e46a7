/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the tenant's processes wait for each other on the GPU: the tenant is a gang then, and its limit opens and closes
 * for all of them as one (time/gang_limit.c).
 */
#ifndef GL_GANG_H
#define GL_GANG_H

#include "process/process.h"

#pragma GCC visibility push(hidden)

/* As the daemon says, or without one the environment. */
enum gl_gang_mode gl_gang_mode(void);
/* The limit of the gpu's processes is the gang's. */
bool gl_gang_has(const struct gl_gpu *gpu);
/* This process waits for others of the tenant, or they for it, on the device of this entry. */
void gl_gang_note(uint32_t entry);
/* Takes note of a function that waits for other cards, by its name; NULL: no name. */
void gl_gang_note_function(const struct gl_gpu *gpu, const char *name);

#pragma GCC visibility pop

#endif
