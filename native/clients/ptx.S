/* The kernel's text inside the program, NUL-terminated as cuModuleLoadData wants it. */
  .section .rodata
  .global gs_spin_ptx
gs_spin_ptx:
  .incbin GS_SPIN_PTX
  .byte 0
  .section .note.GNU-stack, "", %progbits
