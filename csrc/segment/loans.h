/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that several tenants hold, and the one that is charged for it.  No tenant can read another's books.  What they
 * have in common is one file, on which every process that holds such memory has a shared record lock on one byte: the
 * offset tells the memory and the place of the process's tenant.  The tenant that made it has place 0, those that import
 * it come later, and the first place is charged.  The kernel drops a lock when its process ends, however that ends, so
 * the charge passes on by itself.  Nothing is written: the file may be open for reading only.
 */
#ifndef GL_LOANS_H
#define GL_LOANS_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define GL_LOAN_PLACES 65536u

/* This process holds the memory, for the tenant at that place.  0 or negative errno. */
int gl_loan_hold(int fd, uint64_t memory, uint32_t place);
int gl_loan_end(int fd, uint64_t memory, uint32_t place);
/* A process of a tenant at an earlier place holds it. */
bool gl_loan_is_paid(int fd, uint64_t memory, uint32_t place);
/* A place behind all that are taken.  `tenant` keeps two tenants apart that ask at the same moment. */
uint32_t gl_loan_next_place(int fd, uint64_t memory, uint8_t tenant);

#pragma GCC visibility pop

#endif
