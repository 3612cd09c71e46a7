/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library and the daemon agree on besides shared memory.  gcc compiles it, and cffi reads the part between the
 * marks, so neither side keeps a copy.
 */
#ifndef GL_PROTOCOL_H
#define GL_PROTOCOL_H

/* cffi: begin */
#define GL_MIN_TOKEN_BYTES 16
#define GL_MAX_TOKEN_BYTES 255
#define GL_MAX_REASON_BYTES 200 /* a refusal's reason in a header; the whole text is in the body */
/* cffi: end */

#endif
