/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules and libraries, shared by module.c and library.c.
 */
#ifndef GL_SIM_MODULE_H
#define GL_SIM_MODULE_H

#include "sim.h"

enum { SIM_MODULE_FUNCTIONS = 4096 };

struct CUmod_st {
	CUcontext ctx;
	bool any_name;
	unsigned int nfunctions;
	CUfunction functions[SIM_MODULE_FUNCTIONS];
};
CUresult sim_module_load(CUmodule *out, const void *image);
CUresult sim_module_function(CUmodule module, const char *name, CUfunction *out);
void sim_module_unload(CUmodule module);
char *sim_read_image(const char *path);

#endif
