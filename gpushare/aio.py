"""The node API for programs that run on asyncio."""

from gpushare.client.aio import AsyncClient

__all__ = ["AsyncClient"]
