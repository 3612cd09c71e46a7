/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions that the shim's files in all folders share.  Glossary:
 *
 *   real      a function of the driver or of NVML itself
 *   hook      our function of the same name, which programs get instead
 *   gpu       one device as this process sees it (CUDA ordinal), joined to the tenant's entry for its UUID
 *   slot      this process's place in the tenant's segment (layout.h)
 *   account   a slot's counters on one device
 *   block     one object that holds device memory and that a later call frees
 *   overhead  device memory that no call requested by size: contexts, code, rounding (overhead.c)
 *
 * All mutable state of a process lies in gl_self, which fork wipes: a child starts without state and registers at its own
 * first CUDA call.  Hooks call process, device, ledger, blocks, overhead and meter, never each other.  Hooks preserve the
 * caller's errno.
 *
 * A folder's headers include no header of a later folder; the Makefile has the order.
 */
#ifndef GL_SHIM_H
#define GL_SHIM_H

#include "abi.h"
#include "base/sys.h"
#include "base/testpoint.h"
#include "daemon/daemon.h"
#include "layout.h"
#include "lookup/driver.h"
#include "memory/memory.h"
#include "process/process.h"
#include "quota/quota.h"
#include "segment/ledger.h"
#include "segment/loan_file.h"
#include "segment/segment.h"

#endif
