/* The kernels' PTX texts, NUL-terminated as cuModuleLoadData requires. */
  .section .rodata
  .global gs_spin_ptx
gs_spin_ptx:
  .incbin GS_SPIN_PTX
  .byte 0
  .global gs_words_ptx
gs_words_ptx:
  .incbin GS_WORDS_PTX
  .byte 0
  .section .note.GNU-stack, "", %progbits
