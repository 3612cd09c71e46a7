/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of loans.h in this process: the node's state segment, which the daemon hands over; without a daemon the folder
 * /dev/shm itself, which all tenants of the machine can open, and in which no file remains.
 */
#ifndef GL_LOAN_FILE_H
#define GL_LOAN_FILE_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Takes the descriptor that the daemon has passed; closes it if there is one already. */
void gl_loan_file_keep(int fd);
/* The file's descriptor; -1: there is none, so every tenant that holds memory is charged for it. */
int gl_loan_file(void);
/* Bytes in the account of a device, of one slot or (GL_MAX_SLOTS) of the tenant, that another tenant is charged for
 * now. */
uint64_t gl_lent_bytes(uint32_t device, uint32_t slot);
/* Bytes on the device that the tenant is charged for. */
uint64_t gl_charged_bytes(uint32_t device);

#pragma GCC visibility pop

#endif
