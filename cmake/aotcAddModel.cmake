# aotc_add_model(NAME MODEL file.onnx [TARGET jetson] [OUTPUT file.so] [INPUTS name:1x3x224x224 ...] [OPTIONS ...])
#
# Adds the target NAME, which builds MODEL (ONNX, or a saved torch.export program) into OUTPUT (NAME.so in the binary folder) with
# `aotc build`, again whenever MODEL changes. TARGET is one of `aotc targets`; left out, it is jetson when cross-compiling for
# aarch64, else host. OPTIONS go to `aotc build` as they are. The file's path is the property AOTC_FILE of the target:
#
#     aotc_add_model(classifier MODEL classifier.onnx TARGET jetson)
#     get_target_property(file classifier AOTC_FILE)
#     add_dependencies(my_app classifier)
#
# The `aotc` program runs on the machine that builds: it is looked up in PATH, or set with -DAOTC_EXECUTABLE=/path/to/aotc.

function(aotc_add_model name)
    cmake_parse_arguments(ARG "" "MODEL;TARGET;OUTPUT" "INPUTS;OPTIONS;DEPENDS" ${ARGN})
    if(ARG_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "aotc_add_model(${name}): cannot understand ${ARG_UNPARSED_ARGUMENTS}")
    endif()
    if(NOT ARG_MODEL)
        message(FATAL_ERROR "aotc_add_model(${name}): MODEL must name the model's file")
    endif()
    find_program(AOTC_EXECUTABLE aotc DOC "The aotc program" NO_CMAKE_FIND_ROOT_PATH)
    if(NOT AOTC_EXECUTABLE)
        message(FATAL_ERROR "aotc_add_model(${name}): the program aotc was not found in PATH; run `pip install aotc`, or set -DAOTC_EXECUTABLE=/path/to/aotc")
    endif()

    get_filename_component(model "${ARG_MODEL}" ABSOLUTE)
    set(output "${ARG_OUTPUT}")
    if(NOT output)
        set(output "${name}.so")
    endif()
    get_filename_component(output "${output}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
    set(target "${ARG_TARGET}")
    if(NOT target)
        if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
            set(target jetson)
        else()
            set(target host)
        endif()
    endif()
    set(inputs)
    foreach(input IN LISTS ARG_INPUTS)
        list(APPEND inputs --input "${input}")
    endforeach()

    add_custom_command(
        OUTPUT "${output}"
        COMMAND "${AOTC_EXECUTABLE}" build "${model}" --target "${target}" --output "${output}" ${inputs} ${ARG_OPTIONS}
        DEPENDS "${model}" ${ARG_DEPENDS}
        COMMENT "Building ${output} for ${target}"
        VERBATIM)
    add_custom_target(${name} ALL DEPENDS "${output}")
    set_target_properties(${name} PROPERTIES AOTC_FILE "${output}")
endfunction()
