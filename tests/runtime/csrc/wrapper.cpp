// aotc.hpp: values, views, errors as exceptions, moves, and what keeps a file open.
#undef NDEBUG
#include <cassert>
#include <cstring>
#include <memory>

#include "aotc.hpp"

template <class Work> static std::string message_of(Work work) {
    try {
        work();
    } catch (const aotc::error &failure) {
        assert(failure.status() != AOTC_OK);
        return failure.what();
    }
    return "";
}

/* Two entry points on the same states: tests/runtime/models_control.py, states. */
static bool shares_states(const char *path) {
    aotc::model model(path);
    aotc::session add(model);
    aotc::session read(model, "read", add);
    const float x = 2;
    add.bind_input("x", &x, {});
    add.run();
    add.run();
    read.run();
    bool right = read.output<float>("sum")[3] == 4 && read.output<float>("turns")[0] == 2;
    add.reset();
    read.run();
    return right && read.output<float>("sum")[3] == 0 && read.output<float>("turns")[0] == 0;
}

int main(int count, char **paths) {
    assert(count == 3 && shares_states(paths[2]));
    std::vector<float> image(8, 1.0f), own(6);
    std::vector<std::int64_t> ids = {3, 4};
    std::unique_ptr<aotc::session> session;
    {
        aotc::model model(paths[1]);
        assert(model.manifest().find("\"labels\":\"a,b,\xc3\xa4\"") != std::string::npos);
        assert(model.inputs().size() == 2 && model.inputs()[0].name == "image" && model.inputs()[0].dims == (aotc::shape{-1, 4}));
        session.reset(new aotc::session(model, 2));
        aotc::pool pool(model, 2);
    }
    aotc::session moved(std::move(*session)); // its file stays open
    session.reset();
    moved.bind_input("image", image.data(), {2, 4});
    moved.bind_input("ids", ids.data(), {2});
    moved.run();
    const aotc::view<const float> scores = moved.output<float>("scores");
    assert(scores.size() == 6 && scores.dims() == (aotc::shape{2, 3}));
    const std::vector<float> copied(scores.begin(), scores.end());
    moved.bind_output("scores", own.data(), {2, 3});
    moved.run();
    assert(own == copied && own[0] > 0 && moved.output<std::int64_t>("labels")[1] == 4);

    assert(message_of([&] { moved.bind_input("img", image.data(), {2, 4}); }).find("no input named 'img'") != std::string::npos);
    assert(message_of([&] { moved.bind_input("image", ids.data(), {1, 4}); }).find("float32") != std::string::npos);
    assert(message_of([&] { moved.output<double>("scores"); }).find("another element type") != std::string::npos);
    assert(message_of([] { aotc::model("/nowhere/model.so"); }).find("cannot be opened") != std::string::npos);
    return 0;
}
