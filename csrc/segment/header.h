/* SPDX-License-Identifier: Apache-2.0
 *
 * The header that every segment begins with.
 */
#ifndef GL_HEADER_H
#define GL_HEADER_H

#include <stdbool.h>
#include <string.h>

#include "base/sys.h"
#include "layout.h"

/* Writes the header of a new segment of `size` bytes, whose contents are valid. */
static inline void gl_header_begin(struct gl_header *h, uint64_t magic, size_t size, const char *tenant, uint64_t created_ns)
{
	h->magic = magic;
	h->version = GL_LAYOUT_VERSION;
	h->size = (uint32_t)size;
	h->created_ns = created_ns;
	memcpy(h->tenant, tenant, strnlen(tenant, sizeof h->tenant - 1));
	gl_store_release(&h->ready, 1u);
}

/* True if a segment of that kind and size is complete and of this layout. */
static inline bool gl_header_is_valid(const struct gl_header *h, uint64_t magic, size_t size)
{
	return gl_load_acquire(&h->ready) == 1 && h->magic == magic && h->version == GL_LAYOUT_VERSION && h->size == size;
}

#endif
