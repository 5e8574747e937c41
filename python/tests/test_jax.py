"""Estimates of JAX without jax: the description of a card, allocations of a dump, the watch's account, the search."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from gapless._errors import GaplessError
from gapless._estimate.cards import card, names
from gapless._jax.ahead import Program
from gapless._jax.allocations import of
from gapless._jax.choose import Choices, _mark, _Search, _unchanged
from gapless._jax.target import describe

DUMPS = Path(__file__).resolve().parents[2] / "testdata/xla"


@pytest.mark.parametrize("name", names())
def test_each_card_is_described_with_what_xla_needs(name: str) -> None:
    text = describe(card(name), "13.0.0", "9.10.0")
    assert 'runtime_version: "13.0.0"' in text, "XLA's compiler stops without it"
    assert text.count("{") == text.count("}")
    for field in ("core_count", "device_memory_size", "shared_memory_per_block_optin", "memory_bandwidth", "l2_cache_size", "clock_rate_ghz"):
        value = text.split(f"  {field}: ")[1].split()[0]
        assert float(value) > 0, field
    assert "major: 0" not in text


def test_a_call_takes_what_is_no_argument_and_no_constant(tmp_path: Path) -> None:
    import json

    rows = json.loads((DUMPS / "memory.json").read_text())
    for name in ("mlp_sgd", "gpt_donated", "gpt_scan"):
        file = tmp_path / f"{name}.pb"
        file.write_bytes(gzip.decompress((DUMPS / f"{name}.hlo.pb.gz").read_bytes()))
        allocations = of(str(file))
        taken = [allocation for allocation in allocations if allocation.taken]
        temporaries = sum(a.size for a in taken if not a.output)
        # XLA counts the table of results with the results.
        outputs = sum(a.size for a in taken if a.output)
        assert temporaries == rows[name]["temporaries"], name
        assert outputs == rows[name]["outputs"] - rows[name]["aliased"], name
        assert sum(a.size for a in allocations if a.parameter) == rows[name]["arguments"], name
        assert [a.index for a in allocations] == sorted(a.index for a in allocations)


class _Lowered:
    def __init__(self, text: str) -> None:
        self.text = text

    def lower(self, **_: Any) -> "_Lowered":
        return self

    def as_text(self) -> str:
        return self.text


class _Step:
    __name__ = "step"

    def __init__(self, text: str) -> None:
        self.text = text

    def trace(self, *_: Any) -> _Lowered:
        return _Lowered(self.text)


class _Compiler:
    """A card on which a program's peak and operations stand in its text."""

    def __init__(self) -> None:
        self.count = 0

    def compile(self, lowered: _Lowered, name: str) -> Program:
        self.count += 1
        peak, flops = map(int, lowered.text.split())
        return Program(name, 0, 0, 0, peak, peak, 0, 0, 0.0, float(flops))


def _searched(peak: Any, flops: Any, budget: int, batch: "list[int]", remat: "list[str]") -> "tuple[Choices, int]":
    def make(batch: int, remat: str) -> _Step:
        return _Step(f"{peak(batch, remat)} {flops(batch, remat)}")

    compiler = _Compiler()
    found = Choices(card("h200"), budget, "batch")
    search = _Search(make, compiler, budget, found)  # type: ignore[arg-type]
    for word in remat:
        search.largest({"remat": word}, "batch", batch)
    found.unchanged = _unchanged(found, {"remat": remat})
    _mark(found)
    return found, compiler.count


_PEAK = {"none": 40, "dots": 25, "full": 10}
_WORK = {"none": 100, "dots": 110, "full": 133}


@pytest.mark.parametrize("fixed", [0, 100, 900])
@pytest.mark.parametrize("bend", [0, 3])
def test_the_largest_batch_is_found_with_few_compilations(fixed: int, bend: int) -> None:
    sizes = list(range(1, 129))

    def peak(batch: int, remat: str) -> int:
        # Steps of kernels bend the line.
        return fixed + _PEAK[remat] * batch + bend * (batch % 7)

    found, count = _searched(peak, lambda b, r: b * _WORK[r], 1000, sizes, list(_PEAK))
    for remat in _PEAK:
        fitting = [batch for batch in sizes if peak(batch, remat) <= 1000]
        tried = [c.settings["batch"] for c in found.tried if c.fits and c.settings["remat"] == remat]
        if fitting and bend == 0:
            assert max(tried) == max(fitting), remat
        elif fitting:
            assert max(tried) >= max(fitting) - 1, remat
        else:
            assert not tried
    assert count <= 6 * len(_PEAK), f"{count} compilations"
    best = found.best
    if best:
        assert best.settings["batch"] == max(c.settings["batch"] for c in found.tried if c.fits)
        assert best.on_frontier


def test_a_setting_that_changes_nothing_is_said_to_change_nothing() -> None:
    found, count = _searched(lambda b, r: 10 * b, lambda b, r: b, 1000, [1, 2, 4], ["none", "full"])
    assert found.unchanged == ["remat full changes nothing: it is the same program as none"]
    assert count == 2, "the second word is not compiled again"
    assert "changes nothing" in str(found)


def test_nothing_fits_is_an_answer() -> None:
    found, count = _searched(lambda b, r: 5000, lambda b, r: b, 1000, [1, 2, 4], ["none"])
    assert found.best is None and count == 1
    assert str(found).startswith("nothing that was tried fits")


def test_wrong_settings_are_told_in_words(tmp_path: Path) -> None:
    from gapless._jax.choose import choose

    with pytest.raises(GaplessError, match="batch has no values"):
        choose(lambda **_: None, card("h200"), 1, 1, "", {"batch": []})
    with pytest.raises(GaplessError, match="are numbers: one size is looked for"):
        choose(lambda **_: None, card("h200"), 1, 1, "", {"batch": [1, 2], "length": [1, 2]})


def test_a_share_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from gapless._jax.estimate import share

    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "most")
    with pytest.raises(GaplessError, match="invalid XLA_PYTHON_CLIENT_MEM_FRACTION 'most'"):
        share()
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9")
    assert share() == 0.9


def test_programs_that_differ_in_names_alone_have_one_digest() -> None:
    from gapless._jax.ahead import digest

    def module(body: str, parameter: str, tail: str) -> str:
        return f"HloModule jit\n{tail}\n%{body} ({parameter}: f32[8]) -> f32[8] {{\n  ROOT %r.{len(tail)} = f32[8]{{0}} sine(%{parameter}), {tail}\n}}\n"

    one = module("body.1", "p.2", 'metadata={op_name="jit(a)/{x}" source_line=3}')
    other = module("body.9", "p.7", 'metadata={op_name="b"}')
    assert digest(one) == digest(other)
    assert digest(one) != digest(other.replace("sine", "cosine"))
    assert digest(one) != digest(other.replace("f32[8]{0}", "f32[9]{0}"))


def test_what_xla_makes_the_same_is_said_to_change_nothing() -> None:
    class Same(_Compiler):
        def compile(self, lowered: _Lowered, name: str) -> Program:
            program = super().compile(lowered, name)
            # XLA undoes what the second word asked for.
            program.digest = lowered.text.split()[0]
            return program

    compiler = Same()
    found = Choices(card("h200"), 1000, "batch")
    search = _Search(lambda batch, remat: _Step(f"{10 * batch} {batch * _WORK[remat]}"), compiler, 1000, found)  # type: ignore[arg-type]
    for word in ("none", "full"):
        search.largest({"remat": word}, "batch", list(range(1, 129)))
    found.unchanged = _unchanged(found, {"remat": ["none", "full"]})
    assert found.unchanged == ["remat full changes nothing: it is the same program as none"]
    assert found.best and found.best.settings == {"batch": 100, "remat": "none"}
    assert sum(choice.settings["remat"] == "full" for choice in found.tried) == 1


def test_a_size_that_was_not_compiled_is_only_left_out_above_a_line_that_held() -> None:
    found, count = _searched(lambda b, r: 400 + 20 * b, lambda b, r: b, 1000, list(range(1, 129)), ["none"])
    best = found.best
    assert best and best.settings["batch"] == 30 and best.next == (31, 1020)
    assert "batch 31 would take" in str(found)
    # A step of a kernel just above the answer is compiled, not foretold.
    found, count = _searched(lambda b, r: 1000 + b, lambda b, r: b, 1100, list(range(1, 129)), ["none"])
    best = found.best
    assert best and best.settings["batch"] == 100 and best.next is None
    assert any(choice.settings["batch"] == 101 for choice in found.tried)


class _Traced:
    """A jaxpr's equation or jaxpr, as far as counting looks at it."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def _equation(name: str, shapes: "list[tuple[int, ...]]", out: "tuple[int, ...]", **params: Any) -> _Traced:
    def value(shape: "tuple[int, ...]") -> _Traced:
        return _Traced(aval=_Traced(shape=shape))

    return _Traced(primitive=_Traced(name=name), invars=[value(shape) for shape in shapes], outvars=[value(out)], params=params)


def test_operations_of_loops_count_as_often_as_they_run() -> None:
    from gapless._jax.work import operations

    product = _equation("dot_general", [(4, 8), (8, 16)], (4, 16), dimension_numbers=(((1,), (0,)), ((), ())))
    body = _Traced(eqns=[product, _equation("tanh", [(4, 16)], (4, 16)), _equation("reshape", [(4, 16)], (64,))])
    assert operations(_Traced(jaxpr=body)) == 2 * 4 * 8 * 16 + 64
    scan = _equation("scan", [], (64,), jaxpr=_Traced(jaxpr=body), length=10)
    assert operations(_Traced(eqns=[scan])) == 10 * operations(body)
    branches = _equation("cond", [], (64,), branches=(body, _Traced(eqns=[])))
    assert operations(_Traced(eqns=[branches])) == operations(body)


def test_values_that_save_nothing_are_told() -> None:
    found, _ = _searched(lambda b, r: 10 * b, lambda b, r: b * _WORK[r], 1000, list(range(1, 129)), ["none", "full"])
    assert found.unchanged == ["remat full saves nothing: it takes the memory of none, to the byte"]
    found, _ = _searched(lambda b, r: _PEAK[r] * b, lambda b, r: b * _WORK[r], 1000, list(range(1, 129)), ["none", "full"])
    assert found.unchanged == []


def _unpacked(name: str, folder: Path) -> str:
    file = folder / f"{name}.pb"
    file.write_bytes(gzip.decompress((DUMPS / f"{name}.hlo.pb.gz").read_bytes()))
    return str(file)


def test_what_a_card_needs_besides_the_plan_is_read_from_the_instructions(tmp_path: Path) -> None:
    from gapless._jax.unplanned import updated_in_place, workspace

    names = ("fourier", "decode_cache", "gpt_scan", "gpt_donated", "mlp_sgd", "unet", "sharded_pipeline", "loop")
    found = {name: (workspace(file), updated_in_place(file)) for name in names for file in [_unpacked(name, tmp_path)]}
    # 256 rows of 2 ** 19 complex numbers; the cache of 2 layers, 2 rows, 64 places and 128 halves, twice.
    assert found.pop("fourier") == (256 * (1 << 19) * 8, 0)
    assert found.pop("decode_cache") == (0, 2 * 2 * 2 * 64 * 128 * 2)
    # Weights that an optimizer writes anew, and slices written within a loop, are neither.
    assert set(found.values()) == {(0, 0)} and len(found) == 6


def _wrong(schema: "dict[str, Any]", value: Any, root: "dict[str, Any]", at: str = "$") -> "list[str]":
    """Where `value` violates the part of JSON Schema that the contract uses."""
    if "$ref" in schema:
        return _wrong(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], value, root, at)
    if "const" in schema:
        return [] if value == schema["const"] else [f"{at}: is not {schema['const']}"]
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int, "number": (int, float)}
    allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, kinds[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in allowed):  # type: ignore[arg-type]
        return [f"{at}: is no {allowed}"]
    found = [f"{at}: is below {schema['minimum']}"] if "minimum" in schema and value < schema["minimum"] else []
    if isinstance(value, dict):
        found += [f"{at}: has no {key}" for key in schema["required"] if key not in value]
        found += [f"{at}: {key} is not in the contract" for key in value if key not in schema["properties"]]
        for key in value.keys() & schema["properties"].keys():
            found += _wrong(schema["properties"][key], value[key], root, f"{at}.{key}")
    if isinstance(value, list):
        found += [error for i, item in enumerate(value) for error in _wrong(schema["items"], item, root, f"{at}[{i}]")]
    return found


def test_the_answer_keeps_its_schema() -> None:
    import json

    from gapless._jax.answer import Device, JaxEstimate, rows_of
    from gapless._jax.watch import Watch

    schema = json.loads((DUMPS.parents[1] / "schema/gapless.estimate-jax.schema.json").read_text())
    watch = Watch(_Compiler(), 1)  # type: ignore[arg-type]
    program = Program("step", 8, 8, 4, 16, 24, 0, 0, 0.5)
    watch.programs["step"] = program
    watch.calls += [program, program]
    for failed in (None, 4096):
        devices = [Device(0, 100, 128, "step", 8, 16, 4, failed)]
        answer = json.loads(JaxEstimate(card("h200"), devices, rows_of(watch), 1.5, 0.1, ["a note"], error_below=0.25).dumps_json())
        assert _wrong(schema, answer, schema) == []
        assert answer["programs"][0]["calls"] == 2 and answer["fits"] is (failed is None)
        for damage in ({"fits": 1}, {"devices": [{}]}, {"other": 1}, {"error": -1}, {"programs": "none"}):
            assert _wrong(schema, {**answer, **damage}, schema), damage
        for key in answer:
            assert _wrong(schema, {name: value for name, value in answer.items() if name != key}, schema), key
