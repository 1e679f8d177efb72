"""What all tests share."""

from hypothesis import settings

# A slow machine is not a failure.
settings.register_profile("pgoutput", deadline=None)
settings.load_profile("pgoutput")
