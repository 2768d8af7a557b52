# Flags of every target. No -march: the SIMD target is chosen at run time. No fast-math and no
# contraction: docs/ARCHITECTURE.md, the arithmetic contract.
add_library(thimble_flags INTERFACE)
target_compile_options(thimble_flags INTERFACE
  -Wall -Wextra -Wconversion -Wshadow -Werror
  -ffp-contract=off -fno-math-errno)
target_include_directories(thimble_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)

set(THIMBLE_SANITIZE "" CACHE STRING "Sanitizers, as given to -fsanitize=")
if(THIMBLE_SANITIZE)
  # What is left out crashes by itself or under AddressSanitizer, and takes a third of the compiler's
  # time.
  target_compile_options(thimble_flags INTERFACE
    -fsanitize=${THIMBLE_SANITIZE} -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  target_link_options(thimble_flags INTERFACE -fsanitize=${THIMBLE_SANITIZE})
endif()
if(THIMBLE_FUZZ)
  # Coverage, which steers libFuzzer, of the libraries too; only fuzzers link its main().
  target_compile_options(thimble_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# thimble_library(folder libraries...): the static library thimble_<folder> of src/<folder>.
function(thimble_library folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc)
  add_library(thimble_${folder} STATIC ${sources})
  target_link_libraries(thimble_${folder} PUBLIC thimble_flags ${ARGN})
endfunction()
