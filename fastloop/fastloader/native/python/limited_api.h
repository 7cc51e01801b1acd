/* Python.h, of which one binary for every version from 3.11 on may use this much. */
#ifndef FASTLOOP_LIMITED_API_H
#define FASTLOOP_LIMITED_API_H

#if !defined(Py_GIL_DISABLED) && !defined(Py_LIMITED_API) /* without the lock there is none yet */
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#endif
