"""The targets, a module each; L{tests.fuzz.target} says what is in one."""
