"""The plan: public parameters in, a promise and a way to keep it out.

**Privacy.** A plan holds public parameters only; nothing here ever sees an observation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar

from rillet.errors import ParameterError, StateError
from rillet.gather.grid import UNKNOWN_LENGTH_CAP, check_range
from rillet.keyed import KeyedStreams
from rillet.layout import Layout
from rillet.noise import KeyPart, Secret
from rillet.paper.recommended import recommended_threshold
from rillet.plan.calibrate import layout_of
from rillet.plan.choose import Choice, choose
from rillet.privacy import Guarantee, check_delta, check_epsilon
from rillet.release import Key
from rillet.source.keys import DeclaredKeys
from rillet.statistic import STATISTICS, Mean, Statistic
from rillet.step import start
from rillet.strategy import (
    STRATEGIES,
    BinaryTree,
    Strategy,
)
from rillet.stream import Stream
from rillet.threshold import (
    THRESHOLDS,
    FixedThreshold,
    Range,
    Threshold,
)

Auto: TypeAlias = Literal["auto"]
Tagged = TypeVar("Tagged", Threshold, Strategy, Statistic)

FORMAT = "rillet-plan-1"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is promised and how it is kept, from public numbers alone.

    ``"auto"`` is replaced by what was chosen when the plan is made, so that a plan is complete: the
    same JSON is the same plan for ever.

    Parameters
    ----------
    epsilon, delta
        The promise for each observation.
    lower, upper
        Public bounds of a value; values beyond are clipped.
    length
        Number of observations; None when no end is known (then at most 2^40).
    every
        Release each so many observations.
    lag
        Observations used to learn the threshold; 0 with a fixed one.
    statistic
        ``Mean()`` or ``Sum()``.
    threshold, strategy
        How to choose the clipping range, and how to release the running sum.
    threshold_share
        Share of ε that learning the threshold takes from the first ``lag`` observations.
    refresh
        Learn the range again each time the stream has grown by this factor (2 when ``"auto"``);
        None: never.
    backfill
        Also release the first ``lag`` observations, once the threshold is known.
    keys
        Declared keys, tuples of text and whole numbers: a stream for each (:meth:`open_many`), and
        ``length``, ``lag`` and the promise hold for each of them.
    shared_threshold
        All keys share one clipping range, learned from the first ``lag`` observations of any of
        them; each observation of every key then has ``threshold_share`` less to spend on its sum.

    Examples
    --------
    >>> plan = Plan.baseline(epsilon=1.0, upper=3000.0, length=1000)
    >>> stream = plan.open()
    >>> release = stream.update(12.5)
    >>> release.t, release.threshold
    (1, 3000.0)
    """

    epsilon: float
    delta: float = 0.0
    lower: float = 0.0
    upper: float
    length: int | None
    every: int = 1
    lag: int | Auto = "auto"
    statistic: Statistic = field(default_factory=Mean)
    threshold: Threshold | Auto = "auto"
    strategy: Strategy | Auto = "auto"
    threshold_share: float | Auto = "auto"
    refresh: float | Auto | None = "auto"
    backfill: bool = False
    keys: tuple[Key, ...] = ()
    shared_threshold: bool = False
    _choice: Choice = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        settle("epsilon", check_epsilon(self.epsilon))
        settle("delta", check_delta(self.delta))
        if self.upper is None:
            raise ParameterError(
                "upper",
                "a public bound on the values",
                None,
                hint="give a generous one: a learned threshold makes it cheap",
            )
        lower, upper = check_range(self.lower, self.upper)
        settle("lower", lower)
        settle("upper", upper)
        if self.length is not None:
            settle("length", _whole("length", self.length, 1, UNKNOWN_LENGTH_CAP))
        settle("every", _whole("every", self.every, 1, self.most_observations))
        if not isinstance(self.backfill, bool):
            raise ParameterError("backfill", "True or False", self.backfill)
        if not isinstance(self.statistic, Statistic):
            raise ParameterError("statistic", "a statistic such as Mean()", self.statistic)
        if self.keys:
            settle("keys", DeclaredKeys(self.keys).keys)
        self._check_sharing()
        if self.shared_threshold and self.refresh == "auto":
            settle("refresh", None)
        choice = choose(
            guarantee=self.guarantee,
            length=self.most_observations,
            every=self.every,
            lag=self.lag,
            threshold=self.threshold,
            strategy=self.strategy,
            threshold_share=self.threshold_share,
            refresh=self.refresh,
            sharing=len(self.keys) if self.shared_threshold else 0,
        )
        if self.shared_threshold and not choice.lag:
            raise ParameterError(
                "shared_threshold", "a threshold that is learned", choice.threshold
            )
        for name in ("lag", "threshold", "strategy", "threshold_share", "refresh"):
            settle(name, getattr(choice, name))
        settle("_choice", choice)
        # Refuse now what cannot be calibrated or does not fit, not at the first value.
        self.layout.declared_range  # noqa: B018
        self.layout.charges()

    def _check_sharing(self) -> None:
        if not isinstance(self.shared_threshold, bool):
            raise ParameterError("shared_threshold", "True or False", self.shared_threshold)
        if not self.shared_threshold:
            return
        if not self.keys:
            raise ParameterError("shared_threshold", "False where no keys are declared", True)
        if self.backfill:
            raise ParameterError(
                "backfill", "False with a shared threshold, which releases every observation", True
            )
        if self.refresh not in ("auto", None):
            raise ParameterError("refresh", "None with a shared threshold", self.refresh)

    # --- named plans -----------------------------------------------------------------------------

    @classmethod
    def paper(
        cls,
        *,
        epsilon: float,
        delta: float,
        upper: float,
        length: int | None,
        lower: float = 0.0,
        lag: int | Auto = "auto",
        every: int = 1,
        statistic: Statistic | None = None,
        backfill: bool = False,
        quantile: float | Auto = "auto",
        rank_factor: float | Auto = "auto",
        multiplier: float | Auto = "auto",
        threshold_share: float | Auto = "auto",
        beta_lt: float | Auto = "auto",
        calibration: str = "auto",
        law: str = "laplace",
    ) -> Plan:
        """Mechanism 1 of Perrier, Asghar, Kaafar (NDSS 2019), corrected (docs/errata.md).

        ``quantile`` is the paper's p, ``rank_factor`` λ, ``multiplier`` r, ``threshold_share``
        ε₁/ε, ``beta_lt`` the probability that the threshold falls below the quantile; ``"auto"``
        takes the values that the paper's section VI recommends, and the exact calibration.
        """
        threshold = recommended_threshold(
            quantile=quantile,
            rank_factor=rank_factor,
            multiplier=multiplier,
            beta_lt=beta_lt,
            calibration=calibration,
            law=law,
        )
        return cls(
            epsilon=epsilon,
            delta=delta,
            lower=lower,
            upper=upper,
            length=length,
            every=every,
            lag=lag,
            statistic=Mean() if statistic is None else statistic,
            threshold=threshold,
            strategy=BinaryTree(),
            threshold_share=threshold_share,
            backfill=backfill,
        )

    @classmethod
    def baseline(
        cls,
        *,
        epsilon: float,
        upper: float,
        length: int | None,
        delta: float = 0.0,
        lower: float = 0.0,
        every: int = 1,
        statistic: Statistic | None = None,
        strategy: Strategy | None = None,
    ) -> Plan:
        """The plain binary tree with noise scaled to the bound: what the paper improves on."""
        return cls(
            epsilon=epsilon,
            delta=delta,
            lower=lower,
            upper=upper,
            length=length,
            every=every,
            lag=0,
            statistic=Mean() if statistic is None else statistic,
            threshold=FixedThreshold(),
            strategy=BinaryTree() if strategy is None else strategy,
        )

    # --- what it promises ------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """The promise, for each observation."""
        return Guarantee(self.epsilon, self.delta)

    @property
    def bounds(self) -> Range:
        """The public bounds."""
        return Range(self.lower, self.upper)

    @property
    def most_observations(self) -> int:
        """``length``, or the public cap where no length is known."""
        return UNKNOWN_LENGTH_CAP if self.length is None else self.length

    @cached_property
    def layout(self) -> Layout:
        """The calibrated mechanisms."""
        return layout_of(self)

    def unit_noise_std(self, t: int) -> float:
        """Noise std of the statistic at ``t``, per unit of clipping range.

        Times ``release.threshold - release.clip_lower`` this is exactly ``release.noise_std``.
        """
        unit = self.layout.unit_std_at(t)
        return unit / t if self.statistic.name == "mean" else unit

    def expected_error(self, t: int, threshold: float | None = None) -> float:
        """Standard deviation of the noise in the statistic at ``t``, in the statistic's unit.

        A learned threshold is not known in advance: give a guess as ``threshold``; without one the
        public bound stands in, which is the worst case.
        """
        upper = threshold
        if upper is None:
            declared = self.layout.declared_range
            upper = self.upper if declared is None else declared.upper
        check_range(self.lower, upper)
        return self.unit_noise_std(t) * (upper - self.lower)

    def describe(self) -> str:
        """What this plan does and why, for a person."""
        return self._choice.describe(self.layout)

    # --- running it ------------------------------------------------------------------------------

    def open(
        self, *, secret: Secret | None = None, key: tuple[str | int, ...] = (), run: str = ""
    ) -> Stream:
        """Start a stream.

        Without a ``secret`` a fresh one comes from the operating system.  With the same secret,
        plan, key and run the noise is the same: never open two streams of different data that way.
        """
        if self.shared_threshold:
            raise ParameterError(
                "shared_threshold", "open_many() for keys that share one", "open()"
            )
        if self.keys and key not in self.keys:
            raise ParameterError("key", "one of the plan's declared keys", key)
        own = self.stream_secret(Secret.generate() if secret is None else secret, key, run)
        return Stream(self.layout, key, start(self.layout, own))

    def open_many(self, *, secret: Secret | None = None, run: str = "") -> KeyedStreams:
        """Start a stream for each declared key, each with its own secret derived from ``secret``.

        ``update(key, value)`` and ``update_many`` of the result take observations; one whose key
        was not declared is dropped, and nothing tells.
        """
        if not self.keys:
            raise ParameterError("keys", "declared keys; without them use open()", ())
        master = Secret.generate() if secret is None else secret
        secrets = (self.stream_secret(master, key, run) for key in self.keys)
        shared = self.stream_secret(master, (), run) if self.shared_threshold else None
        return KeyedStreams(self.layout, self.keys, secrets, shared)

    def resume(self, blob: bytes, *, secret: Secret, run: str = "") -> Stream:
        """Continue from :meth:`Stream.snapshot`, as if the stream had never stopped.

        ``secret`` is the one given to :meth:`open`, or ``stream.secret`` as it was at the snapshot.
        """
        from rillet.state.snapshot import open_state

        def own(key: Key) -> Secret:
            return self.stream_secret(secret, key, run)

        key, state = open_state(self.layout, blob, secret, own)
        return Stream(self.layout, key, state)

    def stream_secret(self, secret: Secret, key: tuple[KeyPart, ...], run: str) -> Secret:
        """The secret of one stream, derived from the master secret by plan, run and key."""
        if secret.scope:
            raise StateError(
                "secret: this one belongs to one stream and cannot open another; "
                "use Secret.generate(), or resume the stream from its snapshot"
            )
        named = type(key) is tuple and all(type(part) in (str, int) for part in key)
        if not named:
            raise ParameterError("key", 'a tuple of text and whole numbers, as ("north", 7)', key)
        return secret.derive("stream", self.digest, run, *key)

    # --- JSON ------------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the plan: noise is keyed by it, so that no two plans share noise."""
        return hashlib.sha256(json.dumps(self._fields(), sort_keys=True).encode()).digest()

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"format": FORMAT}
        for item in dataclasses.fields(self):
            if not item.init:
                continue
            value = getattr(self, item.name)
            if item.name in ("keys", "shared_threshold") and not value:
                continue  # Plans without keys stay the plans that they were.
            if isinstance(value, (Threshold, Strategy, Statistic)):
                value = {"kind": value.name, **dataclasses.asdict(value)}  # type: ignore[call-overload]
            fields[item.name] = value
        return fields

    def to_json(self) -> str:
        """The complete plan; :meth:`from_json` reads it back."""
        return json.dumps(self._fields(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan that :meth:`to_json` wrote."""
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise ParameterError("plan", "JSON", f"text that is not ({error})") from None
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise ParameterError("plan", f'a JSON object with "format": "{FORMAT}"', "another one")
        known = {item.name for item in dataclasses.fields(cls) if item.init}
        if unknown := sorted(set(fields) - known):
            raise ParameterError("plan", f"only the names {sorted(known)}", f"also {unknown}")
        if "keys" in fields:
            fields["keys"] = tuple(
                tuple(key) if isinstance(key, list) else key for key in fields["keys"]
            )
        fields["threshold"] = _untag("threshold", fields.get("threshold"), THRESHOLDS)
        fields["strategy"] = _untag("strategy", fields.get("strategy"), STRATEGIES)
        fields["statistic"] = _untag("statistic", fields.get("statistic"), STATISTICS)
        try:
            return cls(**fields)
        except TypeError as error:
            raise ParameterError(
                "plan", "every required name", f"a plan without it ({error})"
            ) from None


def _whole(name: str, value: object, low: int, high: int) -> int:
    """Refuse anything but a whole number in the range; floats such as 1e6 are welcome."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        number = value.__index__()  # type: ignore[attr-defined]
    except AttributeError:
        number = None
    if isinstance(value, bool) or number is None or not low <= number <= high:
        raise ParameterError(name, f"a whole number from {low:,} to {high:,}", value)
    return int(number)


def _untag(name: str, table: object, kinds: Mapping[str, Callable[..., Any]]) -> Any:
    """An object from its tagged table; ``"auto"`` stays."""
    if table is None or table == "auto":
        return "auto" if name != "statistic" else Mean()
    if not isinstance(table, dict) or table.get("kind") not in kinds:
        found = table.get("kind") if isinstance(table, dict) else table
        raise ParameterError(name, f'a table with "kind" one of {sorted(kinds)}', found)
    arguments = {key: value for key, value in table.items() if key != "kind"}
    try:
        return kinds[table["kind"]](**arguments)
    except TypeError:
        raise ParameterError(name, f"the names of {table['kind']}", sorted(arguments)) from None
