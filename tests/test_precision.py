"""Multiple precision is our own: nobody changes it, and we change nobody's."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from rillet import Plan, Secret, SmoothQuantile
from rillet.noise import GAUSSIAN, LAPLACE, LatticeNoise
from rillet.noise.sampling import continuous_draw
from rillet.precision import precision
from rillet.privacy import Cost
from rillet.privacy.costs import delta_at
from rillet.statistic import Range
from rillet.strategy.toeplitz.blt import Blt, blt_for
from rillet.strategy.toeplitz.encoder import encoder_tables
from rillet.threshold.calibration import _calibrate
from rillet.threshold.rank import weight_ratio
from rillet.threshold.smooth_sensitivity import smooth_weights

SECRET = Secret.for_tests(3)


@contextmanager
def meddling():
    """Another thread sets the precision of mpmath, to little and to much, all the time."""
    stop, interval = threading.Event(), sys.getswitchinterval()

    def meddle():
        while not stop.is_set():
            for bits in (4, 53, 11, 700):
                mpmath.mp.prec = bits
                mpmath.mp.exp(1)

    sys.setswitchinterval(1e-5)
    other = threading.Thread(target=meddle)
    other.start()
    try:
        yield
    finally:
        stop.set()
        other.join()
        sys.setswitchinterval(interval)
        mpmath.mp.prec = 53


def everything():
    """Numbers of every part that computes in multiple precision, none of them remembered."""
    delta_at.cache_clear()
    _calibrate.cache_clear()
    weight_ratio.cache_clear()
    smooth_weights.cache_clear()
    encoder_tables.cache_clear()
    blt = Blt(blt_for(1000, 3).rates)
    threshold = SmoothQuantile()
    bounds = Range(0.0, 100.0)
    return [
        # So much slack that every draw is decided in multiple precision.
        *(
            LatticeNoise(law, 1e6, SECRET, ("x",), slack=1e12).draw(0, 8).tolist()
            for law in (LAPLACE, GAUSSIAN)
        ),
        repr(continuous_draw(GAUSSIAN, SECRET, ("y",))._mpf_),
        float(delta_at(1.0, Cost.gaussian(Fraction(1, 3)) + Cost.pure(0.1))),
        [float(value) for value in blt.beta],
        encoder_tables(blt).coefficients.leaf_mix.tolist(),
        repr(encoder_tables(blt).deviation._mpf_),
        threshold.calibrated(Fraction(1, 2), 2.0**-20),
        threshold.learn(np.arange(100.0), bounds, Fraction(1), 2.0**-20, SECRET),
        weight_ratio(Fraction(1, 7)),
        [LAPLACE.variance(0.3), GAUSSIAN.variance(0.3), LAPLACE.upper_quantile(1e-9)],
    ]


def test_results_do_not_depend_on_what_other_threads_set():
    expected = everything()
    with meddling():
        for _ in range(5):
            assert everything() == expected


def test_results_of_several_threads_are_the_same():
    expected, found = everything(), []
    with meddling():
        workers = [threading.Thread(target=lambda: found.append(everything())) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert found == [expected] * 3


def test_a_stream_is_the_same_while_others_set_the_precision():
    plan = Plan.paper(epsilon=1.0, delta=2.0**-20, upper=100.0, length=400, lag=100)
    values = np.random.default_rng(1).exponential(8.0, 400)
    expected = plan.open(secret=SECRET).update_many(values).sum
    with meddling():
        again = Plan.from_json(plan.to_json())
        assert np.array_equal(again.open(secret=SECRET).update_many(values).sum, expected)


def test_the_precision_of_others_is_left_alone():
    """Not even for a moment: another thread would compute with our digits."""
    seen = set()
    sys.setprofile(lambda *_: seen.add(mpmath.mp.prec))
    try:
        everything()
    finally:
        sys.setprofile(None)
    assert seen == {53}


def test_precision_nests_and_comes_back():
    with precision(100) as outer:
        with precision(300) as inner:
            assert inner is outer
            assert inner.prec == 300
        assert outer.prec == 100
        with pytest.raises(ZeroDivisionError), precision(200) as mp:
            mp.mpf(1) / 0
        assert outer.prec == 100
    assert outer is not mpmath.mp


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_of_a_process_in_which_somebody_computes_can_compute():
    inside, go = threading.Event(), threading.Event()

    def hold():
        with precision(500):
            inside.set()
            go.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(20)
    child = os.fork()
    if not child:
        with precision(80) as mp:
            os._exit(0 if mp.prec == 80 else 1)
    go.set()
    holder.join()
    deadline = threading.Timer(20, os.kill, (child, 9))
    deadline.start()
    _, status = os.waitpid(child, 0)
    deadline.cancel()
    assert status == 0
