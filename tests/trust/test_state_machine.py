"""A search over the public surface for what must never happen.

A few secrets, plans, keys and streams of data; streams that are opened, fed, saved, resumed,
copied, shared by threads, kept in folders and begun again, by one version of the code or another,
before and after the process is started anew. After every step:

- no (key, t, name) of a mechanism has two values under one secret, and none is released twice by
  one stream;
- no two streams with different data, or of different mechanisms, have the same noise anywhere;
- as many observations were absorbed as were given.

What a guard refuses is right, whatever it was. The search is run with each of the old faults put
back too, and must find it.
"""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rillet import NotReady, Plan, Secret, StateError, Sum
from trust import faults
from trust.runs import DONE, FAILED, REFUSED, Desk

#: How long the long search goes on.
SECONDS = float(os.environ.get("RILLET_MACHINE_SECONDS", "3600"))

#: Values are whole numbers below a power of two, which the lattice holds exactly: what is released
#: minus the exact sum is the noise and nothing else. So large that equal noise is no accident.
UPPER, LENGTH = 1024.0, 64
DECLARED = {"epsilon": 1e-3, "upper": UPPER, "length": LENGTH}
LEARNED = {"epsilon": 1.0, "delta": 2.0**-20, "upper": UPPER, "length": LENGTH, "lag": 8}
KEYS = (("north",), ("south", 7))
PLANS = {
    "tree": Plan.baseline(**DECLARED),
    "sum": Plan.baseline(**DECLARED, statistic=Sum()),
    "every third": Plan.baseline(**DECLARED, every=3),
    "may be missing": Plan(**DECLARED, lag=0),
    "gaussian": Plan.baseline(**{**DECLARED, "epsilon": 1.0}, delta=2.0**-20),
    "keyed": Plan.baseline(**DECLARED, keys=KEYS),
    "learned": Plan(**LEARNED),
    "learned, keyed": Plan(**LEARNED, keys=KEYS),
    "shared": Plan(**LEARNED, keys=KEYS, shared_threshold=True),
    "paper": Plan.paper(**LEARNED),
}
ONE = [name for name, plan in PLANS.items() if not plan.keys]
MANY = [name for name, plan in PLANS.items() if plan.keys]
#: Of two mechanisms, noise in multiples of its standard deviation: the same, up to the lattice.
CLOSE = 1e-4
#: That close at so many times of release: no accident either.
OFTEN = 4

Values = tuple[Any, ...]


class Violation(AssertionError):
    """What must never happen has happened."""


def observations(number: int) -> Values:
    """A whole stream of data.

    Number 1 departs from number 0 at the eleventh observation, and number 2 has an element that is
    no number; all others have nothing in common.
    """
    start = 0 if number < 3 else number
    values: list[Any] = [float((start * 7919 + 131 * t * t + 17 * t) % 1000) for t in range(LENGTH)]
    if number == 1:
        values[10:] = observations(9)[10:]
    if number == 2:
        values[5] = [5.0, 6.0]
    return tuple(values)


def exact_sum(raw_values: Values, plan: Plan) -> float:
    """What is no number is left out, or counts as the middle."""
    instead = plan.bounds.middle if plan.missing == "none" else 0.0
    return sum(value if isinstance(value, float) else instead for value in raw_values)


def different(raw_values: Values, others: Values, t: int) -> Values:
    """As before up to ``t``, others from there on."""
    return (*raw_values[:t], *others[t:])


@dataclass
class Running:
    """A stream of one key, and the observations that it is fed: those given, and those to come."""

    stream: Any
    plan: str
    raw_data: Values
    secret: int
    key: Any = ()
    given: int = 0
    refused: bool = False
    process: int = 0
    version: str = ""

    @property
    def name(self) -> tuple[Any, ...]:
        return self.secret, self.plan, self.version, self.key

    def next(self, count: int) -> list[Any]:
        return list(self.raw_data[self.given : self.given + count])


@dataclass(eq=False)
class Many:
    """Streams of several keys, in memory or in a folder."""

    streams: Any
    each: dict[Any, Running]
    folder: Path | None = None


@dataclass
class Published:
    """All that anybody could have seen, and what it was made of."""

    #: As text: a mean that is not known yet equals itself.
    values: dict[Any, str] = field(default_factory=dict)
    #: For each t the noise of every release, with the data that it was added to.
    noise: dict[int, dict[float, Any]] = field(default_factory=lambda: defaultdict(dict))
    #: For each secret and key the noise of each version, in standard deviations, by t.
    scaled: dict[Any, dict[Any, dict[int, float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )

    def see(self, running: Running, release: Any) -> None:
        """Note a release; raise if it and another one may not both exist."""
        point = (*running.name, release.t, release.name)
        if self.values.setdefault(point, repr(release.value)) != repr(release.value):
            raise Violation(f"two values for one (key, t, name): {point}")
        if PLANS[running.plan].lag:
            return  # clipped to a learned range: the noise cannot be told from outside
        raw_prefix = running.raw_data[: release.t]
        noise = release.sum - exact_sum(raw_prefix, PLANS[running.plan])
        made_of = (*running.name, raw_prefix)
        # "mean" and "sum" of one plan are two plans here, and must not share noise either.
        other = self.noise[release.t].setdefault(noise, made_of)
        if other != made_of:
            raise Violation(f"equal noise at t = {release.t}: {other[:-1]} and {made_of[:-1]}")
        if PLANS[running.plan].every == 1:
            self.compare_versions(running, release.t, noise / release.sum_noise_std)

    def forget(self, secret: int) -> None:
        """This number stands for another secret from now on."""
        self.values = {point: value for point, value in self.values.items() if point[0] != secret}
        for name in [name for name in self.scaled if name[0] == secret]:
            del self.scaled[name]
        for noise in self.noise.values():
            for value in [value for value, made_of in noise.items() if made_of[0] == secret]:
                del noise[value]

    def compare_versions(self, running: Running, t: int, scaled: float) -> None:
        secret, plan, version, key = running.name
        versions = self.scaled[secret, plan, key]
        versions[version][t] = scaled
        for other, noise in versions.items():
            own = versions[version]
            if other != version and t in noise:
                near = sum(abs(noise[at] - own[at]) < CLOSE for at in noise.keys() & own.keys())
                if near >= OFTEN:
                    raise Violation(f"two versions share noise: {version!r} and {other!r} at {t}")


class Machine(RuleBasedStateMachine):
    """Somebody who uses rillet in every way that its surface allows."""

    #: Runs of the command line take a tenth of a second each.
    command_lines = False
    plans = PLANS
    steps = examples = 0

    running = Bundle("running")
    many = Bundle("many")
    saved = Bundle("saved")

    @initialize(one=st.sampled_from(ONE), many=st.sampled_from(MANY))
    def begin(self, one: str, many: str) -> None:
        # Few plans in one history, so that streams have something to do with each other.
        self.one, self.many_keys = (one, "tree"), many
        # In memory where that can be had: there is much to synchronise, and nothing to be kept.
        quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(prefix="rillet-machine-", dir=quick)
        self.path = Path(self.folder.name)
        self.published = Published()
        self.process = self.folders = 0
        #: The first one has a file that remembers what it was used for, the second the process.
        self.secrets: list[Secret | None] = [Secret.generate(), Secret.generate()]
        self.opened: list[Many] = []
        self.desk = Desk(self.path / "desk") if self.command_lines else None
        type(self).examples += 1

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for each in self.opened:
                each.streams.close()
            self.folder.cleanup()

    def uses(self, secret: int) -> Path | None:
        return self.path / "uses" if secret == 0 else None

    def words(self, secret: int) -> dict[str, Any]:
        return {"secret": self.secrets[secret], "uses": self.uses(secret)}

    def fresh(self) -> int:
        """A stream of its own, under a secret that nobody gives."""
        self.secrets.append(None)
        return len(self.secrets) - 1

    def see(self, running: Running, releases: Any) -> None:
        for release in releases:
            if release is not None:
                self.published.see(running, release)

    @invariant()
    def count(self) -> None:
        type(self).steps += 1

    def alive(self, run: Running) -> bool:
        return run.process == self.process

    def feed(self, run: Running, count: int, *, single: bool) -> None:
        raw_values = run.next(count)
        for raw_part in [[value] for value in raw_values] if single else [raw_values]:
            try:
                found = (
                    [run.stream.update(raw_part[0])] if single else run.stream.update_many(raw_part)
                )
            except StateError:
                run.refused = True
                return
            if run.refused:
                # Single updates of a warm-up wait to be compared; that they are taken says nothing.
                if any(release is not None for release in found):
                    raise Violation("a stream that was refused has released")
                return
            run.given += len(raw_part)
            self.see(run, found)
        waiting = run.stream._streams.waiting
        if not run.refused and run.stream.t + waiting != run.given:
            raise Violation(f"{run.stream.t} absorbed, {waiting} waiting, {run.given} given")

    # --- one stream ------------------------------------------------------------------------------

    @rule(
        target=running,
        second=st.integers(0, 3),
        data=st.integers(0, 3),
        secret=st.sampled_from([0, 1, None]),
    )
    def open(self, second: int, data: int, secret: int | None) -> Running:
        """A stream begins, or begins again: with the same data, or with others."""
        plan = self.one[second == 3]
        own = self.fresh() if secret is None else secret
        stream = self.plans[plan].open(**self.words(own))
        return Running(stream, plan, observations(data), own, process=self.process)

    @rule(target=running, data=st.integers(0, 1), index=st.integers(0, 1))
    def open_one_key(self, data: int, index: int) -> Any:
        """A stream of one key alone, whose noise is that of many."""
        plan = self.many_keys
        if PLANS[plan].shared_threshold:
            return multiple()
        stream = self.plans[plan].open(**self.words(0), key=KEYS[index])
        return Running(stream, plan, observations(data), 0, KEYS[index], process=self.process)

    @rule(run=running, count=st.integers(1, 6))
    def update(self, run: Running, count: int) -> None:
        if self.alive(run):
            self.feed(run, count, single=True)

    @rule(run=running, count=st.integers(0, 20))
    def update_many(self, run: Running, count: int) -> None:
        if self.alive(run):
            self.feed(run, count, single=False)

    @rule(run=running)
    def read_again(self, run: Running) -> None:
        """The latest release is what it was."""
        if self.alive(run):
            try:
                latest = run.stream.latest()
            except (NotReady, StateError):
                return
            self.see(run, [latest])

    @rule(run=running, data=st.integers(0, 3))
    def other_data_come(self, run: Running, data: int) -> None:
        """From now on, nobody having foreseen it."""
        run.raw_data = different(run.raw_data, observations(data), run.given)

    # --- snapshots and copies --------------------------------------------------------------------

    @rule(target=saved, run=running, own=st.booleans())
    def snapshot(self, run: Running, own: bool) -> Any:
        if not self.alive(run) or run.refused:
            return multiple()
        try:
            blob, secret = run.stream.snapshot(), run.stream.secret
        except StateError:
            run.refused = run.stream._streams.waiting == 0
            return multiple()  # some observations wait to be compared
        master = self.secrets[run.secret]
        return blob, secret if own or master is None else master, replace(run)

    @rule(target=running, snapshot=saved, data=st.sampled_from([None, 1, 3]))
    def resume(self, snapshot: Any, data: int | None) -> Any:
        """A stream goes on from where it was saved, as often as somebody likes, as it likes."""
        blob, secret, was = snapshot
        if was.process != self.process and self.uses(was.secret) is None:
            return multiple()  # nothing is left that could remember
        stream = self.plans[was.plan].resume(blob, secret=secret, uses=self.uses(was.secret))
        assert stream.t == was.given
        run = replace(was, stream=stream, process=self.process)
        if data is not None:
            run.raw_data = different(run.raw_data, observations(data), run.given)
        return run

    @rule(
        target=running,
        run=running,
        how=st.sampled_from(
            [copy.copy, copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))]
        ),
    )
    def copy_and_go_another_way(self, run: Running, how: Any) -> Any:
        if not self.alive(run):
            return multiple()
        try:
            stream = how(run.stream)
        except (TypeError, pickle.PicklingError):
            return multiple()
        raw_data = different(run.raw_data, observations(4), run.given)
        return replace(run, stream=stream, raw_data=raw_data)

    # --- threads ---------------------------------------------------------------------------------

    @rule(run=running, count=st.integers(1, 8))
    def two_threads(self, run: Running, count: int) -> None:
        """Each with a block of its own: every time is released once."""
        if not self.alive(run) or run.refused or run.given + 2 * count > LENGTH:
            return
        plan = PLANS[run.plan]
        # Who came first is seen from the times of releases; where there need be none, both have
        # the same block.
        seen_from_outside = plan.lag == 0 and plan.every == 1
        raw_blocks = [
            [float(100 + t) for t in range(count)],
            [float(900 - t) for t in range(count)],
        ]
        if not seen_from_outside or run.stream._streams.waiting:
            raw_blocks[1] = raw_blocks[0]
        found: dict[int, list[Any]] = {}

        def work(index: int) -> None:
            try:
                found[index] = list(run.stream.update_many(raw_blocks[index]))
            except StateError:
                run.refused = True

        with faults.threads_meet_in_a_step():
            threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        times = Counter(release.t for each in found.values() for release in each)
        if times and max(times.values()) > 1:
            raise Violation("one time was released by two threads")
        if len(found) < 2:
            return  # refused: what the other one released is compared no more
        order = sorted(found, key=lambda index: [release.t for release in found[index]][:1])
        raw_both = [value for index in order for value in raw_blocks[index]]
        start = run.given
        run.raw_data = (*run.raw_data[:start], *raw_both, *run.raw_data[start + len(raw_both) :])
        run.given += len(raw_both)
        if run.stream.t + run.stream._streams.waiting != run.given:
            raise Violation(f"{run.stream.t} absorbed by two threads, {run.given} given")
        for index in order:
            self.see(run, found[index])

    # --- many keys -------------------------------------------------------------------------------

    def begin_many(
        self, plan: str, streams: Any, secret: int, raw_data: list[Values], given: Any = (0, 0)
    ) -> Many:
        each = {
            key: Running(streams, plan, raw, secret, key, start, process=self.process)
            for key, raw, start in zip(KEYS, raw_data, given, strict=True)
        }
        self.opened.append(Many(streams, each))
        return self.opened[-1]

    @rule(target=many, data=st.integers(0, 2))
    def open_many(self, data: int) -> Many:
        plan = self.many_keys
        streams = self.plans[plan].open_many(**self.words(0))
        return self.begin_many(plan, streams, 0, [observations(data), observations(data)])

    @rule(target=many, data=st.integers(0, 1), secret=st.sampled_from([0, 2]))
    def open_folder(self, data: int, secret: int) -> Any:
        plan = self.many_keys
        own = self.fresh() if secret else 0
        self.folders += 1
        folder = self.path / f"folder{self.folders}"
        try:
            streams = self.plans[plan].open_folder(folder, **self.words(own))
        except StateError:
            return multiple()  # the secret serves another state, or was used without one
        begun = self.begin_many(plan, streams, own, [observations(data), observations(data)])
        begun.folder = folder
        return begun

    def feed_many(self, each: Many, keys: list[Any], *, single: bool) -> None:
        runs = list(each.each.values())
        if not self.alive(runs[0]):
            return
        counts = Counter(keys)
        pools = {key: iter(each.each[key].next(counts[key])) for key in counts}
        rows = [
            (key, value) for key in keys for value in [next(pools[key], None)] if value is not None
        ]
        parts = [[row] for row in rows] if single else [rows]
        for part in parts:
            try:
                if single:
                    (key, value) = part[0]
                    found = [each.streams.update(value, key=key)]
                else:
                    values = [value for _, value in part]
                    found = each.streams.update_many(values, key=[key for key, _ in part])
            except StateError:
                for run in runs:
                    run.refused = True
                return
            for key, _ in part:
                each.each[key].given += 1
            for release in found:
                if release is not None:
                    self.published.see(each.each[release.key], release)
        self.check_count(each)

    def check_count(self, each: Many) -> None:
        runs = each.each.values()
        given = sum(run.given for run in runs)
        if any(run.refused for run in runs):
            return
        try:
            absorbed = each.streams.observations
        except StateError:  # what waited in a view has been compared just now
            for run in runs:
                run.refused = True
            return
        if absorbed != given:
            raise Violation(f"{absorbed} absorbed, {given} given")

    @rule(each=many, keys=st.lists(st.sampled_from(KEYS), max_size=16), single=st.booleans())
    def update_keys(self, each: Many, keys: list[Any], single: bool) -> None:
        self.feed_many(each, keys[:4] if single else keys, single=single)

    @rule(each=many, index=st.integers(0, 1), count=st.integers(1, 4), single=st.booleans())
    def update_a_view(self, each: Many, index: int, count: int, single: bool) -> None:
        """One key by itself, through a view of it."""
        run = each.each[KEYS[index]]
        if self.alive(run) and not run.refused:
            view = each.streams.stream(run.key)
            for raw_value in run.next(count) if single else [run.next(count)]:
                try:
                    found = [view.update(raw_value)] if single else view.update_many(raw_value)
                except StateError:
                    for other in each.each.values():
                        other.refused = True
                    return
                run.given += 1 if single else len(raw_value)
                # Those of the other key come too where it was the last one of a shared range.
                for release in found:
                    if release is not None:
                        self.published.see(each.each[release.key], release)
            self.check_count(each)

    @rule(target=many, each=consumes(many), data=st.sampled_from([None, 1, 3]))
    def close_and_open_again(self, each: Many, data: int | None) -> Any:
        """A state in a folder goes on, with whatever comes; what is in memory is lost."""
        if each in self.opened:
            each.streams.close()
            self.opened.remove(each)
        runs = list(each.each.values())
        if each.folder is None:
            for run in runs:
                run.process = -1
            return multiple()
        streams = self.plans[runs[0].plan].open_folder(each.folder)
        raw_data = [run.raw_data for run in runs]
        if data is not None:
            others = observations(data)
            raw_data = [different(run.raw_data, others, run.given) for run in runs]
        given = [run.given for run in runs]
        again = self.begin_many(runs[0].plan, streams, runs[0].secret, raw_data, given)
        again.folder = each.folder
        return again

    # --- other versions, other processes ---------------------------------------------------------

    @rule(run=running, change=st.sampled_from(["noise", "lattice", "cost of looks"]))
    def run_under_another_version(self, run: Running, change: str) -> None:
        """The same data, as far as a stream has come: only the mechanism is another."""
        if not self.alive(run) or self.secrets[run.secret] is None or run.refused:
            return
        with faults.another_version(change) as read_again:
            plan = read_again(self.plans[run.plan])
            stream = plan.open(**self.words(run.secret), key=run.key)
            other = replace(run, stream=stream, given=0, version=change)
            # A constant that this plan does not use makes no other version of it.
            if plan.layout.mechanism == self.plans[run.plan].layout.mechanism:
                other.version = run.version
            self.feed(other, run.given, single=False)

    @rule(snapshot=saved, change=st.sampled_from(["noise", "ratchet", "cost of looks"]))
    def resume_under_another_version(self, snapshot: Any, change: str) -> None:
        blob, secret, was = snapshot
        with faults.another_version(change) as read_again:
            plan = read_again(self.plans[was.plan])
            if plan.layout.mechanism != self.plans[was.plan].layout.mechanism:
                with pytest.raises(StateError):
                    plan.resume(blob, secret=secret)

    @rule(now=st.integers(0, 3))
    def restart(self, now: int) -> None:
        """Now and then the process ends; folders and files of uses are what is left of it."""
        if now:
            return
        for each in self.opened:
            if each.folder is not None:
                each.streams.close()
        self.opened.clear()
        faults.forget_what_the_process_knows()
        self.process += 1
        # The second secret was remembered by the process alone: another one takes its place.
        self.secrets[1] = Secret.generate()
        self.published.forget(1)

    # --- the command line ------------------------------------------------------------------------

    @precondition(lambda self: self.command_lines)
    @rule(rows=st.integers(1, 12), data=st.integers(0, 1), state=st.sampled_from(["", "a", "b"]))
    def command_line(self, rows: int, data: int, state: str) -> None:
        """A file is run under one secret: on with a state, or all of it."""
        assert self.desk is not None
        if not (self.desk / "secret").exists():
            self.desk.secret()
        raw_data = [value for value in observations(data)[:rows] if isinstance(value, float)]
        self.desk.csv("in.csv", raw_data)
        words = ("--state", state) if state else ("--out", "again.jsonl", "--existing", "replace")
        plan = ("--mechanism", "baseline", "--epsilon", 1e-3, "--upper", UPPER, "--length", LENGTH)
        ended = self.desk.run("in.csv", "--secret", "secret", *words, plan=plan)
        assert ended.code in (DONE, REFUSED, FAILED), ended.said
        # Whatever it was refused for, something may have been published before.
        if not state:
            found = {t: total for (_, t), total in self.desk.sums("again.jsonl").items()}
        elif self.desk.count(state):
            found = {t: total for _, t, total in self.desk.stored(state)}
        else:
            found = {}
        for t, total in found.items():
            if self.published.values.setdefault(("file", t), total) != total:
                raise Violation(f"two values for one t of a file: {t}")


def search(examples: int, *, number: int | None = None, command_lines: bool = False) -> Any:
    """Look for a violation; the same search each time, or the one of this number."""

    class Search(Machine):
        pass

    Search.command_lines = command_lines
    # Read again, so that a fault put back into the code is in them, and in no others.
    Search.plans = {name: Plan.from_json(plan.to_json()) for name, plan in PLANS.items()}
    Search.steps = Search.examples = 0
    if number is not None:
        seed(number)(Search)
    with faults.small_chunks():
        run_state_machine_as_test(
            Search,
            settings=settings(
                max_examples=examples,
                stateful_step_count=30,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                deadline=None,
                derandomize=number is None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    return Search


def test_nothing_is_found():
    search(80)


FOUND = {
    "noise keyed by JSON": "two versions share noise|equal noise",
    "no guard": "two values for one|equal noise",
    "no lock": "two threads",
    "copies": "two values for one|equal noise",
    "flattened": "given",
    "separate views": "two values for one|equal noise|given",
}


@pytest.mark.parametrize("fault", sorted(faults.PUT_BACK))
def test_each_old_fault_is_found_when_it_is_put_back(fault):
    """The search has the power to see them."""
    with pytest.MonkeyPatch.context() as patch:
        faults.PUT_BACK[fault](patch)
        with pytest.raises(Violation, match=FOUND[fault]):
            search_again_if_flaky(300, allowed=fault == "no lock")


def search_again_if_flaky(examples: int, *, allowed: bool) -> None:
    """Without a lock threads race, and no history is the same twice."""
    for number in (None, *range(8)):
        try:
            search(examples, number=number)
            return
        except Flaky:
            assert allowed


@pytest.mark.long
def test_nothing_is_found_in_a_long_search():
    """Another search each time, until ``RILLET_MACHINE_SECONDS`` are over."""
    end = time.monotonic() + SECONDS
    started, steps, examples = time.time_ns(), 0, 0
    while time.monotonic() < end:
        done = search(50, number=started + examples, command_lines=True)
        steps, examples = steps + done.steps, examples + done.examples
        print(f"{examples:,} histories, {steps:,} steps, {end - time.monotonic():,.0f} s left")  # noqa: T201
