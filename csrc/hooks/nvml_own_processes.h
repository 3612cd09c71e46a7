/* SPDX-License-Identifier: Apache-2.0
 *
 * The tenant's own processes as rows of NVML's process lists, written from the tenant's slots.
 */
#ifndef GL_NVML_OWN_PROCESSES_H
#define GL_NVML_OWN_PROCESSES_H

#include "hooks/hook_nvml.h"

#pragma GCC visibility push(hidden)

/* The pid to show for a row of NVML's list, or 0 for another tenant's.  NVML names processes by the pids of the
 * caller's namespace (driver 580) or by the host's; nvml_usage.c finds out which if this process has a context. */
uint32_t gl_own_pid(uint32_t nvml_pid);

enum gl_process_layout { GL_PROCESS_V1, GL_PROCESS_V2, GL_PROCESS_DETAIL };
/* Writes the tenant's processes that have a context or memory on the card, by NVML's protocol: *count is the room, then
 * the number; too little room gives the number needed and no rows. */
nvmlReturn_t gl_own_processes(nvmlDevice_t device, unsigned int *count, void *rows, enum gl_process_layout layout);

#pragma GCC visibility pop

#endif
