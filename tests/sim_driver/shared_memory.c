/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that two processes hold counts once, and lives until the last of them lets go of it: an exported
 * handle handed over as a descriptor, and an IPC handle.
 */
#include <sys/socket.h>

#include "driver.h"

#define SIZE (4ull << 20)

static void send_fd(int over, int fd)
{
	char space[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 0;
	struct iovec io = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof(int));
	if (sendmsg(over, &msg, 0) != 1)
		FAIL("sendmsg");
}

static int receive_fd(int over)
{
	char space[CMSG_SPACE(sizeof(int))] = { 0 }, byte;
	struct iovec io = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	int fd = -1;
	if (recvmsg(over, &msg, 0) == 1)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(int));
	return fd;
}

static void child(int over)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	ipc_handle ipc;
	unsigned int word = 41, back = 0;
	start();
	size_t before = used();
	CUmemAllocationProp prop = { .type = 1, .requestedHandleTypes = 1, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	int fd = -1;
	OK(cuMemCreate(&handle, SIZE, &prop, 0));
	OK(cuMemAddressReserve(&at, SIZE, 0, 0, 0));
	OK(cuMemMap(at, SIZE, 0, handle, 0));
	OK(cuMemcpyHtoD_v2(at, &word, 4));
	OK(cuMemExportToShareableHandle(&fd, handle, 1, 0));
	OK(cuMemAlloc_v2(&at, SIZE));
	word = 42;
	OK(cuMemcpyHtoD_v2(at, &word, 4));
	OK(cuIpcGetMemHandle(&ipc, at));
	OK(cuMemcpyDtoH_v2(&back, at, 4));
	SAME(42, back);
	SAME(before + 2 * SIZE, used());
	send_fd(over, fd);
	if (write(over, &ipc, sizeof(ipc)) != sizeof(ipc))
		FAIL("write");
	fflush(stdout);
	pause();
}

int main(void)
{
	int ends[2];
	ipc_handle ipc;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at, mapped;
	unsigned int word = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		return 77;
	pid_t pid = fork();
	if (!pid)
		child(ends[1]);
	int fd = receive_fd(ends[0]);
	if (read(ends[0], &ipc, sizeof(ipc)) != sizeof(ipc))
		FAIL("read");
	start();
	size_t before = used(); /* two contexts and what the child holds */
	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, 1));
	OK(cuMemAddressReserve(&mapped, SIZE, 0, 0, 0));
	OK(cuMemMap(mapped, SIZE, 0, handle, 0));
	OK(cuMemcpyDtoH_v2(&word, mapped, 4));
	SAME(41, word);
	OK(cuIpcOpenMemHandle_v2(&at, ipc, 1));
	OK(cuMemcpyDtoH_v2(&word, at, 4));
	SAME(42, word);
	SAME(before, used());
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	SAME((518ull << 20) + 2 * SIZE, used());
	OK(cuIpcCloseMemHandle(at));
	SAME((518ull << 20) + SIZE, used());
	OK(cuMemRelease(handle));
	SAME((518ull << 20) + SIZE, used());
	OK(cuMemUnmap(mapped, SIZE));
	SAME(518ull << 20, used());
	return done();
}
