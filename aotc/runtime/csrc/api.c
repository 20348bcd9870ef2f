/* The one exported symbol and its table. */
#include "internal.h"

const aotc_api rt_api = {
    .size = sizeof(aotc_api),
    .abi_version = AOTC_ABI_VERSION,
    .runtime_version = aotc_version,
    .model_create = rt_model_create,
    .model_destroy = rt_model_destroy,
    .model_library = rt_model_library,
    .manifest = rt_manifest,
    .entry_point_count = rt_entry_point_count,
    .entry_point_name = rt_entry_point_name,
    .input_count = rt_input_count,
    .output_count = rt_output_count,
    .input_info = rt_input_info,
    .output_info = rt_output_info,
    .infer_shape = rt_infer_shape,
    .pool_create = rt_pool_create,
    .pool_destroy = rt_pool_destroy,
    .session_create = rt_session_create,
    .session_destroy = rt_session_destroy,
    .bind_input = rt_bind_input,
    .bind_output = rt_bind_output,
    .output_shape = rt_output_shape,
    .run = rt_run,
    .get_output = rt_get_output,
    .set_profiling = rt_set_profiling,
    .step_count = rt_step_count,
    .step_info = rt_step_info,
    .memory_info = rt_memory_info,
    .pool_acquire = rt_pool_acquire,
    .pool_release = rt_pool_release,
    .pool_begin = rt_pool_begin,
    .pool_end = rt_pool_end,
    .pool_parallel_for = rt_pool_parallel_for,
    .session_reset = rt_session_reset,
    .cancel = rt_cancel,
    .state_count = rt_state_count,
    .state_info = rt_state_info,
    .get_state = rt_get_state,
    .run_async = rt_run_async,
    .wait = rt_wait,
    .pool_rounds = rt_pool_rounds,
};

__attribute__((visibility("default"))) const aotc_api *aotc_model(uint32_t abi_version);

const aotc_api *aotc_model(uint32_t abi_version) { return abi_version == AOTC_ABI_VERSION ? &rt_api : NULL; }
