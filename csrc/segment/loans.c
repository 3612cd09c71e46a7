/* SPDX-License-Identifier: Apache-2.0 */
#include "segment/loans.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/sys.h"

#define NAME_MASK ((UINT64_C(1) << 46) - 1)
enum { MAX_LOOKS = 1000, TENANT_BITS = 8, MAX_RANK = (GL_LOAN_PLACES >> TENANT_BITS) - 1 };

static uint64_t first_byte(uint64_t memory)
{
	return (memory & NAME_MASK) * GL_LOAN_PLACES;
}

static int change(int fd, short type, uint64_t memory, uint32_t place)
{
	struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(first_byte(memory) + place), .l_len = 1};
	return place < GL_LOAN_PLACES ? (int)gl_syscall(SYS_fcntl, fd, F_SETLK, &range) : -EINVAL;
}

int gl_loan_hold(int fd, uint64_t memory, uint32_t place)
{
	return change(fd, F_RDLCK, memory, place);
}

int gl_loan_end(int fd, uint64_t memory, uint32_t place)
{
	return change(fd, F_UNLCK, memory, place);
}

/* A place in [from, end) that another process has taken; GL_LOAN_PLACES: there is none, or that cannot be
 * determined. */
static uint32_t taken(int fd, uint64_t memory, uint32_t from, uint32_t end)
{
	uint64_t first = first_byte(memory);
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(first + from), .l_len = (off_t)(end - from)};
	if (from >= end || gl_syscall(SYS_fcntl, fd, F_GETLK, &range) != 0 || range.l_type == F_UNLCK)
		return GL_LOAN_PLACES;
	uint64_t last = (uint64_t)range.l_start + (range.l_len > 0 ? (uint64_t)range.l_len : GL_LOAN_PLACES) - 1;
	return last < first + end ? (uint32_t)(last - first) : end - 1;
}

bool gl_loan_is_paid(int fd, uint64_t memory, uint32_t place)
{
	return taken(fd, memory, 0, place < GL_LOAN_PLACES ? place : GL_LOAN_PLACES) < GL_LOAN_PLACES;
}

uint32_t gl_loan_next_place(int fd, uint64_t memory, uint8_t tenant)
{
	uint32_t last = 0, rank;
	for (int look = 0; look < MAX_LOOKS; look++) {
		uint32_t next = taken(fd, memory, last + 1, GL_LOAN_PLACES);
		if (next == GL_LOAN_PLACES)
			break;
		last = next;
	}
	rank = (last >> TENANT_BITS) + 1;
	return (rank < MAX_RANK ? rank : MAX_RANK) << TENANT_BITS | tenant;
}
