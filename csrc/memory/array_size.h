/* SPDX-License-Identifier: Apache-2.0
 *
 * How large an array is.  Pure.  A size that cannot exist is UINT64_MAX, which no quota allows.
 */
#ifndef GL_ARRAY_SIZE_H
#define GL_ARRAY_SIZE_H

#include <stdbool.h>

#include "abi.h"

#pragma GCC visibility push(hidden)
uint64_t gl_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc);
uint64_t gl_mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels);
/* The format and its number of channels are among those that CUDA documents. */
bool gl_array_format_known(const CUDA_ARRAY3D_DESCRIPTOR *desc);
#pragma GCC visibility pop

#endif
