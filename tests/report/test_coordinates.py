"""The report of a coordinate check, from records of which every number is known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import plotly.graph_objects
import pytest
from matplotlib.figure import Figure

from moga.report.causes import causes, offending, verdict
from moga.report.coordinates import load_check
from moga.report.coordinates_page import check_figure, check_png, module_rows, parameter_rows, text, write_check_report
from moga.report.theme import typographic
from moga.study.records import StudyError, append_record, config_key

# module: exponents of its start, its last change and the part of its own
RIGHT = {"embed": (0, 0, 0), "up": (0, 0, 0), "act": (0, 0, None), "head": (None, 0, 0)}
SUM = "no weight before it is wrong: what it computes from its inputs grows or shrinks"
ROLES = {"embed": "input", "up": "hidden", "head": "output"}


def module(name, exponents, size, seed):
    """Sizes width^exponent; a fourth one is that of the inputs. None: an output of zeros, or nothing of its own."""
    start, change, own, given = (*exponents, 0)[:4]
    level = 1 + 0.01 * seed
    norms = lambda value: [0.8 * value, value, 3 * value]  # noqa: E731
    return {
        "type": "Linear",
        "parameters": [f"{name}.weight", f"{name}.bias"] if name in ROLES else [],
        "start": [0.0] * 3 if start is None else norms(level * size**start),
        "input": [] if name == "embed" else [float(size**given)] * 2,
        "change": [[0.0] * 3, norms(0.01 * level * size**change)],
        "own": None if own is None else norms(0.01 * level * size**own),
    }


def parameter(name, size, changes):
    """A hidden matrix of row norm: scale width^-1/2, entries width^-1/2, updates width^-1."""
    own = {"role": ROLES[name], "norm": "row", "scale": size**-0.5, "rule": size**-0.5, "fan": [size, size]}
    own |= {"shape": [size, size], "weight": [size**-0.5] * 3, "update": [1 / size] * 3}
    return own | {key: value(size) for key, value in changes.items()}


BIAS = {"role": "vector", "norm": "sign", "scale": 1.0, "rule": 1.0, "fan": [1, 1], "shape": [4], "weight": [0.0] * 3}
BIAS["update"] = [0.01] * 3


def write(directory, modules=None, parameters=None, *, sizes=(32, 64, 128), seeds=(0, 1), plant="none", **settings):
    directory.mkdir(parents=True, exist_ok=True)
    own = {"measure": "check", "model": "own:net", "over": "width", "mark": 0.15} | settings
    study = {"format": 1, "settings": own, "corpus": {"name": "words"}, "commands": ["moga check <x>"]}
    (directory / "study.json").write_text(json.dumps(study))
    for size in sizes:
        for seed in seeds:
            config = {"recipe": "moga-row", "lr": 0.01, "plant": plant, "size": size, "seed": seed} | own
            rows = {name: module(name, exponents, size, seed) for name, exponents in (RIGHT | (modules or {})).items()}
            tensors = {f"{name}.weight": parameter(name, size, (parameters or {}).get(name, {})) for name in ROLES}
            tensors |= {f"{name}.bias": BIAS for name in ROLES}
            result = {"loss": [1.0, 0.9, 0.8], "modules": rows, "parameters": tensors, "seconds": 0.1}
            append_record(directory, {"key": config_key(config), "config": config, "result": result})
    return directory


def only(directory):
    [check] = load_check(directory)
    return check


def test_what_is_right_passes(tmp_path):
    check = only(write(tmp_path))
    assert (check.word, offending(check), causes(check)) == ("passes", [], {})
    assert verdict(check).startswith("moga-row: passes. 4 modules; the largest slope is +0.00 ± 0.00")
    head = check.modules[-1]
    assert (head.start.word, head.changes[0].word, head.change.word) == ("zero", "zero", "passes")
    assert str(check.modules[1].weight.update) == "-1.00 ± 0.00"


@pytest.mark.parametrize(
    ("modules", "parameters", "expected"),
    [
        (
            {"up": (0.5, 0.5, 0), "act": (0.5, 0.5, None)},
            {"up": {"weight": lambda n: [0.02] * 3}},
            {
                "up": "the initialisation of up.weight (hidden): its entries go as width^+0.00, and width^-0.50 is "
                "needed (moga.initialize_ does it)",
                "act": "follows from up",
            },
        ),
        (
            {"head": (0.5, 0, 0)},
            {},
            {
                "head": "the initialisation of head.weight (output): its entries go as width^-0.50, and width^-1.00 is "
                "needed (an output starts at zero or small)"
            },
        ),
        (
            {"up": (0, 0.5, 0.5), "act": (0, 0.5, None), "head": (None, 0.5, 0)},
            {"up": {"scale": lambda n: 1.0}},
            {
                "up": "the update of up.weight (hidden): it moves outputs as width^+0.50; its scale is left out, where "
                "the norm row needs width^-0.50",
                "act": "follows from up",
                "head": "follows from up",
            },
        ),
        (
            {"up": (0, -0.5, -0.5)},
            {"up": {"scale": lambda n: 1 / n}},
            {
                "up": "the update of up.weight (hidden): it moves outputs as width^-0.50; its scale goes as "
                "width^-1.00, where the norm row needs width^-0.50"
            },
        ),
        (
            {"head": (None, 0.5, 0.5)},
            {"head": {"scale": lambda n: 1 / 16, "fan": lambda n: [1, 256]}},
            {
                "head": "the update of head.weight (output): it moves outputs as width^+0.50; its scale takes the fan "
                "(1, 256) at every width, which does not grow"
            },
        ),
        (
            {"head": (None, 1, 1)},
            {"head": {"role": lambda n: "tied", "scale": lambda n: 1.0, "rule": lambda n: 1.0}},
            {
                "head": "the update of head.weight (tied): it moves outputs as width^+1.00; a matrix that is input and "
                "output needs logits times base_width/width (moga.scale_logits_)"
            },
        ),
        (
            {"up": (0, 1, 1)},
            {"up": {"scale": lambda n: None, "rule": lambda n: None, "role": lambda n: None}},
            {
                "up": "the update of up.weight (role unknown): it moves outputs as width^+1.00; multiply its learning "
                "rate by width^-1.00"
            },
        ),
        (
            {"up": (0, 0.5, 0.5)},
            {},
            {
                "up": "the update of up.weight (hidden): it moves outputs as width^+0.50 although its scale is that of "
                "its role: is it one (hidden)?"
            },
        ),
        ({"act": (1, 0, None)}, {}, {"act": SUM}),
    ],
    ids=["init", "output init", "scale", "too small", "fan", "tied", "own optimizer", "role", "a sum"],
)  # fmt: skip
def test_likely_causes(tmp_path, modules, parameters, expected):
    check = only(write(tmp_path, modules, parameters))
    assert check.word == "fails"
    assert causes(check) == expected
    first = next(iter(expected))
    assert offending(check)[0][0].name == first
    assert [row["name"] for row in module_rows(check)][: len(expected)] == list(expected)
    assert f"fails. {len(expected)} of 4 modules fail; the first is {first}: {expected[first]}" in verdict(check)


def test_what_grows_with_its_input_is_no_cause(tmp_path):
    """All modules after the table give, move and are moved as much more as they are given: only the table is wrong."""
    follows = {"up": (0.5, 0.5, 0.5, 0.5), "act": (0.5, 0.5, None, 0.5), "head": (0.5, 0.5, 0.5, 0.5)}
    check = only(write(tmp_path, {"embed": (0.5, 0, 0)} | follows))
    assert [text.split(":")[0] for text in causes(check).values()] == [
        "the initialisation of embed.weight (input)", "follows from embed", "follows from embed", "follows from embed",
    ]  # fmt: skip
    assert [one.own.word for one in check.modules] == ["passes", "passes", "none", "passes"]


def test_over_depth_the_largest_of_the_layers_counts(tmp_path):
    write(tmp_path, sizes=(2, 4, 8), over="depth")
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    for record in records:
        rows, depth = record["result"]["modules"], record["config"]["size"]
        act = rows.pop("act")
        for layer in range(depth):
            rows[f"h.{layer}.act"] = act | {"start": [float(layer + 1)] * 3}
        rows["h.1.act"]["own"] = [1.0] * 3  # one layer of all has something to compare: that is not enough
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    [layer] = [one for one in only(tmp_path).modules if one.name == "h.*.act"]
    assert layer.start.slope.value == pytest.approx(1)
    assert layer.own.word == "none"


def test_an_output_that_shrinks_at_the_start_is_right(tmp_path):
    check = only(write(tmp_path, {"head": (-0.5, 0, 0)}))
    assert check.word == "passes"


def test_causes_come_before_effects_and_failures_before_doubts(tmp_path):
    check = only(write(tmp_path, {"act": (0.5, 0.5, None), "head": (None, 0.5, 0.5), "embed": (0.14, 0, 0)}))
    object.__setattr__(check.modules[0], "start", check.modules[0].start.__class__("undecided"))
    assert [(one.name, one.word) for one, _ in offending(check)] == [
        ("head", "fails"), ("act", "fails"), ("embed", "undecided"),
    ]  # fmt: skip
    assert causes(check)["embed"] == "too uncertain: more seeds or larger sizes"


def test_a_check_in_which_nothing_moves_does_not_pass(tmp_path):
    still = {"embed": (0, 0, 0), "up": (0, 0, 0), "act": (0, 0, None), "head": (None, 0, 0)}
    directory = write(tmp_path, still)
    lines = (directory / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        for row in record["result"]["modules"].values():
            row["change"], row["own"] = [[0.0] * 3] * 2, [0.0] * 3
    (directory / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    check = only(directory)
    assert check.word == "undecided"
    assert verdict(check) == "moga-row: undecided. No module changed; give a larger learning rate or more steps"


def test_text_names_the_first_modules(tmp_path):
    write(tmp_path, {"up": (0, 0.5, 0.5)}, {"up": {"scale": lambda n: 1.0}}, plant="scale")
    lines = text(load_check(tmp_path)).splitlines()
    assert lines[0].startswith("moga-row with the planted fault 'scale': fails. 1 of 4 modules fail; the first is up: ")
    assert lines[1].split() == ["module", "start", "change", "own", "verdict"]
    assert lines[2].split() == ["up", "+0.00", "±", "0.00", "+0.50", "±", "0.00", "+0.50", "±", "0.00", "fails"]


def test_rows_of_parameters(tmp_path):
    rows = parameter_rows(only(write(tmp_path)))
    assert rows[2] == {
        "name": "up.weight", "role": "hidden", "norm": "row", "fan": "128, 128", "weight": "-0.50 ± 0.00",
        "update": "-1.00 ± 0.00", "scale": "-0.50", "rule": "-0.50",
    }  # fmt: skip
    assert len(rows) == 6


def test_figures_are_what_plotly_takes(tmp_path):
    check = only(write(tmp_path, {"up": (0, 0.5, 0.5)}))
    figure = check_figure(check, "change")
    plotly.graph_objects.Figure(figure)
    lines = {trace["name"]: trace["y"] for trace in figure["data"]}
    assert lines["up"] == pytest.approx([1, 2**0.5, 2])
    assert lines["embed"] == pytest.approx([1, 1, 1])
    assert {trace["name"] for trace in check_figure(check, "start")["data"]} == {"embed", "up", "act"}  # head: zero
    drawn = check_png([check, check])
    assert isinstance(drawn, Figure)
    assert [len(panel.get_lines()) for panel in drawn.axes] == [3, 4, 3, 4]


def test_the_page_stands_alone(tmp_path):
    path, checks = write_check_report(write(tmp_path, {"up": (0, 0.5, 0.5)}, {"up": {"scale": lambda n: 1.0}}))
    page = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html" and (tmp_path / "check.png").exists() and len(checks) == 1
    assert "default-src 'none'" in page
    assert "its scale is left out, where the norm row needs width^-0.50" in page
    assert "moga check &lt;x&gt;" in page
    assert '<td class="n">+0.50 ±\xa00.00</td>' in page
    assert page.count('class="plot"') == 2
    assert page.index('<th scope="row">up</th>') < page.index('<th scope="row">embed</th>')
    for row in parameter_rows(checks[0]):  # every cell of the table of weights and updates, the update included
        cells = re.search(rf'<th scope="row">{row["name"]}</th><td>{row["role"]}.*?</tr>', page, re.DOTALL)
        assert re.findall(r'<td class="n">(.*?)</td>', cells[0]) == [
            typographic(row[key]) for key in ("fan", "weight", "update", "scale", "rule")
        ]


def test_directories_without_a_check(tmp_path, make_study):
    with pytest.raises(StudyError, match="holds no check; `moga report .*` draws what it holds"):
        load_check(make_study({"moga-row": {}}))
    with pytest.raises(StudyError, match="no finished run in .*: run `moga check` first"):
        load_check(write(tmp_path / "empty", sizes=()))
    for name, options in {"a": {"sizes": (32,)}, "b": {"seeds": (0,)}}.items():
        with pytest.raises(
            StudyError, match="the check of moga-row .planted fault: none. in .* is not finished: it needs"
        ):
            load_check(write(tmp_path / name, **options))
    lines = (write(tmp_path / "c") / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "c" / "records.jsonl").write_text("".join(lines[:-1]))  # a seed is missing at the last size
    with pytest.raises(StudyError, match="is not finished.*at each; run it again: moga check <x>$"):
        load_check(tmp_path / "c")


def test_an_unfinished_case_is_left_out_and_named(tmp_path):
    write(tmp_path)
    write(tmp_path, plant="scale", seeds=(0,))
    path, [check] = write_check_report(tmp_path)
    assert (check.title, check.left_out) == ("moga-row", ("moga-row with the planted fault 'scale'",))
    said = "as not all of their runs are there: moga-row with the planted fault "
    assert text([check]).splitlines()[-1] == f"left out, {said}'scale'"
    page = " ".join(path.read_text(encoding="utf-8").split())
    warning = re.search(r'<div class="warning">.*?</div>', page)[0]
    assert f"Left out, {said}&#39;scale&#39;." in warning
    assert "<pre><code>moga check &lt;x&gt;</code></pre>" in warning


def test_the_recorded_checks():
    """Every norm recipe passes and every planted fault fails, in the committed records, as docs/check.md says."""
    root = Path(__file__).parents[2]
    page = " ".join((root / "docs" / "check.md").read_text(encoding="utf-8").split())
    recipes = load_check(root / "records" / "check-recipes")
    assert [check.title for check in recipes] == ["moga-row", "moga-column", "muon", "mup-adamw", "scion"]
    assert {check.word for check in recipes} == {"passes"}
    largest = [verdict(check).split("slope is ")[1].split(" ±")[0] for check in recipes]
    assert f"the largest slope of each is {', '.join(largest[:-1])} and {largest[-1]}" in page
    faults = load_check(root / "records" / "check-faults")
    assert {check.word for check in faults} == {"fails"}
    assert [offending(check)[0][0].name for check in faults] == [
        "transformer.h.0.attn.c_attn", "lm_head", "transformer.h.0.attn.c_attn",
    ]  # fmt: skip
    words = [causes(check)[offending(check)[0][0].name] for check in faults]
    assert ["is left out" in words[0], "takes the fan (1, 256)" in words[1], "initialisation" in words[2]] == [True] * 3
    assert verdict(faults[0]) in page
