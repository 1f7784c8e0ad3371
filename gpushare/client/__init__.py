"""The node API for programs. `Client` blocks; the AsyncClient of gpushare.aio is awaited. Both have the same verbs."""

from gpushare.client.blocking import AWAY_SECONDS, Client
from gpushare.client.verbs import new_asker

__all__ = ["AWAY_SECONDS", "Client", "new_asker"]
