/* SPDX-License-Identifier: Apache-2.0 */
#include "segment/loan_file.h"

#include <sys/stat.h>

#include "base/sys.h"
#include "segment/ledger.h"
#include "segment/loans.h"
#include "segment/shares.h"
#include "state/state.h"

/* A program that closes all descriptors drops the locks, and may have opened another file under the number. */
static bool is_open(void)
{
	struct stat st;
	return gl_self.loan_inode && gl_syscall(SYS_fstat, gl_self.loan_fd, &st) == 0 && st.st_ino == gl_self.loan_inode &&
	       st.st_dev == gl_self.loan_device;
}

static void keep(int fd)
{
	struct stat st;
	if (fd < 0)
		return;
	if (is_open() || gl_syscall(SYS_fstat, fd, &st) != 0) {
		gl_close(fd);
		return;
	}
	gl_self.loan_fd = fd;
	gl_self.loan_inode = st.st_ino;
	gl_self.loan_device = st.st_dev;
}

void gl_loan_file_keep(int fd)
{
	gl_lock(&gl_self.loan_lock);
	keep(fd);
	gl_unlock(&gl_self.loan_lock);
}

/* Takes the locks again for the memory that this process holds, after the program has closed the file. */
static void hold_again(void)
{
	for (uint32_t i = 0; i < GL_MAX_SHARES; i++) {
		const struct gl_share *share = &gl_self.usage->share[i];
		if (gl_self.share_count[i])
			(void)gl_loan_hold(gl_self.loan_fd, gl_load_relaxed(&share->common), gl_load_relaxed(&share->place));
	}
}

static void open_folder(void)
{
	int fd = gl_open(GL_SHM_DIRECTORY, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
	int high = fd < 0 ? fd : gl_dup_high(fd);
	if (fd >= 0)
		gl_close(fd);
	keep(high);
	if (is_open())
		hold_again();
}

int gl_loan_file(void)
{
	gl_lock(&gl_self.loan_lock);
	if (!is_open() && !gl_self.daemon.registered)
		open_folder();
	int fd = is_open() ? gl_self.loan_fd : -1;
	gl_unlock(&gl_self.loan_lock);
	return fd;
}

static bool any_from_outside(void)
{
	uint32_t used = gl_load_relaxed(&gl_self.usage->header.shares_used);
	for (uint32_t i = 0; i < used && i < GL_MAX_SHARES; i++)
		if (gl_load_relaxed(&gl_self.usage->share[i].place) && gl_load_relaxed(&gl_self.usage->share[i].payer))
			return true;
	return false;
}

uint64_t gl_lent_bytes(uint32_t device, uint32_t slot)
{
	if (GL_LIKELY(!gl_load_relaxed(&gl_self.usage->header.shares_used)) || !any_from_outside())
		return 0;
	int fd = gl_loan_file();
	uint64_t lent = fd < 0 ? 0 : gl_share_lent(gl_self.usage, device, slot, fd), total = gl_ledger_total(gl_self.usage, device);
	return lent < total ? lent : total;
}

uint64_t gl_charged_bytes(uint32_t device)
{
	uint64_t lent = gl_lent_bytes(device, GL_MAX_SLOTS), total = gl_ledger_total(gl_self.usage, device);
	return total > lent ? total - lent : 0;
}
