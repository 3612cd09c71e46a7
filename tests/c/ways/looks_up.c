/* SPDX-License-Identifier: Apache-2.0
 *
 * A library that is loaded at run time and looks names up by the dlsym that it finds behind itself.
 */
#include <dlfcn.h>

void *look_up(void *handle, const char *name)
{
	void *(*next)(void *, const char *) = (void *(*)(void *, const char *))dlsym(RTLD_NEXT, "dlsym");
	return next ? next(handle, name) : 0;
}
