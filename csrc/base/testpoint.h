/* SPDX-License-Identifier: Apache-2.0
 *
 * Places where tests kill or stop a process: GPULIMIT_TEST_POINT=name:nth:signal sends the signal to the calling
 * process the nth time it comes by.  Compiled in only with TEST_POINTS=1; the product has none of it.
 */
#ifndef GL_TESTPOINT_H
#define GL_TESTPOINT_H

#ifdef GL_TEST_POINTS
void gl_test_point(const char *name);
#define GL_TEST_POINT(name) gl_test_point(name)
#else
#define GL_TEST_POINT(name) ((void)0)
#endif

#endif
