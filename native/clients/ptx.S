/* The kernel's PTX text, NUL-terminated as cuModuleLoadData requires. */
  .section .rodata
  .global gs_spin_ptx
gs_spin_ptx:
  .incbin GS_SPIN_PTX
  .byte 0
  .section .note.GNU-stack, "", %progbits
