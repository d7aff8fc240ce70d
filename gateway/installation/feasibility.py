"""Whether what a deployment asks for can run at all, asked before it is accepted: card, weights, model, memory."""

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.configuration.settings import Settings
from gateway.database.errors import Invalid
from gateway.installation.installation import Installation
from gateway.records.fleet import DeploymentRecord
from regions.errors import LaunchError
from regions.fleet.cards import CPU, Cards
from regions.fleet.deployment import Deployment, Scale
from regions.launchers.planning import check_start, plan

_OPTION = re.compile(r"--([a-z-]+)")


class Feasibility:
    """Feasibility of policies and deployments on one installation. Where backends run elsewhere (a cluster, another
    gateway), what only that place knows is left to it: how much memory a machine has, and weights whose folder is not
    here."""

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
                raise self._no_weights(wanted.weights)
            return
        try:
            check_start(weights, wanted.cards, _memory() if here else None, wanted.most_replicas)
        except LaunchError as error:
            raise Invalid(str(error)) from None

    def plan(self, weights: str, cards: Cards, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The planner's prediction for these weights of the folder of models (`regions.launchers.planning.plan`, whose
        other arguments `asked` are). Raises Invalid where it can say nothing."""
        folder = self._models / weights
        if not folder.exists():
            raise self._no_weights(weights)
        try:
            made = plan(folder, cards.name, cards=cards.count, **asked)
        except LaunchError as error:
            raise Invalid(_without_options(str(error), folder)) from None
        refusal = made["refusal"]
        return made | {"refusal": None if refusal is None else _without_options(refusal, folder)}

    def _no_weights(self, weights: str) -> Invalid:
        return Invalid(
            f"there are no weights {weights!r} in the folder of models ({self._models.name}); "
            "put them there, or name others"
        )

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


def _without_options(said: str, folder: Path) -> str:
    """The planner's words for those who gave it no options, and do not know where the folder of models is."""
    said = said.replace(f"{folder.parent}/", "").replace("--tensor-parallel-size", "--cards")
    return _OPTION.sub(lambda found: found[1].replace("-", " "), said)


def _memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
