"""The same rates everywhere: see `dsnb.monitor.rates`."""

from dsnb.monitor.rates import (
    MOST_WAIT,
    JobRates,
    Rates,
    StageRates,
    TrainerRates,
    WorkerRates,
    demand_words,
    rates,
    same_run,
    trainer_rates,
)

__all__ = [
    "MOST_WAIT",
    "JobRates",
    "Rates",
    "StageRates",
    "TrainerRates",
    "WorkerRates",
    "demand_words",
    "rates",
    "same_run",
    "trainer_rates",
]
