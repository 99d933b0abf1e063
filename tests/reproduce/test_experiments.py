"""What holds for the experiments one by one, and for their figures."""

from __future__ import annotations

import inspect
from functools import cache

import pytest

from rillet import MissingExtra, ParameterError, datasets
from rillet.cli import build_parser
from rillet.cli import reproduce as command
from rillet.reproduce import style
from rillet.reproduce.context import Context
from rillet.reproduce.errata import ERRATA, gaussian, levels
from rillet.reproduce.experiments import EXPERIMENTS, reproduce
from rillet.reproduce.paper_values import BANDS, BETA, TABLE_1, TABLE_2, row_of
from rillet.reproduce.result import Result, Table, measured, plain, ratio, standard_error
from rillet.threshold.calibration import calibrate


@cache
def with_data() -> Context:
    try:
        datasets.load("baskets")
        datasets.flights()
    except MissingExtra as missing:
        pytest.skip(str(missing))
    return Context(quick=True)


# --- Figures -------------------------------------------------------------------------------------


@cache
def drawn(name: str) -> tuple[Result, tuple[object, ...]]:
    """A result, and the figures as they were painted."""
    context, figures = with_data(), []
    real = style.draw

    def watching(name, words, size, paint):
        def painted(figure):
            paint(figure)
            figures.append(figure)

        return real(name, words, size, painted)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("distributions", "tables", "errors", "accuracy"):
            patch.setattr(f"rillet.reproduce.{module}.draw", watching)
        return EXPERIMENTS[name](context), tuple(figures)


@pytest.mark.parametrize("name", ["fig-hours", "fig-days"])
def test_axes_are_labelled_with_units_and_text_is_readable(name):
    result, figures = drawn(name)
    assert len(figures) == len(result.pictures) == 1
    width, _ = figures[0].get_size_inches()
    assert width == pytest.approx(style.DOUBLE)
    for axes in figures[0].axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        texts = [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels()]
        assert min(text.get_fontsize() for text in texts) >= 7
    assert "(minutes)" in figures[0].axes[0].get_xlabel()


@pytest.mark.parametrize("name", ["fig-hours", "fig-days"])
def test_lines_differ_by_more_than_colour(name):
    _, figures = drawn(name)
    lines = [line for line in figures[0].axes[0].lines if not line.get_label().startswith("_")]
    looks = {(line.get_color(), str(line._dash_pattern)) for line in lines}
    assert len(looks) == len(lines) > 5
    colours = [line.get_color() for line in lines]
    assert len(set(colours)) == len(colours)


def test_colours_are_okabe_and_ito():
    known = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
    assert set(style.COLOURS) <= known
    assert {role["color"] for role in style.ROLES.values()} <= known


def test_two_drawings_are_the_same_bytes():
    pictures = [
        style.draw("one", "a line", (2.0, 1.5), lambda figure: figure.subplots().plot([1, 2]))
        for _ in range(2)
    ]
    assert pictures[0] == pictures[1]


# --- Experiments ---------------------------------------------------------------------------------


def test_two_runs_give_the_same_numbers():
    with_data()
    names = ["fig-days"]
    first, second = ([result.numbers for result in reproduce(names, quick=True)] for _ in range(2))
    assert first == second
    assert len(first) == 1


def test_unknown_names_are_refused_before_anything_runs():
    with pytest.raises(ParameterError, match="table3"):
        next(reproduce(["table1", "table3"]))


def test_the_command_knows_every_experiment_and_no_seed():
    assert set(command.NAMES) == {*EXPERIMENTS, "all"}
    (parser,) = (
        action.choices["reproduce"]
        for action in build_parser()._actions
        if isinstance(action.choices, dict)
    )
    options = {option for action in parser._actions for option in action.option_strings}
    assert options == {"-h", "--help", "--out", "--quick", "--json"}


@pytest.mark.parametrize("bad", [["nothing"], ["table1", "nothing"]])
def test_wrong_names_end_with_code_2(bad, capsys):
    with pytest.raises(SystemExit) as stop:
        build_parser().parse_args(["reproduce", *bad])
    assert stop.value.code == 2
    assert "nothing" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_ends_with_code_5(tmp_path, capsys):
    from rillet.cli import main

    with_data()
    (tmp_path / "file").touch()
    assert main(["reproduce", "fig-days", "--out", str(tmp_path / "file")]) == 5
    assert "file" in capsys.readouterr().err


def test_no_release_path_takes_a_seed():
    from rillet import Plan, Stream

    for function in (Plan, Plan.paper, Plan.baseline, Plan.open, Plan.resume, Stream.update_many):
        assert "seed" not in inspect.signature(function).parameters


# --- What the paper prints -----------------------------------------------------------------------


@pytest.mark.parametrize("table", [TABLE_1, TABLE_2])
def test_rows_of_the_paper_are_copied_whole(table):
    lags = [row.lag for row in table]
    assert lags == sorted(set(lags))
    for row in table:
        shares = row.beta_qt + row.beta_lt + row.beta_lap + row.beta_out + row.beta_rt
        # Two digits each: the printed shares add up to 1 within rounding.
        assert shares == pytest.approx(1.0, abs=0.026)
        assert 0 < row.quantile <= 0.005
        assert row.multiplier >= 1


def test_bands_hold_the_paper_and_nothing_far_away():
    assert BANDS["baskets"].holds(BANDS["baskets"].paper)
    assert BANDS["trips"].holds(BANDS["trips"].paper)
    assert not BANDS["baskets"].holds(7.9)
    assert not BANDS["trips"].holds(5.1)
    assert (BANDS["baskets"].low, BANDS["baskets"].high) == (8, 11)
    assert (BANDS["trips"].low, BANDS["trips"].high) == (3.5, 5)


# --- Errata --------------------------------------------------------------------------------------


def test_gaussian_constants_of_the_paper_are_refused_and_cost_what_is_said():
    found = gaussian().numbers
    expected = {"0.5": (4.2, 236), "1": (10.8, 569), "2": (34.9, 1617)}
    for epsilon, (equal, apart) in expected.items():
        assert found[epsilon]["equal_scales"] == pytest.approx(equal, abs=0.06)
        assert found[epsilon]["scales_apart"] == pytest.approx(apart, rel=0.002)
        constants = calibrate("paper", "gaussian", float(epsilon), 2.0**-20, 0.3)
        with pytest.raises(ParameterError, match="calibration"):
            constants.require_releasable()
    for kind in ("textbook", "paper"):
        assert found[f"laplace_{kind}"]["scales_apart"] < 0.01


def test_nodes_of_a_leaf_by_enumeration():
    for n, found in ((8, levels().numbers["8"]),):
        # Dyadic intervals within 1 … n that hold observation 1: what a release at every step needs.
        nodes = {(t - (t & -t) + 1, t) for t in range(1, n + 1)}
        assert max(sum(a <= x <= b for a, b in nodes) for x in range(1, n + 1)) == found["levels"]


def test_every_point_prints_a_line():
    context = with_data()
    cheap = [one for one in ERRATA if one.__name__ != "multiplier"]  # needs all trips
    for one in cheap:
        takes = "context" in inspect.signature(one).parameters
        found = one(context) if takes else one()
        assert str(found).strip()
        assert found.numbers
        assert found.where


def test_unclipped_first_block_and_backfill_cost_more_than_promised():
    context = with_data()
    by_name = {one.__name__: one for one in ERRATA}
    spent = by_name["first_block"](context).numbers["epsilon_spent"]
    row = row_of(TABLE_2, 50_000)
    threshold = by_name["first_block"](context).numbers["threshold"]
    assert spent == pytest.approx(row.threshold_share + 0.18 * 3000 / threshold)
    assert spent > 2
    assert by_name["backfill"]().numbers["epsilon_spent"] == pytest.approx(1.64)
    assert BETA == 0.02


# --- Results -------------------------------------------------------------------------------------


def test_ratio_has_its_standard_error():
    import numpy as np

    generator = np.random.default_rng(4)
    ratios = [ratio(generator.normal(10, 2, 400), generator.normal(5, 1, 400)) for _ in range(300)]
    values = np.array([found["value"] for found in ratios])
    stated = np.mean([found["standard_error"] for found in ratios])
    assert np.std(values) == pytest.approx(stated, rel=0.15)
    assert standard_error(np.array([3.0])) == 0
    assert plain(measured(1 / 3, 0.25)) == {"value": 0.333333, "standard_error": 0.25}


def test_numbers_stand_flush_right_and_text_is_escaped():
    from rillet.reproduce.report import html_report

    table = Table("a < b", ("name", "n"), (("x & y", "1,000"), ("z", "2.5 ± 0.1")))
    result = Result("one", "<One>", "p", "first\n\nsecond", "d", {}, [table])
    page = html_report([result], quick=True)
    assert '<td class="number">1,000</td>' in page
    assert "<td>x &amp; y</td>" in page
    assert "&lt;One&gt;" in page
    assert "a &lt; b" in page
    assert "<p>first</p><p>second</p>" in page
