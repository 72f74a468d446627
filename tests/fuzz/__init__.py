"""
Fuzzing of everything that parses bytes of others: C{make fuzz MINUTES=10}.

Each module of L{tests.fuzz.targets} is a target.  It says what must hold for any input, in C{check}, and where to
begin, in C{seeds}, which makes inputs with the project's own encoders.  The same checks run as ordinary tests, on the
seeds and on some hundred mutations of them (L{tests.fuzz.test_targets}).
"""
