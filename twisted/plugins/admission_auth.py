"""
C{--auth scram:PASSWORDFILE} and the endpoint C{mtls:}.
"""

from admission.kafka.security.dropins import MutualTLSParser, ScramCheckerFactory

scram = ScramCheckerFactory()
mtls = MutualTLSParser()
