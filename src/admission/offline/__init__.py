"""
Aggregates and audits of a recording, and replays of other policies, on Spark. Names that are not published here may
move without notice.
"""

from typing import TYPE_CHECKING

from ..lazynames import lazyNames

if TYPE_CHECKING:
    from .evaluation import Selection as Selection
    from .jobs import Question as Question, Work as Work, replay as replay
    from .population import Draft as Draft, Member as Member, Population as Population, Stream as Stream
    from .recording import Recording as Recording
    from .report.writing import writeReport as writeReport
    from .simulate.candidates import resolveCandidate as resolveCandidate, resolveCandidates as resolveCandidates
    from .simulate.decisions import CLOSED as CLOSED, OPEN as OPEN
    from .simulate.pool import replayPools as replayPools
    from .simulate.pooltrace import POOL_COLUMNS as POOL_COLUMNS
    from .sparksession import openSession as openSession
    from .workers import prepareWorkers as prepareWorkers

__all__, __getattr__, __dir__ = lazyNames(__name__)
