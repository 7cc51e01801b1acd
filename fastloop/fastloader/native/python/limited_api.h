/* Python.h, of which one binary for every version from 3.11 on may use this much. */
#ifndef FASTLOOP_LIMITED_API_H
#define FASTLOOP_LIMITED_API_H

#if !defined(Py_GIL_DISABLED) && !defined(Py_LIMITED_API) /* without the lock there is none yet */
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The headers of 3.12 and 3.13 take None as immortal here, which it is not in 3.11: a binary that
   they compile would free it there. */
#undef Py_RETURN_NONE
#define Py_RETURN_NONE return Py_NewRef(Py_None)

#endif
