/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides which of several tenants that hold the same memory is charged.  No tenant can read another's accounts, but
 * all can open one file.  Every process that holds such memory has a shared record lock on one byte of it; the offset
 * encodes the memory and the place of the process's tenant.  The tenant that made the memory has place 0, importing
 * tenants have later ones, and the lowest place is charged.  The kernel drops a lock when its process ends, for
 * whatever reason, so the charge passes on by itself.  Nothing is written: the file may be open for reading only.
 */
#ifndef GL_LOANS_H
#define GL_LOANS_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define GL_LOAN_PLACES 65536u

/* Records that this process holds the memory, for the tenant at that place.  0 or negative errno. */
int gl_loan_hold(int fd, uint64_t memory, uint32_t place);
int gl_loan_end(int fd, uint64_t memory, uint32_t place);
/* True if a process of a tenant at an earlier place holds the memory. */
bool gl_loan_is_paid(int fd, uint64_t memory, uint32_t place);
/* A place behind all that are taken.  Two tenants that ask at the same moment get different ones by `tenant`. */
uint32_t gl_loan_next_place(int fd, uint64_t memory, uint8_t tenant);

#pragma GCC visibility pop

#endif
