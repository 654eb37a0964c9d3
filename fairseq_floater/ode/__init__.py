"""The position flow: its right-hand side and the ways to solve it. Knows torch, not fairseq."""

from fairseq_floater.ode.dynamics import PositionDynamics as PositionDynamics
from fairseq_floater.ode.rescaled import RescaledModule as RescaledModule
from fairseq_floater.ode.solve import GRADIENTS as GRADIENTS
from fairseq_floater.ode.solve import SOLVERS as SOLVERS
from fairseq_floater.ode.solve import NonFiniteTrajectoryError as NonFiniteTrajectoryError
from fairseq_floater.ode.solve import checked_step_size as checked_step_size
from fairseq_floater.ode.solve import solve as solve
from fairseq_floater.ode.solve import step_halving_error as step_halving_error
