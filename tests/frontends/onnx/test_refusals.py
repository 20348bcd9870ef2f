"""What is no sound model, and what aotc lacks (cases 37, 39 and 40)."""

from __future__ import annotations

import contextlib
import random
import resource
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.errors import AotcError, InvalidModel, UnsupportedModel
from aotc.frontends.onnx import import_onnx
from tests.frontends.onnx.helpers import parse, run

X = "(float[2, 3] x) => (float y)"


def test_case_39_all_missing_operators_at_once() -> None:
    body = """{
        [first] a = ImageDecoder (x)
        [other] b = StringNormalizer (a)
        [second] c = ImageDecoder (x)
        d = Relu (x)
        [odd] e = com.microsoft.BeamSearch (d, x)
        y = Concat <axis=0> (a, b, c, e)
    }"""
    text = f'<ir_version: 8, opset_import: ["" : 20, "com.microsoft" : 1]> g {X} {body}'
    with pytest.raises(UnsupportedModel) as caught:
        import_onnx(onnx.parser.parse_model(text))
    message = str(caught.value)
    assert "3 operators that aotc lacks, in 4 nodes" in message
    assert "ImageDecoder (ai.onnx opset 20), 2 times: 'first', 'second'; express it by other operators" in message
    assert "StringNormalizer (ai.onnx opset 20), 1 times: 'other'" in message
    assert "BeamSearch (com.microsoft opset 1), 1 times: 'odd'; ONNX Runtime's optimiser wrote this" in message


def test_case_39_inside_functions_and_with_a_limit_on_names() -> None:
    nodes = " ".join(f"[n{i}] a{i} = StringNormalizer (x)" for i in range(7))
    names = ", ".join(f"a{i}" for i in range(7))
    with pytest.raises(UnsupportedModel, match="7 times: 'n0', 'n1', 'n2', 'n3', 'n4' and 2 more"):
        import_onnx(parse(f"{X} {{ {nodes} y = Concat <axis=0> ({names}) }}"))
    text = f"""<ir_version: 8, opset_import: ["" : 18, "mine" : 1]> g {X} {{ [outer] y = mine.f (x) }}
    <domain: "mine", opset_import: ["" : 18]> f (a) => (b) {{ [inner] b = StringNormalizer (a) }}"""
    with pytest.raises(UnsupportedModel, match=r"StringNormalizer \(ai.onnx opset 18\), 1 times: 'outer/inner'"):
        import_onnx(onnx.parser.parse_model(text))


def test_case_39_reasons_of_several_nodes_at_once() -> None:
    body = "{ [p] a = Reshape (x, s) [q] b = Tile (x, s) y = Add (a, b) }"
    with pytest.raises(UnsupportedModel) as caught:
        import_onnx(parse(f"(float[2, 3] x, int64[N] s) => (float y) {body}"))
    assert "2 nodes need something that aotc lacks" in str(caught.value)
    assert "Reshape at 'p'" in str(caught.value) and "Tile at 'q'" in str(caught.value)


def test_an_operator_of_a_domain_that_is_not_imported() -> None:
    model = parse(f"{X} {{ y = Relu (x) }}")
    model.graph.node[0].domain = "nowhere"
    with pytest.raises(UnsupportedModel, match=r"Relu \(nowhere, which the model does not import\)"):
        import_onnx(model)


# Case 40: no sound file -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty; expected an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not an ONNX model"),
        (b"hello, this is no model at all\n" * 10, "not an ONNX model"),
        (b"\x08\x07", "holds no graph"),
    ],
)
def test_case_40_files_that_are_no_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModel, match=message):
        import_onnx(path)


def test_case_40_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"cannot read .*: No such file"):
        import_onnx(tmp_path / "none.onnx")
    with pytest.raises(InvalidModel, match=r"cannot read .*: Is a directory"):
        import_onnx(tmp_path)


def test_case_40_every_truncation_is_refused() -> None:
    model = parse(f"{X} <float[3, 4] w = {{1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,1.0,2.0,3.0}}> {{ y = MatMul (x, w) }}")
    data = model.SerializeToString()
    for length in range(0, len(data) - 1, 3):
        with pytest.raises(AotcError):
            import_onnx(data[:length])


def broken(change) -> onnx.ModelProto:  # type: ignore[no-untyped-def]
    model = parse(f"{X} <float[3] w = {{1.0, 2.0, 3.0}}> {{ [one] a = Add (x, w) [two] y = Relu (a) }}")
    change(model)
    return model


def rename(node: int, field: str, name: str):  # type: ignore[no-untyped-def]
    return lambda model: getattr(model.graph.node[node], field).__setitem__(0, name)


@pytest.mark.parametrize(
    "change, message",
    [
        (rename(0, "input", "y"), "the nodes 'two' and 'one' lie on a cycle"),
        (rename(0, "input", "a"), "the nodes 'one' and 'one' lie on a cycle"),
        (rename(1, "input", "ghost"), "node 'two' reads 'ghost', which no node, input or initialiser produces"),
        (rename(0, "output", "y"), "the name 'y' is defined twice, by 'one' and by node 'two'"),
        (rename(0, "output", "w"), "the name 'w' is defined twice, by an input or initialiser and by node 'one'"),
        (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "the initialiser 'w' is defined twice"),
        (lambda m: m.graph.output.append(m.graph.output[0]), "two outputs of the model have one name"),
        (lambda m: m.graph.input.append(m.graph.input[0]), "two inputs are named 'x'"),
        (lambda m: m.graph.output.pop(), "has a graph without outputs"),
        (lambda m: m.graph.initializer[0].dims.__setitem__(0, -3), "'w' has the negative dims"),
        (lambda m: m.graph.initializer[0].dims.__setitem__(0, 1 << 62), "more than any memory holds"),
        (lambda m: m.graph.initializer[0].dims.__setitem__(0, 2), "takes 2 elements, and 3 came"),
        (lambda m: m.graph.node[0].input.pop(), "takes 2 arguments, not 1"),
    ],
)
def test_case_40_graphs_that_contradict_themselves(change, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidModel, match=message):
        import_onnx(broken(change))


def test_case_40_huge_dims_take_no_memory() -> None:
    """Half a terabyte asked for in an initialiser, a constant, an expansion and a range: refused, or kept symbolic."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    for raw in (True, False):
        model = broken(lambda m: None)
        model.graph.initializer[0].dims[:] = [1 << 37]
        if raw:
            model.graph.initializer[0].ClearField("float_data")
            model.graph.initializer[0].raw_data = b"1234"
        with pytest.raises(InvalidModel):
            import_onnx(model)
    huge = 1 << 37
    for body in (
        f"s = Constant <value_ints=[{huge}]> () a = ConstantOfShape (s) y = ReduceMax (a)",
        f"s = Constant <value_ints=[{huge}, 2, 3]> () a = Expand (x, s) y = ReduceMax (a)",
        f"p = Constant <value_ints=[0, 0, {huge}, 0]> () a = Pad (x, p) y = ReduceMax (a)",
        f"p = Constant <value_ints=[{huge}, 1]> () a = Tile (x, p) y = ReduceMax (a)",
        f"z = Constant <value_int=0> () e = Constant <value_int={huge}> () d = Constant <value_int=1> () a = Range (z, e, d) y = ReduceMax (a)",
    ):
        import_onnx(parse(f"(float[2, 3] x) => (float y) {{ {body} }}"))
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(1, np.float32), "v"), numpy_helper.from_array(np.zeros(1, np.int64), "i"), [huge]
    )
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Constant", [], ["y"], sparse_value=sparse)], "g", [],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        ), opset_imports=[helper.make_opsetid("", 13)],
    )  # fmt: skip
    with pytest.raises(InvalidModel, match=r"a sparse tensor of .* cannot be made dense"):
        import_onnx(model)
    assert time.monotonic() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_case_40_a_function_that_calls_itself() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18, "mine" : 1]> g {X} {{ y = mine.f (x) }}
    <domain: "mine", opset_import: ["" : 18, "mine" : 1]> f (a) => (b) {{ c = Relu (a) b = mine.f (c) }}"""
    with pytest.raises(AotcError):
        import_onnx(onnx.parser.parse_model(text))


def test_case_40_damaged_bytes_never_crash() -> None:
    """Anything may come of a damaged file but an error that is not ours."""
    source = random.Random(0)
    model = parse(f"""{X} <float[3, 4] w = {{1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0,1.0,2.0,3.0}}, int64[2] s = {{-1, 2}}> {{
        a = MatMul (x, w) b = Softmax <axis=1> (a) c = Reshape (b, s) d = Transpose <perm=[1, 0]> (c)
        y = Pad <mode="constant"> (d, p) p = Constant <value_ints=[0, 1, 1, 0]> () }}""")
    data = model.SerializeToString()
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 4))):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        with contextlib.suppress(AotcError):
            import_onnx(bytes(damaged))


# Case 37: external data --------------------------------------------------------------------------------------------


def save(folder: Path, location: str = "weights.bin", offset: int | str = 64, length: str = "12") -> Path:
    """A model whose weight of 12 bytes lies outside, and that file with some bytes before it."""
    model = parse(f"{X} {{ y = Add (x, w) }}")
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": str(offset), "length": length}.items():
        weight.external_data.add(key=key, value=value)
    model.graph.initializer.append(weight)
    (folder / "weights.bin").write_bytes(bytes(64) + np.array([1, 2, 3], np.float32).tobytes())
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_case_37_external_data_beside_the_model(tmp_path: Path) -> None:
    module = import_onnx(save(tmp_path))
    (result,) = run(module, {"x": np.zeros((2, 3), np.float32)})
    assert result.tolist() == [[1, 2, 3]] * 2
    (tmp_path / "sub").mkdir()
    (tmp_path / "weights.bin").rename(tmp_path / "sub" / "weights.bin")
    path = save(tmp_path, "sub/weights.bin")
    (tmp_path / "weights.bin").unlink()
    assert run(import_onnx(path), {"x": np.zeros((2, 3), np.float32)})[0].tolist() == [[1, 2, 3]] * 2


@pytest.mark.parametrize(
    "location, offset, length, message",
    [
        ("absent.bin", 64, "12", "'w' lies in 'absent.bin', which is not in .*; put that file beside the model"),
        ("weights.bin", 68, "12", "12 bytes at offset 68 of weights.bin are needed and 8 are there; the file is cut short"),
        ("weights.bin", 10**9, "12", "and 0 are there"),
        ("weights.bin", 64, "8", "takes 12 bytes, and its entry says 8"),
        ("weights.bin", "-1", "12", "must be a count of bytes, not '-1'"),
        ("../weights.bin", 64, "12", "external data must be inside the model's folder"),
        ("/etc/passwd", 0, "12", "external data must be inside the model's folder"),
        ("", 0, "12", "external data must be inside the model's folder"),
    ],
)
def test_case_37_external_data_that_does_not_fit(tmp_path: Path, location: str, offset: int | str, length: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        import_onnx(save(tmp_path, location, offset, length))


def test_case_37_a_link_out_of_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(76))
    (inside / "link.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(InvalidModel, match="a link that leads out of the model's folder"):
        import_onnx(save(inside, "link.bin"))


def test_case_37_a_model_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="a model without a path has no folder"):
        import_onnx(onnx.load(save(tmp_path), load_external_data=False))
