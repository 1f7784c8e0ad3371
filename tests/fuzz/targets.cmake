# Fuzz targets: one program per file here, with the sources that parse the bytes, under libFuzzer and two sanitizers.
if(NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "GPUSHARE_FUZZ needs CMAKE_C_COMPILER=clang: libFuzzer is part of it")
endif()
set(_fuzz ${CMAKE_CURRENT_LIST_DIR})
set(_checked -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
get_property(_interposer GLOBAL PROPERTY GPUSHARE_INTERPOSER_SOURCES)
get_property(_generated GLOBAL PROPERTY GPUSHARE_INTERPOSER_GENERATED)
get_property(_ml GLOBAL PROPERTY GPUSHARE_ML_SOURCES)

function(gpushare_fuzz_target name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES;INCLUDE;LINK")
  gpushare_test_program(fuzz-${name} SOURCES ${_fuzz}/${name}.c ${arg_SOURCES} LIBRARIES ${arg_LIBRARIES}
    INCLUDE ${_fuzz} ${arg_INCLUDE} DEFINE _GNU_SOURCE OPTIONS ${_checked} -w
    LINK -fsanitize=fuzzer,address,undefined ${arg_LINK})
endfunction()

# The whole interposer as an archive: the linker takes from it what a target does not define itself.
add_library(fuzzed-interposer STATIC EXCLUDE_FROM_ALL ${_interposer})
add_dependencies(fuzzed-interposer interposer_generated)
target_include_directories(fuzzed-interposer PUBLIC ${_generated} ${GPUSHARE_INCLUDE})
target_compile_definitions(fuzzed-interposer PRIVATE _GNU_SOURCE)
target_compile_options(fuzzed-interposer PRIVATE ${_checked} -w)

file(GLOB_RECURSE _arbiter CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/native/arbiter/*.c)
set(_hooks ${CMAKE_SOURCE_DIR}/hooks)
gpushare_sources(_engine engine/serve.c engine/books.c engine/blocks.c engine/given.c engine/limits.c engine/checkpoint.c engine/runlist.c engine/clock.c engine/messages.c engine/pages.c)
gpushare_sources(_image sim/program/images/image.c sim/program/images/binary.c sim/program/images/parts.c sim/program/images/expand.c sim/program/images/zstd.c sim/program/images/bits.c sim/program/ptx/ptx.c sim/program/ptx/ptx_check.c sim/program/ptx/ptx_syntax.c
                 sim/program/ptx/ptx_names.c sim/program/ptx/ptx_lexer.c sim/program/images/place.c sim/program/images/linked.c
                 sim/program/images/references.c sim/program/families.c native/image/image.c)
gpushare_fuzz_target(json SOURCES ${_hooks}/json.c INCLUDE ${_hooks})
gpushare_fuzz_target(hook SOURCES ${_hooks}/json.c ${_hooks}/arguments.c ${_hooks}/bundle.c ${_hooks}/edit.c
                     ${_hooks}/place.c INCLUDE ${_hooks})
gpushare_fuzz_target(image SOURCES ${_image} INCLUDE ${CMAKE_BINARY_DIR}/native/sim)
add_dependencies(fuzz-image sim_generated)
gpushare_fuzz_target(engine SOURCES ${_engine})
gpushare_fuzz_target(pages SOURCES ${_ml} INCLUDE ${_generated}
  LINK -Wl,--wrap=gs_clock_own -Wl,--wrap=gs_private_map -Wl,--wrap=gs_ml_view)
add_dependencies(fuzz-pages interposer_generated)
gpushare_fuzz_target(arbiter SOURCES ${_arbiter} LINK -Wl,--wrap=clock_gettime)
gpushare_fuzz_target(gangs SOURCES ${_arbiter})
gpushare_fuzz_target(join LIBRARIES fuzzed-interposer)
gpushare_fuzz_target(names LIBRARIES fuzzed-interposer)
