# Compiler settings and the three functions by which every folder declares what it builds.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# A newer compiler than the checks run with may know new warnings: they must not keep a user from building.
set(warnings_are_errors ${TANDEM_WERROR})
if(TANDEM_WERROR STREQUAL "AUTO")
  set(warnings_are_errors OFF)
  if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
     OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 20))
    set(warnings_are_errors ON)
  endif()
endif()

add_library(tandem_flags INTERFACE)
target_include_directories(tandem_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
# Contraction is off everywhere: where a fused multiply-add is meant, it is written. libstdc++ 12's std::stable_sort
# calls a function that it deprecates itself, which clang reports at every use.
# fmt 9 takes nvcc for a compiler without constexpr, and then contradicts itself.
target_compile_options(tandem_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wvla -ffp-contract=off
    $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations> $<$<BOOL:${warnings_are_errors}>:-Werror>>
  $<$<COMPILE_LANGUAGE:CUDA>:-DFMT_USE_CONSTEXPR=1 -fmad=false --compress-mode=size -Xcompiler=-Wall,-Wextra,-ffp-contract=off --expt-relaxed-constexpr
    $<$<BOOL:${warnings_are_errors}>:-Werror=all-warnings>>)
if(TANDEM_SANITIZE)
  target_compile_options(tandem_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TANDEM_SANITIZE}
    -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(tandem_flags INTERFACE -fsanitize=${TANDEM_SANITIZE})
  if(TANDEM_SANITIZE MATCHES "thread")
    # ThreadSanitizer does not know fences; Asio's are beside its locks, which it knows.
    target_compile_definitions(tandem_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()
if(TANDEM_FUZZ)
  target_compile_options(tandem_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TANDEM_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TANDEM_CCACHE})
endif()

# tandem_library(NAME SOURCES ... [LINK ...]): the static library tandem_NAME of one folder of src.
function(tandem_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_library(tandem_${name} STATIC ${arg_SOURCES})
  target_link_libraries(tandem_${name} PUBLIC tandem_flags ${arg_LINK})
endfunction()

# tandem_test(NAME SOURCES ... [LINK ...] [LABELS ...] [TIMEOUT s]): one GoogleTest program, registered with ctest.
# Tests find their data through TANDEM_SOURCE_DIR and write only below their working folder.
function(tandem_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE tandem_flags ${arg_LINK} GTest::gmock GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE TANDEM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(TANDEM_SANITIZE)
    # GCC 12 takes members of std::regex's automaton for uninitialised once sanitizers instrument it.
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(TANDEM_SANITIZE)
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")  # ThreadSanitizer takes ten times as long over arithmetic
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
endfunction()

# tandem_cases(NAME SOURCES ... [LINK ...]): the cases of a test program, where another program has them too.
function(tandem_cases name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} OBJECT ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC tandem_flags ${arg_LINK} GTest::gmock)
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE TANDEM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endfunction()

# tandem_fuzzer(NAME SOURCES ... [LINK ...]): one libFuzzer program.
function(tandem_fuzzer name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE tandem_flags ${arg_LINK})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
