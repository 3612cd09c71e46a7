/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of loans.h in this process: the node's state segment, which the daemon hands over; without a daemon the folder
 * /dev/shm itself, which all tenants of the machine can open, and on which nothing has to be left behind.
 */
#ifndef GL_LOAN_FILE_H
#define GL_LOAN_FILE_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Takes the descriptor that the daemon has handed over; closes it if there is one already. */
void gl_loan_file_keep(int fd);
/* Its descriptor; -1: there is none, and every tenant that holds memory is charged for it. */
int gl_loan_file(void);
/* Bytes in the books of a device, of one slot or (GL_MAX_SLOTS) of the tenant, that another tenant is charged for now. */
uint64_t gl_lent_bytes(uint32_t device, uint32_t slot);
/* What the tenant is charged in all. */
uint64_t gl_charged_bytes(uint32_t device);

#pragma GCC visibility pop

#endif
