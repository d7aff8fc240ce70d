"""Whether what a deployment asks for can run at all, asked before it is accepted: card, weights, model, memory."""

import os

from gateway.configuration.settings import Settings
from gateway.database.errors import Invalid
from gateway.installation.installation import Installation
from regions.errors import LaunchError
from regions.fleet.deployment import CPU, Deployment
from regions.launchers.planning import check_start


class Feasibility:
    """Of one installation. Where backends run elsewhere (a cluster, another gateway), what only that place knows is
    left to it: how much memory a machine has, and weights whose folder is not here."""

    def __init__(self, installation: Installation, settings: Settings) -> None:
        self._installation = installation
        self._fleet = settings.fleet
        self._models = installation.models(settings)

    def check(self, wanted: Deployment) -> None:
        """Raises Invalid with the reason, in the planner's words where it is the planner that refuses."""
        here = self._fleet.on_this_machine
        weights = self._models / wanted.weights
        if here and wanted.gpu != CPU and not self._fleet.gpus:
            raise Invalid(
                f"backends of this machine may use no GPU, so none can start on {wanted.gpu}; "
                f"list the device numbers in fleet.gpus, or deploy on {CPU}"
            )
        if not weights.exists():
            if here or self._models.exists():
                raise Invalid(
                    f"there are no weights {wanted.weights!r} in the folder of models ({self._models.name}); "
                    "put them there, or name others"
                )
            return
        try:
            check_start(weights, wanted.gpu, _memory() if here else None)
        except LaunchError as error:
            raise Invalid(str(error)) from None


def _memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
