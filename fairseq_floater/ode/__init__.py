"""Define the position flow, its right-hand side and the ways to solve it, without fairseq."""

from fairseq_floater.ode.auto import Choice as Choice
from fairseq_floater.ode.auto import choose as choose
from fairseq_floater.ode.clock import Clock as Clock
from fairseq_floater.ode.dynamics import BackwardDynamics as BackwardDynamics
from fairseq_floater.ode.dynamics import PositionDynamics as PositionDynamics
from fairseq_floater.ode.dynamics import RescaledModule as RescaledModule
from fairseq_floater.ode.engines import ENGINES as ENGINES
from fairseq_floater.ode.finite import ADVICE as ADVICE
from fairseq_floater.ode.finite import FlowError as FlowError
from fairseq_floater.ode.finite import NonFiniteGradientError as NonFiniteGradientError
from fairseq_floater.ode.finite import NonFiniteTrajectoryError as NonFiniteTrajectoryError
from fairseq_floater.ode.finite import StiffFlowError as StiffFlowError
from fairseq_floater.ode.solve import GRADIENTS as GRADIENTS
from fairseq_floater.ode.solve import TORCHDIFFEQ_SOLVERS as TORCHDIFFEQ_SOLVERS
from fairseq_floater.ode.solve import checked_step_size as checked_step_size
from fairseq_floater.ode.solve import solve as solve
from fairseq_floater.ode.solve import step_halving_error as step_halving_error
from fairseq_floater.ode.solve_record import SolveRecord as SolveRecord
