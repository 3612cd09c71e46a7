/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints what cuInit answers and the first word of each visible device's name and its UUID's first digits.
 */
#include "driver.h"

int main(void)
{
	int n = 0;
	printf("%d", cuInit(0));
	if (cuDeviceGetCount(&n))
		n = 0;
	for (int i = 0; i < n; i++) {
		char name[100], vendor[20], model[20];
		CUuuid uuid;
		OK(cuDeviceGetName(name, sizeof(name), i));
		OK(cuDeviceGetUuid_v2(&uuid, i));
		sscanf(name, "%19s %19s", vendor, model);
		printf(" %s:%02x%02x", model, (unsigned char)uuid.bytes[0], (unsigned char)uuid.bytes[1]);
	}
	printf("\n");
	return done();
}
