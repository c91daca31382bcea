from kvrun.client import AsyncClient as AsyncClient
from kvrun.client import Client as Client

__version__: str
