"""
Recordings, read and evaluated on Spark.  Names that are not here may move
without notice, but for the functions of L{admission.offline.jobs}.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .evaluation import Selection as Selection
    from .jobs import Question as Question, Work as Work
    from .population import Draft as Draft, Member as Member, Population as Population, Stream as Stream
    from .recording import Recording as Recording
    from .replay.candidates import resolveCandidate as resolveCandidate, resolveCandidates as resolveCandidates
    from .replay.decisions import CLOSED as CLOSED, OPEN as OPEN
    from .replay.pool import replayPools as replayPools
    from .replay.pooltrace import POOL_COLUMNS as POOL_COLUMNS
    from .report.writing import writeReport as writeReport
    from .sparksession import openSession as openSession

__all__, __getattr__, __dir__ = lazyNames(
    __name__,
    {
        "evaluation": ("Selection",),
        "jobs": ("Question", "Work"),
        "population": ("Draft", "Member", "Population", "Stream"),
        "recording": ("Recording",),
        "replay.candidates": ("resolveCandidate", "resolveCandidates"),
        "replay.decisions": ("CLOSED", "OPEN"),
        "replay.pool": ("replayPools",),
        "replay.pooltrace": ("POOL_COLUMNS",),
        "report.writing": ("writeReport",),
        "sparksession": ("openSession",),
    },
)
