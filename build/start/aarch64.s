// Code that the start files and libc_nonshared.a of a C toolchain would provide, for aarch64.

// The stack contains argc, argv and the environment; x0 is the loader's exit function. glibc before 2.34 calls init
// and fini unless they are null; later versions ignore them. std needs neither, so both are null.
.globl _start
.type _start, %function
_start:
    mov x29, #0
    mov x30, #0
    mov x5, x0
    ldr x1, [sp]
    add x2, sp, #8
    mov x6, sp
    mov x3, #0
    mov x4, #0
    adrp x0, :got:main
    ldr x0, [x0, :got_lo12:main]
    bl __libc_start_main
    brk #1

// glibc exports the stat calls only since 2.33. Before, each was a wrapper that passes the version of the layout (here
// 0).
.globl stat64
.type stat64, %function
stat64:
    mov x2, x1
    mov x1, x0
    mov w0, #0
    b __xstat64

.globl lstat64
.type lstat64, %function
lstat64:
    mov x2, x1
    mov x1, x0
    mov w0, #0
    b __lxstat64

.globl fstat64
.type fstat64, %function
fstat64:
    mov x2, x1
    mov w1, w0
    mov w0, #0
    b __fxstat64

.globl fstatat64
.type fstatat64, %function
fstatat64:
    mov w4, w3
    mov x3, x2
    mov x2, x1
    mov w1, w0
    mov w0, #0
    b __fxstatat64

// The probe aborts on panic and is stripped, so its stack is never unwound. A backtrace ends before its first frame
// (5, the end of the stack), and the other functions are never called. Therefore the probe does not need libgcc_s. The
// symbols are hidden, so that a library opened by the probe finds the real ones, and weak, because
// src/probe/no_backtrace.rs defines the first one too.
.weak _Unwind_Backtrace
.hidden _Unwind_Backtrace
.type _Unwind_Backtrace, %function
_Unwind_Backtrace:
    mov w0, #5
    ret

.irp name, GetIP, GetIPInfo, GetCFA, SetIP, SetGR, RaiseException, DeleteException, Resume
.weak _Unwind_\name
.hidden _Unwind_\name
.type _Unwind_\name, %function
_Unwind_\name:
.endr
.irp name, GetRegionStart, GetTextRelBase, GetDataRelBase, GetLanguageSpecificData, FindEnclosingFunction
.weak _Unwind_\name
.hidden _Unwind_\name
.type _Unwind_\name, %function
_Unwind_\name:
.endr
    brk #1
