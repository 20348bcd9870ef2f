/* aotc for C++11 and newer: RAII and exceptions over aotc.h, nothing else. Link the same library (or compile aotc_loader.c in).
 *
 *     aotc::model model("model.so");
 *     aotc::session session(model);
 *     std::vector<float> image(3 * 224 * 224);
 *     session.bind_input("image", image.data(), {1, 3, 224, 224});     // not copied: refill it between runs
 *     session.run();
 *     aotc::view<const float> scores = session.output<float>("scores"); // the session's memory until the next run
 *
 * Every failure throws aotc::error. Objects move, they do not copy. Threads and ownership are as aotc.h says; a session and a pool
 * keep the file that they came from open.
 */
#ifndef AOTC_HPP
#define AOTC_HPP

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "aotc.h"

namespace aotc {

/* What aotc.h reports: what() is the message. */
class error : public std::runtime_error {
public:
    error(aotc_status status, const char *message) : std::runtime_error(message), status_(status) {}
    aotc_status status() const noexcept { return status_; }

private:
    aotc_status status_;
};

using shape = std::vector<std::int64_t>;

namespace detail {

inline void check(aotc_status status, const aotc_error &failure) {
    if (status != AOTC_OK) throw error(status, failure.message);
}

template <class T> struct dtype_of;
#define AOTC_DTYPE(type, code) \
    template <> struct dtype_of<type> { \
        static DLDataType value() { return DLDataType{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * sizeof(type)), 1}; } \
    }
AOTC_DTYPE(float, kDLFloat);
AOTC_DTYPE(double, kDLFloat);
AOTC_DTYPE(std::int8_t, kDLInt);
AOTC_DTYPE(std::int16_t, kDLInt);
AOTC_DTYPE(std::int32_t, kDLInt);
AOTC_DTYPE(std::int64_t, kDLInt);
AOTC_DTYPE(std::uint8_t, kDLUInt);
AOTC_DTYPE(std::uint16_t, kDLUInt);
AOTC_DTYPE(std::uint32_t, kDLUInt);
AOTC_DTYPE(std::uint64_t, kDLUInt);
AOTC_DTYPE(bool, kDLBool);
#undef AOTC_DTYPE

inline bool same(DLDataType a, DLDataType b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

inline DLTensor tensor(const void *data, DLDataType dtype, shape &dims) {
    DLTensor out;
    out.data = const_cast<void *>(data);
    out.device.device_type = kDLCPU;
    out.device.device_id = 0;
    out.ndim = static_cast<std::int32_t>(dims.size());
    out.dtype = dtype;
    out.shape = dims.data();
    out.strides = nullptr;
    out.byte_offset = 0;
    return out;
}

} // namespace detail

/* A dense row-major tensor in somebody else's memory. */
template <class T> class view {
public:
    view(T *data, shape dims) : data_(data), dims_(std::move(dims)), size_(1) {
        for (std::int64_t dim : dims_) size_ *= static_cast<std::size_t>(dim);
    }
    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    const shape &dims() const noexcept { return dims_; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t index) const noexcept { return data_[index]; }

private:
    T *data_;
    shape dims_;
    std::size_t size_;
};

/* An input or output; a dim of -1 is known only at run time, from the inputs' shapes or after a run. */
struct tensor_info {
    std::string name;
    DLDataType dtype;
    shape dims;
};

/* An opened file: immutable, for any number of threads. */
class model {
public:
    explicit model(const std::string &path) {
        aotc_error failure;
        aotc_model_t *opened = nullptr;
        detail::check(aotc_open(path.c_str(), &opened, &failure), failure);
        handle_ = std::shared_ptr<aotc_model_t>(opened, [](aotc_model_t *file) { aotc_close(file, nullptr); });
    }

    aotc_model_t *get() const noexcept { return handle_.get(); }
    const std::shared_ptr<aotc_model_t> &share() const noexcept { return handle_; }
    std::string manifest() const { return aotc_manifest(get(), nullptr); }
    std::vector<tensor_info> inputs(std::size_t entry_point = 0) const { return infos(aotc_input_count, aotc_input_info, entry_point); }
    std::vector<tensor_info> outputs(std::size_t entry_point = 0) const { return infos(aotc_output_count, aotc_output_info, entry_point); }

private:
    template <class Count, class Info> std::vector<tensor_info> infos(Count count, Info info, std::size_t entry_point) const {
        std::vector<tensor_info> found;
        for (std::size_t i = 0; i < count(get(), entry_point); i++) {
            const aotc_tensor_info *each = info(get(), entry_point, i);
            tensor_info out{each->name, each->dtype, {}};
            for (std::int32_t axis = 0; axis < each->rank; axis++) out.dims.push_back(each->dims[axis].value);
            found.push_back(std::move(out));
        }
        return found;
    }

    std::shared_ptr<aotc_model_t> handle_;
};

/* Worker threads that sessions share: pool.get() goes into aotc_session_options.pool. */
class pool {
public:
    explicit pool(const model &owner, std::uint32_t num_threads = 0) : model_(owner.share()), handle_(nullptr) {
        aotc_error failure;
        detail::check(aotc_pool_create(owner.get(), num_threads, &handle_, &failure), failure);
    }
    ~pool() { aotc_pool_destroy(handle_, nullptr); }
    pool(pool &&other) noexcept : model_(std::move(other.model_)), handle_(other.handle_) { other.handle_ = nullptr; }
    pool(const pool &) = delete;
    pool &operator=(const pool &) = delete;
    aotc_pool_t *get() const noexcept { return handle_; }

private:
    std::shared_ptr<aotc_model_t> model_;
    aotc_pool_t *handle_;
};

/* Inputs, outputs and working memory for one entry point; for one thread at a time. */
class session {
public:
    explicit session(const model &owner, std::uint32_t num_threads = 1) : session(owner, threads(num_threads)) {}

    /* For another entry point of the file that `other` came from, on the same states: prefill and step, encoder and decoder. */
    session(const model &owner, const std::string &entry_point, const session &other, std::uint32_t num_threads = 1)
        : session(owner, sharing(entry_point, other, num_threads)) {}

    session(const model &owner, const aotc_session_options &options) : model_(owner.share()), handle_(nullptr), entry_point_(0) {
        aotc_error failure;
        if (options.entry_point) {
            const std::int64_t found = aotc_find_entry_point(owner.get(), options.entry_point);
            entry_point_ = found < 0 ? 0 : static_cast<std::size_t>(found);
        }
        detail::check(aotc_session_create(owner.get(), &options, &handle_, &failure), failure);
    }
    ~session() { aotc_session_destroy(handle_, nullptr); }
    session(session &&other) noexcept : model_(std::move(other.model_)), handle_(other.handle_), entry_point_(other.entry_point_) {
        other.handle_ = nullptr;
    }
    session(const session &) = delete;
    session &operator=(const session &) = delete;
    aotc_session_t *get() const noexcept { return handle_; }

    /* Read the input from `data` in every run until it is bound anew; the memory stays the caller's. `device`: where it is, such as
     * kDLCUDA for memory of the GPU. */
    template <class T> void bind_input(const std::string &name, const T *data, shape dims, DLDeviceType device = kDLCPU) {
        aotc_error failure;
        DLTensor tensor = detail::tensor(data, detail::dtype_of<T>::value(), dims);
        tensor.device.device_type = device;
        detail::check(aotc_bind_input(handle_, input_number(name), &tensor, &failure), failure);
    }

    /* Write the output to `data` in every run until it is bound anew. */
    template <class T> void bind_output(const std::string &name, T *data, shape dims, DLDeviceType device = kDLCPU) {
        aotc_error failure;
        DLTensor tensor = detail::tensor(data, detail::dtype_of<T>::value(), dims);
        tensor.device.device_type = device;
        detail::check(aotc_bind_output(handle_, output_number(name), &tensor, &failure), failure);
    }

    void run() {
        aotc_error failure;
        detail::check(aotc_run(handle_, &failure), failure);
    }

    /* Run, and return as soon as the GPU has all its work: a CUevent that has occurred when the run is done, or null. */
    void *run_async() {
        aotc_error failure;
        void *event = nullptr;
        detail::check(aotc_run_async(handle_, &event, &failure), failure);
        return event;
    }
    void wait() {
        aotc_error failure;
        detail::check(aotc_wait(handle_, &failure), failure);
    }

    /* First values back into all states. */
    void reset() {
        aotc_error failure;
        detail::check(aotc_session_reset(handle_, &failure), failure);
    }

    /* From another thread: end a run that loops. */
    void cancel() const noexcept { aotc_cancel(handle_, nullptr); }

    /* The output of the latest run; valid until the next run or bind. */
    template <class T> view<const T> output(const std::string &name) const {
        aotc_error failure;
        DLTensor tensor;
        detail::check(aotc_get_output(handle_, output_number(name), &tensor, &failure), failure);
        if (!detail::same(tensor.dtype, detail::dtype_of<T>::value()))
            throw error(AOTC_INVALID_ARGUMENT, ("output '" + name + "' has another element type than the one asked for").c_str());
        const char *data = static_cast<const char *>(tensor.data) + tensor.byte_offset;
        return view<const T>(reinterpret_cast<const T *>(data), shape(tensor.shape, tensor.shape + tensor.ndim));
    }

private:
    static aotc_session_options threads(std::uint32_t number) {
        aotc_session_options options = aotc_session_options();
        options.size = sizeof options;
        options.num_threads = number;
        return options;
    }
    static aotc_session_options sharing(const std::string &entry_point, const session &other, std::uint32_t number) {
        aotc_session_options options = threads(number);
        options.entry_point = entry_point.c_str();
        options.share_state = other.get();
        return options;
    }
    std::size_t input_number(const std::string &name) const {
        return number(aotc_find_input(model_.get(), entry_point_, name.c_str()), "input", name);
    }
    std::size_t output_number(const std::string &name) const {
        return number(aotc_find_output(model_.get(), entry_point_, name.c_str()), "output", name);
    }
    static std::size_t number(std::int64_t found, const char *kind, const std::string &name) {
        if (found < 0) throw error(AOTC_INVALID_ARGUMENT, (std::string("the model has no ") + kind + " named '" + name + "'").c_str());
        return static_cast<std::size_t>(found);
    }

    std::shared_ptr<aotc_model_t> model_;
    aotc_session_t *handle_;
    std::size_t entry_point_;
};

} // namespace aotc

#endif
