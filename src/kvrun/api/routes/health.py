"""Whether the process lives and whether it can work; for supervisors, without sign-in."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from kvrun.api.dependencies import ServicesNow

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The answer where all is well."""

    status: Literal["ok"] = "ok"


@router.get("/healthz", summary="Whether the process lives")
async def healthz() -> Health:
    """It answers, so it lives. Nothing else is looked at."""
    return Health()


@router.get("/readyz", summary="Whether the control plane can work")
def readyz(services: ServicesNow) -> Health:
    """The database can be read; 503 where it cannot."""
    services.check()
    return Health()
