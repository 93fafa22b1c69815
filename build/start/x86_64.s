# Code that the start files and libc_nonshared.a of a C toolchain would provide, for x86_64 (Intel syntax).

# The stack contains argc, argv and the environment; rdx is the loader's exit function. glibc before 2.34 calls init
# and fini unless they are null; later versions ignore them. std needs neither, so both are null.
.globl _start
.type _start, @function
_start:
    xor ebp, ebp
    mov r9, rdx
    pop rsi
    mov rdx, rsp
    and rsp, -16
    push rax
    push rsp
    xor r8d, r8d
    xor ecx, ecx
    mov rdi, qword ptr [rip + main@GOTPCREL]
    call qword ptr [rip + __libc_start_main@GOTPCREL]
    ud2

# glibc exports the stat calls only since 2.33. Before, each was a wrapper that passes the version of the layout (here
# 1).
.globl stat64
.type stat64, @function
stat64:
    mov rdx, rsi
    mov rsi, rdi
    mov edi, 1
    jmp __xstat64@PLT

.globl lstat64
.type lstat64, @function
lstat64:
    mov rdx, rsi
    mov rsi, rdi
    mov edi, 1
    jmp __lxstat64@PLT

.globl fstat64
.type fstat64, @function
fstat64:
    mov rdx, rsi
    mov esi, edi
    mov edi, 1
    jmp __fxstat64@PLT

.globl fstatat64
.type fstatat64, @function
fstatat64:
    mov r8d, ecx
    mov rcx, rdx
    mov rdx, rsi
    mov esi, edi
    mov edi, 1
    jmp __fxstatat64@PLT

# The probe aborts on panic and is stripped, so its stack is never unwound. A backtrace ends before its first frame (5,
# the end of the stack), and the other functions are never called. Therefore the probe does not need libgcc_s. The
# symbols are hidden, so that a library opened by the probe finds the real ones, and weak, because
# src/probe/no_backtrace.rs defines the first one too.
.weak _Unwind_Backtrace
.hidden _Unwind_Backtrace
.type _Unwind_Backtrace, @function
_Unwind_Backtrace:
    mov eax, 5
    ret

.irp name, GetIP, GetIPInfo, GetCFA, SetIP, SetGR, RaiseException, DeleteException, Resume
.weak _Unwind_\name
.hidden _Unwind_\name
.type _Unwind_\name, @function
_Unwind_\name:
.endr
.irp name, GetRegionStart, GetTextRelBase, GetDataRelBase, GetLanguageSpecificData, FindEnclosingFunction
.weak _Unwind_\name
.hidden _Unwind_\name
.type _Unwind_\name, @function
_Unwind_\name:
.endr
    ud2
