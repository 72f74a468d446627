# -*- test-case-name: tests.unit.kafka.security.test_superusers -*-
"""
The rule of which clients may do what changes the broker for others.
"""

from __future__ import annotations

from collections.abc import Collection

from attrs import frozen

_LONGEST_NAME = 200


@frozen
class SuperUsers:
    """
    The one rule of who may change limits, topics, groups and passwords.  There
    are no access control lists: a super user may change all of them, others
    none, except for what is their own.

    @ivar names: their principals.
    @ivar isEnforced: whether clients have names that can be told apart;
        otherwise everybody may do everything.
    """

    names: Collection[str]
    isEnforced: bool

    def refusal(self, principal: str, owner: str | None = None) -> str | None:
        """
        Why a client must not change something; L{None} if it may.

        @param principal: the client's.
        @param owner: whose it is, if it belongs to one user alone, as a password does.
        @return: a sentence for the client.
        """
        if not self.isEnforced or principal in self.names or principal == owner:
            return None
        name = principal if len(principal) <= _LONGEST_NAME else f"{principal[:_LONGEST_NAME]}..."
        return (
            f"only super users may do this, and {name!r} is none; log in as one of them, or add "
            f"{f'User:{name}'!r} to super.users of the broker"
        )
