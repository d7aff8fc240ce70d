"""Whether what a deployment asks for can run at all, asked before it is accepted: card, weights, model, memory."""

import os
from datetime import UTC, datetime

from gateway.configuration.settings import Settings
from gateway.database.errors import Invalid
from gateway.installation.installation import Installation
from gateway.records.fleet import DeploymentRecord
from regions.errors import LaunchError
from regions.fleet.cards import CPU
from regions.fleet.deployment import Deployment, Scale
from regions.launchers.planning import check_start


class Feasibility:
    """Of one installation. Where backends run elsewhere (a cluster, another gateway), what only that place knows is
    left to it: how much memory a machine has, and weights whose folder is not here."""

    def __init__(self, installation: Installation, settings: Settings) -> None:
        self._installation = installation
        self._fleet = settings.fleet
        self._models = installation.models(settings)

    def check_everywhere(self, wanted: Deployment) -> None:
        """As `check`, and that the catalogue has its regions. Raises CatalogueError too."""
        for each in wanted.regions:
            self._installation.catalogue().region(each, datetime.now(UTC).date())
        self.check(wanted)

    def check(self, wanted: Deployment) -> None:
        """Raises Invalid with the reason, in the planner's words where it is the planner that refuses."""
        here = self._fleet.on_this_machine
        weights = self._models / wanted.weights
        if here and wanted.gpu != CPU:
            self._check_gpus(wanted)
        if not weights.exists():
            if here or self._models.exists():
                raise Invalid(
                    f"there are no weights {wanted.weights!r} in the folder of models ({self._models.name}); "
                    "put them there, or name others"
                )
            return
        try:
            check_start(weights, wanted.cards, _memory() if here else None, wanted.most_replicas)
        except LaunchError as error:
            raise Invalid(str(error)) from None

    def check_scale(self, present: DeploymentRecord, scale: Scale) -> None:
        """Raises Invalid where `scale` asks for more replicas than `present` does, and so many could not run. One that
        asks for no more is never refused: figures of a deployment whose weights are gone can still be lowered."""
        if scale.max_replicas > present.max_replicas:
            known = present.model_dump(include=set(Deployment.model_fields) - {"failures", "failure"})
            self.check(Deployment.model_validate(known | scale.model_dump(include=set(Scale.model_fields))))

    def _check_gpus(self, wanted: Deployment) -> None:
        cards = len(self._fleet.gpus)
        if not cards:
            raise Invalid(
                f"backends of this machine may use no GPU, so none can start on {wanted.gpu}; "
                f"list the device numbers in fleet.gpus, or deploy on {CPU}"
            )
        each = wanted.cards.count
        if wanted.most_replicas * each > cards:
            need = "a GPU" if each == 1 else f"{each} GPUs"
            raise Invalid(
                f"{wanted.most_replicas} replicas need {need} each, and backends of this machine may use {cards}; "
                f"ask for {cards // each} at most, or list more device numbers in fleet.gpus"
            )


def _memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
