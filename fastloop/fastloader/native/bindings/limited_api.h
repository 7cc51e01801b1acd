/* Python.h, restricted to the part that one binary may use under every version from 3.11 on (PEP
 * 384). */
#ifndef FASTLOOP_LIMITED_API_H
#define FASTLOOP_LIMITED_API_H

/* the build without the lock has no limited API yet */
#if !defined(Py_GIL_DISABLED) && !defined(Py_LIMITED_API)
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The headers of 3.12 and 3.13 define Py_RETURN_NONE for an immortal None (PEP 683), without
 * taking a reference. In 3.11 None is not immortal: a binary that was compiled with them would
 * free it there. */
#undef Py_RETURN_NONE
#define Py_RETURN_NONE return Py_NewRef(Py_None)

#endif
