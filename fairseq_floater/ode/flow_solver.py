"""Solve one flow: choose engine and step, measure errors, and log both."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fairseq_floater.ode import (
    TORCHDIFFEQ_SOLVERS,
    Choice,
    Clock,
    PositionDynamics,
    SolveRecord,
    checked_step_size,
    choose,
    solve,
    step_halving_error,
)
from fairseq_floater.ode.engines import engines_for

logger = logging.getLogger(__name__)

# The solver that stands for the engine and step chosen by measured error.
AUTO = "auto"
# In evaluation errors are estimated over this many tokens, whatever the batch, so that a sentence's
# scores do not depend on its neighbours. (Rows past these are solved with the same step, unmeasured.)
TOKENS_MEASURED = 256
# In training over the longest sentence so far, rounded up to a power of two, but at least this many.
FEWEST_TOKENS_MEASURED = 64
# Errors are estimated again after so many updates (more often at first) and after each validation.
UPDATES_BETWEEN_MEASUREMENTS = 1000
# The attributes that a training run resumed between two measurements needs.
_STATE = ("_chosen", "_period", "_longest", "error", "_measured_at")
TOO_LARGE = (
    ", too large: lower --lr, --floater-lr-scale or --floater-delta, or with target qkv raise "
    "--floater-time-scale"
)


def engine_for(options: dict[str, Any], device: str) -> tuple[str, float | None]:
    """Return the options' engine and step; for ``auto``, the device's first engine that takes the step."""
    solver, step = options["floater_solver"], options["floater_step_size"]
    if solver != AUTO:
        return solver, step
    case = "cuda" if device == "cuda" else "cpu"
    engines = engines_for(case)
    # If no engine takes the step, the last engine's check says why.
    fit = (e for e in engines if step is None or e.finest_step <= step <= e.coarsest_step)
    return next(fit, engines[-1]).name, step


def _period(num_updates: int) -> int:
    """Number the periods between measurements: updates 1, 2-3, 4-7, ..., 512-999, then each thousand.

    A flow changes fastest at first. Measured only at the start, a flow trained at a rate of 0.003 was off
    by up to 3 % after a few hundred updates.
    """
    thousands, rest = divmod(num_updates, UPDATES_BETWEEN_MEASUREMENTS)
    return -thousands if thousands else rest.bit_length()


class FlowSolver:
    """Solve one flow by the user's engine, or by an engine chosen by measured error.

    Args:
        options: the encoder's options, by ``dest``.
        label: names the flow in messages.
        usual_length: tokens of a usual input; evaluation estimates errors over at least this many.
        clock: gives the times at which the flow is read.
        candidates: engines and steps that ``auto`` tries; by default those of :func:`choose`.
    """

    def __init__(
        self,
        options: dict[str, Any],
        label: str,
        usual_length: int,
        clock: Clock,
        candidates: Sequence[tuple[str, float]] = (),
    ):
        self._tokens_measured = max(TOKENS_MEASURED, usual_length)
        self.clock = clock
        self.label = label
        self.record = SolveRecord()
        self._options = options
        self._candidates = candidates
        self._chosen: dict[str, Any] | None = None
        self._period: int | None = None
        self._longest = FEWEST_TOKENS_MEASURED  # of training
        self._reported = ("", False)
        self._fallback_said = False
        #: estimated relative error of the values; None before the first measurement
        self.error: float | None = None
        self._measured_at = self._num_updates = 0

    def forget(self) -> None:
        """Measure before the next solve, because the flow may have changed.

        The longest sentence counts from now on, as in a resumed run.
        """
        self._chosen = None
        self._longest = FEWEST_TOKENS_MEASURED

    def state(self) -> dict[str, Any]:
        """Return the state that later updates depend on, in plain values, for :meth:`restore`."""
        kept = {name: getattr(self, name) for name in _STATE}
        return {**kept, "options": self._options, "record": {**vars(self.record)}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore ``state``, unless it was made under other options."""
        if state["options"].items() <= self._options.items():  # a later release may add options
            vars(self).update({name: state[name] for name in _STATE})
            vars(self.record).update(state["record"])

    def engine(
        self,
        dynamics: PositionDynamics,
        p0: Tensor,
        training: bool,
        num_updates: int,
        num_tokens: int,
    ) -> dict[str, Any]:
        """Return the arguments for `solve`: solver, step_size and gradient.

        Args:
            dynamics: the flow.
            p0: [..., C].
            training: whether the model is in training. Errors of the gradient then count, and errors are
                logged. A frozen flow is measured once, as in evaluation.
            num_updates: updates so far; they decide when to measure again.
            num_tokens: tokens of the batch's longest sentence; matters in training only.
        """
        self._num_updates = num_updates
        due = self.record.fell_back  # another engine may not need RK4
        self.record.fell_back = False
        training &= p0.requires_grad or any(p.requires_grad for p in dynamics.parameters())
        if training:
            longest = max(self._longest, 1 << (num_tokens - 1).bit_length())
            period = _period(num_updates)
            due |= period != self._period or longest > self._longest
            self._period, self._longest = period, longest
        if due or self._chosen is None:
            self._measured_at = num_updates
            self._chosen = self._measured(dynamics, p0, training)
        return self._chosen

    def solve(self, dynamics: PositionDynamics, p0: Tensor, times: Tensor, **engine: Any) -> Tensor:
        """Solve for [N, ..., C], count it in :attr:`record`, and log the first fallback to RK4."""
        fallbacks = self.record.fallbacks
        trajectory = solve(dynamics, p0, times, record=self.record, **engine)
        if self.record.fallbacks > fallbacks and not self._fallback_said:
            self._fallback_said = True
            logger.info(
                "position flow of %s: the parallel solve did not converge; RK4 stands in for this "
                "update (further ones are counted as flow_fallbacks)",
                self.label,
            )
        return trajectory

    def statistics(self) -> dict[str, Any]:
        """Return numbers for the training log since the last call; none if there was no solve."""
        counts = self.record.take()
        solves = counts.pop("solves")
        if not solves:  # an earlier table was used again
            return {}
        counts["evaluations"] /= solves
        if self.error is not None:
            counts["error"] = self.error
            counts["error_age"] = self._num_updates - self._measured_at
        return counts

    def _measured(self, dynamics: PositionDynamics, p0: Tensor, training: bool) -> dict[str, Any]:
        num_tokens = self._longest if training else self._tokens_measured
        times = self.clock.of_tokens(num_tokens)
        solver, step = engine_for(self._options, p0.device.type)
        gradient = self._options["floater_gradient"]
        if self._options["floater_solver"] == AUTO and step is None:
            choice = choose(dynamics, p0, times, training, candidates=self._candidates)
            self.record.learn(choice.record)
            self._report(choice, training)
            return {**choice.options, "gradient": gradient}
        step = checked_step_size(solver, step, gradient)
        engine = {"solver": solver, "step_size": step, "gradient": gradient}
        # A solve by torchdiffeq costs as much as many updates, so its error is measured once.
        if training and (self.error is None or solver not in TORCHDIFFEQ_SOLVERS):
            record = SolveRecord(check_each=True)
            error = step_halving_error(dynamics, p0, times, **engine, record=record)
            self.record.learn(record)
            # If RK4 stood in, the error was RK4's.
            error = float("inf") if record.fallbacks else error
            self._report(Choice(solver, step, error, None, len(times)), training)
        return engine

    def _report(self, choice: Choice, in_training: bool) -> None:
        self.error = choice.value_error
        too_large = not choice.is_exact_enough()
        engine = f"{choice.solver}, step {choice.step_size or 'adaptive'}"
        if (engine, too_large) == self._reported or not (too_large or in_training):
            return
        self._reported = (engine, too_large)
        of_gradient = choice.gradient_error
        logger.log(
            logging.WARNING if too_large else logging.INFO,
            "position flow of %s: %s, estimated relative error of the solve %.1e%s over %d tokens%s",
            self.label,
            engine,
            choice.value_error,
            "" if of_gradient is None else f" (of its gradient {of_gradient:.1e})",
            choice.num_times,
            TOO_LARGE if too_large else "",
        )
