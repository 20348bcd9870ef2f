# Builds applications for 64-bit Arm boards with the ziglang wheel: no cross gcc, no sysroot. The C library is that of JetPack 4.6,
# the oldest; -DAOTC_GLIBC=2.35 chooses another. Tests run under qemu-user where it is installed.
#
#     cmake -S . -B build/apps-aarch64 --toolchain cross/aarch64-linux-gnu.cmake
#
# The wheel is found in this project's .venv, or in the Python that the environment variable AOTC_PYTHON names.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(AOTC_GLIBC "2.27" CACHE STRING "The oldest C library that the applications must run with")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES AOTC_GLIBC)

set(CMAKE_C_COMPILER "${CMAKE_CURRENT_LIST_DIR}/zig-cc")
set(CMAKE_CXX_COMPILER "${CMAKE_CURRENT_LIST_DIR}/zig-c++")
set(CMAKE_AR "${CMAKE_CURRENT_LIST_DIR}/zig-ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "${CMAKE_CURRENT_LIST_DIR}/zig-ranlib" CACHE FILEPATH "")
set(CMAKE_C_FLAGS_INIT "-target aarch64-linux-gnu.${AOTC_GLIBC}")
set(CMAKE_CXX_FLAGS_INIT "-target aarch64-linux-gnu.${AOTC_GLIBC}")

# Without linking, CMake's checks of the compiler need none of what zig makes on first use (libc++ takes a minute).
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)

find_program(AOTC_QEMU qemu-aarch64)
set(AOTC_QEMU_SYSROOT "/usr/aarch64-linux-gnu" CACHE PATH "Where qemu-user finds the arm64 C library (Debian: libc6-arm64-cross)")
if(AOTC_QEMU)
    set(CMAKE_CROSSCOMPILING_EMULATOR "${AOTC_QEMU};-L;${AOTC_QEMU_SYSROOT}")
endif()
